"""Two checkouts in one run: ``python -m benchmarks.side_by_side OTHER [--size "1 kB"]``.

Prints the processor time of a call in each, measured in turns. OTHER is a work tree with a
``.venv`` of its own; the ratio is what a change cost or gained.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.proxy import peers
from benchmarks.proxy.__main__ import SIZES
from benchmarks.proxy.rig import ROOT
from benchmarks.proxy.traffic import chat_body
from benchmarks.proxy.turns import cpu_in_turns


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
    checkouts = (options.other.resolve(), ROOT)
    took = cpu_in_turns(
        [of_checkout(checkout) for checkout in checkouts],
        chat_body(options.size, SIZES[options.size]),
        options.turns,
        options.seconds,
        options.connections,
    )
    ratios = [now / before for before, now in zip(*took, strict=True)]
    for checkout, times in zip(checkouts, took, strict=True):
        each = " ".join(f"{one:.0f}" for one in times)
        print(f"{checkout}: {median(times):.0f} us of processor time a call ({each})")
    first, second = (median(times) for times in took)
    print(f"ratio {second / first:.3f}; of the turns {min(ratios):.3f} to {max(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
