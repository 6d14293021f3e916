"""What the gateway tells of itself: its log and its traces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, field_validator

from gateway.settings.fields import Bool, FilePath, HeaderValue, Kind, Share, Url
from gateway.settings.section import Section
from gateway.settings.tls import EngineTls

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


class CollectorTls(EngineTls):
    """TLS to a collector with an `https` URL. Its certificate is always verified."""

    ca: FilePath | None = Field(
        default=None,
        description="PEM file of the only authorities trusted. Without it, those that come with "
        "the exporter (certifi's).",
    )


class Telemetry(Section):
    """Traces of exchanges, exported with OTLP over HTTP."""

    otlp: Url = Field(
        description="The collector, such as http://127.0.0.1:4318. `/v1/traces` is appended."
    )
    tls: CollectorTls | None = Field(
        default=None, description="TLS to an `https` collector, where it needs more than trust."
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

    @field_validator("tls")
    @classmethod
    def _for_https(cls, tls: CollectorTls | None, info: ValidationInfo) -> CollectorTls | None:
        otlp = info.data.get("otlp")
        if tls is not None and otlp is not None and not otlp.startswith("https:"):
            raise ValueError("is for an https otlp")
        return tls
