"""From what workers say of themselves to the longest prompt a backend may be sent.

A ``Snapshot`` is what discovery knows of one backend; ``observe`` folds a discovery round into
it, ``capacity`` reads a decision out of it. Both are pure: the clock is an argument.

The rules, in order of strength:

- the limit is the smallest one over all prefill and decode workers and their DP ranks;
- a worker that stops answering keeps its last word until ``stale_after``, then nobody's is known;
- a worker that never answered makes the limit unknown: it may be the smallest;
- a lower limit holds from the round that saw it; so does one the engine stated in a refusal;
- a worker that would cut prompts in silence makes the backend unsafe, whatever its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from gateway.types import Role, WorkerFacts


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator set for one backend. Times in seconds, lengths in tokens."""

    max_prompt_tokens: int | None = None
    margin: int = 0
    stale_after: float = 120.0
    allow_truncating_engine: bool = False


@dataclass(frozen=True, slots=True)
class Silent:
    """A worker that gave no usable answer in a round, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Round:
    """One discovery round: every worker there is, with its facts or its silence.

    ``complete`` says the list of workers itself is trusted; when a router would not tell, the
    workers known before are kept.
    """

    workers: Mapping[str, tuple[WorkerFacts, ...] | Silent]
    complete: bool = True


class Seen(Struct, frozen=True):
    """A worker's last word, when it was given, and what has gone wrong since."""

    facts: tuple[WorkerFacts, ...] = ()
    at: float | None = None
    trouble: str | None = None
    stated: int | None = None  # a limit the engine named in a refusal, below what it publishes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known of one backend's workers, by worker label."""

    workers: Mapping[str, Seen] = field(default_factory=dict)


class Known(Struct, frozen=True, gc=False):
    """The longest prompt accepted, and whose word it is. ``age``: seconds since it was given."""

    tokens: int
    worker: str
    role: Role
    age: float


class Unknown(Struct, frozen=True, gc=False):
    """No limit can be stated; ``reason`` is for operators and goes to clients too."""

    reason: str


class Unsafe(Struct, frozen=True, gc=False):
    """The backend must not be used for prompts at all: it would cut them in silence."""

    reason: str


Capacity = Known | Unknown | Unsafe


def observe(snapshot: Snapshot, seen: Round, now: float) -> Snapshot:
    """Fold a round into what was known before."""
    workers = {} if seen.complete else dict(snapshot.workers)
    for name, word in seen.workers.items():
        before = snapshot.workers.get(name, Seen())
        if isinstance(word, Silent):
            workers[name] = replace(before, trouble=word.reason)
        else:
            same = _incarnation(before.facts) == _incarnation(word)
            workers[name] = Seen(word, now, None, before.stated if same else None)
    return Snapshot(workers)


def learn(snapshot: Snapshot, stated: int) -> Snapshot:
    """An engine refused a prompt and named its limit: hold to it until it is another process.

    Behind a router nobody says which worker refused, so every worker gets the lower limit.
    """
    return Snapshot(
        {
            name: replace(seen, stated=stated if seen.stated is None else min(stated, seen.stated))
            for name, seen in snapshot.workers.items()
        }
    )


def heard(own: Snapshot, told: Snapshot) -> Snapshot:
    """What another process found, with the lower limits that this one learnt of the same engines.

    Its word may have crossed ours on the way.
    """
    workers = dict(told.workers)
    for name, seen in told.workers.items():
        before = own.workers.get(name)
        if before is None or before.stated is None:
            continue
        if _incarnation(before.facts) == _incarnation(seen.facts):
            stated = before.stated if seen.stated is None else min(before.stated, seen.stated)
            workers[name] = replace(seen, stated=stated)
    return Snapshot(workers)


def capacity(snapshot: Snapshot, rules: Rules, now: float, model: str | None = None) -> Capacity:
    """The limit for ``model`` (or for any) at ``now``."""
    configured = rules.max_prompt_tokens
    lowest: Known | None = None
    unknown: str | None = None if snapshot.workers else "no worker has answered yet"
    for name, seen in snapshot.workers.items():
        if unsafe := _truncating(name, seen, rules):
            return unsafe
        word = _limit_of(name, seen, rules, now, model)
        if isinstance(word, Unknown):
            unknown = word.reason
        elif lowest is None or word.tokens < lowest.tokens:
            lowest = word
    if unknown is not None and configured is None:
        return Unknown(unknown)
    if configured is not None and (lowest is None or configured < lowest.tokens):
        lowest = Known(configured, "configuration", Role.REGULAR, 0.0)
    if lowest is None:
        return Unknown("no worker states a limit")
    return replace(lowest, tokens=max(0, lowest.tokens - rules.margin))


def models(snapshot: Snapshot) -> tuple[str, ...]:
    """Model names the workers told, each once."""
    return tuple(
        dict.fromkeys(
            model
            for seen in snapshot.workers.values()
            for fact in seen.facts
            for model in fact.models
        )
    )


def incarnations(snapshot: Snapshot) -> tuple[tuple[str, ...], ...]:
    """Which processes there are, as far as workers have told; another one is another engine."""
    return tuple(
        (name, fact.engine, fact.version or "", fact.incarnation)
        for name, seen in sorted(snapshot.workers.items())
        for fact in seen.facts
    )


def digest(snapshot: Snapshot) -> str:
    """Which engine it is, processes and capacity, as a short hash; empty while none has told.

    Two moments with one digest met the same processes with the same pools and contexts.
    """
    facts = [fact for seen in snapshot.workers.values() for fact in seen.facts]
    if not facts:
        return ""
    sizes = sorted((fact.pool_tokens or 0, fact.context_tokens or 0) for fact in facts)
    return sha256(repr((incarnations(snapshot), sizes)).encode()).hexdigest()[:16]


def good_until(snapshot: Snapshot, rules: Rules) -> float:
    """When the answer of ``capacity`` may change although the snapshot does not: a word is stale.

    Infinite where no worker has given its word.
    """
    words = [seen.at for seen in snapshot.workers.values() if seen.at is not None]
    return min(words, default=float("inf")) + rules.stale_after


def contradictions(snapshot: Snapshot) -> tuple[str, ...]:
    """Workers whose published limit is larger than one they stated in a refusal."""
    return tuple(
        f"{name} publishes {published} tokens but refused a prompt naming {seen.stated}"
        for name, seen in snapshot.workers.items()
        if seen.stated is not None
        and (published := _published(seen.facts, None)) is not None
        and seen.stated < published
    )


def _limit_of(
    name: str, seen: Seen, rules: Rules, now: float, model: str | None
) -> Known | Unknown:
    if seen.at is None:
        return Unknown(f"worker {name} has not answered: {seen.trouble or 'not asked yet'}")
    age = now - seen.at
    if age > rules.stale_after:
        return Unknown(
            f"the limit of worker {name} is {age:.0f}s old (stale after {rules.stale_after:g}s)"
            f": {seen.trouble or 'no refresh'}"
        )
    published = _published(seen.facts, model)
    stated = [limit for limit in (published, seen.stated) if limit is not None]
    if not stated:
        return Unknown(f"worker {name} states no limit")
    return Known(min(stated), name, seen.facts[0].role, age)


def _published(facts: tuple[WorkerFacts, ...], model: str | None) -> int | None:
    """The smallest limit over ranks; only those serving ``model`` where the facts tell them."""
    serving = [fact for fact in facts if model is not None and model in fact.models]
    limits = [
        fact.max_prompt_tokens for fact in serving or facts if fact.max_prompt_tokens is not None
    ]
    return min(limits, default=None)


def _truncating(name: str, seen: Seen, rules: Rules) -> Unsafe | None:
    if rules.allow_truncating_engine:
        return None
    for fact in seen.facts:
        if fact.truncates:
            return Unsafe(f"worker {name} would cut long prompts in silence ({fact.truncates})")
    return None


def _incarnation(facts: tuple[WorkerFacts, ...]) -> tuple[str, ...]:
    return tuple(fact.incarnation for fact in facts)
