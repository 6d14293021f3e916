"""The page at the admin root in a real browser: what it shows is what was sent."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256

import aiohttp
import pytest
from aiohttp import web

from fakes.raw_engine import RawEngine
from gateway.edge import page as served_page
from gateway.simulate import INSTANT, Faults, SimulateSettings, running
from integration.conftest import gateway_for
from integration.faulty import BODY, SWAPPED, gateway_of
from integration.test_checks import settled
from waiting import until

chromium = pytest.importorskip(
    "chromium", reason="playwright is not installed", exc_type=ImportError
)
expect = pytest.importorskip("playwright.async_api").expect
pytestmark = pytest.mark.skipif(
    chromium.chromium() is None, reason="no Chromium here (Debian: apt-get install chromium)"
)

TENANTS = ("acme", "borealis", "cobalt.1_x-y")
HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>"\'&amp;javascript:alert(3)'
CROWDED = SimulateSettings(
    context=4096, prefill_pool=1024, decode_pool=4096, timing=INSTANT, model="sound"
)
LEAKY = SimulateSettings(
    context=4096,
    prefill_pool=4096,
    decode_pool=4096,
    timing=INSTANT,
    model="leaky",
    faults=Faults(swap=True),
)


@pytest.fixture
async def browser():
    async with chromium.browsing(viewport={"width": 1280, "height": 800}) as watched:
        dialogs = []
        watched.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        yield watched
        assert dialogs == []  # no script came out of a name


async def opened(browser, url):
    """The page, once it has shown an answer."""
    await browser.page.goto(url + "/")
    await browser.page.wait_for_selector("#asof[data-state=fresh]")
    return browser.page


async def cells(page, table):
    """Body rows of a table by their first cell."""
    rows = await page.locator(f"{table} tbody tr").all()
    told = [
        [text.strip() for text in await row.locator("th, td").all_inner_texts()] for row in rows
    ]
    return {row[0]: row[1:] for row in told}


@asynccontextmanager
async def two_simulated():
    """A sound backend with a short pool and a leaky one, three tenants, few calls a minute."""
    tenants = [{"id": name, "key_sha256": [sha256(name.encode()).hexdigest()]} for name in TENANTS]
    integrity = {"binding": {"action": "quarantine"}, "quarantine": {"max_share": 1.0}}
    async with running(CROWDED) as sound, running(LEAKY) as leaky:
        entries = [
            {"name": name, "url": engine.url, "models": [name], "tokenizer": "poolgate-tiny"}
            | {"calibration": {"every": "0s"}}
            for name, engine in (("sound", sound), ("leaky", leaky))
        ]
        async with gateway_for(
            sound.url,
            backends=entries,
            tenants=tenants,
            integrity=integrity,
            policies={"default": {"requests_per_minute": 20}},
        ) as app:
            yield app


async def call(app, http, tenant, model="sound", words=3, **more):
    body = {"model": model, "messages": [{"role": "user", "content": "word " * words}]}
    async with http.post(
        app.data_url + "/v1/chat/completions",
        json=body | {"max_tokens": 4} | more,
        headers={"x-api-key": tenant},
    ) as told:
        return told.status, await told.json()


async def test_what_it_shows_is_what_was_sent(browser):
    async with two_simulated() as app, aiohttp.ClientSession() as http:
        told = []
        for tenant, calls in zip(TENANTS, (5, 3, 22), strict=True):
            told += [(tenant, *await call(app, http, tenant)) for _ in range(calls)]
        told.append(("acme", *await call(app, http, "acme", words=2000)))
        await settled(app, count=sum(status == 200 for _, status, _ in told))
        page = await opened(browser, app.admin_url)

        traffic = await cells(page, "#traffic")
        for tenant in TENANTS:
            mine = [status for name, status, _ in told if name == tenant]
            shown = [int(traffic[tenant][column]) for column in (0, 3, 4, 5, 6)]
            assert shown == [len(mine), mine.count(400), mine.count(429), 0, 0]
        assert (traffic["acme"][3], traffic[TENANTS[2]][4]) == ("1", "2")
        usage = [body["usage"]["total_tokens"] for _, status, body in told if status == 200]
        seconds = float((await page.inner_text("#window")).split()[0])
        total = await page.locator("#traffic tfoot td").all_inner_texts()
        assert total[0] == str(len(told))
        rate = float(total[2].replace(",", ""))
        assert rate == pytest.approx(sum(usage) / seconds, rel=0.2)

        checks = await cells(page, "#checks")
        answers = sum(status == 200 for _, status, _ in told)
        assert checks["prompt_tokens"][0] == str(answers)
        assert checks["binding"][3] == "0"

        sound = page.locator(".backend", has=page.locator("h3", has_text="sound"))
        assert await sound.locator(".standing").inner_text() == "serving"
        assert "1,017 tokens" in await sound.locator(".facts").inner_text()
        rows = await cells(page, '.backend[aria-label="sound"]')
        prefill = next(row for name, row in rows.items() if name.startswith("prefill"))
        assert [row.split("\n")[0] for row in prefill[1:4]] == ["1,024", "1,017", "4,096"]
        assert prefill[1].split("\n")[-1] == "3,072 short"
        await bars_are_to_scale(page, context=4096, pool=1024, limit=1017)
        assert await page.inner_text("#headline") == "All 2 backends serving, 1 thing to look at"
        assert "3,072 fewer than the context of 4,096" in await page.inner_text("#troubles")
    assert browser.complaints == []
    assert {url.split("/")[2] for url in browser.asked} == {app.admin_url.split("/")[2]}


async def bars_are_to_scale(page, *, context, pool, limit):
    """The first worker's bars, in shares of the widest."""
    row = page.locator('.backend[aria-label="sound"] tbody tr').first
    full = (await row.locator(".track").bounding_box())["width"]
    left = (await row.locator(".track").bounding_box())["x"]
    boxes = {
        name: await row.locator(f".track .{name}").bounding_box()
        for name in ("pool", "gap", "context", "limit")
    }
    assert boxes["pool"]["width"] / full == pytest.approx(pool / context, abs=0.01)
    assert boxes["context"]["width"] / full == pytest.approx(1, abs=0.01)
    assert boxes["gap"]["width"] / full == pytest.approx(1 - pool / context, abs=0.01)
    assert (boxes["limit"]["x"] - left) / full == pytest.approx(limit / context, abs=0.01)


async def test_a_quarantined_backend_is_shown_and_released_by_keyboard(browser):
    async with two_simulated() as app, aiohttp.ClientSession() as http:
        page = await opened(browser, app.admin_url)
        assert await page.locator(".backend header button").count() == 0
        statuses = await asyncio.gather(
            *(call(app, http, tenant, "leaky", stream=False) for tenant in TENANTS[:2])
        )
        assert [status for status, _ in statuses] == [502, 502]
        await page.wait_for_selector("#verdict[data-level=danger]")
        assert await page.inner_text("#headline") == "1 of 2 backends serving"
        assert "quarantined" in await page.inner_text('.backend[aria-label="leaky"] .standing')
        incidents = await page.locator("#incidents tbody tr").all_inner_texts()
        assert len(incidents) == 2
        for incident in app.recorder.incidents:
            assert any(incident["id"] in line and "withheld" in line for line in incidents)
        assert (await cells(page, "#checks"))["binding"][3] == "2"

        await page.select_option("#by-backend", "sound")
        await expect(page.locator("#incidents tbody tr")).to_have_count(0)
        assert await page.inner_text("#none") == "None of these."
        await page.select_option("#by-backend", "")
        await expect(page.locator("#incidents tbody tr")).to_have_count(2)

        await page.locator(".backend header button").focus()
        await page.keyboard.press("Enter")
        assert await page.is_visible("#ask")
        await page.keyboard.press("Enter")  # what has the focus is to leave it as it is
        assert not await page.is_visible("#ask")
        await asyncio.sleep(2.5)  # the page asks again; the button keeps the focus
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.wait_for_selector('.backend[aria-label="leaky"] .standing[data-level=ok]')
        assert await page.locator(".backend header button").count() == 0
        _, body = await call(app, http, "acme", "leaky")
        assert body["usage"]["completion_tokens"] > 0
    assert browser.complaints == []


async def test_a_leaky_canary_and_what_its_probe_found(browser):
    backend = {"limit": {"refresh": "100ms"}, "probe": {"canary": True, "action": "flag"}}
    leaky = replace(CROWDED, faults=Faults(to_finish=True))
    async with running(leaky) as engine, gateway_for(engine.url, backend=backend) as app:
        await until(lambda: len(app.recorder.incidents), 20)
        page = await opened(browser, app.admin_url)
        await expect(page.locator("#troubles")).to_contain_text("until a probe of it is clean")
        [line] = await page.locator("#incidents tbody tr").all_inner_texts()
        assert "found by the gateway itself" in line
        assert "null" not in line
        assert "the limit is 1017" in line


async def test_names_are_text_whatever_they_say(browser):
    """The model's and the version's are the engine's word; the rest as a fault of ours might."""

    class Hostile(RawEngine):
        def server_info(self):
            return super().server_info() | {"version": HOSTILE}

    async with Hostile(limit=9000, context=9000).running() as engine:
        async with gateway_of(engine) as app, aiohttp.ClientSession() as http:
            engine.script = SWAPPED
            await (await http.post(app.data_url + "/v1/chat/completions", json=BODY)).read()
            page = await opened(browser, app.admin_url)
            assert HOSTILE in await page.locator(".engine").inner_text()
            told = await (await http.get(app.admin_url + "/overview")).json()
            incidents = await (await http.get(app.admin_url + "/incidents")).json()
    async with stub(hostile(told), hostile(incidents)) as url:
        page = await opened(browser, url)
        await page.wait_for_timeout(300)
        assert (await page.locator(".backend h3").inner_text()) == HOSTILE
        assert (await cells(page, "#traffic")).keys() == {HOSTILE}
        assert HOSTILE in await page.inner_text("#incidents tbody")
        assert await page.locator("main img, main script, main a[href^=javascript]").count() == 0
    assert browser.complaints == []
    assert all(url.startswith("http://127.0.0.1:") for url in browser.asked)


KEPT = frozenset({"state", "level", "time"})  # what the page decides or computes by


def hostile(told, name=""):
    """The same with every other word replaced."""
    if isinstance(told, dict):
        return {key: hostile(value, key) for key, value in told.items()}
    if isinstance(told, list):
        return [hostile(value, name) for value in told]
    return HOSTILE if isinstance(told, str) and name not in KEPT else told


async def as_json(told, _request):
    return web.json_response(told)


@asynccontextmanager
async def stub(overview, incidents):
    """The page over these answers."""
    app = served_page.application()
    for path, told in (("/overview", overview), ("/incidents", incidents)):
        app.router.add_get(path, partial(as_json, told))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_it_says_so_when_the_gateway_no_longer_answers(browser):
    async with two_simulated() as app:
        page = await opened(browser, app.admin_url)
        assert "as of" in await page.inner_text("#asof")
    await page.wait_for_selector("#asof[data-state=stale]", timeout=5000)  # at the first failure
    assert "the gateway does not answer; as of" in await page.inner_text("#asof")
    assert await page.inner_text("#headline") == "The gateway does not answer"
    assert (await page.title()).startswith("✕")
    assert await page.locator(".backend").count() == 2  # what was known stays, marked as old


@pytest.mark.parametrize("width", [1280, 390, 320])
async def test_it_fits_a_desk_and_a_phone(browser, width):
    async with two_simulated() as app, aiohttp.ClientSession() as http:
        await call(app, http, "acme")
        await browser.page.set_viewport_size({"width": width, "height": 800})
        page = await opened(browser, app.admin_url)
        await page.wait_for_timeout(200)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_all_text_has_contrast_enough(browser, scheme):
    async with two_simulated() as app, aiohttp.ClientSession() as http:
        await browser.page.emulate_media(color_scheme=scheme)
        await asyncio.gather(*(call(app, http, tenant, "leaky") for tenant in TENANTS[:2]))
        await call(app, http, "acme", words=2000)
        page = await opened(browser, app.admin_url)
        told = await page.evaluate(CONTRASTS)
        assert len(told) > 60
        assert [one for one in told if one[0] < 4.5] == []


# WCAG 2's contrast of each text with the first opaque ground behind it.
CONTRASTS = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((numbers(colour)[3] ?? 1) === 1) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const told = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
    if (!own || !node.checkVisibility()) continue;
    const style = getComputedStyle(node);
    const svg = node.namespaceURI.endsWith("svg");
    const pair = [light(svg ? style.fill : style.color), light(ground(node))].sort((a, b) => b - a);
    told.push([(pair[0] + 0.05) / (pair[1] + 0.05), node.tagName, node.textContent.slice(0, 40)]);
  }
  return told;
}"""
