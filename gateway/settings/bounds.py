"""What clients and engines may take of us: bytes, seconds, connections."""

from __future__ import annotations

from pydantic import Field

from gateway.settings.fields import Duration, DurationOrZero, Positive, Size
from gateway.settings.section import Section


class Body(Section):
    """Request bodies."""

    max_bytes: Size = Field(default=2**25, description="A larger body is refused with 413.")


class Timeouts(Section):
    """How long each wait may last."""

    connect: Duration = Field(default=5.0, description="For a connection to the engine.")
    first_byte: Duration = Field(
        default=1800.0, description="For the engine's first byte, long prefill included."
    )
    first_byte_per_1k_tokens: DurationOrZero = Field(
        default=0.0,
        description="What each 1,000 tokens of the prompt add to `first_byte`, so that one that "
        "hangs is told from one that prefills.",
    )
    idle: Duration = Field(default=300.0, description="Between two pieces of an answer.")
    body: Duration = Field(default=60.0, description="For the client to send its whole body.")
    headers: Duration = Field(
        default=10.0,
        description="For the client to send a request's headers, from its first byte or the "
        "connection's begin.",
    )
    write_idle: Duration = Field(
        default=60.0,
        description="For the client to take what fills its connection (64 KiB besides what the "
        "system holds); then it is cut off.",
    )
    keep_alive: Duration = Field(
        default=75.0,
        description="How long a connection may idle between requests. Longer than that of a "
        "balancer in front.",
    )


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
