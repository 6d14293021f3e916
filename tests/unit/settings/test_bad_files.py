"""Every refusal has a file that causes it, whose first line says which."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import SettingsError, parse

FILES = sorted((Path(__file__).parents[2] / "data/config/bad").glob("*.yaml"))
MARK = "# expect: "
ENVIRONMENT = {"ENGINE_KEY": "LEAKMARK", "EMPTY": ""}
SECRET_FILES = {"empty": "\n", "two-lines": "LEAKMARK\nsecond\n"}


class Secrets:
    """A small world of secrets, most of them at fault."""

    def env(self, name: str) -> str | None:
        return ENVIRONMENT.get(name)

    def file(self, path: str) -> str:
        if path == "binary":
            return b"\xff".decode()
        if path not in SECRET_FILES:
            raise FileNotFoundError(2, "no such file")
        return SECRET_FILES[path]


def faults(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse(text, Secrets())
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_file_has_exactly_the_faults_it_names(file: Path) -> None:
    text = file.read_text()
    first = text.splitlines()[0]
    assert first.startswith(MARK)
    assert faults(text) == first.removeprefix(MARK).split(" || ")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_message_repeats_a_secret(file: Path) -> None:
    assert "LEAKMARK" not in "".join(faults(file.read_text()))


def test_there_are_files() -> None:
    assert len(FILES) > 80
