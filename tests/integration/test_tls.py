"""TLS to clients, operators and engines, with certificates of an authority made for the test."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from contextlib import asynccontextmanager

import aiohttp
import pytest
import trustme

from gateway.settings import SettingsError
from integration.conftest import gateway_for, settings_for

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def files(tmp_path, authority):
    """Writes certificates; paths as the configuration has them."""

    def write(name, identity=HOST):
        pair = authority.issue_cert(identity)
        certificate, key = tmp_path / f"{name}.crt", tmp_path / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in pair.cert_chain_pems))
        key.write_bytes(pair.private_key_pem.bytes())
        return {"certificate": str(certificate), "key": str(key)}

    return write


@pytest.fixture
def ca(tmp_path, authority):
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def trusting(authority, pair=None):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if pair is not None:
        context.load_cert_chain(pair["certificate"], pair["key"])
    return context


async def call(http, app, context):
    url, close = app.data_url + "/v1/chat/completions", {"Connection": "close"}
    async with http.post(url, json=BODY, ssl=context, headers=close) as answer:
        return answer.status


async def serial(app, context):
    """Of the certificate that the data plane shows."""
    _, writer = await asyncio.open_connection(HOST, app.servers.data_port, ssl=context)
    shown = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return shown


async def test_clients_and_operators_are_spoken_to_over_tls(engine, http, authority, files):
    tls = {"tls": files("data"), "admin_tls": files("admin")}
    async with gateway_for(engine.url, **tls) as app:
        assert app.data_url.startswith("https://")
        assert await call(http, app, trusting(authority)) == 200
        ready = app.admin_url + "/readyz"
        async with http.get(ready, ssl=trusting(authority)) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await call(http, app, ssl.create_default_context())
        with pytest.raises(aiohttp.ClientError):
            await http.get(ready.replace("https", "http"))


async def test_only_clients_with_a_certificate_get_in(engine, http, authority, files, ca):
    async with gateway_for(engine.url, tls={**files("data"), "client_ca": ca}) as app:
        with pytest.raises(aiohttp.ClientError):
            await call(http, app, trusting(authority))
        assert await call(http, app, trusting(authority, files("client", "client"))) == 200
        stranger = trustme.CA().issue_cert("stranger")
        context = trusting(authority)
        stranger.configure_cert(context)
        with pytest.raises(aiohttp.ClientError):
            await call(http, app, context)


async def test_the_oldest_version_is_the_operators_choice(engine, http, authority, files):
    async with gateway_for(engine.url, tls={**files("data"), "minimum": "1.3"}) as app:
        old = trusting(authority)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(aiohttp.ClientError):
            await call(http, app, old)
        assert await call(http, app, trusting(authority)) == 200


async def test_a_reload_renews_the_certificate(engine, http, authority, files):
    tls = files("data")
    async with gateway_for(engine.url, tls=tls) as app:
        first = await serial(app, trusting(authority))
        files("data")
        assert await serial(app, trusting(authority)) == first
        await app.reload(settings_for(engine.url, tls=tls))
        assert await serial(app, trusting(authority)) != first
        assert await call(http, app, trusting(authority)) == 200


async def test_a_reload_with_half_a_pair_changes_nothing(engine, http, authority, files):
    tls = files("data")
    async with gateway_for(engine.url, tls=tls) as app:
        first = await serial(app, trusting(authority))
        with open(tls["key"], "w") as key, open(files("other")["key"]) as other:
            key.write(other.read())
        with pytest.raises(SettingsError, match=r"tls.certificate: cannot be used for TLS"):
            await app.reload(settings_for(engine.url, tls=tls))
        assert await serial(app, trusting(authority)) == first


async def test_a_reload_cannot_turn_tls_off_or_on(engine, files, ca):
    tls = files("data")
    async with gateway_for(engine.url, tls=tls) as app:
        for other in ({}, {"tls": {**tls, "client_ca": ca}}, {"tls": tls, "admin_tls": tls}):
            with pytest.raises(SettingsError, match="restart"):
                await app.reload(settings_for(engine.url, **other))


@pytest.mark.parametrize("missing", ["certificate", "key", "client_ca"])
async def test_a_file_that_is_not_there_is_named(engine, files, ca, tmp_path, missing):
    tls = {**files("data"), "client_ca": ca, missing: str(tmp_path / "none.pem")}
    with pytest.raises(SettingsError, match=r"tls\.\w+: cannot be used for TLS: No such file"):
        async with gateway_for(engine.url, tls=tls):
            pass


# --- engines ---------------------------------------------------------------------------------


@asynccontextmanager
async def ended_by_tls(url, pair, client_ca=None):
    """The engine behind a TLS port of its own."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair["certificate"], pair["key"])
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    port = int(url.rpartition(":")[2])

    async def copy(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                writer.write(data)
        writer.close()

    async def pipe(reader, writer):
        there, back = await asyncio.open_connection(HOST, port)
        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_server(pipe, HOST, 0, ssl=context)
    async with server:
        yield f"https://{HOST}:{server.sockets[0].getsockname()[1]}"


async def served(http, url, **tls):
    async with gateway_for(url, backend={"tls": tls} if tls else None) as app:
        return await call(http, app, None)


async def test_an_engine_is_reached_whose_authority_is_trusted(engine, http, files, ca):
    async with ended_by_tls(engine.url, files("engine")) as url:
        assert await served(http, url, ca=ca) == 200
        assert await served(http, url) == 503  # no limit is known: not even discovery trusts it


async def test_an_engine_with_another_name_is_not_trusted(engine, http, files, ca):
    async with ended_by_tls(engine.url, files("engine", "engine.example")) as url:
        assert await served(http, url, ca=ca) == 503


async def test_an_engine_that_wants_our_certificate_gets_it(engine, http, files, ca):
    async with ended_by_tls(engine.url, files("engine"), client_ca=ca) as url:
        assert await served(http, url, ca=ca) == 503
        assert await served(http, url, ca=ca, **files("gateway", "gateway")) == 200
