"""What the choice of a backend costs: ``python -m benchmarks.routing.order``.

Microseconds of processor time until the first backend of the order is known, by number of backends
and policy, each backend with some load. The key of affinity, a keyed hash of the prompt's
beginning, is apart.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

from gateway.core.admission import Outcomes
from gateway.core.capacity import Rules, Snapshot
from gateway.core.choice import Load
from gateway.edge.backends import Backend, Wiring
from gateway.edge.routing import Policy, Routing
from gateway.types import ChatPrompt, ParsedRequest

ROUNDS, SECONDS = 7, 0.05
BODY = {"messages": [{"role": "system", "content": "s" * 4096}, {"role": "user", "content": "u"}]}
PARSED = ParsedRequest("openai_chat", "/", b"x" * 8192, BODY, "m", True, ChatPrompt("chat", BODY))
TENANT = SimpleNamespace(id="t")


def backends(count: int) -> list[Backend]:
    loads = random.Random(7)
    made = []
    for number in range(count):
        wiring = Wiring(f"b{number}", "http://x", ("*",), None, Rules(), Outcomes(), False, None)
        discovery = SimpleNamespace(snapshot=Snapshot(), engine=None)
        one = Backend(wiring, discovery, measurer=None, clock=time.monotonic)
        one.past.load = Load(loads.randrange(100_000), loads.randrange(64))
        made.append(one)
    return made


def microseconds(once: Callable[[], object]) -> float:
    """The median over rounds of the mean time."""
    rounds = []
    for _ in range(ROUNDS):
        passes, began = 0, time.process_time()
        while (taken := time.process_time() - began) < SECONDS:
            for _ in range(20):
                once()
            passes += 20
        rounds.append(taken / passes * 1e6)
    return statistics.median(rounds)


def main() -> None:
    for policy, secret in (("least_tokens", None), ("affinity", b"k" * 32)):
        for count in (1, 2, 8, 50, 200):
            routing = Routing(backends(count), Policy(secret=secret))
            request = SimpleNamespace(headers={})
            key = routing.affinity(request, TENANT, PARSED)
            taken = microseconds(lambda r=routing, k=key: next(r.order(PARSED, k)))
            print(f"{policy:14} {count:4} backends  {taken:7.2f} us")
    taken = microseconds(lambda: routing.affinity(request, TENANT, PARSED))
    print(f"{'key':14} {'':13}  {taken:7.2f} us")


if __name__ == "__main__":
    main()
