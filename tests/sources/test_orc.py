from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pytest
import torch
from torch import nn

from orca import Estimator
from orca.errors import DataError
from orca.sources.parquet import RowGroup, path_of
from orca.sources.scan import SETTING, scan_of

EXPRESSIONS = [
    "id", "if(id % 7 = 0, null, cast(id % 100 as byte)) as byte", "cast(id % 1000 as short) as short",
    "cast(id as int) - 20 as int", "if(id % 5 = 0, float('NaN'), float(id)) as float", "-id / 4d as double",
    "if(id % 3 = 0, null, concat('ä', id % 9)) as text", "encode(cast(id as string), 'utf-8') as bytes",
    "if(id % 11 = 0, null, id % 2 = 0) as bool", "array(cast(id as float), null) as array",
    "array(array(id), array(), null) as nested",
    "if(id % 4 = 0, null, struct(cast(id as int) as one, array(cast(id as string)) as two)) as struct",
    "array(id % 10 / 10f, 1f) as x", "cast(id % 2 as float) as y", "date_add(date'1960-01-01', cast(id as int)) as day",
    "timestamp_micros(id) as time", "cast(id as decimal(10, 2)) as decimal",
]  # fmt: skip
ODD = ["day", "time", "decimal"]
ROWS = 40_000


@pytest.fixture(scope="module")
def folder(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of files that Spark wrote: one with several stripes, small ones, and one without rows."""
    folder: Path = tmp_path_factory.mktemp("rows of ORC %41 ä")
    rows = spark.range(ROWS).selectExpr(*EXPRESSIONS)
    sizes = {"orc.stripe.size": "100000", "orc.stripe.row.count": "9000"}
    for place, part in (("many", rows), ("few", rows.where("id < 9")), ("none", rows.where("id < 0"))):
        part.coalesce(1).write.options(**sizes).orc(str(folder / f"part={place}"))
    return folder


@pytest.fixture(scope="module")
def frame(spark: Any, folder: Path) -> Any:
    return spark.read.orc(str(folder))


@pytest.fixture
def small_cuts(spark: Any) -> Iterator[None]:
    """Let Spark cut files into many partitions."""
    spark.conf.set("spark.sql.files.maxPartitionBytes", "150000")
    spark.conf.set("spark.sql.files.openCostInBytes", "1")
    yield
    spark.conf.unset("spark.sql.files.maxPartitionBytes")
    spark.conf.unset("spark.sql.files.openCostInBytes")


def read_by_ranks(frame: Any) -> list[str]:
    scan = scan_of(frame)
    assert scan is not None
    batches = [batch for part in scan.partitions for batch in scan.reader(part)]
    return [repr(tuple(each.values())) for batch in batches for each in batch.to_pylist()]


def read_by_spark(frame: Any) -> list[str]:
    """Return the rows as texts, in which NaN equals NaN."""
    return [repr(tuple(map(plain, row))) for row in frame.collect()]


def plain(cell: Any) -> Any:
    if hasattr(cell, "asDict"):
        return cell.asDict()
    return bytes(cell) if isinstance(cell, bytearray) else cell


def test_every_type_is_read_as_by_spark_in_its_order(frame: Any) -> None:
    chosen = frame.drop(*ODD)
    scan = scan_of(chosen)
    assert scan is not None
    assert max(group.number for part in scan.partitions for group in part) >= 3  # stripes
    assert read_by_ranks(chosen) == read_by_spark(chosen)


def test_stripes_lie_in_the_partitions_that_spark_has_them_in(spark: Any, folder: Path, small_cuts: None) -> None:
    frame = spark.read.orc(str(folder)).select("id")
    scan = scan_of(frame)
    assert scan is not None
    parts = [[i for batch in scan.reader(part) for i in batch.column(0).to_pylist()] for part in scan.partitions]
    assert len([part for part in parts if part]) > 2
    assert parts == [[row.id for row in part] for part in frame.rdd.glom().collect()]


@pytest.mark.parametrize(
    "condition",
    ["id < 500", "text = 'ä4' and bool", "byte is null or id in (7, 30000)", "part = 'few'", "not (bool <=> true)"],
)
def test_filters_choose_the_rows_that_spark_chooses(frame: Any, condition: str) -> None:
    chosen = frame.where(condition).select("x", "id", "part", "text")
    assert read_by_ranks(chosen) == read_by_spark(chosen)


OTHERS: dict[str, Callable[[Any], Any]] = {
    **{f"the type of {name}": lambda frame, name=name: frame.select("id", name) for name in ODD},
    "a filter by floats": lambda frame: frame.select("id", "double").where("double < 3"),
    "another type": lambda frame: read(frame, "id long, short int"),
    "a missing column": lambda frame: read(frame, "id long, other int"),
    "names in another case": lambda frame: read(frame, "ID long"),
    "an option": lambda frame: frame.sparkSession.read.option("mergeSchema", True).orc(*inputs(frame)).select("id"),
}


def inputs(frame: Any) -> list[str]:
    return [str(Path(path_of(frame.inputFiles()[0])).parent.parent)]


def read(frame: Any, schema: str) -> Any:
    return frame.sparkSession.read.schema(schema).orc(*inputs(frame))


@pytest.mark.parametrize("other", OTHERS)
def test_all_else_is_left_to_spark(frame: Any, other: str) -> None:
    assert scan_of(frame.select("id", "short")) is not None
    assert scan_of(OTHERS[other](frame)) is None


def test_rows_of_orc_have_no_places(frame: Any) -> None:
    assert scan_of(frame.select("x"), by_place=True) is None


def test_columns_without_names_are_left_to_spark(spark: Any, tmp_path: Path) -> None:
    orc.write_table(pa.table({"_col0": [1, 2]}), tmp_path / "a.orc")  # as Hive wrote them
    hive = spark.read.schema("id long").orc(str(tmp_path))
    assert [row.id for row in hive.collect()] == [1, 2]
    assert scan_of(hive) is None
    assert scan_of(spark.read.orc(str(tmp_path))) is None


def test_columns_with_dots_in_their_names_are_left_to_spark(spark: Any, tmp_path: Path) -> None:
    orc.write_table(pa.table({"a.b": [1, 2], "c": [3, 4]}), tmp_path / "rows.orc")
    frame = spark.read.orc(str(tmp_path))
    assert scan_of(frame.select("`a.b`")) is None
    assert scan_of(frame.select("c")) is not None


def test_texts_of_a_fixed_length_are_left_to_spark(spark: Any, tmp_path: Path) -> None:
    spark.sql(f"create table orca_chars (t char(5)) using orc location '{tmp_path}'")
    try:
        spark.sql("insert into orca_chars values ('a')")
        assert scan_of(spark.table("orca_chars")) is None
    finally:
        spark.sql("drop table orca_chars")


def test_files_of_other_writers(spark: Any, tmp_path: Path) -> None:
    table = pa.table({"id": np.arange(5000), "x": pa.array([[1.0, None]] * 5000, pa.list_(pa.float32()))})
    for codec in ("uncompressed", "zlib", "snappy", "lz4", "zstd"):
        orc.write_table(table, tmp_path / f"{codec}.orc", compression=codec)
    frame = spark.read.orc(str(tmp_path))
    assert read_by_ranks(frame) == read_by_spark(frame)


def test_a_file_that_was_replaced_is_named(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.orc"
    orc.write_table(pa.table({"id": np.arange(8), "y": np.arange(8)}), path)
    scan = scan_of(spark.read.orc(str(path)))
    assert scan is not None
    assert [batch.num_rows for batch in scan.reader([RowGroup(str(path), 0, 2, 7)], 2)] == [5]
    for table in (pa.table({"id": np.arange(7), "y": np.arange(7)}), pa.table({"id": np.arange(8)})):
        orc.write_table(table, path)
        with pytest.raises(DataError, match=r"t.orc is not the one that was there"):
            list(scan.reader(scan.deal(1)[0]))
    path.unlink()
    with pytest.raises(DataError, match=r"t.orc is not there any more"):
        list(scan.reader(scan.deal(1)[0]))


def test_ranks_train_on_stripes_as_on_rows_of_spark(spark: Any, frame: Any) -> None:
    chosen = frame.where("id < 3000 and part = 'many'")
    assert scan_of(chosen.select("x", "y")) is not None
    one = fitted(chosen)
    spark.conf.set(SETTING, "false")
    try:
        other = fitted(chosen)
    finally:
        spark.conf.unset(SETTING)
    np.testing.assert_allclose(one, other, rtol=1e-5)


def fitted(frame: Any) -> np.ndarray:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    est = Estimator.from_torch(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=nn.MSELoss(),
        workers_per_node=2,
    )
    columns = {"feature_cols": ["x"], "label_cols": ["y"]}
    stats = est.fit(frame, epochs=2, batch_size=3000, shuffle=False, **columns)
    assert stats[-1]["num_samples"] == 3000
    return np.concatenate([value.detach().numpy().ravel() for value in est.get_model().parameters()])
