"""Makes docs/images/page-*.png: the page at the admin root before simulated engines, in Chromium.

    .venv/bin/python scripts/screenshots.py

Takes about a minute. Numbers are of that minute, so the pictures differ a little each time.
"""

from __future__ import annotations

import asyncio
import base64
import math
import random
import struct
import sys
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from chromium import browsing  # noqa: E402
from gateway.app import App  # noqa: E402
from gateway.settings import NoSecrets, parse  # noqa: E402
from gateway.simulate import Faults, Handle, SimulateSettings, Timing, running  # noqa: E402

IMAGES = ROOT / "docs/images"
TENANTS = ("studio-a", "lumen-search", "north-bank", "kite")
DESK = {"width": 1280, "height": 800}
PIXELS = """async (png) => {
  const image = await createImageBitmap(await (await fetch("data:image/png;base64," + png)).blob());
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height);
  const url = await new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(new Blob([data]));
  });
  return [image.width, url.split(",")[1]];
}"""
PHONE = {"width": 390, "height": 844}
TIMING = Timing(base=0.03, prefill_tokens_per_second=150_000, inter_token=0.02)
# The incident's sizes.
SHORT = SimulateSettings(
    model="glm-4.6", context=1_048_576, prefill_pool=681_280, decode_pool=1_400_000, timing=TIMING
)
ROOMY = SimulateSettings(
    model="qwen3-coder", context=262_144, prefill_pool=400_000, decode_pool=520_000, timing=TIMING
)
LEAKY = SimulateSettings(
    model="glm-next",
    context=262_144,
    prefill_pool=65_536,
    decode_pool=400_000,
    timing=TIMING,
    faults=Faults(to_finish=True, server_info=True, swap=True),
)


@asynccontextmanager
async def gateway(**engines: tuple[str, Handle]) -> AsyncIterator[App]:
    """One before these engines; ``kite`` may call six times a minute."""
    app = App()
    written = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "backends": [
            {
                "name": name.replace("_", "-"),
                "url": engine.url,
                "models": [model],
                "tokenizer": "poolgate-tiny",
                "queue": {"concurrent": 64},
            }
            for name, (model, engine) in engines.items()
        ],
        "policies": {"default": {}, "trial": {"requests_per_minute": 6}},
        "tenants": [
            {
                "id": name,
                "key_sha256": [sha256(name.encode()).hexdigest()],
                "policy": "trial" if name == "kite" else "default",
            }
            for name in TENANTS
        ],
        "integrity": {
            "latency": {"action": "hold"},
            "binding": {"action": "quarantine"},
            "quarantine": {"max_share": 1.0},
        },
    }
    try:
        await app.start(parse(written, NoSecrets()))
        yield app
    finally:
        await app.stop()


class Customers:
    """Those who call. Prompts are token ids, unlike each other from the first on."""

    def __init__(self, app: App, http: aiohttp.ClientSession) -> None:
        self._app = app
        self._http = http
        self._random = random.Random(20260827)  # noqa: S311 - pictures, no secrets

    async def call(self, tenant: str, model: str, tokens: int, **more: Any) -> int:
        """The status of an answer that was read to its end."""
        start = [self._random.randrange(300, 2000) for _ in range(min(tokens, 64))]
        body = {"model": model, "prompt": start + [1500] * (tokens - len(start)), "stream": True}
        async with self._http.post(
            f"{self._app.data_url}/v1/completions",
            json=body | {"max_tokens": 12} | more,
            headers={"Authorization": f"Bearer {tenant}"},
        ) as answer:
            await answer.read()
            return answer.status

    async def day(self, model: str, longest: int, calls: int, at_once: int = 4) -> None:
        """Prompts of every length, the short ones more often."""
        lengths = [
            int(math.exp(self._random.uniform(math.log(40), math.log(longest))))
            for _ in range(calls)
        ]
        lengths += [self._random.randint(longest // 5, longest) for _ in range(16)]
        for first in range(0, len(lengths), at_once):
            await asyncio.gather(
                *(
                    self.call(self._random.choice(TENANTS[:3]), model, tokens)
                    for tokens in lengths[first : first + at_once]
                )
            )
        for _ in range(8):
            await self.call("kite", model, 200)


async def picture(app: App, name: str, *, dark: bool = False, phone: bool = False) -> None:
    """The whole page, once it has asked the gateway."""
    async with browsing(
        viewport=PHONE if phone else DESK, color_scheme="dark" if dark else "light"
    ) as browser:
        await browser.page.goto(app.admin_url + "/")
        await browser.page.wait_for_selector("#asof[data-state=fresh]")
        await browser.page.wait_for_timeout(300)
        target = IMAGES / f"page-{name}.png"
        target.write_bytes(await fewer_colours(await browser.page.screenshot(full_page=True)))
        print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1000:.0f} kB")


async def fewer_colours(png: bytes) -> bytes:
    """The same picture with its 256 most frequent colours: a third as large."""
    async with browsing() as browser:
        width, data = await browser.page.evaluate(PIXELS, base64.b64encode(png).decode())
    pixels = np.frombuffer(base64.b64decode(data), "<u4") & 0xFFFFFF
    colours, places, counts = np.unique(pixels, return_inverse=True, return_counts=True)
    primaries = colours.view(np.uint8).reshape(-1, 4)[:, :3].astype(np.int32)
    palette = primaries[np.argsort(-counts)[:256]]
    nearest = np.array([((palette - one) ** 2).sum(1).argmin() for one in primaries])
    rows = nearest[places].astype(np.uint8).reshape(-1, width)
    return _paletted(rows, palette.astype(np.uint8))


def _paletted(rows: np.ndarray, palette: np.ndarray) -> bytes:
    """A PNG of indices into a palette."""
    height, width = rows.shape
    unfiltered = np.insert(rows, 0, 0, axis=1).tobytes()
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": palette.tobytes(),
        b"IDAT": zlib.compress(unfiltered, 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks.items()
    )


async def well() -> None:
    """Two backends, of which one has the incident's pool, and answers nothing it cannot hold."""
    async with (
        running(SHORT) as short,
        running(ROOMY) as roomy,
        gateway(glm=("glm-4.6", short), coder=("qwen3-coder", roomy)) as app,
        aiohttp.ClientSession() as http,
    ):
        customers = Customers(app, http)
        await asyncio.gather(
            customers.day("glm-4.6", 90_000, 60), customers.day("qwen3-coder", 60_000, 60)
        )
        for tokens in (681_280, 700_000, 900_000):
            await customers.call("lumen-search", "glm-4.6", tokens)
        async with asyncio.TaskGroup() as streams:
            for tenant in TENANTS[:3]:
                streams.create_task(
                    customers.call(tenant, "glm-4.6", 900, max_tokens=900, ignore_eos=True)
                )
            await asyncio.sleep(0.5)
            await asyncio.gather(
                picture(app, "light"),
                picture(app, "dark", dark=True),
                picture(app, "phone", phone=True),
            )


async def leak() -> None:
    """A backend that answers from foreign pages, then mixes answers up, beside a sound one."""
    async with (
        running(LEAKY) as leaky,
        running(SHORT) as short,
        gateway(glm_next=("glm-next", leaky), glm=("glm-4.6", short)) as app,
        aiohttp.ClientSession() as http,
    ):
        customers = Customers(app, http)
        await asyncio.gather(
            customers.day("glm-next", 60_000, 40, at_once=1),
            customers.day("glm-4.6", 60_000, 60),
        )
        for tokens in (90_000, 140_000, 200_000):
            await customers.call("lumen-search", "glm-next", tokens)
        await asyncio.gather(*(customers.call(tenant, "glm-next", 300) for tenant in TENANTS[:2]))
        await asyncio.sleep(0.3)
        await picture(app, "leak")


async def main() -> None:
    """Both scenes."""
    IMAGES.mkdir(exist_ok=True)
    await well()
    await leak()


if __name__ == "__main__":
    asyncio.run(main())
