"""Where backends stand, and what moves them. The rules are ``gateway.core.quarantine``'s.

State is this process's. ``Standings`` applies pure transitions to one ``Standing`` a backend, in
one place (``_move``): a store that several gateways share would be read and written there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core import quarantine
from gateway.core.choice import Load
from gateway.core.outlier import Health
from gateway.core.probe_schedule import History
from gateway.core.quarantine import Clue, Rules, Standing, State

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Past:
    """What is known of a backend whatever becomes of its configuration.

    ``load``: what it has of this process's requests, under whatever configuration they began.
    ``on_trial``: a request is under way that decides whether its ejection ends
    (``gateway.edge.ejection``). ``echoes``: dialects in whose answers it gave our request id back.
    ``proofs``: reports of cached tokens that could have been false and were not. Both are of the
    present process.
    ``probed``: what our own probes of it came to.
    """

    standing: Standing = field(default_factory=Standing)
    health: Health = field(default_factory=Health)
    on_trial: bool = False
    load: Load = field(default_factory=Load)
    echoes: set[str] = field(default_factory=set)
    proofs: int = 0
    probed: History = field(default_factory=History)

    def forget_process(self) -> None:
        """The engine is another process: what it does is to be learnt anew."""
        self.echoes.clear()
        self.proofs = 0


class Member(Protocol):
    """A backend, as far as standing goes (``gateway.edge.backends.Backend``)."""

    name: str
    past: Past

    @property
    def held(self) -> bool:
        """Whether it is a canary that is sent nothing yet."""

    def serves(self, model: str) -> bool:
        """Whether configuration sends this model here."""

    def models(self) -> tuple[str, ...]:
        """Model names its workers told."""


class Standings:
    """The standing of every backend. ``configure`` at each (re)load."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.rules = Rules()
        self._clock = clock
        self.members: Sequence[Member] = ()
        self._pasts: dict[tuple[str, str], Past] = {}

    def past(self, name: str, url: str) -> Past:
        """The backend's past, which a reload does not end."""
        return self._pasts.setdefault((name, url), Past())

    def configure(self, rules: Rules, members: Sequence[Member]) -> None:
        """From now on these rules, and shares of these backends."""
        self.rules = rules
        self.members = members

    def of(self, member: Member) -> Standing:
        """Where it stands now."""
        return quarantine.at(member.past.standing, self._clock(), self.rules)

    def report(self, member: Member, clue: Clue) -> Standing:
        """Hold a clue against it."""
        room = quarantine.within_share(
            member.name, self.peers(member), self.quarantined(), self.rules.max_share
        )
        standing = quarantine.reported(member.past.standing, clue, self.rules, may_take_out=room)
        return self._move(member, standing)

    def release(self, name: str, by: str) -> Member | None:
        """End a quarantine or suspicion; None where no backend has the name."""
        member = next((one for one in self.members if one.name == name), None)
        if member is not None:
            self._move(member, quarantine.released(self._clock(), by))
        return member

    def now(self) -> float:
        """The time clues are told in."""
        return self._clock()

    def _move(self, member: Member, standing: Standing) -> Standing:
        if standing.state is not member.past.standing.state:
            log.warning("backend %s is %s: %s", member.name, standing.state, standing.reason)
        member.past.standing = standing
        return standing

    def quarantined(self) -> set[str]:
        """The backends that may not be used at all."""
        return {one.name for one in self.members if self.of(one).state is State.QUARANTINED}

    def peers(self, member: Member) -> Mapping[str, set[str]]:
        """The backends of each model it serves; of one that tells no models, all there are."""
        told = [model for model in member.models() if member.serves(model)]
        if not told:
            return {"*": {one.name for one in self.members} | {member.name}}
        return {
            model: {one.name for one in self.members if one.serves(model)} | {member.name}
            for model in told
        }
