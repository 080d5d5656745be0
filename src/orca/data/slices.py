"""Slices: shards of any kind as rows, to be cut and joined. Owns the meaning of a shard's rows.

A frame, a Series and an array have rows; a list's rows are its items; arrays in a dict or a tuple, nested or not,
have their rows in common. Anything else is one thing that is never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.core.columns import concatenate
from orca.errors import DataError
from orca.rows.tree import cut_rows, flatten, rows_of

if TYPE_CHECKING:
    from pyspark import RDD

FRAME = "pandas.core.frame.DataFrame"
SERIES = "pandas.core.series.Series"
_NAMES = {"DataFrame": FRAME, "Series": SERIES}


def class_name_of(shard: Any) -> str:
    """Return the name of a shard's class; of pandas' classes the one they had before pandas 3.

    >>> class_name_of({})
    'builtins.dict'
    """
    kind = type(shard)
    if kind.__module__.split(".")[0] == "pandas" and kind.__name__ in _NAMES:
        return _NAMES[kind.__name__]
    return f"{kind.__module__}.{kind.__qualname__}"


def row_count(shard: Any) -> int | None:
    """Return how many rows a shard has; None where it has no rows to cut.

    >>> row_count({"x": np.zeros((3, 2)), "y": (np.zeros(3),)}), row_count("text")
    (3, None)
    """
    if hasattr(shard, "iloc") or isinstance(shard, list):
        return len(shard)
    if isinstance(shard, np.ndarray):
        return len(shard) if shard.ndim else None
    if not isinstance(shard, dict | tuple) or not all(isinstance(leaf, np.ndarray) for leaf in flatten(shard)[0]):
        return None
    try:
        return rows_of(shard)
    except DataError:
        return None


def cut(shard: Any, start: int, stop: int) -> Any:
    """Return the rows from start to stop."""
    if hasattr(shard, "iloc"):
        return shard.iloc[start:stop]
    return shard[start:stop] if isinstance(shard, list | np.ndarray) else cut_rows(shard, slice(start, stop))


def peek(rdd: RDD[Any], look: Callable[[Any], Any], is_enough: Callable[[Any], bool] = lambda result: True) -> Any:
    """Return the result of `look` at the first shard of a partition: of the first one where that is enough.

    RDD.first would leave a partition half read, and Spark ends Python workers to which that happens: the next ones
    would import pandas anew.

    Raises:
        DataError: There is no shard.
    """
    seen: list[Any] = []
    for partition in range(rdd.getNumPartitions()):
        results = rdd.ctx.runJob(rdd, partial(_seen, look=look), [partition])
        if results and is_enough(results[0]):
            return results[0]
        seen.extend(results)
    if seen:
        return seen[0]
    raise DataError("there are no shards: the RDD of this XShards is empty.", code="no-shards")


def _seen(shards: Iterable[Any], look: Callable[[Any], Any]) -> Iterator[Any]:
    for number, shard in enumerate(shards):
        if number == 0:
            yield look(shard)


def join(parts: Sequence[Any]) -> Any:
    """Return the rows of shards of one kind as one shard.

    >>> join([[1, 2], [3]])
    [1, 2, 3]
    """
    if len(parts) == 1:
        return parts[0]
    if class_name_of(parts[0]) == FRAME:
        from orca.data.layout import joined

        return joined(parts)
    if hasattr(parts[0], "iloc"):
        import pandas as pd

        full = [part for part in parts if len(part)]  # rows alone decide on the type
        return pd.concat(full) if full else parts[0]
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]
    return concatenate(parts)
