"""``poolgate gate``: fail a rollout when the live engine's pool and context disagree."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os

import aiohttp

from gateway.core import gate
from gateway.edge.discovery import Discovery
from gateway.edge.probing import Prober
from gateway.engines import detect

ATTEMPTS = 3
PAUSE = 1.0  # seconds between attempts at a worker that does not answer
PROBE_DEADLINE = 10.0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "gate",
        help="deploy gate on a live engine",
        description="Hold a live engine, and every worker behind it, against the incident's"
        " checklist. Exit 0: pass. 1: fail. 3: a limit is not exposed (fail closed).",
    )
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
        "--context", metavar="N", type=int, help="the context promised (default: as advertised)"
    )
    parser.add_argument("--headroom", type=float, default=1.25, help="pool over context (1.25)")
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable with the engine's key"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The gate's exit status."""
    report = asyncio.run(_examine(args))
    print(json.dumps(_as_json(report), indent=2) if args.json else _as_text(report))
    return int(report.exit)


async def _examine(args: argparse.Namespace) -> gate.Report:
    async with aiohttp.ClientSession() as session:
        discovery = Discovery(
            "gate",
            args.backend.rstrip("/"),
            Prober(session, _api_key(args), PROBE_DEADLINE),
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
        return gate.evaluate(discovery.snapshot, context=args.context, headroom=args.headroom)


def _api_key(args: argparse.Namespace) -> str | None:
    """From the environment: a key in the arguments would show in the process list."""
    return os.environ.get(args.api_key_env) if args.api_key_env else None  # noqa: TID251


def _as_json(report: gate.Report) -> dict[str, object]:
    return {
        "verdict": report.exit.name.lower(),
        "exit": int(report.exit),
        "context": report.context,
        "headroom": report.headroom,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
    }


def _as_text(report: gate.Report) -> str:
    lines = [
        f"{finding.level.upper():<12} {finding.check:<11} {finding.worker}: {finding.text}"
        for finding in report.findings
    ]
    return "\n".join([*lines, f"gate: {report.exit.name.replace('_', ' ').lower()}"])
