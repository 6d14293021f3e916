"""What each dialect reads out of a request."""

import json

import pytest

from gateway.dialects import routes, wire
from gateway.errors import Kind, Rejection
from gateway.types import ChatPrompt, OpaquePrompt, TextPrompt, TokenIdPrompt

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, EMBEDDINGS = "/v1/responses", "/v1/embeddings"
MESSAGES, COUNT, GENERATE = "/v1/messages", "/v1/messages/count_tokens", "/generate"
SMALLEST = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    RESPONSES: {"model": "m", "input": "hi"},
    EMBEDDINGS: {"model": "m", "input": "hi"},
    MESSAGES: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    COUNT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    GENERATE: {"text": "hi"},
}
CHATS = [CHAT, RESPONSES, MESSAGES, COUNT]
GENERATING = [CHAT, COMPLETIONS, RESPONSES, MESSAGES, GENERATE]


def parse(path, drop=(), **fields):
    body = {name: value for name, value in SMALLEST[path].items() if name not in drop} | fields
    return routes.match("POST", path).parse(path, json.dumps(body).encode())


def fault(path, drop=(), **fields):
    with pytest.raises(Rejection) as caught:
        parse(path, drop, **fields)
    assert caught.value.kind is Kind.MALFORMED
    return caught.value.param


# --- what all have in common ------------------------------------------------------------------


@pytest.mark.parametrize("path", SMALLEST)
def test_the_smallest_request(path):
    request = parse(path)
    assert request.path == path
    assert json.loads(request.raw) == request.body == SMALLEST[path]
    assert request.dialect == routes.match("POST", path).name
    assert (request.stream, request.max_output_tokens, request.choices) == (False, None, 1)
    assert request.generates is (path in GENERATING)
    assert routes.match("POST", path).edits(request) == {}


@pytest.mark.parametrize("path", CHATS)
def test_chats_are_left_to_the_renderer(path):
    request = parse(path, tools=[{"any": "thing"}])
    assert request.prompt == ChatPrompt(request.dialect, request.body)


@pytest.mark.parametrize("path", [path for path in SMALLEST if path != GENERATE])
@pytest.mark.parametrize("model", [None, "", 7])
def test_a_model_is_needed(path, model):
    assert fault(path, model=model) == "model"
    assert fault(path, drop=["model"]) == "model"


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("stream", ["true", 1, 0, []])
def test_stream_is_a_boolean(path, stream):
    assert fault(path, stream=stream) == "stream"
    assert parse(path, stream=None).stream is False
    assert parse(path, stream=True).stream is True


@pytest.mark.parametrize("path", [CHAT, MESSAGES, COUNT])
@pytest.mark.parametrize(
    ("messages", "param"),
    [(None, "messages"), ("hi", "messages"), ({}, "messages"), ([{}, "hi"], "messages[1]")],
)
def test_messages_are_a_list_of_objects(path, messages, param):
    assert fault(path, messages=messages) == param
    assert parse(path, messages=[]).prompt.body["messages"] == []


@pytest.mark.parametrize("path", [path for path in SMALLEST if path != GENERATE])
@pytest.mark.parametrize("name", ["truncate_prompt_tokens", "truncation_side"])
def test_a_prompt_that_the_engine_would_cut_shows_no_length(path, name):
    assert parse(path, **{name: 100}).prompt == OpaquePrompt("engine_truncates")


@pytest.mark.parametrize("path", SMALLEST)
def test_a_bad_body_is_refused(path):
    with pytest.raises(Rejection):
        routes.match("POST", path).parse(path, b"[]")


# --- output limits and choices (row 63) -------------------------------------------------------

LIMITS = [
    (CHAT, "max_tokens"),
    (CHAT, "max_completion_tokens"),
    (COMPLETIONS, "max_tokens"),
    (RESPONSES, "max_output_tokens"),
    (MESSAGES, "max_tokens"),
]


@pytest.mark.parametrize(("path", "name"), LIMITS)
def test_row_63_output_limits(path, name):
    assert parse(path, **{name: 7}).max_output_tokens == 7
    assert parse(path, **{name: 0}).max_output_tokens == 0
    assert parse(path, **{name: None}).max_output_tokens is None
    for odd in (-1, True, "10", 1e3, 1.5, [1]):
        assert fault(path, **{name: odd}) == name


@pytest.mark.parametrize(("path", "name"), LIMITS)
@pytest.mark.parametrize("odd", [b"1e400", b"9" * 5000, b"-" + b"9" * 5000])
def test_row_63_numbers_no_machine_holds(path, name, odd):
    raw = json.dumps(SMALLEST[path])[:-1].encode() + b', "%s": %s}' % (name.encode(), odd)
    with pytest.raises(Rejection) as caught:
        routes.match("POST", path).parse(path, raw)
    assert caught.value.param == name


def test_of_two_output_limits_the_larger_counts():
    assert parse(CHAT, max_tokens=5, max_completion_tokens=9).max_output_tokens == 9
    assert parse(CHAT, max_tokens=9, max_completion_tokens=5).max_output_tokens == 9


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_choices(path):
    assert parse(path, n=3).choices == 3
    assert parse(path, n=2, best_of=5).choices == 5
    assert parse(path, n=None).choices == 1
    for odd in (0, -1, True, "2", 2.0):
        assert fault(path, n=odd) == "n"
        assert fault(path, best_of=odd) == "best_of"


# --- stream options ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_is_forced_and_every_other_option_survives(path):
    request = parse(
        path, stream=True, stream_options={"continuous_usage_stats": True, "include_usage": False}
    )
    assert not request.wants_usage
    edited = wire.apply_edits(request.raw, routes.match("POST", path).edits(request))
    assert json.loads(edited) == request.body | {
        "stream_options": {"continuous_usage_stats": True, "include_usage": True}
    }


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_that_was_asked_for_needs_no_edit(path):
    request = parse(path, stream=True, stream_options={"include_usage": True})
    assert request.wants_usage
    assert routes.match("POST", path).edits(request) == {}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_without_a_stream_there_is_nothing_to_force(path):
    request = parse(path, stream_options={"include_usage": True})
    assert not request.wants_usage
    assert routes.match("POST", path).edits(request) == {}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_stream_options_are_an_object(path):
    assert fault(path, stream=True, stream_options=[1]) == "stream_options"
    odd = {"include_usage": "yes"}
    assert fault(path, stream=True, stream_options=odd) == "stream_options.include_usage"


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES, GENERATE])
def test_others_report_usage_unasked(path):
    request = parse(path, stream=True)
    assert request.wants_usage
    assert routes.match("POST", path).edits(request) == {}


# --- completions and embeddings ---------------------------------------------------------------


@pytest.mark.parametrize(("path", "name"), [(COMPLETIONS, "prompt"), (EMBEDDINGS, "input")])
def test_text_and_ids(path, name):
    assert parse(path, **{name: ["a", "b"]}).prompt == TextPrompt(("a", "b"))
    assert parse(path, **{name: [[1, 2], [3]]}).prompt == TokenIdPrompt((2, 1), 3)
    assert parse(path, add_special_tokens=False).prompt == TextPrompt(("hi",), False)
    assert fault(path, add_special_tokens="no") == "add_special_tokens"
    assert fault(path, **{name: [1, "a"]}) == name
    assert fault(path, drop=[name]) == name


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"prompt": None, "prompt_embeds": "base64"}, "prompt_embeds"),
        ({"prompt_embeds": ["base64"]}, "prompt_embeds"),
    ],
)
def test_completions_that_show_no_length(fields, reason):
    assert parse(COMPLETIONS, **fields).prompt == OpaquePrompt(reason)


def test_an_empty_suffix_is_none():
    assert parse(COMPLETIONS, suffix="").prompt == TextPrompt(("hi",))


def test_sglang_dies_of_an_empty_text_among_prompts():
    assert fault(COMPLETIONS, prompt=["a", ""]) == "prompt"
    assert fault(COMPLETIONS, prompt=[""]) == "prompt"
    assert fault(GENERATE, text="") == "text"
    assert fault(GENERATE, text=["a", ""]) == "text"
    assert parse(COMPLETIONS, prompt="").prompt == TextPrompt(("",))  # every engine copes


def test_ids_that_replace_a_conversation_are_not_what_its_messages_show():
    assert parse(CHAT, input_ids=[1, 2]).prompt == OpaquePrompt("input_ids")
    assert isinstance(parse(CHAT, input_ids=None).prompt, ChatPrompt)


def test_an_embedded_conversation_shows_no_length():
    request = parse(EMBEDDINGS, drop=["input"], messages=[])
    assert request.prompt == OpaquePrompt("chat_embedding")


# --- responses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"previous_response_id": "resp_1"}, "server_history"),
        ({"conversation": "conv_1"}, "server_history"),
        ({"conversation": {"id": "conv_1"}}, "server_history"),
        ({"prompt": {"id": "pmpt_1"}, "input": None}, "server_history"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "server_history"),
        ({"truncation": "auto"}, "engine_truncates"),
        ({"truncation": "anything"}, "engine_truncates"),
    ],
)
def test_responses_that_show_no_length(fields, reason):
    assert parse(RESPONSES, **fields).prompt == OpaquePrompt(reason)


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": None, "conversation": None, "truncation": "disabled"},
        {"input": [{"role": "user", "content": "hi"}], "store": True},
    ],
)
def test_responses_that_do(fields):
    assert isinstance(parse(RESPONSES, **fields).prompt, ChatPrompt)


def test_input_is_text_or_items():
    assert fault(RESPONSES, input=None) == "input"
    assert fault(RESPONSES, input=["hi"]) == "input[0]"


def test_background_responses_are_refused():
    assert fault(RESPONSES, background=True) == "background"
    assert parse(RESPONSES, background=False)


# --- generate ---------------------------------------------------------------------------------


def test_generate_takes_text_or_ids():
    assert parse(GENERATE).prompt == TextPrompt(("hi",))
    assert parse(GENERATE, text=["a", "b"]).prompt == TextPrompt(("a", "b"))
    ids = parse(GENERATE, drop=["text"], input_ids=[[1, 2], [7]])
    assert ids.prompt == TokenIdPrompt((2, 1), 7)
    assert fault(GENERATE, drop=["text"], input_ids=[True]) == "input_ids"
    assert fault(GENERATE, text=7) == "text"


def test_generate_takes_exactly_one_of_them():
    assert fault(GENERATE, input_ids=[1]) == "text"
    assert fault(GENERATE, drop=["text"]) == "text"
    assert parse(GENERATE, input_ids=None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"image_data": "data:"}, "image"),
        ({"video_data": ["x"]}, "video"),
        ({"audio_data": "x"}, "audio"),
        ({"text": None, "input_embeds": [[0.1]]}, "input_embeds"),
    ],
)
def test_generate_that_shows_no_length(fields, reason):
    assert parse(GENERATE, **fields).prompt == OpaquePrompt(reason)


def test_generate_needs_no_model():
    assert parse(GENERATE).model == ""
    assert parse(GENERATE, model="m").model == "m"
    assert fault(GENERATE, model=7) == "model"


def test_sampling_parameters_for_all_or_for_each():
    one = parse(GENERATE, sampling_params={"max_new_tokens": 7, "n": 2})
    assert (one.max_output_tokens, one.choices) == (7, 2)
    each = [{"max_new_tokens": 7}, {"max_new_tokens": 9}, {}]
    assert parse(GENERATE, sampling_params=each).max_output_tokens == 9
    assert parse(GENERATE, sampling_params=None).max_output_tokens is None
    odd = {"max_new_tokens": -1}
    assert fault(GENERATE, sampling_params=odd) == "sampling_params.max_new_tokens"
    assert fault(GENERATE, sampling_params={"n": 0}) == "sampling_params.n"
    assert fault(GENERATE, sampling_params=["x"]) == "sampling_params[0]"
    assert fault(GENERATE, sampling_params="x") == "sampling_params"
