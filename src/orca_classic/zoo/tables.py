"""Tables: read_csv of the older systems. Owns the names of columns without a header."""

from __future__ import annotations

from typing import Any

from orca.data import pandas


def read_csv(file_path: Any, **kwargs: Any) -> Any:
    """Read CSV files as `orca.data.pandas.read_csv` does; columns without a header have the names "0", "1" and so on.

    Example::

        shards = read_csv("ratings.csv", header=None)
        shards.get_schema()["columns"]  # "0", "1", "2"
    """
    shards = pandas.read_csv(file_path, **kwargs)
    is_unnamed = kwargs.get("header", 0) is None and kwargs.get("names") is None
    return shards.transform_shard(_named_by_text) if is_unnamed else shards


def _named_by_text(rows: Any) -> Any:
    return rows.rename(columns=str) if rows.ndim == 2 else rows.rename(str(rows.name))
