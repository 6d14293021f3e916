"""One request at one backend: what it weighs there, and what it shows of the backend's health."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gateway.core.choice import Load
from gateway.core.outlier import Failure
from gateway.edge.ejection import Ejections
from gateway.edge.exchange import Exchange
from gateway.edge.standing import Member


class Bearer(Member, Protocol):
    """A backend, as far as attempts go (``gateway.edge.backends.Backend``)."""

    ejections: Ejections


class Attempt:
    """Told by the way upstream as things happen; each tells at most once.

    ``tokens``: the prompt's, or their bound.
    """

    def __init__(self, backend: Bearer, tokens: int) -> None:
        self.tokens = tokens
        self._backend = backend
        self._answering = False
        self._over = False
        self._trial = backend.ejections.begin_trial(backend)
        self._weigh(tokens, 0)

    def answered(self) -> None:
        """Its answer has begun: the prompt is prefilled."""
        if self._answering or self._over:
            return
        self._answering = True
        self._weigh(-self.tokens, 1)
        self._backend.ejections.answered(self._backend, trial=self._trial)
        self._end_trial()

    def completed(self) -> None:
        """Its answer has come whole."""
        self.answered()
        self._backend.ejections.completed(self._backend)

    def failed(self, failure: Failure) -> None:
        """The backend failed it."""
        self._backend.ejections.failed(self._backend, failure, trial=self._trial)
        self._end_trial()

    def end(self) -> None:
        """Nothing of it is left at the backend. Once is enough."""
        if self._over:
            return
        self._over = True
        self._weigh(*((0, -1) if self._answering else (-self.tokens, 0)))
        self._end_trial()

    def _end_trial(self) -> None:
        if self._trial:
            self._trial = False
            self._backend.ejections.end_trial(self._backend)

    def _weigh(self, prefilling: int, decoding: int) -> None:
        past = self._backend.past
        load = past.load
        past.load = Load(load.prefilling + prefilling, load.decoding + decoding)


@contextmanager
def attempt(backend: Bearer, exchange: Exchange) -> Iterator[Attempt]:
    """The request is the backend's while the block runs, in its queue too.

    Where the engine's answer is still read when the block ends, until that is over.
    """
    one = Attempt(backend, exchange.most_tokens or 0)
    try:
        yield one
    finally:
        if exchange.reading_on is None:
            one.end()
        else:
            exchange.reading_on.add_done_callback(lambda _: one.end())
