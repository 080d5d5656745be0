"""Measure: interleaved runs of several contenders, what is told of them, and the machine they ran on."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import psutil

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
    def processor(self) -> tuple[float, float] | None:
        """Return the processor seconds of a turn, ours and the peer's: medians."""
        turns = [self.notes.get(name) for name in ("processor seconds", "peer's processor seconds")]
        return (statistics.median(turns[0]), statistics.median(turns[1])) if all(turns) else None

    @property
    def ratio(self) -> float | None:
        return None if self.peer is None else self.peer / self.ours

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.ours <= self.target if self.ratio is None else self.ratio >= self.target


class Times(dict[str, list[float]]):
    """The seconds of each contender's turns; `processor` has those of all processors, which other work slows less."""

    def __init__(self, names: Iterable[str]) -> None:
        names = list(names)
        super().__init__({name: [] for name in names})
        self.processor: dict[str, list[float]] = {name: [] for name in names}


def interleaved(contenders: dict[str, Callable[[], float]], repeats: int) -> Times:
    """Run every contender in turn, `repeats` times, after one turn that warms up; each returns its own seconds.

    A peer that fails as it warms up is left out, by its name.
    """
    times, ready = Times(contenders), {}
    for name, run in contenders.items():
        try:
            run()
            ready[name] = run
        except Exception as error:
            if name in ("orca", "ours"):
                raise
            left_out[name] = f"it failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
            del times[name], times.processor[name]
    for _ in range(repeats):
        for name, run in ready.items():
            before = processor_seconds()
            times[name].append(run())
            times.processor[name].append(processor_seconds() - before)
    return times


def processor_seconds() -> float:
    """Return what this process, those it started, and those that ended since, have taken of all processors."""
    seconds = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def compared(name: str, times: dict[str, list[float]], targets: dict[str, float | None]) -> list[Result]:
    """Return Orca's times beside those of each peer that was measured."""
    middle = medians(times)
    processor = getattr(times, "processor", {})

    def notes(peer: str) -> dict[str, object]:
        turns: dict[str, object] = {"times": times["orca"], "peer's": times[peer]}
        if peer in processor:
            turns |= {"processor seconds": processor["orca"], "peer's processor seconds": processor[peer]}
        return turns

    return [
        Result(name, middle["orca"], middle[peer], peer, "s", target, notes(peer))
        for peer, target in targets.items()
        if peer in times
    ]


def installed(peer: str, library: str) -> bool:
    """Say whether a peer can be measured; one that cannot is named in the end."""
    if find_spec(library) is None:
        left_out[peer] = f"{library} is not installed: uv pip install --group bench"
    return peer not in left_out


def load() -> float:
    """Return how many processes ran or waited for a processor, in the last minute."""
    return round(os.getloadavg()[0], 1)


def machine() -> dict[str, object]:
    """Return what figures depend on: processor, memory, load, versions."""
    told = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = {line.split(":")[1].strip() for line in told.splitlines() if line.startswith("model name")}
    versions = {name: _version(name) for name in LIBRARIES}
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": ", ".join(sorted(models)) or platform.processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "load": load(),
        "python": platform.python_version(),
        "versions": {name: version for name, version in versions.items() if version},
    }


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
