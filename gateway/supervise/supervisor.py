"""Keeps a number of worker processes: starts, watches, restarts, reloads and ends them.

They share one listening socket, which is bound here once and inherited: the kernel hands each
connection to a worker that is free to take it, and one that waits is lost with no worker. With a
socket each (SO_REUSEPORT) the connections waiting for a worker that dies would be reset, and a
busy worker would keep its share waiting.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.edge.tasks import Tasks
from gateway.edge.tls import Fronts
from gateway.settings import HostPort, Problem, Settings, SettingsError
from gateway.settings.tls import scheme
from gateway.supervise.admin import Admin
from gateway.supervise.handover import Handover, Written
from gateway.supervise.ledger import Ledger
from gateway.supervise.peers import relay
from gateway.supervise.process import END_AT_ONCE, Place, Silent, Slot, Worker, spawn

log = logging.getLogger(__name__)
START = 300.0  # seconds a worker may take until it serves
GRACE = 3.0  # seconds beyond its time until a worker is killed
FIRST_DELAY, LONGEST_DELAY = 0.1, 30.0  # seconds before a restart; doubled from one to the other
PROBES = 0  # the worker that probes backends, and so whoever takes its place
STEADY = 60.0  # seconds a worker must have run for its end to count as the first


class StartError(Exception):
    """A worker ended before it served. ``status`` is the exit status to end with."""

    def __init__(self, worker: int, code: int) -> None:
        super().__init__(f"worker {worker} {_ending(code)} before it served")
        self.status = code if code > 0 else 1


class Supervisor:
    """The workers of one configuration file. ``start`` once; ``reload``, ``drain``, ``stop``."""

    def __init__(
        self,
        settings: Settings,
        written: Written,
        environment: Mapping[str, str],
        *,
        access_log: bool,
    ) -> None:
        self.settings = settings
        # What must be alike in all workers and known to nobody else: keys of salts and caches.
        self._handover = Handover(written, secrets.token_bytes(32), access_log)
        self._environment = environment
        self._slots = [Slot(index) for index in range(settings.workers)]
        self._tasks = Tasks()
        self._held = ExitStack()  # the private folder and the sockets
        self._folder = Path()
        self._sockets: Sequence[socket.socket] = ()
        self.ledger = Ledger(self._running)
        self.admin = Admin(self._slots, self.ledger)
        self._fronts: Fronts | None = None

    async def start(self) -> None:
        """Bind, and return once every worker serves.

        The first goes ahead, so that what is wrong is found and told once. Raises ``OSError``
        where an address is taken, ``StartError`` where a worker ends instead, ``SettingsError``
        for a certificate that cannot be loaded.
        """
        self._fronts = Fronts.of(self.settings)
        folder = TemporaryDirectory(prefix="poolgate-", ignore_cleanup_errors=True)
        self._folder = Path(self._held.enter_context(folder))
        self._sockets = await _bound(self.settings.listen)
        for bound in self._sockets:
            self._held.enter_context(bound)
        await self.admin.start(self.settings.admin, self._fronts.admin)
        first, *others = self._slots
        await self._fill(first)
        await asyncio.gather(*(self._fill(slot) for slot in others))
        for slot in self._slots:
            self._tasks.spawn(self._keep(slot), f"keep worker {slot.index}")
        self._tasks.spawn(self.ledger.remember(), "remember")
        self._tasks.spawn(relay(self._running, self._probing), "peers")

    @property
    def data_url(self) -> str:
        """Where clients go; the real port where 0 was asked."""
        place = f"{self.settings.listen.host}:{self._sockets[0].getsockname()[1]}"
        return f"{scheme(self.settings.tls)}://{place}"

    @property
    def admin_url(self) -> str:
        """Where operators go."""
        place = f"{self.settings.admin.host}:{self.admin.port}"
        return f"{scheme(self.settings.admin_tls)}://{place}"

    async def reload(self, settings: Settings, written: Written) -> None:
        """Serve new requests under another configuration, on every worker or on none.

        One worker takes it first. What it has against it is raised as ``SettingsError``, and
        nothing has changed. A later one that refuses, or does not answer, is started again with
        the configuration that is then in force. Addresses and the number of workers stay.
        """
        up = [slot.worker for slot in self._slots if slot.worker and slot.worker.up]
        if not up:
            raise SettingsError([Problem("", "no worker is up to try it")])
        first, *others = up
        if problems := await _taken(first, written):
            raise SettingsError(problems)
        if self._fronts is not None:
            self._fronts.renew(settings)
        self.settings, self._handover = settings, replace(self._handover, written=written)
        await asyncio.gather(*(self._bring_in_line(worker) for worker in others))

    async def drain(self) -> bool:
        """Not ready, no new connections; wait for what runs, as long as ``drain`` says."""
        self.admin.draining = True
        for bound in self._sockets:
            bound.close()
        running = self._running()
        for worker in running:
            worker.end(signal.SIGTERM if worker.up else signal.SIGKILL)
        return await _ended(running, self.settings.drain + GRACE)

    async def stop(self) -> None:
        """End everything, whatever state it is in."""
        self.admin.draining = True
        for how in (END_AT_ONCE, signal.SIGKILL):
            running = self._running()
            for worker in running:
                worker.end(how if worker.up else signal.SIGKILL)
            if await _ended(running, GRACE):
                break
        await self._tasks.cancel()
        await self.admin.stop()
        self._held.close()

    def _running(self) -> list[Worker]:
        return [slot.worker for slot in self._slots if slot.worker]

    def _probing(self) -> bool:
        return any(backend.probe is not None for backend in self.settings.backends)

    async def _fill(self, slot: Slot) -> None:
        """Start a worker and wait until it serves. Raises ``StartError``."""
        place = Place(self._sockets, self._folder, self._environment)
        handover = replace(self._handover, probes=slot.index == PROBES)
        worker = slot.worker = await spawn(slot.index, place, handover, self._tasks)
        if self.admin.draining:  # since a moment ago: nobody told this one
            worker.end(signal.SIGKILL)
        try:
            async with asyncio.timeout(START):
                up = await worker.until_up()
        except TimeoutError:
            worker.end(signal.SIGKILL)
            up = False
        if not up:
            raise StartError(slot.index, await worker.over())
        await self._bring_in_line(worker)
        log.info("worker %d (pid %d) serves", slot.index, worker.pid)

    async def _keep(self, slot: Slot) -> None:
        """Fill a place anew whenever its worker ends, with longer and longer pauses."""
        failures = 0
        while True:
            lived = await self._until_empty(slot)
            if self.admin.draining:
                return
            failures = 1 if lived > STEADY else failures + 1
            log.info("worker %d starts again in %g s", slot.index, pause(failures))
            await asyncio.sleep(pause(failures))
            if self.admin.draining:
                return
            slot.restarts += 1
            self.ledger.restarts += 1
            try:
                await self._fill(slot)
            except (StartError, OSError) as error:
                log.error("%s", error)  # noqa: TRY400 - told, and tried again

    async def _until_empty(self, slot: Slot) -> float:
        """Wait for the end of a place's worker, and keep what it counted; seconds it lived."""
        worker = slot.worker
        if worker is None:
            return 0.0
        code = await worker.over()
        self.ledger.bury(worker.said)
        slot.worker = None
        lived = asyncio.get_running_loop().time() - worker.started
        if not self.admin.draining:
            log.error(
                "worker %d (pid %d) %s after %.0f s", slot.index, worker.pid, _ending(code), lived
            )
        return lived

    async def _bring_in_line(self, worker: Worker) -> None:
        """Hand it the configuration in force, should it have another."""
        while worker.up and worker.handed is not (written := self._handover.written):
            if problems := await _taken(worker, written):
                log.error(
                    "worker %d refuses the configuration in force and is started again: %s",
                    *(worker.index, SettingsError(problems)),
                )
                worker.end()
                return


def pause(failures: int) -> float:
    """Seconds before the restart that follows so many ends in a row."""
    return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures - 1, 16)))


async def _taken(worker: Worker, written: Written) -> Sequence[Problem]:
    """What it has against a configuration. One that says nothing is killed: it may have taken it,
    and may not.
    """
    try:
        return await worker.reload(written)
    except Silent as error:
        worker.end(signal.SIGKILL)
        return [Problem("", str(error))]


async def _ended(workers: Sequence[Worker], seconds: float) -> bool:
    """Whether all have ended by then."""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(worker.over() for worker in workers))
    except TimeoutError:
        return False
    return True


async def _bound(address: HostPort) -> Sequence[socket.socket]:
    """Sockets bound to all that the address names, as asyncio's own servers are."""
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, address.host, address.port, start_serving=False
    )
    sockets = [socket.fromfd(s.fileno(), s.family, s.type) for s in server.sockets]
    server.close()
    return sockets


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
