"""Measure: interleaved runs of several contenders, what is told of them, and the machine they ran on."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = ("torch", "pyspark", "pyarrow", "ray", "lightning", "tensorflow", "keras", "openvino", "numpy")

left_out: dict[str, str] = {}  # a peer that was not measured, and why


@dataclass
class Result:
    """Compare Orca with one peer: the ratio says how many times as fast Orca is, the target the least it should be.

    Without a peer, the target is the most that it should take.
    """

    name: str
    ours: float
    peer: float | None
    peer_name: str = ""
    unit: str = "s"
    target: float | None = None
    notes: dict[str, object] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return None if self.peer is None else self.peer / self.ours

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.ours <= self.target if self.ratio is None else self.ratio >= self.target


def interleaved(contenders: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run every contender in turn, `repeats` times, after one turn that warms up; each returns its own seconds."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            seconds = run()
            if turn:
                times[name].append(seconds)
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def compared(name: str, times: dict[str, list[float]], targets: dict[str, float | None]) -> list[Result]:
    """Return Orca's times beside those of each peer that was measured."""
    middle = medians(times)
    return [
        Result(name, middle["orca"], middle[peer], peer, "s", target, {"times": times["orca"], "peer's": times[peer]})
        for peer, target in targets.items()
        if peer in times
    ]


def installed(peer: str, library: str) -> bool:
    """Say whether a peer can be measured; one that cannot is named in the end."""
    if find_spec(library) is None:
        left_out[peer] = f"{library} is not installed: pip install 'orca-dl[bench]'"
    return peer not in left_out


def machine() -> dict[str, object]:
    """Return what figures depend on: processor, memory, load, versions."""
    told = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = {line.split(":")[1].strip() for line in told.splitlines() if line.startswith("model name")}
    versions = {name: _version(name) for name in LIBRARIES}
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": ", ".join(sorted(models)) or platform.processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "load": [round(each, 1) for each in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {name: version for name, version in versions.items() if version},
    }


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
