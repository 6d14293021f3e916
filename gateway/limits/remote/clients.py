"""redis-py's clients for each kind of store.

Set here against its defaults: every wait ends after two of the store's timeouts instead of five
seconds (two, so that an answer which is here after a stall of this process is still read), nothing
is retried (a reservation sent twice would be the limiter's business, and it has its own policy), no
health checks and no greetings beyond AUTH and SELECT.
"""

from __future__ import annotations

from typing import Any, Protocol

from redis.asyncio import ConnectionPool, Redis, RedisCluster, UnixDomainSocketConnection
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from gateway.settings.store import Kind, Store

CONNECTIONS = 32  # a process (and node): a server with one thread gains nothing from more


class Client(Protocol):
    """The part of redis-py's clients that is used."""

    async def execute_command(self, *args: Any) -> Any:
        """Send a command, and read its whole answer."""

    async def aclose(self) -> None:
        """Hang up."""


def client_for(store: Store, timeout: float) -> Client:
    """A client that has not connected yet. Raises ``ValueError`` for memory."""
    plain: dict[str, Any] = _options(timeout)
    if store.kind is not Kind.SOCKET:
        plain["ssl"] = store.tls
    options = plain | {
        "username": store.username,
        "password": store.password.get_secret_value() if store.password else None,
        "max_connections": CONNECTIONS,
    }
    addresses = [(node.host, node.port) for node in store.nodes]
    match store.kind:
        case Kind.SERVER:
            [(host, port)] = addresses
            return Redis(host=host, port=port, db=store.database, **options)
        case Kind.SOCKET:
            # Redis() itself would give a socket five seconds to connect.
            socket = ConnectionPool(
                UnixDomainSocketConnection, path=store.path, db=store.database, **options
            )
            return Redis.from_pool(socket)
        case Kind.SENTINEL:
            return _ThroughSentinels(
                Sentinel(addresses, sentinel_kwargs=plain),  # type: ignore[no-untyped-call]
                store,
                options,
            )
        case Kind.CLUSTER:
            nodes = [ClusterNode(host, port) for host, port in addresses]
            return RedisCluster(startup_nodes=nodes, dynamic_startup_nodes=False, **options)
    raise ValueError("memory has no client")


class _ThroughSentinels:
    """The master that sentinels name. redis-py leaves connections to them open: not so here."""

    def __init__(self, sentinel: Sentinel, store: Store, options: dict[str, Any]) -> None:
        self._clients: tuple[Client, ...] = (
            sentinel.master_for(store.service, db=store.database, **options),
            *sentinel.sentinels,
        )

    async def execute_command(self, *args: Any) -> Any:
        return await self._clients[0].execute_command(*args)

    async def aclose(self) -> None:
        for client in self._clients:
            await client.aclose()


def _options(timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": 2 * timeout,
        "socket_connect_timeout": 2 * timeout,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "driver_info": None,
        "protocol": 2,
    }
