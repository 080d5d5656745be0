"""TFNet: a frozen graph that answers for data of every kind, and that is a layer of larger models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow.compat.v1 as tf
import torch

from orca.data.shard import XShards
from orca.errors import ArgumentError, DataError
from orca.frameworks.torch.architecture import build, describe
from orca_classic.bigdl.keras import layers as keras_layers
from orca_classic.bigdl.keras.engine import Input as KerasInput
from orca_classic.bigdl.keras.engine import Model as KerasModel
from orca_classic.bigdl.keras.engine import Sequential as KerasSequential
from orca_classic.bigdl.layer import Model
from orca_classic.bigdl.layers import Input, Linear, Sequential
from orca_classic.bigdl.net import Net
from orca_classic.nnframes import NNModel
from orca_classic.tf1.tfpark import TFDataset, TFNet
from orca_classic.tf1.tfpark.net import export_tf
from orca_classic.zoo.sample import Sample

LOCAL = {"backend": "local"}
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(11, 4)).astype("float32")
WEIGHTS = DRAW.normal(size=(4, 3)).astype("float32")
TRUTH = np.tanh(X @ WEIGHTS)


def net(**options: Any) -> TFNet:
    """Return tanh(x @ WEIGHTS) as a frozen graph."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        kernel = tf.get_variable("kernel", initializer=WEIGHTS)
        y = tf.tanh(x @ kernel)
        session.run(tf.global_variables_initializer())
        return TFNet.from_session(session, x, y, **options)


def twin() -> Any:
    """Return the same as a function of torch."""
    return lambda x: torch.tanh(x @ torch.from_numpy(WEIGHTS))


def test_a_net_answers_for_rdds_shards_and_dataframes(spark: Any) -> None:
    made, context = net(), spark.sparkContext
    samples = [Sample.from_ndarray(row, 1.0) for row in X]
    for rdd in (
        context.parallelize(samples[:8], 1)
        .union(context.parallelize([], 1))
        .union(context.parallelize(samples[8:], 1)),
        context.parallelize(list(X), 2),
        context.parallelize([[row] for row in X], 2),
    ):
        np.testing.assert_allclose(np.array(made.predict(rdd, batch_per_thread=3).collect()), TRUTH, atol=1e-6)
    shards = made.predict(XShards.partition({"x": X}, num_shards=3)).collect()
    np.testing.assert_allclose(np.concatenate([shard["prediction"] for shard in shards]), TRUTH, atol=1e-6)
    data = TFDataset.from_ndarrays(X, batch_per_thread=4)
    np.testing.assert_allclose(np.array(made.predict(data).collect()), TRUTH, atol=1e-6)


def test_a_stage_of_spark_answers_with_a_net_and_is_kept(spark: Any, tmp_path: Path) -> None:
    df = spark.createDataFrame([(row.tolist(),) for row in X], "features array<float>")
    stage = NNModel(net()).setBatchSize(4)
    np.testing.assert_allclose(np.array([row.prediction for row in stage.transform(df).collect()]), TRUTH, atol=1e-6)
    stage.save(str(tmp_path / "stage"))
    again = NNModel.load(str(tmp_path / "stage"))
    np.testing.assert_allclose(np.array([row.prediction for row in again.transform(df).collect()]), TRUTH, atol=1e-6)


def test_gradients_pass_a_net_in_models_of_bigdl() -> None:
    first, last = Linear(2, 4), Linear(3, 1)
    rows, outer = DRAW.normal(size=(5, 2)).astype("float32"), DRAW.normal(size=(5, 1)).astype("float32")
    weights = [torch.tensor(each, requires_grad=True) for each in (*first.get_weights(), *last.get_weights())]
    x = torch.tensor(rows, requires_grad=True)
    y = twin()(x @ weights[0].T + weights[1]) @ weights[2].T + weights[3]
    y.backward(torch.tensor(outer))
    start = Input()
    models = Sequential().add(first).add(net()).add(last), Model(start, last(net()(first(start))))
    for model in models:
        model.zero_grad_parameters()
        np.testing.assert_allclose(model.forward(rows), y.detach().numpy(), atol=1e-6)
        np.testing.assert_allclose(model.backward(rows, outer), x.grad.numpy(), atol=1e-6)
        gradient = first.module.weight.grad
        assert isinstance(gradient, torch.Tensor)
        np.testing.assert_allclose(gradient.numpy(), weights[0].grad.numpy(), atol=1e-6)
        assert len(model.get_weights()) == 4  # its own do not learn


def test_a_model_of_the_keras_style_learns_through_a_net() -> None:
    rows = DRAW.normal(size=(40, 2)).astype("float32")
    labels = rows.sum(1, keepdims=True)
    start = KerasInput(shape=(2,))
    behind = KerasModel(start, keras_layers.Dense(1)(net()(keras_layers.Dense(4)(start))))
    model = KerasSequential().add(keras_layers.Dense(4, input_shape=(2,))).add(net()).add(keras_layers.Dense(1))
    for each in (model, behind):
        assert each.get_output_shape() == (None, 1)
        before = each.get_weights()[0].copy()  # of the layer before the net
        each.compile("sgd", "mse")
        each.fit(rows, labels, batch_size=40, nb_epoch=3, distributed=False)
        losses = [line["train_loss"] for line in each.estimator.history.epochs]
        assert losses[-1] < losses[0]
        assert not np.allclose(before, each.get_weights()[0])


def test_a_net_is_read_from_files(tmp_path: Path) -> None:
    made = net(**LOCAL)
    file = tmp_path / "graph.pb"
    file.write_bytes(made.definition)
    read = TFNet(str(file), ["x:0"], ["Tanh:0"], **LOCAL)
    np.testing.assert_allclose(read.predict(X, distributed=False), TRUTH, atol=1e-6)
    with pytest.raises(ArgumentError, match="does not name its inputs and outputs"):
        TFNet(str(file))
    with pytest.raises(ArgumentError, match="the graph has no such tensor"):
        TFNet(str(file), ["x:0"], ["y:0"])
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 4])
        export_tf(session, str(tmp_path / "folder"), [x], [x * 2.0])
    np.testing.assert_allclose(Net.load_tf(str(tmp_path / "folder")).forward(X), X * 2)
    with pytest.raises(ArgumentError, match="no signature 'other'; it has"):
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.float32, [None, 4])
            tf.saved_model.simple_save(session, str(tmp_path / "saved"), {"x": x}, {"y": x * 2.0})
        TFNet.from_saved_model(str(tmp_path / "saved"), signature="other")


def test_a_module_of_an_older_file_answers() -> None:
    about = describe(net().to_torch())
    about["attributes"] = {"_opened": None} | {
        name: about["attributes"][name] for name in ("definition", "inputs", "outputs")
    }
    np.testing.assert_allclose(build(about)(torch.from_numpy(X)), TRUTH, rtol=1e-5)


def test_several_inputs_of_other_types_are_fed() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        a, b = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.float32, [None, 2, 2])
        heads = [tf.gather(tf.constant([1.0, 2.0, 3.0]), a), b * 2.0]
        made = TFNet.from_session(session, [a, b], heads, **LOCAL)
        with pytest.raises(ArgumentError, match="no gradient passes from the outputs to Placeholder:0"):
            TFNet.from_session(session, [a, b], heads, generate_backward=True, allow_non_differentiable_input=False)
    places, flat = np.array([2.0, 0.0]), np.arange(8.0).reshape(2, 4)  # floats, and flat rows
    for one, two in (made.forward([places, flat]), made.predict([places, flat])):
        np.testing.assert_array_equal(one, [3.0, 1.0])
        np.testing.assert_array_equal(two, flat.reshape(2, 2, 2) * 2)
    module = made.to_torch()
    given = torch.tensor(flat, dtype=torch.float32, requires_grad=True)
    _, doubled = module(torch.tensor(places), given)
    doubled.sum().backward()
    np.testing.assert_array_equal(given.grad.numpy(), np.full((2, 4), 2.0))  # in the shape that was given
    with pytest.raises(ArgumentError, match="the graph has the inputs .*; got 1 array"):
        made.forward(places)
    with pytest.raises(DataError, match="must have the shape"):
        made.forward([places, flat[:, :3]])
