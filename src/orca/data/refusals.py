"""Refusals: errors of tasks on the driver. Owns which of them are raised in their own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from orca.errors import DataError

# In the text of Spark's error: our own code's refusal, and Spark's words about files with other columns.
_REFUSAL = re.compile(r"orca\.errors\.DataError: (.*?)(?=\n SQLSTATE|\n\n|\n\tat |\Z)", re.DOTALL)
_HEADER = re.compile(
    r"(?:CSV header does not conform.*?Header: (?P<names>.*?)\n\s*Schema: .*?|"
    r"Number of column in CSV header.*?Header length: (?P<width>\d+).*?)\n\s*CSV file: (?P<file>\S+)",
    re.DOTALL,
)


@contextmanager
def refused() -> Iterator[None]:
    """Raise the refusals of Spark's and Ray's tasks in their own words.

    Raises:
        DataError: A task raised it.
    """
    try:
        yield
    except Exception as error:
        ours, header = _REFUSAL.search(str(error)), _HEADER.search(str(error))
        if header:
            raise other_header(header["file"], header["names"] or f"{header['width']} columns") from None
        if ours:
            raise DataError(ours[1].strip()) from None
        raise


def other_header(path: str, columns: str) -> DataError:
    """Return the error of CSV files that have different headers."""
    return DataError(
        f"the files have different headers: {path} has {columns}, which is not that of the others. Columns go by their "
        "names: read these files apart, or pass names=['…'], header=0 where they go by position."
    )
