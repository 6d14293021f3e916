"""From measured growth to cores, memory and calls to the store. Pure.

Everything is linear between measured points, and beyond the last one as between the last two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any

FULL = 0.6  # of a core: what is left lets queues stay short and one worker of several be away

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Need:
    """What is asked of a gateway.

    ``calls``: a second, by tokens of their prompts; of chats that go on where ``turns``.
    ``streams`` are open at a time, at ``events`` a second each. ``store``: quotas are counted in
    one.
    """

    name: str
    calls: Mapping[int, float]
    streams: int = 0
    events: float = 30.0
    tenants: int = 10
    backends: int = 1
    turns: bool = False
    store: bool = True


@dataclass(frozen=True, slots=True)
class Size:
    """What that takes. Memory in MiB, of all processes; store calls a second."""

    cores: float
    workers: int
    memory_mib: float
    store_calls: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The constants of the formula. Times are microseconds of processor time, memory MiB."""

    new: Points  # tokens -> a call with a new prompt
    turn: Points  # tokens -> the next turn of a chat
    prompt_mib: Points  # tokens -> what prompts of that length leave a worker larger by
    tenants: Points  # tenants -> factor on a call
    backends: Points  # backends -> microseconds more a call
    backend_share: float  # share of a core that asking one backend takes, once a gateway
    event: float  # an event of a stream
    store: float  # microseconds more a call where quotas are in a store
    store_calls: float  # to the store, a call
    crowd: Points  # workers -> factor on all of it, measured on one core
    worker_mib: float
    supervisor_mib: float
    tenant_mib: float
    backend_mib: float
    stream_mib: float

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> Measured:
        """Out of ``results/growth.json``. Raises KeyError where a part was not measured."""
        prompts, tenants, backends, streams, workers = (
            run[part]["rows"] for part in ("prompts", "tenants", "backends", "streams", "workers")
        )
        memory, stored = workers[0], [row for row in workers if row["store"]]
        least, most = tenants[0], tenants[-1]
        few, many = backends[0], backends[-1]
        more = many["backends"] - few["backends"]
        return cls(
            new=[(row["tokens"], row["new"]["cpu_us"]) for row in prompts],
            turn=[(row["tokens"], row["turn"]["cpu_us"]) for row in prompts],
            prompt_mib=[
                (row["tokens"], max(0.0, row["new"]["grown_mib"], row["turn"]["grown_mib"]))
                for row in prompts
            ],
            tenants=[
                (row["tenants"], max(1.0, row["cpu_us"] / least["cpu_us"])) for row in tenants
            ],
            backends=[
                (row["backends"], max(0.0, row["cpu_us"] - few["cpu_us"])) for row in backends
            ],
            backend_share=max(0.0, many["idle_share"] - few["idle_share"]) / more,
            event=streams[-1]["cpu_us_event"],
            store=max(0.0, stored[0]["cpu_us"] - memory["cpu_us"]),
            store_calls=stored[0]["store_calls"],
            crowd=[
                (row["workers"], max(1.0, row["cpu_us"] / stored[0]["cpu_us"])) for row in stored
            ],
            worker_mib=memory["worker_mib"],
            supervisor_mib=max(row["supervisor_mib"] for row in stored),
            tenant_mib=(most["memory_called_mib"] - least["memory_called_mib"])
            / (most["tenants"] - least["tenants"]),
            backend_mib=max(0.0, many["memory_mib"] - few["memory_mib"]) / more,
            stream_mib=streams[-1]["kib_stream"] / 1024,
        )


def size(need: Need, measured: Measured) -> Size:
    """Cores are of the machine that was measured."""
    a_call = measured.turn if need.turns else measured.new
    calls = sum(need.calls.values())
    busy = sum(
        rate * at(a_call, tokens) * at(measured.tenants, need.tenants)
        for tokens, rate in need.calls.items()
    )
    busy += calls * at(measured.backends, need.backends)
    busy += calls * measured.store * need.store
    busy += need.streams * need.events * measured.event
    alone = busy / 1e6 + need.backends * measured.backend_share
    many = min(ceil(alone / FULL), measured.crowd[-1][0])  # more than were measured: as those
    cores = alone * at(measured.crowd, many)
    workers = max(1, ceil(cores / FULL))
    a_worker = (
        measured.worker_mib
        + at(measured.prompt_mib, max(need.calls))
        + need.tenants * measured.tenant_mib
        + need.backends * measured.backend_mib
    )
    memory = workers * a_worker + need.streams * measured.stream_mib
    memory += measured.supervisor_mib * (workers > 1)
    return Size(cores, workers, memory, calls * measured.store_calls * need.store)


def at(points: Points, place: float) -> float:
    """The value at ``place``, linear between the points around it; before the first one its."""
    first, *_ = points
    if place <= first[0]:
        return first[1]
    for (left, low), (right, high) in pairwise(points):
        if place <= right or (right, high) == points[-1]:
            return low + (high - low) * (place - left) / (right - left)
    return first[1]
