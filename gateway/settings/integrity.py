"""Checks of answers and what becomes of a backend they find at fault."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from gateway.settings.fields import Bool, Duration, Positive, SaltSecret, Share, Store, Url
from gateway.settings.section import Section

MOST_EPOCHS = 1000  # of which sentinels are in date: their table is made for every tenant


class BindingCheck(Section):
    """Our request id, which must come back in the answer's id."""

    action: Literal["off", "flag", "block", "quarantine"] = Field(
        default="block",
        description="On another request's id, or none where this backend gave it before: send no "
        "id and do not look, record it, withhold the answer, or quarantine the backend too.",
    )


class CompletenessCheck(Section):
    """A 200 that is empty, has no finish reason, or a usage that cannot be."""

    action: Literal["flag", "block"] = Field(
        default="block",
        description="Where no engine may do so: record it, or give the client an error. What may "
        "have an innocent reason is only counted.",
    )


class CachedTokensCheck(Section):
    """Cached tokens of text that this tenant never sent."""

    action: Literal["flag", "block", "quarantine"] = Field(
        default="flag",
        description="On a finding: record it, withhold the answer, or quarantine the backend too.",
    )


class SentinelCheck(Section):
    """A marker in each prompt that must surface in no other tenant's answer."""

    place: Literal["system_end", "off"] = Field(
        default="system_end",
        description="Where it is put: at the end of the system message, which is added where "
        "there is none. `off`: nowhere; answers are scanned for those of other gateways.",
    )
    constrained: Bool = Field(
        default=False,
        description="Put it also into requests whose answer is bound to a schema or grammar.",
    )
    scan: Share = Field(default=1.0, description="Share of the answers scanned.")
    action: Literal["off", "flag", "block", "quarantine"] = Field(
        default="block",
        description="On another tenant's marker in an answer: neither place nor scan any, record "
        "it, withhold the rest of the answer, or quarantine the backend too.",
    )
    epoch: Duration = Field(
        default=86400.0,
        ge=60,
        description="How long a tenant keeps one marker. With each new one its prefixes are cold.",
    )
    lifetime: Duration = Field(
        default=259200.0,
        description="How long a prompt can lie in the engines' memory, caches on disk included. "
        "Older markers do not count.",
    )

    @field_validator("lifetime")
    @classmethod
    def _in_reach_of_epochs(cls, lifetime: float, info: ValidationInfo) -> float:
        epoch = info.data.get("epoch")
        if epoch is not None and lifetime > epoch * MOST_EPOCHS:
            raise ValueError(f"must not be longer than {MOST_EPOCHS} epochs")
        return lifetime


class Quarantine(Section):
    """Taking backends out after a finding whose action is `quarantine`."""

    max_share: Share = Field(
        default=0.5,
        description="Largest share of a model's backends taken out without an operator.",
    )
    suspect_floor: Positive = Field(
        default=4096, description="Longest prompt, in tokens, sent to a backend under suspicion."
    )
    window: Duration = Field(
        default=3600.0,
        description="How long a finding counts, and suspicion lasts without another one.",
    )


class Shared(Section):
    """What gateways tell each other through a redis store: docs/replicas.md."""

    store: Store | None = Field(
        default=None,
        description="Which store; `limits.store` where it is not written. `memory`: tell nobody.",
    )
    every: Duration = Field(
        default=1.0,
        le=60,
        description="How often to hear of others; what is found is told at once.",
    )


class Webhook(Section):
    """Incidents sent to a URL of yours, signed."""

    url: Url = Field(description="Where each incident is POSTed as JSON.")
    secret: SaltSecret = Field(
        description="Key of the signature (HMAC-SHA256), 16 characters or more."
    )
