"""Which backend of a model comes first: the least loaded, or the one that has the prefix.

Loads are outstanding work in prompt tokens. Least work left, not fewest requests, is what keeps
short prompts from waiting behind a long one: sizes of prompts are heavy-tailed, and where they are
known the policy beats counting requests (Harchol-Balter, Performance Modeling and Design of
Computer Systems, 2013, chapter 24). Affinity is rendezvous hashing (Thaler and Ravishankar, 1998)
with the bound of Mirrokni, Thorup and Zadimoghaddam (Consistent Hashing with Bounded Loads, 2016):
no backend takes over ``factor`` times the mean load, so a prefix that everyone sends spreads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from msgspec import Struct

_WORD = 0xFFFFFFFFFFFFFFFF


class Load(Struct, frozen=True, gc=False):
    """What a backend was sent and has not finished.

    ``prefilling``: prompt tokens of requests whose answer has not begun, those in its queue too.
    ``decoding``: answers under way.
    """

    prefilling: int = 0
    decoding: int = 0


def work(loads: Iterable[Load], stream_tokens: int) -> list[int]:
    """Outstanding work of each in prompt tokens: an answer under way is as ``stream_tokens``.

    The form is NVIDIA Dynamo's router cost, prefill plus decode blocks, without its discount for
    cached blocks: what an engine caches it does not tell us.
    """
    return [load.prefilling + load.decoding * stream_tokens for load in loads]


def least_first(work: Sequence[int], turn: int) -> Iterator[int]:
    """Positions by their work, the least first.

    Among equals the first is the one whose turn it is, so that idle backends take turns.
    """
    count = len(work)
    if not count:
        return
    # Work and turn in one number each: comparing those is several times as fast as tuples.
    ranks = [left * count + (at - turn) % count for at, left in enumerate(work)]
    yield (min(ranks) + turn) % count
    ranks.sort()  # hardly anybody asks for a second one
    for rank in ranks[1:]:
        yield (rank + turn) % count


def seed(name: str) -> int:
    """A backend's own number in rendezvous hashing, the same on every gateway."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())


def affine_first(
    key: int, seeds: Sequence[int], work: Sequence[int], tokens: int, factor: float
) -> list[int]:
    """Positions by their score for ``key``, those that are full for now behind all others.

    Full is what has ``factor`` times the mean load or more, a newcomer of ``tokens`` included: one
    with the least load never is. ``key`` is a number of 64 bits.
    """
    bound = factor * (sum(work) + max(1, tokens)) / max(1, len(work))
    # The multiplications of MurmurHash3's finaliser: key and seeds are hashes already.
    scores = [
        ((half := (key ^ each) * 0xFF51AFD7ED558CCD & _WORD) ^ half >> 32) * 0xC4CEB9FE1A85EC53
        for each in seeds
    ]
    ranks = [
        (score & _WORD) + (left >= bound) * (_WORD + 1)
        for score, left in zip(scores, work, strict=True)
    ]
    return sorted(range(len(ranks)), key=ranks.__getitem__)
