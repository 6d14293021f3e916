from __future__ import annotations

from typing import Any

import pytest

from gateway.rendering.common import Templates, TemplateTraits
from gateway.rendering.generic import SHAPING, render
from gateway.types import ChatPrompt, OpaquePrompt, TemplateCall

TEMPLATES = Templates(TemplateTraits(""))
USER = {"role": "user", "content": "q"}


def ask(dialect: str = "openai_chat", **body: Any) -> TemplateCall | OpaquePrompt:
    return render(ChatPrompt(dialect, {"messages": [USER], **body}), TEMPLATES)


def test_plain_conversation() -> None:
    turns = [{"role": "system", "content": "s"}, USER, {"role": "assistant", "content": "a"}, USER]
    assert ask(messages=turns, temperature=1, max_tokens=5) == TemplateCall(messages=turns)


@pytest.mark.parametrize("member", SHAPING)
def test_members_engines_may_render_are_opaque(member: str) -> None:
    assert ask(**{member: True}) == OpaquePrompt("engine_rendering")


@pytest.mark.parametrize(
    "messages",
    [[], [{**USER, "name": "x"}], [{"role": "tool", "content": "x"}],
     [USER, {"role": "assistant", "content": "begun"}],
     [{"role": "user", "content": [{"type": "text", "text": "x"}]}]],
)  # fmt: skip
def test_messages_engines_treat_differently_are_opaque(messages: Any) -> None:
    assert ask(messages=messages) == OpaquePrompt("engine_rendering")


def test_other_dialects_are_opaque() -> None:
    assert ask("anthropic_messages") == OpaquePrompt("engine_rendering")
