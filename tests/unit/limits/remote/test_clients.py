from __future__ import annotations

import pytest
from redis.asyncio import RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.utils import HIREDIS_AVAILABLE

from gateway.limits.remote.clients import CONNECTIONS, client_for
from gateway.settings.store import MEMORY, parse_store


@pytest.mark.parametrize("url", ["redis://u:p@h:1/2", "rediss://u:p@h:1/2", "unix://u:p@/s?db=2"])
async def test_waits_are_bounded_nothing_is_retried_and_the_pool_has_an_end(url: str) -> None:
    client = client_for(parse_store(url), 0.25)
    pool = client.connection_pool
    made = pool.make_connection()
    assert (made.socket_timeout, made.socket_connect_timeout) == (0.5, 0.5)
    assert made.retry.get_retries() == 0
    assert made.health_check_interval == 0
    assert (made.db, made.username, made.password) == (2, "u", "p")
    assert pool.max_connections == CONNECTIONS
    await client.aclose()


def test_answers_are_parsed_in_c() -> None:
    assert HIREDIS_AVAILABLE


async def test_tls_is_verified() -> None:
    client = client_for(parse_store("rediss://h"), 0.1)
    context = client.connection_pool.make_connection().ssl_context
    assert context.cert_reqs.name == "CERT_REQUIRED"
    assert context.check_hostname
    await client.aclose()


async def test_sentinels_get_no_password_and_all_are_hung_up() -> None:
    client = client_for(parse_store("redis+sentinel://:p@a:1,b:2/main"), 0.1)
    master, *sentinels = client._clients
    assert isinstance(master.connection_pool, SentinelConnectionPool)
    assert master.connection_pool.connection_kwargs["password"] == "p"
    assert len(sentinels) == 2
    for sentinel in sentinels:
        kwargs = sentinel.connection_pool.connection_kwargs
        assert kwargs.get("password") is None
        assert kwargs["socket_timeout"] == 0.2
    await client.aclose()


async def test_a_cluster_knows_all_nodes_and_the_password() -> None:
    client = client_for(parse_store("redis+cluster://:p@a:1,b:2"), 0.1)
    assert isinstance(client, RedisCluster)
    nodes = client.nodes_manager.startup_nodes.values()
    assert {(node.host, node.port) for node in nodes} == {("a", 1), ("b", 2)}
    for node in nodes:
        assert node.connection_kwargs["password"] == "p"
        assert node.connection_kwargs["socket_timeout"] == 0.2
    assert client.retry.get_retries() == 0
    await client.aclose()


def test_memory_has_none() -> None:
    with pytest.raises(ValueError, match="memory"):
        client_for(MEMORY, 0.1)
