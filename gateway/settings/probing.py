"""Probes and gate runs of a backend that the gateway does by itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from gateway.settings.fields import (
    Bool,
    Duration,
    Factor,
    Kind,
    Name,
    Positive,
    Share,
    Whole,
    no_duplicates,
)
from gateway.settings.section import Section

Occasion = Literal["start", "change", "serving", "quarantine"]


def _detection(value: object) -> str:
    """``K/N`` or a share, as text. ``gateway.core.probe.detection`` reads it."""
    text = str(value)
    seen, slash, planted = text.partition("/")
    try:
        good = 0 < int(seen) <= int(planted) if slash else 0 < float(text) <= 1
    except ValueError:
        good = False
    if not good or isinstance(value, bool):
        raise ValueError("must be leaks seen of leaks planted, as 18/20, or a share above 0")
    return text


Detection = Annotated[str, BeforeValidator(_detection), Kind("`K/N` or share")]


class Release(Section):
    """What ends a quarantine without an operator: clean probes, and enough of them."""

    detection: Detection = Field(
        description="The share of leaks that a probe of this model sees, as measured: `18/20`, or "
        "a share. Nobody knows it but you: docs/probing.md."
    )
    bound: Share = Field(
        default=0.05,
        gt=0,
        description="The leak rate that clean answers must have excluded, with 95 %.",
    )
    after: Positive = Field(default=3, description="Clean full probes in a row, at least.")


class Probe(Section):
    """When a backend is probed. A probe generates, and costs prompts as long as the limit."""

    when: Annotated[tuple[Occasion, ...], AfterValidator(no_duplicates)] = Field(
        default=("quarantine",),
        description="`quarantine`: while it is suspect or quarantined. `change`: when its "
        "processes, versions or pools are others. `start`: when it is first seen. `serving`: at "
        "every interval.",
    )
    every: Duration = Field(
        default=3600.0, description="Between two probes of a backend that serves."
    )
    retry: Duration = Field(
        default=300.0,
        description="Between two probes of one that does not. Doubled with each fault, up to "
        "`every`.",
    )
    at_load: Whole = Field(
        default=0,
        description="Requests it may have for a probe to run. When more come, the probe is broken "
        "off.",
    )
    plan: Literal["quick", "full"] = Field(
        default="quick",
        description="While it serves: the limit, one token over and the salt, or all checks. One "
        "that does not serve is always probed in full.",
    )
    rounds: Positive = Field(default=1, description="Rounds of every check in a full probe.")
    idle: Duration = Field(default=5.0, description="The pause before the check after idling.")
    timeout: Duration = Field(default=600.0, description="How long one answer may take.")
    model: Name | None = Field(
        default=None, description="The model asked for. Without it, the first the workers tell."
    )
    action: Literal["flag", "quarantine"] = Field(
        default="quarantine",
        description="On a fault: open an incident, or hold it against the backend too.",
    )
    canary: Bool = Field(
        default=False,
        description="It gets no requests until a full probe of its present processes was clean.",
    )
    release: Release | None = Field(
        default=None,
        description="When clean probes end a quarantine. Without it, only an operator does.",
    )

    @field_validator("release")
    @classmethod
    def _by_probes_that_run(cls, release: Release | None, info: ValidationInfo) -> Release | None:
        if release is not None and "quarantine" not in info.data.get("when", ("quarantine",)):
            raise ValueError("needs quarantine in when, or no probe would ever lead to it")
        return release


class Gate(Section):
    """The deploy gate's checks, made again whenever processes or pools are others."""

    context: Positive | None = Field(
        default=None, description="The context promised. Without it, what workers advertise."
    )
    headroom: Factor = Field(default=1.25, description="Pool over context.")
    action: Literal["show", "flag", "quarantine"] = Field(
        default="show",
        description="On a failure: show it in metrics and `/status`, open an incident too, or "
        "hold it against the backend as well.",
    )
