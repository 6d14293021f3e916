"""``python -m benchmarks.integrity.shared``: what it costs to share fingerprints, and how soon.

Two gateways in this process on one store of its own. Text is the
interpreter's own documentation. Writes shared.json to benchmarks/results. About two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import logging
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import aiohttp
import numpy as np
import redis

from benchmarks.integrity.costs import seconds
from benchmarks.proxy import machine
from gateway.app import App
from gateway.core.fingerprint import batch
from gateway.core.fingerprint.atoms import atoms
from gateway.core.fingerprint.index import Index, Kind
from gateway.core.fingerprint.shingles import Scheme, entries_for, sample
from gateway.core.sealing import NONCE_BYTES, Seal
from gateway.settings import NoSecrets, parse
from gateway.simulate import INSTANT, SimulateSettings, running
from gateway.tokens.assets import AssetStore
from gateway.tokens.libraries import load_encoder

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
import valkey_server

RESULTS = Path(__file__).resolve().parents[1] / "results"
SECRET = "a secret of the benchmark"
NAMES = ("one", "other")
EVERY = 1.0  # seconds, the default


SHORT, LONG = 2_000, 100_000  # tokens of a prompt, about


def texts(characters: int, seed: int) -> Iterator[str]:
    """Texts of about so many characters, for ever, with no stretch in common."""
    chance = random.Random(seed)
    words = " ".join(topics.values()).split()
    while True:
        yield " ".join(chance.choices(words, k=characters // 6))


@contextlib.asynccontextmanager
async def gateway(engine: str, store: str) -> AsyncIterator[App]:
    """One replica."""
    app = App()
    settings = parse(
        {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "backends": [{"name": "a", "url": engine, "tokenizer": "poolgate-tiny"}],
            "tenants": [
                {"id": name, "key_sha256": [sha256(name.encode()).hexdigest()]} for name in NAMES
            ],
            "integrity": {
                "fingerprints": {"shared": True},
                "latency": {"action": "off"},
                "prompt_tokens": {"sample": 0.0},
                "secret": SECRET,
                "shared": {"store": store, "every": f"{EVERY:g}s"},
            },
        },
        NoSecrets(),
    )
    try:
        await app.start(settings)
        yield app
    finally:
        await app.stop()


async def delays(store: str, characters: int, times: int) -> list[float]:
    """Seconds from the sending of a prompt to one replica until the other can find its text."""
    sim = SimulateSettings(timing=INSTANT, context=2**20, prefill_pool=2**20, decode_pool=2**20)
    taken, given, chance = [], texts(characters, 1), random.Random(2)
    async with (
        running(sim) as engine,
        gateway(engine.url, store) as first,
        gateway(engine.url, store) as second,
        aiohttp.ClientSession() as http,
    ):
        [backend] = second.generation.runtime.backends
        check = second.generation.fingerprints
        assert check is not None
        for _ in range(times):
            text = next(given)
            last = sample(check.memories.scheme, [text])[-40:]  # the greatest go last
            body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
            await asyncio.sleep(chance.random() * EVERY)
            began = time.monotonic()
            async with http.post(
                first.data_url + "/v1/chat/completions", json=body, headers={"x-api-key": NAMES[0]}
            ) as answer:
                answer.raise_for_status()
            while not check.memory(backend).index.hits(last, 0, -1):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            taken.append(time.monotonic() - began)
    return sorted(taken)


def costs(server: valkey_server.Server) -> dict[str, float]:
    """A long prompt's way from one index to another: bytes and processor time."""
    text = "\n".join(topics.values())
    thousands = load_encoder(AssetStore.open().resolve("qwen3")).count(text) / 1000
    windows, words = sample(Scheme(b"k" * 32), [text]), atoms(b"k" * 32, [text])
    seal, nonce = Seal(b"k" * 32, "fingerprints"), bytes(NONCE_BYTES)

    def out() -> list[bytes]:
        parts = batch.parts(("a", "http://a"), "t" * 16, Kind.PROMPT, windows, words)
        return [seal.closed(batch.written("r" * 8, 0, [part]), nonce) for part in parts]

    def taken_in() -> None:
        index, small = Index(entries_for(2**20)), Index(entries_for(2**20) // 16)
        for each in sealed:
            for part in batch.read(seal.opened(each)).texts:
                for _ in index.add(0, Kind.PROMPT, batch.hashes(part.windows)):
                    pass
                for _ in small.add(0, Kind.PROMPT, batch.hashes(part.atoms)):
                    pass

    sealed = out()
    with contextlib.closing(redis.Redis(port=server.port)) as client:
        for each in sealed:
            client.xadd("measured", {"e": each})
        held = client.memory_usage("measured", samples=0)
    return {
        "prompt_tokens": round(thousands * 1000),
        "hashes_per_1k": (len(windows) + len(words)) / thousands,
        "bytes_per_1k": sum(map(len, sealed)) / thousands,
        "store_bytes_per_1k": held / thousands,
        "out_us_per_1k": seconds(out) / thousands * 1e6,
        "in_us_per_1k": seconds(taken_in) / thousands * 1e6,
        "one_batch_out_ms": seconds(lambda: seal.closed(sealed[0], nonce)) * 1e3,
    }


def main() -> None:
    """Measure, and write."""
    parser = argparse.ArgumentParser(prog="benchmarks.integrity.shared")
    parser.add_argument("--times", type=int, default=40, help="prompts to measure delays by")
    times = parser.parse_args().times
    logging.disable(logging.WARNING)
    with valkey_server.server() as server:
        short = asyncio.run(delays(server.url, SHORT * 5, times))
        long = asyncio.run(delays(server.url, LONG * 5, max(3, times // 8)))
        run = {
            "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": machine.describe(),
            "every_s": EVERY,
            "delay_short_s": _spread(short),
            "delay_long_s": _spread(long),
            **costs(server),
        }
    (RESULTS / "shared.json").write_text(json.dumps(run, indent=1) + "\n")
    print(json.dumps(run, indent=1))


def _spread(values: list[float]) -> dict[str, Any]:
    quantiles = np.quantile(values, [0.5, 0.9, 1.0])
    names = ("median", "q90", "most")
    return {"prompts": len(values), **dict(zip(names, map(float, quantiles), strict=True))}


if __name__ == "__main__":
    main()
