from __future__ import annotations

import pytest

from gateway.settings.sources import NoSecrets, resolve


class Source:
    def env(self, name: str) -> str | None:
        return {"SET": "value", "EMPTY": "", "NESTED": "${SET}"}.get(name)

    def file(self, path: str) -> str:
        if path == "locked":
            raise PermissionError(13, "Permission denied")
        return {"one": "text\n", "inner": "a\nb\n", "spaces": " x "}[path]


@pytest.mark.parametrize(
    ("written", "secret"),
    [
        ("plain", "plain"),
        ("${SET}", "value"),
        ("${NESTED}", "${SET}"),  # what a reference yields is not read as one again
        ("$SET", "$SET"),
        ("file:one", "text"),
        ("file:inner", "a\nb"),
        ("file:spaces", " x "),
    ],
)
def test_what_a_reference_stands_for(written: str, secret: str) -> None:
    assert resolve(written, Source()) == secret


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("${UNSET}", "environment variable UNSET is not set"),
        ("${EMPTY}", "environment variable EMPTY is empty"),
        ("x${SET}", "must be one"),
        ("${SET}x", "must be one"),
        ("${}", "must be one"),
        ("${SET}\n", "must be one"),
        ("file:locked", "cannot read locked: Permission denied"),
        ("", "is empty"),
        (None, "must be text"),
        (["a"], "must be text"),
    ],
)
def test_references_that_lead_nowhere(written: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(written, Source())


def test_a_source_without_secrets_knows_none() -> None:
    for reference in ("${SET}", "file:one"):
        with pytest.raises(ValueError, match=r"SET is not set|cannot read one"):
            resolve(reference, NoSecrets())
