"""Engines and the routers in front of them, one module each."""
