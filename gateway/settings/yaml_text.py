"""YAML to plain values: the 1.2 core schema, and no key written twice.

PyYAML follows YAML 1.1, in which ``off`` is false and ``12:30`` is 750. A configuration in which
``cache_salt: off`` is not the word ``off`` is a trap, so only the core schema's scalars are typed
(YAML 1.2.2, section 10.3.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from gateway.settings.problems import Problem

_CORE_SCALARS: tuple[tuple[str, str, Sequence[str]], ...] = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?(0|[1-9][0-9]{0,17})", "-+0123456789"),
    ("tag:yaml.org,2002:float", r"[-+]?[0-9]{1,18}\.[0-9]{1,18}", "-+0123456789"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """PyYAML's registry of implicit types, by a scalar's first character."""
    registry: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, pattern, first_characters in _CORE_SCALARS:
        for first in first_characters:
            registry.setdefault(first, []).append((tag, re.compile(rf"(?:{pattern})\Z")))
    return registry


class _CoreLoader(yaml.SafeLoader):
    """``SafeLoader`` with the core schema's implicit types only."""

    yaml_implicit_resolvers = _resolvers()


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same on libyaml, where PyYAML was built with it: its own parser takes a tenant 0.5 ms."""

    yaml_implicit_resolvers = _resolvers()


def load(text: str) -> tuple[Any, list[Problem]]:
    """The document's value, and what is wrong with the text.

    After a syntax error the value is None; after a key written twice it is still given, so that
    the other faults can be listed too.
    """
    try:
        return _read(_FastLoader(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return _read_slowly(text)  # which decides, and tells faults in words of its own


def _read_slowly(text: str) -> tuple[Any, list[Problem]]:
    try:
        return _read(_CoreLoader(text))
    except yaml.MarkedYAMLError as error:
        return None, [Problem("", _syntax_message(error))]
    except (yaml.YAMLError, ValueError):  # ValueError: an explicit tag on text it does not fit
        return None, [Problem("", "is not readable as YAML text")]
    except RecursionError:
        return None, [Problem("", "is nested too deeply")]


def _read(loader: yaml.SafeLoader) -> tuple[Any, list[Problem]]:
    try:
        node = loader.get_single_node()
        if node is None:
            return None, [Problem("", "the file is empty")]
        problems = list(_repeated_keys(node, "", set()))  # first: constructing unfolds merges
        return loader.construct_document(node), problems
    finally:
        loader.dispose()


def _repeated_keys(node: yaml.Node, path: str, seen: set[int]) -> Iterator[Problem]:
    if id(node) in seen:  # an alias: its keys were reported where the anchor stands
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated_keys(item, f"{path}[{index}]", seen)
    elif isinstance(node, yaml.MappingNode):
        yield from _repeated_in(node, path, seen)


def _repeated_in(node: yaml.MappingNode, path: str, seen: set[int]) -> Iterator[Problem]:
    lines: dict[str, int] = {}
    for key, value in node.value:
        where = f"{path}.{key.value}".lstrip(".") if isinstance(key.value, str) else path
        line = key.start_mark.line + 1
        if where in lines and isinstance(key.value, str):
            yield Problem(where, f"written twice, on lines {lines[where]} and {line}")
        lines[where] = line
        yield from _repeated_keys(value, where, seen)


def _syntax_message(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{place}{error.problem or error.context or 'is not valid YAML'}"
