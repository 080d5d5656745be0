"""Daemon: the process that Spark forks its Python workers from. Owns loading what ranks need before the first of them.

Spark's own daemon loads nothing, so every worker spends seconds on importing the framework, and again when it has been
idle for a minute.
"""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout

from orca.core.loading import MODULES, draw_anew, load

# What a worker may take (spark.executor.pyspark.memory); a framework fills it, also where no rank ever runs.
_LIMIT = "PYSPARK_EXECUTOR_MEMORY_MB"


def main() -> None:
    """Load, then be Spark's daemon."""
    if _LIMIT not in os.environ:
        with redirect_stdout(sys.stderr):  # Spark reads the daemon's address from standard output
            load(os.environ.get(MODULES, "").split())
    os.register_at_fork(after_in_child=draw_anew)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
