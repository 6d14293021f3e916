"""Who calls with what, and which fault comes when: a function of the seed alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

WIDE = ("acme", "birch", "cedar", "delta")  # tenants with room for all
NARROW = "ember"  # one whose quotas refuse now and then
TENANTS = (*WIDE, NARROW)
MODEL = "soak-model"
FORBIDDEN = "soak-private"  # served, but allowed to no tenant
CLIENTS_MARK = "zq9x"  # begins every name that a client made up: none may be in a label or a log
LIMIT_TOKENS = 4090  # of the engine's workers; its context is twice that
MAX_BODY = 256 * 1024


class Kind(StrEnum):
    """What is wrong with a call, or with the engine's answer to it."""

    HEALTHY = "healthy"
    # The client's doing.
    BAD_KEY = "bad_key"
    NO_KEY = "no_key"
    OVER_LIMIT = "over_limit"
    NOT_JSON = "not_json"
    NOT_A_CHAT = "not_a_chat"
    NOT_HTTP = "not_http"
    SMUGGLED_FIELD = "smuggled_field"
    TOO_LARGE = "too_large"
    UNKNOWN_PATH = "unknown_path"
    UNKNOWN_MODEL = "unknown_model"
    FORBIDDEN_MODEL = "forbidden_model"
    # The engine's.
    SLOW = "slow"
    LATE = "late"
    CUT = "cut"
    RESET = "reset"
    HANG = "hang"
    ERROR_500 = "error_500"
    ERROR_EVENT = "error_event"
    EMPTY = "empty"
    UNFINISHED = "unfinished"  # in good HTTP, without its end
    UNREADABLE = "unreadable"
    WRONG_USAGE = "wrong_usage"  # numbers that could be
    IMPOSSIBLE_USAGE = "impossible_usage"
    SWAPPED = "swapped"  # the answer to another call


class Moment(StrEnum):
    """When a client leaves."""

    SENDING = "sending"
    WAITING = "waiting"
    READING = "reading"


class Trouble(StrEnum):
    """What happens to the processes around a call."""

    STORE_FROZEN = "store_frozen"
    STORE_RESTARTED = "store_restarted"
    ENGINE_RESTARTED = "engine_restarted"
    WORKER_KILLED = "worker_killed"
    WORKER_TOLD_TO_END = "worker_told_to_end"
    RELOADED = "reloaded"
    BAD_RELOAD = "bad_reload"


@dataclass(frozen=True, slots=True)
class Leave:
    """A client that hangs up: after ``seconds`` of waiting or ``pieces`` read."""

    moment: Moment
    seconds: float
    pieces: int
    reset: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``pieces`` and ``pause`` (seconds between two) are what the engine is asked for."""

    number: int
    nonce: str
    tenant: str
    kind: Kind
    stream: bool
    pieces: int
    pause: float
    words: int
    leave: Leave | None
    invention: str  # a name nobody knows, for headers, models and paths
    think: float  # seconds its caller waits before it


@dataclass(frozen=True, slots=True)
class Event:
    """A trouble, begun when ``at`` calls of the run have begun, for ``seconds`` where it lasts."""

    at: int
    trouble: Trouble
    seconds: float


@dataclass(frozen=True, slots=True)
class Round:
    """Calls ``first`` to ``last`` - 1 with their troubles; a quiet phase follows."""

    first: int
    last: int
    events: tuple[Event, ...]


_WEIGHTS = {
    Kind.HEALTHY: 620,
    Kind.BAD_KEY: 25,
    Kind.NO_KEY: 10,
    Kind.OVER_LIMIT: 70,
    Kind.NOT_JSON: 25,
    Kind.NOT_A_CHAT: 10,
    Kind.NOT_HTTP: 10,
    Kind.SMUGGLED_FIELD: 10,
    Kind.TOO_LARGE: 5,
    Kind.UNKNOWN_PATH: 25,
    Kind.UNKNOWN_MODEL: 25,
    Kind.FORBIDDEN_MODEL: 10,
    Kind.SLOW: 20,
    Kind.LATE: 4,
    Kind.CUT: 25,
    Kind.RESET: 20,
    Kind.HANG: 6,
    Kind.ERROR_500: 15,
    Kind.ERROR_EVENT: 10,
    Kind.EMPTY: 12,
    Kind.UNFINISHED: 12,
    Kind.UNREADABLE: 6,
    Kind.WRONG_USAGE: 10,
    Kind.IMPOSSIBLE_USAGE: 5,
    Kind.SWAPPED: 10,
}
_KINDS = tuple(_WEIGHTS)
_SUMS = tuple(accumulate(_WEIGHTS.values()))
_LEAVERS = 0.14  # of the calls that the engine answers
_ANSWERED = frozenset({Kind.HEALTHY, Kind.SLOW, Kind.CUT, Kind.LATE, Kind.HANG})
_COMMON = (
    Trouble.ENGINE_RESTARTED,
    Trouble.STORE_FROZEN,
    Trouble.RELOADED,
    Trouble.STORE_RESTARTED,
    Trouble.BAD_RELOAD,
)
_DEATHS = (Trouble.WORKER_KILLED, Trouble.WORKER_TOLD_TO_END)


def call(seed: int, number: int) -> Call:
    """The call of that number: the same whoever makes it, and whenever."""
    rng = random.Random(f"{seed}:{number}")
    kind = rng.choices(_KINDS, cum_weights=_SUMS)[0]
    leave = None
    if kind in _ANSWERED and rng.random() < _LEAVERS:
        moment = rng.choice(tuple(Moment))
        leave = Leave(moment, rng.uniform(0, 0.08), rng.randrange(1, 6), rng.random() < 0.5)
    return Call(
        number=number,
        nonce=f"qz{rng.getrandbits(96):024x}",
        tenant=rng.choice(TENANTS),
        kind=kind,
        stream=rng.random() < 0.6,
        pieces=rng.randrange(2, 24),
        pause=rng.choice((0.0, 0.002, 0.01, 0.03)),
        words=rng.randrange(3, 300),
        leave=leave,
        invention=f"{CLIENTS_MARK}{rng.getrandbits(48):012x}",
        think=rng.uniform(0, 0.15),
    )


def healthy_stream(seed: int, number: int) -> Call:
    """A call of the part with restarts: a stream of one to three seconds that nothing disturbs."""
    rng = random.Random(f"{seed}:stream:{number}")
    pieces = rng.randrange(8, 24)
    return Call(
        number, f"qz{rng.getrandbits(96):024x}", rng.choice(WIDE), Kind.HEALTHY, True, pieces,
        rng.uniform(1, 3) / pieces, rng.randrange(3, 60), None, f"{CLIENTS_MARK}{number:012x}",
        rng.uniform(0, 0.05),
    )  # fmt: skip


def rounds(seed: int, calls: int) -> Sequence[Round]:
    """The timetable. One worker ends in each round, in every other one by being killed.

    The first round warms up: it has reloads enough for the memory that old configurations leave
    behind to be there.
    """
    count = 10 if calls >= 20_000 else 4 if calls >= 1000 else 2
    edges = [calls * index // count for index in range(count + 1)]
    return [_round(seed, index, *edges[index : index + 2]) for index in range(count)]


def _round(seed: int, index: int, first: int, last: int) -> Round:
    rng = random.Random(f"{seed}:round:{index}")
    # Few enough for calls to be under way during each.
    many = min(2 * len(_COMMON), max(3, (last - first) // 150))
    troubles = [_COMMON[(3 * index + turn) % len(_COMMON)] for turn in range(many)]
    troubles.append(_DEATHS[index % 2])
    if index == 0 and last - first >= 250:
        troubles += [Trouble.RELOADED] * 4
    rng.shuffle(troubles)
    step = (last - first) / (len(troubles) + 1)
    return Round(
        first,
        last,
        tuple(
            Event(first + int(step * (turn + rng.uniform(0.3, 1))), trouble, rng.uniform(0.8, 2.5))
            for turn, trouble in enumerate(troubles)
        ),
    )
