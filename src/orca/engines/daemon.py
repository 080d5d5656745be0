"""Daemon: the process that Spark forks its Python workers from. Owns loading frameworks before the first of them,
and ending a daemon that another one replaces.

Spark's own daemon loads nothing, so every worker spends seconds on importing the framework, and again when it has been
idle for a minute. A program that loads one more framework makes Spark start a daemon that has it, and Spark keeps both.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import redirect_stdout, suppress
from typing import Any

import psutil

from orca.core.loading import MODULES, draw_anew, load

# The memory that a worker may take (spark.executor.pyspark.memory); a framework fills it, also where no rank runs.
_LIMIT = "PYSPARK_EXECUTOR_MEMORY_MB"
_NAME = "orca.engines.daemon"
_LOOK = 20.0  # seconds between two looks for a daemon that replaces this one


def main() -> None:
    """Load, then be Spark's daemon until another one replaces it."""
    if _LIMIT not in os.environ:
        with redirect_stdout(sys.stderr):  # Spark reads the daemon's address from standard output
            load(os.environ.get(MODULES, "").split())
    os.register_at_fork(after_in_child=draw_anew)
    from pyspark.daemon import manager

    signal.signal(signal.SIGALRM, _leave_if_replaced)
    signal.setitimer(signal.ITIMER_REAL, _LOOK, _LOOK)  # which workers do not inherit
    try:
        manager()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _leave_if_replaced(*_: Any) -> None:
    """End this process where it has no workers left, and another daemon of the same JVM has all its modules and more.

    Spark starts another one, should it need this one again: for a function of before the framework was loaded.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        if any(_modules(os.environ) < modules for modules in _siblings()):
            os._exit(0)


def _siblings() -> list[set[str]]:
    """Return the modules of each other daemon of the JVM."""
    siblings = []
    for other in psutil.Process(os.getppid()).children():
        with suppress(psutil.Error):
            if other.pid != os.getpid() and any(_NAME in word for word in other.cmdline()):
                siblings.append(_modules(other.environ()))
    return siblings


def _modules(environment: Any) -> set[str]:
    return set(environment.get(MODULES, "").split())


if __name__ == "__main__":
    main()
