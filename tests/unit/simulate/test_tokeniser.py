"""Rules read from SGLang 0.5.23's wheel, on the bundled tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.simulate.engine import EngineRefusal
from gateway.simulate.settings import bundled_tokenizer
from gateway.simulate.tokeniser import Chat, Detokeniser, Tokeniser

TOKENISER = Tokeniser(bundled_tokenizer())


def rendered(messages: list[dict[str, Any]], **options: Any) -> list[int]:
    return TOKENISER.encode_chat(Chat(messages, **options))


def plain(text: str) -> list[int]:
    return TOKENISER.encode([text])[0]


def test_a_conversation_is_its_template():
    system = {"role": "system", "content": "Be brief."}
    tokens = rendered([system, {"role": "user", "content": "Hi"}])
    assert tokens == plain(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a b"),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}], "a"),
        ([], ""),
        (None, ""),
    ],
)
def test_content_parts_are_joined_with_a_space(content: Any, text: str):
    assert rendered([{"role": "user", "content": content}]) == rendered(
        [{"role": "user", "content": text}]
    )


def test_tool_call_arguments_become_objects():
    def chat(arguments: Any) -> list[dict[str, Any]]:
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": [{"type": "text", "text": "1"}]},
        ]

    assert rendered(chat('{"x": 1}')) == rendered(chat({"x": 1}))
    for bad in ("{", "[1]"):
        with pytest.raises(EngineRefusal, match="must be"):
            rendered(chat(bad))


def test_a_trailing_assistant_is_continued_or_becomes_a_users():
    start, end = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}
    assert rendered([start, end]) == rendered([start, {"role": "user", "content": "Well"}])
    assert rendered([start, end], continue_final=True) == rendered([start]) + plain("Well")
    as_given = rendered([start, end], generation_prompt=False)
    assert as_given == plain(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell<|im_end|>\n"
    )


def test_template_arguments_reach_the_template():
    question = [{"role": "user", "content": "Hi"}]
    tail = plain("<think>\n\n</think>\n\n")
    assert rendered(question, kwargs={"enable_thinking": False}) == rendered(question) + tail


def test_special_tokens_in_a_text_count_as_one():
    assert plain("<|im_end|>") == [TOKENISER.eos]
    assert TOKENISER.eos in TOKENISER.special
    assert TOKENISER.decode([TOKENISER.eos]) == ""


def test_drift_adds_tokens_to_every_conversation():
    question = [{"role": "user", "content": "Hi"}]
    drifted = Tokeniser(bundled_tokenizer(), drift=True).encode_chat(Chat(question))
    assert len(drifted) > len(rendered(question))


def test_a_template_that_iterates_over_content_gets_the_parts(tmp_path: Path):
    source = bundled_tokenizer()
    config = json.loads((source / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% for message in messages %}{% for part in message['content'] %}[{{ part.text }}]"
        "{% endfor %}{% endfor %}"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    tokeniser = Tokeniser(tmp_path)
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    tokens = tokeniser.encode_chat(Chat([{"role": "user", "content": parts}]))
    assert tokeniser.decode(tokens) == "[a][b]"
    assert not tokeniser.inline_system


def test_what_cannot_be_read_is_refused(tmp_path: Path):
    with pytest.raises(OSError, match="tokenizer_config"):
        Tokeniser(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokeniser(tmp_path)


@given(st.text(max_size=60))
def test_pieces_join_to_the_whole_text(text: str):
    tokens = plain(text)
    pieces = Detokeniser(TOKENISER)
    joined = "".join([*map(pieces.add, tokens), pieces.flush()])
    assert joined == TOKENISER.decode(tokens)


@given(st.lists(st.integers(0, 2047), max_size=40))
def test_pieces_join_for_any_tokens(tokens: list[int]):
    pieces = Detokeniser(TOKENISER)
    joined = "".join([*map(pieces.add, tokens), pieces.flush()])
    assert joined == TOKENISER.decode(tokens)
