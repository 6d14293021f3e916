"""The composition root: settings become what serves them. The only module that constructs."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path

import aiohttp

from gateway.core import tenants
from gateway.edge import tls
from gateway.edge.actions import Actions
from gateway.edge.backends import Backend
from gateway.edge.calibration import CalibratedCounters, CalibratedMeasurer, Calibrator, Counts
from gateway.edge.configured import (
    calibration_policy,
    check_policy,
    integrity_secret,
    media_rules,
    model_to_ask,
    routing_policy,
    sentinel_desk,
    wiring,
)
from gateway.edge.counting import EngineMeasurer, LocalMeasurer, Measurer, Threads
from gateway.edge.discovery import Discovery
from gateway.edge.ejection import Ejections
from gateway.edge.fingerprints import Fingerprints, fingerprinting
from gateway.edge.forward import Forwarder
from gateway.edge.handler import Runtime
from gateway.edge.limiting import Limiting, limiting
from gateway.edge.loading import Loaded, by_backend, load_counters
from gateway.edge.media import MediaMeasurer
from gateway.edge.metrics import Metrics
from gateway.edge.one_prober import OneProber
from gateway.edge.probing import Prober
from gateway.edge.queueing import Queue
from gateway.edge.recollection import Recollections
from gateway.edge.record import Recorder, Tracing
from gateway.edge.replicas.fingerprints import Outbox, SharedFingerprints
from gateway.edge.replicas.incidents import SharedIncidents
from gateway.edge.replicas.line import Group, Line
from gateway.edge.replicas.rounds import Part, Replicas, Sharing
from gateway.edge.replicas.standings import SharedStandings
from gateway.edge.routing import Routing
from gateway.edge.standing import Standings
from gateway.edge.tasks import Tasks
from gateway.edge.upstream import Deadlines, Upstream
from gateway.edge.watching import Watch, Watching
from gateway.edge.webhook import Webhook
from gateway.settings import Problem, Settings, SettingsError
from gateway.settings import integrity as written_integrity
from gateway.settings import models as written
from gateway.tokens.recall import CountCache

PROBE_DEADLINE = 5.0  # seconds for one of our own questions to a worker
CALIBRATED_AT_ONCE = 4  # backends; more would hold up requests
FIRST_ROUND = 3.0  # seconds start-up waits for engines before it listens without their limits


@dataclass(frozen=True, slots=True)
class Lasting:
    """What the process keeps whatever its configuration becomes.

    ``secret`` keys caches and salts that no configuration keys; ``tokenizers`` is where assets
    are, the usual places where None. ``together``: the processes it serves with, if any.
    """

    clock: Callable[[], float]
    secret: bytes
    tokenizers: Path | None
    tasks: Tasks
    metrics: Metrics
    recorder: Recorder
    standings: Standings
    ejections: Ejections
    actions: Actions
    recollections: Recollections
    outbox: Outbox
    together: OneProber | None
    probes: bool = True  # whether this process is the one that probes, of those that serve together


@dataclass(frozen=True, slots=True)
class Generation:
    """What one configuration holds open; replaced whole on reload."""

    settings: Settings
    runtime: Runtime
    upstream: Upstream
    probing: aiohttp.ClientSession
    tokenizers: Mapping[str, Loaded]
    executors: tuple[ThreadPoolExecutor, ...]
    discovering: Tasks
    watches: tuple[Watch, ...]
    watching: Tasks
    webhook: Webhook | None
    fingerprints: Fingerprints | None
    tracing: Tracing | None
    secret: bytes = field(repr=False)
    replicas: Replicas | None = None

    @property
    def busy(self) -> bool:
        """Whether requests still run under it, or are still being settled."""
        return self.runtime.users.count > 0

    def watch(self) -> None:
        """Begin to probe backends and to hold them against the gate: once it is in force."""
        for number, watch in enumerate(self.watches):
            self.watching.spawn(watch.run(), f"watch {number}")

    async def close(self) -> None:
        """Stop asking, hang up."""
        await self.watching.cancel()
        await self.discovering.cancel()
        await self.probing.close()
        await self.upstream.close()
        if self.webhook is not None:
            await self.webhook.close()
        for executor in self.executors:
            executor.shutdown(wait=False, cancel_futures=True)


class Builder:
    """Makes one configuration's parts beside those of the one before, which stay as they are."""

    def __init__(self, lasting: Lasting, before: Generation | None) -> None:
        self._lasting = lasting
        self._before = before
        self._calibrated = asyncio.Semaphore(CALIBRATED_AT_ONCE)

    async def build(self, settings: Settings) -> Generation:
        """Everything but the listeners, its engines asked once. Raises ``SettingsError``."""
        lasting, before = self._lasting, self._before
        await _load_what_it_needs(settings)
        counting = settings.counting
        executors = ThreadPoolExecutor(counting.threads, "count"), ThreadPoolExecutor(1, "slow")
        threads = Threads(*executors, counting.inline_bytes, lasting.metrics)
        cache = CountCache(counting.cache_bytes, lasting.secret)
        loaded = await load_counters(
            settings, lasting.tokenizers, before.tokenizers if before else {}
        )
        counters = by_backend(settings, loaded)
        counts = {one.counters: Counts(one.counters) for one in loaded.values()}
        timeouts = settings.timeouts
        upstream = Upstream(
            Deadlines(
                timeouts.connect,
                timeouts.first_byte,
                timeouts.idle,
                timeouts.first_byte_per_1k_tokens,
            )
        )
        probing = aiohttp.ClientSession(  # each prober has a deadline of its own
            cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None)
        )
        contexts = tls.to_engines(settings)
        backends = tuple(
            self._backend(
                entry,
                counts[counters[entry.name]] if entry.name in counters else None,
                threads,
                cache,
                probing,
                contexts.get(entry.name),
                alone=settings.workers == 1,
            )
            for entry in settings.backends
        )
        sentinels = sentinel_desk(settings, lasting.secret, threads, lasting.metrics)
        secret = integrity_secret(settings.integrity, lasting.secret)
        fingerprints = await fingerprinting(
            settings,
            secret,
            before.fingerprints if before else None,
            threads,
            lasting.tasks,
            lasting.metrics,
            lasting.clock,
        )
        forwarder = Forwarder(
            upstream,
            lasting.recorder,
            lasting.tasks,
            threads,
            lasting.clock,
            checks=check_policy(settings.integrity),
            actions=lasting.actions,
            recollections=lasting.recollections,
            sentinels=sentinels,
            fingerprints=fingerprints,
        )
        tracing = self._tracing(settings)
        runtime = Runtime(
            backends,
            Routing(backends, routing_policy(settings.routing, lasting.secret)),
            await asyncio.to_thread(tenants.directory, settings),  # tenants may be thousands
            self._limiting(settings),
            forwarder,
            threads,
            settings.body.max_bytes,
            timeouts.body,
            sentinels,
            tracing,
        )
        discovering = Tasks()
        for place, backend in enumerate(backends):
            asking = backend.discovery.run(place, len(backends))
            discovering.spawn(asking, f"discovery {backend.name}")
            if backend.calibrator is not None:
                discovering.spawn(backend.calibrator.run(), f"calibration {backend.name}")
        await asyncio.gather(_first_round(backends), runtime.limiting.ask(runtime.tenants))
        webhook = _webhook(settings.integrity.webhook, lasting.metrics)
        watching = Watching(
            lasting.standings,
            lasting.actions,
            lasting.metrics,
            lasting.clock,
            PROBE_DEADLINE,
            lasting.probes,
        )
        watches = tuple(
            watch
            for entry, backend in zip(settings.backends, backends, strict=True)
            for watch in watching.of(
                entry,
                backend,
                counters.get(entry.name),
                partial(Prober, probing, backend.wiring.api_key, tls=backend.wiring.tls),
            )
        )
        return Generation(
            settings,
            runtime,
            upstream,
            probing,
            loaded,
            executors,
            discovering,
            watches,
            Tasks(),
            webhook,
            fingerprints,
            tracing,
            secret,
            self._replicas(settings, secret),
        )

    def _replicas(self, settings: Settings, secret: bytes) -> Replicas | None:
        """The one of now where a reload leaves it as it is. It is not started here."""
        if not settings.shared_store.shared:
            return None
        sharing = Sharing(settings.shared_store, secret, settings.integrity.shared.every)
        before = self._before.replicas if self._before else None
        if before is not None and before.sharing == sharing:
            return before
        lasting, incidents = self._lasting, self._lasting.recorder.incidents

        def parts(line: Line, group: Group) -> tuple[Part, ...]:
            return (
                SharedStandings(line, group, lasting.standings),
                SharedIncidents(line, group, incidents),
                SharedFingerprints(line, group, lasting.outbox, lasting.metrics),
            )

        return Replicas(sharing, incidents.replica, parts, lasting.metrics, lasting.clock)

    def _limiting(self, settings: Settings) -> Limiting:
        """The one of now where a reload leaves it as it is: what it counted stays counted."""
        before = self._before.runtime.limiting if self._before else None
        if before is not None and before.settings == settings.limits:
            return before
        return limiting(
            settings.limits, self._lasting.metrics, self._lasting.tasks, self._lasting.clock
        )

    def _tracing(self, settings: Settings) -> Tracing | None:
        """That of now where a reload leaves it as it is."""
        if settings.telemetry is None:
            return None
        before = self._before
        if before is not None and before.settings.telemetry == settings.telemetry:
            return before.tracing
        from gateway.edge.otel import OpenTelemetry  # noqa: PLC0415 - an extra

        return OpenTelemetry(settings.telemetry, self._lasting.metrics, self._lasting.clock)

    def _backend(
        self,
        entry: written.Backend,
        counts: Counts | None,
        threads: Threads,
        cache: CountCache,
        probing: aiohttp.ClientSession,
        context: ssl.SSLContext | None,
        *,
        alone: bool,
    ) -> Backend:
        api_key = entry.api_key.get_secret_value() if entry.api_key else None
        prober = Prober(probing, api_key, PROBE_DEADLINE, context)
        discovery = Discovery(
            entry.name,
            entry.url,
            prober,
            engine_name=entry.engine,
            extra_workers=entry.workers,
            refresh=entry.limit.refresh,
            clock=self._lasting.clock,
            together=self._lasting.together,
        )
        measurer: Measurer = EngineMeasurer(entry.url, prober, lambda: discovery.engine)
        calibrator = None
        if counts is not None:
            calibrator = Calibrator(
                entry.name,
                entry.url,
                prober,
                discovery,
                counts,
                calibration_policy(entry.calibration),
                model_to_ask(entry),
                self._lasting.clock,
                turns=self._calibrated,
            )
            corrected = CalibratedCounters(counts.counters, calibrator)
            local = LocalMeasurer(
                corrected, threads, cache, self._lasting.metrics, lambda: discovery.engine, measurer
            )
            measurer = CalibratedMeasurer(local, measurer, calibrator)
        if entry.media is not None:
            measurer = MediaMeasurer(measurer, media_rules(entry.media), threads)
        return Backend(
            wiring(entry, api_key, self._lasting.secret, alone=alone, tls=context),
            discovery,
            measurer,
            self._lasting.clock,
            counting=(lambda: counts.counters.description) if counts else None,
            calibrator=calibrator,
            queue=self._queue(entry),
            standings=self._lasting.standings,
            ejections=self._lasting.ejections,
        )

    def _queue(self, entry: written.Backend) -> Queue | None:
        """Its queue: that of now where a reload leaves it so, or both would fill the engine."""
        if entry.queue is None:
            return None
        if (before := self._before) is not None:
            for old, backend in zip(before.settings.backends, before.runtime.backends, strict=True):
                if (old.name, old.url, old.queue) == (entry.name, entry.url, entry.queue):
                    return backend.queue
        return Queue(entry.name, entry.queue, self._lasting.metrics, self._lasting.clock)


async def _load_what_it_needs(settings: Settings) -> None:
    """On a thread: half a second. Raises ``SettingsError`` for what is missing."""
    if settings.telemetry is None:
        return
    try:
        await asyncio.to_thread(import_module, "gateway.edge.otel")
    except ImportError:
        missing = "needs OpenTelemetry's SDK and exporter: install poolgate[otel]"
        raise SettingsError([Problem("telemetry", missing)]) from None
    if settings.telemetry.tls is not None:
        tls.to_server(settings.telemetry.tls, "telemetry.tls")


def _webhook(webhook: written_integrity.Webhook | None, metrics: Metrics) -> Webhook | None:
    if webhook is None:
        return None
    return Webhook(webhook.url, webhook.secret.get_secret_value().encode(), metrics)


async def _first_round(backends: tuple[Backend, ...]) -> None:
    """Give engines that are up a moment to tell their limits; those that are not may come later."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_ROUND):
            await asyncio.gather(*(backend.discovery.first_round() for backend in backends))
