"""The contract's metrics, on a registry of their own. Label values come from configuration only."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest

from gateway.core import attestation, binding, completeness, latency, sentinel_check, spotcheck
from gateway.core.fingerprint import verdict as fingerprints
from gateway.core.quarantine import State
from gateway.edge.gen_ai import GenAi
from gateway.edge.routing_metrics import RoutingMetrics
from gateway.edge.series import Maker
from gateway.limits.watch import Outcome
from gateway.types import Verdict

# A counter that appears at 1 hides its first event from increase(): these appear at 0.
CHECKS = (
    spotcheck.CHECK,
    spotcheck.BOUND,
    latency.CHECK,
    binding.CHECK,
    completeness.CHECK,
    attestation.CHECK,
    sentinel_check.CHECK,
    fingerprints.CHECK,
)
OWN_CHECKS = ("probe", "gate")  # of backends, not of answers
MARKERS = ("placed", "no_room", "not_countable", "no_place", "constrained")
STANDING = MappingProxyType({State.SERVING: 0, State.SUSPECT: 1, State.QUARANTINED: 2})
EXPORTS = ("exported", "failed", "dropped")
CONNECTION_ENDS = ("total", "per_address", "headers", "write_idle")
DELIVERIES = ("delivered", "failed", "dropped")

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
_WAIT = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_PROBE = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Shared:
    """The series of what gateways tell each other."""

    def __init__(self, make: Maker) -> None:
        self.up = make.gauge(
            "poolgate_shared_state_up",
            "1 integrity state is exchanged, or meant to be this process's alone; 0 it is not",
        )
        self.failures = make.counter(
            "poolgate_shared_failures", "Rounds of exchange that the store did not answer"
        )
        self.fingerprints = make.counter(
            "poolgate_shared_fingerprints", "Hashes shared with other gateways", "result"
        )
        self.unreadable = make.counter(
            "poolgate_shared_unreadable", "What the store held that no gateway of the group wrote"
        )
        self.up.set(True)
        for result in ("told", "heard", "dropped", "missed"):
            self.fingerprints.labels(result)


class Metrics:
    """Every series the gateway exports; ``render`` is the scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        make = Maker(self.registry)
        self._of_requests(make)
        self._of_backends(make)
        self._of_checks(make)
        self._of_limits(make)
        self._of_queues(make)
        self._of_probes(make)
        self._of_processes(make)
        self._show_zeros()
        self.gen_ai = GenAi(make)

    def _of_requests(self, make: Maker) -> None:
        self.requests = make.counter(
            "poolgate_requests", "Requests by outcome", "dialect", "backend", "tenant", "outcome"
        )
        self.rejections = make.counter(
            "poolgate_rejections", "Refusals by reason (the code in the error body)", "reason"
        )
        self.refused_for_length = make.counter(
            "poolgate_refused_prompt_tokens",
            "Tokens of prompts refused as too long: what the limit costs its users",
            "backend",
            "limited_by",
        )
        self.count_seconds = make.histogram(
            "poolgate_count_seconds", "Time to count a prompt", _SECONDS, "how"
        )
        self.count_cache = make.counter(
            "poolgate_count_cache", "Pieces of prompts whose count was looked up", "result"
        )
        self.overhead_seconds = make.histogram(
            "poolgate_overhead_seconds",
            "Time from a read request to its first byte going upstream",
            _SECONDS,
        )
        self.retries = make.counter(
            "poolgate_withheld_retries",
            "Requests asked again elsewhere after this backend's answer was withheld",
            "backend",
        )
        self.connections = make.gauge("poolgate_connections", "Open connections of clients")
        self.connections_ended = make.counter(
            "poolgate_connections_ended",
            "Connections refused or ended for the clients' sake who behave",
            "reason",
        )
        self.cached_tokens = make.counter(
            "poolgate_cached_prompt_tokens",
            "Prompt tokens that engines took from their caches, as they reported them",
            "backend",
        )

    def _of_backends(self, make: Maker) -> None:
        self.routing = RoutingMetrics(make)
        self.prompt_limit = make.gauge(
            "poolgate_prompt_limit_tokens",
            "Longest prompt a worker accepts",
            "backend",
            "worker",
            "role",
        )
        self.pool = make.gauge(
            "poolgate_pool_tokens", "KV pool of a worker", "backend", "worker", "role"
        )
        self.context = make.gauge(
            "poolgate_context_tokens", "Context a worker advertises", "backend", "worker", "role"
        )
        self.effective_limit = make.gauge(
            "poolgate_effective_limit_tokens",
            "Longest prompt forwarded to a backend (-1: unknown, requests refused)",
            "backend",
        )
        self.contradictions = make.gauge(
            "poolgate_limit_contradictions",
            "Workers that refused a prompt their published limit admits",
            "backend",
        )
        self.limit_age = make.gauge(
            "poolgate_limit_age_seconds", "Age of the oldest worker's word", "backend"
        )
        self.standing = make.gauge(
            "poolgate_backend_standing",
            "0 serving, 1 suspect (short prompts only), 2 quarantined, 3 a canary that waits for"
            " its probe (nothing is sent)",
            "backend",
        )
        self.backend_state = make.gauge(
            "poolgate_backend_state",
            "1 ready, 0 limit unknown, -1 unsafe (would truncate in silence)",
            "backend",
        )
        self.calibration_state = make.gauge(
            "poolgate_calibration_state",
            "1 our counts equal the engine's, 0 not known, -1 they differ",
            "backend",
        )
        self.calibration_differences = make.gauge(
            "poolgate_calibration_differences",
            "Samples on which our counts and the engine's differ",
            "backend",
        )

    def _of_checks(self, make: Maker) -> None:
        self.checks = make.counter(
            "poolgate_checks", "Checks of answers by verdict", "check", "verdict"
        )
        self.suspects = make.counter(
            "poolgate_suspect_answers", "Findings no tolerance explains", "check", "backend"
        )
        self.fingerprint_findings = make.counter(
            "poolgate_fingerprint_findings",
            "Answers that hold other tenants' text, by the strongest there was",
            "backend",
            "strength",
        )
        self.incidents = make.counter("poolgate_incidents", "Incidents by kind", "kind")
        self.shared = Shared(make)
        self.incidents_suppressed = make.counter(
            "poolgate_incidents_suppressed",
            "Incidents not recorded: one tenant's answers opened too many",
            "kind",
        )
        self.sentinel_markers = make.counter(
            "poolgate_sentinel_markers", "Requests by what became of their marker", "outcome"
        )
        self.webhook = make.counter(
            "poolgate_webhook_deliveries",
            "Incidents for the webhook, by what became of them",
            "result",
        )

    def _of_limits(self, make: Maker) -> None:
        self.store_up = make.gauge("poolgate_limiter_store_up", "1: the limiter's store answers")
        self.limiter_seconds = make.histogram(
            "poolgate_limiter_decision_seconds", "Time to decide a request's quotas", _SECONDS
        )
        self.limiter_decisions = make.counter(
            "poolgate_limiter_decisions", "Decisions on quotas by outcome", "outcome"
        )
        self.quota_refusals = make.counter(
            "poolgate_quota_refusals",
            "Requests that a quota refused, or would have but for its shadow",
            "tenant",
            "quota",
            "mode",
        )
        self.limiter_keys_repaired = make.counter(
            "poolgate_limiter_keys_repaired", "Unreadable keys of the store that were replaced"
        )
        self.limiter_slots_lost = make.counter(
            "poolgate_limiter_slots_lost",
            "Places of running requests that the store forgot and others took",
        )

    def _of_processes(self, make: Maker) -> None:
        self.workers = make.gauge("poolgate_workers", "Worker processes that answer")
        self.workers.set(1)
        self.probers = make.gauge(
            "poolgate_probers", "Processes that ask the engines what they hold"
        )
        self.worker_restarts = make.counter(
            "poolgate_worker_restarts", "Worker processes started again after they ended"
        )
        self.spans = make.counter(
            "poolgate_spans", "Spans of traces, by what became of them", "result"
        )

    def _of_queues(self, make: Maker) -> None:
        self.queue_waiting = make.gauge(
            "poolgate_queue_waiting", "Requests that wait for room at a backend", "backend"
        )
        self.queue_wait = make.histogram(
            "poolgate_queue_wait_seconds", "Time a request waited for room", _WAIT, "backend"
        )
        self.queue_refusals = make.counter(
            "poolgate_queue_refusals",
            "Requests refused by a backend's queue",
            "backend",
            "reason",
        )

    def _show_zeros(self) -> None:
        """Have those counters appear at 0 whose labels are known beforehand."""
        for reason in CONNECTION_ENDS:
            self.connections_ended.labels(reason)
        for outcome in Outcome:
            self.limiter_decisions.labels(outcome)
        for marker in MARKERS:
            self.sentinel_markers.labels(marker)
        for result in DELIVERIES:
            self.webhook.labels(result)
        for result in EXPORTS:
            self.spans.labels(result)
        for check in OWN_CHECKS:
            self.incidents.labels(check)
        for check in CHECKS:
            self.incidents.labels(check)
            self.incidents_suppressed.labels(check)
            for verdict in Verdict:
                self.checks.labels(check, verdict)

    def _of_probes(self, make: Maker) -> None:
        """What probes and the gate find of backends."""
        self.probe_runs = make.counter(
            "poolgate_probe_runs", "Probes of a backend by how they ended", "backend", "result"
        )
        self.probe_seconds = make.histogram(
            "poolgate_probe_seconds", "How long probes ran", _PROBE, "backend"
        )
        self.probe_last = make.gauge(
            "poolgate_probe_last_timestamp_seconds",
            "When the last probe that came to a verdict ended (Unix time)",
            "backend",
        )
        self.probe_clean_answers = make.gauge(
            "poolgate_probe_clean_answers",
            "Clean answers of the clean full probes in a row, which count towards release",
            "backend",
        )
        self.probe_releases = make.counter(
            "poolgate_probe_releases",
            "Quarantines and suspicions that clean probes ended",
            "backend",
        )
        self.gate_findings = make.gauge(
            "poolgate_gate_findings",
            "Findings of the deploy gate's checks on the running backend",
            "backend",
            "check",
            "level",
        )

    def forget_limits(self) -> None:
        """Drop the gauges that describe backends and workers, before they are set anew."""
        for gauge in (
            self.prompt_limit,
            self.pool,
            self.context,
            self.effective_limit,
            self.contradictions,
            self.limit_age,
            self.backend_state,
            self.standing,
            self.routing.ejected,
            self.routing.outstanding,
            self.calibration_state,
            self.calibration_differences,
            self.queue_waiting,
            self.gate_findings,
        ):
            gauge.clear()

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


def verdicts(families: Iterable[Metric]) -> dict[str, dict[str, int]]:
    """Checks by verdict, as ``poolgate_checks_total`` among these families counts them."""
    counts: dict[str, dict[str, int]] = {}
    for family in families:
        for sample in family.samples:
            if sample.name == "poolgate_checks_total":
                by_verdict = counts.setdefault(sample.labels["check"], {})
                by_verdict[sample.labels["verdict"]] = int(sample.value)
    return counts
