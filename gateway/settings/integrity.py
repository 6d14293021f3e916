"""Checks of answers and what becomes of a backend they find at fault."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.settings.fields import Duration, Positive, SaltSecret, Share, Url
from gateway.settings.section import Section


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


class Webhook(Section):
    """Incidents sent to a URL of yours, signed."""

    url: Url = Field(description="Where each incident is POSTed as JSON.")
    secret: SaltSecret = Field(
        description="Key of the signature (HMAC-SHA256), 16 characters or more."
    )
