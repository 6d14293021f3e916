"""Accepting on a socket that others accept on as well."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

import aiohttp
import pytest
import trustme
from aiohttp import web

from gateway.edge import sharing
from gateway.edge.sharing import SharedSite
from gateway.edge.tasks import Tasks


class Exhausted(socket.socket):
    """A socket whose first accepts find no descriptor free."""

    failures = 0

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.fixture
def shared():
    with Exhausted(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@pytest.fixture
async def sites(shared):
    """Two processes' worth of sites on one socket, each of which says who it is."""
    runners, sites, tasks = [], [], Tasks()
    for name in ("one", "other"):

        async def answer(request, name=name):
            return web.Response(text=name)

        runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        sites.append(SharedSite(runner, shared.dup(), 128, tasks))
    yield sites
    for runner in runners:
        await runner.cleanup()
    await tasks.cancel()


async def ask(shared):
    url = "http://{}:{}".format(*shared.getsockname())
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        return await answer.text()


async def test_connections_that_come_together_go_to_both(shared, sites):
    for site in sites:
        await site.start()
    answers = await asyncio.gather(*(ask(shared) for _ in range(20)))
    assert min(answers.count("one"), answers.count("other")) >= 5


async def test_who_stops_leaves_the_socket_to_the_other(shared, sites):
    one, other = sites
    await one.start()
    await other.start()
    await one.stop()
    assert {await ask(shared) for _ in range(5)} == {"other"}
    await other.stop()
    shared.close()  # the supervisor's
    with pytest.raises(OSError, match="Bad file"):
        await ask(shared)


async def test_it_waits_where_no_descriptor_is_free(shared, monkeypatch, caplog):
    monkeypatch.setattr(sharing, "EXHAUSTED", 0.05)

    async def answer(request):
        return web.Response(text="one")

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    shared.failures = 2
    site = SharedSite(runner, shared, 128, Tasks())
    await site.start()
    began = asyncio.get_running_loop().time()
    assert await ask(shared) == "one"
    assert asyncio.get_running_loop().time() - began >= 0.1
    assert caplog.text.count("Too many open files") == 2
    await runner.cleanup()


async def test_each_process_speaks_tls_by_itself(shared):
    authority = trustme.CA()
    accepting, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(accepting)
    authority.configure_trust(trusting)

    async def answer(request):
        return web.Response(text="secret" if request.secure else "open")

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    site = SharedSite(runner, shared, 128, Tasks(), accepting)
    await site.start()
    url = "https://{}:{}".format(*shared.getsockname())
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            await http.get(url.replace("https", "http"))
        async with http.get(url, ssl=trusting) as got:
            assert await got.text() == "secret"
    await runner.cleanup()
