"""Two checkouts in one run: ``python -m benchmarks.side_by_side OTHER [--size "1 kB"]``.

Prints the processor time of a call in each, in short turns one after the other, so that what else
the machine does falls on both alike. OTHER is a work tree with a ``.venv`` of its own; the
difference of the medians is what a change cost or gained.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.proxy import peers
from benchmarks.proxy.__main__ import SIZES
from benchmarks.proxy.reference import prompt_tokens
from benchmarks.proxy.rig import ROOT, Cores, FakeEngine, Load, core_watch
from benchmarks.proxy.traffic import CHAT_PATH, chat_answer, chat_body, engine_routes


def of_checkout(checkout: Path) -> peers.Peer:
    """poolgate as it is in a work tree."""
    plain = next(peer for peer in peers.ALL if peer.name == peers.POOLGATE)
    python = str(checkout / ".venv/bin/python")
    enter = ("sh", "-c", 'cd "$0" && exec "$@"', str(checkout))
    return replace(plain, name=checkout.name, argv=(*enter, python, *plain.argv[1:]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--size", choices=list(SIZES), default="1 kB")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each turn")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--priority", type=int, default=0, help="nice value, -20 to 19")
    options = parser.parse_args()
    if options.priority:
        os.setpriority(os.PRIO_PROCESS, 0, options.priority)
    cores = Cores.of_this_machine()
    body = chat_body(options.size, SIZES[options.size])
    with (
        tempfile.TemporaryDirectory(prefix="poolgate-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        work = Path(folder)
        engine = FakeEngine(cores.rig, work)
        stack.callback(engine.child.stop)
        for path, answer in engine_routes().items():
            engine.set(path, answer)
        engine.set(CHAT_PATH, chat_answer(prompt_tokens(body)))
        checkouts = (options.other.resolve(), ROOT)
        running = []
        for checkout in checkouts:
            one = peers.start(of_checkout(checkout), engine, cores.proxy, work, body)
            assert one.child is not None
            stack.callback(one.child.stop)
            one.child.pause()
            running.append((one, one.child))
        load, stamp = Load(cores.rig, work), 0
        took: list[list[float]] = [[] for _ in running]
        for turn in range(options.turns + 1):
            for at, (one, child) in enumerate(running):
                child.resume()
                peers.wait_until_it_answers(one, body, 30)
                with core_watch(cores.proxy, [child]) as watched:
                    done = load.run(
                        one.port, body, options.connections, options.seconds, stamp, one.peer.key
                    )
                child.pause()
                stamp += 10**7
                if turn:  # the first warms up
                    took[at].append(watched["cpu"] * 1e6 / done["calls"])
        first, second = (median(times) for times in took)
        ratios = [now / before for before, now in zip(*took, strict=True)]
    for checkout, times in zip(checkouts, took, strict=True):
        each = " ".join(f"{one:.0f}" for one in times)
        print(f"{checkout}: {median(times):.0f} us of processor time a call ({each})")
    print(f"ratio {second / first:.3f}; of the turns {min(ratios):.3f} to {max(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
