"""Prompts as text or token ids (row 21)."""

import pytest

from gateway.dialects import prompts
from gateway.errors import Kind, Rejection
from gateway.types import ChatPrompt, OpaquePrompt, TextPrompt, TokenIdPrompt


@pytest.mark.parametrize(
    ("value", "prompt"),
    [
        ("a", TextPrompt(("a",))),
        ("", TextPrompt(("",))),
        (["a", ""], TextPrompt(("a", ""))),
        ([0, 5, 3], TokenIdPrompt((3,), 5)),
        ([[1], [2, 9]], TokenIdPrompt((1, 2), 9)),
        ([2**31 - 1], TokenIdPrompt((1,), 2**31 - 1)),
    ],
)
def test_row_21_what_a_prompt_may_be(value, prompt):
    assert prompts.text_or_ids(value, "prompt") == prompt


@pytest.mark.parametrize(
    "value",
    [
        [-1], [[-1]], [5279552648203111001], [2**31], [1.5], [True], [[1, True]], [1, "a"],
        ["a", 1], [], [[]], [[1], []], [["a"]], [[1], 2], [None], None, 1, {}, [{}], [[[1]]],
    ],
)  # fmt: skip
def test_row_21_what_it_may_not_be(value):
    with pytest.raises(Rejection) as caught:
        prompts.text_or_ids(value, "prompt")
    assert caught.value.param == "prompt"


def test_special_tokens_are_the_request_s_word():
    assert prompts.text_or_ids("a", "prompt", False).add_special_tokens is False


@pytest.mark.parametrize(
    ("prompt", "count"),
    [
        (TextPrompt(("a", "b")), 2),
        (TokenIdPrompt((1, 2, 3), 9), 3),
        (ChatPrompt("openai_chat", {}), 1),
        (OpaquePrompt("image"), 1),
    ],
)
def test_items(prompt, count):
    assert prompts.items(prompt) == count


@pytest.mark.parametrize("name", ["truncate_prompt_tokens", "truncation_side"])
def test_fields_that_make_the_engine_truncate(name):
    assert prompts.truncation({name: -1}) == OpaquePrompt("engine_truncates")
    assert prompts.truncation({name: None}) is None


@pytest.mark.parametrize("value", ["", ["a", ""], [""]])
def test_an_empty_prompt_is_refused_by_name(value):
    with pytest.raises(Rejection, match="No prompt in 'text' may be empty") as refusal:
        prompts.refuse_empty(value, "text")
    assert refusal.value.kind is Kind.MALFORMED
    assert refusal.value.param == "text"


@pytest.mark.parametrize("value", [" ", ["a", " "], [1], [[1], [2]]])
def test_a_prompt_that_is_not_empty_passes(value):
    prompts.refuse_empty(value, "text")
