"""Customers and what they may use: keys, models, quotas."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from gateway.settings.fields import (
    Bool,
    Instant,
    KeyHash,
    Kind,
    ModelPattern,
    Name,
    Positive,
    Share,
    Weight,
    Whole,
    key_hash,
    not_empty,
)
from gateway.settings.section import Section

DEFAULT_POLICY = "default"


class TenantKey(Section):
    """One key of a tenant, and how long it is good for."""

    sha256: KeyHash = Field(description="The key's SHA-256.")
    not_before: Instant | None = Field(default=None, description="Refused before this moment.")
    not_after: Instant | None = Field(
        default=None, description="Refused after this moment: the end of a key that was replaced."
    )

    @field_validator("not_after")
    @classmethod
    def _ends_after_it_begins(
        cls, not_after: datetime | None, info: ValidationInfo
    ) -> datetime | None:
        not_before = info.data.get("not_before")
        if not_after and not_before and not_after < not_before:
            raise ValueError("must not lie before not_before, or the key is never good")
        return not_after


def _key(value: object) -> object:
    """A key's SHA-256 alone stands for a section with nothing else in it."""
    if isinstance(value, str):
        return {"sha256": key_hash(value)}  # here, so that a fault is told of the text itself
    if not isinstance(value, Mapping | TenantKey):
        raise ValueError("must be a SHA-256 in hex, or a section with sha256 and not_after")  # noqa: TRY004
    return value


def _no_key_twice(keys: tuple[TenantKey, ...]) -> tuple[TenantKey, ...]:
    digests = [key.sha256 for key in keys]
    for index, digest in enumerate(digests):
        if digest in digests[:index]:
            raise ValueError(f"lists {digest} twice")
    return keys


_Key = Annotated[TenantKey, BeforeValidator(_key), Kind("SHA-256 in hex or section")]


class Tenant(Section):
    """One customer: who may call, and under which policy."""

    id: Name = Field(description="Its name in metrics and logs.")
    key_sha256: Annotated[tuple[_Key, ...], AfterValidator(_no_key_twice)] = Field(
        default=(),
        description="SHA-256 of each of its keys (`poolgate keys new`). Only a sole tenant may "
        "have none: it is then open, and any or no key is accepted.",
    )
    policy: Name = Field(default=DEFAULT_POLICY, description="A name under `policies`.")
    fingerprint: Bool = Field(
        default=True,
        description="Whether its prompts and answers are remembered, as keyed hashes, so that they "
        "are known in others' answers (`integrity.fingerprints`).",
    )


Rate = Literal[
    "requests_per_minute",
    "tokens_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "tokens_per_day",
    "tokens_per_month",
]


class Quotas(Section):
    """Amounts that may be used. ``None`` means no limit.

    A rate is a bucket that is refilled evenly over its period.
    """

    requests_per_minute: Positive | None = Field(default=None, description="Requests a minute.")
    tokens_per_minute: Positive | None = Field(
        default=None,
        description="Tokens a minute, prompt and output. Reserved before the engine is asked, "
        "settled with what was really used.",
    )
    input_tokens_per_minute: Positive | None = Field(
        default=None, description="The same of prompts alone."
    )
    output_tokens_per_minute: Positive | None = Field(
        default=None, description="The same of outputs alone."
    )
    tokens_per_day: Positive | None = Field(
        default=None, description="Tokens over 24 hours, prompt and output."
    )
    tokens_per_month: Positive | None = Field(
        default=None, description="Tokens over 30 days, prompt and output."
    )
    concurrent: Positive | None = Field(default=None, description="Requests at the same time.")
    bursts: Mapping[Rate, Positive] = Field(
        default={},
        description="How much of a rate may be used at once. Where not written, all of it.",
    )

    @field_validator("bursts")
    @classmethod
    def _bursts_of_rates(
        cls, bursts: Mapping[Rate, int], info: ValidationInfo
    ) -> Mapping[Rate, int]:
        for rate, burst in bursts.items():
            if rate not in info.data:  # at fault itself, which is told already
                continue
            amount = info.data[rate]
            if amount is None:
                raise ValueError(f"names {rate}, which has no quota")
            if burst > amount:
                raise ValueError(f"must not be above the quota: {rate} is {amount}")
        return bursts


class Policy(Quotas):
    """What a tenant may use, over all models and for some."""

    per_model: Mapping[ModelPattern, Quotas] = Field(
        default={},
        description="Quotas for the models a pattern covers, besides those over all models. A "
        "model that several patterns cover counts under each.",
    )
    cached_token_weight: Share = Field(
        default=1.0,
        description="What a prompt token that the engine had cached counts, once the engine says "
        "so: 1 as any other, 0 nothing.",
    )
    max_prompt_tokens: Positive | None = Field(
        default=None, description="Longest prompt. The engine's limit still rules if smaller."
    )
    reserve_output_tokens: Whole = Field(
        default=1024,
        description="Output tokens reserved for each answer whose request sets no maximum.",
    )
    models: Annotated[tuple[ModelPattern, ...], AfterValidator(not_empty)] = Field(
        default=("*",), description="Models that may be asked for. `*` stands for any characters."
    )
    shadow: Bool = Field(
        default=False, description="Count the quotas and show them, but never refuse by them."
    )
    weight: Weight = Field(
        default=1.0,
        description="Share of a backend's queue beside other tenants that wait there.",
    )
