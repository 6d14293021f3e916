"""TLS contexts from files. What is wrong with a file is told with its path in the configuration."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.settings import Problem, Settings, SettingsError
from gateway.settings.tls import EngineTls, Tls, not_renewable

MINIMUM = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def listener(tls: Tls, path: str) -> ssl.SSLContext:
    """For accepting. Raises ``SettingsError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM[tls.minimum]
    context.set_alpn_protocols(["http/1.1"])
    with _told(f"{path}.certificate"):
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        with _told(f"{path}.client_ca"):
            context.load_verify_locations(tls.client_ca)
    return context


@dataclass(frozen=True, slots=True)
class Fronts:
    """What the two listeners speak; None: plain HTTP."""

    data: ssl.SSLContext | None
    admin: ssl.SSLContext | None

    @classmethod
    def of(cls, settings: Settings) -> Fronts:
        """Made from the files. Raises ``SettingsError``."""
        return cls(_front(settings.tls, "tls"), _front(settings.admin_tls, "admin_tls"))

    @staticmethod
    def check(before: Settings, settings: Settings) -> None:
        """Raises ``SettingsError`` where files are bad, or more changed than certificates."""
        problems = [
            *not_renewable("tls", before.tls, settings.tls),
            *not_renewable("admin_tls", before.admin_tls, settings.admin_tls),
        ]
        if problems:
            raise SettingsError(problems)
        Fronts.of(settings)  # half of a pair must not get into those in use

    def renew(self, settings: Settings) -> None:
        """New connections get the certificates that are in the files now, and were checked."""
        for context, tls in ((self.data, settings.tls), (self.admin, settings.admin_tls)):
            if context is not None and tls is not None:
                context.load_cert_chain(tls.certificate, tls.key, password=_no_password)


def _front(tls: Tls | None, path: str) -> ssl.SSLContext | None:
    return None if tls is None else listener(tls, path)


def to_engines(settings: Settings) -> dict[str, ssl.SSLContext]:
    """For connecting to each backend that has ``tls``. Raises ``SettingsError`` with all faults."""
    contexts: dict[str, ssl.SSLContext] = {}
    problems: list[Problem] = []
    for place, backend in enumerate(settings.backends):
        if backend.tls is not None:
            try:
                contexts[backend.name] = to_server(backend.tls, f"backends[{place}].tls")
            except SettingsError as error:
                problems += error.problems
    if problems:
        raise SettingsError(problems)
    return contexts


def to_server(tls: EngineTls, path: str) -> ssl.SSLContext:
    """Verifies the server's certificate and its name. Raises ``SettingsError``."""
    with _told(f"{path}.ca"):
        context = ssl.create_default_context(cafile=tls.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.certificate is not None:
        with _told(f"{path}.certificate"):
            context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    return context


def _no_password() -> str:
    """OpenSSL would otherwise ask at the terminal."""
    raise ValueError("the key is encrypted")


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise SettingsError([Problem(path, f"cannot be used for TLS: {reason}")]) from None
