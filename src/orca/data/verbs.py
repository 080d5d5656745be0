"""Verbs: the methods of shards, wherever they lie. Owns the verbs that Spark and Ray have in common.

They work on an RDD, or on an object with its methods (ray_lists.py); an element is a shard. Verbs of pandas are in
frames.py and groups.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.core.columns import column_array, is_rows
from orca.core.plan import even_split
from orca.core.units import positive
from orca.data.layout import ShardInfo, check_same, conform, union
from orca.data.refusals import failed_function, refused
from orca.data.slices import FRAME, SERIES, class_name_of, cut, join, peek, row_count
from orca.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from typing import Self

    import pandas as pd


_LISTED = 10  # columns or keys in a repr


class Verbs:
    """Shards with their verbs.

    Attributes:
        rdd: One element a shard.
    """

    rdd: Any
    eager = False  # whether verbs compute at once
    _class_name: str | None = None

    # Any shards

    def transform_shard(self, func: Callable[..., Any], *args: Any) -> Self:
        """Apply a function to every shard.

        Args:
            func: Called with a shard and the arguments; returns the new shard, of any kind.
            args: Further arguments. A SharedValue is sent to each executor once, and given as its value.

        Example::

            shards.transform_shard(lambda frame, least: frame[frame.age > least], 18)
        """
        return self._made(self.rdd.map(partial(_applied, func=func, args=args)))

    def collect(self) -> list[Any]:
        """Return all shards to the driver."""
        with refused():
            shards: list[Any] = self.rdd.collect()
        return shards

    def first(self) -> Any:
        """Return the first shard."""
        with refused():
            return self.rdd.first()

    def take(self, n: int) -> list[Any]:
        """Return the first shards."""
        with refused():
            shards: list[Any] = self.rdd.take(n)
        return shards

    def to_lazy(self) -> Self:
        """Return the same shards; results of their verbs are computed when they are used."""
        raise NotImplementedError

    def save_parquet(self, path: str) -> Self:
        """Write a Parquet file of each shard, for `XShards.load_parquet` and any reader of Parquet.

        Shards may be frames, arrays, and dicts, lists and tuples of arrays. Nothing is pickled. Of a categorical column
        the categories that no row of a shard has are lost.

        Args:
            path: A folder of any file system that `orca.data.file` knows, which all workers reach.

        Raises:
            ArgumentError: The folder is not empty.
            DataError: Parquet cannot hold a shard.
        """
        from orca.data import parquet

        with refused():
            parquet.save(self.rdd, path)
        return self

    def num_partitions(self) -> int:
        """Return how many partitions the shards lie in."""
        return self.rdd.getNumPartitions()

    def __repr__(self) -> str:
        """Tell what the shards are, as far as that is known without a job.

        Example::

            SparkXShards(DataFrame, columns=['city', 'price'], rows=6, shards=3)
        """
        info, facts = self._known(), []
        if info:
            facts = [" or ".join(map(_short, info.kinds))]
            columns = dict.fromkeys(name for blank, _ in info.layouts for name in blank.columns)
            facts += [f"columns={_listing(columns)}"] if info.layouts else []
            facts += [f"keys={_listing(info.keys)}"] if info.keys is not None else []
            facts += [f"rows={info.rows}"] if info.rows is not None else []
            facts += [f"shards={info.shards}"]
        else:
            facts = [_short(self._class_name)] if self._class_name else []
            with suppress(Exception):  # whatever py4j says of a Spark that is stopped
                facts += [f"partitions={self.num_partitions()}"]
        return f"{type(self).__name__}({', '.join(facts)})"

    def __len__(self) -> int:
        """Return how many rows the shards have.

        They are those of frames and arrays, of the arrays in a dict or a tuple, and the items of a list. A shard
        without any, or with arrays of different lengths, counts as one.
        """
        info = self._known()
        if info and info.rows is not None:
            return info.rows
        with refused():
            return int(self.rdd.map(_length).sum())

    def __getitem__(self, key: Any) -> Self:
        """Return shard[key] of every shard, lazily: a column of frames, an entry of dicts."""
        rdd = self.rdd
        if self._get_class_name() == FRAME:
            from orca.data import frames

            rdd, empty = self._rows("[]")
            frames.check_unique(key if isinstance(key, list) else [key], empty.columns, "[]")
        with refused():
            wrong = peek(rdd, partial(_refusal, key=key))
        if wrong:
            raise ArgumentError(wrong, code="not-indexable")
        return self.to_lazy()._made(rdd.map(operator.itemgetter(key)))

    def repartition(self, num_partitions: int) -> Self:
        """Spread the rows evenly over partitions, in their order, one shard in each.

        The rows are those of frames, Series and arrays, of arrays in a dict or a tuple, and the items of a list. Arrays
        that belong together are no list, therefore. Shards of other kinds are moved as they are. Lazy shards are
        computed twice, to be counted first, unless they are cached.

        Args:
            num_partitions: How many; with fewer rows than that some shards are empty.

        Raises:
            ArgumentError: It is no positive number.
        """
        parts, info = positive("num_partitions", num_partitions), self._info()
        rdd = self._rows("repartition")[0] if info and info.kinds == (FRAME,) else self.rdd
        with refused():
            counts = rdd.mapPartitions(_row_counts).collect()
        if not any(counts) or any(rows is None for shards in counts for rows in shards):
            return self._made(rdd.repartition(parts), self._class_name)
        begins = np.cumsum([0, *(rows for shards in counts for rows in shards)])
        firsts = np.cumsum([0, *(len(shards) for shards in counts)])
        edges = [start for start, _ in even_split(int(begins[-1]), parts)] + [int(begins[-1])]
        deal = partial(_dealt, begins=begins.tolist(), firsts=firsts.tolist(), edges=edges)
        empty = peek(rdd, _no_rows)
        pieces = rdd.mapPartitionsWithIndex(deal).partitionBy(parts, int)
        return self._made(pieces.mapPartitions(partial(_gathered, empty=empty)), self._class_name)

    def split(self) -> list[Self]:
        """Return the i-th item of every shard as XShards, for each i; shards are lists or tuples of one length.

        Shards that are no lists or tuples, or have one item, come back as they are.

        Raises:
            DataError: Shards have different lengths.
        """
        with refused():
            lengths = sorted(set(self.rdd.map(_items).collect()))
        if len(lengths) > 1:
            raise DataError(
                f"split needs shards with the same number of items; got shards of {lengths} items.",
                code="shards-not-splittable",
            )
        if not lengths or lengths[0] < 2:
            return [self]
        return [self._made(self.rdd.map(operator.itemgetter(i))) for i in range(lengths[0])]

    def zip(self, other: Self) -> Self:
        """Return pairs of a shard and the one of others at its place.

        Raises:
            ArgumentError: The others are no XShards of this kind, or do not lie in partitions of the same sizes.
        """
        kind = type(self)
        if not isinstance(other, kind):
            raise ArgumentError(f"other should be a {kind.__name__}; got {type(other).__name__}.", code="bad-shards")
        mine, theirs = self.num_partitions(), other.num_partitions()
        if mine != theirs:
            raise ArgumentError(
                f"The two {kind.__name__} should have the same number of partitions; got {mine} and {theirs}. "
                "Call repartition on one of them.",
                code="partitions-differ",
            )
        with refused():
            one, two = (shards.rdd.mapPartitions(_shard_count).collect() for shards in (self, other))
        if one != two:
            raise ArgumentError(
                f"The two {kind.__name__} should have the same number of elements in each partition; got {one} and "
                f"{two}.",
                code="partitions-differ",
            )
        return self._made(self.rdd.zip(other.rdd), "builtins.tuple", other)

    # Series

    def unique(self) -> np.ndarray:
        """Return the different values of shards that are pandas Series, in the order of their first appearance.

        Raises:
            ArgumentError: The shards are no Series.
        """
        if self._get_class_name() != SERIES:
            raise ArgumentError(
                f"unique needs shards that are pandas Series, as shards['column'] gives; got {self._get_class_name()}.",
                code="not-series",
            )
        with refused():
            values = join(self.rdd.map(operator.methodcaller("drop_duplicates")).collect()).unique()
        # numpy would make floats of integers beside nulls: large ones would become others.
        nullable_integers = not isinstance(values, np.ndarray) and values.dtype.kind in "iu"
        return np.asarray(values, object if nullable_integers and values.isna().any() else None)

    # Frames: rows meet others

    def partition_by(self, cols: str, num_partitions: int | None = None) -> Self:
        """Bring the rows with equal values of a column together in one shard.

        Args:
            cols: The column's name.
            num_partitions: How many shards, one a partition; as many as there are partitions unless given.

        Raises:
            ArgumentError: The shards are no frames, or have no such column.
        """
        from orca.data import frames

        rdd, empty = self._rows("partition_by")
        if isinstance(cols, list | set | dict):
            raise ArgumentError(f"partition_by takes the name of one column; got {cols!r}.", code="bad-column-names")
        frames.check_columns([cols], empty.columns, "partition_by")
        parts = self._parts() if num_partitions is None else positive("num_partitions", num_partitions)
        return self._made(frames.regroup(rdd, frames.hashed([cols], parts), parts, empty), FRAME)

    def deduplicates(self) -> Self:
        """Return each row once, the first of those that are equal in all columns; in no particular order."""
        from orca.data import frames

        return self._made(frames.deduplicated(*self._rows("deduplicates"), self._parts()), FRAME)

    def sort_values(self, col_names: str | list[str] | None = None, ascending: bool | list[bool] = True) -> Self:
        """Sort all rows: the shards hold one after the other the rows of pandas' stable sort; nulls are the last.

        Args:
            col_names: The columns to sort by; all, from left to right, unless given.
            ascending: Whether small values come first; one word, or one for each column.

        Raises:
            ArgumentError: There is no such column.
        """
        from orca.data import frames

        rdd, empty = self._rows("sort_values")
        with refused():
            rows = frames.ordered(rdd, empty, col_names, ascending, self._parts())
        return self._made(rows, FRAME)

    def merge(self, right: Self, how: str = "inner", on: str | list[str] | None = None) -> Self:
        """Join rows with equal keys, as pandas.DataFrame.merge does; in no particular order.

        Args:
            right: The other side, XShards of frames.
            how: "inner", "left", "right" or "outer".
            on: The columns with the keys; those that both sides have unless given. Nulls equal each other.

        Raises:
            ArgumentError: The other side is no XShards of frames, or columns are missing.
        """
        from orca.data import frames

        if not isinstance(right, type(self)):
            raise ArgumentError(
                f"merge: right should be a {type(self).__name__} of pandas DataFrames; got {type(right).__name__}.",
                code="bad-shards",
            )
        (left_rows, left_empty), (right_rows, right_empty) = self._rows("merge"), right._rows("merge")
        blanks = [left_empty, right_empty]
        keys = frames.keys_of_merge(blanks, how, on)
        if how in ("inner", "left") and right._is_small():
            small = conform(join(right.collect()), right_empty)
            if frames.are_exact(small[keys]):
                return self._made(frames.merged_with(left_rows, small, how, keys), FRAME)
        parts = max(self._parts(), right._parts())
        return self._made(frames.merged((left_rows, right_rows), blanks, how, keys, parts), FRAME, right)

    def group_by(
        self,
        columns: str | list[str] = [],  # noqa: B006
        agg: str | list[str] | dict[str, Any] = "count",
        join: bool = False,
    ) -> Self:
        """Aggregate groups of rows with equal keys; a null is a key of its own, so no row is lost.

        Args:
            columns: The columns with the keys; without any, all rows are one group.
            agg: A function for all other columns, or several; or those of each column by its name. Functions are those
                of pandas (count, sum, mean, min, max, median, std, var, first, last, nunique, size, prod), and of
                Spark: avg, stddev, stddev_pop, variance, var_pop, skewness, kurtosis, sumDistinct, collect_list,
                collect_set, approx_count_distinct (which is exact). As in pandas they skip nulls, and the sum of none
                is 0.
            join: Whether to return all rows, each with the figures of its group.

        Returns:
            Shards with the keys and columns named like "sum(price)", in no particular order.

        Raises:
            ArgumentError: A column or a function is not known.

        Example::

            shards.group_by("city", agg={"price": ["min", "mean"], "id": "count"})
        """
        from orca.data import groups

        rdd, empty = self._rows("group_by")
        with refused():
            rows = groups.grouped(rdd, empty, columns, agg, join, self._parts(), self.eager)
        return self._made(rows, FRAME)

    # Frames: each row alone

    def select(self, cols: str | list[str]) -> Self:
        """Return some of the columns, as frames."""
        from orca.data import frames

        return self._made(frames.selected(*self._rows("select"), cols), FRAME)

    def drop_missing_value(self) -> Self:
        """Drop the rows with a missing value; columns stay (older systems dropped these instead)."""
        rdd, _ = self._rows("drop_missing_value")
        return self._made(rdd.map(operator.methodcaller("dropna")), FRAME)

    def sample(self, frac: float, replace: bool = False, weights: Any = None, random_state: int | None = None) -> Self:
        """Draw a random part of each shard; it is the same part whenever it is computed.

        Args:
            frac: Which part of a shard's rows; their number is rounded shard by shard.
            replace: Whether a row may be drawn twice.
            weights: The column with the chances of rows.
            random_state: Seed; with the same one the same rows are drawn.
        """
        from orca.data import frames

        rdd, empty = self._rows("sample")
        if isinstance(weights, str):
            frames.check_columns([weights], empty.columns, "sample")
        rows = frames.sampled(rdd, frac=frac, replace=replace, weights=weights, random_state=random_state)
        return self._made(rows, FRAME)

    def assembleFeatureLabelCols(self, featureCols: str | list[str], labelCols: str | list[str]) -> Self:
        """Turn frames into {"x", "y"} for an Estimator: the array of a column, or a list of those of several.

        A model gets several arrays as several arguments; `stack_feature_labels` makes one array of them.

        Raises:
            ArgumentError: There is no such column.
        """
        from orca.data import frames

        rdd, empty = self._rows("assembleFeatureLabelCols")
        names = [frames.names_of(cols, empty, "assembleFeatureLabelCols") for cols in (featureCols, labelCols)]
        return self._made(rdd.map(partial(_assembled, features=names[0], labels=names[1])), "builtins.dict")

    def stack_feature_labels(self) -> Self:
        """Make one array (rows, columns) of the arrays of "x", and one of those of "y", in shards of such dicts.

        Raises:
            ArgumentError: The shards are no dicts.
        """
        if self._get_class_name() != "builtins.dict":
            raise ArgumentError(
                'stack_feature_labels needs shards of {"x": ..., "y": ...}, as assembleFeatureLabelCols makes; got '
                f"{self._get_class_name()}.",
                code="not-labelled-shards",
            )
        return self._made(self.rdd.map(_stacked), "builtins.dict")

    # Frames: to the driver, and to other kinds

    def max_values(self, col_name: str) -> Any:
        """Return the largest value of a column; None where it has none."""
        from orca.data import frames

        with refused():
            return frames.largest(*self._rows("max_values"), col_name)

    def get_null_sum(self) -> pd.Series:
        """Return how many values of each column are missing."""
        from orca.data import frames

        with refused():
            return frames.null_counts(*self._rows("get_null_sum"))

    def describe(self, cols: str | list[str] | None = None) -> pd.DataFrame:
        """Return the table of pandas.DataFrame.describe for all rows; quartiles are exact.

        Every column is brought together on one executor.

        Args:
            cols: Of which columns; of all unless given. Of texts only where there is nothing else.
        """
        from orca.data import frames

        with refused():
            return frames.described(*self._rows("describe"), cols)

    def head(self, n: int = 5) -> pd.DataFrame:
        """Return the first rows.

        Raises:
            ArgumentError: `n` is no whole number of at least 0.
        """
        from orca.data import frames

        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ArgumentError(f"head: n must be a whole number of at least 0; got {n!r}.", code="bad-count")
        with refused():
            return frames.head(*self._rows("head"), n)

    def concat_to_pdf(self, axis: int = 0) -> pd.DataFrame:
        """Return all shards as one frame on the driver, below each other (axis 0) or beside each other (1)."""
        import pandas as pd

        self._frames("concat_to_pdf")
        frames = self.collect()
        if not frames:
            raise DataError("there are no shards: the RDD of this XShards is empty.", code="no-shards")
        return join(frames) if not axis else pd.concat(frames, axis=1)

    def sample_to_pdf(
        self,
        frac: float,
        replace: bool = False,
        weights: Any = None,
        random_state: int | None = None,
        axis: int = 0,
    ) -> pd.DataFrame:
        """Return a random part of each shard as one frame on the driver: `sample`, then `concat_to_pdf`."""
        return self.to_lazy().sample(frac, replace, weights, random_state).concat_to_pdf(axis)

    def get_schema(self) -> dict[str, Any]:
        """Return {"columns", "dtypes"} of the frame of all shards; of lazy ones those of the first shard."""
        _, empty = self._rows("get_schema")
        return {"columns": empty.columns, "dtypes": empty.dtypes}

    def _get_class_name(self) -> str:
        """Return the name of the shards' class, of the first one where nobody has told it."""
        if self._class_name is None:
            info = self._known()
            with refused():
                self._class_name = info.kinds[0] if info else peek(self.rdd, class_name_of)
        return self._class_name

    def _frames(self, verb: str) -> Any:
        """Return the RDD of shards that are frames."""
        if self._get_class_name() != FRAME:
            raise ArgumentError(
                f"{verb} needs shards that are pandas DataFrames; got {self._get_class_name()}.",
                code="needs-dataframes",
            )
        return self.rdd

    def _rows(self, verb: str) -> tuple[Any, Any]:
        """Return the RDD of shards with the columns and types of the frame of all rows, and that frame without rows.

        Of lazy shards only the first is known: if others have other columns, they are refused when they are computed.
        """
        rdd, info = self._frames(verb), self._info()
        if info is None:
            with refused():
                empty = peek(rdd, _no_rows, is_enough=_has_columns)
            return rdd.map(partial(check_same, blank=empty)), empty
        if info.kinds != (FRAME,):
            raise DataError(
                f"{verb} needs shards that are pandas DataFrames; some are {info.kinds[1]}.", code="not-dataframes"
            )
        empty = union(info.layouts)
        return rdd if len(info.layouts) == 1 else rdd.map(partial(conform, blank=empty)), empty

    def _parts(self) -> int:
        return max(1, self.num_partitions())

    def _known(self) -> ShardInfo | None:
        """Return what is known of the shards without a job."""
        return None

    def _info(self) -> ShardInfo | None:
        """Return what the shards are, unless they would have to be computed for that, or there are none."""
        return None

    def _is_small(self) -> bool:
        """Say whether the shards may be sent to every worker; those that would have to be computed may not."""
        return False

    def _made(self, rdd: Any, class_name: str | None = None, *others: Self) -> Self:
        """Return new shards that are made of these, and of others."""
        raise NotImplementedError


class SharedValue:
    """A value of the driver that every executor gets once: an argument of transform_shard.

    Args:
        data: The value.

    Example::

        names = SharedValue({"a": 1})
        shards.transform_shard(lambda frame, names: frame.replace(names), names)
    """

    def __init__(self, data: Any) -> None:
        from orca.cluster.context import OrcaContext

        self.broadcast_data = OrcaContext.get_spark_context().broadcast(data)

    @property
    def value(self) -> Any:
        """Return the value."""
        return self.broadcast_data.value

    def unpersist(self) -> None:
        """Let executors forget the value; it is sent again where it is used again."""
        self.broadcast_data.unpersist()


# On executors


def _applied(shard: Any, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        # A subclass goes as it is.
        return func(shard, *(arg.value if type(arg) is SharedValue else arg for arg in args))
    except Exception as error:
        raise failed_function("transform_shard", error) from None


def _refusal(shard: Any, key: Any) -> str | None:
    """Return why a shard does not give the item at a key."""
    if not hasattr(shard, "__getitem__"):
        return f"No selection operation available for this XShards of {class_name_of(shard)}."
    try:
        shard[key]
    except (KeyError, IndexError, TypeError):
        have = f"; a shard has {list(shard.keys())}" if hasattr(shard, "keys") else ""
        return f"Invalid key for this XShards: {key!r}{have}."
    return None


def _length(shard: Any) -> int:
    rows = row_count(shard)
    if rows is not None:
        return rows
    if isinstance(shard, dict | tuple):
        lengths = set(_lengths(shard))
        return lengths.pop() if len(lengths) == 1 else 1
    if isinstance(shard, str | bytes):
        return 1
    countable = hasattr(shard, "__len__") and getattr(shard, "ndim", None) != 0  # an array may have no dimensions
    return len(shard) if countable else 1


def _lengths(part: Any) -> Iterator[int]:
    """Yield the rows of all arrays, Series and lists of numbers in a dict or a tuple."""
    if is_rows(part) or hasattr(part, "iloc") or (isinstance(part, np.ndarray) and part.ndim):
        yield len(part)
    elif isinstance(part, dict | tuple | list):
        for child in part.values() if isinstance(part, dict) else part:
            yield from _lengths(child)


def _short(class_name: str) -> str:
    return class_name.rpartition(".")[2]


def _listing(names: Iterable[Any]) -> str:
    words = list(map(repr, names))
    more = [f"... {len(words) - _LISTED} more"] if len(words) > _LISTED else []
    return f"[{', '.join(words[:_LISTED] + more)}]"


def _has_columns(frame: Any) -> bool:
    return getattr(frame, "shape", (0, 1))[1] > 0


def _items(shard: Any) -> int:
    return len(shard) if isinstance(shard, list | tuple) else 1


def _shard_count(shards: Iterable[Any]) -> Iterator[int]:
    yield sum(1 for _ in shards)


def _row_counts(shards: Iterable[Any]) -> Iterator[list[int | None]]:
    yield [row_count(shard) for shard in shards]


def _no_rows(shard: Any) -> Any:
    return cut(shard, 0, 0)


def _dealt(
    partition: int, shards: Iterable[Any], begins: list[int], firsts: list[int], edges: list[int]
) -> Iterator[tuple[int, Any]]:
    """Yield (where it goes, (its number, rows)) for every part of every shard.

    `begins` is the number of each shard's first row, `firsts` that of each partition's first shard, and `edges` are
    the first rows of the new shards.
    """
    for number, shard in enumerate(shards, firsts[partition]):
        begin, end = begins[number], begins[number + 1]
        place = int(np.searchsorted(edges, begin, side="right")) - 1
        while begin < end:
            stop = min(end, edges[place + 1])
            if stop > begin:
                yield place, (begin, cut(shard, begin - begins[number], stop - begins[number]))
            begin, place = stop, place + 1


def _gathered(pairs: Iterable[tuple[int, Any]], empty: Any) -> Iterator[Any]:
    parts = sorted((pair for _, pair in pairs), key=operator.itemgetter(0))
    yield join([rows for _, rows in parts]) if parts else empty


def _assembled(frame: Any, features: list[str], labels: list[str]) -> dict[str, Any]:
    cells = [[column_array(frame[name], name) for name in names] for names in (features, labels)]
    x, y = (arrays[0] if len(arrays) == 1 else arrays for arrays in cells)
    return {"x": x, "y": y}


def _stacked(shard: dict[str, Any]) -> dict[str, Any]:
    return {key: _one_array(part) if key in ("x", "y") else part for key, part in shard.items()}


def _one_array(part: Any) -> np.ndarray:
    arrays = [part] if isinstance(part, np.ndarray) else list(part)
    return np.concatenate([array[:, None] if array.ndim == 1 else array for array in arrays], axis=1)
