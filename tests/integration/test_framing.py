"""Row 41: no byte string makes two parsers see a request end in two places."""

from __future__ import annotations

import asyncio
import os

import pytest

import neighbours
from framings import BOTH, BOTH_CHUNKED, FIRST, MANY_ZEROS, NONE, SECOND, SECOND_ONLY, ask
from integration.conftest import gateway_for
from integration.test_serve import served


def expected(*, chunks: bool) -> dict[str, tuple[str, ...]]:
    """Which models the engine must have seen. ``chunks``: whether chunked bodies are taken."""
    both: tuple[str, ...] = ("first", "second")
    verdicts = dict.fromkeys(BOTH, both)
    verdicts |= dict.fromkeys(BOTH_CHUNKED, both if chunks else ())
    verdicts |= dict.fromkeys(FIRST, ("first",))
    verdicts |= dict.fromkeys(NONE, ())
    return verdicts | dict.fromkeys(SECOND_ONLY, ("second",))


async def verdicts(port, engine, *, pause=0.0):
    """What reached the engine of each byte string; and what its client saw."""
    strings, arrived, seen = {**BOTH, **BOTH_CHUNKED, **FIRST, **NONE}, {}, {}
    for name, raw in strings.items():
        before = len(engine.received)
        parts = (raw, SECOND) if not pause else (*_cut(raw), SECOND)
        seen[name] = await ask(port, *parts, pause=pause)
        arrived[name] = tuple(request.json["model"] for request in engine.received[before:])
    return arrived, seen


def _cut(raw):
    """In three pieces: the head's begin, up to the middle of the body, the rest."""
    head, _, body = raw.partition(b"\r\n\r\n")
    at = len(head) + 4 + len(body) // 2
    return raw[: len(head) // 2], raw[len(head) // 2 : at], raw[at:]


def require_closed_with_a_reason(seen, tolerated=frozenset(), *, in_pieces=False):
    """Of what is refused: one clear refusal, the connection closed, none of it repeated."""
    for name in NONE.keys() - SECOND_ONLY - tolerated:
        answer = seen[name]
        assert answer.closed, name
        if in_pieces and not answer.raw:
            continue  # what was sent after the end reset the connection
        assert answer.statuses in ([400], [404], [413], [431]), (name, answer.statuses)
        assert b'"error"' in answer.raw, name
        assert b"gateway\r\n" not in answer.raw, name


async def test_row_41_the_c_parser_serves_one_framing_or_none(engine):
    async with gateway_for(engine.url) as app:
        arrived, seen = await verdicts(app.servers.data_port, engine)
        assert arrived == expected(chunks=True)
        require_closed_with_a_reason(seen)
        metrics = app.metrics.render().decode()
    refused = [line for line in metrics.splitlines() if 'reason="malformed_http"' in line]
    assert float(refused[0].split()[-1]) > 60


async def test_row_41_likewise_where_heads_and_bodies_come_in_pieces(engine):
    async with gateway_for(engine.url) as app:
        arrived, seen = await verdicts(app.servers.data_port, engine, pause=0.005)
    assert arrived == expected(chunks=True)
    require_closed_with_a_reason(seen, in_pieces=True)


async def test_row_41_the_python_parser_serves_no_more(engine, monkeypatch):
    monkeypatch.setitem(os.environ, "AIOHTTP_NO_EXTENSIONS", "1")
    async with served("--backend", engine.url) as (_, url, _):
        arrived, seen = await verdicts(int(url.rpartition(":")[2]), engine)
    # It raises a method's letters before anyone can look. Where the request ends is the same.
    raised = {"a method in small letters": ("first", "second")}
    assert arrived == expected(chunks=False) | raised
    require_closed_with_a_reason(seen, raised.keys())


@pytest.mark.parametrize("kind", neighbours.KINDS)
async def test_row_41_a_neighbour_in_front_sees_the_same_requests(engine, tmp_path, kind):
    """It passes on exactly the requests that arrive here, over connections it uses again."""
    if why := neighbours.missing(kind):
        pytest.skip(why)
    async with (
        gateway_for(engine.url) as app,
        neighbours.running(kind, app.servers.data_port, tmp_path) as front,
    ):
        recorded, write = [], app.recorder.write
        app.recorder.write = lambda exchange: (recorded.append(exchange.path), write(exchange))
        told = {}
        strings = {**BOTH, **BOTH_CHUNKED, **FIRST, **NONE, "9000 zeros": MANY_ZEROS}
        for name, raw in strings.items():
            recorded.clear(), engine.received.clear(), front.lines.clear()
            await ask(front.port, raw, SECOND, patience=3.0)
            # A marker over the same connections: what were left in one would be in its way.
            marker = await ask(front.port, SECOND.replace(b"second", b"marker"), patience=3.0)
            for _ in range(50):
                if front.passed_on >= len(recorded):
                    break
                await asyncio.sleep(0.01)
            models = [request.json["model"] for request in engine.received]
            told[name] = (front.passed_on - len(recorded), marker.statuses, models)
    for name, (difference, statuses, models) in told.items():
        assert difference == 0, (name, told[name])
        assert statuses == [200], (name, statuses)
        assert len(models) == len(set(models)), (name, models)
        assert models[-1] == "marker", (name, models)
    assert told["a length"][2] == told["chunks"][2] == ["first", "second", "marker"]
