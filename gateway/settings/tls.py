"""TLS: on what clients and operators reach, and on the way to engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from gateway.settings.fields import FilePath
from gateway.settings.problems import Problem
from gateway.settings.section import Section

Version = Literal["1.2", "1.3"]


class Tls(Section):
    """TLS on a listener. Files are read at start and at each reload."""

    certificate: FilePath = Field(description="PEM file: the certificate, then its chain.")
    key: FilePath = Field(description="PEM file: its private key, not encrypted.")
    client_ca: FilePath | None = Field(
        default=None,
        description="PEM file of authorities: only clients with a certificate of theirs get in.",
    )
    minimum: Version = Field(default="1.2", description="The oldest version spoken.")


class EngineTls(Section):
    """TLS to an engine with an `https` URL. Its certificate is always verified."""

    ca: FilePath | None = Field(
        default=None,
        description="PEM file of the only authorities trusted. Without it, the system's.",
    )
    certificate: FilePath | None = Field(
        default=None, description="PEM file: our own certificate, where one is wanted."
    )
    key: FilePath | None = Field(
        default=None, validate_default=True, description="PEM file: its private key."
    )

    @field_validator("key")
    @classmethod
    def _both_or_none(cls, key: str | None, info: ValidationInfo) -> str | None:
        if (key is None) != (info.data.get("certificate") is None):
            raise ValueError("certificate and key belong together")
        return key


def not_renewable(path: str, before: Tls | None, after: Tls | None) -> Iterator[Problem]:
    """What of a listener's TLS a reload cannot change: anything but the certificate."""
    rest = [None if tls is None else (tls.client_ca, tls.minimum) for tls in (before, after)]
    if rest[0] != rest[1]:
        yield Problem(path, "only the certificate and its key change at a reload: restart")


def scheme(tls: Tls | None) -> str:
    """Of a listener's URL."""
    return "http" if tls is None else "https"
