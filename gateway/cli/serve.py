"""``poolgate serve``: run the gateway until a signal ends it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import uvloop

from gateway.app import App
from gateway.cli.config_file import own_environment, read_written
from gateway.edge.access_log import AccessLog
from gateway.edge.logs import log_to_stderr
from gateway.edge.tasks import unless
from gateway.settings import Problem, Settings, SettingsError, for_backend, with_addresses
from gateway.supervise.handover import Written
from gateway.supervise.supervisor import StartError, Supervisor
from gateway.supervise.worker import settle_memory

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
    """Exit status 0 after a drain, 2 for a bad configuration, 1 where it cannot start."""
    log_to_stderr()
    _raise_open_files()
    try:
        return uvloop.run(_serve(args))
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG
    except StartError as error:  # the worker has told what is wrong
        print(f"cannot start: {error}", file=sys.stderr)
        return error.status
    except OSError as error:
        print(f"cannot listen: {error.strerror or error}", file=sys.stderr)
        return 1


def _raise_open_files() -> None:
    """A shell's soft limit, often 1024, would be met long before ``connections.total``."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Gateway(Protocol):
    """A gateway of one process or of several."""

    @property
    def settings(self) -> Settings:
        """The configuration in force."""

    @property
    def data_url(self) -> str:
        """Where clients go."""

    @property
    def admin_url(self) -> str:
        """Where operators go."""

    async def drain(self) -> bool:
        """End what runs, in its own time."""

    async def stop(self) -> None:
        """End everything at once."""


async def _serve(args: argparse.Namespace) -> int:
    settings, written = _read(args)
    log_to_stderr(settings.logging)
    if written is None or settings.workers == 1:
        return await _serve_alone(args, settings)
    workers = Supervisor(settings, written, own_environment(), access_log=not args.no_access_log)

    async def reload() -> None:
        changed, text = await _read_again(args, workers)
        if text is not None:
            await workers.reload(changed, text)

    return await _until_told(workers, workers.start, reload)


async def _serve_alone(args: argparse.Namespace, settings: Settings) -> int:
    """In this process."""
    app = App(access_log=None if args.no_access_log else AccessLog(sys.stdout.buffer))

    async def start() -> None:
        await app.start(settings)
        settle_memory()

    async def reload() -> None:
        changed, _ = await _read_again(args, app)
        await app.reload(changed)

    return await _until_told(app, start, reload)


async def _until_told(
    gateway: Gateway,
    start: Callable[[], Coroutine[Any, Any, None]],
    reload: Callable[[], Coroutine[Any, Any, None]],
) -> int:
    """From start to the end: one SIGTERM drains, a second one ends at once."""
    told = _Told()
    try:
        if not await unless(start(), told.end.wait()):
            return 0
        for notice in gateway.settings.notices:
            log.warning("%s", notice)
        log.info("listening on %s, admin on %s", gateway.data_url, gateway.admin_url)
        await unless(_reload_when(told.reload, gateway, reload), told.end.wait())
        log.info("draining for up to %gs", gateway.settings.drain)
        if not await unless(gateway.drain(), told.at_once.wait()):
            log.warning("told to end once more: what runs is cut off")
    finally:
        await gateway.stop()
    return 0


class _Told:
    """What signals have asked for. Nothing told is lost, whatever is being done meanwhile."""

    def __init__(self) -> None:
        self.reload, self.end, self.at_once = asyncio.Event(), asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.reload.set)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)

    def _end(self) -> None:
        (self.at_once if self.end.is_set() else self.end).set()


async def _reload_when(
    told: asyncio.Event, gateway: Gateway, reload: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Whenever it is told, for ever."""
    while True:
        await told.wait()
        told.clear()
        await _reload(gateway, reload)


async def _reload(gateway: Gateway, reload: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A bad file changes nothing."""
    try:
        await reload()
    except SettingsError as error:
        log.error("reload refused, the old configuration stays: %s", error)  # noqa: TRY400
    else:
        log_to_stderr(gateway.settings.logging)
        log.info("configuration reloaded")


def _read(args: argparse.Namespace) -> tuple[Settings, Written | None]:
    """What the file says, with its text, or the one backend; the command's addresses go first."""
    addresses = {"listen": args.listen, "admin": args.admin}
    if args.config is None:
        settings = for_backend(
            args.backend, engine=args.engine, tokenizer=args.tokenizer, **addresses
        )
        return settings, None
    settings, text = read_written(args.config)
    return with_addresses(settings, **addresses), text


async def _read_again(
    args: argparse.Namespace, gateway: Gateway
) -> tuple[Settings, Written | None]:
    """For a reload: on a thread, for a file with many tenants takes seconds."""
    changed, text = await asyncio.to_thread(_read, args)
    if changed.workers != gateway.settings.workers:
        raise SettingsError([Problem("workers", "cannot change without a restart")])
    return changed, text
