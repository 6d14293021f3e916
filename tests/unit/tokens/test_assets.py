from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tokenizers

from assets_at_hand import TINY, store
from gateway.tokens.assets import (
    AssetCorrupt,
    AssetError,
    AssetMissing,
    AssetStore,
    add_local,
    file_sha256,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def own_store(tmp_path: Path) -> AssetStore:
    """A folder with the real manifest and only our own tokenizer."""
    shutil.copy(store().root / "manifest.toml", tmp_path)
    shutil.copytree(store().root / TINY, tmp_path / TINY)
    return AssetStore.open(tmp_path)


def test_default_folder_is_found_and_ours_is_sound() -> None:
    assert store().root == ROOT / "tokenizers"
    store().verify(TINY)


def test_folder_holds_data_only_and_does_not_shadow_the_library() -> None:
    assert not list((ROOT / "tokenizers").rglob("*.py"))
    assert hasattr(tokenizers, "Tokenizer")
    assert ROOT not in Path(tokenizers.__file__).parents or ".venv" in tokenizers.__file__


def test_every_entry_says_where_it_comes_from_and_under_what_licence() -> None:
    for asset in store().assets.values():
        if asset.package_licence:
            assert asset.model_licence
            assert asset.notes
        assert all(len(file.sha256) == 64 for file in asset.files)


def test_defaults_are_permissive() -> None:
    assets = store().assets.values()
    licences = {asset.model_licence for asset in assets if asset.default and asset.model_licence}
    assert licences <= {"Apache-2.0", "MIT"}


def test_missing_files_say_how_to_fetch(own_store: AssetStore) -> None:
    with pytest.raises(AssetMissing, match=r"fetch_tokenizers\.py qwen3"):
        own_store.resolve("qwen3")


def test_altered_file_is_refused(own_store: AssetStore) -> None:
    path = own_store.root / TINY / "tokenizer_config.json"
    path.write_text(path.read_text().replace("assistant", "attacker"))
    with pytest.raises(AssetCorrupt, match="tokenizer_config"):
        own_store.resolve(TINY)


def test_reference_can_be_a_folder(own_store: AssetStore) -> None:
    files = own_store.resolve(str(own_store.root / TINY))
    assert files.path("tokenizer.json") is not None
    assert files.path("chat_template.jinja") is None


@pytest.mark.parametrize("reference", ["nothing", "", "/", "tiktoken:nothing", f"tiktoken:{TINY}"])
def test_unknown_reference_is_an_error(own_store: AssetStore, reference: str) -> None:
    with pytest.raises(AssetError):
        own_store.resolve(reference)


def test_no_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="no tokenizer manifest"):
        AssetStore.open(tmp_path)


@pytest.mark.parametrize("text", ["not toml [", "[other]\nx = 1", "[assets.x]\nkind = 'npm'"])
def test_broken_manifest_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.toml").write_text(text)
    with pytest.raises(AssetError):
        AssetStore.open(tmp_path)


def test_added_folder_is_recorded_and_checked(own_store: AssetStore) -> None:
    added = add_local(own_store, "mine", own_store.root / TINY)
    reopened = AssetStore.open(own_store.root)
    reopened.verify("mine")
    assert {file.name for file in added.files} == {"tokenizer.json", "tokenizer_config.json"}
    (own_store.root / "mine" / "tokenizer.json").write_text("{}")
    with pytest.raises(AssetCorrupt):
        reopened.resolve("mine")


@pytest.mark.parametrize("name", [TINY, "qwen3", "../up", "", "a/b", ".hidden", "x\n[assets.y]"])
def test_bad_or_taken_names_are_refused(own_store: AssetStore, name: str) -> None:
    with pytest.raises(AssetError):
        add_local(own_store, name, own_store.root / TINY)


def test_adding_needs_a_tokenizer(own_store: AssetStore, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(AssetError, match=r"no tokenizer\.json"):
        add_local(own_store, "mine", tmp_path / "empty")


def test_sum_is_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert file_sha256(tmp_path / "f") == empty
