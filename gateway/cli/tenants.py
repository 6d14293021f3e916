"""``poolgate tenants top``: who uses how much of which quota now."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp

EXIT_OK, EXIT_NO_ANSWER = 0, 1
DEADLINE = 10.0  # seconds for the admin plane to answer
_TITLES = ("TENANT", "IN FLIGHT", "QUOTA", "USED", "LIMIT", "REMAINING", "FULL IN")
_CLEAR = "\x1b[H\x1b[J"  # cursor home, erase to the end (ECMA-48)
_TEXTS = (0, 2)  # columns of words; the others are numbers

Row = tuple[str, ...]
Status = Mapping[str, Any]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its verb."""
    parser = subparsers.add_parser("tenants", help="live use of each tenant")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    top = verbs.add_parser(
        "top",
        help="who uses how much now",
        description="Requests in flight and what is used of each quota, as the admin plane's"
        " /status tells it: those with the most in flight first, then who called last. Exit 0,"
        " or 1 where the admin plane does not answer.",
    )
    top.add_argument(
        "--admin",
        metavar="URL",
        default="http://127.0.0.1:9090",
        help="the gateway's admin plane (http://127.0.0.1:9090)",
    )
    top.add_argument("--watch", metavar="SECONDS", type=_seconds, help="again every so often")
    top.add_argument("--json", action="store_true", help="print JSON, one line each time")
    top.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit status 0 or 1."""
    return asyncio.run(_top(args.admin.rstrip("/"), args.watch, as_json=args.json))


def table(status: Status) -> str:
    """The tenants of a ``/status`` as lines for people."""
    rows = [_TITLES, *(row for tenant in status["shown"] for row in _rows(tenant))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    if status["left_out"]:
        lines.append(f"{status['left_out']} more that did not call lately")
    return "\n".join(lines)


async def _top(admin: str, pause: float | None, *, as_json: bool) -> int:
    timeout = aiohttp.ClientTimeout(total=DEADLINE)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            try:
                tenants = await _ask(session, admin)
            except (aiohttp.ClientError, TimeoutError, KeyError, ValueError) as error:
                print(f"no status from {admin}: {type(error).__name__}", file=sys.stderr)
                return EXIT_NO_ANSWER
            clear = _CLEAR if pause and sys.stdout.isatty() and not as_json else ""
            print(clear + (json.dumps(tenants) if as_json else table(tenants)), flush=True)
            if pause is None:
                return EXIT_OK
            await asyncio.sleep(pause)


async def _ask(session: aiohttp.ClientSession, admin: str) -> Status:
    async with session.get(f"{admin}/status", raise_for_status=True) as answer:
        tenants: Status = (await answer.json())["tenants"]
        return tenants


def _rows(tenant: Status) -> Iterator[Row]:
    name, in_flight = tenant["id"], str(tenant["in_flight"])
    quotas = tenant["quotas"]
    if not quotas:
        why = "no quotas" if quotas is not None else "the store does not answer"
        yield (name, in_flight, why, "", "", "", "")
    for quota in quotas or ():
        amounts = (str(quota[key]) for key in ("used", "limit", "remaining"))
        yield (name, in_flight, _title(quota), *amounts, f"{quota['reset_s']:.0f} s")
        name = in_flight = ""  # told once a tenant


def _title(quota: Status) -> str:
    models = f" for models {quota['models']}" if quota["models"] else ""
    shadow = " (shadow)" if quota["shadow"] else ""
    return f"{quota['name']}{models}{shadow}"


def _line(row: Row, widths: Sequence[int]) -> str:
    cells = (
        text.ljust(width) if place in _TEXTS else text.rjust(width)
        for place, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return seconds
