"""The fixed prompts on which our counts are compared with an engine's own.

Small and varied, and ours: they may be shown, and are told by name all the same. The gateway asks
them (``gateway.edge.calibration``), and so does ``poolgate tokenizers verify --backend``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.types import ChatPrompt, TextPrompt

TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "prose": "The quick brown fox jumps over the lazy dog; they'll see we've DONE it. " * 3,
        "code": "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": None}\n\n\n# x\n\tif x:\n\t\tf\n",
        "cjk": "中文没有空格,混合English和数字12345。日本語です。한국어 텍스트 예시\n",
        "scripts": "Привет мир! Ελληνικά. שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก",
        "emoji": "😀😃👩‍👩‍👧‍👦🏳️‍🌈 emoji ⚡ end",
        "normalised": "e\u0301 a\u0300\u0301 \u2126 \u1112\u1161\u11ab \u0958 ﷺ ½ ㎏ ﬁ",
        "special_tokens": "<|im_start|>user\nhi<|im_end|> <s>[INST] x [/INST]</s> <|not_special|>",
        "white_space": "a  b   c    d\n  e \n\n f\t\tg\n\n\n\nh" + " " * 40 + "i\n / slash \n",
        "runs": "a" * 60 + " " + "=" * 50 + "\n" + "-" * 33 + "x",
        "digits": "1234567890 3.14159 0xDEADBEEF 1,000,000 2026-11-30T18:43:00Z ①②③",
        "base64": "U29tZSBiYXNlNjQgdGV4dCB3aXRob3V0IHNwYWNlcyBhdCBhbGw/Kys9PQ==" * 2,
        "json": '{"key":"va\\"lue\\u00e9","nested":{"a":[true,false,null]}}' * 2,
        "identifiers": "CamelCaseIdentifier snake_case_name SCREAMING_CASE kebab-case-x $var 50%",
    }
)


@dataclass(frozen=True, slots=True)
class Sample:
    """A fixed prompt under the name by which it is told."""

    name: str
    prompt: TextPrompt | ChatPrompt

    @property
    def is_chat(self) -> bool:
        """Whether the engine's chat template has a part in its count."""
        return isinstance(self.prompt, ChatPrompt)


def samples() -> Iterator[Sample]:
    """Every fixed prompt: texts, then chats in each dialect some engine has a count for."""
    for name, text in TEXTS.items():
        yield Sample(f"text/{name}", TextPrompt((text,)))
    for dialect, bodies in (
        ("openai_chat", _openai_chats()),
        ("anthropic_messages", _anthropic_messages()),
        ("openai_responses", _openai_responses()),
    ):
        for name, body in bodies.items():
            yield Sample(f"{dialect}/{name}", ChatPrompt(dialect, body))


def _openai_chats() -> dict[str, Any]:
    user, system = _said("user", "Where does the river end?"), _said("system", "Be brief.")
    turns = [user, _said("assistant", "In the sea."), _said("user", "Which one?")]
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "depth", "arguments": '{"place": "lock 7", "unit": "m"}'},
    }
    asked = [user, {"role": "assistant", "content": "", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "call_1", "content": '{"depth": 4.5}'}
    tool = {"type": "function", "function": _tool("parameters")}
    parts = [{"type": "text", "text": "One part"}, {"type": "text", "text": "and another."}]
    thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    return {
        "user": {"messages": [user]},
        "system": {"messages": [system, user]},
        "turns": {"messages": turns},
        "system_turns": {"messages": [system, *turns]},
        "part": {"messages": [{"role": "user", "content": parts[:1]}]},
        "parts": {"messages": [system, {"role": "user", "content": parts}]},
        "special_tokens": {"messages": [_said("user", TEXTS["special_tokens"])]},
        "normalised": {"messages": [_said("user", TEXTS["normalised"])]},
        "white_space": {"messages": [_said("user", f"\n {TEXTS['white_space']} \n")]},
        "tools": {"messages": [user], "tools": [tool]},
        "system_tools": {"messages": [system, *turns], "tools": [tool]},
        "tool_result": {"messages": [*asked, result], "tools": [tool]},
        "thinking_off": {"messages": [user], **thinking},
        "thinking_off_turns": {"messages": [system, *turns], **thinking},
    }


def _anthropic_messages() -> dict[str, Any]:
    user = _said("user", "Where does the river end?")
    turns = [user, _said("assistant", "In the sea."), _said("user", "Which one?")]
    parts = [{"type": "text", "text": "One part"}, {"type": "text", "text": "and another."}]
    use = {"type": "tool_use", "id": "toolu_1", "name": "depth", "input": {"place": "lock 7"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "4.5 m"}
    used = [user, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    tool = _tool("input_schema")
    return {
        "user": {"messages": [user]},
        "system_turns": {"messages": turns, "system": "Be brief."},
        "parts": {"messages": [{"role": "user", "content": parts}]},
        "tools": {"messages": [user], "tools": [tool]},
        "tool_result": {"messages": used, "tools": [tool]},
    }


def _openai_responses() -> dict[str, Any]:
    parts = [{"type": "input_text", "text": "One part"}, {"type": "input_text", "text": "more."}]
    return {
        "text": {"input": "Where does the river end?"},
        "instructions": {"input": "Where does the river end?", "instructions": "Be brief."},
        "parts": {"input": [{"type": "message", "role": "user", "content": parts}]},
    }


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _tool(schema_field: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"place": {"type": "string"}, "unit": {"type": "string"}},
        "required": ["place"],
    }
    return {"name": "depth", "description": "Water depth at a place.", schema_field: schema}
