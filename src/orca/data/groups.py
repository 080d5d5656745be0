"""Groups: group_by over shards. Owns the aggregates, and which of them are told from those of each shard.

Most aggregates of a group can be told from a few numbers of each of its parts. A shard then sends its groups to where
they meet instead of its rows. All other aggregates see the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pandas.api import types

from orca.core.plan import even_split
from orca.data.frames import BROADCAST, Choice, check_columns, hashed, joined_parts, meet, names_of, regroup, slices
from orca.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from pyspark import RDD

_LOOK = 1 << 16  # rows that tell whether there are many groups
Aggregates = list[tuple[Any, str]]  # of a column, by a function's name


def grouped(
    rdd: RDD[Any], empty: pd.DataFrame, columns: Any, agg: Any, joined: bool, parts: int, now: bool = False
) -> RDD[Any]:
    """Return a row for each group, or every row with the figures of its group.

    Where groups are wanted now and are few, they come together on the driver, without a shuffle.
    """
    keys = names_of(columns, empty, "group_by")
    have = list(empty.columns)
    sums = _aggregates(agg, [name for name in have if name not in keys])
    check_columns([name for name, _ in sums], have, "group_by")
    if joined and not keys:
        raise ArgumentError(
            "group_by: join=True needs the columns that groups are made of. Pass columns=['…'].",
            code="missing-columns-argument",
        )
    parts = parts if keys else 1
    if joined:
        rows = regroup(rdd, hashed(keys, parts), parts, empty)
        return rows.map(partial(_group, keys=keys, sums=sums, joined=True))
    names = list(dict.fromkeys([*keys, *(name for name, _ in sums)]))
    if now:
        few = rdd.mapPartitions(partial(_few, keys=keys, sums=sums, most=BROADCAST // parts)).collect()
        if few and all(figures is not None for figures in few):
            groups = _together(joined_parts(few), None, empty[names], keys, sums)
            spans = even_split(len(groups), min(parts, rdd.ctx.defaultParallelism))
            return rdd.ctx.parallelize([groups.iloc[start:stop] for start, stop in spans], len(spans))
    pieces = rdd.mapPartitionsWithIndex(partial(_sent, keys=keys, sums=sums, columns=names, parts=parts))
    work = partial(_together, empty=empty[names], keys=keys, sums=sums)
    return pieces.partitionBy(parts, int).mapPartitions(partial(meet, work=work, blanks=[None, None]))


def _aggregates(agg: Any, others: list[Any]) -> Aggregates:
    """Return (column, function) pairs, in order.

    Raises:
        ArgumentError: A function is not known.
    """
    if isinstance(agg, str):
        pairs = [(name, agg) for name in others]
    elif isinstance(agg, list | tuple):
        pairs = [(name, word) for name in others for word in agg]
    elif isinstance(agg, dict):
        pairs = [(name, word) for name, words in agg.items() for word in ([words] if isinstance(words, str) else words)]
    else:
        raise ArgumentError(
            f"group_by: agg must be a function's name, a list or a dict of them; got {agg!r}.", code="bad-aggregate"
        )
    for _, word in pairs:
        if word not in AGGREGATES:
            raise ArgumentError(
                f"group_by: agg must be of {', '.join(AGGREGATES)}; got {word!r}.", code="bad-aggregate"
            )
    return list(dict.fromkeys(pairs))


def _by(frame: pd.DataFrame, keys: list[Any]) -> Any:
    return frame.groupby(keys or np.zeros(len(frame), np.int64), dropna=False, sort=False, observed=True)


def _keys(groups: Any, frame: pd.DataFrame, keys: list[Any]) -> pd.DataFrame:
    """Return the keys of groups, one row a group."""
    if not keys:
        return pd.DataFrame()
    result = groups.size().index.to_frame(index=False)
    objects = [place for place, name in enumerate(keys) if frame[name].dtype == object]
    if objects:  # of which an Index makes floats where they are integers and a null
        firsts = np.unique(groups.ngroup(), return_index=True)[1]
        for place in objects:
            result.isetitem(place, frame[keys[place]].array[firsts])
    return result


def _refusal(word: str, name: Any, dtype: Any, error: Exception) -> DataError:
    return DataError(
        f"group_by: there is no {word} of column {name!r} ({dtype}): {error}. Name the columns: agg={{'…': '…'}}.",
        code="no-such-aggregate",
    )


def _group(frame: pd.DataFrame, keys: list[Any], sums: Aggregates, joined: bool) -> pd.DataFrame:
    groups = _by(frame, keys)
    result = _keys(groups, frame, keys)
    for name, word in sums:
        try:
            result[f"{word}({name})"] = AGGREGATES[word](groups[name]).array
        except (TypeError, ValueError) as error:
            raise _refusal(word, name, frame[name].dtype, error) from error
    return frame.merge(result, how="left", on=keys).set_axis(frame.index) if joined else result


# Groups of a shard, and of all


def _sent(
    partition: int, frames: Iterable[Any], keys: list[Any], sums: Aggregates, columns: list[Any], parts: int
) -> Iterator[tuple[int, Any]]:
    """Yield the part of each partition: the groups of a frame (side 0), or its rows where aggregates need them (1)."""
    for number, frame in enumerate(frames):
        by_groups = _combine(frame, sums)
        rows = _figures(frame, keys, sums) if by_groups else frame[columns]
        choice = _choice(list(range(len(keys))) if by_groups else keys, parts)
        for target, (_, _, part) in slices(partition, [rows], choice, 0, parts):
            yield target, (0 if by_groups else 1, (partition, number), part)


def _few(frames: Iterable[Any], keys: list[Any], sums: Aggregates, most: int) -> Iterator[pd.DataFrame | None]:
    """Yield the groups of each frame that has rows; at last None, where they are too many bytes or rows are needed.

    The first rows of a frame tell early that there are too many.
    """
    for frame in frames:
        if most < 0 or not len(frame):
            continue
        by_groups = _combine(frame, sums) and _bytes(_figures(frame.iloc[:_LOOK], keys, sums)) <= most
        figures = _figures(frame, keys, sums) if by_groups else None
        most = -1 if figures is None else most - _bytes(figures)
        yield figures if most >= 0 else None


def _bytes(frame: pd.DataFrame) -> int:
    return int(frame.memory_usage(deep=True).sum())


def _choice(keys: list[Any], parts: int) -> Choice:
    return hashed(keys, parts) if keys else _first_partition


def _first_partition(frame: pd.DataFrame) -> np.ndarray:
    return np.zeros(len(frame), np.int64)


def _combine(frame: pd.DataFrame, sums: Aggregates) -> bool:
    return all(_combines(frame[name].dtype, word) for name, word in sums)


def _combines(dtype: Any, word: str) -> bool:
    """Say whether an aggregate of a column is told from those of its parts, in the way that pandas would tell it."""
    if word not in _NEEDS:
        return False
    if word in ("count", "size"):
        return True
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.kind in "biu" or dtype == np.float64 or (word in ("min", "max") and dtype.kind in "fmM")


def _wanted(sums: Aggregates) -> list[tuple[Any, str]]:
    """Return (column, figure) for all figures that are needed."""
    return list(dict.fromkeys((name, figure) for name, word in sums for figure in _NEEDS[word]))


def _figures(frame: pd.DataFrame, keys: list[Any], sums: Aggregates) -> pd.DataFrame:
    """Return a row for each group: its keys, then the figures; columns are numbered."""
    pairs = _wanted(sums)
    columns = [frame[name] for name in keys]
    for name, figure in pairs:
        with _refused(frame[name].dtype, sums, name, figure):
            is_needed = any(column == name and word != "sum" and figure in _NEEDS[word] for column, word in sums)
            columns.append(_floats(frame[name], is_needed) if figure in _OF_FLOATS else frame[name])
    cells = pd.DataFrame(dict(enumerate(columns)), index=frame.index, copy=False)
    places = list(range(len(keys)))
    groups = _by(cells, places)
    result = _keys(groups, cells, places)
    for place, (name, figure) in enumerate(pairs, len(keys)):
        with _refused(frame[name].dtype, sums, name, figure):
            result[place] = _FIGURES[figure](groups[place]).array
    return result.set_axis(range(result.shape[1]), axis=1)


@contextmanager
def _refused(dtype: Any, sums: Aggregates, name: Any, figure: str) -> Iterator[None]:
    """Say which aggregate of a column there is not, where a figure of it cannot be told."""
    try:
        yield
    except (TypeError, ValueError) as error:
        word = next(word for column, word in sums if column == name and figure in _NEEDS[word])
        raise _refusal(word, name, dtype, error) from error


def _floats(column: pd.Series, is_needed: bool) -> pd.Series:
    """Return a column as floats; as nulls where it holds other things and no aggregate needs the floats.

    Raises:
        TypeError: It holds other things.
    """
    try:
        if column.dtype.kind in "mM":
            raise TypeError("there are times in it")
        if not types.is_numeric_dtype(column.dtype) and any(isinstance(cell, str) for cell in column):
            raise TypeError("there are texts in it")  # also those that could be read as numbers
        return pd.Series(column.to_numpy(np.float64, na_value=np.nan), column.index)
    except (TypeError, ValueError):
        if is_needed:
            raise
        return pd.Series(np.nan, column.index)


def _together(
    figures: pd.DataFrame | None, rows: pd.DataFrame | None, empty: pd.DataFrame, keys: list[Any], sums: Aggregates
) -> pd.DataFrame:
    """Return a row for each group, from the figures of its parts, or from its rows, or both."""
    if figures is None:
        return _group(empty if rows is None else rows, keys, sums, joined=False)
    if rows is not None:
        figures = joined_parts([figures, _figures(rows, keys, sums)])
    figures = figures.reset_index(drop=True)
    groups = _by(figures, list(range(len(keys))))
    places = {pair: place for place, pair in enumerate(_wanted(sums), len(keys))}
    result = _keys(groups, figures, list(range(len(keys)))).set_axis(keys, axis=1)
    for name, word in sums:
        mine = {figure: places[name, figure] for figure in _NEEDS[word]}
        try:
            result[f"{word}({name})"] = _TOGETHER[word](figures, groups, mine).array
        except TypeError as error:
            raise _refusal(word, name, "of different types in the shards", error) from error
    return result


def _added(figure: str) -> Callable[..., pd.Series]:
    return lambda _, groups, places: groups[places[figure]].sum()


def _sum(figures: pd.DataFrame, groups: Any, places: dict[str, int], figure: str | None = None) -> pd.Series:
    """Return the sums. That of a part which has values is null where these are infinities of both signs.

    Sums of integers overflow, as pandas' do, but not where some shard has floats: all are floats then.
    """
    figure = figure or ("total" if figures[places["sum"]].dtype.kind == "f" else "sum")
    sums = groups[places[figure]].sum()
    gaps = figures[places[figure]].isna() & (figures[places["count"]] > 0)
    return sums.mask(np.isin(np.arange(len(sums)), groups.ngroup()[gaps])) if gaps.any() else sums


def _mean(figures: pd.DataFrame, groups: Any, places: dict[str, int]) -> pd.Series:
    return _sum(figures, groups, places, "total") / groups[places["count"]].sum()


def _variance(figures: pd.DataFrame, groups: Any, places: dict[str, int], free: int) -> pd.Series:
    """Return the squares of the parts around the mean of all, over their number less `free`."""
    counts, means, squares = (figures[places[figure]] for figure in _MOMENTS)
    means, squares = (cells.where(counts > 0, 0.0) for cells in (means, squares))  # of infinities they are null
    codes = groups.ngroup()
    of_groups = partial(_sums, codes=codes.to_numpy(), number=groups.ngroups)
    number = of_groups(counts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = of_groups(counts * means) / number
        around = of_groups(counts * (means - mean[codes]) ** 2)
        variance = (of_groups(squares) + around) / np.maximum(number - free, 0)
    return pd.Series(np.where(number > free, variance, np.nan))


def _sums(cells: pd.Series, codes: np.ndarray, number: int) -> np.ndarray:
    return np.bincount(codes, cells.to_numpy(np.float64), number)


def _deviation(figures: pd.DataFrame, groups: Any, places: dict[str, int], free: int) -> pd.Series:
    return np.sqrt(_variance(figures, groups, places, free))


# The figures of the groups of each shard. The sum of no value is nothing here: it must not meet a text.
_FIGURES: dict[str, Callable[[Any], Any]] = {
    "count": lambda groups: groups.count(),
    "size": lambda groups: groups.size(),
    "sum": lambda groups: groups.sum(min_count=1),
    "min": lambda groups: groups.min(),
    "max": lambda groups: groups.max(),
    "total": lambda groups: groups.sum(min_count=1),
    "mean": lambda groups: groups.mean(),
    "squares": lambda groups: groups.var(ddof=0) * groups.count(),
}
_OF_FLOATS = ("total", "mean", "squares")
_MOMENTS = ("count", "mean", "squares")
_MEANS, _DEVIATIONS, _VARIANCES = ("mean", "avg"), ("std", "stddev", "stddev_samp"), ("var", "variance", "var_samp")
_NEEDS: dict[str, tuple[str, ...]] = {
    **{word: (word,) for word in ("count", "size", "min", "max")},
    "sum": ("sum", "total", "count"),
    **dict.fromkeys(_MEANS, ("total", "count")),
    **dict.fromkeys([*_DEVIATIONS, *_VARIANCES, "stddev_pop", "var_pop"], _MOMENTS),
}
# An aggregate, from (all figures, their groups, in which columns they are).
_TOGETHER: dict[str, Callable[..., pd.Series]] = {
    **{word: _added(word) for word in ("count", "size")},
    "sum": _sum,
    "min": lambda _, groups, places: groups[places["min"]].min(),
    "max": lambda _, groups, places: groups[places["max"]].max(),
    **dict.fromkeys(_MEANS, _mean),
    **dict.fromkeys(_VARIANCES, partial(_variance, free=1)),
    **dict.fromkeys(_DEVIATIONS, partial(_deviation, free=1)),
    "var_pop": partial(_variance, free=0),
    "stddev_pop": partial(_deviation, free=0),
}


# Aggregates of rows


def _agg(function: str | Callable[[pd.Series], Any]) -> Callable[[Any], Any]:
    return lambda groups: groups.agg(function)


def _moment(cells: pd.Series, power: int) -> float:
    """Return a standardized moment of the values, as of a whole population."""
    values = cells.dropna().to_numpy(np.float64)
    if not len(values) or not (spread := values.std()):
        return np.nan
    return float((((values - values.mean()) / spread) ** power).mean())


# pandas' own words, and those of Spark where pandas has others.
AGGREGATES: dict[str, Callable[[Any], Any]] = {
    **{word: _agg(word) for word in "count sum mean min max median std var first last nunique size prod".split()},
    **{word: _agg("mean") for word in _MEANS},
    **{word: _agg("std") for word in _DEVIATIONS},
    **{word: _agg("var") for word in _VARIANCES},
    **{word: _agg("nunique") for word in ("approx_count_distinct", "countDistinct", "count_distinct")},
    "stddev_pop": lambda groups: groups.std(ddof=0),
    "var_pop": lambda groups: groups.var(ddof=0),
    "skewness": _agg(lambda cells: _moment(cells, 3)),
    "kurtosis": _agg(lambda cells: _moment(cells, 4) - 3),
    **{word: _agg(lambda cells: cells.dropna().drop_duplicates().sum()) for word in ("sumDistinct", "sum_distinct")},
    "collect_list": _agg(lambda cells: cells.dropna().tolist()),
    "collect_set": _agg(lambda cells: cells.dropna().drop_duplicates().tolist()),
}
