from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

ov = pytest.importorskip("openvino")
from openvino import opset13 as op  # noqa: E402

from orca import Estimator  # noqa: E402
from orca.data.shard import SparkXShards, XShards  # noqa: E402
from orca.errors import ArgumentError, DataError  # noqa: E402
from orca.estimators.openvino import OpenvinoEstimator  # noqa: E402
from orca.estimators.torch import TorchEstimator  # noqa: E402
from programs import program_of, run_program  # noqa: E402
from raised import raises  # noqa: E402

WEIGHTS = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
X = np.random.default_rng(1).random((22, 3, 2, 2), np.float32)
Y = X.reshape(22, 12) @ WEIGHTS


def image_model(batch: int = -1) -> Any:
    """Return a model of images [batch, 3, 2, 2] with 3 scores a row."""
    image = op.parameter([batch, 3, 2, 2], name="image")
    flat = op.reshape(image, np.array([0, -1]), True)
    return ov.Model([op.matmul(flat, WEIGHTS, False, False)], [image])


def two_headed() -> Any:
    """Return a model of (number, vector): their sum, and the vector's largest."""
    number, vector = op.parameter([-1, 1], name="number"), op.parameter([-1, 4], name="vector")
    heads = [op.add(number, vector), op.reduce_max(vector, np.array([1]), True)]
    return ov.Model(heads, [number, vector])


def free_width() -> Any:
    """Return a model that doubles rows of any width."""
    x = op.parameter([-1, -1], name="x")
    return ov.Model([op.multiply(x, np.float32(2))], [x])


def estimator(model: Any, folder: Path, **options: Any) -> Any:
    ov.save_model(model, folder / "model.xml", compress_to_fp16=False)
    return Estimator.from_openvino(model_path=str(folder / "model.xml"), **options)


def two_inputs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(rows, dtype=np.float32), np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)


def close(found: Any, expected: np.ndarray) -> bool:
    found = np.asarray(found)
    return found.shape == expected.shape and np.allclose(found, expected, atol=1e-5)


# In this process


def test_arrays_are_answered_for_in_this_process(tmp_path: Path) -> None:
    est = estimator(image_model(), tmp_path, backend="local")
    assert isinstance(est, OpenvinoEstimator)
    assert isinstance(est, Estimator)
    assert close(est.predict(X), Y)
    assert close(est.predict(X, batch_size=100), Y)
    assert close(est.predict(X.reshape(11, 2, 3, 2, 2)), Y.reshape(11, 2, 3))
    assert close(est.predict({"x": X}), Y)


def test_lists_of_arrays_are_several_inputs(tmp_path: Path) -> None:
    est = estimator(two_headed(), tmp_path, backend="local")
    number, vector = two_inputs(7)
    for data in ([number, vector], (number, vector)):
        total, largest = est.predict(data)
        assert close(total, number[:, None] + vector)
        assert close(largest, vector.max(axis=1, keepdims=True))


def test_dicts_meet_the_inputs_by_name(tmp_path: Path) -> None:
    number, vector = two_inputs(7)
    est = estimator(two_headed(), tmp_path)
    for data in (
        {"vector": vector, "number": number},
        {"x": {"vector": vector, "number": number}},
        {"x": [number, vector]},
    ):
        assert close(est.predict(data)[0], number[:, None] + vector)
    for wrong in ({"vectr": vector, "number": number}, {"x": number, "vector": vector}):
        with raises("input-names-differ", match="'number'"):
            est.predict(wrong)


def test_pandas_gets_columns(tmp_path: Path) -> None:
    number, vector = two_inputs(7)
    frame = pd.DataFrame({"id": range(7), "n": number, "v": list(vector)}, index=list("abcdefg"))
    est = estimator(two_headed(), tmp_path, backend="local")
    answered = est.predict(frame, feature_cols=["n", "v"])
    assert list(answered.columns) == ["id", "n", "v", "prediction_0", "prediction_1"]
    assert list(answered.index) == list("abcdefg")
    assert close(np.stack(answered["prediction_0"]), number[:, None] + vector)
    assert close(answered["prediction_1"], vector.max(axis=1))
    named = est.predict(frame, input_cols=["n", "v"], output_cols=["total", "largest"])
    assert close(named["largest"], vector.max(axis=1))


def test_model_is_replaced_by_load_and_its_batch_can_be_set(tmp_path: Path) -> None:
    est = estimator(two_headed(), tmp_path, backend="local", batch_size=3)
    assert est.learner.signature.batch == 3
    (tmp_path / "other").mkdir()
    ov.save_model(image_model(), tmp_path / "other" / "model.xml", compress_to_fp16=False)
    assert est.load(str(tmp_path / "other" / "model.xml"), batch_size=4) is est
    assert close(est.predict(X, batch_size=50), Y)
    with raises("batch-too-large"):
        est.predict(X.reshape(2, 11, 3, 2, 2))
    est.load(model_path=str(tmp_path / "other" / "model.xml"))
    assert est.predict(X.reshape(2, 11, 3, 2, 2)).shape == (2, 11, 3)


def test_files_are_checked_when_the_estimator_is_made(tmp_path: Path) -> None:
    with raises("missing-file"):
        Estimator.from_openvino(model_path=str(tmp_path / "none.xml"))
    with pytest.raises(ArgumentError, match="backend must be one of"):
        estimator(image_model(), tmp_path, backend="sparc")
    with raises("bad-count"):
        estimator(image_model(), tmp_path, batch_size=-1)
    os.remove(tmp_path / "model.bin")
    with raises("missing-file"):
        Estimator.from_openvino(model_path=str(tmp_path / "model.xml"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": X[:, :2]}, r"input 'image' does not take an array of shape \(22, 2, 2, 2\)"),
        ({"data": [X, X]}, r"the model has 1 input\(s\), but the data has 2 array\(s\)"),
        ({"data": np.array(["a", "b"])}, "input 'image' takes numbers; got text"),
        ({"data": X, "batch_size": 0}, "batch_size must be a positive whole number; got 0"),
        ({"data": X, "config": {"FOO": 1}}, "OpenVINO has no property 'FOO'"),
        ({"data": X, "feature_cols": ["a"], "input_cols": ["b"]}, "input_cols is another name of feature_cols"),
        (
            {"data": {"a": X, "b": X}, "feature_cols": ["a", "b"]},
            r"has 1 input\(s\), \['image'\], but feature_cols names 2",
        ),
    ],
)
def test_wrong_arguments_and_data_are_refused_before_anything_runs(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        estimator(image_model(), tmp_path, backend="local").predict(**arguments)


@pytest.mark.parametrize(
    "verb",
    [
        "fit", "evaluate", "explain", "get_model", "save", "save_checkpoint", "set_tensorboard",
        "clear_gradient_clipping", "set_constant_gradient_clipping", "set_l2_norm_gradient_clipping",
        "get_train_summary", "get_validation_summary", "load_orca_checkpoint", "get_state_dict", "load_state_dict",
        "to_openvino",
    ],
)  # fmt: skip
def test_what_a_model_for_answers_cannot_do_is_said(tmp_path: Path, verb: str) -> None:
    est = estimator(image_model(), tmp_path, backend="local")
    with pytest.raises(ArgumentError, match=f"{verb} is not supported: an OpenVINO model only answers .* [A-Z].*[.]$"):
        getattr(est, verb)()
    assert not hasattr(est, verb)


def test_every_verb_of_training_is_refused_in_words() -> None:
    """A verb that Estimators get later must be thought about here too."""
    public = {name for name, member in inspect.getmembers(TorchEstimator, callable) if not name.startswith("_")}
    assert public - {name for name in public if hasattr(OpenvinoEstimator, name)} == set(OpenvinoEstimator.refusals)


def test_shims_give_the_estimator() -> None:
    import bigdl.orca.learn.openvino.estimator
    import zoo.orca.learn.openvino.estimator

    for module in (zoo.orca.learn.openvino, bigdl.orca.learn.openvino):
        assert issubclass(module.Estimator, Estimator)
        assert module.estimator.OpenvinoEstimator is OpenvinoEstimator


# On Spark


def test_arrays_are_answered_for_by_the_tasks_of_spark(spark: Any, tmp_path: Path) -> None:
    est = estimator(image_model(4), tmp_path)
    assert (est.engine.name, est.engine.workers) == ("spark", 3)
    assert close(est.predict(X), Y)
    assert close(est.predict(X.reshape(11, 2, 3, 2, 2)), Y.reshape(11, 2, 3))
    with raises("batch-too-large"):  # here, not in a task
        est.predict(X.reshape(2, 11, 3, 2, 2))
    number, vector = two_inputs(7)
    total, largest = estimator(two_headed(), tmp_path).predict([number, vector])
    assert close(total, number[:, None] + vector)
    assert close(largest, vector.max(axis=1, keepdims=True))


def test_xshards_keep_x_and_get_predictions(spark: Any, tmp_path: Path) -> None:
    est = estimator(image_model(4), tmp_path)
    for x, y in ((X, Y), (X.reshape(11, 2, 3, 2, 2), Y.reshape(11, 2, 3))):
        shards = est.predict(XShards.partition({"x": x}, num_shards=2)).collect()
        assert [set(shard) for shard in shards] == [{"x", "prediction"}] * 2
        assert close(np.concatenate([shard["x"] for shard in shards]), x)
        assert close(np.concatenate([shard["prediction"] for shard in shards]), y)


def test_uneven_and_empty_shards_are_answered_as_arrays_are(spark: Any, tmp_path: Path) -> None:
    est = estimator(image_model(4), tmp_path)
    cuts = [slice(0, 6), slice(0, 0), slice(6, 7), slice(7, 11)]
    context = spark.sparkContext
    dicts = context.parallelize([[{"x": X[cut]} for cut in cuts], []], 2).flatMap(list)
    answers = est.predict(SparkXShards(dicts)).collect()
    assert [len(shard["prediction"]) for shard in answers] == [6, 0, 1, 4]
    assert close(np.concatenate([shard["prediction"] for shard in answers if len(shard["x"])]), Y[:11])
    table = pd.DataFrame({"image": list(X[:11]), "id": range(11)})
    frames = context.parallelize([table[cut] for cut in cuts], 3)
    answers = est.predict(SparkXShards(frames), feature_cols=["image"]).collect()
    assert [list(shard.columns) for shard in answers] == [["image", "id", "prediction"]] * 4
    got = pd.concat(answers)
    assert got["id"].tolist() == list(range(11)) and close(np.stack(got["prediction"]).reshape(11, 3), Y[:11])


def test_xshards_of_several_inputs_get_a_list_of_predictions(spark: Any, tmp_path: Path) -> None:
    number, vector = two_inputs(7)
    shards = XShards.partition({"x": [number[:, None], vector]}, num_shards=2)
    answers = estimator(two_headed(), tmp_path).predict(shards).collect()
    assert close(np.concatenate([shard["prediction"][0] for shard in answers]), number[:, None] + vector)
    assert close(np.concatenate([shard["prediction"][1] for shard in answers]), vector.max(axis=1, keepdims=True))


@pytest.mark.parametrize("batch", [-1, 4])
def test_dataframe_gets_a_column_for_its_flat_arrays(spark: Any, tmp_path: Path, batch: int) -> None:
    rows = [(i, x.ravel().tolist(), x.tolist()) for i, x in enumerate(X)]
    kinds = "id int, flat array<double>, image array<array<array<float>>>"
    frame = spark.createDataFrame(rows, kinds).repartition(3)
    est = estimator(image_model(batch), tmp_path)
    for column in ("flat", "image"):
        answered = est.predict(frame, feature_cols=[column])
        assert answered.columns == ["id", "flat", "image", "prediction"]
        answers = {row.id: row.prediction for row in answered.collect()}
        assert close([answers[i] for i in range(22)], Y)


def test_dataframe_with_several_inputs_and_outputs(spark: Any, tmp_path: Path) -> None:
    number, vector = two_inputs(7)
    rows = [(float(n), v.tolist()) for n, v in zip(number, vector, strict=True)]
    frame = spark.createDataFrame(rows, "n double, v array<float>")
    est = estimator(two_headed(), tmp_path)
    answered = est.predict(frame, input_cols=["n", "v"])
    assert [field.simpleString() for field in answered.schema][2:] == [
        "prediction_0:array<float>",
        "prediction_1:float",
    ]
    parts = answered.orderBy("n").collect()
    assert close([row.prediction_0 for row in parts], number[:, None] + vector)
    assert close([row.prediction_1 for row in parts], vector.max(axis=1))
    assert est.predict(frame, ["n", "v"], output_cols=["a", "b"]).columns == ["n", "v", "a", "b"]
    with pytest.raises(DataError, match="there is no column 'w'"):
        est.predict(frame, feature_cols=["n", "w"])


def test_dataframe_is_not_computed_before_it_is_used(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    frame = spark.range(3).select(F.array(F.raise_error(F.lit("computed")).cast("float")).alias("x"))
    answered = estimator(image_model(), tmp_path).predict(frame, feature_cols="x")
    assert answered.schema["prediction"].simpleString() == "prediction:array<float>"
    with pytest.raises(Exception, match="computed"):
        answered.collect()


def test_model_of_free_width_learns_its_output_from_the_first_row(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([([1.0, 2.0, 3.0],), ([4.0, 5.0, 6.0],)], "x array<float>")
    answered = estimator(free_width(), tmp_path).predict(frame, feature_cols=["x"])
    assert sorted(row.prediction for row in answered.collect()) == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]


def test_wrong_column_is_told_by_the_task(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([([1.0, 2.0],)], "x array<float>")
    answered = estimator(image_model(), tmp_path).predict(frame, feature_cols=["x"])
    with pytest.raises(Exception, match=r"input 'image' does not take an array of shape \(1, 2\).*\[\?, 3, 2, 2\]"):
        answered.collect()


# On Ray


def test_arrays_are_answered_for_by_tasks_of_ray(ray_context: Any, tmp_path: Path) -> None:
    est = estimator(image_model(4), tmp_path, backend="ray")
    assert (est.engine.name, est.engine.workers) == ("ray", 3)
    assert close(est.predict(X), Y)
    assert close(est.predict(X.reshape(11, 2, 3, 2, 2)), Y.reshape(11, 2, 3))


def test_ray_dataset_gets_columns(ray_context: Any, tmp_path: Path) -> None:
    import ray

    data = ray.data.from_numpy(X.reshape(22, 12)).rename_columns({"data": "flat"})
    rows = estimator(image_model(), tmp_path).predict(data, feature_cols=["flat"]).take_all()
    assert set(rows[0]) == {"flat", "prediction"}
    assert close([row["prediction"] for row in rows], Y)
    number, vector = two_inputs(7)
    data = ray.data.from_items([{"n": n, "v": v} for n, v in zip(number, vector, strict=True)])
    rows = estimator(two_headed(), tmp_path).predict(data, feature_cols=["n", "v"]).take_all()
    assert close([row["prediction_0"] for row in rows], number[:, None] + vector)
    assert close([row["prediction_1"] for row in rows], vector.max(axis=1))


# The page of the documentation


@pytest.mark.full
def test_programs_of_the_documentation_run() -> None:
    pytest.importorskip("torch")
    page = Path(__file__).resolve().parents[2] / "docs" / "openvino.md"
    said = run_program(program_of(page)).stdout
    assert "input 'input' does not take an array of shape (5, 32, 32, 3). The model takes 'input' float32" in said


def torch_estimator() -> Any:
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Estimator.from_torch(model=model, optimizer=optimizer, loss=torch.nn.MSELoss(), backend="local")


def keras_estimator() -> Any:
    pytest.importorskip("tensorflow")
    import keras

    def creator(config: dict[str, Any]) -> Any:
        layers = [keras.layers.Flatten(), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((3, 2, 2)), *layers])
        model.compile(optimizer="sgd", loss="mse")
        return model

    return Estimator.from_keras(model_creator=creator, backend="local")


@pytest.mark.parametrize("make", [torch_estimator, pytest.param(keras_estimator, marks=pytest.mark.full)])
def test_a_trained_estimator_is_served_by_openvino_with_the_same_answers(make: Any, tmp_path: Path) -> None:
    trained = make()
    with raises("unknown-row"):
        trained.to_openvino(str(tmp_path / "model.xml"))
    trained.fit((X, Y), epochs=2, batch_size=8)
    path = trained.to_openvino(str(tmp_path / "model.xml"))
    served = Estimator.from_openvino(model_path=path)
    assert np.allclose(served.predict(X), trained.predict(X), atol=1e-4)
    again = make().load(trained.save(str(tmp_path / ("saved" if make is torch_estimator else "saved.keras"))))
    again.to_openvino(str(tmp_path / "again.xml"), X[:1])
    assert np.allclose(served.load(str(tmp_path / "again.xml")).predict(X), trained.predict(X), atol=1e-4)
