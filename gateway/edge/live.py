"""What passed lately in this process, fed by the record of each exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.core import latency, live
from gateway.edge.exchange import Exchange, Withheld


class Live:
    """Bounded memory of tenants' traffic and of first-token times. ``note`` is all that feeds it.

    It belongs to the process: a reload leaves it as it is.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._window = live.Window()
        self._first_tokens = live.FirstTokens()

    def note(self, exchange: Exchange) -> None:
        """The exchange is over. Takes a few microseconds."""
        now = self._clock()
        usage = exchange.observation.usage if exchange.observation else None
        sent = (usage.prompt_tokens if usage else None) or 0
        got = (usage.completion_tokens if usage else None) or 0
        self._window.add(now, exchange.tenant, exchange.status, sent, got)
        self._first_token(exchange, now, stream=exchange.stream)
        if exchange.withheld is not None:
            self._first_token(exchange.withheld, now, stream=exchange.stream)

    def traffic(self, in_flight: Mapping[str, int], uptime: float) -> Any:
        """Each tenant's last minute, for operators. ``in_flight``: by tenant, those above 0."""
        return live.traffic(self._window, in_flight, self._clock(), uptime)

    def first_tokens(self, backend: str) -> list[list[Any]]:
        """A backend's first-token times (``gateway.core.live.first_tokens``)."""
        return live.first_tokens(self._first_tokens.of(backend), self._clock())

    def keep_only(self, backends: Iterable[str]) -> None:
        """Forget backends that are no longer configured."""
        self._first_tokens.keep_only(backends)

    def _first_token(self, answer: Exchange | Withheld, now: float, *, stream: bool) -> None:
        """Of streams, where it is the end of prefill; and of any answer that came too fast."""
        if answer.ttft is None or not answer.uncached:
            return
        suspect = False
        for one in answer.checks:
            if one.suspect and one.check == latency.CHECK:
                suspect = True
        if stream or suspect:
            told = live.FirstToken(now, answer.uncached, answer.ttft, suspect)
            self._first_tokens.add(answer.backend, told)
