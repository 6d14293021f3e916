"""Rules of the layout that no linter has: module size, no globals, tests beside their modules.

    python scripts/check_layout.py

Prints each breach and exits 1 if there is one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400


def _is_mutable(node: ast.stmt) -> bool:
    """Whether a module-level statement binds a list or a set (``__all__`` apart)."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    exports = any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)
    mutable = isinstance(node.value, ast.List | ast.Set | ast.ListComp | ast.SetComp)
    return mutable and not exports


def breaches() -> Iterator[str]:
    """Every breach as a line for a person."""
    for path in sorted(ROOT.joinpath("gateway").rglob("*.py")):
        name = path.relative_to(ROOT)
        source = path.read_text("utf-8")
        lines = source.count("\n")
        if lines > MAX_LINES:
            yield f"{name}: {lines} lines, at most {MAX_LINES}"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Global):
                yield f"{name}:{node.lineno}: global statement"
        for node in ast.parse(source).body:
            if _is_mutable(node):
                yield f"{name}:{node.lineno}: mutable module state"
    for path in ROOT.joinpath("tokenizers").rglob("*.py"):
        yield f"{path.relative_to(ROOT)}: tokenizers/ holds data only"


def main() -> int:
    """Report and return the exit code."""
    found = list(breaches())
    print("\n".join(found) or "layout: no breach")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
