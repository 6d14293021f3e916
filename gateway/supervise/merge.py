"""What several workers say, as if one process said it. Pure.

Counters and histograms are summed, over workers that have ended too, so that none ever falls.
Gauges are facts or states that each worker holds by itself: the cautious one of them is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import add
from types import MappingProxyType
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.core import live, outlier
from gateway.core.quarantine import State
from gateway.edge import usage
from gateway.edge.metrics import STANDING, verdicts

Combine = Callable[[float, float], float]

GAUGES: Mapping[str, Combine] = MappingProxyType(
    {
        "poolgate_workers": add,
        "poolgate_probers": add,
        "poolgate_queue_waiting": add,
        "poolgate_connections": add,
        "poolgate_backend_outstanding_tokens": add,
        # Each worker ejects by what it met itself.
        "poolgate_backend_ejected": max,
        # Should workers differ: the shortest limit and the worst state are told.
        "poolgate_prompt_limit_tokens": min,
        "poolgate_pool_tokens": min,
        "poolgate_context_tokens": min,
        "poolgate_effective_limit_tokens": min,
        "poolgate_backend_state": min,
        "poolgate_backend_standing": max,
        "poolgate_calibration_state": min,
        "poolgate_calibration_differences": max,
        "poolgate_limit_contradictions": max,
        "poolgate_limit_age_seconds": max,
        "poolgate_limiter_store_up": min,
        # One worker probes. Each holds the engines against the gate.
        "poolgate_probe_last_timestamp_seconds": max,
        "poolgate_probe_clean_answers": max,
        "poolgate_gate_findings": max,
        "poolgate_shared_state_up": min,
    }
)
_EJECTION = (outlier.State.IN_SERVICE, outlier.State.HALF_OPEN, outlier.State.EJECTED)
_SUMMED = frozenset({"counter", "histogram", "summary"})
_ADDED = ("in_flight", "tasks", "incidents")  # of a status
_CREATED = "_created"  # a sample beside a counter's or a histogram's: when the series began


class _Family(msgspec.Struct, array_like=True):
    """A family on its way between processes; a sample is its name, labels and value."""

    name: str
    documentation: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]


def packed(families: Iterable[Metric]) -> bytes:
    """One process's families for ``read``: Prometheus' text takes twenty times as long to parse."""
    return msgspec.msgpack.encode(
        [
            _Family(one.name, one.documentation, one.type, [each[:3] for each in one.samples])
            for one in families
        ]
    )


def read(series: bytes) -> list[Metric]:
    """The families that were packed; of nothing, none."""
    families = []
    for one in msgspec.msgpack.decode(series, type=list[_Family]) if series else ():
        family = Metric(one.name, one.documentation, one.type)
        families.append(_with(family, (Sample(*each) for each in one.samples)))
    return families


def merged(sources: Iterable[Iterable[Metric]]) -> list[Metric]:
    """One family for those of a name, one sample for those of a name and labels."""
    families: dict[str, Metric] = {}
    samples: dict[str, dict[tuple[Any, ...], Sample]] = {}
    for family in (family for source in sources for family in source):
        families.setdefault(family.name, family)
        known = samples.setdefault(family.name, {})
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            same = known.get(key)
            value = _rule(family, sample)(same.value, sample.value) if same else sample.value
            known[key] = sample._replace(value=value)
    return [_with(family, samples[name].values()) for name, family in families.items()]


def outlasting(families: Iterable[Metric]) -> list[Metric]:
    """What still counts once its process has ended: all but gauges."""
    return [family for family in families if family.type in _SUMMED]


def exposition(families: Sequence[Metric]) -> bytes:
    """The families in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Ready(families))
    return generate_latest(registry)


def status(statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One worker's status with the sums of all; empty where none answered.

    What is in flight, what waits, tasks and incidents are summed; of standings the worst is told.
    What else each finds of the engines by itself is the first one's.
    """
    if not statuses:
        return {}
    told = dict(statuses[0])
    told |= {key: sum(each.get(key, 0) for each in statuses) for key in _ADDED}
    told["backends"] = _backends(statuses)
    told["tenants"] = usage.merged([each["tenants"] for each in statuses if "tenants" in each])
    return told


def overview(parts: Sequence[Mapping[str, Any]], ended: Iterable[Metric]) -> dict[str, Any]:
    """One worker's overview with the sums of all, and with what ``ended`` workers had checked.

    Of first-token times the latest are kept; of learnt ceilings the highest is told, for each
    worker judges by its own: what is under the lowest floor is under all of them.
    """
    checks = live.counts_of_all([verdicts(ended), *(part["checks"] for part in parts)])
    if not parts:
        return {"backends": [], "traffic": live.traffic_of_all(()), "checks": checks}
    return {
        **parts[0],
        "in_flight": sum(part["in_flight"] for part in parts),
        "limits": min((part["limits"] for part in parts), key=lambda limits: bool(limits["up"])),
        "backends": _backends(parts),
        "traffic": live.traffic_of_all([part["traffic"] for part in parts]),
        "checks": checks,
    }


def _backends(statuses: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each backend as the first tells it, with what of it is of all."""
    everywhere: dict[str, list[Mapping[str, Any]]] = {}
    for backend in (backend for each in statuses for backend in each.get("backends", ())):
        everywhere.setdefault(backend["name"], []).append(backend)
    return [
        {**backend, **_load(everywhere[backend["name"]])} for backend in statuses[0]["backends"]
    ]


def _load(backends: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What of a backend's status is of all workers."""
    load: dict[str, Any] = {"in_flight": sum(backend["in_flight"] for backend in backends)}
    if standings := [backend["standing"] for backend in backends if "standing" in backend]:
        load["standing"] = max(standings, key=lambda one: STANDING[State(one["state"])])
    if ejections := [backend["ejection"] for backend in backends if "ejection" in backend]:
        load["ejection"] = max(ejections, key=lambda one: _EJECTION.index(one["state"]))
    if loads := [backend["load"] for backend in backends if "load" in backend]:
        load["load"] = {key: sum(one[key] for one in loads) for key in loads[0]}
    if asking := [backend["asks_it"] for backend in backends if "asks_it" in backend]:
        load["asks_it"] = any(asking)
    queues = [queue for backend in backends if (queue := backend.get("queue"))]
    if queues:
        load["queue"] = {key: sum(queue[key] for queue in queues) for key in queues[0]}
    if told := [backend["first_token"] for backend in backends if "first_token" in backend]:
        ceilings = [one["ceiling_tokens_per_s"] for one in told]
        load["first_token"] = {
            **told[0],
            "ceiling_tokens_per_s": max((one for one in ceilings if one), default=None),
            "learnt_from": max(one["learnt_from"] for one in told),
            "answers": live.first_tokens_of_all(one["answers"] for one in told),
        }
    return load


def newest_first(incidents: Iterable[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """The latest incidents of all workers, by their time (ISO 8601, UTC); each once.

    Workers that share a store know of each other's.
    """
    each = {incident["id"]: incident for incident in incidents}
    return sorted(each.values(), key=lambda one: str(one["time"]), reverse=True)[:most]


def _rule(family: Metric, sample: Sample) -> Combine:
    if family.type not in _SUMMED:
        return GAUGES.get(family.name, max)
    return min if sample.name.endswith(_CREATED) else add


def _with(family: Metric, samples: Iterable[Sample]) -> Metric:
    new = Metric(family.name, family.documentation, family.type)
    new.samples = list(samples)
    return new


class _Ready(Collector):
    """A collector of what has been collected."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
