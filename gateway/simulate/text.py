"""What the simulated model says: runs copied from memory it attends to, and filler between them.

The writer sees memory only through a page table (``Attended``), so its text can hold a foreign
token only where the table really reaches one. It does not know that a fault is switched on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gateway.simulate.pages import PageMemory

FILLER_TEXT = """
the harbour wakes before the town and the first boats leave while the lamps are still lit a
keeper writes the wind in a book and the tide beside it for the pilots who will ask and for the
clerk who will not in the market the carts stand in two rows and every row has its own noise
bread on the left and nets on the right and between them a boy who sells string by the yard
nobody counts the yards but him the road to the mill goes over three bridges and under one and
in winter the water takes the lowest of them so that flour comes late and the baker complains to
the miller and the miller to the river which keeps its own accounts up on the hill a school
looks at all of this through tall windows and the children draw what they see boats and bridges
and a very large loaf the teacher says that a map is a promise that the ground will be there
when you come and that a good clock is only a map of the day at noon the bell rings twice once
for the hour and once because the ringer likes it and the whole street stops to eat then the
afternoon begins slowly with letters and repairs a wheel here a roof there and someone always
has a ladder that someone else needs towards evening the boats return lower in the water than
they left and the keeper writes the wind again it has turned as it does when the season is about
to and he notes that too in the small hand he keeps for things that matter
"""
JUMP = 0.2  # chance to go on with any word, so that filler does not recite itself at length


class Filler:
    """A first-order Markov chain over the words of a text of our own."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        words = FILLER_TEXT.split()
        self._words = sorted(set(words))
        self._next: dict[str, list[str]] = {word: [] for word in self._words}
        for word, following in pairwise(words):
            self._next[word].append(following)
        self._tokens = {word: tuple(encode(" " + word)) for word in self._words}

    def after(self, word: str, rng: random.Random) -> str:
        """The word that follows ``word`` ("" begins)."""
        choices = self._next.get(word)
        if not choices or rng.random() < JUMP:
            choices = self._words
        return choices[int(rng.random() * len(choices))]

    def tokens(self, word: str) -> tuple[int, ...]:
        """The tokens of a chain's word with its leading space."""
        return self._tokens[word]


@dataclass(frozen=True, slots=True)
class Attended:
    """Everything a decode step may read: a page table, and how far the sequence reaches."""

    memory: PageMemory
    table: Sequence[int]
    length: int

    def slot(self, position: int) -> tuple[str, int]:
        """Owner and token at a logical position."""
        return self.memory.slot(self.table, position)


@dataclass(frozen=True, slots=True)
class Habits:
    """How the model writes; probabilities are per segment, lengths mean tokens of a segment.

    ``q_copy`` is the chance that a segment whose chosen page is foreign is copied from it,
    ``echo`` the same for one's own prompt.
    """

    q_copy: float = 0.5
    echo: float = 0.06
    mean_run: float = 40.0

    def __post_init__(self) -> None:
        if not (0 <= self.q_copy <= 1 and 0 <= self.echo <= 1 and self.mean_run >= 1):
            raise ValueError("q_copy and echo are probabilities; mean_run is at least one token")


class Writer:
    """Writes one sequence's answer, token by token."""

    def __init__(
        self,
        owner: str,
        habits: Habits,
        filler: Filler,
        special: frozenset[int],
        rng: random.Random,
    ) -> None:
        self._owner = owner
        self._habits = habits
        self._filler = filler
        self._special = special
        self._rng = rng
        self._left = 0
        self._run_at = 0
        self._run_owner: str | None = None
        self._word = ""
        self._pending: tuple[int, ...] = ()

    def next(self, attended: Attended) -> tuple[int, str | None]:
        """The next token, and whose memory it was copied from (None: filler)."""
        if self._left <= 0 and not self._pending:
            self._begin_segment(attended)
        self._left -= 1
        if self._run_owner is not None and not self._pending:
            copied = self._copy(attended)
            if copied is not None:
                return copied, self._run_owner
            self._run_owner = None
        return self._fill(), None

    def _begin_segment(self, attended: Attended) -> None:
        self._left = geometric(self._habits.mean_run, self._rng)
        self._run_owner = None
        size = attended.memory.page_size
        page = int(self._rng.random() * attended.memory.pages_for(attended.length))
        last = min((page + 1) * size, attended.length)
        at = page * size + int(self._rng.random() * (last - page * size))
        while at < last and self._unreadable(attended.slot(at)[1]):
            at += 1
        if at == last:
            return
        owner = attended.slot(at)[0]
        chance = self._habits.echo if owner == self._owner else self._habits.q_copy
        if self._rng.random() < chance:
            self._run_at, self._run_owner = at, owner

    def _copy(self, attended: Attended) -> int | None:
        """The run's next token; None where the owner changes, the memory or the text ends."""
        if self._run_at >= attended.length:
            return None
        owner, token = attended.slot(self._run_at)
        if owner != self._run_owner or self._unreadable(token):
            return None
        self._run_at += 1
        return token

    def _unreadable(self, token: int) -> bool:
        return token < 0 or token in self._special

    def _fill(self) -> int:
        if not self._pending:
            self._word = self._filler.after(self._word, self._rng)
            self._pending = self._filler.tokens(self._word)
        token, self._pending = self._pending[0], self._pending[1:]
        return token


def geometric(mean: float, rng: random.Random) -> int:
    """A geometric variate of at least 1 with this mean."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / mean))
