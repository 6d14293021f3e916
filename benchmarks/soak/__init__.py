"""Chaos and soak: a gateway of several processes under calls and faults of a seeded timetable.

``python -m benchmarks.soak``; what it shows and what not is in docs/soak.md.
"""
