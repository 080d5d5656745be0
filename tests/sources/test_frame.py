from __future__ import annotations

import datetime
import decimal
import os
import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.ml.linalg import DenseVector, Matrices, MatrixUDT, SparseVector, Vectors, VectorUDT
from pyspark.mllib import linalg as mllib
from pyspark.sql import functions as F
from pyspark.sql import types as T
from torch import nn

from orca import Estimator
from orca.core.engine import Settings
from orca.core.feed import Feed
from orca.core.source import Columns, DataSpec, Extent
from orca.core.state import OutputSpec, State
from orca.engines.local import LocalEngine
from orca.errors import DataError, WorkerFailed
from orca.job import PredictJob
from orca.registry import source_of
from orca.rows.arrow import to_arrow
from orca.rows.tree import flatten
from orca.sources.frame import DescribeTask, FramePredictTask, FrameSource
from raised import raises

N = 11
SETTINGS = Settings(30)
SCHEMA = T.StructType(
    [
        T.StructField("byte", T.ByteType()),
        T.StructField("int", T.IntegerType()),
        T.StructField("long", T.LongType()),
        T.StructField("float", T.FloatType()),
        T.StructField("double", T.DoubleType()),
        T.StructField("bool", T.BooleanType()),
        T.StructField("decimal", T.DecimalType(12, 3)),
        T.StructField("array", T.ArrayType(T.FloatType())),
        T.StructField("nested", T.ArrayType(T.ArrayType(T.DoubleType()))),
        T.StructField("dense", VectorUDT()),
        T.StructField("sparse", VectorUDT()),
        T.StructField("binary", T.BinaryType()),
        T.StructField("label", T.IntegerType()),
        T.StructField("text", T.StringType()),
        T.StructField("day", T.DateType()),
        T.StructField("time", T.TimestampType()),
        T.StructField("map", T.MapType(T.StringType(), T.IntegerType())),
        T.StructField(
            "struct", T.StructType([T.StructField("one", T.IntegerType()), T.StructField("two", T.StringType())])
        ),
        T.StructField("holey", VectorUDT()),
    ]
)
# What a rank gets of row i: its dtype, and its value.
EXPECTED: dict[str, tuple[str, Any]] = {
    "byte": ("int8", lambda i: i),
    "int": ("int32", lambda i: i + 1),
    "long": ("int64", lambda i: i << 40),
    "float": ("float32", lambda i: i / 2),
    "double": ("float64", lambda i: i / 4),
    "bool": ("bool", lambda i: i % 2 == 0),
    "decimal": ("float64", lambda i: i + 0.125),
    "array": ("float32", lambda i: [i, 1]),
    "nested": ("float64", lambda i: [[i, 0], [1, 2], [3, 4]]),
    "dense": ("float32", lambda i: [i, -i]),
    "sparse": ("float32", lambda i: [0, i, 0, 0]),
    "binary": ("uint8", lambda i: [i, 255]),
}


def row(i: int) -> tuple[Any, ...]:
    return (
        i, i + 1, i << 40, i / 2, i / 4, i % 2 == 0, decimal.Decimal(f"{i}.125"), [float(i), 1.0],
        [[float(i), 0.0], [1.0, 2.0], [3.0, 4.0]], Vectors.dense([i, -i]), Vectors.sparse(4, {1: float(i)}),
        bytes([i, 255]), i % 2, None if i % 3 else f"t{i}", datetime.date(2020, 1, 1 + i),
        datetime.datetime(2021, 2, 3, 4, 5, i), {"a": i}, (i, "x"), None if i % 2 else Vectors.dense([i]),
    )  # fmt: skip


@pytest.fixture(scope="module")
def frame(spark: Any) -> Iterator[Any]:
    """Yield rows of every kind, in 5 partitions."""
    made = spark.createDataFrame(spark.sparkContext.parallelize([row(i) for i in range(N)], 5), SCHEMA).cache()
    yield made
    made.unpersist()


@pytest.fixture(autouse=True)
def temporary_folder_stays_empty(spark: Any) -> Iterator[None]:
    yield
    assert [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("orca-rows")] == []


@dataclass(frozen=True)
class ReadAll:
    """Return a rank's batches of each part."""

    def __call__(self, world: Any, rows: dict[str, Any], heartbeat: Any) -> dict[str, list[Any]]:
        feeds = {name: Feed(part, world, 4, shuffle=False, seed=0) for name, part in rows.items()}
        return {name: [(b.x, b.y, b.rows, b.step_rows) for b in feed.epoch(1)] for name, feed in feeds.items()}


def spec(features: Any, labels: Any = ("label",), outputs: Any = (), labelled: bool = True) -> DataSpec:
    return DataSpec(Columns(tuple(features), tuple(labels), tuple(outputs)), labelled, 4)


def read(frame: Any, features: Any, labels: Any = ("label",), ranks: int = 2, valid: Any = None) -> list[Any]:
    """Feed a frame to ranks of another engine than Spark's: through Arrow files."""
    source = source_of(frame, spec(features, labels))
    assert isinstance(source, FrameSource)
    other = None if valid is None else source_of(valid, spec(features, labels))
    return LocalEngine(ranks).run(ReadAll(), source.shards(ranks, other), SETTINGS)


@dataclass(frozen=True)
class Task:
    """Answer as a PredictJob does."""

    function: Any
    output: OutputSpec | None = None

    def __call__(self, x: Any) -> Any:
        return self.function(x)


# Feeding


def test_every_kind_of_column_reaches_the_ranks(frame: Any) -> None:
    results = read(frame, EXPECTED, ("label", "long"))
    seen = []
    for rank in results:
        for x, (label, number), rows, _ in rank["train"]:
            if not rows:
                continue
            row_numbers = number >> 40
            seen += row_numbers.tolist()
            assert label.tolist() == (row_numbers % 2).tolist()
            for (name, (dtype, value)), array in zip(EXPECTED.items(), x, strict=True):
                assert array.dtype == dtype, name
                np.testing.assert_array_equal(array, np.array([value(i) for i in row_numbers]), err_msg=name)
    assert sorted(seen) == list(range(N))


def test_rows_are_dealt_evenly_whatever_the_partitions(spark: Any) -> None:
    for partitions, ranks in ((7, 2), (1, 3)):
        numbers = spark.range(0, N, 1, partitions).selectExpr("id as x", "id as label")
        results = read(numbers, ["x"], ranks=ranks)
        held = [[y for _, ys, rows, _ in rank["train"] if rows for y in ys.tolist()] for rank in results]
        assert sorted([*chain(*held)]) == list(range(N))
        assert max(map(len, held)) - min(map(len, held)) <= partitions
        assert [step_rows for *_, step_rows in results[0]["train"]] == [4, 4, 3]


def test_the_same_frame_is_dealt_the_same_way_again(spark: Any) -> None:
    numbers = spark.range(0, N, 1, 4).selectExpr("id as x", "id as label")
    first, again = (
        [[x.tolist() for x, *_ in rank["train"]] for rank in read(numbers, ["x"], ranks=3)] for _ in range(2)
    )
    assert first == again


def exchanges(frame: Any) -> int:
    """Return how many times Spark moves rows between partitions for a frame."""
    plan = str(frame._jdf.queryExecution().sparkPlan().toString())
    return plan.split("InMemoryRelation")[0].count("Exchange ")  # what is kept was moved before


def listed(number: int) -> list[float]:
    return [float(number)]


DEALT: dict[str, Any] = {
    "as they are": lambda rows: rows.repartition(2),
    "with columns computed": lambda rows: rows.repartition(2).withColumn("x", F.udf(listed, "array<float>")("id")),
    "with rows left out": lambda rows: rows.repartition(2).where("id % 5 > 0"),
    "kept by Spark": lambda rows: rows.repartition(2).withColumn("z", F.col("id") + 1).persist(),
}


@pytest.mark.parametrize("made", DEALT)
def test_rows_that_the_user_dealt_stay_where_they_are(spark: Any, made: str) -> None:
    rows = spark.range(0, 23, 1, 4).selectExpr("id", "array(cast(id as float)) as x")
    frame = DEALT[made](rows)
    source = source_of(frame, DataSpec(Columns(("x",), ("id",))))
    assert exchanges(source.shards(2).native) == (0 if made == "kept by Spark" else 1)
    assert exchanges(source.shards(3).native) > exchanges(source.shards(2).native)
    est = Estimator.from_torch(
        model=lambda config: nn.Linear(1, 1), optimizer=sgd, loss=nn.MSELoss(), backend="spark", workers_per_node=2
    )
    ids = [row.id for row in frame.collect()]
    told = est.fit(frame, batch_size=4, feature_cols=["x"], label_cols=["id"], reduce_results=False)
    shares = [line["num_samples"] for line in told[0]]
    assert sum(shares) == len(ids) and max(shares) - min(shares) <= 4  # as many as there were partitions before
    frame.unpersist()


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: rows.repartition(3),
        lambda rows: rows.repartition(2, "id"),
        lambda rows: rows.coalesce(2),
        lambda rows: rows.repartition(2).limit(9),
        lambda rows: rows.repartition(2).union(rows),
    ],
)
def test_rows_that_lie_otherwise_are_dealt(spark: Any, made: Any) -> None:
    frame = made(spark.range(0, 20, 1, 4).selectExpr("id", "cast(id as float) as x"))
    native = source_of(frame, DataSpec(Columns(("x",), ("id",)))).shards(2).native
    assert "rank" in str(native._jdf.queryExecution().optimizedPlan().toString())


def test_validation_rows_travel_along_and_stay_apart(spark: Any) -> None:
    train = spark.range(0, N, 1, 3).selectExpr("id as x", "id as label")
    valid = spark.range(100, 103, 1, 2).selectExpr("'other' as more", "cast(id as int) as label", "id as x")
    results = read(train, ["x"], valid=valid)
    parts = {
        part: sorted(y for rank in results for _, ys, rows, _ in rank[part] if rows for y in ys.tolist())
        for part in ("train", "valid")
    }
    assert parts == {"train": list(range(N)), "valid": [100, 101, 102]}


def test_an_empty_frame_gives_no_step(spark: Any) -> None:
    results = read(spark.range(N).selectExpr("id as x", "id as label").where("x < 0"), ["x"])
    assert results == [{"train": []}, {"train": []}]


def test_names_may_hold_dots_spaces_and_backticks(spark: Any) -> None:
    odd = spark.createDataFrame([(1.0, [2.0], 3, Vectors.dense([4]))], ["a.b", "with space", "tick`y`", "v.`e c"])
    (rank,) = read(odd, ["a.b", "with space", "v.`e c"], ["tick`y`"], ranks=1)
    x, y, *_ = rank["train"][0]
    assert [part.tolist() for part in x] == [[1.0], [[2.0]], [[4.0]]]
    assert y.tolist() == [3]
    source = source_of(odd, spec(["v.`e c"], [], ["out.p`ut"], labelled=False))
    answer = source.answer(Task(lambda x: x, OutputSpec((("float64", (1,)),))), None)
    assert answer.columns == [*odd.columns, "out.p`ut"]
    assert tuple(answer.collect()[0]) == (1.0, [2.0], 3, DenseVector([4.0]), 4.0)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("if(id = 5, null, id)", r"column 'x' holds 1 null\(s\) in .* first; a model needs a value .* Fill them"),
        ("if(id = 5, array(1, null), array(1, 2))", r"column 'x' holds 1 null\(s\).*use transform with coalesce"),
        ("if(id = 5, array(1, 2, 3), array(1, 2))", "column 'x' holds rows of different lengths: (2 and 3|3 and 2)"),
        ("if(id < 5, array(1), array(1, 2))", "rows of different lengths: 1 and 2|column 0 changed after .* rows"),
        ("if(id = 5, cast('abc' as binary), cast('ab' as binary))", "column 'x' holds rows of different lengths"),
    ],
)
def test_cells_that_make_no_batch_are_named(spark: Any, cells: str, message: str) -> None:
    bad = spark.range(0, N, 1, 2).selectExpr(f"{cells} as x", "id as label")
    with pytest.raises(WorkerFailed, match=message) as caught:
        read(bad, ["x"], ranks=1)
    assert "DataError" in caught.value.reason


def test_a_missing_vector_is_named(frame: Any) -> None:
    with raises("null-values", match="'holey'"):
        read(frame, ["holey"], ranks=1)


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (
            ["list"],
            ["label"],
            "column 'list' has the type array<struct<a:int>>, which cannot feed a model",
        ),
        (["deep"], ["label"], "column 'deep.within' has the type map<int,int>, which .* maps with strings as keys"),
        (["itn"], ["label"], "there is no column 'itn'; the data has .* Did you mean 'int'"),
        (["int"], ["lable"], "there is no column 'lable'; .* Did you mean 'label'"),
        ([], ["label"], "needs feature_cols for tabular data; got columns"),
        (
            ["int"],
            [],
            r"training and evaluation need label_cols for a DataFrame; got columns .* Pass label_cols=\['…'\]",
        ),
    ],
)
def test_wrong_columns_are_refused_at_the_door(frame: Any, features: Any, labels: Any, message: str) -> None:
    unfit = frame.selectExpr("*", "array(struct(1 as a)) as list", "struct(map(1, 2) as within) as deep")
    with pytest.raises(DataError, match=message):
        source_of(unfit, spec(features, labels))


def test_structs_and_maps_become_dicts(spark: Any, frame: Any) -> None:
    nested = frame.selectExpr(
        "struct(int, struct(array, dense) as more) as x",
        "if(int % 2 = 0, map('b', array(int), 'a', array(-int)), map('a', array(-int), 'b', array(int))) as y",
        "label",
    )
    xs, ys = [], []
    for rank in read(nested, ["x"], ["y", "label"], ranks=2):
        for x, (y, _), rows, _ in rank["train"]:
            assert list(x) == ["int", "more"] and list(x["more"]) == ["array", "dense"] and list(y) == ["a", "b"]
            cells = x["int"], x["more"]["array"], x["more"]["dense"]
            xs += [tuple(cell[i].tolist() for cell in cells) for i in range(rows)]
            ys += [(y["a"][i], y["b"][i]) for i in range(rows)]
    assert sorted(xs) == [(i + 1, [i, 1], [i, -i]) for i in range(N)]
    assert [(-a[0], b[0]) for a, b in ys] == [(x[0], x[0]) for x in xs]

    task = Task(lambda x: x["more"]["array"][:, 0] + x["int"], OutputSpec((("float64", ()),)))
    answer = source_of(nested, spec(["x"], (), labelled=False)).answer(task, None)
    assert [row.prediction for row in answer.collect()] == [2 * i + 1 for i in range(N)]


def test_keys_that_differ_between_rows_are_named(spark: Any) -> None:
    differing = spark.range(0, 4, 1, 1).selectExpr("id", "map(if(id < 2, 'a', 'b'), id) as y")
    message = r"column 'y' is a map whose rows have different keys: row 0 of a block has \['a'\], row 2 has \['b'\]"
    with pytest.raises(WorkerFailed, match=message):
        read(differing, ["id"], ["y"], ranks=1)


# Answering


def heads(x: Any) -> Any:
    number = np.asarray(x)[:, 0]
    grid = np.stack([number, number + 0.5, -number, number * 0], axis=1).reshape(-1, 2, 2)
    return {"score": x[:, :1], "grid": grid, "more": (number.astype(np.int64), number > 3, number.astype(np.uint8))}


HEAD = OutputSpec((("int64", ()),))
HEADS = OutputSpec.of(heads(np.zeros((1, 1))))


def jobs_of(spark: Any, action: Any) -> tuple[Any, int]:
    """Return what an action gives and how many Spark jobs it ran."""
    context, group = spark.sparkContext, f"probe {id(action)}"
    context.setJobGroup(group, "what a test watches")
    try:
        result = action()
    finally:
        context.setJobGroup("rest", "")
    return result, len(context.statusTracker().getJobIdsForGroup(group))


def test_an_answer_is_lazy_and_its_schema_is_known(spark: Any, frame: Any) -> None:
    source = source_of(frame, spec(["dense"], labelled=False, outputs=["score", "grid", "best", "high", "small"]))
    answer, jobs = jobs_of(spark, lambda: source.answer(Task(heads, HEADS), None))
    assert jobs == 0
    assert answer.schema[: len(SCHEMA)] == SCHEMA
    assert answer.select("score", "grid", "best", "high", "small").schema.simpleString() == (
        "struct<score:double,grid:array<array<double>>,best:bigint,high:boolean,small:smallint>"
    )
    rows, jobs = jobs_of(spark, answer.collect)
    assert jobs > 0
    given = frame.collect()
    assert [tuple(r)[: len(SCHEMA)] for r in rows] == [tuple(r) for r in given]  # all other columns, in their order
    for i, answered in enumerate(rows):
        assert answered.score == i and answered.grid == [[i, i + 0.5], [-i, 0]]
        assert (answered.best, answered.high, answered.small) == (i, i > 3, i)
        assert isinstance(answered.sparse, DenseVector | SparseVector) and answered.sparse == Vectors.sparse(4, {1: i})
        assert answered.holey is None if i % 2 else answered.holey == Vectors.dense([i])


def test_answers_are_named_prediction_unless_told_otherwise(spark: Any, frame: Any) -> None:
    one = Task(lambda x: x[:, 0], OutputSpec((("float32", ()),)))
    answer = source_of(frame, spec(["array"], labelled=False)).answer(one, None)
    assert answer.columns == [*frame.columns, "prediction"]
    several = source_of(frame, spec(["array"], labelled=False)).answer(Task(heads, HEADS), None)
    assert several.columns[-5:] == [f"prediction_{i}" for i in range(5)]
    with raises("output-cols-count", match="'p'"):
        source_of(frame, spec(["array"], labelled=False, outputs=["p", "q"])).answer(Task(heads, HEADS), None)
    with raises("output-column-taken", match="'prediction'"):
        source_of(answer, spec(["array"], labelled=False)).answer(one, None)
    named = source_of(answer, spec(["array"], labelled=False, outputs=["again"])).answer(one, None)
    assert [(r.prediction, r.again) for r in named.collect()] == [(i, i) for i in range(N)]


def test_names_may_be_those_of_heads_or_of_the_parts_of_an_output(frame: Any) -> None:
    def kinds(outputs: list[str], vectors: bool = False, output: OutputSpec = HEADS) -> str:
        source = source_of(frame, replace(spec(["array"], (), outputs, labelled=False), vectors=vectors))
        answer = source.answer(Task(heads, output), None)
        return str(answer.select(*answer.columns[len(SCHEMA) :]).schema.simpleString())

    more, grid = "struct<_1:bigint,_2:boolean,_3:smallint>", "array<array<double>>"
    assert kinds(["a", "b", "c"]) == f"struct<a:double,b:{grid},c:{more}>"
    assert kinds(["a"]) == f"struct<a:struct<score:double,grid:{grid},more:{more}>>"
    assert kinds(["a"], vectors=True) == f"struct<a:struct<score:vector,grid:{grid},more:{more}>>"
    assert kinds([], vectors=True).startswith("struct<prediction:struct<score:vector,")
    assert kinds([*"abcde"], vectors=True) == f"struct<a:vector,b:{grid},c:bigint,d:boolean,e:smallint>"
    pair = OutputSpec.of((np.zeros((1, 3)), {"k": np.zeros(1)}))
    assert kinds([], vectors=True, output=pair) == "struct<prediction_0:vector,prediction_1:struct<k:double>>"
    vectors = OutputSpec.of([np.zeros((1, 3)), np.zeros((1, 1))])
    assert kinds([], vectors=True, output=vectors) == "struct<prediction:array<vector>>"
    assert kinds(["a", "b"], vectors=True, output=vectors) == "struct<a:vector,b:vector>"


def test_answers_of_one_dimension_may_be_vectors_and_stay_lazy(spark: Any, frame: Any) -> None:
    def heads(x: Any) -> Any:
        return x, x[:, :1], x[:, 0], x.astype(np.int64), np.stack([x, x], axis=1)

    source = source_of(frame, replace(spec(["array"], (), labelled=False), vectors=True))
    answer, jobs = jobs_of(
        spark, lambda: source.answer(Task(heads, OutputSpec.of(heads(np.zeros((1, 2), "f4")))), None)
    )
    assert jobs == 0
    for i, row in enumerate(answer.collect()):
        assert (row.prediction_0, row.prediction_1) == (DenseVector([i, 1]), DenseVector([i]))
        assert (row.prediction_2, row.prediction_3) == (float(i), DenseVector([i, 1]))
        assert row.prediction_4 == [[i, 1], [i, 1]]


def test_an_unknown_output_is_learned_from_one_row(spark: Any, frame: Any) -> None:
    answer = source_of(frame, spec(["array", "int"], labelled=False)).answer(Task(lambda x: (x[0], x[1])), None)
    assert answer.select("prediction_0", "prediction_1").schema.simpleString() == (
        "struct<prediction_0:array<float>,prediction_1:int>"
    )
    assert [(r.prediction_0, r.prediction_1) for r in answer.collect()] == [([i, 1], i + 1) for i in range(N)]
    with raises("no-rows"):
        source_of(frame.where("int < 0"), spec(["array"], labelled=False)).answer(Task(lambda x: x), None)


def test_partitions_without_rows_are_answered(spark: Any) -> None:
    sparse = spark.range(0, N, 1, 4).selectExpr("id", "array(id, id) as x").where("id in (4, 9)")
    task = Task(lambda x: x.sum(axis=1), OutputSpec((("int64", ()),)))
    answer = source_of(sparse, spec(["x"], (), labelled=False)).answer(task, None)
    assert [(r.id, r.prediction) for r in answer.collect()] == [(4, 8), (9, 18)]
    assert answer.where("id < 0").count() == 0


@dataclass(frozen=True)
class Seen:
    """A predictor that tells with every answer how many rows it saw together with a row."""

    def open_predictor(self, state: Any, gpu: str | None) -> Seen:
        return self

    def predict(self, x: Any) -> Any:
        return (x.sum(axis=1, keepdims=True), np.full(len(x), len(x)), np.repeat(x[:, None], 2, axis=1))


@pytest.mark.parametrize("sizes", [[10], [3, 3, 3, 1], [1] * 10, [0, 5, 0, 5], [9, 1], [4, 6]], ids=str)
@pytest.mark.parametrize("rows", [1, 4, 64])
def test_the_model_sees_full_batches_whatever_the_record_batches(sizes: list[int], rows: int) -> None:
    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    ends = np.cumsum(sizes).tolist()
    cuts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    batches = [pa.record_batch([to_arrow(np.arange(10)[cut]), to_arrow(x[cut])], ["id", "x"]) for cut in cuts]
    job = PredictJob.of(Seen(), State(payload={"models": []}), rows)
    task = FramePredictTask(job, ("x",), (1,), ("id", "x", "sum", "seen", "twice"), rows, ("float32",) * 3)
    made = list(task(iter(batches)))
    assert [batch.num_rows for batch in made] == [size for size in sizes if size]
    answer = pa.Table.from_batches(made).to_pydict()
    assert answer["id"] == list(range(10)) and answer["x"] == x.tolist() and answer["sum"] == x.sum(axis=1).tolist()
    assert answer["twice"] == [[row, row] for row in x.tolist()]
    full = 10 // rows * rows
    assert answer["seen"] == [rows] * full + [10 - full] * (10 - full)


def test_record_batches_wait_no_longer_than_it_takes_to_fill_a_batch() -> None:
    taken = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(8):
            taken.append(number)
            yield pa.record_batch([to_arrow(np.full((3, 1), number, np.float32))], ["x"])

    made = FramePredictTask(lambda x: x, ("x",), (0,), ("x", "y"), 4, ("float32",))(batches())
    for number in range(6):
        assert next(made).to_pydict()["y"] == [number] * 3
        assert len(taken) <= number + 3


def test_rows_of_different_lengths_in_two_record_batches_are_named() -> None:
    batches = [pa.record_batch([to_arrow(np.zeros((3, width)))], ["x"]) for width in (2, 5)]
    with raises("ragged-rows", match="'x'"):
        list(FramePredictTask(lambda x: x, ("x",), (0,), ("x", "y"), 4, ("float32",))(iter(batches)))


def test_a_model_that_writes_into_a_column_leaves_the_same_one_beside_it() -> None:
    column = pa.array(np.arange(6, dtype=np.float32))
    rows = pa.RecordBatch.from_arrays([column, column], names=["a", "b"])

    def model(x: Any) -> np.ndarray:
        one, other = (array if array.flags.writeable else array.copy() for array in x)  # as frameworks do
        one *= 10
        return other

    task = FramePredictTask(model, ("a", "b"), (0, 1), ("a", "b", "p"), 4, ("float32",), owned=True)
    answers = [batch.column(2).to_pylist() for batch in task(iter([rows]))]
    assert list(chain.from_iterable(answers)) == [0, 1, 2, 3, 4, 5]


def test_batches_go_across_the_record_batches_of_a_task_on_spark(spark: Any) -> None:
    records = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(records)
    rows = spark.range(0, 23, 1, 2).selectExpr("id", "array(id, id) as x")
    task = Task(lambda x: np.full(len(x), len(x)), OutputSpec((("int64", ()),)))
    try:
        spark.conf.set(records, "3")
        answer = source_of(rows, spec(["x"], (), labelled=False)).answer(task, None).collect()
    finally:
        spark.conf.set(records, before)
    assert [row.id for row in answer] == list(range(23))
    assert [row.prediction % 4 for row in answer] == [0] * 8 + [3] * 3 + [0] * 12  # partitions of 11 and 12 rows


@pytest.mark.parametrize("known", ["float16", "float32", "float64", "bfloat16"])
def test_outputs_of_half_precision_arrive_as_the_schema_says(spark: Any, known: str) -> None:
    import ml_dtypes

    rows = spark.range(0, 5, 1, 1).selectExpr("array(id / 2, 1) as x")
    output = OutputSpec(((known, (2,)), (known, ())))
    kind = ml_dtypes.bfloat16 if known == "bfloat16" else np.float16
    task = Task(lambda x: (x.astype(kind), x[:, 0].astype(kind)), output)
    answer = source_of(rows, spec(["x"], (), labelled=False)).answer(task, None)
    name = "double" if known == "float64" else "float"
    assert answer.drop("x").schema.simpleString() == f"struct<prediction_0:array<{name}>,prediction_1:{name}>"
    assert [(r.prediction_0, r.prediction_1) for r in answer.collect()] == [([i / 2, 1], i / 2) for i in range(5)]


class Squeezed(nn.Module):
    """Drop all dimensions of size 1, that of a single row, too."""

    def forward(self, x: torch.Tensor) -> Any:
        return x.squeeze(), x[:, :1].squeeze()


def squeezing() -> Estimator:
    return Estimator.from_torch(model=Squeezed(), backend="spark")


@pytest.mark.parametrize("rows", [1, 3])
def test_a_model_that_squeezes_is_answered_whatever_the_rows(spark: Any, rows: int) -> None:
    frame = spark.range(0, rows, 1, 2).selectExpr("array(float(id), 1f) as x")
    answer = squeezing().predict(frame, feature_cols="x", batch_size=2)
    assert answer.drop("x").schema.simpleString() == "struct<prediction_0:array<float>,prediction_1:float>"
    assert [(r.prediction_0, r.prediction_1) for r in answer.collect()] == [([i, 1], i) for i in range(rows)]


def test_the_look_at_the_first_rows_reads_all_it_is_given() -> None:
    batches = iter([pa.record_batch([to_arrow(np.arange(2))], ["x"]) for _ in range(3)])
    (results,) = DescribeTask(lambda x: x[:, None], ("x",))(batches)
    assert pickle.loads(results.to_pydict()["output"][0]) == OutputSpec((("int64", (1,)),))
    assert next(batches, None) is None  # what a task leaves unread costs its Python worker


def test_evaluating_teaches_the_schema(spark: Any) -> None:
    frame = spark.range(0, 9, 1, 2).selectExpr("array(float(id), 1f) as x", "float(id) as y")
    estimator = Estimator.from_torch(model=nn.Linear(2, 1), loss=nn.MSELoss(), backend="spark")
    estimator.evaluate(frame, feature_cols=["x"], label_cols=["y"])
    answer, jobs = jobs_of(spark, lambda: estimator.predict(frame, feature_cols=["x"]))
    assert jobs == 0 and answer.schema["prediction"].dataType == T.FloatType()


PASSING = (("m", MatrixUDT()), ("v", VectorUDT()))


def test_vectors_pass_as_they_were(spark: Any) -> None:
    given = [Vectors.sparse(5, {1: 0.5, 4: float("inf")}), Vectors.dense([1.0, 2.0]), None, Vectors.sparse(2, {})]
    about = {"ml_attr": {"num_attrs": 5}}
    matrix = Matrices.dense(2, 1, [1.0, 2.0])
    kinds = [
        T.StructField("x", VectorUDT(), True, about),
        T.StructField("m", MatrixUDT()),
        T.StructField("v", VectorUDT()),
    ]
    seen = Vectors.sparse(3, {0: 2.0})
    frame = spark.createDataFrame([(x, matrix, seen) for x in given], T.StructType(kinds)).coalesce(1)
    task = Task(lambda x: x.sum(axis=1), OutputSpec((("float64", ()),)))
    answer = source_of(frame, spec(["v"], (), labelled=False)).answer(task, None)
    rows = answer.collect()
    assert [r.x for r in rows] == given and [type(r.x) for r in rows] == [type(x) for x in given]
    assert all((r.m, r.v, r.prediction) == (matrix, seen, 2.0) and type(r.v) is SparseVector for r in rows)
    assert answer.schema["x"].metadata == about


def test_vectors_of_mllib_pass_as_they_were(spark: Any) -> None:
    given = [mllib.Vectors.sparse(3, {1: 0.5}), mllib.Vectors.dense([1.0, 2.0])]
    frame = spark.createDataFrame([(x, 1.0) for x in given], ["v", "x"])
    task = Task(lambda x: x, OutputSpec((("float64", ()),)))
    rows = source_of(frame, spec(["x"], (), labelled=False)).answer(task, None).collect()
    assert [r.v for r in rows] == given


def test_columns_of_one_name_pass_by_their_places(spark: Any) -> None:
    left = spark.range(0, 4, 1, 2).selectExpr("id", "array(id, 1) as x")
    frame = left.crossJoin(spark.range(10, 11).selectExpr("id", "id as ID", "id as `a.b`"))
    task = Task(lambda x: x[:, 0] * 2, OutputSpec((("int64", ()),)))
    answer = source_of(frame, spec(["x"], (), labelled=False)).answer(task, None)
    assert answer.columns == ["id", "x", "id", "ID", "a.b", "prediction"]
    assert sorted(tuple(r) for r in answer.collect()) == [(i, [i, 1], 10, 10, 10, 2 * i) for i in range(4)]
    with raises("duplicate-column", match="'id'"):
        source_of(frame, spec(["id"], (), labelled=False))
    assert source_of(frame, spec(["ID"], (), labelled=False)).answer(Task(lambda x: x), None).first().prediction == 10


@dataclass
class Watched:
    """A DataFrame that counts how often its schema is read: through Spark Connect each reading copies all of it."""

    frame: Any
    reads: int = 0

    def __getattr__(self, name: str) -> Any:
        self.reads += name in ("schema", "columns", "dtypes")
        return getattr(self.frame, name)


def test_the_schema_is_read_once_whatever_the_columns(spark: Any) -> None:
    wide = Watched(spark.range(3).selectExpr("id", *(f"id + {i} as c{i}" for i in range(50))))
    source = FrameSource(wide, spec(["id", "c7"], (), labelled=False))  # type: ignore[arg-type]
    answer = source.answer(Task(lambda x: x[0] + x[1], HEAD), None)
    assert wide.reads == 1
    assert [r.prediction for r in answer.collect()] == [7, 9, 11]


def test_a_name_is_taken_as_spark_compares_names(spark: Any) -> None:
    task = Task(lambda x: x, HEAD)
    source = source_of(spark.range(3).selectExpr("id", "id as Prediction"), spec(["id"], (), labelled=False))
    with raises("output-column-taken", match="'Prediction'"):
        source.answer(task, None)
    with raises("duplicate-output-cols", match="'p'"):
        source_of(spark.range(3), spec(["id"], (), labelled=False, outputs=["p", "p"])).answer(task, None)


def test_what_no_task_can_take_is_refused_in_words(spark: Any) -> None:
    months = spark.range(3).selectExpr("id", "make_ym_interval(1, 2) as months")
    with pytest.raises(DataError, match="column 'months' has the type interval year to month, which cannot pass"):
        source_of(months, spec(["id"], (), labelled=False)).answer(Task(lambda x: x, HEAD), None)
    stream = spark.readStream.format("rate").load()
    with raises("streaming-dataframe"):
        source_of(stream, spec(["value"], ["value"]))
    with raises("streaming-dataframe"):
        source_of(stream, spec(["value"], (), labelled=False)).answer(Task(lambda x: x), None)
    assert source_of(stream, spec(["value"], (), labelled=False)).answer(Task(lambda x: x, HEAD), None).isStreaming
    with raises("bad-column-names"):
        squeezing().predict(stream, feature_cols=[stream.value])
    with raises("missing-column"):
        squeezing().predict(stream, feature_cols=[1])  # type: ignore[list-item]


# Weights


@dataclass(frozen=True)
class ReadWeights:
    """Return the (label, weight) of the rows that a rank sees."""

    def __call__(self, world: Any, rows: dict[str, Any], heartbeat: Any) -> list[Any]:
        feed = Feed(rows["train"], world, 4, shuffle=False, seed=0, weighted=True)
        return [pair for b in feed.epoch(1) if b.rows for pair in zip(b.y.tolist(), b.weights.tolist(), strict=True)]


def test_a_column_of_weights_travels_along(spark: Any) -> None:
    rows = spark.range(0, 9, 1, 2).selectExpr("id", "array(id, 1) as x", "id / 4 as w", "id - 3 as bad")
    columns = Columns(("x",), ("id",), weight="w")
    results = LocalEngine(2).run(ReadWeights(), source_of(rows, DataSpec(columns)).shards(2), SETTINGS)
    assert sorted(pair for rank in results for pair in rank) == [(i, i / 4) for i in range(9)]
    with raises("bad-sample-weights"):
        negative = source_of(rows, DataSpec(Columns(("x",), ("id",), weight="bad")))
        LocalEngine(1).run(ReadWeights(), negative.shards(1), SETTINGS)
    with pytest.raises(DataError, match="there is no column 'weight'"):
        source_of(rows, DataSpec(Columns(("x",), ("id",), weight="weight")))
    with raises("missing-sample-weights"):
        source_of(rows, DataSpec(Columns(("x",), ("id",)), weighted=True))


# A model, end to end


class Mixed(nn.Module):
    """Take a vector, a number and bytes; give a number and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, dense: torch.Tensor, number: torch.Tensor, binary: torch.Tensor) -> Any:
        assert dense.dtype == torch.float32 and number.dtype == torch.int32 and binary.dtype == torch.uint8
        score = self.linear(dense) + binary[:, :1].float()
        return score, torch.stack([score[:, 0], number.float()], dim=1)


def both(score: torch.Tensor, classes: torch.Tensor, target: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(score, target) + nn.functional.cross_entropy(classes, label.long())


def sgd(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4)


def test_a_frame_trains_and_is_answered_on_spark(spark: Any, frame: Any) -> None:
    features, labels = ["dense", "int", "binary"], ["double", "label"]
    estimator = Estimator.from_torch(
        model=lambda config: Mixed(), optimizer=sgd, loss=both, backend="spark", workers_per_node=2, seed=1
    )
    before = estimator.predict(frame, feature_cols=features)  # with the weights that training begins with
    first = estimator.get_model()
    stats = estimator.fit(
        frame, epochs=2, batch_size=4, feature_cols=features, label_cols=labels, validation_data=frame
    )
    assert [line["num_samples"] for line in stats] == [N, N]
    assert [line["batch_count"] for line in stats] == [3, 3]
    assert stats[1]["val_loss"] < stats[0]["val_loss"]
    assert stats[0]["val_num_samples"] == N

    (answer, jobs) = jobs_of(spark, lambda: estimator.predict(frame, feature_cols=features, output_cols=["a", "b"]))
    assert jobs == 0
    assert answer.schema["a"].dataType == T.FloatType()
    assert answer.schema["b"].dataType == T.ArrayType(T.FloatType())
    x = [
        torch.tensor([EXPECTED[name][1](i) for i in range(N)], dtype=kind)
        for name, kind in zip(features, (torch.float32, torch.int32, torch.uint8), strict=True)
    ]
    for answered, names, net in (
        (before, ["prediction_0", "prediction_1"], first),
        (answer, ["a", "b"], estimator.get_model()),
    ):
        score, classes = net(*x)
        rows = answered.collect()
        assert [r[names[0]] for r in rows] == pytest.approx(score[:, 0].tolist(), rel=1e-5)
        np.testing.assert_allclose([r[names[1]] for r in rows], classes.tolist(), rtol=1e-5)


def linear(config: dict[str, Any]) -> nn.Module:
    return nn.Linear(2, 1)


def test_fewer_rows_than_workers_train_and_wrong_cells_are_told_on_spark(spark: Any, frame: Any) -> None:
    estimator = Estimator.from_torch(
        model=linear, optimizer=sgd, loss=nn.MSELoss(), backend="spark", workers_per_node=3, seed=1
    )
    (stats,) = estimator.fit(frame.where("int = 3"), batch_size=8, feature_cols=["dense"], label_cols=["int"])
    assert (stats["num_samples"], stats["batch_count"]) == (1, 1)
    with raises("null-values", match="'holey'"):
        estimator.fit(frame, feature_cols=["holey"], label_cols=["int"])
    with raises("not-numbers", match="'text'"):
        estimator.evaluate(frame.fillna("none"), feature_cols=["text"], label_cols=["int"])


@pytest.mark.parametrize("made", ["planned away", "found at run time"])
def test_an_empty_frame_is_told_on_spark(spark: Any, frame: Any, made: str) -> None:
    empty = frame.where("int < 0") if made == "found at run time" else frame.limit(0)
    estimator = Estimator.from_torch(
        model=linear, optimizer=sgd, loss=nn.MSELoss(), backend="spark", workers_per_node=2, seed=1
    )
    with pytest.raises((DataError, WorkerFailed), match="no rows"):
        estimator.fit(empty, feature_cols=["dense"], label_cols=["int"])


def test_a_frame_feeds_plain_processes(spark: Any, frame: Any, tmp_path: Path) -> None:
    estimator = Estimator.from_torch(
        model=linear, optimizer=sgd, loss=nn.MSELoss(), backend="local", workers_per_node=2, seed=1
    )
    stats = estimator.fit(frame, batch_size=4, feature_cols=["dense"], label_cols=["double"], validation_data=frame)
    assert (stats[0]["num_samples"], stats[0]["val_num_samples"]) == (N, N)
    answered = estimator.predict(frame, feature_cols="dense").collect()
    net = estimator.get_model()
    expected = net(torch.tensor([[float(i), -float(i)] for i in range(N)]))[:, 0].tolist()
    assert [r.prediction for r in answered] == pytest.approx(expected, rel=1e-5)
    assert len(flatten(estimator.get_state_dict()["models"])[0]) == 2


def test_the_extent_of_a_frame_is_what_the_planner_knows(spark: Any, tmp_path: Path) -> None:
    how = DataSpec(Columns(("id",)), labelled=False)
    assert source_of(spark.range(1000), how).extent() == Extent(1000, 8000)
    spark.range(1000).write.parquet(str(tmp_path / "rows"))
    extent = source_of(spark.read.parquet(str(tmp_path / "rows")), how).extent()
    assert extent.rows is None and extent.bytes is not None and extent.bytes > 0
    streamed = spark.readStream.format("rate").load()
    assert source_of(streamed, DataSpec(Columns(("value",)), labelled=False)).extent() == Extent()


def test_cache_is_ignored_with_a_warning_and_persisted_rows_are_computed_once(
    spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    calls = spark.sparkContext.accumulator(0)

    def halved(value: int) -> float:
        calls.add(1)
        return value / 2

    frame = spark.range(20).withColumn("y", F.udf(halved, "float")("id"))
    frame = frame.withColumn("x", F.array("y")).persist()
    model = nn.Linear(1, 1)
    est = Estimator.from_torch(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), loss=nn.MSELoss(), backend="spark"
    )
    columns = {"feature_cols": ["x"], "label_cols": ["y"]}
    assert est.fit(frame, epochs=1, batch_size=10, cache=True, **columns)[0]["num_samples"] == 20
    assert est.evaluate(frame, batch_size=10, **columns)["num_samples"] == 20
    assert [record.message for record in caplog.records if "cache=True" in record.message] == [
        "cache=True does nothing. Call df.persist() to keep the rows of a DataFrame between calls."
    ]
    assert calls.value == 20
    frame.unpersist()
