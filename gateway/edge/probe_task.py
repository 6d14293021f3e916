"""Probes one backend whenever that is due, and acts on what comes of it.

The prompts go straight to the backend, never through the request path: no tenant and no quota has
a part in them. When and why is ``gateway.core.probe_schedule``'s.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.core import probe, probe_schedule
from gateway.core.probe import Check, Exit, Report
from gateway.core.probe_schedule import Due, Present, Ran, Result, Schedule
from gateway.core.quarantine import State
from gateway.edge.actions import Actions
from gateway.edge.backends import Backend
from gateway.edge.counting import LocalCounters
from gateway.edge.metrics import Metrics
from gateway.edge.probe_run import Measure, Plan, ProbeRun, engine_measure, local_measure
from gateway.edge.probing import Prober
from gateway.edge.standing import Standings
from gateway.edge.tasks import unless
from gateway.engines.base import Engine
from gateway.types import Action, CheckResult, Evidence, Finding, Verdict

log = logging.getLogger(__name__)
CHECK = "probe"
LOOK_AT_LOAD = 0.05  # seconds: how soon a probe gives way to traffic


@dataclass(frozen=True, slots=True)
class ProbeOrders:
    """How a backend is probed. ``model``: asked for where its workers tell none it serves."""

    schedule: Schedule
    model: str
    named: bool = False  # the operator named the model
    rounds: int = 1
    idle: float = 5.0
    action: Action = Action.QUARANTINE
    cancels: bool = True  # whether a request may be cancelled when traffic comes


class ProbeTask:
    """One backend's. ``prober`` has the deadline of a long answer, ``counters`` count its tokens
    where a tokenizer of ours does.
    """

    def __init__(
        self,
        backend: Backend,
        orders: ProbeOrders,
        prober: Prober,
        counters: LocalCounters | None,
        standings: Standings,
        actions: Actions,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._orders = orders
        self._prober = prober
        self._counters = counters
        self._standings = standings
        self._actions = actions
        self._metrics = metrics
        self._clock = clock
        for result in Result:
            metrics.probe_runs.labels(backend.name, result)
        metrics.probe_releases.labels(backend.name)

    async def run(self) -> None:
        """Probe whenever it is due, for ever. What is due is looked at after each round."""
        while True:
            await self._backend.discovery.next_round()
            await self.look()

    async def look(self) -> None:
        """One probe where one is due, and release where it is earned."""
        past = self._backend.past
        due = probe_schedule.due(self._orders.schedule, past.probed, self._clock(), self._present())
        if due is None:
            return
        began, engine = self._clock(), self._backend.digest
        try:
            report = await self._report(due)
        except Exception as error:  # a bug: the next probe is due all the same
            reason = f"it failed: {type(error).__name__}"
            report = Report((Check("run", Verdict.UNVERIFIABLE, reason, needed=True),))
        result = Result.BROKEN_OFF if report is None else probe_schedule.result_of(report)
        answers = report.clean_answers if report is not None else 0
        if report is not None and result is Result.FAULT:
            self._actions.report(_finding(report, self._orders.action), self._backend)
        ran = Ran(result, engine, due.quick, answers)
        past.probed = probe_schedule.after(
            past.probed, ran, due.occasion, self._clock(), self._present()
        )
        self._record(due, result, self._clock() - began, report)
        self._release()

    def _present(self) -> Present:
        standing = self._standings.of(self._backend)
        return Present(self._backend.digest, standing.state, standing.since, self._load)

    @property
    def _load(self) -> int:
        return self._backend.load + self._backend.load_elsewhere

    async def _report(self, due: Due) -> Report | None:
        """What a probe found; None where it gave way to traffic before it found anything."""
        backend = self._backend
        engine, model = backend.discovery.engine, self._model()
        snapshot = backend.discovery.snapshot
        limit = probe.stated_limit(snapshot, model, self._clock())
        if engine is None or isinstance(limit, Check):
            return Report((limit,) if isinstance(limit, Check) else ())
        context, pool = probe.sizes(snapshot)
        plan = Plan(
            model,
            secrets.token_bytes(32),
            limit,
            context=context,
            pool=pool,
            pairs=1 if due.quick else self._orders.rounds,
            whole_pool=not due.quick,
            idle=self._orders.idle,
            quick=due.quick,
            aborts=self._orders.cancels or backend.standing.state is State.QUARANTINED,
        )
        measure = await self._measure(engine, model)
        checks: list[Check] = []
        run = ProbeRun(
            plan, backend.wiring.url, engine, self._prober, measure, checks.append, self._may_go_on
        )
        if self._orders.cancels:
            whole = await unless(run.run(), self._traffic())
        else:
            await run.run()
            whole = True
        report = Report(tuple(checks), limit)
        # What was found before it gave way is none the less so.
        finished = whole and not run.gave_way
        return report if finished or report.exit is Exit.FAULT else None

    async def _measure(self, engine: Engine, model: str) -> Measure:
        if self._counters is None:
            return engine_measure(engine, self._backend.wiring.url, model, self._prober)
        return await asyncio.to_thread(local_measure, self._counters, engine.name)

    def _model(self) -> str:
        if self._orders.named:
            return self._orders.model
        told = (model for model in self._backend.models() if self._backend.serves(model))
        return next(told, self._orders.model)

    def _may_go_on(self) -> bool:
        return self._load <= self._orders.schedule.at_load

    async def _traffic(self) -> None:
        """Return once there is more load than a probe may run beside."""
        while self._may_go_on():  # noqa: ASYNC110 - requests must not pay for telling us
            await asyncio.sleep(LOOK_AT_LOAD)

    def _record(self, due: Due, result: Result, seconds: float, report: Report | None) -> None:
        name, metrics = self._backend.name, self._metrics
        metrics.probe_runs.labels(name, result).inc()
        metrics.probe_seconds.labels(name).observe(seconds)
        metrics.probe_clean_answers.labels(name).set(self._backend.past.probed.answers)
        if result in (Result.CLEAN, Result.FAULT):
            metrics.probe_last.labels(name).set(datetime.now(UTC).timestamp())
        checks = report.checks if report is not None else ()
        told = [f"{one.check}: {one.text}" for one in checks if one.at_fault or one.missing]
        log.log(
            logging.INFO if result in (Result.CLEAN, Result.BROKEN_OFF) else logging.WARNING,
            "backend %s: %s probe (%s) %s after %.1f s%s",
            name,
            "quick" if due.quick else "full",
            due.occasion,
            result.replace("_", " "),
            seconds,
            f": {'; '.join(told)}" if told else "",
        )

    def _release(self) -> None:
        schedule, history = self._orders.schedule, self._backend.past.probed
        if not probe_schedule.may_release(schedule, history, self._present()):
            return
        self._standings.release(self._backend.name, CHECK)
        self._metrics.probe_releases.labels(self._backend.name).inc()
        if (rule := schedule.release) is not None:
            log.warning(
                "backend %s: released by %d clean probes in a row: %d clean answers exclude a leak"
                " rate over %.2f%% (95%%, share of leaks seen at least %.3f)",
                self._backend.name,
                history.streak,
                history.answers,
                100 * (probe_schedule.excluded(rule, history) or 1.0),
                rule.detection.low,
            )

    def description(self) -> dict[str, Any]:
        """For operators: names, numbers, ages."""
        schedule, history = self._orders.schedule, self._backend.past.probed
        now, present = self._clock(), self._present()
        waits_for = probe_schedule.wanted(schedule, history, now, present)
        bound = probe_schedule.excluded(schedule.release, history) if schedule.release else None
        return {
            "last": history.last,
            "age_s": None if history.at is None else round(now - history.at, 1),
            "occasion": history.occasion,
            "of_present_processes": bool(history.engine) and history.engine == present.engine,
            "clean_in_a_row": history.streak,
            "clean_answers": history.answers,
            "leak_rate_excluded": bound,
            "releases": schedule.release is not None,
            "due": waits_for,
            "held_as_canary": self._backend.held,
        }


def _finding(report: Report, action: Action) -> Finding:
    """The fault that says most. Foreign words are certain and no tenant brings them about; an
    answer over the limit is strong; a wrong count or refusal is no leak by itself.
    """
    bad = [check for check in report.checks if check.at_fault]
    leaks = [check for check in bad if check.verdict is Verdict.LEAK]
    answered = [check for check in bad if check.taken]
    worst = (leaks or answered or bad)[0]
    evidence = Evidence.CERTAIN if leaks else Evidence.STRONG if answered else Evidence.WEAK
    result = CheckResult(
        CHECK,
        worst.verdict,
        worst.check,
        expected=report.limit,
        returned=worst.tokens,
        suspect=True,
    )
    numbers: dict[str, int | float | str] = {"faults": len(bad), "checks": len(report.checks)}
    return Finding(result, evidence, action, numbers=numbers | {"fault": worst.text})
