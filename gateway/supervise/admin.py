"""The admin plane of all workers: asked once, answered for all."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from gateway import __version__
from gateway.core import troubles
from gateway.edge import page
from gateway.edge.admin import JSON
from gateway.settings import HostPort
from gateway.supervise import merge
from gateway.supervise.ledger import INCIDENTS, Ledger
from gateway.supervise.process import Answer, Silent, Slot, Worker


class Admin:
    """Answers operators by asking the workers. ``draining`` is the supervisor's to set."""

    def __init__(self, slots: Sequence[Slot], ledger: Ledger) -> None:
        self._slots = slots
        self._ledger = ledger
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self.draining = False
        self._runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=1.0)
        self.port = 0

    def application(self) -> web.Application:
        """Its routes. None takes a PUT: that is how the supervisor itself tells workers."""
        application = page.application()
        application.add_routes(
            [
                web.get("/healthz", self.healthz),
                web.get("/readyz", self.readyz),
                web.get("/metrics", self.metrics),
                web.get("/status", self.status),
                web.get("/overview", self.overview),
                web.get("/incidents", self.incidents),
                web.get("/{page:.*}", self.any_worker),
                web.post("/{action:.*}", self.every_worker),
            ]
        )
        return application

    async def start(self, address: HostPort, context: ssl.SSLContext | None) -> None:
        """Listen. Raises ``OSError`` where the address is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, address.host, address.port, ssl_context=context).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Answer nobody any more."""
        await self._runner.cleanup()

    async def healthz(self, _request: web.Request) -> web.Response:
        """The supervisor lives; workers, engines and stores have no say."""
        return web.json_response({"status": "ok"})

    async def readyz(self, _request: web.Request) -> web.Response:
        """Half of the workers or more are ready, and each that takes requests is.

        One that is being started takes none, and the others serve in its stead.
        """
        answers = await self._ask_all("GET", "/readyz")
        waiting = [
            {"process": index, **wait}
            for index, answer in answers.items()
            for wait in _decoded(answer).get("waiting_for", ())
        ]
        ready = sum(answer.status == 200 for answer in answers.values())
        enough = ready == len(answers) and 2 * ready >= len(self._slots)
        good = enough and not self.draining
        body = {
            "ready": good,
            "draining": self.draining,
            "processes_ready": ready,
            "processes": len(self._slots),
            "waiting_for": waiting,
        }
        return web.json_response(body, status=200 if good else 503)

    async def metrics(self, _request: web.Request) -> web.Response:
        """The scrape of all workers, summed."""
        return web.Response(
            body=await self._ledger.metrics(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def status(self, _request: web.Request) -> web.Response:
        """As of one process, with the sums of all, and each process by itself."""
        answers = await self._ask_all("GET", "/status")
        each = {index: _decoded(answer) for index, answer in answers.items()}
        body = merge.status(list(each.values())) | {
            "version": __version__,
            "uptime_s": round(self._clock() - self._started, 1),
            "draining": self.draining,
            "processes": [self._process(slot, each.get(slot.index)) for slot in self._slots],
        }
        return web.Response(body=msgspec.json.encode(body), content_type=JSON)

    async def overview(self, _request: web.Request) -> web.Response:
        """What the page at ``/`` shows, of all workers; checks are counted of those ended too."""
        answers = await self._ask_all("GET", "/overview")
        parts = [_decoded(answer) for answer in answers.values()]
        body = merge.overview(parts, self._ledger.ended) | {
            "version": __version__,
            "uptime_s": round(self._clock() - self._started, 1),
            "draining": self.draining,
            "processes": [self._process(slot, None) for slot in self._slots],
        }
        body["verdict"] = troubles.verdict(body)
        return web.Response(body=msgspec.json.encode(body), content_type=JSON)

    async def incidents(self, request: web.Request) -> web.Response:
        """The latest incidents of all workers, newest first.

        With a query, which each worker applies, only of those that run.
        """
        if not request.query:
            return web.Response(
                body=msgspec.json.encode(await self._ledger.incidents()), content_type=JSON
            )
        answers = list((await self._ask_all("GET", request.raw_path)).values())
        if bad := next((answer for answer in answers if answer.status != 200), None):
            return _passed_on(bad)
        found = [one for answer in answers for one in msgspec.json.decode(answer.body)]
        return web.Response(
            body=msgspec.json.encode(merge.newest_first(found, _most(request))), content_type=JSON
        )

    async def any_worker(self, request: web.Request) -> web.Response:
        """What only a worker can show: the first that answers does."""
        for worker in self._up():
            try:
                return _passed_on(await worker.ask("GET", request.raw_path))
            except Silent:
                continue
        raise web.HTTPServiceUnavailable(text="no worker answers")

    async def every_worker(self, request: web.Request) -> web.Response:
        """What is to be done is done by every worker; the worst answer is told."""
        answers = await self._ask_all("POST", request.raw_path, await request.read())
        if not answers:
            raise web.HTTPServiceUnavailable(text="no worker answers")
        return _passed_on(max(answers.values(), key=lambda answer: answer.status))

    def _process(self, slot: Slot, status: dict[str, Any] | None) -> dict[str, Any]:
        worker = slot.worker
        return {
            "process": slot.index,
            "pid": worker.pid if worker else None,
            "state": "absent" if worker is None else "up" if worker.up else "starting",
            "uptime_s": round(self._clock() - worker.started, 1) if worker else None,
            "restarts": slot.restarts,
            "status": status,
        }

    def _up(self) -> list[Worker]:
        return [slot.worker for slot in self._slots if slot.worker and slot.worker.up]

    async def _ask_all(self, method: str, path: str, body: bytes = b"") -> dict[int, Answer]:
        """The answers there are, by the worker's slot."""
        workers = self._up()
        answers = await asyncio.gather(
            *(worker.ask(method, path, body) for worker in workers), return_exceptions=True
        )
        return {
            worker.index: answer
            for worker, answer in zip(workers, answers, strict=True)
            if isinstance(answer, Answer)
        }


def _decoded(answer: Answer) -> dict[str, Any]:
    return msgspec.json.decode(answer.body, type=dict[str, Any])


def _passed_on(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, content_type=answer.content_type)


def _most(request: web.Request) -> int:
    """The limit of a query that every worker has found to be in order."""
    return int(request.query.get("limit", INCIDENTS))
