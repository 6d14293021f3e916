"""Reading the configuration file, and the only look at the environment for its secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.settings import Problem, Settings, SettingsError, parse
from gateway.supervise.handover import Written, written


@dataclass(frozen=True, slots=True)
class ProcessSecrets:
    """Secrets from a process's environment and from files, relative ones under ``folder``."""

    environment: Mapping[str, str]
    folder: Path

    def env(self, name: str) -> str | None:
        """The variable, or None."""
        return self.environment.get(name)

    def file(self, path: str) -> str:
        """The file's text. Raises ``OSError`` or ``UnicodeError``."""
        return (self.folder / path).read_text(encoding="utf-8")


def read_settings(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings in a file. Raises ``SettingsError``, also where the file cannot be read."""
    return parse(_text(path), _secrets(path, environment))


def read_written(
    path: Path, environment: Mapping[str, str] | None = None
) -> tuple[Settings, Written]:
    """Those, and the text with the secrets it refers to, for other processes. Raises as above."""
    return written(_text(path), _secrets(path, environment))


def own_environment() -> Mapping[str, str]:
    """The variables of this process."""
    return os.environ  # noqa: TID251 -- this is the place


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingsError([Problem("", f"cannot read {path}: {error.strerror}")]) from None
    except UnicodeError:
        raise SettingsError([Problem("", f"cannot read {path}: it is not UTF-8 text")]) from None


def _secrets(path: Path, environment: Mapping[str, str] | None) -> ProcessSecrets:
    return ProcessSecrets(own_environment() if environment is None else environment, path.parent)
