"""``poolgate gate``: fail a rollout when the live engine's pool and context disagree."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json

import aiohttp

from gateway.cli import live
from gateway.core import gate
from gateway.edge.books import read_books


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "gate",
        help="deploy gate on a live engine",
        description="Hold a live engine, and every worker behind it, against the incident's"
        " checklist. Exit 0: pass. 1: fail. 3: a limit is not exposed (fail closed).",
    )
    live.add_arguments(parser)
    parser.add_argument(
        "--context", metavar="N", type=int, help="the context promised (default: as advertised)"
    )
    parser.add_argument("--headroom", type=float, default=1.25, help="pool over context (1.25)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The gate's exit status."""
    report = asyncio.run(_examine(args))
    print(json.dumps(_as_json(report), indent=2) if args.json else _as_text(report))
    return int(report.exit)


async def _examine(args: argparse.Namespace) -> gate.Report:
    async with aiohttp.ClientSession() as session:
        snapshot = (await live.discovered(session, args)).snapshot
        transfer = None
        if gate.disaggregated(snapshot):
            prober = live.prober(session, args, live.DEADLINE)
            transfer = gate.transfer_finding(await read_books(snapshot, prober))
        return gate.evaluate(
            snapshot, context=args.context, headroom=args.headroom, transfer=transfer
        )


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
