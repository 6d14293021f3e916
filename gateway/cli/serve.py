"""``poolgate serve``: run the gateway until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import uvloop

from gateway.app import App
from gateway.cli.config_file import read_settings
from gateway.settings import Settings, SettingsError, for_backend, with_addresses

log = logging.getLogger("poolgate")
EXIT_BAD_CONFIG = 2


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "serve",
        help="run the gateway",
        description="Run the gateway in front of the engines of a configuration, or of one engine"
        " given by its URL. SIGHUP reloads the configuration, SIGTERM drains and exits 0.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", metavar="FILE", type=Path, help="the configuration (YAML)")
    source.add_argument("--backend", metavar="URL", help="one engine, detected; no file needed")
    parser.add_argument("--engine", default="auto", help="with --backend: which engine it is")
    parser.add_argument("--tokenizer", help="with --backend: a name in tokenizers/, or a path")
    parser.add_argument("--listen", metavar="HOST:PORT", help="data plane (127.0.0.1:8080)")
    parser.add_argument("--admin", metavar="HOST:PORT", help="admin plane (127.0.0.1:9090)")
    parser.add_argument(
        "--no-access-log", action="store_true", help="no JSON line per request on standard output"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit status 0 after a drain, 2 for a bad configuration."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )

    def read() -> Settings:
        addresses = {"listen": args.listen, "admin": args.admin}
        if args.config is None:
            return for_backend(
                args.backend, engine=args.engine, tokenizer=args.tokenizer, **addresses
            )
        return with_addresses(read_settings(args.config), **addresses)

    try:
        settings = read()
        return uvloop.run(
            _serve(settings, read, access_log=None if args.no_access_log else sys.stdout.buffer)
        )
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG
    except OSError as error:
        print(f"cannot listen: {error.strerror or error}", file=sys.stderr)
        return 1


async def _serve(
    settings: Settings, read: Callable[[], Settings], access_log: BinaryIO | None
) -> int:
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    app = App(access_log=access_log)
    try:
        await app.start(settings)
        _settle_memory()
        for notice in settings.notices:
            log.warning("%s", notice)
        log.info("listening on %s, admin on %s", app.data_url, app.admin_url)
        while await signals.get() is signal.SIGHUP:
            await _reload(app, read)
        log.info("draining for up to %gs", app.settings.drain)
        await app.drain()
    finally:
        await app.stop()
    return 0


def _settle_memory() -> None:
    """Keep the garbage collector from walking what start-up made, over and over.

    Tokenizers and libraries are hundreds of thousands of objects that never die; walking them took
    a fifth of a short request's time. What requests make is freed by reference counting.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


async def _reload(app: App, read: Callable[[], Settings]) -> None:
    """A bad file changes nothing."""
    try:
        await app.reload(read())
    except SettingsError as error:
        log.error("reload refused, the old configuration stays: %s", error)  # noqa: TRY400
    else:
        log.info("configuration reloaded")
