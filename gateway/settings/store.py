"""Where quotas are counted: this process's memory, or a Redis-compatible server by its URL.

    memory
    redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]              one server; rediss:// with TLS
    unix://[[USER]:PASSWORD@]/PATH/TO/SOCKET[?db=DB]
    redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT],.../SERVICE[/DB]    hosts of the sentinels
    redis+cluster://[[USER]:PASSWORD@]HOST[:PORT],...                 any nodes of the cluster

User and password are those of the servers, percent-encoded where they hold ``@``, ``/``, ``:``,
``?``, ``#`` or ``%``. No message and no text form here repeats them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote

from pydantic import SecretStr

from gateway.settings.units import HostPort, host_port

_URL = re.compile(r"(?P<scheme>[a-z+]+)://(?:(?P<user>[^@]*)@)?(?P<rest>[!-~]*)", re.ASCII)
_DATABASE = re.compile(r"[0-9]{1,4}", re.ASCII)
_SERVICE = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_FORMS = "must be memory, or a URL of redis, rediss, unix, redis+sentinel or redis+cluster"


class Kind(Enum):
    """How a store is reached: (scheme, port where none is written)."""

    MEMORY = ("memory", 0)
    SERVER = ("redis", 6379)
    SOCKET = ("unix", 0)
    SENTINEL = ("redis+sentinel", 26379)
    CLUSTER = ("redis+cluster", 6379)

    def __init__(self, scheme: str, port: int) -> None:
        self.scheme = scheme
        self.port = port


@dataclass(frozen=True, slots=True)
class Store:
    """A store as configured. ``str`` writes it without user and password."""

    kind: Kind
    nodes: tuple[HostPort, ...] = ()
    path: str = ""  # of the socket
    service: str = ""  # as the sentinels call it
    database: int = 0
    tls: bool = False
    username: str | None = None
    password: SecretStr | None = None

    @property
    def shared(self) -> bool:
        """Whether several processes count together in it."""
        return self.kind is not Kind.MEMORY

    def __str__(self) -> str:
        if self.kind is Kind.MEMORY:
            return self.kind.scheme
        scheme = self.kind.scheme.replace("redis", "rediss" if self.tls else "redis")
        hosts = ",".join(map(str, self.nodes))
        service = f"/{self.service}" if self.service else ""
        mark = "?db=" if self.kind is Kind.SOCKET else "/"
        database = f"{mark}{self.database}" if self.database else ""
        return f"{scheme}://{hosts}{self.path}{service}{database}"


MEMORY: Final = Store(Kind.MEMORY)


def parse_store(text: str) -> Store:
    """The store a text names. Raises ``ValueError``, never with the text."""
    if text == Kind.MEMORY.scheme:
        return MEMORY
    found = _URL.fullmatch(text)
    if not found:
        raise ValueError(_FORMS)
    plain = re.sub(r"^rediss(?=$|\+)", "redis", found["scheme"])
    kind = next((kind for kind in Kind if kind.scheme == plain), None)
    if kind is None or kind is Kind.MEMORY:
        raise ValueError(_FORMS)
    username, password = _credentials(found["user"])
    if kind is Kind.SOCKET:
        path, database = _socket(found["rest"])
        return Store(kind, path=path, database=database, username=username, password=password)
    hosts, _, rest = found["rest"].partition("/")
    service, database = _place(kind, rest)
    return Store(
        kind,
        nodes=_nodes(kind, hosts),
        service=service,
        database=database,
        tls=plain != found["scheme"],
        username=username,
        password=password,
    )


def _credentials(written: str | None) -> tuple[str | None, SecretStr | None]:
    if not written:
        return None, None
    user, colon, password = written.partition(":")
    if not colon or not password:
        raise ValueError("must have a password after the user: USER:PASSWORD@ or :PASSWORD@")
    return unquote(user) or None, SecretStr(unquote(password))


def _nodes(kind: Kind, written: str) -> tuple[HostPort, ...]:
    hosts = written.split(",")
    if len(hosts) > 1 and kind is Kind.SERVER:
        raise ValueError("names several hosts; redis+cluster:// or redis+sentinel:// may")
    return tuple(_node(host, kind.port) for host in hosts)


def _node(written: str, default: int) -> HostPort:
    has_port = re.search(r":[0-9]+$", written) and not written.endswith("]")
    try:
        node = host_port(written if has_port else f"{written}:{default}")
    except ValueError as error:
        raise ValueError(f"has a host that cannot be read: it {error}") from None
    if not node.port:
        raise ValueError("must have ports above 0")
    return node


def _place(kind: Kind, written: str) -> tuple[str, int]:
    """The service and the database that a path names."""
    if kind is Kind.CLUSTER:
        if written:
            raise ValueError("must end after its hosts: a cluster has one database")
        return "", 0
    if kind is Kind.SENTINEL:
        service, _, written = written.partition("/")
        if not _SERVICE.fullmatch(service):
            raise ValueError("must name the sentinels' service after their hosts: /SERVICE")
        return service, _database(written)
    return "", _database(written)


def _socket(written: str) -> tuple[str, int]:
    path, _, query = written.partition("?")
    if not path.startswith("/"):
        raise ValueError("must have a socket's absolute path: unix:///PATH")
    if query and not query.startswith("db="):
        raise ValueError("may have no other option than ?db=NUMBER")
    return path, _database(query.removeprefix("db="))


def _database(written: str) -> int:
    if written and not _DATABASE.fullmatch(written):
        raise ValueError("must name its database by a number, and nothing after it")
    return int(written or 0)
