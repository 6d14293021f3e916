"""What is peculiar to one engine changes how the gateway speaks to it, and to no other."""

from __future__ import annotations

import aiohttp
import pytest

from fakes.raw_engine import RawEngine
from integration.conftest import gateway_for

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("engine", "stream", "connection"),
    [("llama_cpp", True, ["close"]), ("llama_cpp", False, []), ("sglang", True, [])],
)
async def test_llama_server_is_told_to_hang_up_after_a_stream(engine, stream, connection):
    """It does so anyway, unannounced: the next request on that connection would be lost."""
    backend = {"engine": engine, "limit": {"when_unknown": "allow"}}
    async with (
        RawEngine().running() as raw,
        gateway_for(raw.url, backend=backend) as app,
        aiohttp.ClientSession() as http,
    ):
        url = app.data_url + "/v1/chat/completions"
        async with http.post(url, json={**BODY, "stream": stream}) as answer:
            await answer.read()
        [request] = raw.received
        assert request.header("Connection") == connection
