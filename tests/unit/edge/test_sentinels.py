"""The desk: what is work for a thread, what is sampled, and what was found too late."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from gateway.dialects.openai_chat import OpenAiChat
from gateway.edge.counting import Threads
from gateway.edge.metrics import Metrics
from gateway.edge.sentinels import LARGE_BODY, SentinelDesk, SentinelPolicy
from gateway.types import Action, Verdict
from sentinels import CLUSTER, NOW, phrase

DIALECT = OpenAiChat()
FOREIGN = phrase("bob")
LATER = "ffffffff"


class Watched(Threads):
    """Counts the hops."""

    def __init__(self):
        executor = ThreadPoolExecutor(1)
        super().__init__(executor, executor, 1000, Metrics())
        self.hops = 0

    async def on_thread(self, work):
        self.hops += 1
        return work()


def desk(**policy):
    threads = Watched()
    return SentinelDesk(
        CLUSTER, SentinelPolicy(Action.BLOCK, **policy), threads, Metrics(), lambda: NOW
    )


def request(content="hello", **more):
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **more}
    return DIALECT.parse("/v1/chat/completions", json.dumps(body).encode())


def heard(shared, text, asked=None, encoding="", stream=True):
    asked = asked or request(stream=stream)
    hearing = shared.hearing(asked, "ann", "req_00000000")
    kind = "text/event-stream" if stream else "application/json"
    inner = DIALECT.reader(asked, status=200, content_type=kind, content_encoding=encoding)
    reader = hearing.reader(inner, SimpleNamespace(content_encoding=encoding), streams=stream)
    delta = {"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}
    reader.receive(b"data: " + json.dumps(delta).encode() + b"\n\n")
    return hearing, reader


@pytest.mark.parametrize(("size", "hops"), [(10, 0), (LARGE_BODY, 1)])
async def test_a_large_body_is_marked_on_a_thread(size, hops):
    shared = desk()
    marked = await shared.marked(DIALECT, request("x" * size), "ann")

    assert phrase("ann") in marked.raw.decode()
    assert shared.threads.hops == hops


@pytest.mark.parametrize(("size", "hops"), [(10, 0), (2000, 1)])
async def test_a_long_prompt_is_searched_on_a_thread_and_only_after_an_alarm(size, hops):
    shared = desk()
    hearing, _ = heard(shared, "nothing", request("x" * size, stream=True))
    assert not hearing.alarmed
    assert shared.threads.hops == 0

    hearing, _ = heard(shared, FOREIGN, request("x" * size, stream=True))
    assert hearing.alarmed
    assert len(await hearing.findings()) == 1
    assert shared.threads.hops == hops
    await hearing.findings()
    assert shared.threads.hops == hops


async def test_one_sentinel_again_and_again_is_one_finding():
    hearing, reader = heard(desk(), FOREIGN)
    assert len(await hearing.findings()) == 1
    await hearing.settle()
    again = {"choices": [{"index": 1, "delta": {"content": FOREIGN}}]}
    reader.receive(b"data: " + json.dumps(again).encode() + b"\n\n")

    assert hearing.alarmed
    assert await hearing.findings() == []


async def test_what_was_found_after_the_client_had_gone_is_not_ok():
    hearing, reader = heard(desk(), FOREIGN)
    reader.receive(b"data: {}\n\n")

    verdict = await hearing.verdict()
    assert (verdict.verdict, verdict.reason) == (Verdict.UNVERIFIABLE, "not_judged")


async def test_a_compressed_answer_is_not_wrapped():
    hearing, _ = heard(desk(), "x", encoding="gzip")

    assert (await hearing.verdict()).reason == "encoded"


@pytest.mark.parametrize(("scan", "scanned"), [(1.0, True), (0.5, False), (0.0, False)])
def test_the_share_is_of_the_request_ids(scan, scanned):
    assert (desk(scan=scan).hearing(request(), "ann", "req_" + LATER) is not None) is scanned


def test_what_generates_nothing_is_not_scanned():
    counting = SimpleNamespace(generates=False)

    assert desk().hearing(counting, "ann", "req_00000000") is None
