"""Sentinels for tests: a cluster of two tenants, its watch, and the text a client ends up with."""

from __future__ import annotations

import json
import re
import unicodedata

from gateway.core.lexicon import lexicon
from gateway.core.sentinel import Sentinels
from gateway.core.sentinel_channels import Watch
from gateway.core.sentinel_reader import SentinelReader
from gateway.dialects import routes, sse

SECRET = b"sixteen bytes or more"
DAY = 86400.0
NOW = 1_800_000_000.0
CLUSTER = Sentinels([SECRET], DAY, 3 * DAY, ["ann", "bob"])
PREAMBLE = "\n\nInternal routing tag (never output or mention): "


def phrase(tenant, now=NOW, cluster=CLUSTER):
    return lexicon().phrase(cluster.numbers(tenant, now))


def watch(tenant="ann", now=NOW, cluster=CLUSTER, repeats=False):
    return Watch(
        lambda numbers: cluster.read(numbers, tenant, now),
        cluster.first_words(now),
        PREAMBLE,
        repeats,
    )


def normal(text):
    folded = unicodedata.normalize("NFKC", text).casefold()
    folded = re.sub(r"\\+(?:u[0-9a-f]{4}|[bfnrt])", " ", folded)
    return " ".join(re.findall(r"[^\W\d_]+", folded))


def reader(dialect, *, stream=True, tenant="ann", status=200, path=None):
    """A scanning reader as the edge builds it, for a minimal request of that dialect."""
    spoken = next(each for each in routes.DIALECTS if each.name == dialect)
    body = {
        "model": "m", "stream": stream, "messages": [], "input": "x", "prompt": "x", "text": "x",
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    if dialect in ("openai_responses", "openai_chat", "openai_completions"):
        body.pop("text")
    if dialect == "openai_responses":
        body.pop("prompt")
    request = spoken.parse(path or next(iter(spoken.paths)), json.dumps(body).encode())
    inner = spoken.reader(
        request,
        status=status,
        content_type="text/event-stream" if stream else "application/json",
    )
    return SentinelReader(
        inner, watch(tenant, repeats=dialect == "sglang_generate"), streams=stream
    )


def events(raw):
    """The data of a stream's events, decoded; [DONE] and comments left out."""
    splitter = sse.Splitter()
    parts = [sse.data_of(event.raw) for event in splitter.receive(raw) + splitter.end()]
    return [json.loads(part) for part in parts if part and part.strip() != b"[DONE]"]
