"""What the commands on a live engine share: their arguments, and asking it what it holds."""

from __future__ import annotations

import argparse
import asyncio
import os

import aiohttp

from gateway.edge.discovery import Discovery
from gateway.edge.probing import Prober
from gateway.engines import detect

ATTEMPTS = 3
PAUSE = 1.0  # seconds between attempts at a worker that does not answer
DEADLINE = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which engine, and how to reach it."""
    parser.add_argument("--backend", metavar="URL", required=True)
    parser.add_argument("--engine", default="auto", choices=("auto", *detect.NAMES))
    parser.add_argument(
        "--worker",
        metavar="URL",
        action="append",
        default=[],
        help="a worker behind a router that does not tell it; repeatable",
    )
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable with the engine's key"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def address(args: argparse.Namespace) -> str:
    """The backend's URL, to which paths are added."""
    return str(args.backend).rstrip("/")


def prober(session: aiohttp.ClientSession, args: argparse.Namespace, deadline: float) -> Prober:
    """Asks with the engine's key. ``deadline`` in seconds."""
    # From the environment: a key in the arguments would show in the process list.
    key = os.environ.get(args.api_key_env) if args.api_key_env else None  # noqa: TID251
    return Prober(session, key, deadline)


async def discovered(session: aiohttp.ClientSession, args: argparse.Namespace) -> Discovery:
    """The engine and all its workers, asked until each has answered or ``ATTEMPTS`` are over."""
    discovery = Discovery(
        "backend",
        address(args),
        prober(session, args, DEADLINE),
        engine_name=args.engine,
        extra_workers=args.worker,
        clock=asyncio.get_running_loop().time,
    )
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(PAUSE)
        await discovery.round()
        if all(seen.trouble is None for seen in discovery.snapshot.workers.values()):
            break
    return discovery
