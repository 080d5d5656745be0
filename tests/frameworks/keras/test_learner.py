from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import keras
import tensorflow as tf
import tf_keras

from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.core.state import OutputSpec, State
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError, DataError, WorkerFailed
from orca.frameworks.keras.columns import _warn_of_order
from orca.frameworks.keras.learner import KerasLearner, is_model
from orca.job import EvaluateJob, FitJob, PredictJob
from orca.testing import shards_of
from orca.triggers import EveryEpoch, SeveralIteration, TriggerOr

X = np.random.default_rng(0).normal(size=(23, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.float32)


def scorer(config: dict[str, Any]) -> Any:
    """Return a compiled model, its weights drawn from the seed of the day."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1, "sigmoid")])
    model.compile(keras.optimizers.SGD(0.1), loss="binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return model


def learner_of(model: Any = scorer, compile_args: Any = None, **config: Any) -> KerasLearner:
    return KerasLearner.of(model, compile_args, config, True)


def parts(*sizes: int) -> Any:
    """Return the rows dealt to ranks, so many to each."""
    ends = np.cumsum(sizes)
    return shards_of([(X[end - size : end], Y[end - size : end]) for size, end in zip(sizes, ends, strict=True)])


def fit(learner: KerasLearner, *sizes: int, state: State | None = None, **options: Any) -> tuple[Any, State]:
    plan = FitPlan(**{"batch_size": 8, "shuffle": False, **options})
    results = LocalEngine(len(sizes)).run(FitJob(learner, plan, (), state), parts(*sizes), Settings())
    return results[0]


def test_creators_and_models_of_both_families_are_taken() -> None:
    assert learner_of().packed_model is None
    for family in (keras, tf_keras):
        model = family.Sequential([family.Input((4,)), family.layers.Dense(1)])
        assert is_model(model) and learner_of(model).creator is None
    assert not is_model(keras.layers.Dense(1)) and not is_model(scorer)


@pytest.mark.parametrize("functional", [True, False])
def test_a_step_with_metrics_is_traced_once(functional: bool, tmp_path: Any) -> None:
    traces = tmp_path / "traces"

    @keras.saving.register_keras_serializable()
    class Counted(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            if isinstance(x, tf.Tensor) and not tf.executing_eagerly():
                with traces.open("a") as file:
                    file.write("traced\n")
            return x

    def creator(config: dict[str, Any]) -> Any:
        layers = [keras.Input((4,)), Counted(), keras.layers.Dense(1, "sigmoid")]
        model = keras.Sequential(layers)
        if functional:
            model = keras.Model(model.inputs, {"score": layers[2](layers[1](model.inputs[0]))})
        model.compile("sgd", loss="binary_crossentropy", metrics=["accuracy"])
        traces.unlink(missing_ok=True)
        return model

    history, _ = fit(learner_of(creator), 23, epochs=2)
    assert 0 < history.epochs[-1]["train_accuracy"] <= 1
    assert traces.read_text().split() == ["traced"]


def of_two_inputs(config: dict[str, Any]) -> Any:
    """Return a Sequential without inputs and outputs of its own: Keras makes none for several inputs."""
    model = keras.Sequential([keras.layers.Concatenate(), keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")])
    model.compile("sgd", loss="binary_crossentropy", metrics=["accuracy"])
    return model


def of_any_width(config: dict[str, Any]) -> Any:
    """Return a model with as many outputs as inputs, however many these are."""
    x = keras.Input((None,))
    weighed = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Reshape((-1, 1))(x))
    model = keras.Model(x, keras.layers.Softmax()(keras.layers.Reshape((-1,))(weighed)))
    model.compile("sgd", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def of_two_heads(config: dict[str, Any]) -> Any:
    """Return a Sequential whose last layer has two outputs."""
    x = keras.Input((4,))
    heads = [keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")(x) for _ in range(2)]
    model = keras.Sequential([keras.Input((4,)), keras.Model(x, heads)])
    model.compile("sgd", loss=["mse", "mse"], metrics=[["accuracy"], ["mae"]])
    return model


@pytest.mark.parametrize(
    ("creator", "x", "y"),
    [
        (of_two_inputs, (X[:, :2], X[:, 2:]), Y[:, None]),
        (of_any_width, X, X.argmax(axis=1)[:, None]),
        (of_two_heads, X, (Y[:, None], Y[:, None])),
    ],
)
def test_metrics_are_those_of_keras_where_outputs_are_not_known_before(creator: Any, x: Any, y: Any) -> None:
    job = FitJob(learner_of(creator), FitPlan(batch_size=8, shuffle=False), (), None)
    history, _ = LocalEngine(1).run(job, shards_of([(x, y)]), Settings())[0]
    logs = creator({}).fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    ours = {name: history.epochs[0][f"train_{name}"] for name in logs}
    assert ours == pytest.approx({name: values[0] for name, values in logs.items()}, abs=1e-5)


@pytest.mark.parametrize(
    ("model", "compile_args", "message"),
    [
        (None, None, "there is no model"),
        ("model.keras", None, "must be a Keras model or a function .*; got str"),
        (scorer, {"loss": "mse"}, "compile_args_creator must be a function .*; got dict"),
    ],
)
def test_wrong_kinds_are_refused_before_anything_travels(model: Any, compile_args: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        learner_of(model, compile_args)


def test_seed_decides_the_first_weights_and_nothing_of_the_callers_draws() -> None:
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    first, again, other = (learner_of().initial_state(seed).payload["models"][0] for seed in (1, 1, 2))
    assert np.random.random() == expected
    assert all((left == right).all() for left, right in zip(first, again, strict=True))
    assert (first[0] != other[0]).any()


def test_rank_without_rows_changes_nothing() -> None:
    start = learner_of().initial_state(0)
    history, state = fit(learner_of(), 23, state=start, epochs=2)
    beside, same = fit(learner_of(), 23, 0, state=start, epochs=2)
    for left, right in zip(state.payload["models"][0], same.payload["models"][0], strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)
    for line, other in zip(history.epochs, beside.epochs, strict=True):
        assert line == pytest.approx(other, rel=1e-5)


def test_metrics_that_are_no_means_merge_exactly() -> None:
    start = learner_of().initial_state(0)
    model = learner_of().build(start)
    loss, auc = model.evaluate(X, Y, verbose=0)
    for sizes in ((20, 3), (0, 23)):
        job = EvaluateJob(learner_of(), 8, (), start)
        reduced, _, (_, output) = LocalEngine(len(sizes)).run(job, parts(*sizes), Settings())[0]
        assert reduced == pytest.approx({"num_samples": 23, "val_loss": loss, "val_auc": auc}, rel=1e-5)
        assert output == OutputSpec((("float32", (1,)),), output.structure)


def test_state_tells_what_rows_and_answers_look_like_and_how_far_training_came() -> None:
    _, state = fit(learner_of(), 12, 11, epochs=2)
    assert state.input is not None and state.output is not None
    assert (state.input.heads, state.output.heads) == ((("float32", (4,)),), (("float32", (1,)),))
    assert (state.epoch, state.steps) == (2, 6)
    assert state.for_answers().payload.keys() == {"models"}


def test_optimizer_goes_on_where_it_was() -> None:
    start = learner_of().initial_state(0)
    adam = learner_of(compile_args=lambda config: {"optimizer": keras.optimizers.Adam(0.05), "loss": "mse"})
    _, whole = fit(adam, 23, epochs=3, state=start)
    _, half = fit(adam, 23, epochs=1, state=start)
    _, rest = fit(adam, 23, epochs=2, state=half)
    for left, right in zip(whole.payload["models"][0], rest.payload["models"][0], strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)
    assert (rest.epoch, rest.steps) == (whole.epoch, whole.steps) == (3, 9)


@pytest.mark.in_rank
def test_model_that_runs_eagerly_or_in_half_precision_answers() -> None:
    def half(config: Any) -> Any:
        policy = "mixed_bfloat16"
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, dtype=policy)])

    def eager(config: Any) -> Any:
        model = scorer(config)
        model.compile(run_eagerly=True)
        return model

    for creator in (half, eager):
        learner = learner_of(creator)
        state = learner.initial_state(0)
        answers = PredictJob.of(learner, state, 8)(X)
        assert answers.dtype == np.float32
        own = np.asarray(learner.build(state)(X)).astype(np.float32)
        np.testing.assert_allclose(answers, own, atol=1e-2 if creator is half else 1e-6)


def test_values_and_names_that_do_not_fit_are_said() -> None:
    def named(config: Any) -> Any:
        inputs = {name: keras.Input((1,), name=name) for name in ("a", "b")}
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(list(inputs.values()))))

    learner = learner_of(named)
    job = PredictJob.of(learner, learner.initial_state(0), 8)
    with pytest.raises(DataError, match=r"inputs are named \['a', 'b'\]; got the feature columns \[\]"):
        job((X[:, 0], X[:, 1]))
    plain = PredictJob.of(learner_of(), learner_of().initial_state(0), 8)
    with pytest.raises(DataError, match="cannot take values of type datetime64"):
        plain(np.zeros((2, 4), "datetime64[s]"))
    with pytest.raises(WorkerFailed, match="the model is not compiled"):
        fit(learner_of(named), 12, 11)


@pytest.mark.parametrize("family", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_columns_named_as_the_inputs_meet_them_by_name(family: Any, caplog: pytest.LogCaptureFixture) -> None:
    def creator(config: Any) -> Any:
        a, b = family.Input((1,), name="a"), family.Input((1,), name="b")
        return family.Model([a, b], family.layers.Dense(1)(family.layers.Concatenate()([a, b])))

    def predict(names: tuple[str, ...], columns: Any) -> Any:
        learner = replace(learner_of(creator), features=names)
        return PredictJob.of(learner, learner_of(creator).initial_state(0), 8)(columns)

    a, b = X[:, :1], X[:, 1:2]
    expected = predict((), (a, b))
    for names, columns in ((("a", "b"), (a, b)), (("b", "a"), (b, a)), (("x", "y"), (a, b))):
        np.testing.assert_array_equal(predict(names, columns), expected)
    assert not np.allclose(predict(("y", "x"), (b, a)), expected)
    assert "in this order" not in caplog.text
    _warn_of_order.cache_clear()
    np.testing.assert_array_equal(predict(("c", "a"), (a, b)), expected)
    assert "['c', 'a'] meet the model's ['a', 'b'] in this order" in caplog.text


@pytest.mark.parametrize("family", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_stateful_layers_are_refused(family: Any) -> None:
    def creator(config: Any) -> Any:
        inputs = family.Input((4, 1), batch_size=8)
        return family.Model(inputs, family.layers.LSTM(2, stateful=True, name="memory")(inputs))

    for learn in (lambda: learner_of(creator({})), lambda: learner_of(creator).initial_state(0)):
        with pytest.raises(ArgumentError, match=r"the layer 'memory' is stateful.*Give it stateful=False"):
            learn()


def test_optimizer_that_the_model_does_not_hold_is_said_by_the_next_fit() -> None:
    def creator(config: Any) -> Any:
        adam = keras.optimizers.Adam()

        class Stray(keras.Sequential):  # type: ignore[misc]
            def train_step(self, data: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(self(data[0])[:, 0] - data[1]))
                adam.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
                return {"loss": loss}

        model = Stray([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(run_eagerly=True)
        return model

    _, state = fit(learner_of(creator), 16)
    assert len(learner_of(creator).build(state).get_weights()) == 2
    with pytest.raises(WorkerFailed, match="state cannot be kept: Adam, which is no attribute of the model"):
        fit(learner_of(creator), 16, state=state)


def in_pairs(x: Any) -> Any:
    """Return rows that know the row beside them: one row alone has none."""
    return keras.ops.repeat(keras.ops.mean(keras.ops.reshape(x, (-1, 2, 4)), 1), 2, 0)


def squeezed(x: Any) -> Any:
    return keras.ops.squeeze(x)


class Counting(keras.layers.Layer):
    """A layer that counts how often it is called."""

    def build(self, shape: Any) -> None:
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.count.assign_add(1.0)
        return x


@pytest.mark.parametrize(
    ("layer", "rows"),
    [(lambda: keras.layers.Lambda(in_pairs), None), (lambda: keras.layers.Lambda(squeezed, (4,)), None), (Counting, 8)],
    ids=["pairs", "squeezed", "fixed and counted"],
)
def test_looking_at_the_answers_asks_for_no_other_batch_and_leaves_no_trace(layer: Any, rows: int | None) -> None:
    def creator(config: Any) -> Any:
        inputs = keras.Input((4,), batch_size=rows)
        model = keras.Model(inputs, layer()(keras.layers.Dense(4)(inputs)))
        model.compile("sgd", lambda y, outputs: keras.ops.mean(outputs, -1), run_eagerly=True)
        return model

    _, state = fit(learner_of(creator), 16, epochs=2)
    assert state.output is not None and state.output.heads == (("float32", (4,)),)
    counts = [array for array in state.payload["models"][0] if array.shape == ()]
    assert counts == ([4.0] if layer is Counting else [])


def test_validation_mid_epoch_leaves_each_rank_its_own_statistics() -> None:
    def normed(config: dict[str, Any]) -> Any:
        layers = [keras.Input((4,)), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1, "sigmoid")]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), loss="binary_crossentropy", metrics=["accuracy"])
        return model

    rows = [(X[:15], Y[:15]), (X[15:], Y[15:])]
    results = []
    for trigger in (None, TriggerOr(EveryEpoch(), SeveralIteration(2))):
        plan = FitPlan(epochs=2, batch_size=4, shuffle=False, validation_trigger=trigger)
        job = FitJob(KerasLearner.of(normed, None, {}, False), plan, (), None)
        results.append(LocalEngine(2).run(job, shards_of(rows, rows), Settings())[0])
    (whole, expected), (often, state) = results
    assert all(len(line.pop("validations")) > 1 for line in often.epochs)
    assert often.epochs == [pytest.approx(line, rel=1e-6) for line in whole.epochs]
    for one, other in zip(state.payload["models"][0], expected.payload["models"][0], strict=True):
        np.testing.assert_allclose(one, other, 1e-6)
