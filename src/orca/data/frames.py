"""Frames: verbs of pandas over all rows, on shards that are pandas frames. Owns how rows move between shards.

Rows that must meet (equal keys, neighbours in an order) are cut out of their shards by numpy, sent through one shuffle
as slices of frames, and joined in the order of the shards they came from. Then pandas itself does the work on each
shard, so that nulls, duplicates and types are treated as it treats them.

Not pyspark.pandas, which changes nulls, types and the index, or Modin: these verbs mean the same on Spark, on Ray and
here.
"""

from __future__ import annotations

import itertools
import numbers
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from operator import itemgetter, methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pandas.api import types

from orca.core.plan import even_split
from orca.data.slices import join
from orca.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from pyspark import RDD

_PRIME = np.uint64(1_099_511_628_211)
_POINTS = 64  # rows of each shard that the borders of a sort are drawn from
BROADCAST = 16 << 20  # bytes of a side of merge that is sent to every worker, rather than rows of both to some
_EXACT = 2.0**53  # below it every integer is a float
_HOW = ("inner", "left", "right", "outer")

# (number of the partition that a row goes to for each row of a frame)
Choice = Callable[[pd.DataFrame], np.ndarray]


# Rows on the move


def regroup(rdd: RDD[Any], choice: Choice, parts: int, empty: pd.DataFrame) -> RDD[Any]:
    """Send every row to the partition that is chosen for it; each becomes one shard, in the order of the old ones.

    `empty` is the shard of a partition to which no row comes.
    """
    pieces = _moved(rdd, choice, 0, parts).partitionBy(parts, int)
    return pieces.mapPartitions(partial(meet, work=_only, blanks=[empty]))


def _moved(rdd: RDD[Any], choice: Choice, side: int, parts: int) -> RDD[Any]:
    return rdd.mapPartitionsWithIndex(partial(slices, choice=choice, side=side, parts=parts))


def slices(partition: int, frames: Iterable[Any], choice: Choice, side: int, parts: int) -> Iterator[tuple[int, Any]]:
    """Yield (where it goes, (side, where it comes from, rows)) for every part of every frame.

    Where no row of a frame goes, a frame without rows does: the types of columns are told everywhere. It is pickled
    here, once for all partitions.
    """
    for number, frame in enumerate(frames):
        if not len(frame):
            continue
        targets = choice(frame)
        order = np.argsort(targets, kind="stable")
        numbers, starts = np.unique(targets[order], return_index=True)
        for target, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            yield target, (side, (partition, number), frame.iloc[places])
        types_alone = pickle.dumps(frame.iloc[:0], pickle.HIGHEST_PROTOCOL)
        for target in np.setdiff1d(np.arange(parts), numbers).tolist():
            yield target, (side, (partition, number), types_alone)


def meet(pairs: Iterable[tuple[int, Any]], work: Callable[..., Any], blanks: list[Any]) -> Iterator[Any]:
    """Yield the result of `work` for the rows that came to a partition: a frame from each side."""
    parts: list[list[Any]] = [[] for _ in blanks]
    pickles: set[tuple[int, bytes]] = set()
    for _, (side, place, rows) in pairs:
        if isinstance(rows, bytes):
            if (side, rows) in pickles:
                continue
            pickles.add((side, rows))
            rows = pickle.loads(rows)
        parts[side].append((place, rows))
    frames = [
        joined_parts([rows for _, rows in sorted(mine, key=itemgetter(0))]) if mine else empty
        for mine, empty in zip(parts, blanks, strict=True)
    ]
    yield work(*frames)


def joined_parts(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows that came; integers become the type that they would have beside the numbers of all shards."""
    frame = join(parts)
    if len({tuple(part.dtypes) for part in parts}) == 1 or not frame.columns.is_unique:
        return frame
    common = {}
    for name in frame.columns[[_is_number(dtype, "iu") for dtype in frame.dtypes]]:
        kinds = [part.dtypes[name] for part in parts if name in part.columns]
        if all(_is_number(kind, "iuf") for kind in kinds):  # beside other things they stay as they are
            common[name] = np.result_type(*kinds)
    return frame.astype(common)


def _is_number(dtype: Any, kinds: str) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in kinds


def _only(frame: Any) -> Any:
    return frame


def check_columns(names: Iterable[Any], have: Iterable[Any], what: str) -> None:
    """Check that there is one column of each of these names.

    Raises:
        ArgumentError: There is none; with the columns there are.
        DataError: There are several.
    """
    names, have = list(names), list(have)
    missing = [name for name in names if name not in have]
    if missing:
        raise ArgumentError(
            f"{what}: there is no column {missing[0]!r}; the shards have {have}.", code="unknown-column"
        )
    check_unique(names, have, what)


def check_unique(names: Iterable[Any], have: Iterable[Any], what: str) -> None:
    """Check that there are no two columns of one of these names.

    Raises:
        DataError: There are.
    """
    have = list(have)
    for name in names:
        if have.count(name) > 1:
            raise DataError(
                f"{what}: the shards have {have.count(name)} columns {name!r}. Rename them first, with "
                "transform_shard: frame.set_axis([...], axis=1).",
                code="duplicate-column",
            )


def names_of(columns: Any, frame: pd.DataFrame, what: str) -> list[Any]:
    """Return the columns that a verb is called with: one name, or several; all of them for None.

    Raises:
        ArgumentError: There is no such column.
        DataError: There are several of a name.
    """
    have = list(frame.columns)
    if columns is None:
        names = have
    elif isinstance(columns, Hashable) and (
        columns in have or isinstance(columns, str) or not isinstance(columns, Iterable)
    ):
        names = [columns]  # a name may be a tuple
    else:
        names = list(columns)
    check_columns(names, have, what)
    return names


# Keys


def hashed(columns: list[Any], parts: int) -> Choice:
    """Return the choice that lets rows meet which pandas takes for equal in these columns; nulls equal each other."""
    return partial(_hashed, columns=columns, parts=parts)


def _hashed(frame: pd.DataFrame, columns: list[Any], parts: int) -> np.ndarray:
    codes = np.zeros(len(frame), np.uint64)
    for name in columns:
        codes = codes * _PRIME + _codes(frame[name])
    return (codes % np.uint64(parts)).astype(np.int64)


def _codes(column: pd.Series) -> np.ndarray:
    """Return a number for each cell, the same for cells that pandas takes for equal, in any type."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        of_categories = _codes(column.cat.categories.to_series())
        return np.append(of_categories, np.uint64(0))[column.cat.codes.to_numpy()]  # -1, the last, is a null
    missing = column.isna().to_numpy(bool)
    codes = _present_codes(column, missing)
    codes[missing] = 0
    return codes


def _present_codes(column: pd.Series, missing: np.ndarray) -> np.ndarray:
    """Return the codes of cells; those of missing ones are anything."""
    if types.is_bool_dtype(column.dtype) or types.is_numeric_dtype(column.dtype):
        return _number_codes(column.to_numpy(np.float64, na_value=np.nan))
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    if types.is_datetime64_dtype(column.dtype) or types.is_timedelta64_dtype(column.dtype):
        return pd.util.hash_array(column.to_numpy().astype(f"{column.dtype.kind}8[us]").view(np.int64))
    cells = column.to_numpy(object, copy=True)
    cells[missing] = ""
    if types.infer_dtype(cells) in ("string", "empty"):
        return pd.util.hash_array(cells)
    codes = pd.util.hash_array(np.array([str(cell) for cell in cells], object))
    for kinds, coder in _OBJECTS:
        places = np.array([isinstance(cell, kinds) for cell in cells])
        if places.any():
            codes[places] = coder(cells[places])
    return codes


def _number_codes(cells: np.ndarray) -> np.ndarray:
    return pd.util.hash_array(cells.astype(np.float64) + 0.0)  # the two zeros are equal


# Cells of an object column are coded like those of columns with a type of their own.
_OBJECTS: list[tuple[Any, Callable[[np.ndarray], np.ndarray]]] = [
    ((numbers.Real, Decimal, np.bool_), _number_codes),
    (datetime, lambda cells: _codes(pd.Series(pd.to_datetime(cells, utc=True)))),
    (timedelta, lambda cells: _codes(pd.Series(pd.to_timedelta(cells)))),
]


# Verbs that move rows


def deduplicated(rdd: RDD[Any], empty: pd.DataFrame, parts: int) -> RDD[Any]:
    """Return each row once."""
    return regroup(rdd, hashed(names_of(None, empty, "deduplicates"), parts), parts, empty).map(_deduplicated)


def _deduplicated(frame: pd.DataFrame) -> pd.DataFrame:
    try:
        return frame.drop_duplicates()
    except TypeError as error:
        raise DataError(
            f"deduplicates: cells cannot be compared: {error}. Convert them first.", code="cells-not-comparable"
        ) from error


def ordered(rdd: RDD[Any], empty: pd.DataFrame, columns: Any, ascending: Any, parts: int) -> RDD[Any]:
    """Return the rows in the order of some columns over all shards; nulls are the last, ties keep their order."""
    names = names_of(columns, empty, "sort_values")
    ways = [bool(ascending)] * len(names) if isinstance(ascending, bool) else [bool(way) for way in ascending]
    if len(ways) != len(names):
        raise ArgumentError(
            f"sort_values: ascending has {len(ways)} value(s) for {len(names)} column(s) {names}.",
            code="bad-sort-order",
        )
    sort = partial(_sorted, names=names, ascending=ways)
    points = sort(join(rdd.map(partial(_sampled, columns=names)).collect()))
    places = [start for start, _ in even_split(len(points), parts)][1:]
    borders = points.iloc[sorted({place for place in places if 0 < place < len(points)})]
    return regroup(rdd, partial(_between, borders=borders, sort=sort), parts, empty).map(sort)


def _sorted(frame: pd.DataFrame, names: list[Any], ascending: list[bool]) -> pd.DataFrame:
    if not names:
        return frame
    try:
        return frame.sort_values(names, ascending=ascending, kind="stable")
    except TypeError as error:
        raise DataError(
            f"sort_values: the cells of {names} have no order: {error}. Convert them to one type first, with "
            "transform_shard.",
            code="cells-without-order",
        ) from error


def _sampled(frame: pd.DataFrame, columns: list[Any]) -> pd.DataFrame:
    places = np.random.default_rng(0).permutation(len(frame))[:_POINTS]
    return frame[columns].iloc[places]


def _between(frame: pd.DataFrame, borders: pd.DataFrame, sort: Callable[[Any], Any]) -> np.ndarray:
    """Return how many borders are not after each row: pandas sorts both together, so its order is the one used."""
    both = pd.concat([borders, frame[list(borders.columns)]], ignore_index=True)
    order = sort(both).index.to_numpy()
    targets = np.empty(len(both), np.int64)
    targets[order] = np.cumsum(order < len(borders))
    return targets[len(borders) :]


def keys_of_merge(blanks: list[pd.DataFrame], how: str, on: Any) -> list[Any]:
    """Return the columns with the keys of a merge.

    Raises:
        ArgumentError: There are none, or `how` is not known.
    """
    if how not in _HOW:
        raise ArgumentError(f"merge: how must be one of {', '.join(_HOW)}; got {how!r}.", code="bad-merge-how")
    if on is None:
        keys = [name for name in blanks[0].columns if name in blanks[1].columns]
        if not keys:
            raise ArgumentError(
                f"merge: the two sides have no column in common; they have {list(blanks[0].columns)} and "
                f"{list(blanks[1].columns)}. Rename one, and pass on=.",
                code="no-common-column",
            )
    else:
        keys = names_of(on, blanks[0], "merge")
    for side in blanks:
        check_columns(keys, side.columns, "merge")
    return keys


def merged(
    sides: tuple[RDD[Any], RDD[Any]], blanks: list[pd.DataFrame], how: str, keys: list[Any], parts: int
) -> RDD[Any]:
    """Return the rows of two sides that have equal keys, joined as pandas joins them."""
    choice = hashed(keys, parts)
    both = _moved(sides[0], choice, 0, parts).union(_moved(sides[1], choice, 1, parts)).partitionBy(parts, int)
    return both.mapPartitions(partial(meet, work=partial(_merge, how=how, on=keys), blanks=blanks))


def merged_with(rdd: RDD[Any], right: pd.DataFrame, how: str, keys: list[Any]) -> RDD[Any]:
    """Return the rows joined with those of a small frame, which every worker gets."""
    return rdd.map(partial(_merge_with, right=rdd.ctx.broadcast(right), how=how, on=keys))


def are_exact(keys: pd.DataFrame) -> bool:
    """Say whether the numbers among keys equal the same ones as integers and as floats.

    Where they do not, it matters to a shard of integers that another one has floats: all of them are floats then.
    """
    for column in (keys.iloc[:, place] for place in range(keys.shape[1])):
        if isinstance(column.dtype, pd.CategoricalDtype):
            column = column.cat.categories.to_series()
        if types.is_numeric_dtype(column.dtype) or column.dtype == object:
            cells = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
            if (np.abs(cells) >= _EXACT).any():
                return False
    return True


def _merge_with(left: pd.DataFrame, right: Any, how: Any, on: list[Any]) -> pd.DataFrame:
    return _merge(left, right.value, how, on)


def _merge(left: pd.DataFrame, right: pd.DataFrame, how: Any, on: list[Any]) -> pd.DataFrame:
    unlike = [name for name in on if left[name].dtype != right[name].dtype]
    blank = [name for name in unlike if _has_no_objects(left[name]) or _has_no_objects(right[name])]
    if blank:  # keys of other shards decide on their type
        left, right = (side.astype(dict.fromkeys(blank, object)) for side in (left, right))
    return left.merge(right, how=how, on=on)


def _has_no_objects(column: pd.Series) -> bool:
    return column.dtype == object and bool(column.isna().all())


# Verbs that look at rows


def selected(rdd: RDD[Any], empty: pd.DataFrame, columns: Any) -> RDD[Any]:
    """Return some of the columns."""
    return rdd.map(itemgetter(names_of(columns, empty, "select")))


def sampled(rdd: RDD[Any], **how: Any) -> RDD[Any]:
    """Return a random part of each shard, the same whenever it is computed."""
    seed = how.pop("random_state")
    if seed is None:
        seed = int(np.random.default_rng().integers(1 << 31))
    return rdd.mapPartitionsWithIndex(partial(_sample, seed=seed, how=how))


def _sample(partition: int, frames: Iterable[Any], seed: int, how: dict[str, Any]) -> Iterator[Any]:
    for number, frame in enumerate(frames):
        yield (
            frame.sample(**how, random_state=np.random.default_rng([seed, partition, number])) if len(frame) else frame
        )


def head(rdd: RDD[Any], empty: pd.DataFrame, rows: int) -> pd.DataFrame:
    """Return the first rows."""
    frames, need = [empty], rows
    for frame in rdd.map(methodcaller("head", rows)).toLocalIterator():
        frames.append(frame.head(need))
        need -= len(frames[-1])
        if not need:
            break
    return join(frames)


def largest(rdd: RDD[Any], empty: pd.DataFrame, column: Any) -> Any:
    """Return the largest value of a column; nulls do not count."""
    check_columns([column], empty.columns, "max_values")
    top = _largest(join(rdd.map(partial(_largest, column=column)).collect()), column)[column]
    return top.iloc[0] if len(top) else None


def _largest(frame: pd.DataFrame, column: Any) -> pd.DataFrame:
    """Return a frame with the largest value alone, in the type of its column, by whose order it is the largest."""
    values = frame[[column]].dropna()
    top = values.iloc[:1].copy()
    if not len(top):
        return top
    try:
        top.iloc[0, 0] = values[column].max()
        return top
    except TypeError as error:
        raise DataError(
            f"max_values: the cells of column {column!r} ({values.dtypes[column]}) have no order: {error}. Make them "
            "one type first, with transform_shard.",
            code="cells-without-order",
        ) from error


def null_counts(rdd: RDD[Any], empty: pd.DataFrame) -> pd.Series:
    """Return how many cells of each column are missing."""
    counts = rdd.map(_nulls).collect()
    return pd.Series(np.sum(counts, axis=0, dtype=np.int64), empty.columns)


def _nulls(frame: pd.DataFrame) -> np.ndarray:
    return frame.isna().sum().to_numpy()


def described(rdd: RDD[Any], empty: pd.DataFrame, columns: Any) -> pd.DataFrame:
    """Return the table of pandas' describe; every column comes together in one place for that."""
    names = names_of(columns, empty, "describe")
    if not names:
        raise DataError("describe: the shards have no columns.", code="no-columns")
    summaries = (
        _summaries(rdd, names, numeric=True)
        or _summaries(rdd, names, numeric=False)
        or {name: empty[name].describe() for name in _numeric(empty[names]) or names}
    )
    columns = [summaries[name] for name in names if name in summaries]
    shortest_first = sorted((list(column.index) for column in columns), key=len)
    rows = dict.fromkeys(itertools.chain.from_iterable(shortest_first))
    return pd.concat([column.reindex(list(rows)) for column in columns], axis=1)


def _summaries(rdd: RDD[Any], names: list[Any], numeric: bool) -> dict[Any, pd.Series]:
    """Return describe's figures of each column, or of those alone that are numeric in one frame of all rows."""
    whole = rdd.mapPartitionsWithIndex(partial(_columns, names=names, numeric=numeric)).partitionBy(len(names), int)
    return whole.mapPartitions(partial(_describe, names=names, numeric=numeric)).collectAsMap()


def _numeric(frame: pd.DataFrame) -> list[Any]:
    return list(frame.select_dtypes(include=[np.number, "datetime"]).columns)


def _columns(partition: int, frames: Iterable[Any], names: list[Any], numeric: bool) -> Iterator[tuple[int, Any]]:
    """Yield (place of a column, (where it comes from, its cells)); None for cells that are not wanted.

    Truths become numbers beside those of other shards, where pandas makes them so.
    """
    for number, frame in enumerate(frames):
        if len(frame):
            picks = {*_numeric(frame[names]), *frame[names].select_dtypes("bool").columns} if numeric else set(names)
            for place, name in enumerate(names):
                yield place, ((partition, number), frame[[name]] if name in picks else None)


def _describe(pairs: Iterable[tuple[int, Any]], names: list[Any], numeric: bool) -> Iterator[tuple[Any, Any]]:
    mine = list(pairs)
    if mine and all(cells is not None for _, (_, cells) in mine):
        cells = join([cells for _, cells in sorted((pair for _, pair in mine), key=itemgetter(0))])
        if not numeric or _numeric(cells):
            yield names[mine[0][0]], cells.iloc[:, 0].describe()
