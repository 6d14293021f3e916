"""A simulated prefill/decode engine with real page tables and switchable faults."""

from gateway.simulate.faults import Faults
from gateway.simulate.server import Handle, create_app, running
from gateway.simulate.settings import SimulateSettings
from gateway.simulate.text import Habits
from gateway.simulate.timing import INSTANT, Timing
from gateway.simulate.vision import Vision

__all__ = [
    "INSTANT",
    "Faults",
    "Habits",
    "Handle",
    "SimulateSettings",
    "Timing",
    "Vision",
    "create_app",
    "running",
]
