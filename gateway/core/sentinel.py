"""Sentinels: phrases of eight words that tell whose prompt they belong to, and prove it.

Each tenant's prompts carry one phrase an epoch. In an answer to anybody else it shows that the
engine attended to the wrong pages. The phrase is 96 bits, most significant first:

    version 2 | key id 2 | epoch 16 | tag 28 | MAC 48

``tag`` is a truncated HMAC over epoch and tenant: it names the tenant to whoever holds the secret
and to nobody else, and is another one in each epoch. The MAC covers all before it, so that any
replica tells a sentinel from chance (2^-48) without asking. research/detection.md 2.5.
"""

from __future__ import annotations

import hmac
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.lexicon import BITS

WORDS = 8
LEAST_PARTIAL = 5  # words in a row, 60 bits: fewer could be chance
VERSION = 0
CLOCK_SKEW = 300.0  # seconds that replicas' clocks may differ

_EPOCH_BITS, _TAG_BITS, _MAC_BITS = 16, 28, 48
_EPOCHS = 1 << _EPOCH_BITS
_TAG_END_BITS = BITS  # of the tag, those that are the fourth word by themselves
_FOURTH = 3
_ALL_BITS = WORDS * BITS

Numbers = tuple[int, ...]


class Key:
    """One cluster secret's keys. ``kid`` is two bits of a hash: a hint which key, not a name."""

    __slots__ = ("_mac", "_tag", "kid")

    def __init__(self, secret: bytes) -> None:
        self._mac = _derived(secret, b"mac")
        self._tag = _derived(secret, b"tag")
        self.kid = _derived(secret, b"kid")[0] & 3

    def tag(self, epoch: int, tenant: str) -> int:
        """The name of a tenant in an epoch."""
        return _bits(self._tag, epoch.to_bytes(2) + tenant.encode(), _TAG_BITS)

    def numbers(self, epoch: int, tag: int) -> Numbers:
        """The words of the sentinel with this epoch and tag."""
        head = ((VERSION << 2 | self.kid) << _EPOCH_BITS | epoch) << _TAG_BITS | tag
        value = head << _MAC_BITS | _bits(self._mac, head.to_bytes(6), _MAC_BITS)
        return tuple(
            value >> shift & (1 << BITS) - 1 for shift in range(_ALL_BITS - BITS, -1, -BITS)
        )

    def phase(self, tenant: str) -> float:
        """How far before the others', in epochs from 0 to 1, this tenant's next epoch begins."""
        return _bits(self._tag, b"phase " + tenant.encode(), 32) / 2**32


class Sighting(NamedTuple):
    """An authentic sentinel that was read: by its MAC, a member of this cluster made it."""

    numbers: Numbers
    epoch: int
    tag: int
    own: bool  # of the tenant whose answer it was read in
    in_date: bool  # its prompt can still lie in the engine's memory

    @property
    def counts(self) -> bool:
        """Whether it has no business here: foreign and in date. (In the prompt it might have.)"""
        return self.in_date and not self.own


class Bearer(NamedTuple):
    """Who carries which sentinel."""

    tenant: str
    epoch: int
    key: Key


@dataclass(frozen=True, slots=True)
class Partial:
    """A piece of another tenant's sentinel: that many words in a row, never proof by itself."""

    tenant: str
    words: int


class Sentinels:
    """Writes and reads the sentinels of one cluster.

    ``secrets``: the newest signs, all are accepted. ``epoch`` is how long a phrase is used,
    ``lifetime`` how long a prompt can lie in the engines' memory, both in seconds. Times are
    seconds since 1970 by the caller's clock. Safe to read from several threads.
    """

    def __init__(
        self, secrets: Sequence[bytes], epoch: float, lifetime: float, tenants: Iterable[str]
    ) -> None:
        self._keys = tuple(map(Key, secrets))
        self._epoch = epoch
        self._lifetime = lifetime
        self._tenants = tuple(tenants)
        self._bearers: tuple[range, Mapping[int, tuple[Bearer, ...]]] | None = None

    def numbers(self, tenant: str, now: float) -> Numbers:
        """The words of this tenant's sentinel at this time."""
        key = self._keys[0]
        # Tenants change at different moments: their prefixes are not all cold at once.
        epoch = int(now / self._epoch + key.phase(tenant)) % _EPOCHS
        return key.numbers(epoch, key.tag(epoch, tenant))

    def first_words(self, now: float) -> frozenset[int]:
        """The words a sentinel in date can begin with: one or two for each key."""
        high = {epoch % _EPOCHS >> 8 for epoch in self._live(now)}
        heads = {VERSION << 2 | key.kid for key in self._keys}
        return frozenset(head << 8 | byte for head in heads for byte in high)

    def read(self, numbers: Numbers, tenant: str, now: float) -> Sighting | None:
        """What eight words say in an answer to ``tenant``; None where they are no sentinel."""
        value = 0
        for number in numbers:
            value = value << BITS | number
        tag = value >> _MAC_BITS & (1 << _TAG_BITS) - 1
        epoch = value >> _MAC_BITS + _TAG_BITS & _EPOCHS - 1
        for key in self._keys:
            if key.numbers(epoch, tag) == numbers:
                own = key.tag(epoch, tenant) == tag
                return Sighting(numbers, epoch, tag, own, self._is_live(epoch, now))
        return None

    def owners(self, sighting: Sighting, now: float) -> tuple[str, ...]:
        """The tenants with this tag: one, none if it was removed, seldom two (2^-28 a pair)."""
        return tuple(
            bearer.tenant
            for bearer in self._bearers_of(sighting.tag, now)
            if bearer.epoch == sighting.epoch
            and bearer.key.tag(bearer.epoch, bearer.tenant) == sighting.tag
        )

    def partial(self, run: Numbers, tenant: str, now: float) -> Partial | None:
        """The longest piece of another tenant's sentinel in a run of words, from five on.

        Work for a thread: the first call in an epoch makes a table, 1 us a tenant and epoch.
        """
        found = (
            Partial(bearer.tenant, length)
            for place in range(len(run))
            for bearer in self._bearers_of(run[place], now)
            if bearer.tenant != tenant
            and (length := _agreement(run, place, _sentinel_of(bearer))) >= LEAST_PARTIAL
        )
        return max(found, key=lambda partial: partial.words, default=None)

    def _live(self, now: float) -> range:
        """Epochs, not yet reduced to their bits, of which prompts can still be in memory."""
        oldest = int((now - self._lifetime) / self._epoch) - 1
        newest = int((now + CLOCK_SKEW) / self._epoch) + 1
        return range(oldest, newest + 1)

    def _is_live(self, epoch: int, now: float) -> bool:
        live = self._live(now)
        return (epoch - live.start) % _EPOCHS < len(live)

    def _bearers_of(self, tag: int, now: float) -> tuple[Bearer, ...]:
        """Those whose tag ends alike: the last bits of a tag are its sentinel's fourth word."""
        live = self._live(now)
        if self._bearers is None or self._bearers[0] != live:
            self._bearers = live, self._table(live)
        return self._bearers[1].get(tag & (1 << _TAG_END_BITS) - 1, ())

    def _table(self, live: range) -> dict[int, tuple[Bearer, ...]]:
        table: defaultdict[int, list[Bearer]] = defaultdict(list)
        for bearer in self._everyone(live):
            tag = bearer.key.tag(bearer.epoch, bearer.tenant)
            table[tag & (1 << _TAG_END_BITS) - 1].append(bearer)
        return {end: tuple(bearers) for end, bearers in table.items()}

    def _everyone(self, live: range) -> Iterator[Bearer]:
        for key in self._keys:
            for epoch in live:
                for tenant in self._tenants:
                    yield Bearer(tenant, epoch % _EPOCHS, key)


def _sentinel_of(bearer: Bearer) -> Numbers:
    return bearer.key.numbers(bearer.epoch, bearer.key.tag(bearer.epoch, bearer.tenant))


def _agreement(run: Numbers, place: int, sentinel: Numbers) -> int:
    """How many words around the run's ``place`` agree with the sentinel's around its fourth."""
    before = after = 0
    while (
        before < min(place, _FOURTH) and run[place - before - 1] == sentinel[_FOURTH - before - 1]
    ):
        before += 1
    while (
        place + after < len(run)
        and _FOURTH + after < WORDS
        and run[place + after] == sentinel[_FOURTH + after]
    ):
        after += 1
    return before + after


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, b"poolgate sentinel v1 " + purpose, "sha256")


def _bits(key: bytes, message: bytes, count: int) -> int:
    """The first bits of an HMAC."""
    digest = int.from_bytes(hmac.digest(key, message, "sha256")[:8])
    return digest >> 64 - count
