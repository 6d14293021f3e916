"""A worker process: a gateway on sockets it inherits, told what to serve by its supervisor.

``python -m gateway.supervise.worker INDEX ADMIN-FD DATA-FD...``, started by
``gateway.supervise.process`` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import select
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web

from gateway.app import App
from gateway.edge import peers
from gateway.edge.access_log import AccessLog
from gateway.edge.logs import log_to_stderr
from gateway.edge.tasks import unless
from gateway.settings import Problem, SettingsError
from gateway.supervise import merge
from gateway.supervise.handover import Handover, LastWords, Written
from gateway.supervise.peers import PEERS
from gateway.supervise.process import CONFIG, END_AT_ONCE, SERIES

log = logging.getLogger(__name__)
EXIT_BAD_CONFIG = 2


def main(arguments: Sequence[str]) -> int:
    """Serve until told to end: 0; 2 where the configuration cannot be served."""
    index, admin, *data = (int(argument) for argument in arguments)
    log_to_stderr(worker=index)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # reloads come from the supervisor
    with socket.socket(fileno=0) as lifeline:
        handover = msgspec.json.decode(lifeline.makefile("rb").readline(), type=Handover)
        try:
            words = uvloop.run(
                _work(index, handover, lifeline, [_inherited(fd) for fd in data], _inherited(admin))
            )
        except SettingsError as error:
            print(error, file=sys.stderr)
            return EXIT_BAD_CONFIG
        lifeline.setblocking(True)
        with contextlib.suppress(OSError):  # the supervisor is gone: nobody asks
            lifeline.sendall(msgspec.json.encode(words))
    return 0


def settle_memory() -> None:
    """Keep the garbage collector from walking what start-up made, over and over.

    Tokenizers and libraries are hundreds of thousands of objects that never die; walking them took
    a fifth of a short request's time. What requests make is freed by reference counting.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    _give_back()


def _give_back() -> None:
    """Hand freed memory to the system: of loading a tokenizer, malloc would keep 140 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others have none
    if trim is not None:
        trim(0)


async def _work(
    index: int,
    handover: Handover,
    lifeline: socket.socket,
    data: Sequence[socket.socket],
    admin: socket.socket,
) -> LastWords:
    """From start to the end of what was begun; raises ``SettingsError``."""
    loop = asyncio.get_running_loop()
    drain, at_once, alone = asyncio.Event(), asyncio.Event(), asyncio.Event()
    folder = Path(admin.getsockname()).parent
    # Service managers may signal every process, and the supervisor then signals once more:
    # a second SIGTERM must mean the same as the first.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain.set)
    loop.add_signal_handler(END_AT_ONCE, at_once.set)
    lifeline.setblocking(False)
    loop.add_reader(lifeline, _supervisor_gone, lifeline, drain, alone)
    # Pipes keep writes of up to PIPE_BUF bytes whole among several writers.
    lines = AccessLog(sys.stdout.buffer, select.PIPE_BUF) if handover.access_log else None
    app = App(
        access_log=lines,
        secret=handover.secret,
        shared=folder,
        probes=handover.probes,
        routes=[
            web.put(CONFIG, lambda request: _take(app, index, request)),
            web.put(PEERS, lambda request: _hear(app, request)),
            web.put(SERIES, lambda _: _tell(app)),
        ],
    )
    try:
        settings = handover.written.settings()
        log_to_stderr(settings.logging, index)
        await app.start(settings, data=data, admin=[admin])
        settle_memory()
        if await unless(drain.wait(), at_once.wait()):
            await unless(app.drain(), at_once.wait())
    finally:
        loop.remove_reader(lifeline)
        await app.stop()
        if alone.is_set():
            shutil.rmtree(folder, ignore_errors=True)  # as the supervisor would have
    return LastWords(
        merge.packed(app.metrics.registry.collect()),
        [msgspec.Raw(msgspec.json.encode(incident)) for incident in app.recorder.incidents],
    )


async def _take(app: App, index: int, request: web.Request) -> web.Response:
    """Serve under another configuration, or tell what is against it and go on as before."""
    # Not request.read(), which refuses more than a megabyte: tenants can be many.
    written = msgspec.json.decode(await request.content.read(), type=Written)
    problems: Sequence[Problem] = ()
    try:
        # On a thread: with many tenants it takes seconds, and requests go on.
        await app.reload(await asyncio.to_thread(written.settings))
    except SettingsError as error:
        problems = error.problems
    else:
        log_to_stderr(app.settings.logging, index)
    return web.Response(body=msgspec.json.encode(problems), content_type="application/json")


async def _hear(app: App, request: web.Request) -> web.Response:
    """Take the other workers' word, and give this one's."""
    backends = app.generation.runtime.backends
    peers.hear(backends, msgspec.json.decode(await request.read(), type=peers.Word))
    return web.Response(
        body=msgspec.json.encode(peers.tell(backends)), content_type="application/json"
    )


async def _tell(app: App) -> web.Response:
    """What the admin plane has as text, in the form that the supervisor sums."""
    body = await app.scrape(lambda: merge.packed(app.metrics.registry.collect()))
    return web.Response(body=body)


def _supervisor_gone(lifeline: socket.socket, drain: asyncio.Event, alone: asyncio.Event) -> None:
    """Nobody starts a successor then: end in good order."""
    asyncio.get_running_loop().remove_reader(lifeline)
    log.warning("the supervisor is gone: draining")
    alone.set()
    drain.set()


def _inherited(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
