"""What must hold of every byte string that a client or an engine can send.

Each target takes bytes and raises where a property fails. ``tests/property/test_fuzz.py`` tries
them on changed seeds in ``make test``, ``scripts/fuzz.py`` for as long as it is told (``make
fuzz``). A target's seeds are what clients and engines really sent, from tests/data/captures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from gateway.core import image_header
from gateway.core.sentinel_scan import LONGEST_GAP
from gateway.dialects import isolation, marking, routes, sse, wire
from gateway.dialects.answer_text import AnswerText
from gateway.dialects.prompt_text import all_text
from gateway.engines import detect
from gateway.engines.base import Answer, Unreadable
from gateway.errors import Kind, Rejection
from gateway.rendering.common import Templates, TemplateTraits
from gateway.rendering.media import take_media
from gateway.rendering.registry import ENGINES as RENDERINGS
from gateway.rendering.registry import GENERIC
from gateway.types import ChatPrompt, OpaquePrompt, ParsedRequest, TemplateCall
from recorded import ROOT, load
from sentinels import normal, phrase, reader

PATHS = sorted(path for _, path in routes.ROUTES)
TEMPLATES = Templates(TemplateTraits("{{ messages }}", iterates_content=True))
MARKER = "\n\ncarefully placed marker"


@dataclass(frozen=True)
class Target:
    """One property of bytes, what to begin from, and pieces that change what is read."""

    check: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    tokens: Sequence[bytes]


def _choice(data: bytes, options: Sequence[Any]) -> tuple[Any, bytes]:
    """One of the options, by the first byte, and the rest."""
    return options[data[0] % len(options) if data else 0], data[1:]


def _cut(data: bytes) -> tuple[list[bytes], bytes]:
    """The rest of ``data`` in pieces whose ends its first bytes say, and whole."""
    count, data = (data[0] % 8, data[1:]) if data else (0, b"")
    places, body = data[:count], data[count:]
    edges = [0, *sorted(place * len(body) // 256 for place in places), len(body)]
    return [body[one:other] for one, other in pairwise(edges)], body


# --- events of a stream -----------------------------------------------------------------------


def check_events(data: bytes) -> None:
    """Events do not depend on chunks, keep every byte, and what they hold is bounded."""
    chunks, whole = _cut(data)
    told = []
    for pieces in ([whole], chunks):
        splitter = sse.Splitter(max_event=512)
        events = [event for piece in pieces for event in splitter.receive(piece)]
        assert len(splitter._held) <= 512
        events += splitter.end()
        assert b"".join(event.raw for event in events) == whole
        told.append([sse.data_of(event.raw) for event in events if not event.oversized])
    if len(whole) <= 512:
        assert told[0] == told[1]


# --- requests ---------------------------------------------------------------------------------


def check_request(data: bytes) -> None:
    """A body is refused, or is what any parser makes of it, and edits touch nothing else."""
    path, raw = _choice(data, PATHS)
    dialect = routes.ROUTES["POST", path]
    try:
        request = dialect.parse(path, raw)
        isolated = isolation.isolation_edits(request.body)
    except Rejection as caught:
        refusal = caught
    else:
        refusal = None
    if refusal is not None:
        assert refusal.kind is Kind.MALFORMED
        assert refusal.message.isprintable()
        dialect.error(refusal)
        assert "twice" not in refusal.message or _holds_a_name_twice(raw)
        return
    assert _as_others_read(raw) == request.body
    edits = {**isolated, **dialect.edits(request), "cache_salt": wire.encode("salt")}
    edited = wire.apply_edits(raw, edits, request.body.keys())
    after = _as_others_read(edited)
    unchanged = {name: value for name, value in request.body.items() if name not in edits}
    assert {name: value for name, value in after.items() if name not in edits} == unchanged
    assert after["cache_salt"] == "salt"
    assert not isolation.DROPPED & after.keys() - {"cache_salt"}
    again = dialect.parse(path, edited)
    assert _decided(again) == _decided(request)
    _check_prompt(dialect, request)


def _holds_a_name_twice(raw: bytes) -> bool:
    try:
        _as_others_read(raw)
    except AssertionError:
        return True
    return False


def _decided(request: ParsedRequest) -> tuple[Any, ...]:
    """What of a request the gateway decides on, but for the prompt's own members."""
    shape = type(request.prompt)
    return request.model, request.stream, request.choices, request.max_output_tokens, shape


def _as_others_read(raw: bytes) -> Any:
    """By Python's own parser, which engines use; no name may be there twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs), "a name twice"
        return dict(pairs)

    return json.loads(raw, object_pairs_hook=once)


def _check_prompt(dialect: Any, request: ParsedRequest) -> None:
    marked = dialect.marked(request, MARKER)
    if marked is not None:
        assert _as_others_read(bytes(marked.raw)) == marked.body
        assert MARKER.lstrip() in "\n".join(all_text(marked.body))
    marking.constrained(request.body)
    if isinstance(request.prompt, ChatPrompt):
        for engine in (*RENDERINGS.values(), GENERIC):
            rendered = engine.render(request.prompt, TEMPLATES)
            assert isinstance(rendered, TemplateCall | OpaquePrompt)
        take_media(request.prompt)


# --- answers ----------------------------------------------------------------------------------

KINDS = tuple(
    (dialect.name, content_type)
    for dialect in routes.DIALECTS
    for content_type in ("text/event-stream", "application/json", "text/html")
)


def check_answer(data: bytes) -> None:
    """Any answer passes its reader whole, in any chunks, and is judged alike."""
    (name, content_type), data = _choice(data, KINDS)
    chunks, whole = _cut(data)
    dialect = next(each for each in routes.DIALECTS if each.name == name)
    path = next(iter(dialect.paths))
    told = []
    for pieces in ([whole], chunks):
        answer = dialect.reader(_asking(name, path), status=200, content_type=content_type)
        out = b"".join([*map(answer.receive, pieces), answer.end()])
        AnswerText(cumulative=name == "sglang_generate").of_events(out)
        AnswerText().of_body(out)
        told.append((out, answer.result()))
    assert told[0] == told[1]
    if content_type != "text/event-stream":
        assert told[0][0] == whole
    else:
        assert whole.startswith(told[0][0])


@lru_cache
def _asking(name: str, path: str) -> ParsedRequest:
    """A streaming request of the dialect that asks for its usage, so that nothing is removed."""
    members = {"messages": [], "input": "x", "prompt": "x", "text": "x"}
    own = {
        "openai_chat": ["messages"], "openai_completions": ["prompt"], "sglang_generate": ["text"],
        "openai_responses": ["input"], "openai_embeddings": ["input"],
        "anthropic_messages": ["messages"],
    }[name]  # fmt: skip
    body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    body |= {member: members[member] for member in own}
    return routes.ROUTES["POST", path].parse(path, json.dumps(body).encode())


# --- sentinels --------------------------------------------------------------------------------

OWN, FOREIGN = phrase("ann"), phrase("bob")
SCANNED = tuple((dialect.name, streams) for dialect in routes.DIALECTS for streams in (True, False))


def check_sentinels(data: bytes) -> None:
    """No sentinel of another tenant stands in what a client joins, however the answer is cut."""
    (name, streams), data = _choice(data, SCANNED)
    if name == "openai_embeddings":  # its answers hold no text
        return
    chunks, whole = _cut(data)
    told = []
    for pieces in ([whole], chunks):
        scanner = reader(name, stream=streams)
        # Replaced after it was cut, so that a cut never depends on a tenant's words.
        parts = [_with_phrases(piece) for piece in pieces]
        out, alarmed = b"", False
        for part in parts:
            out += scanner.receive(part)
            alarmed |= bool(scanner.alarms)
            out += scanner.settle(frozenset())
        out += scanner.end()
        alarmed |= bool(scanner.alarms)
        out += scanner.settle(frozenset())
        if scanner.gap is None and b"FOREIGN" in whole:
            for text in _texts(name, out, streams=streams).values():
                # Letters glued to a phrase hide it: docs/sentinels.md.
                assert f" {normal(FOREIGN)} " not in f" {normal(text)} "
        told.append((out, alarmed, scanner.gap))
    if all(b"FOREIGN" not in piece and b"OWN" not in piece for piece in (whole, b"".join(chunks))):
        assert told[0] == told[1]
        assert _with_phrases(whole).startswith(told[0][0]) or _usage_only(whole)


def _with_phrases(data: bytes) -> bytes:
    return data.replace(b"OWN", OWN.encode()).replace(b"FOREIGN", FOREIGN.encode())


def _usage_only(whole: bytes) -> bool:
    """Whether something of the answer may be ours to remove: a marker's own words, or usage."""
    return normal(OWN).split()[0] in normal(whole.decode("utf-8", "replace"))


def _texts(name: str, out: bytes, *, streams: bool) -> dict[Any, str]:
    """One text a channel, as a client joins an answer."""
    joined: dict[Any, str] = {}
    told = AnswerText(cumulative=name == "sglang_generate")
    for heard in told.of_events(out) if streams else told.of_body(out):
        if not heard.copy:
            joined[heard.channel] = joined.get(heard.channel, "") + heard.text
    return joined


# --- engines ----------------------------------------------------------------------------------


def check_engine(data: bytes) -> None:
    """Whatever workers answer to our questions is facts that are credible, or unreadable."""
    parts = data.split(b"\xff\xfe")
    asked = detect.detection_probes()
    answers = {
        probe: Answer(200 if not part.startswith(b"!") else 404, part.removeprefix(b"!"))
        for probe, part in zip(asked, parts, strict=False)
    }
    detect.detect(answers)
    for router in detect.ROUTERS:
        router.recognises(answers)
        router.workers(answers)
    for engine in detect.ENGINES:
        engine.recognises(answers)
        facts = engine.read("http://w", answers)
        if not isinstance(facts, Unreadable):
            assert facts
            for fact in facts:
                assert fact.max_prompt_tokens is None or 0 <= fact.max_prompt_tokens <= 2**40
        for part in parts:
            stated = engine.stated_limit(400, part)
            if stated is not None and stated.max_prompt_tokens is not None:
                assert 0 <= stated.max_prompt_tokens <= 2**63
            engine.stated_limit(200, part)


def check_image(data: bytes) -> None:
    """A header gives a size of two positive numbers, or none."""
    size = image_header.size_of(data)
    assert size is None or (size.width > 0 and size.height > 0)


# --- seeds ------------------------------------------------------------------------------------


@lru_cache
def recorded() -> tuple[tuple[str, bytes, str, bytes], ...]:
    """Path, request, content type and answer of every recorded exchange."""
    found = []
    for file in sorted(Path(ROOT).rglob("*.http")):
        exchange = load(file.parent.name, file.stem)
        found.append((exchange.path, exchange.request, exchange.content_type, exchange.body))
    return tuple(found)


def request_seeds() -> list[bytes]:
    return [
        bytes([PATHS.index(path)]) + request
        for path, request, _, _ in recorded()
        if path in PATHS and len(request) < 5000
    ]


def _answer_seeds(kinds: Sequence[tuple[str, Any]], streaming: Any, whole: Any) -> list[bytes]:
    seeds = []
    for path, _, content_type, body in recorded():
        if path in PATHS and len(body) < 5000:
            kind = streaming if "event-stream" in content_type else whole
            number = kinds.index((routes.ROUTES["POST", path].name, kind))
            seeds.append(bytes([number, 2, 80, 160]) + body)
    return seeds


def event_seeds() -> list[bytes]:
    return [
        bytes([3, 20, 90, 200]) + body[:600] for *_, kind, body in recorded() if "event" in kind
    ]


def engine_seeds() -> list[bytes]:
    names = {probe.path: place for place, probe in enumerate(detect.detection_probes())}
    seeds = []
    for path, _, _, body in recorded():
        if path in names and len(body) < 20_000:
            seeds.append(b"\xff\xfe" * names[path] + body)
        elif b"maximum" in body or b"exceed" in body:
            seeds.append(body)
    return seeds


def image_seeds() -> list[bytes]:
    folder = Path(__file__).parent / "data" / "images"
    return [file.read_bytes()[:200] for file in sorted(folder.iterdir()) if file.is_file()] or [b""]


JSON_TOKENS = (
    b'"', b"\\", b"\\u0061", b"\\ud800", b"\\\\", b":", b" :", b",", b"{", b"}", b"[", b"]",
    b"null", b"true", b"0", b"-1", b"1e400", b"NaN", b'"model"', b'"messages"', b'"content"',
    b'"stream"', b'"prompt":', b'"input":', b'"text":', b'"max_tokens":', b'"tools":[],',
    b'"role":"system",', b'"type":"image_url",', b'"cache_salt":1,', b'"bootstrap_room":1,',
    b'"a":1,"a":2', b"\xc3\xa9",
    b"\xff", b"\xef\xbb\xbf", b"\t", b"\n", b"[" * 120, b'"usage":{"prompt_tokens":1}', b'":":":',
)  # fmt: skip
STREAM_TOKENS = (
    *JSON_TOKENS, b"data:", b"data: ", b"event: error", b"\n\n", b"\r\n\r\n", b"\r", b": ping",
    b"id:", b"data: [DONE]\n\n", b'data: {"choices":[]}\n\n', b"retry: 1", b"\x00",
)  # fmt: skip
SENTINEL_TOKENS = (
    *STREAM_TOKENS, b"OWN", b"FOREIGN", b" ", b"*" * LONGEST_GAP, b'"delta":{"content":"FOREIGN"}',
    *(word.encode() for word in re.findall(r"\w+", FOREIGN)[:4]),
)  # fmt: skip
ENGINE_TOKENS = (
    *JSON_TOKENS, b"\xff\xfe", b"!", b"max_req_input_len", b"max_model_len", b"n_ctx", b"1" * 30,
    b"1e3", b"vllm:cache_config_info{", b"<html>", b"This model's maximum context length is ",
)  # fmt: skip

TARGETS: dict[str, Target] = {
    "events": Target(check_events, event_seeds, STREAM_TOKENS),
    "request": Target(check_request, request_seeds, JSON_TOKENS),
    "answer": Target(
        check_answer,
        lambda: _answer_seeds(KINDS, "text/event-stream", "application/json"),
        STREAM_TOKENS,
    ),
    "sentinels": Target(
        check_sentinels, lambda: _answer_seeds(SCANNED, True, False), SENTINEL_TOKENS
    ),
    "engine": Target(check_engine, engine_seeds, ENGINE_TOKENS),
    "image": Target(check_image, image_seeds, (b"\xff", b"\x00", b"\xff\xc0", b"IHDR", b"VP8X")),
}
