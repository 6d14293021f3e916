from __future__ import annotations

from pathlib import Path

from gateway.settings import NoSecrets, Settings, parse
from gateway.settings.notices import INACTIVE
from gateway.settings.reference import document, table
from gateway.settings.schema import entries

PAGE = Path(__file__).parents[3] / "docs/configuration.md"


def rows() -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in table().splitlines()[2:]]
    return {cells[0].strip("`"): cells[1:] for cells in lines}


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == document(), (
        "renew it: python -m gateway.settings.reference > docs/configuration.md"
    )


def test_every_setting_has_a_row() -> None:
    assert list(rows()) == [entry.path for entry in entries(Settings)]


def test_defaults_are_written_so_that_they_read_back() -> None:
    written = {
        "listen": rows()["listen"][1].strip("`"),
        "backends": [{"name": "a", "url": "http://h", "limit": {}}],
        "drain": rows()["drain"][1].strip("`"),
        "timeouts": {
            key: rows()[f"timeouts.{key}"][1].strip("`")
            for key in ("connect", "first_byte", "idle", "body")
        },
        "body": {"max_bytes": rows()["body.max_bytes"][1].strip("`")},
    }
    assert parse(written, NoSecrets()) == parse({"backends": written["backends"]}, NoSecrets())


def test_what_is_not_active_says_so() -> None:
    for path, cells in rows().items():
        inactive = any(path == key or path.startswith(f"{key}.") for key in INACTIVE)
        assert cells[2].startswith("*Not active.*") is inactive


def test_no_cell_breaks_the_table() -> None:
    assert {line.count("|") for line in table().splitlines()} == {5}
