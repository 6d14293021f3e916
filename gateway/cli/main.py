"""The ``poolgate`` command: one module a subcommand, each with ``register`` and ``run``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gateway import __version__
from gateway.cli import (
    check_config,
    count,
    demo,
    gate,
    keys,
    probe,
    serve,
    simulate,
    tenants,
    tokenizers,
)

COMMANDS = (serve, check_config, gate, probe, count, tokenizers, keys, tenants, simulate, demo)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = argparse.ArgumentParser(
        prog="poolgate",
        description="Edge gateway for LLM engines: no over-long prompt reaches the engine, no"
        " foreign text reaches the client.",
    )
    root.add_argument("--version", action="version", version=f"poolgate {__version__}")
    subparsers = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(subparsers)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; its exit code is the contract's."""
    args = parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
