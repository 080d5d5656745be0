"""Refusals: errors of tasks on the driver. Owns which of them are raised as they were in the task, and shown once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orca.cluster.spark import active_session
from orca.cluster.tasks import wait_for_tasks
from orca.errors import DataError, OrcaError, recorded_in
from orca.monitor.failures import TRACE_LIMIT, reason_of, trace_of
from orca.monitor.spark_logs import muted
from orca.monitor.tracebacks import digest, shortened
from orca.monitor.verbosity import is_debug


@contextmanager
def refused() -> Iterator[None]:
    """Raise the refusals of Spark's and Ray's tasks as they were there; Spark does not log them meanwhile.

    Raises:
        DataError: A task raised it.
    """
    session = active_session()
    try:
        with muted(session):
            try:
                yield
            except Exception:
                if session is not None:
                    wait_for_tasks(session)
                raise
    except DataError as error:
        cause = error.args[0] if error.args else None
        raise (cause if isinstance(cause, DataError) else error) from None  # Ray raises its own error around it
    except Exception as error:
        refusal = recorded_in(str(error))
        if isinstance(refusal, DataError):
            raise refusal from None
        raise


def failed_function(call: str, error: Exception) -> Exception:
    """Return what a task raises for an error of a function of the user's: the user's frames, and what to correct.

    Args:
        call: The call that the function was given to.
        error: The error; those of ours, and all at the verbosity "debug", stay as they are.
    """
    if isinstance(error, OrcaError) or is_debug():
        return error
    trace = digest(trace_of(error, TRACE_LIMIT))
    return DataError(f"{call}: the function failed: {shortened(reason_of(error))}\n\n{trace}", code="function-failed")
