"""Text or a mapping to ``Settings``, or to the list of everything that is wrong with it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.settings.crosscheck import cross_problems, settings_problems
from gateway.settings.fields import Context
from gateway.settings.models import Settings
from gateway.settings.problems import Problem, SettingsError
from gateway.settings.schema import entries
from gateway.settings.sources import NoSecrets, SecretSource
from gateway.settings.units import HostPort, host_port
from gateway.settings.yaml_text import load

_NOT_A_SECTION = "must be a section of settings"
_MESSAGES = MappingProxyType(
    {
        "missing": "is required",
        "model_type": _NOT_A_SECTION,
        "mapping_type": _NOT_A_SECTION,
        "dict_type": _NOT_A_SECTION,
        "tuple_type": "must be a list",
        "recursion_loop": "refers to itself",
        "string_type": "must be text",
        "invalid_key": "is not text, as every key must be",
        "int_type": "must be a whole number",
        "bool_type": "must be true or false",
    }
)


def parse(written: str | Mapping[str, Any], secrets: SecretSource) -> Settings:
    """Typed settings from YAML text or a mapping of the same shape.

    Raises ``SettingsError`` with every fault, each with its path, in the order: keys written
    twice, single values, values that do not go together.
    """
    value, problems = load(written) if isinstance(written, str) else (written, [])
    if isinstance(value, Mapping):
        return _validated(value, secrets, problems)
    if not problems:
        problems.append(Problem("", "must be a mapping of settings, such as `listen: ...`"))
    raise SettingsError(problems)


def for_backend(
    url: str,
    *,
    listen: str | None = None,
    admin: str | None = None,
    engine: str = "auto",
    tokenizer: str | None = None,
) -> Settings:
    """What ``poolgate serve --backend URL`` means: one open tenant, no quotas, engine detected.

    Raises ``SettingsError`` as ``parse`` does.
    """
    backend = {"name": "default", "url": url, "engine": engine, "tokenizer": tokenizer}
    written: dict[str, Any] = {"backends": [backend]}
    addresses = {"listen": listen, "admin": admin}
    written |= {key: address for key, address in addresses.items() if address is not None}
    return parse(written, NoSecrets())


def with_addresses(settings: Settings, *, listen: str | None, admin: str | None) -> Settings:
    """The settings with addresses from elsewhere, where given.

    Raises ``SettingsError`` for what is no address, or one port for both planes.
    """
    update: dict[str, HostPort] = {}
    problems: list[Problem] = []
    for name, address in {"listen": listen, "admin": admin}.items():
        if address is not None:
            try:
                update[name] = host_port(address)
            except ValueError as error:
                problems.append(Problem(name, str(error)))
    updated = settings.model_copy(update=update)
    problems += cross_problems({"listen": str(updated.listen), "admin": str(updated.admin)})
    if problems:
        raise SettingsError(problems)
    return updated


def _validated(
    value: Mapping[str, Any], secrets: SecretSource, problems: list[Problem]
) -> Settings:
    settings = None
    try:
        settings = Settings.model_validate(dict(value), context=Context(secrets))
    except ValidationError as error:
        problems = [*problems, *_model_problems(error)]
    problems = [*problems, *cross_problems(value)]
    if settings is not None:
        problems += settings_problems(settings)
    if settings is None or problems:
        raise SettingsError(problems)
    return settings


def _model_problems(error: ValidationError) -> Iterator[Problem]:
    for details in error.errors(include_url=False, include_input=False):
        location = details["loc"]
        if details["type"] == "invalid_key":  # else a key 1 would read as a position
            location = (*location[:-1], str(location[-1]))
        yield Problem(_path(location), _message(details))


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if part != "[key]":  # pydantic's mark for a fault in a mapping's key itself
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.lstrip(".")


def _message(details: ErrorDetails) -> str:
    kind = details["type"]
    if kind == "extra_forbidden":
        return "unknown key" + _suggestion(_path(details["loc"]))
    if kind == "value_error":
        return str(details["ctx"]["error"])
    pydantics_own = details["msg"].replace("Input should be", "must be").replace("a valid ", "a ")
    return _MESSAGES.get(kind, pydantics_own)


def _suggestion(path: str) -> str:
    """A known key of the same section that the unknown one may have been meant to be."""
    parent, _, key = _generic(path).rpartition(".")
    known = [entry.path.removesuffix("[]").rpartition(".") for entry in entries(Settings)]
    siblings = [name for section, _, name in known if section == parent]
    close = difflib.get_close_matches(key, siblings, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _generic(path: str) -> str:
    """A path with positions, names of policies and patterns left open, as ``schema`` writes them.

    A pattern may hold dots: it is all there is up to the last key.
    """
    path = re.sub(r"^policies\.[^.]+", "policies.NAME", re.sub(r"\[[0-9]+\]", "[]", path))
    return re.sub(r"(?<=\.per_model\.).+(?=\.)", "NAME", path)
