"""The admin plane: health, readiness, metrics, status, incidents. Never on the data port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from aiohttp import web

from gateway import __version__
from gateway.core import calibration, troubles
from gateway.core.capacity import Known, Seen, Unknown, Unsafe, contradictions
from gateway.core.gate import Level
from gateway.core.quarantine import State
from gateway.edge import page
from gateway.edge.backends import Backend
from gateway.edge.handler import Handler
from gateway.edge.incidents import KEPT
from gateway.edge.metrics import STANDING, Metrics, verdicts
from gateway.edge.record import Recorder
from gateway.edge.standing import Standings
from gateway.edge.usage import live_use

JSON = "application/json"
WAITING_CANARY = 3  # of poolgate_backend_standing
FILTERS = frozenset({"kind", "backend", "tenant", "since"})
CALIBRATED = MappingProxyType({calibration.State.EXACT: 1, calibration.State.DIFFERS: -1})


class Admin:
    """Answers operators. Reads what the data plane holds; all it changes is a standing."""

    def __init__(
        self,
        handler: Handler,
        recorder: Recorder,
        metrics: Metrics,
        clock: Callable[[], float],
        standings: Standings,
        shared: Callable[[], Mapping[str, Any] | None] = lambda: None,
    ) -> None:
        self._handler = handler
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._standings = standings
        self._shared = shared  # how what gateways share stands; None where they share nothing
        self._started = clock()
        self._scraped = asyncio.Lock()

    def application(self) -> web.Application:
        """Its routes."""
        app = page.application()
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/status", self.status)
        app.router.add_get("/overview", self.overview)
        app.router.add_get("/incidents", self.incidents)
        app.router.add_post("/backends/{name}/release", self.release)
        return app

    async def healthz(self, _request: web.Request) -> web.Response:
        """The process lives; engines and stores have no say."""
        return web.json_response({"status": "ok"})

    async def readyz(self, _request: web.Request) -> web.Response:
        """Every backend's limit is known (or need not be), one may be used, and nothing drains."""
        waiting = [
            {"backend": backend.name, "reason": reason}
            for backend in self._handler.runtime.backends
            if (reason := _not_ready(backend)) is not None
        ]
        waiting += _all_out(self._handler.runtime.backends)
        if (reason := self._handler.runtime.limiting.not_ready) is not None:
            waiting.append(
                {"store": str(self._handler.runtime.limiting.settings.store), "reason": reason}
            )
        ready = not waiting and not self._handler.draining
        body = {"ready": ready, "draining": self._handler.draining, "waiting_for": waiting}
        return web.json_response(body, status=200 if ready else 503)

    async def metrics(self, _request: web.Request) -> web.Response:
        """The Prometheus scrape."""
        return web.Response(
            body=await self.scrape(self._metrics.render),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def scrape(self, render: Callable[[], bytes]) -> bytes:
        """What ``render`` makes of the registry, whose gauges of limits are set now.

        On a thread: ten thousand tenants take it a quarter of a second. One at a time, so that no
        other one's gauges are being set meanwhile.
        """
        async with self._scraped:
            self._metrics.forget_limits()  # of workers that are gone
            backends = self._handler.runtime.backends
            for backend in backends:
                self._set_gauges(backend)
                await asyncio.sleep(0)  # a third of a millisecond each, and there may be hundreds
            self._metrics.probers.set(any(backend.discovery.asks for backend in backends))
            return await asyncio.to_thread(render)

    async def status(self, _request: web.Request) -> web.Response:
        """Everything an operator asks first, as JSON."""
        runtime = self._handler.runtime
        body = {
            "version": __version__,
            "uptime_s": round(self._clock() - self._started, 1),
            "draining": self._handler.draining,
            "in_flight": self._handler.in_flight,
            "tasks": len(asyncio.all_tasks()),
            "backends": [self._backend(backend) for backend in runtime.backends],
            "limits": runtime.limiting.description(),
            "tenants": await live_use(
                runtime.limiting.leases, runtime.tenants, runtime.limiting.settings.timeout
            ),
            "incidents": self._recorder.incidents.own,
            "shared": self._shared(),
        }
        return web.Response(body=msgspec.json.encode(body), content_type=JSON)

    async def overview(self, _request: web.Request) -> web.Response:
        """What the page at ``/`` shows: of ``/status`` what asks no store, and what passed lately.

        Beside it ``/incidents``. Cheap enough to be asked every other second.
        """
        runtime, live = self._handler.runtime, self._recorder.live
        live.keep_only(backend.name for backend in runtime.backends)
        uptime = self._clock() - self._started
        body = {
            "version": __version__,
            "uptime_s": round(uptime, 1),
            "draining": self._handler.draining,
            "in_flight": self._handler.in_flight,
            "backends": [self._backend(one) | self._checked(one) for one in runtime.backends],
            "limits": runtime.limiting.description(),
            "traffic": live.traffic(runtime.limiting.leases.running(), uptime),
            "checks": verdicts(self._metrics.checks.collect()),
        }
        body["verdict"] = troubles.verdict(body)
        return web.Response(body=msgspec.json.encode(body), content_type=JSON)

    async def incidents(self, request: web.Request) -> web.Response:
        """The latest incidents, newest first: numbers and identities, no text.

        ``?kind=``, ``backend=``, ``tenant=`` (its name or hash), ``since=`` (ISO 8601, UTC) and
        ``limit=`` choose among them.
        """
        wanted = dict(request.query)
        limit = wanted.pop("limit", str(KEPT))
        if not limit.isdecimal() or wanted.keys() - FILTERS:
            known = ", ".join([*sorted(FILTERS), "limit"])
            return _error(400, f"the filters are {known}; limit is a whole number")
        found = self._recorder.incidents.matching(wanted, int(limit))
        return web.Response(body=msgspec.json.encode(found), content_type=JSON)

    async def release(self, request: web.Request) -> web.Response:
        """End a backend's quarantine or suspicion; harmless where there is none."""
        name = request.match_info["name"]
        if self._standings.release(name, "operator") is None:
            return _error(404, "no backend has that name")
        for backend in self._handler.runtime.backends:
            if backend.name == name:
                backend.vouch()
        return web.json_response({"backend": name, "standing": str(State.SERVING)})

    def _backend(self, backend: Backend) -> dict[str, Any]:
        discovery = backend.discovery
        return {
            "name": backend.name,
            "url": backend.wiring.url,
            "engine": discovery.engine.name if discovery.engine else None,
            "router": discovery.router.name if discovery.router else None,
            "asks_it": discovery.asks,
            "limit": _limit(backend),
            "standing": _standing(backend, self._standings.now()),
            "ejection": _ejection(backend, self._clock()),
            "in_flight": backend.in_flight,
            "load": msgspec.to_builtins(backend.past.load),
            "queue": backend.queue.description() if backend.queue else None,
            "counting": backend.counting(),
            "calibration": _calibration(backend),
            "gate": _gate(backend),
            "probe": backend.probing() if backend.probing else None,
            "workers": [
                _worker(name, seen, self._clock())
                for name, seen in discovery.snapshot.workers.items()
            ],
            "contradictions": contradictions(discovery.snapshot),
            "prefill_ceiling_tokens_per_s": backend.prefill.ceiling(),
        }

    def _checked(self, backend: Backend) -> dict[str, Any]:
        """What of a backend the page shows and ``/status`` does not."""
        model = backend.prefill
        return {
            "suspect_floor": backend.floor,
            "unknown_limit_allowed": backend.wiring.outcomes.allow_unknown_limit,
            "first_token": {
                "ceiling_tokens_per_s": model.ceiling(),
                "judged_from_tokens": model.min_tokens,
                "learnt_from": len(model.recent),
                "enough": model.enough,
                "answers": self._recorder.live.first_tokens(backend.name),
            },
        }

    def _set_gauges(self, backend: Backend) -> None:
        metrics, name, now = self._metrics, backend.name, self._clock()
        limit = backend.capacity()
        metrics.effective_limit.labels(name).set(limit.tokens if isinstance(limit, Known) else -1)
        state = 1 if isinstance(limit, Known) else -1 if isinstance(limit, Unsafe) else 0
        metrics.backend_state.labels(name).set(state)
        if backend.queue is not None:
            metrics.queue_waiting.labels(name).set(backend.queue.fair.waiting)
        metrics.routing.ejected.labels(name).set(backend.past.health.until is not None)
        metrics.routing.outstanding.labels(name).set(backend.past.load.prefilling)
        standing = WAITING_CANARY if backend.held else STANDING[backend.standing.state]
        metrics.standing.labels(name).set(standing)
        for finding in backend.gate().findings if backend.gate else ():
            metrics.gate_findings.labels(name, finding.check, finding.level).inc()
        if backend.calibrator is not None:
            found = backend.calibrator.found
            metrics.calibration_state.labels(name).set(CALIBRATED.get(found.state, 0))
            metrics.calibration_differences.labels(name).set(len(found.differences))
        snapshot = backend.discovery.snapshot
        metrics.contradictions.labels(name).set(len(contradictions(snapshot)))
        seen = snapshot.workers.values()
        ages = [float("inf") if word.at is None else now - word.at for word in seen]
        metrics.limit_age.labels(name).set(max(ages, default=float("inf")))
        for word in seen:
            for fact in word.facts:
                labels = (name, fact.worker, str(fact.role))
                for gauge, value in (
                    (metrics.prompt_limit, fact.max_prompt_tokens),
                    (metrics.pool, fact.pool_tokens),
                    (metrics.context, fact.context_tokens),
                ):
                    if value is not None:
                        gauge.labels(*labels).set(value)


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def _standing(backend: Backend, now: float) -> dict[str, Any]:
    standing = backend.standing
    return {
        "state": str(standing.state),
        "reason": standing.reason,
        "for_s": round(now - standing.since, 1) if standing.since else None,
        "held_by_max_share": standing.capped,
        "incidents": [clue.incident for clue in standing.clues],
    }


def _ejection(backend: Backend, now: float) -> dict[str, Any]:
    health = backend.past.health
    return {
        "state": str(health.state(now)),
        "reason": health.reason,
        "failures_in_a_row": health.failures,
        "ejections": health.ejections,
        "for_s": None if health.until is None else round(max(0.0, health.until - now), 1),
    }


def _all_out(backends: Sequence[Backend]) -> list[dict[str, str]]:
    """Every backend's quarantine, where none is left; while one is, requests go there."""
    standings = [(backend.name, backend.standing) for backend in backends]
    if any(standing.state is not State.QUARANTINED for _, standing in standings):
        return []
    return [
        {"backend": name, "reason": f"quarantined: {standing.reason}"}
        for name, standing in standings
    ]


def _not_ready(backend: Backend) -> str | None:
    limit = backend.capacity()
    if isinstance(limit, Unsafe):
        return limit.reason
    if isinstance(limit, Unknown) and not backend.wiring.outcomes.allow_unknown_limit:
        return limit.reason
    return None


def _limit(backend: Backend) -> dict[str, Any]:
    limit = backend.capacity()
    if isinstance(limit, Known):
        return {
            "state": "known",
            "max_prompt_tokens": limit.tokens,
            "set_by": limit.worker,
            "age_s": round(limit.age, 1),
        }
    return {"state": type(limit).__name__.lower(), "reason": limit.reason}


def _calibration(backend: Backend) -> dict[str, Any] | None:
    return backend.calibrator.description() if backend.calibrator is not None else None


def _gate(backend: Backend) -> dict[str, Any] | None:
    """The gate's verdict on the backend as it runs, and what it did not pass."""
    if backend.gate is None or not (report := backend.gate()).findings:
        return None
    return {
        "verdict": report.exit.name.lower(),
        "context": report.context,
        "headroom": report.headroom,
        "findings": [
            msgspec.to_builtins(one) for one in report.findings if one.level is not Level.PASS
        ],
    }


def _worker(name: str, seen: Seen, now: float) -> dict[str, Any]:
    return {
        "worker": name,
        "age_s": None if seen.at is None else round(now - seen.at, 1),
        "trouble": seen.trouble,
        "stated_limit": seen.stated,
        "facts": [msgspec.to_builtins(fact) for fact in seen.facts],
    }
