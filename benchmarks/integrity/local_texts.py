"""Text to measure on that every development machine has: docstrings, manual pages, generated words.

Nothing is fetched and nothing is kept: results hold numbers only. A *source* is a package or a
manual page, and stands for one tenant or one subject.
"""

from __future__ import annotations

import ast
import gzip
import random
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.simulate.text import FILLER_TEXT

MANUALS = Path("/usr/share/man/man1"), Path("/usr/share/man/man8"), Path("/usr/share/man/man5")
LEAST_CHARS = 20_000  # of a source
MOST_CHARS = 400_000
_ROFF = re.compile(r"^[.'].*$|\\f.|\\[&|^]", re.MULTILINE)


def package_docs() -> Mapping[str, str]:
    """Docstrings by top-level package, of the standard library and all that is installed."""
    places = (Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib")))
    found: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for root in places:
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root).parts[0]
            if root == places[0] and name == "site-packages":
                continue
            if "test" in path.parts or "tests" in path.parts or sizes.get(name, 0) > MOST_CHARS:
                continue
            for text in _docstrings(path):
                found.setdefault(name, []).append(text)
                sizes[name] = sizes.get(name, 0) + len(text)
    return {
        name: "\n".join(parts) for name, parts in sorted(found.items()) if sizes[name] > LEAST_CHARS
    }


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) > 80:
                yield text


def manual_pages() -> Mapping[str, str]:
    """Manual pages by name, without their formatting."""
    pages = {}
    for folder in MANUALS:
        for path in sorted(folder.glob("*.gz")) if folder.is_dir() else ():
            if path.is_symlink():
                continue
            with gzip.open(path, "rt", errors="replace") as page:
                text = _ROFF.sub("", page.read())
            if len(text) > 1_000:
                pages[path.name] = text
    return pages


def licences() -> list[str]:
    """The licence texts of what is installed: what an operator would declare to be public."""
    places = Path(sysconfig.get_path("purelib")).glob("*.dist-info/**/*")
    named = (path for path in sorted(places) if path.name.upper().startswith(("LICEN", "COPYING")))
    return [path.read_text("utf-8", "replace") for path in named if path.is_file()]


def chunks(text: str, size: int) -> Iterator[str]:
    """The text in pieces of ``size`` characters, as if each were an answer."""
    for start in range(0, len(text) - size // 2, size):
        yield text[start : start + size]


def filler(words: int, rng: random.Random) -> str:
    """Words of our own in no order: surely nobody's text."""
    vocabulary = FILLER_TEXT.split()
    return " ".join(rng.choice(vocabulary) for _ in range(words))


def python_version() -> str:
    """Which Python's documentation was read."""
    return ".".join(map(str, sys.version_info[:3]))
