"""How fast, how exact and how seldom needed counting is: ``python -m benchmarks.counting``."""
