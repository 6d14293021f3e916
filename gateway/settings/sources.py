"""Where secrets come from. This package neither reads the environment nor opens files."""

from __future__ import annotations

import re
from typing import Protocol

_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_FILE = "file:"


class SecretSource(Protocol):
    """What a secret's reference is looked up in."""

    def env(self, name: str) -> str | None:
        """The environment variable, or None where it is not set."""

    def file(self, path: str) -> str:
        """The file's text. Raises ``OSError`` or ``UnicodeError``."""


class NoSecrets:
    """A source that knows no secret, for settings that refer to none."""

    def env(self, name: str) -> str | None:  # noqa: ARG002 -- the protocol's signature
        """No variable is set."""
        return None

    def file(self, path: str) -> str:
        """No file exists."""
        raise FileNotFoundError(path)


def resolve(written: object, source: SecretSource) -> str:
    """The secret that ``${NAME}``, ``file:PATH`` or a plain text stands for.

    Raises ``ValueError`` that names the reference and never the secret.
    """
    if not isinstance(written, str):
        # a TypeError would not reach pydantic's list of faults
        raise ValueError("must be text: ${NAME}, file:PATH or the secret itself")  # noqa: TRY004
    if reference := _REFERENCE.fullmatch(written):
        return _from_env(reference["name"], source)
    if "${" in written:
        raise ValueError("must be one ${NAME} and nothing else where it refers to a variable")
    if written.startswith(_FILE):
        return _from_file(written.removeprefix(_FILE), source)
    if not written:
        raise ValueError("is empty; leave the key out where there is no secret")
    return written


def _from_env(name: str, source: SecretSource) -> str:
    value = source.env(name)
    if value is None:
        raise ValueError(f"environment variable {name} is not set")
    if not value:
        raise ValueError(f"environment variable {name} is empty")
    return value


def _from_file(path: str, source: SecretSource) -> str:
    try:
        secret = source.file(path).rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or 'no such file'}") from None
    except UnicodeError:
        raise ValueError(f"cannot read {path}: it is not UTF-8 text") from None
    if not secret:
        raise ValueError(f"{path} is empty")
    return secret
