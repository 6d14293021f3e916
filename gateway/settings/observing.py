"""What the gateway tells of itself: its log and its traces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from gateway.settings.fields import Bool, HeaderValue, Kind, Share, Url
from gateway.settings.section import Section

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)  # RFC 9110 5.6.2


def _header_name(value: str) -> str:
    if not _TOKEN.fullmatch(value):
        raise ValueError("must be the name of an HTTP header")
    return value


HeaderName = Annotated[str, AfterValidator(_header_name), Kind("header name")]
AttributeName = Annotated[str, StringConstraints(min_length=1, max_length=128), Kind("name")]
AttributeValue = Annotated[str, StringConstraints(max_length=256), Kind("text")]


class Logging(Section):
    """The log on standard error. Access records are JSON whatever it is."""

    format: Literal["text", "json"] = Field(
        default="text", description="Lines for people, or one JSON object a line: docs/logs.md."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="What is less grave is not written."
    )


class Telemetry(Section):
    """Traces of exchanges, exported with OTLP over HTTP."""

    otlp: Url = Field(
        description="The collector, such as http://127.0.0.1:4318. `/v1/traces` is appended."
    )
    sample: Share = Field(
        default=0.1, description="Share of the exchanges traced. None is traced in part."
    )
    headers: Mapping[HeaderName, HeaderValue] = Field(
        default={}, description="Sent with each export; the collector's key, for one."
    )
    trust_traceparent: Bool = Field(
        default=False,
        description="Go on with the client's trace, and sample as it was sampled. Only where "
        "clients are yours: they then decide what is traced.",
    )
    resource: Mapping[AttributeName, AttributeValue] = Field(
        default={},
        description="Attributes of all spans, such as `deployment.environment.name`. "
        "`service.name` is `poolgate` unless written here.",
    )
