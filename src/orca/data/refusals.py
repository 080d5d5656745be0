"""Refusals: errors of tasks on the driver. Owns which of them are raised in their own words, and shown once."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orca.errors import DataError, OrcaError
from orca.monitor.failures import TRACE_LIMIT, reason_of, trace_of
from orca.monitor.spark_logs import muted
from orca.monitor.tracebacks import digest, shortened
from orca.monitor.verbosity import is_debug

# In the text of an engine's error: our own code's refusal.
_REFUSAL = re.compile(r"orca\.errors\.DataError: (.*?)(?=\n SQLSTATE|\n\n|\n\tat |\Z)", re.DOTALL)


@contextmanager
def refused() -> Iterator[None]:
    """Raise the refusals of Spark's and Ray's tasks in their own words, which Spark does not log meanwhile.

    Raises:
        DataError: A task raised it.
    """
    try:
        with muted(_spark_context()):
            yield
    except Exception as error:
        ours = _REFUSAL.search(str(error))
        if ours:
            raise DataError(ours[1].strip()) from None
        raise


def failed_function(call: str, error: Exception) -> Exception:
    """Return what a task raises for an error of a function of the user's: the user's frames, and what to correct.

    Args:
        call: The call that the function was given to.
        error: The error; those of ours, and all at the verbosity "debug", stay as they are.
    """
    if isinstance(error, OrcaError) or is_debug():
        return error
    text = f"{call}: the function failed: {shortened(reason_of(error))}\n{digest(trace_of(error, TRACE_LIMIT))}"
    return DataError(re.sub(r"\n\s*\n", "\n", text))  # a blank line is the end of a refusal in an engine's text


def _spark_context() -> Any:
    pyspark = sys.modules.get("pyspark")
    kind = None if pyspark is None else vars(pyspark).get("SparkContext")  # the client of Spark Connect has none
    return kind and kind._active_spark_context
