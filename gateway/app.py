"""The composition root: settings become a running gateway. The only module that constructs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
from aiohttp import web

from gateway.core import tenants
from gateway.edge.access_log import AccessLog
from gateway.edge.actions import Actions
from gateway.edge.admin import Admin
from gateway.edge.backends import Backend
from gateway.edge.calibration import CalibratedCounters, CalibratedMeasurer, Calibrator
from gateway.edge.configured import (
    calibration_policy,
    check_policy,
    media_rules,
    model_to_ask,
    quarantine_rules,
    sentinel_desk,
    wiring,
)
from gateway.edge.counting import EngineMeasurer, LocalMeasurer, Measurer, Threads
from gateway.edge.discovery import Discovery
from gateway.edge.fingerprints import Fingerprints, fingerprinting
from gateway.edge.forward import Forwarder
from gateway.edge.handler import Handler, Runtime
from gateway.edge.incidents import Incidents
from gateway.edge.limiting import Limiting, limiting
from gateway.edge.loading import load_counters
from gateway.edge.media import MediaMeasurer
from gateway.edge.metrics import Metrics
from gateway.edge.probing import Prober
from gateway.edge.queueing import Queue
from gateway.edge.recollection import Recollections
from gateway.edge.record import Recorder
from gateway.edge.server import Place, Servers
from gateway.edge.standing import Standings
from gateway.edge.tasks import Tasks
from gateway.edge.upstream import Deadlines, Upstream
from gateway.edge.webhook import Webhook
from gateway.settings import Settings
from gateway.settings import integrity as written_integrity
from gateway.settings import models as written
from gateway.tokens.counters import EngineCounters
from gateway.tokens.recall import CountCache

T = TypeVar("T")

PROBE_DEADLINE = 5.0  # seconds for one of our own questions to a worker
FIRST_ROUND = 3.0  # seconds start-up waits for engines before it listens without their limits


@dataclass(frozen=True, slots=True)
class Generation:
    """What one configuration holds open; replaced whole on reload."""

    settings: Settings
    runtime: Runtime
    upstream: Upstream
    probing: aiohttp.ClientSession
    executors: tuple[ThreadPoolExecutor, ...]
    discovering: Tasks
    webhook: Webhook | None
    fingerprints: Fingerprints | None

    @property
    def busy(self) -> bool:
        """Whether requests still run under it, or are still being settled."""
        return self.runtime.users.count > 0

    async def close(self) -> None:
        """Stop asking, hang up."""
        await self.discovering.cancel()
        await self.probing.close()
        await self.upstream.close()
        if self.webhook is not None:
            await self.webhook.close()
        for executor in self.executors:
            executor.shutdown(wait=False, cancel_futures=True)


class App:
    """A gateway in this process. ``start`` once, then ``reload`` at will, ``drain``, ``stop``.

    ``secret`` keys what must be alike in processes that serve together; ``routes`` are added to
    the admin plane's.
    """

    def __init__(
        self,
        *,
        access_log: AccessLog | None = None,
        tokenizers: Path | None = None,
        secret: bytes | None = None,
        routes: Iterable[web.RouteDef] = (),
    ) -> None:
        self._clock = asyncio.get_running_loop().time
        self._tokenizers = tokenizers
        self._tasks = Tasks()
        self.metrics = Metrics()
        self._access_log = access_log
        # Keys of caches and salts that no configuration gives: random, so nobody can know them.
        self._secret = secret or secrets.token_bytes(32)
        self._routes = routes
        incidents = Incidents(self.metrics, self._secret, self._clock)
        self.recorder = Recorder(self.metrics, self._clock, self._access_log, incidents)
        # What a reload does not end: where backends stand, and what tenants have sent.
        self._standings = Standings(self._clock)
        self._actions = Actions(incidents, self._standings)
        self._recollections = Recollections()
        self._generation: Generation | None = None
        self._handler: Handler | None = None
        self._servers: Servers | None = None

    async def start(
        self, settings: Settings, *, data: Place | None = None, admin: Place | None = None
    ) -> None:
        """Build, ask the engines once, listen: where the settings say, or at ``data``, ``admin``.

        Raises ``SettingsError`` for a tokenizer that cannot be loaded, ``OSError`` for an address
        that is taken.
        """
        self._generation = await self._build(settings)
        self._handler = Handler(self._generation.runtime, self.recorder, self._clock)
        self._govern(self._generation)
        operators = Admin(
            self._handler, self.recorder, self.metrics, self._clock, self._standings
        ).application()
        operators.add_routes(self._routes)
        self._servers = Servers(self._handler, operators, self._tasks)
        await self._servers.start(data or settings.listen, admin or settings.admin)

    async def reload(self, settings: Settings) -> None:
        """Serve new requests under ``settings``; those under way end under the old ones.

        Addresses stay as they are. Raises ``SettingsError``; then nothing has changed.
        """
        old = self.generation
        new = await self._build(settings)
        self._generation = new
        self.handler.runtime = new.runtime
        self._govern(new)
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
        if self._generation is not None:
            await self._generation.close()
            await self._generation.runtime.limiting.close()
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

    @property
    def servers(self) -> Servers:
        """The listeners. Raises ``RuntimeError`` before ``start``."""
        return _started(self._servers)

    @property
    def data_url(self) -> str:
        """Where clients go; the real port where 0 was asked."""
        return f"http://{self.settings.listen.host}:{self.servers.data_port}"

    @property
    def admin_url(self) -> str:
        """Where operators go."""
        return f"http://{self.settings.admin.host}:{self.servers.admin_port}"

    def _govern(self, generation: Generation) -> None:
        """Incidents and standings follow this configuration from now on."""
        rules = quarantine_rules(generation.settings.integrity.quarantine)
        self._standings.configure(rules, generation.runtime.backends)
        self.recorder.incidents.sink = generation.webhook

    async def _retire(self, old: Generation) -> None:
        """Close an old configuration once nothing can still run under it."""
        try:
            # Once a second is cheaper than a signal from every request.
            while old.busy:
                if not any(backend.waiting for backend in old.runtime.backends):
                    await old.discovering.cancel()  # who waits is admitted by the limit of then
                await asyncio.sleep(1.0)
        finally:  # also where the gateway stops meanwhile
            await old.close()
            if old.runtime.limiting is not self.generation.runtime.limiting:
                await old.runtime.limiting.close()

    async def _build(self, settings: Settings) -> Generation:
        counting = settings.counting
        executors = ThreadPoolExecutor(counting.threads, "count"), ThreadPoolExecutor(1, "slow")
        threads = Threads(*executors, counting.inline_bytes, self.metrics)
        cache = CountCache(counting.cache_bytes, self._secret)
        counters = await load_counters(settings, self._tokenizers)
        timeouts = settings.timeouts
        upstream = Upstream(Deadlines(timeouts.connect, timeouts.first_byte, timeouts.idle))
        probing = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        backends = tuple(
            self._backend(
                entry,
                counters.get(entry.name),
                threads,
                cache,
                probing,
                alone=settings.workers == 1,
            )
            for entry in settings.backends
        )
        sentinels = sentinel_desk(settings, self._secret, threads, self.metrics)
        fingerprints = await fingerprinting(
            settings.integrity,
            self._secret,
            self._generation.fingerprints if self._generation else None,
            threads,
            self._tasks,
            self.metrics,
            self._clock,
        )
        forwarder = Forwarder(
            upstream,
            self.recorder,
            self._tasks,
            threads,
            self._clock,
            checks=check_policy(settings.integrity),
            actions=self._actions,
            recollections=self._recollections,
            prefix_secret=self._secret,
            sentinels=sentinels,
            fingerprints=fingerprints,
        )
        runtime = Runtime(
            backends,
            tenants.directory(settings),
            self._limiting(settings),
            forwarder,
            threads,
            settings.body.max_bytes,
            timeouts.body,
            sentinels,
        )
        discovering = Tasks()
        for backend in backends:
            discovering.spawn(backend.discovery.run(), f"discovery {backend.name}")
            if backend.calibrator is not None:
                discovering.spawn(backend.calibrator.run(), f"calibration {backend.name}")
        await asyncio.gather(_first_round(backends), runtime.limiting.ask(runtime.tenants))
        webhook = _webhook(settings.integrity.webhook, self.metrics)
        return Generation(
            settings, runtime, upstream, probing, executors, discovering, webhook, fingerprints
        )

    def _limiting(self, settings: Settings) -> Limiting:
        """The one of now where a reload leaves it as it is: what it counted stays counted."""
        before = self._generation.runtime.limiting if self._generation else None
        if before is not None and before.settings == settings.limits:
            return before
        return limiting(settings.limits, self.metrics, self._tasks, self._clock)

    def _backend(
        self,
        entry: written.Backend,
        counters: EngineCounters | None,
        threads: Threads,
        cache: CountCache,
        probing: aiohttp.ClientSession,
        *,
        alone: bool,
    ) -> Backend:
        api_key = entry.api_key.get_secret_value() if entry.api_key else None
        prober = Prober(probing, api_key, PROBE_DEADLINE)
        discovery = Discovery(
            entry.name,
            entry.url,
            prober,
            engine_name=entry.engine,
            extra_workers=entry.workers,
            refresh=entry.limit.refresh,
            clock=self._clock,
        )
        measurer: Measurer = EngineMeasurer(entry.url, prober, lambda: discovery.engine)
        calibrator = None
        if counters is not None:
            calibrator = Calibrator(
                entry.name,
                entry.url,
                prober,
                discovery,
                counters,
                calibration_policy(entry.calibration),
                model_to_ask(entry),
                self._clock,
            )
            corrected = CalibratedCounters(counters, calibrator)
            local = LocalMeasurer(
                corrected, threads, cache, self.metrics, lambda: discovery.engine, measurer
            )
            measurer = CalibratedMeasurer(local, measurer, calibrator)
        if entry.media is not None:
            measurer = MediaMeasurer(measurer, media_rules(entry.media), threads)
        return Backend(
            wiring(entry, api_key, self._secret, alone=alone),
            discovery,
            measurer,
            self._clock,
            counting=(lambda: counters.description) if counters else None,
            calibrator=calibrator,
            queue=self._queue(entry),
            standings=self._standings,
        )

    def _queue(self, entry: written.Backend) -> Queue | None:
        """Its queue: that of now where a reload leaves it so, or both would fill the engine."""
        if entry.queue is None:
            return None
        if (before := self._generation) is not None:
            for old, backend in zip(before.settings.backends, before.runtime.backends, strict=True):
                if (old.name, old.url, old.queue) == (entry.name, entry.url, entry.queue):
                    return backend.queue
        return Queue(entry.name, entry.queue, self.metrics, self._clock)


def _webhook(webhook: written_integrity.Webhook | None, metrics: Metrics) -> Webhook | None:
    if webhook is None:
        return None
    return Webhook(webhook.url, webhook.secret.get_secret_value().encode(), metrics)


async def _first_round(backends: tuple[Backend, ...]) -> None:
    """Give engines that are up a moment to tell their limits; those that are not may come later."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_ROUND):
            await asyncio.gather(*(backend.discovery.next_round() for backend in backends))


def _started(part: T | None) -> T:
    if part is None:
        raise RuntimeError("the gateway has not been started")
    return part
