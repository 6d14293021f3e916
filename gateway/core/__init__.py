"""Decisions: pure functions and small frozen types, without clock, randomness or sockets."""
