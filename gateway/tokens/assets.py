"""Where tokenizers lie, which of them are what they claim to be, and what a reference names.

``tokenizers/`` holds data: ``manifest.toml`` (what set-up fetches), ``local.toml`` (what an
operator added) and one folder an asset. Every load compares the files with their SHA-256.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.toml"
LOCAL_MANIFEST = "local.toml"
TIKTOKEN_PREFIX = "tiktoken:"
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
PLAIN_FILES = ("tokenizer.json", "tokenizer_config.json", *TEMPLATE_FILES)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class AssetError(Exception):
    """A tokenizer reference that cannot be served. The message is for operators."""


class AssetMissing(AssetError):
    """Known to a manifest, but its files are not there."""


class AssetCorrupt(AssetError):
    """Its files are not the ones the manifest describes."""


@dataclass(frozen=True, slots=True)
class AssetFile:
    """One file of an asset and the SHA-256 it must have."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class TiktokenRule:
    """What a ``.tiktoken`` ranks file does not hold: the split pattern and the special tokens."""

    pattern: str
    special_tokens: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Asset:
    """A manifest entry."""

    name: str
    files: tuple[AssetFile, ...]
    default: bool = True
    package_licence: str = ""
    model_licence: str = ""
    notes: str = ""
    tiktoken: TiktokenRule | None = None


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A resolved reference: a folder with checked files. ``tiktoken`` is set for ranks files."""

    name: str
    folder: Path
    tiktoken: TiktokenRule | None = None

    def path(self, name: str) -> Path | None:
        """The named file's path, or None where the folder has none."""
        path = self.folder / name
        return path if path.is_file() else None


@dataclass(frozen=True, slots=True)
class AssetStore:
    """One ``tokenizers/`` folder and its manifests."""

    root: Path
    assets: Mapping[str, Asset]

    @classmethod
    def open(cls, root: Path | None = None) -> AssetStore:
        """Read the manifests of ``root``, else of the first default place that has one.

        Raises:
            AssetError: no manifest is found, or one cannot be read.
        """
        folder = root or _default_root()
        assets: dict[str, Asset] = {}
        for manifest in (LOCAL_MANIFEST, MANIFEST):  # ours last: a local entry cannot shadow it
            assets.update(_read_manifest(folder / manifest))
        if not assets:
            raise AssetError(f"no tokenizer manifest in {folder}")
        return cls(folder, assets)

    def verify(self, name: str) -> None:
        """Check an asset's sums.

        Raises:
            AssetError: unknown name. ``AssetMissing``, ``AssetCorrupt``: as they say.
        """
        asset = self._asset(name)
        for file in asset.files:
            path = self.root / name / file.name
            if not path.is_file():
                hint = f"run: python scripts/fetch_tokenizers.py {name}"
                raise AssetMissing(f"tokenizer {name}: {file.name} is not there ({hint})")
            if file_sha256(path) != file.sha256:
                raise AssetCorrupt(f"tokenizer {name}: {file.name} has another checksum")

    def resolve(self, reference: str) -> TokenizerFiles:
        """What ``reference`` names: an asset, ``tiktoken:NAME``, or a path to a folder.

        Raises:
            AssetError: it names nothing usable (with its subclasses for missing and altered files).
        """
        name = reference.removeprefix(TIKTOKEN_PREFIX)
        if name in self.assets:
            self.verify(name)
            tiktoken = self.assets[name].tiktoken
            if name != reference and tiktoken is None:
                raise AssetError(f"tokenizer {name} is not a tiktoken one")
            return TokenizerFiles(name, self.root / name, tiktoken)
        if name != reference:
            raise AssetError(f"unknown tiktoken encoding {name}")
        folder = Path(reference)
        if folder.is_dir() and (folder / "tokenizer.json").is_file():
            return TokenizerFiles(folder.name, folder)
        raise AssetError(f"unknown tokenizer {reference}: no such name, no such folder")

    def _asset(self, name: str) -> Asset:
        try:
            return self.assets[name]
        except KeyError:
            raise AssetError(f"unknown tokenizer {name}") from None


def file_sha256(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def add_local(store: AssetStore, name: str, source: Path) -> Asset:
    """Copy a folder's tokenizer files into the store and record their sums in ``local.toml``.

    Raises:
        AssetError: a bad or taken name, or no ``tokenizer.json`` in ``source``.
    """
    if not NAME.fullmatch(name):
        raise AssetError(f"not a usable name: {name!r}")
    if name in store.assets:
        raise AssetError(f"there is a tokenizer {name} already")
    if not (source / "tokenizer.json").is_file():
        raise AssetError(f"no tokenizer.json in {source}")
    target = store.root / name
    target.mkdir(parents=True, exist_ok=True)
    files = []
    for file_name in PLAIN_FILES:
        if (source / file_name).is_file():
            (target / file_name).write_bytes((source / file_name).read_bytes())
            files.append(AssetFile(file_name, file_sha256(target / file_name)))
    asset = Asset(name, tuple(files))
    with (store.root / LOCAL_MANIFEST).open("a", encoding="utf-8") as manifest:
        manifest.write(_local_entry(asset))
    return asset


def _local_entry(asset: Asset) -> str:
    rows = "".join(
        f'  {{ name = "{file.name}", sha256 = "{file.sha256}" }},\n' for file in asset.files
    )
    return f'\n[assets."{asset.name}"]\nkind = "local"\nfiles = [\n{rows}]\n'


def _default_root() -> Path:
    beside_package = Path(__file__).resolve().parents[2] / "tokenizers"
    installed = Path(sys.prefix) / "share" / "poolgate" / "tokenizers"
    for root in (beside_package, installed):
        if (root / MANIFEST).is_file():
            return root
    raise AssetError(f"no tokenizers folder: looked at {beside_package} and {installed}")


def _read_manifest(path: Path) -> dict[str, Asset]:
    if not path.is_file():
        return {}
    try:
        entries = tomllib.loads(path.read_text("utf-8"))["assets"]
        return {name: _read_asset(name, entry) for name, entry in entries.items()}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise AssetError(f"{path} is not a tokenizer manifest: {error!r}") from error


def _read_asset(name: str, entry: Mapping[str, Any]) -> Asset:
    rule = entry.get("tiktoken")
    return Asset(
        name=name,
        files=tuple(AssetFile(item["name"], item["sha256"]) for item in entry["files"]),
        default=entry.get("default", True),
        package_licence=entry.get("package_licence", ""),
        model_licence=entry.get("model_licence", ""),
        notes=entry.get("notes", ""),
        tiktoken=TiktokenRule(rule["pattern"], rule["special_tokens"]) if rule else None,
    )
