"""Processor: one that reports AMX and dies of it, as some virtual machines do. Owns the trial and the protection.

Libraries that compute with oneDNN (torch, TensorFlow) multiply bfloat16 matrices with AMX if the processor reports it.
If that kills the process, `ONEDNN_MAX_CPU_ISA` keeps them from it. oneDNN reads the variable when it is first used.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

VARIABLE = "ONEDNN_MAX_CPU_ISA"
WITHOUT_AMX = "AVX512_CORE_FP16"  # the most that oneDNN uses without AMX
WORKS, FAILS = "works", "fails"
CPUINFO, BOOT = Path("/proc/cpuinfo"), Path("/proc/sys/kernel/random/boot_id")
TRIAL = """
import sys
sys.path[:] = filter(None, sys.path)  # not the working directory
import resource, torch
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
matrix = torch.randn(64, 64, dtype=torch.bfloat16)
(matrix @ matrix).sum().item()
"""
_TRIAL_WITHIN = 120.0  # seconds, most of which torch takes to load
_OF_THE_PROCESSOR = {signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT}


def protect_from_amx() -> str:
    """Keep this process and its children from AMX if that kills them; return in words what was set, "" if nothing.

    A value that the user set stays. Call it before anything uses oneDNN.
    """
    if VARIABLE in os.environ or amx() != FAILS:
        return ""
    os.environ[VARIABLE] = WITHOUT_AMX
    return (
        f"the processor of this machine reports AMX, and a process that multiplies bfloat16 matrices with it dies: "
        f"{VARIABLE}={WITHOUT_AMX} is set, with which they are multiplied without AMX"
    )


def amx() -> str:
    """Return "" if the processor does not report AMX or there is no torch to try it with, else "works" or "fails".

    A child process tries it, once for each boot of the machine and version of torch.
    """
    if not reports_amx():
        return ""
    try:
        name = re.sub(r"[^\w.+-]", "_", f"amx-{BOOT.read_text().strip()}-torch-{version('torch')}")
    except (OSError, PackageNotFoundError):
        return ""
    try:
        folder = _private_folder()
        # Others wait for the one that tries.
        file = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (OSError, RuntimeError):  # there is no home, or it cannot be written
        return _tried()
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        verdict = os.pread(file, len(WORKS) + 1, 0).decode("ascii", "replace")
        if verdict not in (WORKS, FAILS):
            verdict = _tried()
            with suppress(OSError):  # a disk that is full
                os.ftruncate(file, 0)
                os.pwrite(file, verdict.encode(), 0)
        return verdict
    finally:
        os.close(file)


def reports_amx() -> bool:
    """Return whether the processor says that it has AMX."""
    with suppress(OSError), CPUINFO.open() as lines:
        flags = next((line for line in lines if line.startswith("flags")), "")
        return " amx_" in flags
    return False


def _tried() -> str:
    """Return the verdict of a child; "" if it ended otherwise: by its user, for want of memory, without torch."""
    with suppress(OSError, subprocess.TimeoutExpired):
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        command, null = [sys.executable, "-c", TRIAL], subprocess.DEVNULL
        code = subprocess.call(command, env=environment, timeout=_TRIAL_WITHIN, stdin=null, stdout=null, stderr=null)
        if code == 0:
            return WORKS
        if -code in _OF_THE_PROCESSOR:
            return FAILS
    return ""


def _private_folder() -> Path:
    """Return a folder that only this user can write; OSError if there is none."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "orca", "processor")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user can write")
    return folder
