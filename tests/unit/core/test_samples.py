"""The fixed prompts: few, small, named apart, and sendable."""

import msgspec
import pytest

from gateway.core.samples import samples
from gateway.engines.detect import ENGINES
from gateway.types import TextPrompt

ALL = tuple(samples())


def test_they_are_few_and_their_names_differ():
    assert 30 <= len(ALL) <= 40
    assert len({sample.name for sample in ALL}) == len(ALL)
    assert {sample.name.split("/")[0] for sample in ALL} == {
        "text",
        "openai_chat",
        "anthropic_messages",
        "openai_responses",
    }


@pytest.mark.parametrize("sample", ALL, ids=lambda sample: sample.name)
def test_each_is_small_and_one_question(sample):
    prompt = sample.prompt
    body = prompt.texts if isinstance(prompt, TextPrompt) else prompt.body
    assert len(msgspec.json.encode(body)) < 1024
    assert sample.is_chat is not isinstance(prompt, TextPrompt)
    for engine in ENGINES:
        calls = engine.oracle(prompt, "m")
        assert calls is None or len(calls) == 1


def test_no_question_asks_for_a_generation():
    generating = {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/generate"}
    asked = {
        call.probe.path
        for engine in ENGINES
        for sample in ALL
        for call in engine.oracle(sample.prompt, "m") or ()
    }
    assert asked
    assert not asked & generating
