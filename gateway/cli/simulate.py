"""``poolgate simulate``: the simulated prefill/decode engine as a server."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from gateway.simulate.faults import Faults
from gateway.simulate.pages import FreeOrder
from gateway.simulate.server import Handle, serve
from gateway.simulate.settings import SimulateSettings
from gateway.simulate.text import Habits
from gateway.simulate.timing import Timing

BAD_USAGE = 2


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand; its ``run`` takes the parsed arguments and returns the exit code."""
    defaults = SimulateSettings()
    parser = subparsers.add_parser(
        "simulate",
        help="run the simulated PD engine",
        description="Serve a simulated prefill/decode engine whose text follows its memory. "
        "Without options it has the incident's fault (to_finish).",
    )
    parser.add_argument(
        "--bug",
        action="append",
        default=[],
        metavar="NAME[,NAME]",
        help=f"a fault to switch on, repeatable: {', '.join(Faults.names())}",
    )
    parser.add_argument("--fixed", action="store_true", help="rejection is terminal: 400")
    parser.add_argument("--listen", default="127.0.0.1:30000", metavar="HOST:PORT")
    sizes = {
        "--context": (defaults.context, "advertised window, tokens"),
        "--prefill-pool": (defaults.prefill_pool, "KV pool of the prefill leg, tokens"),
        "--decode-pool": (defaults.decode_pool, "KV pool of the decode leg, tokens"),
        "--page-size": (defaults.page_size, "tokens a page"),
        "--seed": (defaults.seed, "same seed and requests, same answers"),
    }
    for name, (value, text) in sizes.items():
        parser.add_argument(name, type=int, default=value, help=f"{text} (default {value})")
    rates = {
        "--q-copy": (defaults.habits.q_copy, "chance that a segment is copied from foreign memory"),
        "--prefill-rate": (defaults.timing.prefill_tokens_per_second, "tokens/s; 0 is instant"),
        "--base-latency": (defaults.timing.base, "seconds before every first token"),
        "--inter-token-latency": (defaults.timing.inter_token, "seconds from token to token"),
    }
    for name, (rate, text) in rates.items():
        parser.add_argument(name, type=float, default=rate, help=f"{text} (default {rate:g})")
    parser.add_argument(
        "--free-order", choices=[order.value for order in FreeOrder], default=FreeOrder.FIFO.value
    )
    parser.add_argument("--scrub-on-free", action="store_true", help="clear freed pages")
    parser.add_argument("--no-router", action="store_true", help="answer as the prefill worker")
    parser.add_argument("--model", default=defaults.model)
    parser.add_argument("--engine-version", default=defaults.version, help="version it states")
    parser.add_argument("--tokenizer", type=Path, default=defaults.tokenizer, metavar="DIR")
    parser.add_argument("--oracle", type=Path, metavar="FILE", help="append the truth, JSON lines")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM: 0. Bad options, or a port that is taken: 2."""
    try:
        settings = settings_of(args)
        host, port = _address(args.listen)
        uvloop.run(_serve(settings, host, port))
    except (ValueError, OSError) as error:
        print(f"poolgate simulate: {error}", file=sys.stderr)
        return BAD_USAGE
    return 0


def settings_of(args: argparse.Namespace) -> SimulateSettings:
    """The settings that parsed options ask for. Raises ValueError."""
    return SimulateSettings(
        seed=args.seed,
        model=args.model,
        version=args.engine_version,
        context=args.context,
        prefill_pool=args.prefill_pool,
        decode_pool=args.decode_pool,
        page_size=args.page_size,
        free_order=FreeOrder(args.free_order),
        scrub_on_free=args.scrub_on_free,
        faults=_faults(args.bug, fixed=args.fixed),
        habits=replace(Habits(), q_copy=args.q_copy),
        timing=Timing(
            base=args.base_latency,
            prefill_tokens_per_second=args.prefill_rate,
            inter_token=args.inter_token_latency,
        ),
        tokenizer=args.tokenizer,
        oracle=args.oracle,
        router=not args.no_router,
    )


def _faults(given: list[str], *, fixed: bool) -> Faults:
    names = [name.strip() for item in given for name in item.split(",") if name.strip()]
    if fixed and "to_finish" in names:
        raise ValueError("--fixed and --bug to_finish exclude each other")
    return Faults.named(names if names or fixed else ["to_finish"])


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"--listen {text}: HOST:PORT is required")
    return host.strip("[]") or "127.0.0.1", int(port)


async def _serve(settings: SimulateSettings, host: str, port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await serve(settings, host, port, _announce, stop)


def _announce(handle: Handle) -> None:
    settings = handle.service.settings
    print(
        f"simulated engine on {handle.url}: context {settings.context}, longest prompt it can "
        f"hold {settings.max_prompt_tokens}",
        flush=True,
    )
