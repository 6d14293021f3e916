"""Markers as point edits: what is sent is what is counted, and no other byte moves."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import marking, routes
from gateway.types import ChatPrompt, OpaquePrompt

MARK = '\n\nTag: "x" \u2014 y'
TEXT = st.text(max_size=8)
PARTS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXT), max_size=3)
TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user"]), "content": TEXT | PARTS},
        optional={"odd": st.integers()},
    ),
    max_size=3,
)


def parsed(path, body, **dump):
    dialect = routes.match("POST", path)
    return dialect, dialect.parse(path, json.dumps({"model": "m", **body}, **dump).encode())


@pytest.mark.parametrize(
    ("path", "bodies"),
    [
        ("/v1/chat/completions", st.fixed_dictionaries({"messages": TURNS})),
        (
            "/v1/messages",
            st.fixed_dictionaries(
                {"messages": TURNS}, optional={"system": st.none() | TEXT | PARTS}
            ),
        ),
        (
            "/v1/responses",
            st.fixed_dictionaries(
                {"input": TEXT | TURNS}, optional={"instructions": st.none() | TEXT}
            ),
        ),
    ],
)
@given(data=st.data(), indent=st.sampled_from([None, 1]), plain=st.booleans())
def test_what_is_counted_is_what_is_sent(path, bodies, data, indent, plain):
    body = data.draw(bodies)
    dialect, request = parsed(path, body, indent=indent, ensure_ascii=plain)

    marked = dialect.marked(request, MARK)

    assert marked is not None
    sent = json.loads(marked.raw)
    assert sent == marked.body
    assert isinstance(marked.prompt, ChatPrompt)
    assert marked.prompt.body is marked.body
    assert json.dumps(sent).count(json.dumps(MARK.lstrip())[1:-1]) == 1
    untouched = {name: value for name, value in body.items() if sent.get(name) == value}
    assert len(untouched) >= len(body) - 1  # one member differs at most
    assert request.body == {"model": "m", **body}


def test_bytes_inside_the_edited_value_stay():
    raw = (
        b'{"model":"m","messages":[{"role":"system","content":"\\u0041\\/ \xc3\xa9"},'
        b'{"role":"user","content":"\\u0042","n":1.0e2}]}'
    )
    dialect = routes.match("POST", "/v1/chat/completions")

    marked = dialect.marked(dialect.parse("/v1/chat/completions", raw), "!")

    assert marked.raw == raw.replace(b'\xc3\xa9"', b'\xc3\xa9!"')


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/generate", {"text": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": None}]}),
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": 7}]}),
        ("/v1/messages", {"messages": [], "system": {"odd": 1}}),
    ],
)
def test_where_there_is_no_place_there_is_none(path, body):
    dialect, request = parsed(path, body)

    assert dialect.marked(request, MARK) is None


@pytest.mark.parametrize(
    "body",
    [{"messages": [], "input_ids": [1]}, {"messages": [], "truncate_prompt_tokens": 5}],
)
def test_a_prompt_that_shows_no_length_is_left_alone(body):
    dialect, request = parsed("/v1/chat/completions", body)

    assert isinstance(request.prompt, OpaquePrompt)
    assert dialect.marked(request, MARK) is None


@pytest.mark.parametrize(
    ("body", "bound"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": None}, False),
        ({"text": {"format": {"type": "text"}}}, False),
        ({"text": "a plain prompt"}, False),
        ({"response_format": {"type": "json_schema"}}, True),
        ({"text": {"format": {"type": "json_object"}}}, True),
        ({"guided_choice": ["a", "b"]}, True),
        ({"structured_outputs": {"regex": "a"}}, True),
        ({"output_format": {"type": "json_schema"}}, True),
        ({"guided_json": None}, False),
    ],
)
def test_answers_bound_to_a_form_are_known(body, bound):
    assert marking.constrained(body) is bound
