"""The simulated engine's switches. Each names one real fault; none shows in the API.

``to_finish`` is the incident: a prompt over the prefill pool is noted as rejected, but rejected is
not finished, so the request goes on with a one-token placeholder. Off, a rejection is terminal and
both legs answer 400. ``early_free`` is the second public class (SGLang #24527): an abort frees
decode's pages while prefill still writes into them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Faults:
    """Which faults the engine has. The default has none of them.

    ``to_finish``: a rejected prompt goes on. ``len_check``: the remedy beside it, decode refuses
    (500) what did not arrive whole. ``early_free``: an abort during prefill frees decode's pages
    while the transfer still runs. ``salt``: the prefix cache ignores ``cache_salt`` and says so in
    ``cached_tokens``; ``cache_silent``: it ignores it and reports 0. ``server_info``: the stated
    limit is the context's, whatever the pool holds. ``swap``: two answers that are under way to
    the same endpoint at once reach each other's clients. ``empty200``: an answer without content or
    finish reason. ``drift``: the chat template differs from the published one by a few tokens.
    """

    to_finish: bool = False
    len_check: bool = False
    early_free: bool = False
    salt: bool = False
    cache_silent: bool = False
    server_info: bool = False
    swap: bool = False
    empty200: bool = False
    drift: bool = False

    @classmethod
    def named(cls, names: Iterable[str]) -> Faults:
        """The faults of these names. Raises ValueError naming the unknown ones."""
        wanted = set(names)
        if unknown := sorted(wanted - set(cls.names())):
            raise ValueError(
                f"unknown fault {', '.join(unknown)}; known are {', '.join(cls.names())}"
            )
        return cls(**dict.fromkeys(wanted, True))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Every switch there is."""
        return tuple(field.name for field in fields(cls))
