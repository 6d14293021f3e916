"""What both recorders share: the cases, the templates, and how the outcome is written."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TINY = HERE.parents[2] / "tokenizers" / "poolgate-tiny"
TEMPLATES = ("poolgate-tiny", "dump", "dump_parts")

Render = Callable[[Any, str, dict[str, Any]], dict[str, Any]]


def record(name: str, load_tokenizer: Callable[[Path], Any], render: Render) -> None:
    """Render every case with every template; an engine's refusal is recorded as an error."""
    cases = json.loads((HERE / "cases.json").read_text("utf-8"))
    lines = []
    for template in TEMPLATES:
        tokenizer = load_tokenizer(TINY)
        tokenizer.name_or_path = template  # engines cache what they find out by it
        if template != TINY.name:
            tokenizer.chat_template = (HERE / "templates" / f"{template}.jinja").read_text("utf-8")
        for case in cases:
            try:
                outcome = render(tokenizer, case["dialect"], copy.deepcopy(case["body"]))
            except Exception:
                outcome = {"error": True}
            key = json.dumps(f"{template}/{case['dialect']}/{case['name']}")
            lines.append(f"{key}: {json.dumps(outcome, ensure_ascii=False)}")
    (HERE / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
