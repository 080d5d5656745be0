"""Keras-style models: training on every kind of data as a plain loop, answers in that kind, settings between fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orca.errors import ArgumentError, DataError, WorkerFailed  # noqa: E402
from orca_classic.bigdl import criterion as C  # noqa: E402
from orca_classic.bigdl import layers as L  # noqa: E402
from orca_classic.bigdl.featuresets import FeatureSet  # noqa: E402
from orca_classic.bigdl.initial import L2Regularizer  # noqa: E402
from orca_classic.bigdl.keras import autograd, engine  # noqa: E402
from orca_classic.bigdl.keras.layers import KERAS, merge  # noqa: E402
from orca_classic.bigdl.net import GraphNet, Net  # noqa: E402
from orca_classic.bigdl.optimizers import SGD  # noqa: E402
from orca_classic.zoo.sample import Sample  # noqa: E402
from programs import run_program  # noqa: E402

Dense = KERAS["Dense"]
DRAW = np.random.default_rng(5)
X = DRAW.normal(size=(23, 4)).astype(np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.float32)
WEIGHTS = [DRAW.normal(size=shape).astype(np.float32) for shape in ((5, 4), (5,), (2, 5), (2,))]
SAMPLES = [Sample.from_ndarray(x, y) for x, y in zip(X, Y, strict=True)]


def network(outputs: int = 2, last: str = "softmax") -> Any:
    model = engine.Sequential().add(Dense(5, activation="tanh", input_shape=(4,))).add(Dense(outputs, activation=last))
    if outputs == 2:
        model.set_weights(WEIGHTS)
    return model


def compiled(optimizer: Any = None, metrics: Any = ("accuracy",)) -> Any:
    model = network()
    model.compile(optimizer or SGD(learningrate=0.1), "sparse_categorical_crossentropy", list(metrics))
    return model


def plain_loop(epochs: int = 2, norm: float | None = None) -> list[Any]:
    """Return the weights after steps on all rows, which no order of the rows changes."""
    net = network().to_torch()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.nn.functional.nll_loss(net(torch.tensor(X)).log(), torch.tensor(Y).long()).backward()
        if norm:
            torch.nn.utils.clip_grad_norm_(net.parameters(), norm)
        optimizer.step()
    return [parameter.detach().numpy() for parameter in net.parameters()]


def check(model: Any, truth: list[Any]) -> None:
    for mine, other in zip(model.get_weights(), truth, strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-4, atol=2e-5)


def spread(spark: Any, kind: str) -> tuple[Any, dict[str, Any]]:
    """Return the rows on Spark, in partitions of 1, 0, 3 and 19 rows where there are partitions, with their columns."""
    groups = [slice(0, 1), slice(0, 0), slice(1, 4), slice(4, 23)]
    context = spark.sparkContext
    if kind in ("rdd", "featureset"):
        rdd = context.parallelize([SAMPLES[group] for group in groups], 4).flatMap(lambda rows: rows)
        return rdd if kind == "rdd" else FeatureSet.sample_rdd(rdd, shuffle=False), {}
    if kind == "xshards":
        from orca.data.shard import SparkXShards

        return SparkXShards(context.parallelize([{"x": X[group], "y": Y[group]} for group in groups], 4)), {}
    rows = [(x.tolist(), float(y)) for x, y in zip(X, Y, strict=True)]
    frame = spark.createDataFrame(rows, "f array<float>, l float")
    return frame, {"feature_cols": ["f"], "label_cols": ["l"]}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ranks"), [("rdd", 3), ("featureset", 1), ("xshards", 3), ("frame", 3)])
def test_every_kind_of_data_on_spark_trains_as_a_plain_loop(spark: Any, kind: str, ranks: int) -> None:
    data, columns = spread(spark, kind)
    model = compiled()
    model.workers_per_node = ranks
    model.fit(data, batch_size=23, nb_epoch=2, validation_data=data, shuffle=False, **columns)
    check(model, plain_loop())
    truth = model.predict(X, distributed=False)
    loss, accuracy = model.evaluate(data, batch_size=5, **columns)
    assert loss.result == pytest.approx(-np.log(truth[np.arange(23), Y.astype(int)]).mean(), rel=1e-4)
    assert accuracy.result == pytest.approx((truth.argmax(1) == Y).mean()) and accuracy.total_num == 23
    if kind == "frame":
        answers = model.predict(data, feature_cols=["f"], prediction_col="out").collect()
        mine, truth = (
            [row["out"] for row in answers],
            model.predict(np.array([row["f"] for row in answers]), distributed=False),
        )
    elif kind == "xshards":
        mine = np.concatenate([shard["prediction"] for shard in model.predict(data).collect()])
    else:
        mine = np.stack(model.predict(data.to_samples() if kind == "featureset" else data).collect())
    np.testing.assert_allclose(mine, truth, rtol=1e-4, atol=1e-6)


def test_arrays_are_answered_for_on_spark_where_it_is_up(spark: Any) -> None:
    model = network()
    np.testing.assert_allclose(np.stack(model.predict(X).collect()), model.predict(X, distributed=False), rtol=1e-5)
    assert (
        model.predict_classes(X, zero_based_label=False).collect()
        == (model.predict(X, distributed=False).argmax(1) + 1).tolist()
    )
    a, b = engine.Input(shape=(4,)), engine.Input(shape=(2,))
    both = engine.Model([a, b], [Dense(1)(merge([a, b], mode="concat")), Dense(3)(a)])
    rows, truth = both.predict([X, X[:, :2]]).collect(), both.predict([X, X[:, :2]], distributed=False)
    for at, output in enumerate(truth):
        np.testing.assert_allclose(np.stack([row[at] for row in rows]), output, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 3])
def test_arrays_and_samples_train_here_as_a_plain_loop_with_clipping(ranks: int) -> None:
    for data in ((X, Y), (SAMPLES,)):
        model = compiled()
        model.workers_per_node = ranks
        model.set_gradient_clipping_by_l2_norm(0.2)
        model.fit(*data, batch_size=23, nb_epoch=2, shuffle=False, distributed=False)
        check(model, plain_loop(norm=0.2))
    model.set_weights(WEIGHTS)
    model.clear_gradient_clipping()
    model.fit(X, Y, batch_size=23, nb_epoch=2, shuffle=False, distributed=False)
    check(model, plain_loop())


def test_weights_that_are_frozen_or_set_between_fits_are_heeded() -> None:
    model = compiled("adam")
    first, second = (layer.name() for layer in model.layers)
    model.fit(X, Y, nb_epoch=1, distributed=False)
    for frozen, moves in (
        ([first], [False, False, True, True]),
        ([second], [True, True, False, False]),
        ([], [True] * 4),
    ):
        model.unfreeze()
        if frozen:
            model.freeze(frozen)
        before = model.get_weights()
        model.fit(X, Y, nb_epoch=1, distributed=False)
        after = model.get_weights()
        assert [not np.array_equal(old, new) for old, new in zip(before, after, strict=True)] == moves


def test_optimizer_keeps_its_state_over_fits_and_settings(tmp_path: Path) -> None:
    def momentum() -> Any:
        return SGD(learningrate=0.1, momentum=0.9, dampening=0.0)

    whole, parts = compiled(momentum()), compiled(momentum())
    whole.fit(X, Y, batch_size=23, nb_epoch=3, shuffle=False, distributed=False)
    parts.fit(X, Y, batch_size=23, nb_epoch=1, shuffle=False, distributed=False)
    parts.set_checkpoint(str(tmp_path / "kept"))
    parts.evaluate(X, Y)
    parts.set_evaluate_status()
    parts.fit(X, Y, batch_size=23, nb_epoch=2, shuffle=False, distributed=False)
    check(parts, whole.get_weights())
    assert len(list((tmp_path / "kept").glob("run-*/orca.*"))) == 1


def test_layers_and_regularizers_that_are_added_between_fits_are_trained() -> None:
    model = engine.Sequential().add(Dense(2, input_shape=(4,)))
    model.compile(SGD(learningrate=0.1, momentum=0.9), "mse")
    model.fit(X, X[:, :2], 23, 1, distributed=False)
    first, *_ = model.layers
    first.setWRegularizer(L2Regularizer(10.0))
    before = model.get_weights()[0]
    model.fit(X, model.predict(X, distributed=False), 23, 1, distributed=False)  # nothing to learn but the penalty
    np.testing.assert_allclose(model.get_weights()[0], before - 0.1 * 10 * before, atol=1e-5)
    model.add(Dense(1))
    before = model.get_weights()[2]
    model.fit(X, Y, 23, 1, distributed=False)
    assert (model.get_weights()[2] != before).any()


def test_graph_whose_gradient_was_stopped_is_loaded_as_such(tmp_path: Path) -> None:
    start = engine.Input((4,))
    model = engine.Model(start, Dense(2)(Dense(3, name="still")(start)))
    model.stop_gradient(["still"])
    model.save(str(tmp_path / "model"))
    loaded = Net.load(str(tmp_path / "model"))
    assert not loaded.backward(X, np.ones((23, 2))).any()


def test_summaries_tell_of_every_step_and_validation(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    model = compiled()
    assert model.get_train_summary("Loss") is None
    model.set_tensorboard(str(tmp_path), "run")
    model.fit(X, Y, batch_size=8, nb_epoch=2, validation_data=(X, Y), distributed=False)
    assert model.get_train_summary("Loss").shape == (6, 3)
    points = model.get_validation_summary("Accuracy")
    assert points.shape == (2, 3) and points[-1, 1] == pytest.approx(model.evaluate(X, Y)[1].result)


def test_shared_layers_several_inputs_and_outputs_and_nested_models_train_alike_on_three_ranks(tmp_path: Path) -> None:
    def graph() -> Any:
        a, b = engine.Input(shape=(4,)), engine.Input(shape=(4,))
        shared = Dense(3, activation="tanh")
        inner = engine.Sequential().add(Dense(3, input_shape=(6,))).add(Dense(2))
        joined = inner(merge([shared(a), shared(b)], mode="concat"))
        model = engine.Model([a, b], [joined, Dense(1)(joined)])
        draw = np.random.default_rng(1)
        model.set_weights([draw.normal(size=weight.shape) for weight in model.get_weights()])
        return model

    truths, trained = [np.stack([Y, X[:, 0]], 1), X[:, 1:2]], []
    for ranks in (1, 3):
        model = graph()
        model.workers_per_node = ranks
        model.compile(SGD(learningrate=0.05), C.ParallelCriterion().add(C.MSECriterion()).add(C.MSECriterion(), 0.5))
        model.fit([X, X + 1], truths, batch_size=23, nb_epoch=2, shuffle=False, distributed=False)
        trained.append(model.get_weights())
    assert len(trained[0]) == 8  # the shared layer's once
    check(model, trained[0])
    with pytest.raises(DataError, match=r"has 2 input\(s\); got 1. Pass a list of as many arrays"):
        model.predict(X, distributed=False)
    with pytest.raises(ArgumentError, match="has 2 outputs; got 3 losses"):
        model.compile("sgd", ["mse"] * 3)
    model.compile("sgd", ["mse", "mae"])
    (loss,) = model.evaluate([X, X + 1], truths)
    answers = model.predict([X, X + 1], distributed=False)
    differences = [answer - truth for answer, truth in zip(answers, truths, strict=True)]
    assert loss.result == pytest.approx((differences[0] ** 2).mean() + np.abs(differences[1]).mean(), rel=1e-4)
    model.saveModel(str(tmp_path / "model"))
    loaded = Net.load(str(tmp_path / "model"))
    assert len(loaded.get_weights()) == 8
    for mine, other in zip(loaded.predict([X, X + 1], distributed=False), answers, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_loss_of_variables_trains_alike_on_three_ranks() -> None:
    trained = []
    for ranks in (1, 3):
        model = network()
        model.workers_per_node = ranks
        model.compile(SGD(learningrate=0.5), lambda truth, guess: autograd.FUNCTIONS["square"](truth - guess))
        model.fit(X, X[:, :2], batch_size=23, nb_epoch=2, shuffle=False, distributed=False)
        trained.append(model.get_weights())
    check(model, trained[0])


@pytest.mark.full
def test_model_is_loaded_in_a_fresh_program_and_trains_on(tmp_path: Path) -> None:
    model = compiled()
    model.layers[0].set_name("first")
    model.freeze(["first"])
    model.saveModel(str(tmp_path / "model"))
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "answers.npy", model.predict(X, distributed=False))
    run_program(f"""
        import numpy as np
        from bigdl.dllib.keras.models import load_model
        folder = {str(tmp_path)!r}
        x, truth = np.load(folder + "/x.npy"), np.load(folder + "/answers.npy")
        model = load_model(folder + "/model")
        np.testing.assert_allclose(model.predict(x, distributed=False), truth, rtol=1e-5)
        before = model.get_weights()
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, np.zeros(len(x)), nb_epoch=1)
        moved = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights())]
        assert moved == [False, False, True, True], moved
    """)


def test_numbers_of_any_type_are_floats_to_a_model() -> None:
    trained = []
    for kind in (np.float32, np.uint8):
        model = compiled()
        model.fit(
            np.abs(X * 9).astype(np.uint8).astype(kind), Y.astype(int), batch_size=23, nb_epoch=1, distributed=False
        )
        trained.append(model.get_weights())
    check(model, trained[0])


def test_one_output_is_a_class_from_a_half_on() -> None:
    model = network(1, "sigmoid")
    scores = model.predict(X, distributed=False)[:, 0]
    classes = model.predict_classes(X)
    np.testing.assert_array_equal(classes.collect() if hasattr(classes, "collect") else classes, scores >= 0.5)
    with pytest.raises(ArgumentError, match="predict_classes takes arrays and RDDs, for a model with one output"):
        a = engine.Input(shape=(4,))
        engine.Model(a, [Dense(2)(a), Dense(1)(a)]).predict_classes(X)


def test_graph_of_bigdl_is_a_layer_of_a_model(tmp_path: Path) -> None:
    start = L.Input()
    middle = L.Linear(4, 3).set_name("middle")(start)
    L.Model(start, L.Linear(3, 2).set_name("end")(L.Tanh()(middle))).saveModel(str(tmp_path / "graph"))
    part = Net.load_bigdl(str(tmp_path / "graph")).new_graph(["middle"])
    part.freeze_up_to(["middle"])
    top = engine.Input(shape=(4,))
    model = engine.Model(top, Dense(2, activation="softmax")(part.to_keras()(top)))
    model.compile("sgd", "sparse_categorical_crossentropy")
    before = model.get_weights()
    model.fit(X, Y, nb_epoch=1, distributed=False)
    moved = [not np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True)]
    assert moved == [False, False, True, True]
    graph = GraphNet(start, middle)
    np.testing.assert_allclose(graph.predict(X, distributed=False), graph.forward(X), rtol=1e-5)


def test_wrong_data_and_arguments_are_named() -> None:
    model = compiled()
    with pytest.raises(DataError, match="there are no rows: the data is empty"):
        model.fit([], nb_epoch=1)
    with pytest.raises(DataError, match="all features must have one shape"):
        model.fit([*SAMPLES, Sample.from_ndarray(X[0, :3], 0)], nb_epoch=1, distributed=False)
    with pytest.raises(DataError, match=r"all rows must have as many labels; got rows with \[0, 1\]"):
        model.fit([*SAMPLES, Sample(SAMPLES[0].features, [])], nb_epoch=1, distributed=False)
    with pytest.raises(
        WorkerFailed, match=r"Dense.* cannot take an input of shape|Linear.* cannot take an input of shape"
    ):
        model.fit(X[:, :3], Y, nb_epoch=1, distributed=False)
    with pytest.raises(ArgumentError, match="there is no loss named 'mean'"):
        model.compile("adam", "mean")
    with pytest.raises(ArgumentError, match="leaves none to train or none to validate with"):
        model.fit(X, Y, validation_split=0.01, distributed=False)
    with pytest.raises(ArgumentError, match="all weights of the model are frozen"):
        model.freeze().fit(X, Y, distributed=False)
    with pytest.raises(ArgumentError, match="transform is a preprocessing of an ImageSet or TextSet"):
        model.predict(X, transform=lambda x: x)


def test_epochs_go_by_another_name() -> None:
    with pytest.raises(ArgumentError, match="fit has no argument 'epochs' here: it is nb_epoch"):
        compiled().fit(X, Y, epochs=2)


def test_layers_of_a_graph_are_with_its_inputs() -> None:
    a, b = engine.Input(shape=(4,), name="left"), engine.Input(shape=(2,))
    model = engine.Model([a, b], merge([Dense(3)(a), Dense(3)(b)], mode="sum"))
    assert [type(layer).__name__ for layer in model.layers][:2] == ["InputLayer", "InputLayer"]
    assert len(model.layers) == len(model.flattened_layers()) == 5 and model.layers[0].name() == "left"
    other = engine.Model([a, b], [Dense(3)(a), Dense(3)(b)])
    assert len(other.layers) == 4


def test_graph_is_shown_by_tensorboard(tmp_path: Any) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    a, b = engine.Input(shape=(4,), name="left"), engine.Input(shape=(2,), name="right")
    inner, outer = Dense(3, name="inner"), merge([Dense(3, name="one")(a), Dense(3, name="two")(b)], mode="sum")
    engine.Model([a, b], inner(inner(outer))).save_graph_topology(str(tmp_path))
    events = reader.EventAccumulator(str(tmp_path)).Reload()
    nodes = {node.name: list(node.input) for node in events.Graph().node}
    assert nodes["left"] == nodes["right"] == [] and nodes["one"] == ["left"] and nodes["two"] == ["right"]
    again = next(name for name, inputs in nodes.items() if inputs == ["inner"])
    assert again.startswith("inner_") and len(nodes) == 7


def test_loss_may_be_named_among_the_metrics() -> None:
    model = network()
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy", "loss"])
    results = model.evaluate(X, Y, batch_size=8)
    assert [result.method for result in results] == ["Loss", "Accuracy"]


def test_variable_is_made_of_a_shape() -> None:
    for shape in ((4,), (None, 4)):
        variable = engine.Variable(input_shape=shape)
        assert variable.shape == (None, 4)
        model = engine.Model(variable, variable * 2.0 + 1.0)
        np.testing.assert_allclose(model.forward(X), X * 2 + 1, rtol=1e-6)


def test_words_of_a_file_of_vectors_have_numbers(tmp_path: Any) -> None:
    (tmp_path / "vectors.txt").write_text("the 1 2\ncat 3 4\n")
    index = KERAS["WordEmbedding"].get_word_index(str(tmp_path / "vectors.txt"))
    assert index == {"the": 1, "cat": 2}
    layer = KERAS["WordEmbedding"](str(tmp_path / "vectors.txt"), index, input_length=2)
    model = engine.Sequential().add(layer)
    np.testing.assert_array_equal(model.forward(np.array([[2, 1]])), [[[3, 4], [1, 2]]])
