"""Transformers of columns of XShards of pandas DataFrames: fitted on all shards, applied to each. Owns how the counts,
bounds and moments of shards become those of all rows.

Missing values (NaN, None) are left out of a fit and stay missing; StringIndexer makes them 0. All else is as
in Spark ML: the deviation is that of a sample, and a constant column becomes the middle of the range, or 0.

Not the scalers of Spark ML: they refuse missing values, and the frame would cross the JVM twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from orca.data.refusals import refused
from orca.errors import ArgumentError, DataError

if TYPE_CHECKING:
    import pandas as pd

    from orca.data.shard import SparkXShards

__all__ = ["MinMaxScaler", "StandardScaler", "StringIndex", "StringIndexer"]

_Fit = TypeVar("_Fit")
UNKNOWN = 0  # the number of values that were not there when the index was made


class StringIndexer:
    """Numbers from 1 for the values of columns.

    Args:
        inputCol: The column, or a list of columns; their values are replaced by numbers.
        order_by_freq: Whether the most frequent value is 1; otherwise they are in the order of the values.
        freq_limit: How often a value must be there to get a number, for all columns or by column.

    Example:
        ::

            indexer = StringIndexer(inputCol="city")
            shards = indexer.fit_transform(shards)
            other = indexer.transform(other)   # 0 for cities that shards did not have
    """

    def __init__(
        self,
        inputCol: str | Sequence[str] | None = None,
        order_by_freq: bool = False,
        freq_limit: int | Mapping[str, int] | None = None,
    ) -> None:
        self.inputCol, self.order_by_freq, self.freq_limit = inputCol, order_by_freq, freq_limit
        self.string_indices: list[StringIndex] = []

    def setInputCol(self, inputCol: str | Sequence[str]) -> StringIndexer:
        """Choose the column; an earlier fit is forgotten."""
        self.inputCol, self.string_indices = inputCol, []
        return self

    def fit_transform(self, shard: SparkXShards) -> SparkXShards:
        """Number the values of all shards, and return the shards with numbers in the place of values.

        Raises:
            DataError: A column is missing.
        """
        columns = _listed(self.inputCol, "inputCol")
        counts = _merged(shard, partial(_counts, columns=columns), _added)
        self.string_indices = [
            StringIndex.from_dict(self._numbered(name, one), name) for name, one in zip(columns, counts, strict=True)
        ]
        return self.transform(shard)

    def transform(self, shard: SparkXShards) -> SparkXShards:
        """Return shards with numbers in the place of values, 0 for those that were not there when it was fitted.

        Raises:
            ArgumentError: Nothing was fitted.
        """
        if not self.string_indices:
            raise _unfitted(self)
        return shard.transform_shard(_indexed, {index.col_name: index.to_dict() for index in self.string_indices})

    def _numbered(self, name: str, counts: Mapping[Any, int]) -> dict[Any, int]:
        limit = self.freq_limit.get(name) if isinstance(self.freq_limit, Mapping) else self.freq_limit
        values = [value for value, count in counts.items() if count >= (limit or 1)]  # categories may be empty
        mixed = len({isinstance(value, str) for value in values}) > 1
        values.sort(key=lambda value: (str(type(value)), value) if mixed else value)
        if self.order_by_freq:
            values.sort(key=lambda value: -counts[value])
        return {value: number for number, value in enumerate(values, 1)}


class StringIndex:
    """The numbers of the values of a column.

    Args:
        df: A pandas or Spark DataFrame with the values in the column `col_name` and their numbers in the column "id".
        col_name: The column whose values they are.

    Example:
        >>> StringIndex.from_dict({"Paris": 1, "Rome": 2}, "city").to_dict()
        {'Paris': 1, 'Rome': 2}
    """

    def __init__(self, df: Any, col_name: str) -> None:
        missing = [name for name in (col_name, "id") if name not in list(df.columns)]
        if missing:
            raise DataError(
                f"a StringIndex needs the columns {col_name!r} and 'id'; got {list(df.columns)}.", code="missing-column"
            )
        frame = df.toPandas() if hasattr(df, "toPandas") else df
        self.col_name = col_name
        self._indices = dict(zip(frame[col_name].tolist(), map(int, frame["id"]), strict=True))

    @classmethod
    def from_dict(cls, indices: Mapping[Any, int], col_name: str) -> StringIndex:
        """Make an index of numbers by value.

        Raises:
            ArgumentError: It is no dict, or the column has no name.
        """
        if not isinstance(indices, Mapping):
            raise ArgumentError(
                f"indices must be a dict of numbers by value; got {type(indices).__name__}.", code="bad-indices"
            )
        if not col_name:
            raise ArgumentError(
                "col_name must be the name of the column that the values are of; got none.", code="bad-indices"
            )
        index = cls.__new__(cls)
        index.col_name, index._indices = col_name, dict(indices)
        return index

    def to_dict(self) -> dict[Any, int]:
        """Return the numbers by value."""
        return dict(self._indices)


class _Scaler(ABC):
    """A scaler of columns: the common part of both.

    Its inputCol is a column of numbers, or of arrays or vectors of equal length, whose places are scaled each by
    itself; or a list of columns of numbers, which become one column of arrays.
    """

    inputCol: str | Sequence[str] | None
    outputCol: str | None
    scaling: Scaling | None = None

    def setInputOutputCol(self, inputCol: str | Sequence[str], outputCol: str | None) -> Any:
        """Choose the columns; an earlier fit is forgotten."""
        self.inputCol, self.outputCol, self.scaling = inputCol, outputCol, None
        return self

    def fit_transform(self, shard: SparkXShards) -> SparkXShards:
        """Fit on all shards, and return them with the scaled column added, or in the place of the old one.

        Raises:
            ArgumentError: There is no inputCol, or several columns and no outputCol.
            DataError: A column is missing, holds no numbers, arrays of different lengths, or no row at all.
        """
        columns = _listed(self.inputCol, "inputCol")
        if self.outputCol is None and not isinstance(self.inputCol, str):
            raise ArgumentError(
                f"the columns {list(columns)} become one: name it with outputCol='…'.", code="missing-output-col"
            )
        moments: Moments | None = _merged(shard, partial(_moments, columns=columns), Moments.merged)
        if moments is None:
            raise DataError(f"{type(self).__name__} cannot be fitted: the shards have no rows.", code="no-rows")
        self.scaling = Scaling(columns, str(self.outputCol or self.inputCol), *self._fitted(moments))
        return self.transform(shard)

    def transform(self, shard: SparkXShards) -> SparkXShards:
        """Return shards with the scaled column.

        Raises:
            ArgumentError: Nothing was fitted.
        """
        if self.scaling is None:
            raise _unfitted(self)
        return shard.transform_shard(self.scaling)

    @abstractmethod
    def _fitted(self, moments: Moments) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
        """Return shift, divisor, factor and offset, which values are changed by in this order."""


class MinMaxScaler(_Scaler):
    """Columns brought from their own bounds to `min` and `max`.

    Args:
        min: The lower bound.
        max: The upper bound.
        inputCol: A column of numbers or arrays, or a list of columns of numbers, which become one of arrays.
        outputCol: The new column; without it the scaled column takes the place of the old one.

    Example:
        ::

            shards = MinMaxScaler(inputCol="price", outputCol="scaled").fit_transform(shards)
    """

    def __init__(
        self,
        min: float = 0.0,
        max: float = 1.0,
        inputCol: str | Sequence[str] | None = None,
        outputCol: str | None = None,
    ) -> None:
        if min >= max:
            raise ArgumentError(f"min must be less than max; got min={min}, max={max}.", code="bad-range")
        self.min, self.max, self.inputCol, self.outputCol = min, max, inputCol, outputCol

    def _fitted(self, moments: Moments) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
        constant = moments.high == moments.low
        width = np.where(constant, np.inf, moments.high - moments.low)
        return moments.low, width, self.max - self.min, np.where(constant, (self.min + self.max) / 2, self.min)


class StandardScaler(_Scaler):
    """Columns brought to a standard deviation of one, and to a mean of zero.

    Args:
        withMean: Whether to take the mean from values.
        withStd: Whether to divide by the standard deviation.
        inputCol: A column of numbers or arrays, or a list of columns of numbers, which become one of arrays.
        outputCol: The new column; without it the scaled column takes the place of the old one.

    Example:
        ::

            shards = StandardScaler(withMean=True, inputCol=["age", "income"], outputCol="x").fit_transform(shards)
    """

    def __init__(
        self,
        withMean: bool = False,
        withStd: bool = True,
        inputCol: str | Sequence[str] | None = None,
        outputCol: str | None = None,
    ) -> None:
        self.withMean, self.withStd, self.inputCol, self.outputCol = withMean, withStd, inputCol, outputCol

    def _fitted(self, moments: Moments) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
        deviation = np.sqrt(moments.squares / np.maximum(moments.count - 1, 1))
        divisor = np.where(deviation == 0, np.inf, deviation) if self.withStd else np.ones_like(deviation)
        zeros = np.zeros_like(deviation)
        return moments.mean if self.withMean else zeros, divisor, 1.0, zeros


# On the workers


def _counts(shard: pd.DataFrame, columns: tuple[str, ...]) -> list[Counter[Any]]:
    """Return how often each value is in each of the columns."""
    return [Counter(_column(shard, name).value_counts().to_dict()) for name in columns]


def _indexed(shard: pd.DataFrame, indices: Mapping[str, dict[Any, int]]) -> pd.DataFrame:
    """Return the shard with numbers in the place of values; the shard that was given stays as it is."""
    numbers = {
        name: _column(shard, name).map(index).astype(np.float64).fillna(UNKNOWN).astype(np.int64)
        for name, index in indices.items()
    }
    return shard.assign(**numbers)


@dataclass(frozen=True)
class Moments:
    """Counts, bounds, means and sums of squared distances from the mean, of each column or place."""

    count: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> Moments:
        """Measure a matrix; NaN is left out."""
        there = ~np.isnan(rows)
        count = there.sum(axis=0)
        mean = np.where(there, rows, 0.0).sum(axis=0) / np.maximum(count, 1)
        deviations = np.where(there, rows - mean, 0.0)
        drift = deviations.sum(axis=0) / np.maximum(count, 1)  # the mean's error of rounding
        squares = (deviations**2).sum(axis=0) - count * drift**2
        low, high = np.where(there, rows, np.inf).min(axis=0), np.where(there, rows, -np.inf).max(axis=0)
        return cls(count, low, high, mean + drift, squares)

    @staticmethod
    def merged(one: Moments | None, other: Moments | None) -> Moments | None:
        """Return the moments of the rows of both.

        Raises:
            DataError: Their arrays have different lengths.
        """
        if one is None or other is None:
            return one or other
        if one.mean.shape != other.mean.shape:
            raise DataError(
                f"arrays must have one length in all rows; got {len(one.mean)} and {len(other.mean)}.",
                code="array-lengths-differ",
            )
        count, distance = one.count + other.count, other.mean - one.mean
        share = other.count / np.maximum(count, 1)
        return Moments(
            count,
            np.minimum(one.low, other.low),
            np.maximum(one.high, other.high),
            one.mean + distance * share,
            one.squares + other.squares + distance**2 * one.count * share,
        )


def _moments(shard: pd.DataFrame, columns: tuple[str, ...]) -> Moments | None:
    rows = _matrix(shard, columns)[0]
    return None if rows is None else Moments.of(rows)


@dataclass(frozen=True)
class Scaling:
    """Columns scaled with numbers that were fitted."""

    columns: tuple[str, ...]
    output: str
    shift: np.ndarray
    divisor: np.ndarray
    factor: float
    offset: np.ndarray

    def __call__(self, shard: pd.DataFrame) -> pd.DataFrame:
        """Return the shard with the scaled column; the shard that was given stays as it is.

        Raises:
            DataError: Arrays have another length than those it was fitted on.
        """
        rows, arrays = _matrix(shard, self.columns)
        if rows is None:
            return shard.assign(**{self.output: shard[self.columns[0]]})
        if rows.shape[1] != len(self.shift):
            raise DataError(
                f"fitted on arrays of {len(self.shift)} numbers; column {self.columns[0]!r} has others.",
                code="array-lengths-differ",
            )
        result = (rows - self.shift) / self.divisor * self.factor + self.offset
        return shard.assign(**{self.output: list(result) if arrays else result[:, 0]})


def _matrix(shard: pd.DataFrame, columns: tuple[str, ...]) -> tuple[np.ndarray | None, bool]:
    """Return columns as one matrix, None without rows; and whether its rows are arrays to the user."""
    parts = [_column(shard, name) for name in columns]
    if not len(shard):
        return None, False
    if len(columns) > 1:
        return np.stack([_numbers(part) for part in parts], axis=1), True
    (column,) = parts
    if not hasattr(column.iloc[0], "__len__") or isinstance(column.iloc[0], str):
        return _numbers(column)[:, None], False
    cells = column.tolist()
    try:
        rows = np.array([cell.toArray() if hasattr(cell, "toArray") else cell for cell in cells], np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"column {column.name!r} must hold arrays of numbers of one length: {error}.", code="array-lengths-differ"
        ) from None
    if rows.ndim != 2:
        raise DataError(
            f"column {column.name!r} must hold arrays of one dimension; got {rows.ndim - 1} of them.",
            code="array-dimensions",
        )
    return rows, True


def _numbers(column: pd.Series) -> np.ndarray:
    try:
        return column.to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"column {column.name!r} must hold numbers or arrays of numbers: {error}.", code="not-numbers"
        ) from None


def _column(shard: pd.DataFrame, name: str) -> pd.Series:
    if not hasattr(shard, "columns"):
        raise DataError(
            f"transformers take XShards of pandas DataFrames; got shards of {type(shard).__name__}.",
            code="not-dataframes",
        )
    if name not in shard.columns:
        raise DataError(f"there is no column {name!r}; the shards have {list(shard.columns)}.", code="missing-column")
    return shard[name]


# On the driver


def _merged(shards: SparkXShards, measure: Callable[[Any], _Fit], merge: Callable[[_Fit, _Fit], _Fit]) -> _Fit:
    """Return the measure of all shards together; workers merge their own first."""

    def of_partition(parts: Any) -> Any:
        fits = [measure(part) for part in parts]
        return [reduce(merge, fits)] if fits else []

    with refused():
        return shards.rdd.mapPartitions(of_partition).treeReduce(merge)


def _added(one: list[Counter[Any]], other: list[Counter[Any]]) -> list[Counter[Any]]:
    sums = list(map(Counter, one))
    for counts, more in zip(sums, other, strict=True):
        counts.update(more)
    return sums


def _listed(names: str | Sequence[str] | None, what: str) -> tuple[str, ...]:
    if not names:
        raise ArgumentError(f"{what} must name a column, or several in a list; got {names!r}.", code="bad-column-names")
    return (names,) if isinstance(names, str) else tuple(names)


def _unfitted(transformer: Any) -> ArgumentError:
    return ArgumentError(
        f"this {type(transformer).__name__} was not fitted. Call fit_transform first.", code="not-fitted"
    )
