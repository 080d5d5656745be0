from __future__ import annotations

import datetime
import decimal
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.ml.linalg import Vectors
from pyspark.sql import Window
from pyspark.sql import functions as F
from torch import nn

from orca import Estimator
from orca.core.source import Columns, DataSpec
from orca.core.state import OutputSpec
from orca.registry import source_of
from orca.sources.scan import SETTING, ScanPiece, scan_of
from raised import raises

UTC = datetime.UTC
NAN = math.nan


def row(i: int) -> dict[str, Any]:
    """Return row i of every type: every 7th value is missing, of floats every 5th is NaN."""
    some = {
        "bool": i % 2 == 0,
        "byte": i % 100,
        "short": i,
        "int": i - 20,
        "long": i << 40,
        "float": NAN if i % 5 == 0 else i / 2,
        "double": NAN if i % 5 == 1 else -i / 4,
        "text": ["", "a", "Ab", "b", "ä", "日本", "a b"][i % 7] + str(i % 3),
        "bytes": bytes([i % 256, 0]),
        "day": datetime.date(1960, 1, 1) + datetime.timedelta(days=500 * i),
        "time": datetime.datetime(1969, 12, 31, 23, 59, 59, i, UTC) + datetime.timedelta(days=500 * i),
        "local": datetime.datetime(2021, 3, 28, 2, 30, 0, i),
        "array": [float(i), None, NAN],
        "nested": [[i], [], None, [i, None]],
        "struct": {"one": None if i % 2 else i, "two": [f"t{i}"], "three": {"four": i / 8}},
    }
    return {name: None if (i + place) % 7 == 6 else value for place, (name, value) in enumerate(some.items())} | {
        "id": i,
        "x": [float(i), 1.0],
        "y": i % 2 / 2,
    }


SCHEMA = pa.schema(
    {
        "bool": pa.bool_(), "byte": pa.int8(), "short": pa.int16(), "int": pa.int32(), "long": pa.int64(),
        "float": pa.float32(), "double": pa.float64(), "text": pa.string(), "bytes": pa.binary(), "day": pa.date32(),
        "time": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "array": pa.list_(pa.float32()),
        "nested": pa.list_(pa.list_(pa.int64())),
        "struct": pa.struct(
            {"one": pa.int32(), "two": pa.list_(pa.string()), "three": pa.struct({"four": pa.float64()})}
        ),
        "id": pa.int64(), "x": pa.list_(pa.float32(), 2), "y": pa.float32(),
    }
)  # fmt: skip


def table(start: int, stop: int) -> pa.Table:
    return pa.Table.from_pylist([row(i) for i in range(start, stop)], SCHEMA)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of files of different sizes and odd names, one without rows, some with several row groups."""
    folder: Path = tmp_path_factory.mktemp("rows of every type")
    for number, (start, stop, group) in enumerate([(0, 9, 4), (9, 9, 1), (9, 50, 10), (50, 53, 100)]):
        pq.write_table(table(start, stop), folder / f"part {number} 50%41 #ä.parquet", row_group_size=group)
    return folder


@pytest.fixture(scope="module")
def frame(spark: Any, folder: Path) -> Iterator[Any]:
    """Yield the files as a DataFrame; dates of files that are not Spark's are taken as they are."""
    with settings(spark, {"spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED"}):
        yield spark.read.parquet(str(folder))


@contextmanager
def settings(spark: Any, values: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


@dataclass(frozen=True)
class Sum:
    """A model that adds each row's features up."""

    output = OutputSpec((("float32", (1,)),))

    def __call__(self, x: Any) -> Any:
        return np.asarray(x, np.float32).reshape(len(x), -1).sum(1)


def answer(frame: Any, features: str = "x", batch_size: int = 4) -> Any:
    source = source_of(frame, DataSpec(Columns((features,)), False, batch_size))
    return source.answer(Sum(), None)


def values(frame: Any) -> list[list[str]]:
    """Return the partitions of a frame as texts, in which NaN equals NaN and floats are told by all their digits."""
    frames = frame.withColumn("partition", F.spark_partition_id()).collect()
    return [[repr(cell) for cell in each] for each in frames]


def assert_alike(spark: Any, frame: Any, features: str = "x") -> None:
    """Assert that features are read by the tasks, and answered exactly as through Spark: rows, order and schema."""
    assert scan_of(frame.select(features), by_place=True) is not None
    quick = answer(frame, features)
    with settings(spark, {SETTING: "false"}):
        assert scan_of(frame.select(features), by_place=True) is None
        usual = answer(frame, features)
    assert quick.schema == usual.schema
    assert quick.schema.json() == usual.schema.json()
    assert values(quick) == values(usual)


def test_every_type_is_answered_as_through_spark(spark: Any, frame: Any) -> None:
    assert frame.count() == 53
    assert_alike(spark, frame)


FILTERS = [
    "int > 3", "int >= 3", "int < 3", "int <= 3", "int = 3", "int != 3", "3 < int", "3 >= int", "int <=> 3",
    "not (int <=> 3)", "byte > 50Y", "short between 5S and 30S", "long in (1099511627776, 0)", "int not in (1, 2, 3)",
    "float < 2f", "float = 2f", "float <= float('inf')", "2f > float",
    "double <= -3d", "double in (-1d, -2d)", 
    "text = 'a1'", "text > 'a'", "text < 'b'", "text in ('ä1', '日本2', '0')", "text != 'a1'", "bool", "not bool",
    "bool = true", "bool <=> false", "day > date'1970-01-01'", "day = date'1960-01-01'", "int is null",
    "float is not null", "array is not null", "struct is null", "int > 3 and float < 9f", "int > 3 or float is null",
    "not (int > 3 and text > 'a')", "(int > 3 or text = 'a1') and (bool or long > 9)", "int > 3 and int > 5",
]  # fmt: skip


def test_filters_choose_the_rows_that_spark_chooses(frame: Any) -> None:
    truth = frame.select("id", *(F.expr(condition) for condition in FILTERS)).collect()
    wrong = {}
    for place, condition in enumerate(FILTERS, 1):
        scan = scan_of(frame.where(condition).select("id"))
        ids = scan and [
            i for part in scan.partitions for batch in scan.reader(part) for i in batch.column(0).to_pylist()
        ]
        expected = [each.id for each in truth if each[place]]
        if ids != expected:
            wrong[condition] = f"{ids} instead of {expected}"
    assert wrong == {}


def test_a_filter_leaves_out_row_groups(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(table(0, 20).select(["id", "x"]), path, row_group_size=10)
    chosen = spark.read.parquet(str(path)).where("id >= 12")
    scan = scan_of(chosen)
    assert scan is not None
    first = pq.read_metadata(path).row_group(0)
    with path.open("r+b") as file:  # what is not read may be anything
        file.seek(4)
        file.write(b"\xff" * (first.column(0).total_compressed_size + first.column(1).total_compressed_size))
    batches = [batch for part in scan.partitions for batch in scan.reader(part)]
    assert [i for batch in batches for i in batch.column(0).to_pylist()] == list(range(12, 20))


def test_columns_may_be_chosen_renamed_and_repeated(spark: Any, frame: Any) -> None:
    assert_alike(
        spark,
        frame.where("id > 3")
        .select(F.col("x").alias("features"), "id", F.col("id").alias("c0"), "text")
        .where("c0 < 40"),
        "features",
    )


def test_names_differ_from_the_files_in_case_alone(spark: Any, frame: Any) -> None:
    assert_alike(spark, frame.select("X", "ID"), "X")


def test_metadata_of_columns_is_kept(spark: Any, frame: Any) -> None:
    assert_alike(spark, frame.select("x", F.col("id").alias("id", metadata={"unit": "m"})))


def test_files_that_spark_wrote_and_cut_into_partitions(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(2000).selectExpr(
        "id", "array(cast(id as float), 1f) as x", "repeat(cast(id as string), 30) as t"
    )
    rows.coalesce(1).write.option("parquet.block.size", 8192).parquet(str(tmp_path / "t"))
    with settings(spark, {"spark.sql.files.maxPartitionBytes": "20000", "spark.sql.files.openCostInBytes": "0"}):
        frame = spark.read.parquet(str(tmp_path / "t"))
        assert frame.rdd.getNumPartitions() > 2
        assert_alike(spark, frame)


def test_many_files(spark: Any, tmp_path: Path) -> None:
    for i in range(60):
        pq.write_table(table(i, i + 1 + i % 3).select(["id", "x"]), tmp_path / f"{i:02d}.parquet")
    assert_alike(spark, spark.read.parquet(str(tmp_path)))


def test_a_view_is_a_scan_that_hides_the_places_of_its_rows(spark: Any, frame: Any) -> None:
    frame.createOrReplaceTempView("rows_of_every_type")
    view = spark.sql("select id, x from rows_of_every_type where id > 7")
    assert scan_of(view) is not None
    assert scan_of(view, by_place=True) is None
    assert answer(view).count() == 45
    spark.catalog.dropTempView("rows_of_every_type")


def test_a_table_of_the_catalog_is_a_scan(spark: Any, folder: Path) -> None:
    spark.sql(f"create table orca_rows (id long, x array<float>) using parquet location '{folder}'")
    try:
        assert_alike(spark, spark.table("orca_rows").where("id > 7"))
    finally:
        spark.sql("drop table orca_rows")


# What is left to Spark


PLANS: dict[str, Callable[[Any], Any]] = {
    "an expression": lambda frame: frame.selectExpr("x", "id + 1 as id"),
    "a cast": lambda frame: frame.select("x", F.col("id").cast("int")),
    "a field of a struct": lambda frame: frame.select("x", "struct.one"),
    "a limit": lambda frame: frame.limit(5),
    "a sample": lambda frame: frame.sample(0.5, seed=1),
    "a sort": lambda frame: frame.select("id", "x").sort("id"),
    "a union": lambda frame: frame.select("id", "x").union(frame.select("id", "x")),
    "a join": lambda frame: frame.select("id", "x").join(frame.select("id", "y"), "id"),
    "groups": lambda frame: frame.groupBy("id").agg(F.first("x").alias("x")),
    "distinct rows": lambda frame: frame.select("id").distinct(),
    "a repartition": lambda frame: frame.repartition(2),
    "rows that were computed": lambda frame: frame.sparkSession.range(5).selectExpr("id", "array(1f) as x"),
    "metadata of files": lambda frame: frame.select("x", "_metadata.file_name"),
    "a random filter": lambda frame: frame.where("rand() < 0.5"),
    "a function in a filter": lambda frame: frame.where("length(text) > 1"),
    "a filter by two columns": lambda frame: frame.where("id > int"),
    "a filter by a time": lambda frame: frame.where("time > timestamp'2000-01-01 00:00:00'"),
    "a filter by bytes": lambda frame: frame.where("bytes = X'00'"),
    "a filter by an element": lambda frame: frame.where("array[0] > 1"),
    "a filter that holds for NaN": lambda frame: frame.where("float > 2f"),
    "its mirror": lambda frame: frame.where("2f <= float"),
    "all but a float": lambda frame: frame.where("double != 2d"),
    "all but some floats": lambda frame: frame.where("double not in (2d, 3d)"),
    "zero, which is two floats": lambda frame: frame.where("double = -0.0d"),
    "a filter by NaN": lambda frame: frame.where("float = float('nan')"),
    "a filter by null in a list": lambda frame: frame.where("int in (1, 2, null)"),
    "a filter by many values": lambda frame: frame.where(F.col("int").isin(list(range(20)))),
    "a filter by the start of a text": lambda frame: frame.where("text like 'a%'"),
    "a generator": lambda frame: frame.select("x", F.explode("nested")),
}


@pytest.mark.parametrize("plan", PLANS)
def test_other_plans_are_left_to_spark(frame: Any, plan: str) -> None:
    assert scan_of(frame.select("id", "x")) is not None
    assert scan_of(PLANS[plan](frame)) is None


def test_rows_that_a_window_sorts_are_not_looked_up_one_by_one(frame: Any) -> None:
    ranked = frame.select("id", "x", F.row_number().over(Window.partitionBy("y").orderBy("id")).alias("rank"))
    assert scan_of(ranked.select("x")) is not None
    assert scan_of(ranked.select("x"), by_place=True) is None
    assert {each.id: each.prediction for each in answer(ranked).collect()} == {i: i + 1.0 for i in range(53)}


def test_rows_that_spark_holds_are_not_read_again(spark: Any, frame: Any) -> None:
    held = frame.select("id", "x")
    assert scan_of(held.toDF("a", "b")) is not None
    held.cache()
    try:
        assert scan_of(held.toDF("a", "b")) is None
    finally:
        held.unpersist()


@pytest.mark.parametrize(
    "setting",
    [
        {SETTING: "false"},
        {"spark.sql.files.ignoreCorruptFiles": "true"},
        {"spark.sql.files.ignoreMissingFiles": "true"},
        {"spark.sql.parquet.fieldId.read.enabled": "true"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_leave_files_to_spark(spark: Any, frame: Any, setting: dict[str, str]) -> None:
    assert scan_of(frame.select("id", "x")) is not None
    with settings(spark, setting):
        assert scan_of(frame.select("id", "x")) is None


@pytest.mark.parametrize("mode", ["EXCEPTION", "LEGACY"])
def test_dates_in_another_calendar_are_left_to_spark(spark: Any, folder: Path, mode: str) -> None:
    with settings(spark, {"spark.sql.parquet.datetimeRebaseModeInRead": mode}):
        frame = spark.read.parquet(str(folder))
        assert scan_of(frame.select("id", "x")) is not None
        for name in ("day", "time", "local"):
            assert scan_of(frame.select("x", name)) is None


def saved(rows: pa.Table, **options: Any) -> Callable[[Any, Path], Any]:
    def made(spark: Any, path: Path) -> Any:
        pq.write_table(rows, path / "t.parquet", **options)
        return spark.read.parquet(str(path))

    return made


def written(kind: str, expressions: list[str], **options: str) -> Callable[[Any, Path], Any]:
    def made(spark: Any, path: Path) -> Any:
        spark.range(4).selectExpr(*expressions).write.mode("overwrite").options(**options).format(kind).save(str(path))
        return spark.read.format(kind).load(str(path))

    return made


def vectors(spark: Any, path: Path) -> Any:
    spark.createDataFrame([(Vectors.dense([1.0, 2.0]),)], ["x"]).write.mode("overwrite").parquet(str(path))
    return spark.read.parquet(str(path))


def partitioned(*expressions: str) -> Callable[[Any, Path], Any]:
    """Return what makes files in folders that are called after their values."""

    def made(spark: Any, path: Path) -> Any:
        names = ["part", *(f"part{i}" for i in range(1, len(expressions)))]
        parts = [f"{each} as {name}" for each, name in zip(expressions, names, strict=True)]
        rows = spark.range(12).selectExpr("id", "array(cast(id as float), 1f) as x", *parts)
        rows.write.mode("overwrite").partitionBy(*names).parquet(str(path))
        return spark.read.parquet(str(path))

    return made


def old_dates(spark: Any, path: Path) -> Any:
    with settings(spark, {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}):
        return written("parquet", ["date'1500-01-01' as day"])(spark, path)


def old_timestamps(spark: Any, path: Path) -> Any:
    with settings(spark, {"spark.sql.parquet.outputTimestampType": "INT96"}):
        return written("parquet", ["timestamp'2020-01-01 00:00:00' as time"])(spark, path)


def another_type(spark: Any, path: Path) -> Any:
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), path / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), path / "b.parquet")
    return spark.read.schema("id long").parquet(str(path))


def fewer_columns(spark: Any, path: Path) -> Any:
    pq.write_table(pa.table({"id": [1], "x": [1.0]}), path / "a.parquet")
    pq.write_table(pa.table({"id": [1]}), path / "b.parquet")
    return spark.read.schema("id long, x double").parquet(str(path))


def another_case(spark: Any, path: Path) -> Any:
    pq.write_table(pa.table({"ID": [1]}), path / "a.parquet")
    return spark.read.schema("id long").parquet(str(path))


def table_of(kind: str) -> Callable[[Any, Path], Any]:
    def made(spark: Any, path: Path) -> Any:
        spark.sql("drop table if exists orca_texts")
        spark.sql(f"create table orca_texts (t {kind}) using parquet location '{path}'")
        spark.sql("insert into orca_texts values ('a')")
        frame = spark.table("orca_texts")
        assert [row.t.strip() for row in frame.collect()] == ["a"]
        spark.sql("drop table orca_texts")
        return frame

    return made


def old_lists(spark: Any, path: Path) -> Any:
    with settings(spark, {"spark.sql.parquet.writeLegacyFormat": "true"}):
        return written("parquet", ["array(id) as x"])(spark, path)


def with_an_option(spark: Any, path: Path) -> Any:
    pq.write_table(pa.table({"a": [1]}), path / "t.parquet")
    return spark.read.option("mergeSchema", True).parquet(str(path))


FILES: dict[str, Callable[[Any, Path], Any]] = {
    "JSON": written("json", ["id"]),
    "CSV": written("csv", ["id"]),
    "ORC": written("orc", ["id"]),
    "text": written("text", ["cast(id as string)"]),
    "folders with numbers of another type": partitioned("cast(id as double) / 2"),
    "folders whose names look like those of files": partitioned("concat('a], path: file:/b', id % 2)"),
    "folders alone": lambda spark, path: partitioned("id")(spark, path).select("part"),
    "vectors": vectors,
    "decimals": saved(pa.table({"d": pa.array([decimal.Decimal("1.5")])})),
    "maps": saved(pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})),
    "unsigned numbers": saved(pa.table({"u": pa.array([1], pa.uint8())})),
    "bytes of one length": saved(pa.table({"b": pa.array([b"ab"], pa.binary(2))})),
    "timestamps in milliseconds": saved(pa.table({"t": pa.array([1], pa.timestamp("ms", "UTC"))})),
    "timestamps of 96 bits": old_timestamps,
    "dates of the Julian calendar": old_dates,
    "dots in names": saved(pa.table({"a.b": [1]})),
    "a codec that Arrow may lack": saved(pa.table({"a": [1]}), compression="brotli"),
    "categories": saved(pa.table({"a": pa.array(["a"]).dictionary_encode()})),
    "lists of an old form": old_lists,
    "an option of the reader": with_an_option,
    "files of different types": another_type,
    "files that lack columns": fewer_columns,
    "names in another case": another_case,
    "padded texts": table_of("char(5)"),
    "texts of a largest length": table_of("varchar(5)"),
    "no rows": saved(pa.table({"a": pa.array([], pa.int64())})),
}


@pytest.mark.parametrize("kind", FILES)
def test_other_files_are_left_to_spark(spark: Any, tmp_path: Path, kind: str) -> None:
    assert scan_of(FILES[kind](spark, tmp_path)) is None


def test_buckets_are_left_to_spark(spark: Any) -> None:
    spark.range(10).write.mode("overwrite").bucketBy(2, "id").saveAsTable("orca_buckets")
    try:
        assert scan_of(spark.table("orca_buckets")) is None
    finally:
        spark.sql("drop table orca_buckets")


# Folders

FOLDERS = {
    "int": "id % 3",
    "long": "(id % 3) << 40",
    "text": "concat('ä [b]= %', id % 3)",
    "text or null": "if(id % 3 = 0, null, concat('t', id % 3))",
    "date": "date_add(date'1960-02-28', cast(id % 3 as int))",
}


def read_by_ranks(frame: Any) -> list[tuple[Any, ...]]:
    scan = scan_of(frame)
    assert scan is not None
    batches = [batch for part in scan.partitions for batch in scan.reader(part)]
    return [tuple(each.values()) for batch in batches for each in batch.to_pylist()]


@pytest.mark.parametrize("kind", FOLDERS)
def test_columns_in_the_names_of_folders_are_read_as_by_spark(spark: Any, tmp_path: Path, kind: str) -> None:
    frame = partitioned(FOLDERS[kind], "id % 2")(spark, tmp_path)
    least = {"text": "part < 'ä [b]= %2'", "date": "part <= date'1960-02-29'"}.get(kind, "part is not null")
    for chosen in (
        frame.select("id", "part", "part1"),
        frame.select("part", "id").where("part1 = 1"),
        frame.select("part1", "id").where(least),
        frame.select("id", "part").where(f"id > 3 and part1 = 0 or {least}"),
    ):
        assert read_by_ranks(chosen) == [tuple(each) for each in chosen.collect()]
    assert_alike(spark, frame)  # predict: the folders' columns never leave the JVM
    with settings(spark, {SETTING: "true"}):
        assert scan_of(frame.select("part1"), by_place=True) is None


def test_ranks_train_on_columns_of_folders(spark: Any, tmp_path: Path) -> None:
    frame = partitioned("cast(id % 3 as int)")(spark, tmp_path)
    shards = source_of(frame, DataSpec(Columns(("x", "part"), ("id",)), True, 4)).shards(3)
    rows = [tuple(each.values()) for piece in shards.portable() for batch in piece() for each in batch.to_pylist()]
    assert sorted(rows, key=lambda each: each[3]) == [(0, [float(i), 1.0], i % 3, i) for i in range(12)]
    wide = spark.read.schema("x array<float>, id long, part long").parquet(str(tmp_path))
    assert sorted(read_by_ranks(wide.select("id", "part").where("part > 1"))) == [(2, 2), (5, 2), (8, 2), (11, 2)]


# Ranks


def test_ranks_get_even_shares_and_every_row_once(frame: Any) -> None:
    scan = scan_of(frame.select("id"))
    assert scan is not None
    for ranks in (1, 2, 3, 7, 60):
        shares = [
            [i for batch in scan.reader(share) for i in batch.column(0).to_pylist()] for share in scan.deal(ranks)
        ]
        assert sorted(i for share in shares for i in share) == list(range(53))
        assert {len(share) for share in shares} <= {53 // ranks, 53 // ranks + 1}
    assert [each.id for each in frame.collect()] == [
        i for batch in scan.reader(scan.deal(1)[0]) for i in batch.column(0).to_pylist()
    ]


def test_shards_of_a_scan_are_pieces_and_of_another_frame_rows(spark: Any, frame: Any) -> None:
    spec = DataSpec(Columns(("x",), ("y",)), True, 4)
    plain, other = source_of(frame, spec), source_of(frame.limit(20), spec)
    assert all(isinstance(piece, ScanPiece) for piece in plain.shards(2, plain).native)
    assert all(isinstance(piece, ScanPiece) for piece in plain.shards(2).portable())
    for shards in (plain.shards(2, other), other.shards(2, plain), other.shards(2)):
        assert not isinstance(shards.native, list)


def test_validation_data_of_another_type_is_left_to_spark(frame: Any) -> None:
    spec = DataSpec(Columns(("x",), ("label",)), True, 4)
    labelled = [frame.select("x", F.col(name).alias("label")) for name in ("id", "id", "y")]
    whole, other, halves = (source_of(each, spec) for each in labelled)
    assert isinstance(whole.shards(2, other).native, list)
    assert not isinstance(whole.shards(2, halves).native, list)


def estimator(workers: int, **options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    return Estimator.from_torch(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-4),
        loss=nn.MSELoss(),
        workers_per_node=workers,
        **options,
    )


def weights(est: Any) -> np.ndarray:
    return np.concatenate([value.detach().numpy().ravel() for value in est.get_model().parameters()])


def fitted(frame: Any, workers: int, batch_size: int, **options: Any) -> np.ndarray:
    est = estimator(workers)
    stats = est.fit(
        frame, epochs=2, batch_size=batch_size, feature_cols=["x"], label_cols=["y"], shuffle=False, **options
    )
    assert stats[-1]["num_samples"] == frame.count()
    return weights(est)


def plain_loop(rows: list[Any], batch_size: int) -> np.ndarray:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.tensor([each.x for each in rows])
    y = torch.tensor([[each.y] for each in rows])
    for _ in range(2):
        for start in range(0, len(rows), batch_size):
            stop = start + batch_size
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[start:stop]), y[start:stop]).backward()
            optimizer.step()
    return np.concatenate([value.detach().numpy().ravel() for value in model.parameters()])


def test_one_rank_trains_as_a_plain_loop_in_the_order_of_spark(frame: Any) -> None:
    np.testing.assert_allclose(fitted(frame, 1, 8), plain_loop(frame.collect(), 8), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("workers", [2, 3])
def test_ranks_with_uneven_rows_train_as_a_plain_loop(spark: Any, frame: Any, workers: int) -> None:
    chosen = frame.where("id < 6 or id > 38")  # of the row groups that ranks get, different parts
    scan = scan_of(chosen.select("x", "y"))
    assert scan is not None
    counts = [sum(batch.num_rows for batch in scan.reader(share)) for share in scan.deal(workers)]
    assert len(set(counts)) > 1
    expected = plain_loop(chosen.collect(), 53)
    np.testing.assert_allclose(fitted(chosen, workers, 53), expected, rtol=1e-5, atol=1e-7)
    with settings(spark, {SETTING: "false"}):
        np.testing.assert_allclose(fitted(chosen, workers, 53), expected, rtol=1e-5, atol=1e-7)


def test_validation_data_may_be_a_scan_or_not(frame: Any) -> None:
    losses = []
    for valid in (frame.where("id < 10"), frame.where("id < 10").sort("id")):
        for train in (frame, frame.repartition(2)):
            est = estimator(2)
            stats = est.fit(train, epochs=1, batch_size=53, feature_cols=["x"], label_cols=["y"], validation_data=valid)
            assert (stats[0]["num_samples"], stats[0]["val_num_samples"]) == (53, 10)
            losses.append(stats[0]["val_loss"])
            losses.append(est.evaluate(valid, batch_size=4, feature_cols=["x"], label_cols=["y"])["val_loss"])
    assert losses == pytest.approx([losses[0]] * 8, rel=1e-5)


def test_weights_and_several_features_of_a_scan(spark: Any, frame: Any) -> None:
    spec = DataSpec(Columns(("x", "id"), ("y",), weight="id"), True, 4)
    read = []
    for setting in ("true", "false"):
        with settings(spark, {SETTING: setting}):
            shards = source_of(frame, spec).shards(1)
            pieces = shards.portable()
            try:
                items = (batch for piece in pieces for batch in piece())
                part = shards.open(items, Path(tempfile.gettempdir()))["train"]
                (x, ids), (y, weight) = next(iter(part.read([np.arange(part.count)])))
                order = np.argsort(ids)
                read.append([x[order], ids[order], y[order], weight[order]])
                part.close()
            finally:
                shards.release()
    for one, other in zip(*read, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


# Options together: (the rows, the options of fit)
TOGETHER: dict[str, tuple[Callable[[Any], Any], Callable[[Any], dict[str, Any]]]] = {
    "a filter, validation rows and weights": (
        lambda frame: frame.where("id > 4 and part < 3"),
        lambda frame: {"validation_data": frame.where("part = 0"), "sample_weight": "weight"},
    ),
    "cache, a filter by folders and weights": (
        lambda frame: frame.where("part in (0, 2)"),
        lambda frame: {"cache": True, "sample_weight": "part1"},
    ),
    "cache, and validation rows of a repartition": (
        lambda frame: frame,
        lambda frame: {"cache": True, "validation_data": frame.where("id < 7").repartition(2)},
    ),
    "a repartition, cache and weights": (
        lambda frame: frame.where("part != 1").repartition(2),
        lambda frame: {"cache": True, "sample_weight": "weight"},
    ),
    "a column of folders as a label": (
        lambda frame: frame.withColumnsRenamed({"y": "z", "part": "y"}),
        lambda frame: {"validation_data": frame.withColumnsRenamed({"y": "z", "part1": "y"})},
    ),
}


@pytest.fixture(scope="module")
def folders(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return rows whose columns part and part1 are in the names of folders."""
    path = tmp_path_factory.mktemp("folders")
    rows = spark.range(31).selectExpr(
        "id", "array(id / 31f, 1f) as x", "cast(id % 2 as float) as y", "float(1 + id % 3) as weight",
        "cast(id % 4 as int) as part", "cast(1 + id % 2 as int) as part1",
    )  # fmt: skip
    rows.repartition(2).write.partitionBy("part", "part1").mode("overwrite").parquet(str(path))
    return spark.read.parquet(str(path))


@pytest.mark.full
@pytest.mark.parametrize("case", TOGETHER)
def test_options_together_train_as_through_spark(spark: Any, folders: Any, case: str) -> None:
    rows, options = TOGETHER[case]
    results = []
    for setting in ("true", "false"):
        with settings(spark, {SETTING: setting}):
            est = estimator(2)
            stats = est.fit(
                rows(folders), epochs=2, batch_size=31, feature_cols=["x"], label_cols=["y"], **options(folders)
            )
            results.append((weights(est), [{k: v for k, v in line.items() if "loss" in k} for line in stats]))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5)
    for one, other in zip(results[0][1], results[1][1], strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_a_fit_resumed_through_spark_ends_as_the_whole_one(spark: Any, folders: Any, tmp_path: Path) -> None:
    chosen, columns = folders.where("part < 3"), {"feature_cols": ["x"], "label_cols": ["y"]}
    whole = estimator(2)
    whole.fit(chosen, epochs=3, batch_size=31, sample_weight="weight", **columns)
    for epochs, setting in enumerate(("true", "false", "true"), 1):
        est = estimator(2, model_dir=str(tmp_path))
        with settings(spark, {SETTING: setting}):
            est.fit(chosen, epochs=epochs, batch_size=31, sample_weight="weight", resume=epochs > 1, **columns)
    np.testing.assert_allclose(weights(est), weights(whole), rtol=1e-5)


def test_a_filter_that_leaves_nothing_is_told(spark: Any, frame: Any) -> None:
    assert answer(frame.where("id > 1000")).collect() == []
    with pytest.raises(Exception, match="there are no rows"):
        fitted(frame.where("id > 1000"), 2, 4)


def test_predict_runs_no_job_and_answers_only_the_rows_that_are_used(spark: Any, frame: Any) -> None:
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("scan", "no job")
    answered = answer(frame)
    assert list(tracker.getJobIdsForGroup("scan")) == []
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert [each.id for each in answered.limit(3).collect()] == [each.id for each in frame.limit(3).collect()]
    assert answered.coalesce(1).count() == 53
    expected = {each.id: sum(each.x) for each in frame.collect()}
    few = answered.where("id in (3, 11, 12, 40, 51)").select("id", "prediction").collect()
    assert {each.id: each.prediction for each in few} == {i: expected[i] for i in (3, 11, 12, 40, 51)}
    alone = answered.select("prediction").collect()
    assert [each.prediction for each in alone] == list(expected.values())


@dataclass(frozen=True)
class Sloppy:
    """A model that writes into its features, where it may."""

    output = OutputSpec((("float32", (1,)),))

    def __call__(self, x: Any) -> Any:
        if x.flags.writeable:
            x += 1
            return x.sum(1)
        return (x + 1).sum(1)


def test_a_model_may_write_into_its_features(spark: Any, frame: Any) -> None:
    source = source_of(frame.select("id", "x"), DataSpec(Columns(("x",)), False, 3))
    answered = source.answer(Sloppy(), None).collect()
    assert [(each.x, each.prediction) for each in answered] == [([i, 1.0], i + 3.0) for i in (e.id for e in answered)]
    with settings(spark, {SETTING: "false"}):
        assert source.answer(Sloppy(), None).collect() == answered


ROWS: dict[str, Callable[[Any], Any]] = {
    "an expression": lambda frame: frame.selectExpr("x", "id + 1 as id"),
    "a field of a struct": lambda frame: frame.select("x", "struct.one"),
    "the name of the file": lambda frame: frame.select("x", "_metadata.file_name"),
    "a function in a filter": lambda frame: frame.where("length(text) > 1"),
    "a filter by two columns": lambda frame: frame.where("short > int + 20"),
    "a filter by a time": lambda frame: frame.where("time > timestamp'2000-01-01 00:00:00'"),
    "a filter that holds for NaN": lambda frame: frame.where("float > 2f"),
    "a filter by many values": lambda frame: frame.where(F.col("int").isin(list(range(20)))),
    "a filter that leaves nothing": lambda frame: frame.where("id > 1000"),
    "columns of one name": lambda frame: frame.select("id", "x", "id"),
    "types that only Spark reads": lambda frame: frame.selectExpr("x", "decimal(id) as d", "map('a', id) as m"),
}


@pytest.mark.parametrize("rows", ROWS)
def test_predict_leaves_other_columns_and_filters_to_spark(spark: Any, frame: Any, rows: str) -> None:
    assert_alike(spark, ROWS[rows](frame))


def test_a_file_that_is_gone_is_named(spark: Any, tmp_path: Path) -> None:
    for i in range(3):
        pq.write_table(table(i * 4, i * 4 + 4).select(["id", "x", "y"]), tmp_path / f"{i}.parquet")
    frame = spark.read.parquet(str(tmp_path))
    assert scan_of(frame) is not None
    answered = answer(frame)
    pieces = source_of(frame, DataSpec(Columns(("x",), ("y",)), True, 4)).shards(1).portable()
    (tmp_path / "1.parquet").unlink()
    with raises("file-gone"):
        list(pieces[0]())
    with pytest.raises(Exception, match=r"1\.parquet"):
        answered.collect()
    assert scan_of(frame) is None  # Spark says it in its own words


def test_a_file_that_was_replaced_is_named(spark: Any, tmp_path: Path) -> None:
    pq.write_table(table(0, 8).select(["id", "x"]), tmp_path / "t.parquet", row_group_size=4)
    answered = answer(spark.read.parquet(str(tmp_path)))
    pq.write_table(table(0, 8).select(["id"]), tmp_path / "t.parquet")
    with pytest.raises(Exception, match=r"t.parquet is not the one that was there"):
        answered.select("id", "prediction").collect()


def test_a_longer_file_in_the_place_of_another_is_read_as_far_as_spark_reads(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(table(0, 8).select(["id", "x"]), path)
    frame = spark.read.parquet(str(path))
    pq.write_table(table(0, 40).select(["id", "x"]), path, row_group_size=4)
    scan = scan_of(frame)
    assert scan is not None
    ids = [i for part in scan.partitions for batch in scan.reader(part) for i in batch.column(0).to_pylist()]
    assert ids == [each.id for each in frame.collect()]
    assert 0 < len(ids) < 40


def test_a_file_with_fewer_rows_in_the_place_of_another_is_named(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(table(0, 8).select(["id", "x"]), path)
    scan = scan_of(spark.read.parquet(str(path)))
    assert scan is not None
    pq.write_table(table(0, 7).select(["id", "x"]), path)
    for ranks in (1, 2):
        with raises("file-changed"):
            [list(scan.reader(share)) for share in scan.deal(ranks)]
