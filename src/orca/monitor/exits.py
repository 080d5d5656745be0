"""Exits: how a process ended, as text. Owns the meaning of exit codes, and the memory that a process has and may have.

Most signals that end a rank have one usual cause; its error names it, and the way out.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SILENT_END = "its process ended without a word: killed, out of memory, or its node is gone"
KILLED = f"its process was ended by {signal.SIGKILL.name}"
CODE_END = "its process ended with exit code"
FAULT = b"Fatal Python error: "  # the beginning of the words of Python's faulthandler
NO_CHECKPOINT = (
    "No checkpoint of the running step was kept. With model_dir= and max_failures= or a checkpoint_trigger=, a fit "
    "keeps one and goes on from it"
)
_SHELL = 128  # shells, and with them Spark and YARN, add it to a signal's number
_LESS_MEMORY = "Lower batch_size or workers_per_node, pass shard_model=True, or give the workers more memory"
_CRASH = "a library crashed. See the rank's stack below; another version of the library may help"
_CAUSES = {
    signal.SIGILL: (
        "a library used an instruction that the processor does not have, or that it reports and cannot do. Set "
        "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16, or AVX2, before the program starts; if that is not enough, install a "
        "build of the library for this processor. `orca doctor` tells what the processors can do"
    ),
    signal.SIGKILL: (f"most often for want of memory. {_LESS_MEMORY}"),
    signal.SIGSEGV: _CRASH,
    signal.SIGFPE: _CRASH,
    signal.SIGABRT: (
        "a library gave up. Its last words are in the worker's standard error, and the rank's stack is below; another "
        "version of the library may help"
    ),
    signal.SIGBUS: (
        "most often a disk of mapped files or of shared memory is full. Make room in the temporary folder (TMPDIR) and "
        "in /dev/shm, which containers get with --shm-size"
    ),
    signal.SIGTERM: (
        "somebody asked it to end: its machine was preempted, or its cluster, or a user ended it. Pass model_dir= and "
        "max_failures= to let a fit go on from its last checkpoint"
    ),
}
_FAULTS = {
    "Illegal instruction": signal.SIGILL,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating": signal.SIGFPE,
}


def ended(code: int, resident: int = 0, limit: int = 0) -> str:
    """Describe how a process ended: the signal, its usual cause and what to do.

    Args:
        code: Its exit code; the negative number of a signal, or 128 more than that number.
        resident: Bytes of memory that it held, as far as known; 0 if unknown.
        limit: Bytes that it and its neighbours may hold; 0 if unknown.
    """
    number = -code if code < 0 else code - _SHELL
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"{CODE_END} {code}"
    words = f"its process was ended by {name} (exit code {code})"
    cause = _CAUSES.get(signal.Signals(number), "")
    memory = f". {_held(resident, limit)}" if number == signal.SIGKILL and resident else ""
    return f"{words}: {cause}{memory}" if cause else words


def silent_end(fault: str, resident: int = 0, limit: int = 0) -> str:
    """Describe how a process ended whose exit code is not known.

    Args:
        fault: The words of its faulthandler; "" if there are none.
        resident: Bytes of memory that it held, as far as known; 0 if unknown.
        limit: Bytes that it and its neighbours may hold; 0 if unknown.
    """
    for words, number in _FAULTS.items():
        if fault.removeprefix(FAULT.decode()).startswith(words):
            return ended(-number)
    return f"{SILENT_END}. {_held(resident, limit)}. If that was too much: {_LESS_MEMORY}" if resident else SILENT_END


def stack_in(fault: str) -> str:
    """Return the stack in the words of a faulthandler: of the thread that crashed, of all if that is not Python's."""
    match = re.search(r"^Current thread .*?(?=\n\n|\Z)", fault, re.DOTALL | re.MULTILINE)
    return match[0].strip() if match else re.split(r"\n+Extension modules: ", fault)[0].strip()


def resident_memory() -> int:
    """Return the bytes of memory that this process holds; 0 if unknown."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def memory_limit(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that this process and its neighbours may hold: by the tightest cgroup, or the machine."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for text in _memory_files(groups, root, "memory.max", "memory.limit_in_bytes"):
        with suppress(ValueError):  # "max" is no number
            limits.append(int(text))
    return min(limits)


def oom_kills(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes of the cgroups of this process the kernel has killed for want of memory."""
    texts = _memory_files(groups, root, "memory.events", "memory.oom_control")
    return sum(int(number) for text in texts for number in re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE))


def _memory_files(groups: Path, root: Path, v2: str, v1: str) -> Iterator[str]:
    """Yield the contents of a file of the cgroups that this process is in, by its name in either version."""
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            tree, file = (root, v2) if not controllers else (root / "memory", v1)
            group = tree / path.lstrip("/")
            for folder in [group, *group.parents]:
                with suppress(OSError):  # a container may not see all folders
                    yield (folder / file).read_text()


def out_of_memory(resident: int, limit: int) -> str:
    """Describe how a process ended that the kernel killed because its cgroup was out of memory."""
    held = f" {_held(resident, limit)}." if resident else f" It may hold {limit / 1e9:.1f} GB in all." if limit else ""
    return f"it was out of memory: the kernel killed its process (SIGKILL) as its cgroup was full.{held} {_LESS_MEMORY}"


def _held(resident: int, limit: int) -> str:
    words = f"It held {resident / 1e9:.1f} GB of memory when it was last seen"
    return f"{words}; all processes there together may hold {limit / 1e9:.1f} GB" if limit else words
