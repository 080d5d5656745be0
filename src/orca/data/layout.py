"""Layout: what shards are, and the frame that all of them together make. Owns its columns and types.

The frame of all shards is what pandas.concat makes of them: it has the columns of all, in the order in which they
appear, with missing values where a shard lacks one. Shards with rows decide on the types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from orca.data.slices import FRAME, class_name_of, row_count
from orca.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

# (a frame without its rows, whether it had any)
Layout = tuple["pd.DataFrame", bool]


@dataclass(frozen=True)
class ShardInfo:
    """What is known about shards without reading them again.

    Attributes:
        shards: How many they are.
        rows: Their rows; None if some have no rows to count.
        kinds: The names of their classes, each once.
        layouts: The different layouts of those that are frames.
        keys: The keys of the first one if that is a dict.
    """

    shards: int
    rows: int | None
    kinds: tuple[str, ...]
    layouts: tuple[Layout, ...]
    keys: tuple[Any, ...] | None

    @classmethod
    def of(cls, shard: Any) -> ShardInfo:
        """Describe one shard."""
        kind = class_name_of(shard)
        layouts = ((shard.iloc[:0], len(shard) > 0),) if kind == FRAME else ()
        return cls(1, row_count(shard), (kind,), layouts, tuple(shard) if isinstance(shard, dict) else None)

    def __add__(self, other: ShardInfo) -> ShardInfo:
        """Describe the shards of both."""
        return ShardInfo(
            self.shards + other.shards,
            None if self.rows is None or other.rows is None else self.rows + other.rows,
            tuple(dict.fromkeys([*self.kinds, *other.kinds])),
            _distinct([*self.layouts, *other.layouts]),
            self.keys,
        )


def infos_of(shards: Iterable[Any]) -> Iterator[ShardInfo]:
    """Yield the description of a partition's shards, if there are any."""
    infos = list(map(ShardInfo.of, shards))
    if infos:
        yield total(infos)


def total(infos: Sequence[ShardInfo]) -> ShardInfo:
    """Return the description of all shards together."""
    return reduce(ShardInfo.__add__, infos)


def _distinct(layouts: list[Layout]) -> tuple[Layout, ...]:
    found: list[Layout] = []
    for blank, has_rows in layouts:
        if not any(has_rows == other and are_alike(blank, one) for one, other in found):
            found.append((blank, has_rows))
    return tuple(found)


def are_alike(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Return whether two frames have the same columns of the same types, in one order."""
    return bool(one.columns.equals(other.columns)) and list(one.dtypes) == list(other.dtypes)


def union(layouts: Sequence[Layout]) -> pd.DataFrame:
    """Return the frame of all shards without its rows.

    Raises:
        DataError: Shards have different columns, and some of the same name.
    """
    import pandas as pd

    full = [blank for blank, has_rows in layouts if has_rows] or [blank for blank, _ in layouts]
    frame = _concat([blank.iloc[:0] for blank in full])
    for blank, _ in layouts:
        if not blank.columns.isin(frame.columns).all():  # one without rows
            _check_unique([frame, blank])
            frame = pd.concat([frame, blank.iloc[:0].loc[:, ~blank.columns.isin(frame.columns)]], axis=1)
    partial = [name for name in frame.columns if any(name not in blank.columns for blank in full)]
    if not partial:
        return frame
    with_null = pd.concat([frame[partial], pd.DataFrame(index=[None])])  # in types that hold one
    return frame.astype({name: with_null.dtypes[name] for name in partial})


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of frames as the frame of all.

    Raises:
        DataError: They have different columns, and some of the same name.
    """
    full = [frame for frame in frames if len(frame)]
    whole = _concat(full) if full else frames[0].iloc[:0]
    if full and all(frame.columns.isin(whole.columns).all() for frame in frames):
        return whole
    return conform(whole, union([(frame, len(frame) > 0) for frame in frames]))


def _concat(frames: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    if not all(frame.columns.equals(frames[0].columns) for frame in frames):
        _check_unique(frames)
    return frames[0] if len(frames) == 1 else pd.concat(frames)


def _check_unique(frames: list[pd.DataFrame]) -> None:
    for frame in frames:
        if not frame.columns.is_unique:
            raise DataError(
                "the shards have different columns, and one of them has columns of the same name: "
                f"{list(frame.columns)}. Rename them first, with transform_shard.",
                code="duplicate-column",
            )


def conform(frame: pd.DataFrame, blank: pd.DataFrame) -> pd.DataFrame:
    """Return a shard with the columns and types of the frame of all."""
    import pandas as pd

    if are_alike(frame, blank):
        return frame
    if not len(frame):
        return blank
    places = range(blank.shape[1]) if frame.columns.equals(blank.columns) else frame.columns.get_indexer(blank.columns)
    columns = [
        frame.iloc[:, place].astype(dtype) if place >= 0 else pd.Series(index=frame.index, dtype=dtype)
        for place, dtype in zip(places, blank.dtypes, strict=True)
    ]
    return pd.DataFrame(dict(enumerate(columns)), index=frame.index).set_axis(blank.columns, axis=1)


def check_same(frame: Any, blank: pd.DataFrame) -> pd.DataFrame:
    """Return a lazy shard with the columns of the first, in their order: it is not known what the others have.

    Raises:
        DataError: It has other columns, or is no frame.
    """
    if class_name_of(frame) != FRAME:
        raise DataError(
            f"shards must all be pandas DataFrames here; got a {class_name_of(frame)} too.", code="not-dataframes"
        )
    if frame.columns.equals(blank.columns):
        return frame
    if not len(frame):
        return blank
    if (
        len(frame.columns) == len(blank.columns)
        and frame.columns.is_unique
        and set(frame.columns) == set(blank.columns)
    ):
        return frame[list(blank.columns)]
    raise DataError(
        f"lazy shards must have the same columns; got {list(blank.columns)} and {list(frame.columns)}. Call cache() on "
        "them first: then the missing ones are filled with nulls, as pandas.concat does.",
        code="columns-differ",
    )
