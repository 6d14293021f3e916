"""Bounds on clients' connections."""

from __future__ import annotations

from pydantic import Field

from gateway.settings.fields import Positive
from gateway.settings.section import Section


class Connections(Section):
    """How many connections clients may have, in each worker process."""

    total: Positive | None = Field(
        default=10_000,
        description="Altogether; one more is answered 503. Keep it below the limit of open files.",
    )
    per_address: Positive | None = Field(
        default=None,
        description="From one IPv4 address or IPv6 /64. Leave it out behind a balancer, whose "
        "address all clients have.",
    )
