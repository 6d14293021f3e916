"""Where backends stand, and what moves them. The rules are ``gateway.core.quarantine``'s.

State is this process's, and the request path reads nothing else. Where several gateways share a
store, ``gateway.edge.replicas`` exchanges it: ``cases`` go out, and what was agreed comes in by
``adopt``. Times are of the wall clock, on which processes agree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from gateway.core import quarantine
from gateway.core.choice import Load
from gateway.core.outlier import Health
from gateway.core.probe_schedule import History
from gateway.core.quarantine import BackendKey, Case, Clue, Rules, Standing, State
from gateway.edge.incidents import nobody_else

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Past:
    """What is known of a backend whatever becomes of its configuration.

    ``since``: when its present suspicion was first known here; later clues do not move it.
    ``load``: what it has of this process's requests, under whatever configuration they began.
    ``on_trial``: a request is under way that decides whether its ejection ends
    (``gateway.edge.ejection``).
    ``echoes``: dialects in whose answers it gave our request id back. ``steady``: those in whose
    streams it kept to one id. ``proofs``: reports of cached tokens that could have been false and
    were not. ``agreed``: counts of prompts that were ours, in a row. All of the present process.
    ``probed``: what our own probes of it came to.
    """

    case: Case = quarantine.NOTHING
    since: float = 0.0
    health: Health = field(default_factory=Health)
    on_trial: bool = False
    load: Load = field(default_factory=Load)
    echoes: set[str] = field(default_factory=set)
    steady: set[str] = field(default_factory=set)
    proofs: int = 0
    agreed: int = 0
    probed: History = field(default_factory=History)

    def forget_process(self) -> None:
        """The engine is another process: what it does is to be learnt anew."""
        self.echoes.clear()
        self.steady.clear()
        self.proofs = self.agreed = 0


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
    """The standing of every backend. ``configure`` at each (re)load.

    ``clock`` gives seconds since 1970. ``changed`` is called at each change that began here.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.rules = Rules()
        self.changed: Callable[[], None] = nobody_else
        self._clock = clock
        self.members: Sequence[Member] = ()
        self._pasts: dict[BackendKey, Past] = {}

    def past(self, name: str, url: str) -> Past:
        """The backend's past, which a reload does not end."""
        return self._pasts.setdefault((name, url), Past())

    def configure(self, rules: Rules, members: Sequence[Member]) -> None:
        """From now on these rules, and shares of these backends."""
        self.rules = rules
        self.members = members

    def of(self, member: Member) -> Standing:
        """Where it stands now."""
        told = quarantine.standing(member.past.case, self._clock(), self.rules)
        return replace(told, since=member.past.since) if told.state is State.SUSPECT else told

    def report(self, member: Member, clue: Clue) -> Standing:
        """Hold a clue against it."""
        self._set(member, quarantine.reported(member.past.case, clue))
        return self.of(member)

    def release(self, name: str, by: str) -> Member | None:
        """End a quarantine or suspicion; None where no backend has the name."""
        member = next((one for one in self.members if one.name == name), None)
        if member is not None:
            self._set(member, quarantine.release(member.past.case, self._clock(), by))
        return member

    def now(self) -> float:
        """The time clues are told in."""
        return self._clock()

    # --- what other gateways know -------------------------------------------------------------

    def cases(self) -> dict[BackendKey, Case]:
        """What is known here of each backend."""
        return {key: past.case for key, past in self._pasts.items()}

    def agreed(self, shared: Mapping[BackendKey, Case]) -> dict[BackendKey, Case]:
        """What gateways know together, those out decided: ``gateway.core.quarantine.agreed``."""
        now, peers = self._clock(), self._peers()
        cases = quarantine.agreed(shared, self.cases(), peers, now, self.rules)
        return {key: case for key, case in cases.items() if case != quarantine.NOTHING}

    def adopt(self, shared: Mapping[BackendKey, Case]) -> None:
        """Take over what was agreed. What was found here meanwhile stays, as far as the cap lets
        it: who was taken out here and not by agreement comes back where there is no room.
        """
        self._take(self.agreed(shared))

    def forget_tenants(self) -> None:
        """Tenants have other pseudonyms from now on."""
        self._take({at: quarantine.of_unknown_tenants(one.case) for at, one in self._pasts.items()})

    def _set(self, member: Member, case: Case) -> None:
        """What was found or decided here: who it takes out, as far as is known here."""
        key, before, now = self._keys()[id(member.past)], self.cases(), self._clock()
        after = before | {key: quarantine.pruned(case, now, self.rules)}
        self._take(quarantine.agreed(before, after, self._peers(), now, self.rules))
        self.changed()

    def _take(self, cases: Mapping[BackendKey, Case]) -> None:
        now = self._clock()
        for key, past in self._pasts.items():
            case = cases.get(key, quarantine.NOTHING)
            if past.case == case:
                continue
            before = quarantine.standing(past.case, now, self.rules)
            past.case, released = case, past.case.released
            after = quarantine.standing(case, now, self.rules)
            if after.state is not before.state or case.released != released:
                past.since = after.since
            if after.state is not before.state:
                log.warning("backend %s is %s: %s", key[0], after.state, after.reason)

    def _peers(self) -> dict[BackendKey, Mapping[str, set[str]]]:
        """The backends of each model that each one serves."""
        keys = self._keys()
        return {keys[id(one.past)]: self.peers(one) for one in self.members}

    def _keys(self) -> dict[int, BackendKey]:
        return {id(past): key for key, past in self._pasts.items()}

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
