from __future__ import annotations

from typing import Any

import pytest

from gateway.settings import NoSecrets, Settings, parse
from gateway.settings.notices import INACTIVE
from gateway.settings.schema import entries

BACKENDS = [{"name": "a", "url": "http://h:1"}]
DEFAULTS: dict[str, Any] = {
    "limits.when_store_fails": "refuse",
    "limits.timeout": "100ms",
    "integrity.cached_tokens": {"action": "quarantine"},
    "integrity.sentinel": {},
    "integrity.fingerprints": {},
    "integrity.quarantine": {"max_share": 0.5},
}


def notices_of(*paths: str) -> tuple[str, ...]:
    written: dict[str, Any] = {"backends": BACKENDS}
    for path in paths:
        section, key = path.split(".")
        written.setdefault(section, {})[key] = DEFAULTS[path]
    return parse(written, NoSecrets()).notices


@pytest.mark.parametrize("path", INACTIVE)
def test_a_written_setting_without_effect_is_told_even_at_its_default(path: str) -> None:
    assert notices_of(path) == (f"{path} is not active: {INACTIVE[path]}",)


def test_defaults_that_are_not_written_are_not_told() -> None:
    assert notices_of() == ()


def test_all_at_once_in_order() -> None:
    assert [line.split()[0] for line in notices_of(*reversed(INACTIVE))] == list(INACTIVE)


def test_null_is_as_good_as_not_written() -> None:
    written = {"backends": BACKENDS, "integrity": {"sentinel": None}}
    assert parse(written, NoSecrets()).notices == ()


def test_only_known_settings_are_listed() -> None:
    assert set(INACTIVE) <= {entry.path for entry in entries(Settings)}
