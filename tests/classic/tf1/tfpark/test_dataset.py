"""TFDataset: every way to make one, by the rows that a graph is fed with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf2
import tensorflow.compat.v1 as tf

from orca.errors import ArgumentError, DataError, WorkerFailed
from orca.rows.tree import flatten
from orca.triggers import MaxEpoch
from orca_classic.bigdl.feature.image import ImageMatToTensor
from orca_classic.bigdl.featuresets import DistributedImageSet, FeatureSet, LocalImageSet, LocalTextSet
from orca_classic.tf1.tfpark import TFDataset, TFOptimizer, TFPredictor
from orca_classic.zoo.sample import Sample

LOCAL = {"backend": "local", "workers_per_node": 2}
ROWS = 11
X = np.arange(ROWS * 2, dtype="float32").reshape(ROWS, 2)
Y = np.arange(ROWS, dtype="int32") * 10
FLOATS, LABEL = (tf.float32, [2]), (tf.int32, [])


def uneven(spark: Any, records: list[Any]) -> Any:
    """Return an RDD with partitions of 7, 0 and the other rows."""
    context = spark.sparkContext
    return context.parallelize(records[:7], 1).union(context.parallelize([], 1)).union(
        context.parallelize(records[7:], 1)
    )  # fmt: skip


def seen(dataset: TFDataset, **options: Any) -> list[np.ndarray]:
    """Return what a graph sees of a dataset: all rows of each feature, in the order of the predictions."""
    with tf.Graph().as_default(), tf.Session() as session:
        heads = [tf.identity(leaf) for leaf in flatten(dataset.feature_tensors)[0]]
        answers = TFPredictor.from_outputs(session, heads, **options).predict()
    if hasattr(answers, "collect"):
        records = answers.collect()
        answers = list(zip(*records, strict=True)) if len(heads) > 1 else records
    columns = list(answers) if len(heads) > 1 else [answers]
    return [np.array(column, object if isinstance(column[0], bytes) else None) for column in columns]


def shards(dataset: TFDataset) -> list[dict[str, Any]]:
    return dataset.get_training_data().collect()


RECORDS = [
    ((FLOATS, LABEL), lambda x, y: (x, y)),
    (([FLOATS, LABEL], LABEL), lambda x, y: [x, y, y]),
    (([FLOATS, LABEL], LABEL), lambda x, y: ([x, y], y)),
    (({"b": FLOATS, "a": LABEL}, LABEL), lambda x, y: ({"a": y, "b": x}, y)),
]


@pytest.mark.parametrize(("kinds", "record"), RECORDS, ids=["pair", "flat", "nested", "dict"])
def test_records_of_an_rdd_come_in_order(spark: Any, kinds: Any, record: Any) -> None:
    rdd = uneven(spark, [record(x, int(y)) for x, y in zip(X, Y, strict=True)])
    dataset = TFDataset.from_rdd(rdd, features=kinds[0], labels=kinds[1], batch_size=4)
    parts = shards(dataset)
    assert [len(part["y"]) for part in parts] == [7, 4]
    np.testing.assert_array_equal(np.concatenate([part["y"] for part in parts]), Y)
    features = [flatten(part["x"])[0] for part in parts]
    np.testing.assert_array_equal(np.concatenate([part[0] for part in features]), X)
    assert dataset.get_num_partitions() == 3
    assert dataset.has_batch
    assert all(part["y"].dtype == np.int32 for part in parts)
    with tf.Graph().as_default():
        names = [leaf.op.name for leaf in flatten(dataset.feature_tensors)[0]]
        assert names == {1: ["Placeholder"], 2: ["b", "a"] if isinstance(kinds[0], dict) else
                         ["list_input_0", "list_input_1"]}[len(names)]  # fmt: skip


def test_a_graph_sees_the_rows_of_an_rdd_as_they_lie(spark: Any) -> None:
    pairs = list(zip(X, Y, strict=True))
    alone = TFDataset.from_rdd(uneven(spark, list(X)), features=FLOATS, batch_per_thread=3)
    (rows,) = seen(alone)
    np.testing.assert_array_equal(rows, X)
    older = TFDataset.from_rdd(
        uneven(spark, pairs), names=["x", "y"], shapes=[[2], []], types=[tf.float32, tf.int32], batch_per_thread=3
    )
    (rows,) = seen(older)  # labels are not needed
    np.testing.assert_array_equal(rows, X)
    both = TFDataset.from_rdd(uneven(spark, [[x, y] for x, y in pairs]), features=[FLOATS, LABEL], batch_per_thread=3)
    rows, numbers = seen(both)
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(numbers, Y)


def test_wrong_records_are_refused_in_words(spark: Any) -> None:
    context = spark.sparkContext
    for records, message in (
        ([(X[0], 1), (X[0][:1], 2)], r"records differ in shape: \(1,\) and \(2,\)"),
        ([(X[0], 1), (X[0], 2.5)], "a record has 2.5, where int32 is described"),
        ([(X[0], float("nan"))], "a record has nan, where int32 is described"),
        ([("red", 1)], "a record cannot be read as float32: could not convert string to float: .*'red'"),
        ([(X[0], 1, 2, 3)], r"a record must have 2 array\(s\), as features and labels describe; got 4"),
    ):
        dataset = TFDataset.from_rdd(context.parallelize(records, 1), features=FLOATS, labels=LABEL, batch_size=4)
        with pytest.raises(Exception, match=message):
            shards(dataset)
    with pytest.raises(ArgumentError, match="rdd must be an RDD of Spark; got list"):
        TFDataset.from_rdd([X], features=FLOATS)
    with pytest.raises(ArgumentError, match="val_rdd must be an RDD of Spark; got ndarray"):
        TFDataset.from_rdd(context.emptyRDD(), features=FLOATS, val_rdd=X)
    with pytest.raises(ArgumentError, match="from_rdd needs the type of records"):
        TFDataset.from_rdd(context.emptyRDD())
    empty = TFDataset.from_rdd(context.emptyRDD(), features=FLOATS, labels=LABEL, batch_size=4)
    with tf.Graph().as_default():
        with pytest.raises((DataError, WorkerFailed), match="no rows"):
            optimizer(empty).optimize()


def test_arrays_are_fed_in_order() -> None:
    for tensors, columns in (
        ((X, Y), [X]),
        (X, [X]),
        ([X, Y], [X, Y]),
        (([X, Y], Y), [X, Y]),
        (({"b": X, "a": Y}, Y), [X, Y]),
        ((X.astype("float64"),), [X]),
        (np.array(["red", "green"]), [np.array([b"red", b"green"], object)]),
    ):
        dataset = TFDataset.from_ndarrays(tensors, batch_per_thread=3)
        for got, truth in zip(seen(dataset, **LOCAL), columns, strict=True):
            np.testing.assert_array_equal(got, truth)
        assert dataset.get_num_partitions() == 1
    dataset = TFDataset.from_ndarrays((X.astype("float64"), Y.astype("uint8")))
    assert not dataset.has_batch
    with tf.Graph().as_default():
        assert dataset.feature_tensors.dtype == tf.float32
        assert dataset.label_tensors.dtype == tf.uint8
        assert dataset.output_shapes == ([None, 2], [None])


def test_wrong_arrays_are_refused_in_words() -> None:
    for given, message in (
        ({"tensors": (X, Y[:4])}, "all arrays of tensors must have the same number of rows"),
        ({"tensors": (X, Y), "val_tensors": (X, Y[:4])}, "all arrays of val_tensors must have the same number of rows"),
        ({"tensors": (X, Y), "val_tensors": (X[:, :1], Y)}, r"rows of \[\[2\], \[\]\]; got rows of \[\[1\], \[\]\]"),
        ({"tensors": (X, Y), "val_tensors": X}, r"got rows of \[\[2\]\]"),
        ({"tensors": [[1, 2], [3]]}, r"rows in their first dimension; got shapes \[\(\), \(\), \(\)\]"),
        ({"tensors": (1.0, Y)}, "rows in their first dimension"),
        ({"tensors": ()}, "got a tuple of 0"),
    ):
        with pytest.raises((ArgumentError, DataError), match=message):
            TFDataset.from_ndarrays(**given)


@pytest.mark.parametrize("name", ["batch_size", "batch_per_thread"])
def test_sizes_are_positive_whole_numbers(name: str) -> None:
    for size in (0, -2, 2.5, "8", True):
        with pytest.raises(ArgumentError, match=f"{name} must be a positive whole number; got"):
            TFDataset.from_ndarrays((X, Y), **{name: size})
    for size in (1, 7, np.int64(7)):
        assert getattr(TFDataset.from_ndarrays((X, Y), **{name: size}), name) == size
    for none in (None, -1):
        assert not TFDataset.from_ndarrays((X, Y), **{name: none}).has_batch


def test_memory_types_and_order_are_those_of_older_releases() -> None:
    for kind in ("DRAM", "PMEM", "DIRECT", "DISK_4", "dram"):
        assert TFDataset.from_ndarrays((X, Y), batch_size=4, memory_type=kind).shuffle
    for kind in ("TAPE", "DISK", 4):
        with pytest.raises(ArgumentError, match="memory_type must be 'DRAM'"):
            TFDataset.from_ndarrays((X, Y), batch_size=4, memory_type=kind)
    assert not TFDataset.from_ndarrays((X, Y), batch_size=4, shuffle=False).shuffle
    assert not TFDataset.from_ndarrays((X, Y), batch_size=4, sequential_order=True).shuffle


def test_columns_of_a_dataframe_are_fed(spark: Any) -> None:
    rows = [(x.tolist(), float(x[0]), int(y), "text") for x, y in zip(X, Y, strict=True)]
    df = spark.createDataFrame(rows, "v array<float>, d double, y int, prediction string").repartition(2)
    one = TFDataset.from_dataframe(df, feature_cols="v", labels_cols=["y"], batch_per_thread=3)
    (got,) = seen(one)
    np.testing.assert_array_equal(np.sort(got, 0), X)
    two = TFDataset.from_dataframe(df, ["v", "d"], batch_per_thread=3, validation_df=df)
    got, numbers = seen(two)
    np.testing.assert_array_equal(got[:, 0], numbers)
    np.testing.assert_array_equal(np.sort(numbers), X[:, 0])
    assert one.get_num_partitions() == 2
    for arguments, message in (
        ({"feature_cols": ["v", "w"]}, "there is no column 'w'; the data has"),
        ({"feature_cols": ["v"], "labels_cols": ["z"]}, "there is no column 'z'"),
        ({"feature_cols": ["v"], "validation_df": df.drop("v")}, "there is no column 'v'"),
        ({"feature_cols": []}, "must know which columns are features"),
    ):
        with pytest.raises((ArgumentError, DataError), match=message):
            TFDataset.from_dataframe(df, **arguments)
    with pytest.raises(DataError, match="'t' is of type timestamp, which no tensor has"):
        TFDataset.from_dataframe(spark.sql("select now() as t"), ["t"])


def test_a_tf_data_dataset_gives_single_rows() -> None:
    pairs = tf2.data.Dataset.from_tensor_slices((X, Y))
    (got,) = seen(TFDataset.from_tf_data_dataset(pairs, batch_per_thread=3), **LOCAL)
    np.testing.assert_array_equal(got, X)
    (got,) = seen(TFDataset.from_tf_data_dataset(pairs.batch(4).unbatch().map(lambda x, y: x)), **LOCAL)
    np.testing.assert_array_equal(got, X)
    got, numbers = seen(TFDataset.from_tf_data_dataset(pairs.map(lambda x, y: ({"x": x, "n": y}, y))), **LOCAL)
    np.testing.assert_array_equal(numbers if got.ndim == 1 else got, X)
    for batched in (pairs.batch(4), pairs.batch(4).map(lambda x, y: (x, y)).prefetch(1)):
        with pytest.raises(ArgumentError, match="dataset gives batches of 4 rows.*pass batch_size=4"):
            TFDataset.from_tf_data_dataset(batched, batch_size=4)
        with pytest.raises(ArgumentError, match="validation_dataset gives batches of 4 rows"):
            TFDataset.from_tf_data_dataset(pairs, batch_size=4, validation_dataset=batched)
    assert TFDataset.from_tf_data_dataset(pairs.batch(4), remove_checking=True).output_shapes[0] == [None, None, 2]
    with pytest.raises(ArgumentError, match="dataset must be a tf.data.Dataset; got list"):
        TFDataset.from_tf_data_dataset([X])
    with pytest.raises(ArgumentError, match="batch_outside=True is not supported"):
        TFDataset.from_tf_data_dataset(pairs, batch_outside=True)


def test_texts_and_bytes_are_fed_as_strings(spark: Any) -> None:
    context = spark.sparkContext
    texts, raw = ["zwei", "é", "", "x"], [b"\x00\xff", b"", b"abc\x00"]
    (got,) = seen(TFDataset.from_string_rdd(string_rdd=context.parallelize(texts, 2), batch_per_thread=2))
    assert [each.decode() for each in got] == texts
    dataset = TFDataset.from_bytes_rdd(
        bytes_rdd=context.parallelize(raw, 2), batch_per_thread=2, validation_bytes_rdd=context.parallelize(raw, 1)
    )
    (got,) = seen(dataset)
    assert list(got) == raw
    assert list(dataset.get_validation_data().collect()[0]["x"]) == raw


def test_records_of_tfrecord_files_are_read_whole_or_parsed(tmp_path: Path) -> None:
    for number, part in enumerate((Y[:4], Y[4:])):
        with tf2.io.TFRecordWriter(str(tmp_path / f"part-{number}")) as writer:
            for value in part:
                writer.write(value.tobytes())
    for path in (tmp_path, tmp_path / "part-*"):
        (got,) = seen(TFDataset.from_tfrecord_file(None, str(path), batch_per_thread=3), **LOCAL)
        np.testing.assert_array_equal([np.frombuffer(each, "int32")[0] for each in got], Y)
    dataset = TFDataset.from_tfrecord(
        str(tmp_path / "part-0"), lambda record: tf2.io.decode_raw(record, tf2.int32), batch_per_thread=3
    )
    (got,) = seen(dataset, **LOCAL)
    np.testing.assert_array_equal(got[:, 0], Y[:4])
    with pytest.raises(DataError, match="there is no file at"):
        TFDataset.from_tfrecord_file(None, str(tmp_path / "none"))


@pytest.mark.parametrize("distributed", [False, True], ids=["here", "rdd"])
def test_sets_of_samples_are_fed(spark: Any, distributed: bool) -> None:
    context = spark.sparkContext
    images, labels = [np.full((2, 3, 3), n, "float32") for n in range(5)], list(range(5))
    if distributed:
        pictures: Any = DistributedImageSet(context.parallelize(images, 2), context.parallelize(labels, 2))
    else:
        pictures = LocalImageSet(images, labels)
    pictures = pictures.transform(ImageMatToTensor(format="NHWC"))
    dataset = TFDataset.from_image_set(
        pictures, image=(tf.float32, [2, 3, 3]), label=(tf.int32, [1]), batch_size=4, validation_image_set=pictures
    )
    rows, numbers = pairs_of(dataset)
    np.testing.assert_array_equal(rows, np.stack(images))
    np.testing.assert_array_equal(numbers.ravel(), labels)
    texts = LocalTextSet(["a b c", "b c d"], [0, 1]).tokenize().word2idx().shape_sequence(4).generate_sample()
    texts = texts.to_distributed(context, 3) if distributed else texts
    rows, numbers = pairs_of(TFDataset.from_text_set(texts, text=(tf.int32, [4]), label=LABEL, batch_size=4))
    assert rows.shape == (2, 4)
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(numbers.ravel(), [0, 1])
    samples = [Sample.from_ndarray([x, x * 2], y) for x, y in zip(X, Y, strict=True)]
    features = FeatureSet.sample_rdd(uneven(spark, samples) if distributed else samples, sequential_order=True)
    dataset = TFDataset.from_feature_set(features, features=[FLOATS, FLOATS], labels=LABEL, batch_size=4)
    assert not dataset.shuffle
    (first, second), numbers = pairs_of(dataset)
    np.testing.assert_array_equal(first * 2, second)
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(numbers.ravel(), Y)
    held = FeatureSet.image_set(pictures)
    rows, _ = pairs_of(TFDataset.from_feature_set(held, features=(tf.float32, [2, 3, 3]), labels=LABEL, batch_size=4))
    np.testing.assert_array_equal(rows, np.stack(images))
    with pytest.raises(ArgumentError, match="a set of Samples is needed"):
        TFDataset.from_feature_set({"a": 1}, features=FLOATS)


def pairs_of(dataset: TFDataset) -> Any:
    """Return all features and labels of a dataset's training data."""
    data = dataset.get_training_data()
    if isinstance(data, tuple):
        return data
    parts = data.collect()
    columns = [flatten(part["x"])[0] for part in parts]
    features = [np.concatenate(column) for column in zip(*columns, strict=True)]
    return features[0] if len(features) == 1 else features, np.concatenate([part["y"] for part in parts])


def optimizer(dataset: TFDataset, **options: Any) -> Any:
    """Return the training of a linear model on a dataset: y = x @ kernel, from zeros, by gradient descent."""
    features, labels = dataset.tensors
    kernel = tf.get_variable("kernel", [2, 1], initializer=tf.zeros_initializer())
    errors = tf.square(tf.squeeze(features @ kernel, 1) - tf.cast(labels, tf.float32))
    loss = tf.reduce_mean(errors)
    return TFOptimizer.from_loss(
        loss, tf.train.GradientDescentOptimizer(1e-3), metrics={"worst": tf.reduce_mean(tf.sqrt(errors))}, **options
    )


def test_training_and_validation_count_every_row_once(spark: Any) -> None:
    pairs = list(zip(X, Y, strict=True))
    valid = (X[:5] + 1, Y[:5])
    kernel = np.zeros((2, 1), "float32")
    for _ in range(2):  # one step an epoch, whatever batch_size says beyond the rows
        kernel -= 1e-3 * 2 * (X.T @ (X @ kernel - Y[:, None])) / ROWS
    errors = np.abs(valid[0] @ kernel - valid[1][:, None])
    makers = {
        "rdd": lambda: TFDataset.from_rdd(
            uneven(spark, pairs), features=FLOATS, labels=LABEL, batch_size=64,
            val_rdd=uneven(spark, list(zip(*valid, strict=True))),
        ),
        "frame": lambda: TFDataset.from_dataframe(
            frame(spark, X, Y), ["v"], ["y"], batch_size=64, validation_df=frame(spark, *valid)
        ),
    }  # fmt: skip
    for name, make in makers.items():
        with tf.Graph().as_default():
            made = optimizer(make(), workers_per_node=2)
            made.optimize(MaxEpoch(2))
            np.testing.assert_allclose(made.sess.run(tf.trainable_variables()[0]), kernel, rtol=1e-4, err_msg=name)
            assert made.estimator.history.epochs[-1]["val_worst"] == pytest.approx(errors.mean(), rel=1e-5), name


def frame(spark: Any, x: np.ndarray, y: np.ndarray) -> Any:
    rows = [(row.tolist(), int(number)) for row, number in zip(x, y, strict=True)]
    return spark.createDataFrame(rows, "v array<float>, y int")
