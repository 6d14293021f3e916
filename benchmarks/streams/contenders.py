"""Who is measured: the peers of benchmarks.proxy, and poolgate with every check too."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.proxy import peers

ALL_CHECKS = f"{peers.POOLGATE}, all checks"
MORE = "  sentinel: {action: block}\n  fingerprints: {action: block}\n"  # to its checks
PEERS = {
    peer.name: peer
    for one in peers.ALL
    for peer in (
        (one, replace(one, name=ALL_CHECKS, more=MORE)) if one.name == peers.POOLGATE else (one,)
    )
}
