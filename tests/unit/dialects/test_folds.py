"""Usage as the dialects other than chat report it, piece by piece."""

import json

import pytest

from gateway.dialects.anthropic_messages import MessageFold
from gateway.dialects.openai_common import ChoicesFold
from gateway.dialects.openai_responses import ResponseFold
from gateway.dialects.sglang_generate import MetaInfoFold
from gateway.types import Usage


def started(usage):
    return {"type": "message_start", "message": {"id": "m", "usage": usage}}


def delta(usage):
    return {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}


@pytest.mark.parametrize(
    ("first", "last", "usage"),
    [
        # SGLang and llama.cpp: the uncached part only, and nothing new at the end
        ({"input_tokens": 1, "cache_read_input_tokens": 14}, {"output_tokens": 3}, (15, 3, 14)),
        # vLLM 0.32: everything, then again with zeros
        (
            {"input_tokens": 15},
            {
                "input_tokens": 15,
                "output_tokens": 3,
                "cache_read_input_tokens": 0,
                "cache_creation_input_tokens": 0,
            },
            (15, 3, 0),
        ),
        # vLLM 0.33: everything, then what was cached taken out of it
        ({"input_tokens": 15}, {"input_tokens": 1, "cache_read_input_tokens": 14}, (15, None, 14)),
        # vLLM 0.32 with prompt details, where the prompt fills its blocks to the last token
        (
            {"input_tokens": 256, "output_tokens": 0},
            {
                "input_tokens": 0,
                "output_tokens": 1,
                "cache_creation_input_tokens": 128,
                "cache_read_input_tokens": 128,
            },
            (256, 1, 128),
        ),
        # SGLang: zeros first
        (
            {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0},
            {"input_tokens": 1, "cache_read_input_tokens": 14, "output_tokens": 3},
            (15, 3, 14),
        ),
        # what is not repeated stays
        (
            {"input_tokens": 1, "cache_read_input_tokens": 14},
            {"input_tokens": 1, "output_tokens": 3},
            (15, 3, 14),
        ),
        # zeros last say nothing
        (
            {"input_tokens": 1, "cache_read_input_tokens": 14},
            {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 3},
            (15, 3, 14),
        ),
        ({"input_tokens": 9, "cache_creation_input_tokens": 6}, {}, (15, None, None)),
        ({"input_tokens": 0, "output_tokens": 2}, {}, (None, 2, None)),
    ],
)
def test_anthropic_usage_adds_up(first, last, usage):
    fold = MessageFold()
    fold.event(started(first))
    fold.event(delta(last))
    assert fold.usage() == Usage(*usage)
    assert fold.finish == {0: "end_turn"}
    assert not fold.terminal
    fold.event({"type": "message_stop"})
    assert fold.terminal


def test_anthropic_without_usage_reports_none():
    fold = MessageFold()
    for value in ({"type": "message_start"}, {"type": "message_delta", "usage": None}, {}):
        fold.event(value)
    assert fold.usage() is None


def test_a_response_may_leave_out_anything():
    fold = ResponseFold()
    for value in ({}, {"response": None}, {"response": {"usage": None, "status": 1}}):
        fold.event(value)
    assert (fold.usage(), fold.terminal, fold.failed) == (None, False, False)
    fold.event({"type": "response.completed", "response": {"status": "completed", "usage": {}}})
    assert (fold.usage(), fold.terminal) == (Usage(), True)


def meta(prompt, completion, index=None, finish=None, cached=0):
    value = {
        "meta_info": {
            "id": f"r{index}",
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "cached_tokens": cached,
            "finish_reason": finish and {"type": finish},
        }
    }
    return json.loads(json.dumps(value if index is None else value | {"index": index}))


def test_generate_sums_a_batch_by_index_and_counts_each_prompt_once():
    fold = MetaInfoFold(items=2, choices=2)
    for index, prompt in enumerate([5, 5, 8, 8]):
        assert fold.usage() is None or fold.usage().prompt_tokens is None
        fold.event(meta(prompt, 1, index))
        fold.event(meta(prompt, 3, index, "length", cached=2))
    assert fold.usage() == Usage(13, 12, None)
    assert fold.finished


def test_generate_in_a_whole_answer_goes_by_place():
    fold = MetaInfoFold(items=2, choices=1)
    fold.body(meta(5, 3, finish="stop"))
    assert not fold.finished
    fold.body(meta(8, 4, finish="length", cached=4))
    assert fold.usage() == Usage(13, 7, 4)
    assert fold.finish == {0: "stop", 1: "length"}


def test_generate_without_numbers_reports_none():
    fold = MetaInfoFold(items=1, choices=1)
    fold.event({"text": "x"})
    assert fold.usage() is None
    fold.event({"meta_info": {"prompt_tokens": None}})
    assert fold.usage() == Usage()


@pytest.mark.parametrize(("order", "prompt"), [((0, 1), 3), ((1, 0), 3)])
def test_a_batch_in_a_stream_reports_its_first_prompt(order, prompt):
    """llama.cpp: each prompt's last chunk has its own usage; whole answers tell of the first."""
    fold = ChoicesFold(2, strip=False)
    for index in order:
        choice = {"index": index, "text": "", "finish_reason": "length"}
        usage = {"prompt_tokens": 3 - index, "completion_tokens": 1}
        fold.event({"choices": [choice], "usage": usage})
    assert fold.usage().prompt_tokens == prompt


def test_usage_without_a_choice_is_of_all():
    """vLLM and SGLang, also with continuous usage on every chunk before."""
    fold = ChoicesFold(2, strip=False)
    for index in (0, 1):
        fold.event({"choices": [{"index": index}], "usage": {"prompt_tokens": 1}})
    fold.event({"choices": [], "usage": {"prompt_tokens": 7}})
    assert fold.usage().prompt_tokens == 7
