from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, BaseModel

from gateway.settings import Settings
from gateway.settings.fields import Duration, Name, Positive, Url, no_duplicates
from gateway.settings.models import Backend, Policy
from gateway.settings.schema import entries, kind_name


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Positive, "positive whole number"),
        (Positive | None, "positive whole number or null"),
        (Literal["a", "b"], "`a`, `b`"),
        (tuple[Url, ...], "list of URL"),
        (Annotated[tuple[Url, ...], AfterValidator(no_duplicates)], "list of URL"),
        (Mapping[Name, Policy], "section by name"),
        (Backend, "section"),
        (Backend | None, "section or null"),
    ],
)
def test_kinds_in_words(annotation: object, words: str) -> None:
    assert kind_name(annotation) == words


class Inner(BaseModel):
    wait: Duration = 1.0


class Outer(BaseModel):
    one: Inner
    many: tuple[Inner, ...] = ()
    named: Mapping[Name, Inner] = {}
    maybe: Inner | None = None


def test_paths_go_into_every_section() -> None:
    assert [entry.path for entry in entries(Outer)] == [
        "one",
        "one.wait",
        "many[]",
        "many[].wait",
        "named.NAME",
        "named.NAME.wait",
        "maybe",
        "maybe.wait",
    ]


def test_every_setting_is_described() -> None:
    assert [entry.path for entry in entries(Settings) if not entry.info.description] == []
