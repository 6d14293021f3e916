"""Every path a configuration can hold, read off the models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.settings.fields import Kind


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting: its path (``backends[].limit.refresh``), its field and what it can be."""

    path: str
    info: FieldInfo
    kind: str
    value_kind: Kind | None
    section: type[BaseModel] | None


def entries(model: type[BaseModel], prefix: str = "") -> Iterator[Entry]:
    """Every setting under ``model``, in the order of the models, sections before their members."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        annotation = _whole(info)
        found = _section(annotation)
        suffix, section = found if found else ("", None)
        yield Entry(path + suffix, info, kind_name(annotation), _inner_kind(annotation), section)
        if section:
            yield from entries(section, f"{path}{suffix}.")


def kind_name(annotation: Any) -> str:
    """What an annotation admits, in words for the reference."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kind = _own_kind(annotation)
        return kind.name if kind else kind_name(args[0])
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in args)
    if origin in {Union, UnionType}:
        return " or ".join(kind_name(arg) for arg in args)
    if origin is tuple:
        return f"list of {kind_name(args[0])}"
    if origin is Mapping:
        return f"{kind_name(args[1])} by {kind_name(args[0])}"
    return "null" if annotation is NoneType else "section"


def _whole(info: FieldInfo) -> Any:
    """The annotation with the metadata that pydantic moved off it."""
    annotation: Any = info.annotation
    for extra in info.metadata:
        annotation = Annotated[annotation, extra]
    return annotation


def _own_kind(annotation: Any) -> Kind | None:
    extras = getattr(annotation, "__metadata__", ())
    return next((extra for extra in extras if isinstance(extra, Kind)), None)


def _inner_kind(annotation: Any) -> Kind | None:
    """The kind of the values, also inside a list or an optional."""
    inner = (_inner_kind(arg) for arg in get_args(annotation))
    return _own_kind(annotation) or next((kind for kind in inner if kind), None)


def _section(annotation: Any) -> tuple[str, type[BaseModel]] | None:
    """The model inside an annotation, and how paths go into it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "", annotation
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _section(args[0])
    if origin in {Union, UnionType}:
        return next((found for arg in args if (found := _section(arg))), None)
    if origin in {tuple, Mapping}:
        inner = _section(args[0] if origin is tuple else args[1])
        return ("[]" if origin is tuple else ".NAME", inner[1]) if inner else None
    return None
