"""The fair queue in front of a backend (``gateway.core.fairness``)."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from gateway.settings.fields import Duration, Positive, Whole
from gateway.settings.section import Section


class Queue(Section):
    """What a backend is sent at once; what is more waits here, and tenants take fair turns."""

    concurrent: Positive | None = Field(
        default=None, description="Requests in flight at most. This or `prompt_tokens` is needed."
    )
    prompt_tokens: Positive | None = Field(
        default=None,
        description="Prompt tokens in flight at most. A prompt over it runs when no other does.",
    )
    max_wait: Duration = Field(
        default=10.0, description="How long a request may wait before it is refused with 429."
    )
    max_waiting: Whole = Field(
        default=1000,
        description="Requests that may wait. In a full queue, the last of the tenant with most "
        "waiting for its weight is refused. `0`: none waits.",
    )
    max_waiting_per_tenant: Positive | None = Field(
        default=None, description="Requests of one tenant that may wait."
    )

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.concurrent is None and self.prompt_tokens is None:
            raise ValueError("needs concurrent or prompt_tokens, or nothing would ever wait")
        return self
