"""Keys that the configuration gives, or the process where it gives none."""

from __future__ import annotations

from gateway.settings import models as written


def integrity_secret(integrity: written.Integrity, process_secret: bytes) -> bytes:
    """What keys what gateways must agree on. ``process_secret`` where no secret is written."""
    secret = integrity.secret
    return secret.get_secret_value().encode() if secret is not None else process_secret
