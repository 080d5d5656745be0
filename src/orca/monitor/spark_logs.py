"""Spark's log: what Spark says about failures of our jobs. Owns which of its loggers are silent while a job runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from orca.monitor.verbosity import is_debug

# Each writes a failed or cancelled task's whole Python and Java stack; the error that we raise says the same once.
LOGGERS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.scheduler.DAGScheduler",
    "org.apache.spark.api.python.PythonRunner",
    "org.apache.spark.sql.execution.python.ArrowPythonRunner",
    "org.apache.spark.storage.BlockManager",
    "org.apache.spark.util.Utils",
)

_lock = threading.Lock()
_jobs = 0  # that run now: the first one silences the loggers, the last one puts them back
_levels: list[tuple[str, Any]] = []  # the loggers' own levels before; None for one that follows its parent


@contextmanager
def muted(session: Any) -> Iterator[None]:
    """Keep Spark from logging the failure of a job of ours while the block runs; at the verbosity "debug" it may.

    Through Spark Connect there is no JVM here, whose log would appear on this screen.
    """
    global _jobs
    jvm = None if is_debug() else _jvm(session)
    if jvm is None:
        yield
        return
    with _lock:
        _jobs += 1
    try:  # a Ctrl-C may come in the middle of a call to the JVM
        _silence(jvm)
        yield
    finally:
        with _lock:
            _jobs -= 1
        _put_back(jvm)


def silence(session: Any) -> None:
    """Keep Spark from logging the tasks that the end of the session and of its JVM interrupts, unless all is shown."""
    if is_debug():
        return
    with suppress(Exception):  # a log of another kind stays as it is; without a JVM there is none
        jvm = _jvm(session)
        logging = jvm.org.apache.logging.log4j
        logging.core.config.Configurator.setAllLevels(logging.LogManager.ROOT_LOGGER_NAME, logging.Level.OFF)


def _jvm(session: Any) -> Any:
    with suppress(Exception):  # a Connect session refuses the attribute
        return session._jvm
    return None


def _silence(jvm: Any) -> None:
    with _lock, suppress(Exception):  # a log of another kind stays as it is
        if _levels:  # another job has done it
            return
        logging = jvm.org.apache.logging.log4j
        own = logging.LogManager.getContext(False).getConfiguration().getLoggers()
        _levels[:] = [(name, own.get(name).getLevel() if own.containsKey(name) else None) for name in LOGGERS]
        for name in LOGGERS:
            logging.core.config.Configurator.setLevel(name, logging.Level.OFF)


def _put_back(jvm: Any) -> None:
    with _lock:
        if _jobs:
            return
        with suppress(Exception):
            context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
            for name, level in _levels:
                if level is None:
                    context.getConfiguration().removeLogger(name)
                else:
                    context.getConfiguration().getLoggers().get(name).setLevel(level)
            context.updateLoggers()
        _levels.clear()
