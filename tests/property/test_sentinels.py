"""However an answer is cut, no sentinel leaves; everything else leaves unchanged and in order."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.channels import pieces_of_event
from sentinels import CLUSTER, NOW, events, normal, phrase, reader

OWN, FOREIGN = phrase("ann"), phrase("bob")
GAPS = st.sampled_from([" ", "\n", ", ", "** **", '", "', "\\n", " \u2014 ", "\u00a0"])
CALM = st.text(st.sampled_from("abc ,.\n\u00e9\u4e2d\U0001f600"), max_size=12)


def chat(place, text, channel):
    deltas = {
        "content": {"content": text},
        "reasoning": {"reasoning_content": text},
        "refusal": {"refusal": text},
        "unheard of": {"brand_new": {"text": text}},
        "tool": {"tool_calls": [{"index": place, "function": {"arguments": text}}]},
        "tool name": {"tool_calls": [{"index": place, "function": {"name": text}}]},
    }
    return {"id": "c", "choices": [{"index": place, "delta": deltas[channel]}]}


def chat_logprobs(place, text, _):
    tokens = [{"token": letter, "logprob": -1.0, "top_logprobs": []} for letter in text]
    return {"id": "c", "choices": [{"index": place, "delta": {}, "logprobs": {"content": tokens}}]}


def completions(place, text, _):
    return {"id": "c", "choices": [{"index": place, "text": text}]}


def messages(place, text, channel):
    delta = {"type": f"{channel}_delta", channel: text}
    return {"type": "content_block_delta", "index": place, "delta": delta}


def responses(place, text, channel):
    return {"type": f"response.{channel}.delta", "output_index": place, "delta": text}


def generate(place, text, _):
    return {"index": place, "text": text, "meta_info": {"id": "g"}}


KINDS = [
    *(("openai_chat", chat, name) for name in (
        "content", "reasoning", "refusal", "unheard of", "tool", "tool name")),
    ("openai_chat", chat_logprobs, ""),
    ("openai_completions", completions, ""),
    *(("anthropic_messages", messages, name) for name in ("text", "thinking", "partial_json")),
    *(("openai_responses", responses, name) for name in (
        "output_text", "refusal", "function_call_arguments", "reasoning_text")),
    ("sglang_generate", generate, ""),
]  # fmt: skip
NAMES = [f"{dialect} {build.__name__} {channel}" for dialect, build, channel in KINDS]


def texts_of(raw):
    """What a client joins from a stream: one text a channel."""
    joined = {}
    for value in events(raw):
        for piece in pieces_of_event(value):
            joined[piece.key] = joined.get(piece.key, "") + piece.text
    return joined


def stream_of(values, eol="\n"):
    names = [f"event: {value['type']}{eol}" if "type" in value else "" for value in values]
    return [
        f"{name}data: {json.dumps(value)}{eol}{eol}".encode()
        for name, value in zip(names, values, strict=True)
    ]


def released(scanning, chunks):
    """What comes out before the first alarm, and whether there was one."""
    out = b""
    for chunk in chunks:
        out += scanning.receive(chunk)
        if scanning.alarms:
            return out, True
    out += scanning.end()
    return out, bool(scanning.alarms)


@st.composite
def pieces(draw, marked, places=2):
    """A text with a phrase in it, in some dress, cut anywhere; among other texts."""
    text = (
        draw(CALM) + " " + draw(GAPS).join(marked.split()) + draw(st.sampled_from([". ", " ", ""]))
    )
    cuts = sorted(draw(st.sets(st.integers(1, len(text) - 1), max_size=30)))
    own = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    queue = [(0, part) for part in own]
    for _ in range(draw(st.integers(0, 6)) if places > 1 else 0):
        queue.insert(draw(st.integers(0, len(queue))), (1, draw(CALM) or "z"))
    return queue


@pytest.mark.parametrize(("dialect", "build", "channel"), KINDS, ids=NAMES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_foreign_sentinel_never_leaves(dialect, build, channel, data):
    queue = data.draw(pieces(FOREIGN))
    raw = b"".join(stream_of([build(place, text, channel) for place, text in queue]))
    size = data.draw(st.sampled_from([1, 7, 50, 10**6]))

    out, alarmed = released(
        reader(dialect), [raw[at : at + size] for at in range(0, len(raw), size)]
    )

    assert alarmed
    assert raw.startswith(out)
    first = [text for place, text in queue if place == 0]
    seen = next((text for key, text in texts_of(out).items() if 1 not in key), "")
    assert "".join(first).startswith(seen)
    assert len(set(normal(seen).split()) & set(FOREIGN.split())) == 0


@pytest.mark.parametrize(("dialect", "build", "channel"), KINDS, ids=NAMES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_an_echo_is_scrubbed_and_nothing_else(dialect, build, channel, data):
    queue = data.draw(pieces(OWN))
    chunks = stream_of([build(place, text, channel) for place, text in queue])

    out, alarmed = released(reader(dialect), chunks)

    assert not alarmed
    given_texts, got = texts_of(b"".join(chunks)), texts_of(out)
    for key, text in got.items():
        assert normal(OWN) not in normal(text)
        whole = given_texts[key]
        if 1 in key or "logprobs" in key:
            assert text == whole or "logprobs" in key
        else:
            words = OWN.split()
            begin = whole.index(words[0])
            # Letters of the first word may have gone before it was whole.
            end = whole.rindex(words[-1]) + len(words[-1])
            assert text.endswith(whole[end:])
            assert whole.startswith(text[: len(text) - len(whole[end:])])
            assert len(text) - len(whole[end:]) - begin < len(words[0])
    untouched = [chunk for chunk in chunks if chunk in out]
    assert len(out) <= sum(map(len, chunks))
    assert all(a in out for a in untouched)


@pytest.mark.parametrize(("dialect", "build", "channel"), KINDS, ids=NAMES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_text_without_a_sentinel_passes_byte_by_byte(dialect, build, channel, data):
    almost = " ".join(FOREIGN.split()[: data.draw(st.integers(0, 7))])
    texts = data.draw(st.lists(CALM.map(lambda text: text or "x"), max_size=6))
    texts += [almost[at : at + 5] for at in range(0, len(almost), 5)] + ["zz", "z"]
    raw = b"".join(stream_of([build(0, text, channel) for text in texts], "\r\n")) + b": ping\n\n"

    assert released(reader(dialect), [raw[at : at + 3] for at in range(0, len(raw), 3)]) == (
        raw,
        False,
    )


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_cumulative_text_is_scrubbed_in_every_repetition(data):
    queue = data.draw(pieces(OWN, places=1))
    so_far, values = "", []
    for _, text in [*queue, (0, " and "), (0, "more")]:
        so_far += text
        values.append(generate(0, so_far, ""))

    out, alarmed = released(reader("sglang_generate"), stream_of(values))

    assert not alarmed
    texts = [value["text"] for value in events(out)]
    assert len(texts) == len(values)
    assert all(normal(OWN) not in normal(text) for text in texts)
    assert texts[-1].endswith(" and more")
    assert set(OWN.split()).isdisjoint(normal(texts[-1]).split())


@pytest.mark.parametrize("at", range(len(FOREIGN) + 2))
@pytest.mark.parametrize("dialect", ["openai_chat", "sglang_generate"])
def test_two_pieces_cut_at_every_place(dialect, at):
    text = f"a {FOREIGN} b"
    build = chat if dialect == "openai_chat" else generate
    chunks = stream_of([build(0, text[:at] or "x ", "content"), build(0, text[at:], "content")])

    out, alarmed = released(reader(dialect), chunks)

    assert alarmed
    assert not set(FOREIGN.split()[1:]) & set(normal(out.decode()).split())


WHOLE = {
    "openai_chat": lambda text: {
        "id": "c",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hi"}},
            {"index": 1, "message": {"role": "assistant", "content": text}},
        ],
    },
    "openai_completions": lambda text: {"id": "c", "choices": [{"index": 0, "text": text}]},
    "anthropic_messages": lambda text: {
        "type": "message", "content": [{"type": "text", "text": text}],
    },
    "openai_responses": lambda text: {
        "id": "r", "status": "completed", "instructions": None,
        "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}],
    },
    "sglang_generate": lambda text: [
        {"text": "a", "meta_info": {}}, {"text": text, "meta_info": {}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("dialect", WHOLE)
@given(before=CALM, gap=GAPS, after=CALM)
@settings(max_examples=40, deadline=None)
def test_whole_answers_are_scrubbed_or_withheld(dialect, before, gap, after):
    def send(text):
        scanning = reader(dialect, stream=False)
        assert scanning.receive(json.dumps(WHOLE[dialect](text), indent=1).encode()) == b""
        return scanning, scanning.end()

    mark = gap.join(OWN.split())
    scanning, out = send(f"{before} {mark} {after}")
    assert json.loads(out) == WHOLE[dialect](f"{before}  {after}")

    scanning, out = send(f"{before} {gap.join(FOREIGN.split())} {after}")
    assert out == b""
    assert [alarm.found.sighting.numbers for alarm in scanning.alarms] == [
        CLUSTER.numbers("bob", NOW)
    ]
    plain = json.dumps(WHOLE[dialect](before + after), indent=1).encode()
    assert send(before + after)[1] == plain
