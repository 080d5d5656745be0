"""Refusals: errors of tasks on the driver. Owns which of them are raised as they were in the task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orca.errors import DataError, recorded_in


@contextmanager
def refused() -> Iterator[None]:
    """Raise the refusals of Spark's and Ray's tasks as they were there.

    Raises:
        DataError: A task raised it.
    """
    try:
        yield
    except DataError as error:
        cause = error.args[0] if error.args else None
        raise (cause if isinstance(cause, DataError) else error) from None  # Ray raises its own error around it
    except Exception as error:
        refusal = recorded_in(str(error))
        if isinstance(refusal, DataError):
            raise refusal from None
        raise
