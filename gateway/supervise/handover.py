"""What a worker process is given: one configuration with its secrets, as it was read once.

It goes over a socket pair and never through arguments or the environment, which other processes
can see. Every worker parses the same text with the same secrets, whatever the files say by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from gateway.settings import SecretSource, Settings, parse


@dataclass(frozen=True, slots=True)
class Written:
    """A configuration's text, and the variables and files that it refers to."""

    text: str = field(repr=False)
    variables: dict[str, str] = field(repr=False)
    files: dict[str, str] = field(repr=False)

    def settings(self) -> Settings:
        """The settings it stands for. Raises ``SettingsError``."""
        return parse(self.text, self)

    def env(self, name: str) -> str | None:
        """A variable as it was."""
        return self.variables.get(name)

    def file(self, path: str) -> str:
        """A file's text as it was. Raises ``OSError`` where it could not be read."""
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]


@dataclass(frozen=True, slots=True)
class Handover:
    """A worker's start: its configuration, the secret all workers share, whether to log access.

    ``probes``: it is the one of them that probes backends.
    """

    written: Written
    secret: bytes = field(repr=False)
    access_log: bool
    probes: bool = True


@dataclass(frozen=True, slots=True)
class LastWords:
    """What a worker leaves behind at an orderly end: its series (``merge.packed``), incidents."""

    metrics: bytes
    incidents: list[msgspec.Raw]


def written(text: str, source: SecretSource) -> tuple[Settings, Written]:
    """The settings, and the text with every secret it refers to, each looked up once.

    Raises ``SettingsError`` where it is no valid configuration.
    """
    noting = _Noting(source)
    settings = parse(text, noting)
    return settings, Written(text, noting.variables, noting.files)


class _Noting:
    """A source that remembers what it found."""

    def __init__(self, source: SecretSource) -> None:
        self._source = source
        self.variables: dict[str, str] = {}
        self.files: dict[str, str] = {}

    def env(self, name: str) -> str | None:
        value = self._source.env(name)
        if value is not None:
            self.variables[name] = value
        return value

    def file(self, path: str) -> str:
        self.files[path] = self._source.file(path)
        return self.files[path]
