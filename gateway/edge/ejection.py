"""Which backends are out for their failures. The rules are ``gateway.core.outlier``'s.

State is this process's and outlives a reload, beside a backend's standing (``Past``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.core import outlier
from gateway.core.outlier import Failure, Health, Rules, State
from gateway.edge.standing import Member, Standings

log = logging.getLogger(__name__)
Note = Callable[[str, Failure], None]  # a backend's name, and why it was ejected


class Ejections:
    """The health of every backend. ``configure`` at each (re)load, after the standings."""

    def __init__(
        self, standings: Standings, clock: Callable[[], float], note: Note | None = None
    ) -> None:
        self.rules = Rules()
        self._standings = standings
        self._clock = clock
        self._note = note

    def configure(self, rules: Rules) -> None:
        """From now on these rules. Without ``consecutive_failures`` whoever is out is back."""
        self.rules = rules
        if not rules.consecutive_failures:
            for member in self._standings.members:
                member.past.health = Health()

    def state(self, member: Member) -> State:
        """What it may be sent now."""
        health = member.past.health
        return State.IN_SERVICE if health.until is None else health.state(self._clock())

    def open(self, member: Member) -> bool:
        """Whether it may be chosen: it is in service, or half open and waits for its trial."""
        if member.past.health.until is None:
            return True
        return self.state(member) is State.HALF_OPEN and not member.past.on_trial

    def retry_after(self, member: Member) -> int:
        """Whole seconds until it may be tried again, 1 at least."""
        return member.past.health.retry_after(self._clock())

    def begin_trial(self, member: Member) -> bool:
        """Whether the request that goes to it now is its trial. End that by ``end_trial``."""
        if member.past.health.until is None or not self.open(member):
            return False
        member.past.on_trial = True
        return True

    def end_trial(self, member: Member) -> None:
        """Its trial is over, or proved nothing: the next request may be one."""
        member.past.on_trial = False

    def failed(self, member: Member, failure: Failure, *, trial: bool) -> None:
        """A request failed there, by no fault of its client's."""
        health = outlier.failed(
            member.past.health,
            failure,
            self._clock(),
            self.rules,
            trial=trial,
            may_eject=self._may_eject(member),
        )
        self._move(member, health)

    def answered(self, member: Member, *, trial: bool) -> None:
        """An answer has begun."""
        self._move(member, outlier.answered(member.past.health, self._clock(), trial=trial))

    def completed(self, member: Member) -> None:
        """An answer has come whole."""
        member.past.health = outlier.completed(member.past.health)

    def _move(self, member: Member, health: Health) -> None:
        before, member.past.health = member.past.health, health
        if health.until == before.until:
            return
        if health.until is None or health.reason is None:
            log.warning("backend %s is in service again", member.name)
            return
        log.warning(
            "backend %s is ejected for %.0f s (%s; ejection %d)",
            member.name,
            health.until - health.since,
            health.reason,
            health.ejections,
        )
        if self._note is not None:
            self._note(member.name, health.reason)

    def _may_eject(self, member: Member) -> bool:
        standings = self._standings
        ejected = {one.name for one in standings.members if one.past.health.until is not None}
        held = {one.name for one in standings.members if one.held}
        out = ejected | held | standings.quarantined()
        return outlier.one_left(member.name, standings.peers(member), out, self.rules.max_share)
