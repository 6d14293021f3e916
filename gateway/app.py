"""A gateway in this process: started, reloaded, drained, stopped."""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from gateway.build import Builder, Generation, Lasting
from gateway.edge.access_log import AccessLog
from gateway.edge.actions import Actions
from gateway.edge.admin import Admin
from gateway.edge.clock import wall_clock
from gateway.edge.configured import connection_rules, ejection_rules, quarantine_rules
from gateway.edge.connections import Connections
from gateway.edge.ejection import Ejections
from gateway.edge.handler import Handler
from gateway.edge.incidents import Incidents, nobody_else
from gateway.edge.metrics import Metrics
from gateway.edge.one_prober import OneProber
from gateway.edge.recollection import Recollections
from gateway.edge.record import Recorder
from gateway.edge.replicas.fingerprints import Outbox
from gateway.edge.replicas.line import new_replica
from gateway.edge.server import Place, Servers
from gateway.edge.standing import Standings
from gateway.edge.tasks import Tasks
from gateway.edge.tls import Fronts
from gateway.settings import Settings
from gateway.settings.tls import scheme

T = TypeVar("T")


class App:
    """A gateway in this process. ``start`` once, then ``reload`` at will, ``drain``, ``stop``.

    ``secret`` keys what must be alike in processes that serve together; they find each other in
    the folder ``shared``, which must be theirs alone. ``routes`` are added to the admin plane's;
    ``probes``: of processes that serve together, this one probes the backends.
    """

    def __init__(
        self,
        *,
        access_log: AccessLog | None = None,
        tokenizers: Path | None = None,
        secret: bytes | None = None,
        shared: Path | None = None,
        routes: Iterable[web.RouteDef] = (),
        probes: bool = True,
    ) -> None:
        self._clock = asyncio.get_running_loop().time
        self._tasks = Tasks()
        self.metrics = Metrics()
        self._access_log = access_log
        self._routes = routes
        # Keys of caches and salts that no configuration gives: random, so nobody can know them.
        secret = secret or secrets.token_bytes(32)
        incidents = Incidents(self.metrics, secret, self._clock, new_replica())
        self.recorder = Recorder(self.metrics, self._clock, self._access_log, incidents)
        self._standings = Standings(wall_clock)
        self._ejections = Ejections(
            self._standings,
            self._clock,
            lambda name, why: self.metrics.routing.ejections.labels(name, why).inc(),
        )
        self._together = OneProber(shared) if shared is not None else None
        self._outbox = Outbox(self.metrics)
        self._lasting = Lasting(
            clock=self._clock,
            secret=secret,
            tokenizers=tokenizers,
            tasks=self._tasks,
            metrics=self.metrics,
            recorder=self.recorder,
            standings=self._standings,
            ejections=self._ejections,
            actions=Actions(incidents, self._standings),
            recollections=Recollections(),
            together=self._together,
            probes=probes,
            outbox=self._outbox,
        )
        self._generation: Generation | None = None
        self._retiring: list[Generation] = []
        self._handler: Handler | None = None
        self._admin: Admin | None = None
        self._servers: Servers | None = None
        self._fronts: Fronts | None = None

    async def start(
        self, settings: Settings, *, data: Place | None = None, admin: Place | None = None
    ) -> None:
        """Build, ask the engines once, listen: where the settings say, or at ``data``, ``admin``.

        Only where the settings say is TLS spoken to operators. Raises ``SettingsError`` for a
        tokenizer or a certificate that cannot be loaded, ``OSError`` for an address that is taken.
        """
        fronts = self._fronts = Fronts.of(settings)
        if self._together is not None:
            await self._together.start()
        self._generation = await Builder(self._lasting, None).build(settings)
        self._handler = Handler(self._generation.runtime, self.recorder, self._clock)
        await self._govern(self._generation)
        self._admin = Admin(
            self._handler,
            self.recorder,
            self.metrics,
            self._clock,
            self._standings,
            self._sharing,
        )
        operators = self._admin.application()
        operators.add_routes(self._routes)
        connections = Connections(
            lambda: connection_rules(self.settings), self.metrics, self._clock
        )
        private = Fronts(fronts.data, None)
        self._servers = Servers(
            self._handler,
            connections,
            operators,
            self._tasks,
            private if admin is not None else fronts,
        )
        await self._servers.start(data or settings.listen, admin or settings.admin)
        self._generation.watch()

    async def reload(self, settings: Settings) -> None:
        """Serve new requests under ``settings``; those under way end under the old ones.

        Addresses stay as they are. Raises ``SettingsError``; then nothing has changed.
        """
        old = self.generation
        Fronts.check(old.settings, settings)
        new = await Builder(self._lasting, old).build(settings)
        _started(self._fronts).renew(settings)
        self._generation = new
        self.handler.runtime = new.runtime
        await self._govern(new)
        if old.replicas is not None and old.replicas is not new.replicas:
            await old.replicas.close()
        await old.watching.cancel()  # one probe of a backend at a time
        new.watch()
        self._retiring.append(old)
        self._tasks.spawn(self._retire(old), "retire")

    async def drain(self) -> bool:
        """Not ready, no new connections, and wait for what runs, as long as ``drain`` says."""
        return await self.servers.drain(self.settings.drain)

    async def stop(self) -> None:
        """End everything, whatever state it is in."""
        if self._servers is not None:
            await self._servers.stop()
        if self._generation is not None:
            await self._generation.runtime.limiting.settled()
        await self._tasks.cancel()
        for old in self._retiring:  # whose closing was cut short, or had not begun
            await self._close(old)
        if self._generation is not None:
            await self._generation.close()
            if self._generation.replicas is not None:
                await self._generation.replicas.close()
            await self._generation.runtime.limiting.close()
            if self._generation.tracing is not None:
                await self._generation.tracing.close()
        if self._together is not None:
            await self._together.stop()
        if self._access_log is not None:
            self._access_log.close()

    @property
    def settings(self) -> Settings:
        """The configuration in force."""
        return self.generation.settings

    @property
    def generation(self) -> Generation:
        """What runs now. Raises ``RuntimeError`` before ``start``."""
        return _started(self._generation)

    @property
    def handler(self) -> Handler:
        """The data plane's handler. Raises ``RuntimeError`` before ``start``."""
        return _started(self._handler)

    async def scrape(self, render: Callable[[], bytes]) -> bytes:
        """All series in another form than the admin plane's text (``Admin.scrape``)."""
        return await _started(self._admin).scrape(render)

    @property
    def servers(self) -> Servers:
        """The listeners. Raises ``RuntimeError`` before ``start``."""
        return _started(self._servers)

    @property
    def data_url(self) -> str:
        """Where clients go; the real port where 0 was asked."""
        return f"{scheme(self.settings.tls)}://{self.settings.listen.host}:{self.servers.data_port}"

    @property
    def admin_url(self) -> str:
        """Where operators go."""
        place = f"{self.settings.admin.host}:{self.servers.admin_port}"
        return f"{scheme(self.settings.admin_tls)}://{place}"

    def _sharing(self) -> dict[str, Any] | None:
        """How what gateways share stands, for operators."""
        replicas = self.generation.replicas
        return replicas.description() if replicas is not None else None

    async def _govern(self, generation: Generation) -> None:
        """Incidents and standings follow this configuration from now on, and what others know."""
        standings, incidents, replicas = (
            self._standings,
            self.recorder.incidents,
            generation.replicas,
        )
        rules = quarantine_rules(generation.settings.integrity.quarantine)
        standings.configure(rules, generation.runtime.backends)
        self._ejections.configure(ejection_rules(generation.settings.routing.ejection))
        incidents.sink = generation.webhook
        self.recorder.tracing = generation.tracing
        if incidents.key != generation.secret:
            incidents.key = generation.secret
            standings.forget_tenants()
        standings.changed = incidents.changed = replicas.wake if replicas else nobody_else
        check = generation.settings.integrity.fingerprints
        sharing = replicas is not None and check is not None and check.shared
        backends = generation.runtime.backends
        self._outbox.serve(generation.fingerprints if sharing else None, backends)
        if replicas is not None:
            await replicas.start()

    async def _retire(self, old: Generation) -> None:
        """Close an old configuration once nothing can still run under it."""
        # Once a second is cheaper than a signal from every request.
        while old.busy:
            if not any(backend.waiting for backend in old.runtime.backends):
                await old.discovering.cancel()  # who waits is admitted by the limit of then
            await asyncio.sleep(1.0)
        await self._close(old)
        self._retiring = [one for one in self._retiring if one is not old]
        # Its parts refer to each other, and a full collection hardly ever comes by itself
        # (``supervise.worker.settle_memory``): each reload would leave a tokenizer behind.
        # It takes milliseconds, for what start-up made is frozen.
        del old
        gc.collect()

    async def _close(self, old: Generation) -> None:
        await old.close()
        if old.runtime.limiting is not self.generation.runtime.limiting:
            await old.runtime.limiting.close()
        if old.tracing is not None and old.tracing is not self.generation.tracing:
            await old.tracing.close()


def _started(part: T | None) -> T:
    if part is None:
        raise RuntimeError("the gateway has not been started")
    return part
