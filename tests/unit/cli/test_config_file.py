from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.config_file import ProcessSecrets, read_settings
from gateway.settings import SettingsError

TEXT = 'backends: [{name: a, url: "http://h:1", api_key: "%s"}]\n'


def api_key(path: Path, environment: dict[str, str] | None = None) -> str | None:
    key = read_settings(path, environment).backends[0].api_key
    return key and key.get_secret_value()


def test_secrets_come_from_the_given_environment(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(TEXT % "${SOME_KEY}")
    assert api_key(file, {"SOME_KEY": "k"}) == "k"


def test_the_process_environment_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(TEXT % "${SOME_KEY}")
    monkeypatch.setenv("SOME_KEY", "from-the-process")
    assert api_key(file) == "from-the-process"
    assert api_key(file, {"SOME_KEY": "given"}) == "given"


def test_a_relative_secret_file_starts_at_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/key").write_text("from-a-file\n")
    file = tmp_path / "c.yaml"
    file.write_text(TEXT % "file:secrets/key")
    monkeypatch.chdir("/")
    assert api_key(file, {}) == "from-a-file"
    file.write_text(TEXT % f"file:{tmp_path}/secrets/key")
    assert api_key(file, {}) == "from-a-file"


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("\ufeff" + TEXT % "k", encoding="utf-8")
    assert api_key(file, {}) == "k"


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), (b"\xff\xfe", "not UTF-8 text")]
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "c.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        read_settings(file, {})


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Is a directory"):
        read_settings(tmp_path, {})


def test_secrets_files_raise_what_the_protocol_says(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    source = ProcessSecrets({}, tmp_path)
    with pytest.raises(FileNotFoundError):
        source.file("nowhere")
    with pytest.raises(UnicodeError):
        source.file("binary")
    assert source.env("X") is None
