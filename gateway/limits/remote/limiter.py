"""A limiter that many processes share, in a store that is elsewhere and may fail."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence

from gateway.errors import Kind, Rejection
from gateway.limits.base import Charge, Decisions, Lease, Refused, Unlimited, Used
from gateway.limits.judge import check, judge, standing
from gateway.limits.remote import calls
from gateway.limits.remote.calls import Call, Reply, Verdict
from gateway.limits.remote.leases import Endings, RemoteLease, Running
from gateway.limits.remote.link import LATE, Link, Trouble
from gateway.limits.watch import StoreWatch, Tasks

_RETRY_SECONDS = 1
# After a stall of this process an answer may be here that no task has seen yet: that is not late.
_LOOP_TURNS = 8


class RemoteLimiter:
    """Quotas counted by scripts in a store, by the store's clock.

    Every decision is made within ``timeout`` seconds: by the store, or where it fails by
    ``admit_without_store``. ``lease`` is how many seconds a slot outlives its process. ``tasks``
    are this limiter's own, and end with it.
    """

    def __init__(
        self,
        link: Link,
        *,
        admit_without_store: bool,
        timeout: float,
        lease: float,
        clock: Callable[[], float],
        tasks: Tasks,
        watch: StoreWatch,
    ) -> None:
        self._link = link
        self._admit_without_store = admit_without_store
        self._timeout = timeout
        self._slot_ms = round(lease * 1000)
        self._clock = clock
        self._tasks = tasks
        self.running = Running(link, lease, tasks, watch)
        self._endings = Endings(link, timeout, tasks)
        link.when_up(self.running.renew)  # first: slots run out, ends do not
        link.when_up(self._endings.catch_up)

    async def reserve(self, charges: Sequence[Charge]) -> Lease | Refused:
        """Take all charges or none. Raises ``ValueError`` as ``judge.check``, and ``Rejection``."""
        check(charges)
        if not charges:
            return Unlimited()
        if not self._link.up:
            return self._without_store()
        name = secrets.token_hex(12)
        call = calls.reserve(name, charges, self._slot_ms)
        asked = self._ask(call)
        try:
            reply = await self._in_time(asked, call.tenant)
        except asyncio.CancelledError:
            self._withdraw(asked, name, charges)
            raise
        if reply is None or reply.code == Verdict.WITHDRAWN:
            self._withdraw(asked, name, charges)
            return self._without_store()
        outcome = judge(charges, calls.levels_of(charges, reply))
        if isinstance(outcome, Refused):
            return outcome
        lease = RemoteLease(name, call.tenant, outcome, self)
        self.running.add(lease)
        return lease

    async def peek(self, charges: Sequence[Charge]) -> Decisions:
        """How the quotas stand; takes nothing. Raises as ``reserve``, whatever is configured."""
        check(charges)
        if not charges:
            return {}
        if not self._link.up:
            raise _unavailable()
        call = calls.peek(charges, self._slot_ms)
        reply = await self._in_time(self._ask(call), call.tenant)
        if reply is None:
            raise _unavailable()
        levels = calls.levels_of(charges, reply)
        return {c: standing(c, level) for c, level in zip(charges, levels, strict=True)}

    async def end(self, lease: RemoteLease, used: Used | None) -> None:
        """Settle or release a lease. Called once a lease."""
        self.running.remove(lease)
        await self._endings.tell(
            calls.settle(lease.name, lease.tenant, lease.charges, used, mark=lease.doubtful)
        )

    async def close(self) -> None:
        """Let the last settlements arrive, if they do soon; then hang up."""
        await self._endings.finish()
        await self._link.close()

    def _ask(self, call: Call) -> asyncio.Task[Reply | Trouble]:
        """Run it in a task of its own, which no client's leaving cancels."""
        not_after = self._clock() + self._timeout
        return self._tasks.spawn(self._link.run(call, not_after), f"limiter {call.script.name}")

    async def _in_time(self, asked: asyncio.Task[Reply | Trouble], tenant: str) -> Reply | None:
        """The reply, if it comes within the timeout. The task goes on to its own end."""
        began = self._clock()
        await asyncio.wait({asked}, timeout=self._timeout)
        for _ in range(_LOOP_TURNS):
            if asked.done():
                break
            await asyncio.sleep(0)
        else:
            self._link.failed(LATE, tenant, began)
            return None
        answer = asked.result()
        return None if isinstance(answer, Trouble) else answer

    def _withdraw(
        self, asked: asyncio.Task[Reply | Trouble], name: str, charges: Sequence[Charge]
    ) -> None:
        self._tasks.spawn(self._give_back(asked, name, charges), "limiter withdrawal")

    async def _give_back(
        self, asked: asyncio.Task[Reply | Trouble], name: str, charges: Sequence[Charge]
    ) -> None:
        """Nobody waits for this reservation any more: what it takes, or may take yet, goes back."""
        answer = await asked
        if isinstance(answer, Trouble):
            nothing = not answer.perhaps_done
        else:
            nothing = answer.code != Verdict.TAKEN
        if not nothing:
            tenant, mark = charges[0].key.tenant, isinstance(answer, Trouble)
            await self._endings.tell(calls.settle(name, tenant, charges, None, mark=mark))

    def _without_store(self) -> Unlimited:
        if self._admit_without_store:
            return Unlimited()
        raise _unavailable()


def _unavailable() -> Rejection:
    return Rejection(
        Kind.STORE_UNAVAILABLE,
        "Rate limits cannot be checked at the moment. Try again shortly.",
        retry_after=_RETRY_SECONDS,
    )
