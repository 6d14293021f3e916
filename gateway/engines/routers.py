"""Routers in front of engines: where their workers are.

A worker that is listed stays listed, healthy or not: a limit nobody can ask for any more may
still be the smallest. For the same reason an entry that cannot be used makes the whole list
unreadable, and so does a router that keeps its workers to itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from gateway.engines.base import Answers, Probe, Unreadable, WorkerRef
from gateway.engines.reading import SERVER_INFO, at, body_of, count_at, text_at, trouble
from gateway.types import Role

BY_LIST = "name its workers under `workers` of this backend"


class SglGateway:
    """sgl-model-gateway and smg: ``GET /workers``, an admin endpoint."""

    __slots__ = ()

    WORKERS = Probe("GET", "/workers")
    name: str = "sgl_gateway"
    probes: tuple[Probe, ...] = (WORKERS, SERVER_INFO)

    def recognises(self, answers: Answers) -> bool:
        """A list of workers; or a refusal to show it where ``/server_info`` is open.

        That one is proxied to a single worker, and alone it would pass for that worker's limit.
        """
        if isinstance(at(body_of(answers, self.WORKERS), "workers"), list):
            return True
        listing, info = answers.get(self.WORKERS), answers.get(SERVER_INFO)
        hidden = listing is not None and listing.status in (401, 403)
        return hidden and info is not None and info.status == 200

    def workers(self, answers: Answers) -> tuple[WorkerRef, ...] | Unreadable:
        """All but encode workers, which hold no KV of prompts. A DP rank's URL ends in ``@n``."""
        listing = body_of(answers, self.WORKERS)
        listed = at(listing, "workers")
        if not isinstance(listed, list):
            return Unreadable(f"router: {trouble(answers, self.WORKERS)}; {BY_LIST}")
        total = count_at(listing, "total")
        if total is not None and total != len(listed):
            return Unreadable(f"router counts {total} workers but lists {len(listed)}; {BY_LIST}")
        return _refs(
            (text_at(entry, "url"), text_at(entry, "worker_type"))
            for entry in listed
            if text_at(entry, "worker_type") != "encode"
        )


class OldSglangRouter:
    """sglang-router up to 0.2.1: ``GET /list_workers``, addresses alone."""

    __slots__ = ()

    LIST = Probe("GET", "/list_workers")
    name: str = "old_sglang_router"
    probes: tuple[Probe, ...] = (LIST,)

    def recognises(self, answers: Answers) -> bool:
        """A list of URLs."""
        return isinstance(at(body_of(answers, self.LIST), "urls"), list)

    def workers(self, answers: Answers) -> tuple[WorkerRef, ...] | Unreadable:
        """Every URL; roles are the workers' own to tell."""
        urls = at(body_of(answers, self.LIST), "urls")
        if not isinstance(urls, list):
            return Unreadable(f"router: {trouble(answers, self.LIST)}; {BY_LIST}")
        return _refs((text_at(urls, number), None) for number in range(len(urls)))


class LmDeployProxy:
    """LMDeploy's proxy: ``GET /nodes/status``, an object by node URL."""

    __slots__ = ()

    NODES = Probe("GET", "/nodes/status")
    name: str = "lmdeploy_proxy"
    probes: tuple[Probe, ...] = (NODES,)

    def recognises(self, answers: Answers) -> bool:
        """Node URLs, each with its models."""
        nodes = body_of(answers, self.NODES)
        return isinstance(nodes, Mapping) and any("models" in node for node in _objects(nodes))

    def workers(self, answers: Answers) -> tuple[WorkerRef, ...] | Unreadable:
        """Every node."""
        nodes = body_of(answers, self.NODES)
        if not isinstance(nodes, Mapping):
            return Unreadable(f"router: {trouble(answers, self.NODES)}; {BY_LIST}")
        return _refs((url, text_at(node, "role")) for url, node in nodes.items())


class ProductionStack:
    """vLLM production-stack's router: ``GET /engines`` names engines, but no addresses."""

    __slots__ = ()

    ENGINES = Probe("GET", "/engines")
    name: str = "production_stack"
    probes: tuple[Probe, ...] = (ENGINES,)

    def recognises(self, answers: Answers) -> bool:
        """Engines with ids and the models they serve."""
        return text_at(body_of(answers, self.ENGINES), 0, "engine_id") is not None

    def workers(self, answers: Answers) -> tuple[WorkerRef, ...] | Unreadable:  # noqa: ARG002
        """It cannot tell. Its own ``/v1/models`` shows one engine's length for all."""
        return Unreadable(f"production-stack's router shows no worker addresses; {BY_LIST}")


def _objects(values: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (value for value in values.values() if isinstance(value, Mapping))


def _refs(listed: Iterable[tuple[str | None, str | None]]) -> tuple[WorkerRef, ...] | Unreadable:
    """Workers by address, ranks of one process joined."""
    found: dict[str, WorkerRef] = {}
    for url, role in listed:
        address = re.sub(r"@\d+$", "", url or "").rstrip("/")
        if not _is_http(address):
            return Unreadable(
                f"router lists a worker without an HTTP address (gRPC, perhaps); {BY_LIST}"
            )
        found.setdefault(address, WorkerRef(address, _role(role)))
    return tuple(found.values()) or Unreadable(f"router lists no workers; {BY_LIST}")


def _is_http(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _role(word: str | None) -> Role:
    name = (word or "").lower()
    return Role(name) if name in (Role.PREFILL, Role.DECODE) else Role.REGULAR
