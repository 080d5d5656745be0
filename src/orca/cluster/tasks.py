"""Tasks: those of a Spark job that failed. Owns how long they are waited for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from orca.cluster.news import wait_until
from orca.cluster.spark import is_connect, running
from orca.monitor.verbosity import is_debug

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_END_WITHIN = 3.0  # seconds that the tasks have to end
_LOGGED_WITHIN = 0.1  # seconds in which Spark has logged that a task ended


def wait_for_tasks(session: SparkSession) -> None:
    """Wait until the tasks of a job that failed have ended, each with words in Spark's log."""
    if not is_connect(session) and not is_debug():
        wait_until(lambda: not running(session), _END_WITHIN, every=0.05)
        time.sleep(_LOGGED_WITHIN)
