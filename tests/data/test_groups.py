"""group_by over shards, against pandas with all rows in one frame; without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orca.data import groups
from orca.errors import DataError


class Lists:
    """Partitions in this process, with the methods of an RDD that group_by asks for."""

    defaultParallelism = 2

    def __init__(self, partitions: Iterable[Iterable[Any]]) -> None:
        self.partitions = [list(partition) for partition in partitions]
        self.ctx = self

    def parallelize(self, elements: list[Any], parts: int) -> Lists:
        assert len(elements) == parts
        return Lists([element] for element in elements)

    def collect(self) -> list[Any]:
        return [element for partition in self.partitions for element in partition]

    def mapPartitions(self, function: Callable[..., Any]) -> Lists:
        return Lists(function(iter(partition)) for partition in self.partitions)

    def mapPartitionsWithIndex(self, function: Callable[..., Any]) -> Lists:
        return Lists(function(number, iter(partition)) for number, partition in enumerate(self.partitions))

    def partitionBy(self, parts: int, number_of: Callable[[Any], int]) -> Lists:
        pairs = [pair for partition in self.partitions for pair in partition]
        return Lists([pair for pair in pairs if number_of(pair[0]) == part] for part in range(parts))


@pytest.fixture(autouse=True, params=[True, False], ids=["on the driver", "by a shuffle"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let groups come together in either way, where both are open to them."""
    monkeypatch.setattr(groups, "BROADCAST", 16 << 20 if request.param else 0)
    return request.param


def groups_of(shards: list[pd.DataFrame], word: str) -> pd.DataFrame:
    rdd: Any = Lists([shard] for shard in shards)
    result: Any = groups.grouped(rdd, shards[0].iloc[:0], "k", word, joined=False, parts=2, now=True)
    return pd.concat(result.collect())


def grouped(shards: list[pd.DataFrame], word: str) -> pd.Series:
    return groups_of(shards, word).set_index("k")[f"{word}(v)"].sort_index()


def test_only_few_groups_come_to_the_driver(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[int] = []
    monkeypatch.setattr(Lists, "partitionBy", lambda rdd, parts, _: ways.append(parts) or rdd)
    monkeypatch.setattr(groups, "meet", lambda pairs, work, blanks: iter(()))
    rdd: Any = Lists([[pd.DataFrame({"k": range(99), "v": 1}), pd.DataFrame({"k": [], "v": []})]] * 3)
    empty = pd.DataFrame({"k": [], "v": []})
    for word, shuffles in (("sum", not few), ("nunique", True)):
        groups.grouped(rdd, empty, "k", word, joined=False, parts=3, now=True)
        assert bool(ways) == shuffles
        ways.clear()
    groups.grouped(rdd, empty, "k", "sum", joined=False, parts=3)
    assert ways == [3]


@pytest.mark.parametrize("word", ["count", "sum", "mean", "var", "std", "min", "max"])
def test_infinities_of_both_signs_are_not_lost_between_shards(word: str) -> None:
    shards = [
        pd.DataFrame({"k": [1, 1, 2, 3, 3], "v": [np.inf, -np.inf, np.inf, np.nan, 2.0]}),
        pd.DataFrame({"k": [1, 1, 2, 3, 4], "v": [1.0, 2.0, 5.0, 3.0, np.nan]}),
    ]
    expected = pd.concat(shards).groupby("k")["v"].agg(word)
    np.testing.assert_allclose(grouped(shards, word).to_numpy(), expected.to_numpy())


BIG = 2**62 + 1


@pytest.mark.parametrize("word", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize(
    "other",
    [
        pd.Series([1.5, np.nan]), pd.Series([2, 2**63 + 5], dtype="uint64"), pd.Series([7, 8], dtype="int8"),
        pd.Series([1.5, 2.5], dtype="float32"), pd.Series([BIG, BIG]),
    ],
    ids=["float64", "uint64", "int8", "float32", "int64"],
)  # fmt: skip
def test_integers_are_summed_as_what_they_are_beside_those_of_all_shards(word: str, other: pd.Series) -> None:
    shards = [pd.DataFrame({"k": [1, 1, 1, 2], "v": [BIG] * 4}), pd.DataFrame({"k": [3, 4], "v": other})]
    expected = pd.concat(shards).groupby("k")["v"].agg(word)
    pd.testing.assert_series_equal(grouped(shards, word), expected, check_names=False, rtol=1e-15)


def test_large_keys_stay_apart_beside_a_shard_without_any() -> None:
    shards = [
        pd.DataFrame({"k": [2**53, 2**53 + 1, 2**53 + 1], "v": [1, 2, 4]}),
        pd.DataFrame({"k": pd.Series([None, None], dtype=object), "v": [8, 16]}),
    ]
    sums = groups_of(shards, "sum")["sum(v)"]
    assert sorted(sums) == [1, 6, 24]


def test_missing_values_of_every_kind_are_left_out_of_sums() -> None:
    cells = pd.Series([1, pd.NA, None, np.nan, 2.5], dtype=object)
    shards = [pd.DataFrame({"k": [1, 1], "v": [1, 2]}), pd.DataFrame({"k": [1, 1, 1, 2, 2], "v": cells})]
    assert grouped(shards, "sum").tolist() == [4, 2.5] and grouped(shards, "mean").tolist() == [4 / 3, 2.5]


@pytest.mark.parametrize("word", ["sum", "min", "mean", "std"])
@pytest.mark.parametrize("text", ["a", "7"])
def test_texts_in_one_of_the_shards_are_refused_by_the_name_of_their_column(word: str, text: str) -> None:
    shards = [pd.DataFrame({"k": [1, 1], "v": [1, 2]}), pd.DataFrame({"k": [1, 2], "v": [text, text]})]
    with pytest.raises(DataError, match=f"there is no {word} of column 'v'.*Name the columns"):
        grouped(shards, word)


@pytest.mark.parametrize(
    "cells", [["a", "b"], pd.to_timedelta([1, 2], unit="s"), pd.to_timedelta([1, 2]).astype(object)]
)
@pytest.mark.parametrize("first", [True, False])
def test_texts_and_durations_are_summed_beside_a_shard_without_values(cells: Any, first: bool) -> None:
    shards = [pd.DataFrame({"k": [1, 2], "v": [np.nan, np.nan]}), pd.DataFrame({"k": [1, 3], "v": cells})]
    shards = shards if first else shards[::-1]
    assert (
        grouped(shards, "sum").tolist() == pd.concat(shards).groupby("k")["v"].sum().tolist() == [cells[0], 0, cells[1]]
    )


@pytest.mark.parametrize("word", ["mean", "std"])
def test_times_beside_numbers_are_refused_rather_than_counted(word: str) -> None:
    for times in (pd.to_timedelta([1, 2]), pd.to_datetime([1, 2])):
        shards = [pd.DataFrame({"k": [1, 2], "v": [1.0, np.nan]}), pd.DataFrame({"k": [1, 3], "v": times})]
        with pytest.raises(DataError, match=f"there is no {word} of column 'v'.*times in it"):
            grouped(shards, word)


def test_large_keys_stay_apart_in_a_shard_of_objects_with_a_null() -> None:
    shards = [
        pd.DataFrame({"k": [1, 2**53, 2**53 + 1], "v": [1, 2, 4]}),
        pd.DataFrame({"k": pd.Series([1, None, 2**53 + 1], dtype=object), "v": [8, 16, 32]}),
    ]
    rows = groups_of(shards, "sum")
    sums = {key: total for key, total in zip(rows["k"].tolist(), rows["sum(v)"], strict=True) if not pd.isna(key)}
    assert sums == {1: 9, 2**53: 2, 2**53 + 1: 36} and len(rows) == 4
