"""Partition columns: the values in names of folders such as `colour=red`, which Spark's partitionBy writes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from orca.data.pandas.paths import DataFile
from orca.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = r"[+-]?\d+"
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|NaN"
_DATE = r"\d{4}-\d\d-\d\d"
_TIME = _DATE + r"([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?"


def partition_frame(files: Sequence[DataFile], dtype: Any = None) -> pd.DataFrame:
    """Return the partition columns, a row for each file.

    Args:
        files: The files, which know their folders.
        dtype: A dict of types by column, as pandas takes it; other columns get those that Spark finds for their values.

    Raises:
        DataError: Files have different partition columns, or values do not fit a type.
    """
    import pandas as pd

    names = [[name for name, _ in file.partition] for file in files]
    for file, others in zip(files, names, strict=True):
        if others != names[0]:
            raise DataError(
                f"{files[0].path} has the partition columns {names[0]}, {file.path} has {others}. Folders written by "
                "partitionBy have the same ones for all files: read these folders apart.",
                code="partition-columns-differ",
            )
    columns = {name: [unquote(dict(file.partition)[name]) for file in files] for name in names[0]}
    types = dtype if isinstance(dtype, Mapping) else {}
    frame = {
        name: _cast(name, values, types[name]) if name in types else _typed(values) for name, values in columns.items()
    }
    return pd.DataFrame(frame, index=range(len(files)))


def _cast(name: str, texts: list[str], dtype: Any) -> pd.Series[Any]:
    import pandas as pd

    try:
        return pd.Series([None if text == _NULL else text for text in texts]).astype(dtype)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the values of the partition column {name!r} do not fit dtype {dtype!r}: {error}.",
            code="partition-column-type",
        ) from error


def _typed(texts: list[str]) -> pd.Series[Any]:
    import pandas as pd

    values = [None if text == _NULL else text for text in texts]
    full = [value for value in values if value is not None]

    def are_all(pattern: str) -> bool:
        return all(re.fullmatch(pattern, value) for value in full)

    if not full:
        return pd.Series(values, dtype=object)
    if are_all(_INTEGER):
        largest = max(abs(int(value)) for value in full)
        if largest >= 1 << 63:
            return pd.Series([value and Decimal(value) for value in values], dtype=object)
        if len(full) == len(values):
            return pd.Series(list(map(int, full)), dtype="int32" if largest < 1 << 31 else "int64")
    if are_all(_NUMBER):
        return pd.Series(values, dtype=object).astype("float64")
    try:
        if are_all(_DATE):
            return pd.Series([value and date.fromisoformat(value) for value in values], dtype=object)
        if are_all(_TIME):
            return pd.to_datetime(pd.Series(values), format="ISO8601").astype("datetime64[us]")
    except ValueError:  # there is no such day
        pass
    return pd.Series(values, dtype=None if len(full) < len(values) else str)
