"""Every renderer against what its engine's own code rendered, recorded by tests/data/rendering.

``dump`` templates print all that a template is given, so a member too many or too few shows even
where a real template would ignore it. The recorder ran with transformers 5.19, which the engines
pin; ours adds aliases for reasoning (``thinking``), which are left out of the comparison.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assets_at_hand import TINY, template
from gateway.rendering import sglang, vllm
from gateway.rendering.common import Render
from gateway.tokens.template import ChatTemplate, TemplateRefused
from gateway.types import ChatPrompt, OpaquePrompt, TemplateCall

DATA = Path(__file__).parents[2] / "data" / "rendering"
CASES = json.loads((DATA / "cases.json").read_text("utf-8"))
RENDERERS: dict[str, Render] = {"vllm": vllm.render, "sglang": sglang.render}
RECORDED = {name: json.loads((DATA / f"{name}.json").read_text("utf-8")) for name in RENDERERS}
TEMPLATES = (TINY, "dump", "dump_parts")
# What is renderable in principle, but depends on server settings or is not worth guessing.
OPAQUE = {
    "vllm": {"kwargs_template": "request_template", "truncation": "truncation"},
    "sglang": {
        "developer_tools": "message_tools",
        "namespace": "tool_namespace",
        "odd_schema": "schema_types",
        "thinking_history": "thinking_history",
        "thinking_off": "thinking",
    },
}


def cases() -> Iterator[Any]:
    for engine in RENDERERS:
        for name in TEMPLATES:
            for case in CASES:
                key = f"{name}/{case['dialect']}/{case['name']}"
                yield pytest.param(engine, name, case, id=f"{engine}/{key}")


def chat_template(name: str) -> ChatTemplate:
    return template() if name == TINY else template(TINY, DATA / "templates" / f"{name}.jinja")


def rendered(engine: str, name: str, case: dict[str, Any]) -> TemplateCall | OpaquePrompt:
    prompt = ChatPrompt(case["dialect"], case["body"])
    return RENDERERS[engine](prompt, chat_template(name).templates)


def comparable(name: str, text: str) -> Any:
    if name == TINY or not text.endswith("}"):  # the latter: a message left open to be continued
        return text
    shown = json.loads(text)
    for message in shown["messages"]:
        message.pop("thinking", None)
        for member in [member for member, value in message.items() if value is None]:
            del message[member]
    shown["tools"] = json.dumps(shown["tools"])  # with its order: templates print tools whole
    return shown


@pytest.mark.parametrize(("engine", "name", "case"), list(cases()))
def test_renders_as_the_engine_does(engine: str, name: str, case: dict[str, Any]) -> None:
    """Case rows 22 and 23 among them: null and parts as content, roles, tools, kwargs."""
    recorded = RECORDED[engine][f"{name}/{case['dialect']}/{case['name']}"]
    body = copy.deepcopy(case["body"])
    call = rendered(engine, name, case)
    assert case["body"] == body  # a renderer must not edit the request
    if isinstance(call, OpaquePrompt):
        assert recorded == {"error": True} or call.reason == OPAQUE[engine].get(case["name"])
        return
    try:
        text = chat_template(name).render(call)
    except TemplateRefused:
        assert recorded == {"error": True}
        return
    if recorded == {"error": True}:
        return  # the engine refuses it for another reason than its length; a count does no harm
    assert comparable(name, text) == comparable(name, recorded["text"])
    assert call.suffix_text == recorded.get("suffix", "")
    assert call.add_special_tokens == recorded.get("add_special_tokens", False)


@pytest.mark.parametrize("engine", RENDERERS)
def test_most_cases_are_rendered_not_refused(engine: str) -> None:
    answers = [
        rendered(engine, name, case)
        for name in TEMPLATES
        for case in CASES
        if "text" in RECORDED[engine][f"{name}/{case['dialect']}/{case['name']}"]
    ]
    opaque = [answer for answer in answers if isinstance(answer, OpaquePrompt)]
    assert len(answers) > 280
    assert len(opaque) <= len(TEMPLATES) * len(OPAQUE[engine])


@pytest.mark.parametrize("engine", RENDERERS)
def test_tools_are_counted(engine: str) -> None:
    """Case row 23: the rendered prompt grows with the tools."""
    body = {"messages": [{"role": "user", "content": "q"}]}
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 40_000}}]
    plain = rendered(engine, TINY, {"dialect": "openai_chat", "body": body})
    armed = rendered(engine, TINY, {"dialect": "openai_chat", "body": {**body, "tools": tools}})
    assert isinstance(plain, TemplateCall)
    assert isinstance(armed, TemplateCall)
    assert len(template().render(armed)) > len(template().render(plain)) + 40_000
