"""The quotas of one configuration, running: the limiter, what is held of it, and its store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.core.tenants import TenantDirectory
from gateway.edge.leases import Leases
from gateway.edge.metrics import Metrics
from gateway.edge.store import StoreState
from gateway.edge.tasks import Tasks
from gateway.errors import Rejection
from gateway.limits.base import Limiter
from gateway.limits.stores import open_limiter
from gateway.settings.models import Limits


@dataclass(frozen=True, slots=True)
class Limiting:
    """Kept over a reload that leaves ``settings`` as they are: what was counted stays counted."""

    settings: Limits
    limiter: Limiter
    leases: Leases
    store: StoreState

    @property
    def not_ready(self) -> str | None:
        """Why no request can be taken, where the store is down and requests are refused then."""
        if self.store.up or self.settings.when_store_fails == "allow":
            return None
        return "the store of quotas does not answer, and requests are refused while it does not"

    def description(self) -> dict[str, Any]:
        """For operators. The store's name holds no password."""
        return {
            "store": str(self.settings.store),
            "up": self.store.up,
            "when_store_fails": self.settings.when_store_fails,
        }

    async def ask(self, directory: TenantDirectory) -> None:
        """Ask the store once, so that one that is down is known before the first request."""
        limited = next((tenant for tenant in directory.tenants() if tenant.quotas), None)
        if limited is not None:
            with contextlib.suppress(Rejection):
                await self.leases.standing(limited)

    async def settled(self) -> None:
        """Wait a little until the store has been told what has ended."""
        await self.leases.settled(2 * self.settings.timeout)

    async def close(self) -> None:
        """Leave the store, once it has been told."""
        await self.settled()
        await self.limiter.close()


def limiting(
    settings: Limits, metrics: Metrics, tasks: Tasks, clock: Callable[[], float]
) -> Limiting:
    """The quotas of a configuration. ``tasks`` settle; draining waits for them."""
    store = StoreState(metrics)
    limiter = open_limiter(
        settings.store,
        when_store_fails=settings.when_store_fails,
        timeout=settings.timeout,
        lease=settings.lease,
        clock=clock,
        tasks=Tasks(),
        watch=store,
    )
    return Limiting(settings, limiter, Leases(limiter, tasks), store)
