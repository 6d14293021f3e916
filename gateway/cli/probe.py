"""``poolgate probe``: look for other prompts' text in a live engine's answers at its limit."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
from pathlib import Path

import aiohttp
import msgspec

from gateway.cli import junit, live
from gateway.core import probe
from gateway.core.probe import Check, Report
from gateway.edge.probe_run import Measure, Plan, ProbeRun, engine_measure, local_measure
from gateway.engines.base import Engine
from gateway.tokens.assets import AssetError, AssetStore
from gateway.tokens.counters import EngineCounters
from gateway.types import Verdict


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "probe",
        help="look for leaks on a live engine",
        description="Fill a live engine's memory as one tenant, ask as another at the limit and"
        " over it, and look for the first one's words. For canary or drained backends: it costs"
        " long prompts and evicts caches. Exit 0: clean. 1: leak or wrong boundary. 3: could not"
        " run.",
    )
    live.add_arguments(parser)
    parser.add_argument("--model", required=True, metavar="M", help="as the engine calls it")
    parser.add_argument(
        "--tokenizer",
        metavar="T",
        help="as for count: makes prompts of exact lengths (default: ask the engine)",
    )
    parser.add_argument("--tokenizers", type=Path, metavar="DIR", help="another tokenizers folder")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write JUnit XML")
    parser.add_argument(
        "--pairs", type=_count, default=1, metavar="N", help="rounds of every check (1)"
    )
    parser.add_argument(
        "--long", action="store_true", help="write the whole pool before each question"
    )
    parser.add_argument(
        "--idle", type=_seconds, default=5.0, metavar="S", help="seconds without work (5)"
    )
    parser.add_argument(
        "--detection",
        type=probe.detection,
        metavar="Q",
        help="share of leaks that such a probe sees, 0.4 or K/N as measured (default: unknown)",
    )
    parser.add_argument(
        "--timeout", type=_seconds, default=600.0, metavar="S", help="an answer (600)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The probe's exit status."""
    try:
        report = asyncio.run(_probe(args))
        if args.junit:
            junit.write(args.junit, "poolgate.probe", map(_case, report.checks))
    except (AssetError, OSError) as error:
        print(f"cannot probe: {error}", file=sys.stderr)
        return int(probe.Exit.COULD_NOT_RUN)
    print(json.dumps(_as_json(report), indent=2) if args.json else _ending(report))
    return int(report.exit)


async def _probe(args: argparse.Namespace) -> Report:
    # A long prompt takes longer than aiohttp's own five minutes: the prober has the deadline.
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        discovery = await live.discovered(session, args)
        now = asyncio.get_running_loop().time()
        known = probe.stated_limit(discovery.snapshot, args.model, now)
        engine = discovery.engine
        if isinstance(known, Check) or engine is None:
            checks = (known,) if isinstance(known, Check) else ()
            _tell(args, checks)
            return Report(checks)
        prober = live.prober(session, args, args.timeout)
        context, pool = probe.sizes(discovery.snapshot)
        plan = Plan(
            args.model,
            secrets.token_bytes(32),
            known,
            context=context,
            pool=pool,
            pairs=args.pairs,
            whole_pool=args.long,
            idle=args.idle,
        )
        measure = (
            _local_measure(args, engine)
            if args.tokenizer
            else engine_measure(engine, live.address(args), args.model, prober)
        )
        runner = ProbeRun(
            plan, live.address(args), engine, prober, measure, lambda check: _tell(args, (check,))
        )
        return Report(await runner.run(), known, args.detection)


def _local_measure(args: argparse.Namespace, engine: Engine) -> Measure:
    counters = EngineCounters(AssetStore.open(args.tokenizers), args.tokenizer)
    return local_measure(counters, engine.name)


def _tell(args: argparse.Namespace, checks: tuple[Check, ...]) -> None:
    """One line a check as it is made: a probe of a large engine takes minutes."""
    if args.json:
        return
    for check in checks:
        print(f"{check.verdict.upper():<12} {_name(check)}: {check.text}", flush=True)


def _name(check: Check) -> str:
    return check.check if check.tokens is None else f"{check.check} {check.tokens} tokens"


def _ending(report: Report) -> str:
    limit = "unknown" if report.limit is None else f"{report.limit} tokens"
    outcome = report.exit.name.replace("_", " ").lower()
    return f"limit: {limit}\nleak rate: {report.bound_text}\nprobe: {outcome}"


def _as_json(report: Report) -> dict[str, object]:
    return {
        "verdict": report.exit.name.lower(),
        "exit": int(report.exit),
        "limit": report.limit,
        "clean_answers": report.clean_answers,
        "detection": msgspec.to_builtins(report.detection),
        "leak_rate_bound": report.bound,
        "leak_rate": report.bound_text,
        "checks": [msgspec.to_builtins(check) for check in report.checks],
    }


def _case(check: Check) -> junit.Case:
    # What had to be checked and could not be is no pass, and CI shows a skip as harmless.
    failed = check.at_fault or check.missing
    passed = check.verdict is Verdict.OK
    return junit.Case(
        _name(check),
        check.text,
        failure=check.text if failed else None,
        skipped=None if failed or passed else check.text,
    )


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _seconds(text: str) -> float:
    if not (number := float(text)) > 0:
        raise ValueError(text)
    return number
