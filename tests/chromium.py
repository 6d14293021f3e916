"""A headless Chromium of the machine's own, watched: what it fetched, what it complained of."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Page, async_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-lcd-text",  # colour fringes make pictures large
)
NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Where it is; None where the machine has none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class Watched:
    """A page, the addresses it asked for and the lines of its console."""

    page: Page
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@asynccontextmanager
async def browsing(**context: Any) -> AsyncIterator[Watched]:
    """An empty page in a fresh profile; ``context`` is Playwright's (viewport, color_scheme...)."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            page = await browser.new_page(**context)
            watched = Watched(page)
            page.on("request", lambda request: watched.asked.append(request.url))
            page.on("pageerror", lambda error: watched.complaints.append(str(error)))
            page.on("console", lambda line: watched.complaints.append(line.text))
            yield watched
        finally:
            await browser.close()
