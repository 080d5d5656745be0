"""Refusals: errors of tasks on the driver. Owns which of them are raised in their own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from orca.errors import DataError

# In the text of an engine's error: our own code's refusal.
_REFUSAL = re.compile(r"orca\.errors\.DataError: (.*?)(?=\n SQLSTATE|\n\n|\n\tat |\Z)", re.DOTALL)


@contextmanager
def refused() -> Iterator[None]:
    """Raise the refusals of Spark's and Ray's tasks in their own words.

    Raises:
        DataError: A task raised it.
    """
    try:
        yield
    except Exception as error:
        ours = _REFUSAL.search(str(error))
        if ours:
            raise DataError(ours[1].strip()) from None
        raise
