"""Which of a model's backends a request goes to, and when one that fails is left out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from gateway.settings.fields import Duration, Factor, HeaderName, SaltSecret, Share, Whole
from gateway.settings.section import Section


class Ejection(Section):
    """Leaving out a backend that fails, and trying it again."""

    consecutive_failures: Whole = Field(
        default=5,
        description="Failures in a row that eject a backend: no connection, a deadline, a broken "
        "answer, a 5xx. `0`: none is ejected.",
    )
    base_time: Duration = Field(
        default=30.0, description="How long it is left out, times the number of its ejections."
    )
    max_time: Duration = Field(default=300.0, description="How long at most.")
    max_share: Share = Field(
        default=0.5,
        description="Largest share of a model's backends left out at once. One is always kept.",
    )

    @field_validator("max_time")
    @classmethod
    def _not_below_base(cls, max_time: float, info: ValidationInfo) -> float:
        base = info.data.get("base_time")
        if base is not None and max_time < base:
            raise ValueError("must not be shorter than base_time")
        return max_time


class Routing(Section):
    """The choice among a model's backends."""

    policy: Literal["least_tokens", "affinity"] = Field(
        default="least_tokens",
        description="The backend with the least outstanding work, or the one that had the same "
        "conversation or beginning before, while it is not overloaded.",
    )
    stream_tokens: Whole = Field(
        default=64,
        description="How many prompt tokens an answer under way counts as in a backend's work.",
    )
    load_factor: Factor = Field(
        default=1.25,
        description="Under `affinity`: one with this many times the mean work is passed over.",
    )
    session: Literal["prompt", "user", "header"] = Field(
        default="prompt",
        description="Under `affinity`, what belongs together: equal beginnings (system and first "
        "user message), the request's `user` (in messages `metadata.user_id`), or a header. "
        "A request without the latter two goes by its beginning.",
    )
    session_header: HeaderName = Field(
        default="x-session-id", description="The header of `session: header`."
    )
    secret: SaltSecret | None = Field(
        default=None,
        description="Key of the hashes of `affinity`, 16 characters or more; the same on every "
        "gateway that is to choose alike. Without one it is random at each start.",
    )
    ejection: Ejection = Field(default=Ejection(), description="Backends that fail.")
