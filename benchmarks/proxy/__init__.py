"""Added latency and requests a second of poolgate and its peers, in one run on one machine."""
