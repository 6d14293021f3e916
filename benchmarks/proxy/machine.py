"""What the numbers were taken on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil


def describe() -> dict[str, Any]:
    """Processor, cores, memory, kernel, Python, and how busy the machine was before."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "virtual": "hypervisor" in _cpuinfo("flags").split(),
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
    }


def _cpuinfo(name: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _cpu_model() -> str:
    family, model = _cpuinfo("cpu family"), _cpuinfo("model")
    exact = f" (family {family}, model {model})" if family and model else ""
    return (_cpuinfo("model name") or platform.machine()) + exact
