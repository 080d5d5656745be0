from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
tf_keras = pytest.importorskip("tf_keras")

from orca.errors import ArgumentError  # noqa: E402
from orca.frameworks.keras.optimizers import optimizer_state, set_optimizer_state  # noqa: E402
from orca.frameworks.keras.travel import pack, set_weights, weights_of  # noqa: E402

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32")).astype("float32")
# A program that finds Orca and not the tests.
ALONE = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")}
SCALE = 3.0  # a global that functions below need


class Scale(keras.layers.Layer):
    """Multiply by a weight and by a number."""

    def __init__(self, factor: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = factor

    def build(self, shape: Any) -> None:
        self.weight = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return x * self.weight * self.factor

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factor": self.factor}


@keras.saving.register_keras_serializable(package="travellers")
class Shift(keras.layers.Layer):
    """Add a weight."""

    def build(self, shape: Any) -> None:
        self.weight = self.add_weight(shape=(shape[-1],), initializer=halves, name="shift")

    def call(self, x: Any) -> Any:
        return x + self.weight


def halves(shape: Any, dtype: Any = None) -> Any:
    return keras.ops.full(shape, 0.5, dtype)


def bent(x: Any) -> Any:
    return keras.ops.tanh(x) * SCALE


def distance(y: Any, p: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y - p), axis=-1) * SCALE


class Biggest(keras.metrics.Metric):
    """Keep the biggest error."""

    def __init__(self, name: str = "biggest", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y - p))))

    def result(self) -> Any:
        return self.value


class Tower(keras.Model):
    """A subclassed model whose second layer may be frozen."""

    def __init__(self, width: int = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.width = width
        self.first, self.second = keras.layers.Dense(width, activation=bent), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "width": self.width}


class OldTower(tf_keras.Model):
    """A subclassed model of tf_keras."""

    def __init__(self, width: int = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.width = width
        self.first, self.second = tf_keras.layers.Dense(width, "relu"), tf_keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "width": self.width}


class OldScale(tf_keras.layers.Layer):
    """Multiply by a number."""

    def __init__(self, factor: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x: Any) -> Any:
        return x * self.factor

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factor": self.factor}


def functional() -> Any:
    x = inputs = keras.Input((4,))
    x = Scale(2.0)(x)
    x = Shift()(x)
    x = keras.layers.Dense(3, activation=bent, kernel_initializer=halves, trainable=False)(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.1)(x)
    x = keras.layers.Lambda(lambda x: x * SCALE)(x)
    model = keras.Model(inputs, keras.layers.Dense(1, name="out")(x))
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)),
        loss=distance,
        metrics=[Biggest(), "mae", lambda y, p: keras.ops.mean(y - p) * SCALE],
        weighted_metrics=["mse"],
        loss_weights=[0.5],
        steps_per_execution=2,
        run_eagerly=False,
        jit_compile=False,
    )
    return model


def sequential() -> Any:
    model = keras.Sequential([keras.layers.Dense(3, "relu"), Scale(), keras.layers.Dense(1)])
    model.build((None, 4))
    factor = np.float32(2)  # JSON knows no such number: a closure that Keras cannot write down
    model.compile("sgd", loss=lambda y, p: keras.ops.mean((y - p) ** 2, axis=-1) * factor)
    model.optimizer.learning_rate = 0.07  # not what "sgd" says
    return model


def subclassed() -> Any:
    model = Tower(5)
    model(X)
    model.first.trainable = False
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def old_functional() -> Any:
    x = inputs = tf_keras.Input((4,))
    x = OldScale(2.0)(x)
    x = tf_keras.layers.Dense(3, activation=lambda x: tf.nn.tanh(x) * SCALE, trainable=False)(x)
    x = tf_keras.layers.Lambda(lambda x: tf.reverse(x, [1]) * SCALE)(x)
    model = tf_keras.Model(inputs, tf_keras.layers.Dense(1)(x))
    model.compile("adam", loss=lambda y, p: tf.reduce_mean(tf.abs(y - p)) * SCALE, metrics=["mae"])
    return model


def old_subclassed() -> Any:
    model = OldTower(5)
    model(X)
    model.first.trainable = False
    model.compile(tf_keras.optimizers.legacy.Adam(0.05), "mse", steps_per_execution=2)
    return model


MODELS = [functional, sequential, subclassed, old_functional, old_subclassed]


@pytest.mark.full
@pytest.mark.parametrize("steps", [3, 0], ids=["trained", "fresh"])
def test_models_are_rebuilt_in_a_process_that_knows_none_of_their_classes(
    steps: int, tmp_path: Path, run_program: Callable[..., Any]
) -> None:
    models = {make.__name__: make() for make in MODELS}
    for model in models.values() if steps else ():
        model.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    packed = {key: cloudpickle.dumps(pack(model)) for key, model in models.items()}
    (tmp_path / "packed").write_bytes(cloudpickle.dumps((packed, X, Y)))
    run_program(
        f"""
        import pickle, numpy as np
        packed, x, y = pickle.load(open({str(tmp_path / "packed")!r}, "rb"))
        found = {{}}
        for key, data in packed.items():
            packed = pickle.loads(data)
            model = packed.unpack()
            old = packed.family == "tf_keras"
            found[key] = dict(
                predicted=model.predict(x, verbose=0),
                steps=int(model.optimizer.iterations.numpy()),
                frozen=[layer.trainable for layer in model._flatten_layers()],
                compiled=[model.run_eagerly, model.jit_compile,
                          int(model._steps_per_execution.numpy()) if old else model.steps_per_execution],
                rate=float(model.optimizer.learning_rate.numpy()),
                evaluated=model.evaluate(x, y, verbose=0, return_dict=True),
            )
            model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
            found[key]["after"] = model.get_weights()
        pickle.dump(found, open({str(tmp_path / "found")!r}, "wb"))
        """,
        env=ALONE,
    )
    for key, results in cloudpickle.loads((tmp_path / "found").read_bytes()).items():
        model = models[key]
        at_once = int(model._steps_per_execution.numpy()) if "old" in key else model.steps_per_execution
        assert results["steps"] == steps
        assert results["frozen"] == [layer.trainable for layer in model._flatten_layers()]
        assert not all(results["frozen"]) or key == "sequential"
        assert results["compiled"] == [model.run_eagerly, model.jit_compile, at_once]
        assert results["rate"] == pytest.approx(float(model.optimizer.learning_rate.numpy()))
        np.testing.assert_allclose(results["predicted"], model.predict(X, verbose=0), rtol=1e-4, atol=1e-5)
        ours = model.evaluate(X, Y, verbose=0, return_dict=True)
        assert list(results["evaluated"]) == list(ours)
        assert results["evaluated"] == pytest.approx(ours, rel=1e-4)
        if key != "functional":  # it drops out at random
            model.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
            for one, other in zip(results["after"], model.get_weights(), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_packing_leaves_the_model_as_it_was() -> None:
    model = old_functional()
    names = [layer.function.__name__ for layer in model.layers if isinstance(layer, tf_keras.layers.Lambda)]
    loss = model.loss
    pack(model)
    assert names == ["<lambda>"] == [layer.function.__name__ for layer in model.layers if hasattr(layer, "function")]
    assert loss.__name__ == "<lambda>"
    assert np.isfinite(model.train_on_batch(X, Y)).all()


@pytest.mark.full
def test_a_registered_class_stays_registered(tmp_path: Path, run_program: Callable[..., Any]) -> None:
    model = keras.Sequential([keras.Input((4,)), Shift()])
    (tmp_path / "packed").write_bytes(cloudpickle.dumps(pack(model)))
    run_program(
        f"""
        import pickle
        pickle.load(open({str(tmp_path / "packed")!r}, "rb")).unpack().save({str(tmp_path / "saved.keras")!r})
        """,
        env=ALONE,
    )
    loaded = keras.saving.load_model(tmp_path / "saved.keras")
    assert type(loaded.layers[0]) is Shift
    np.testing.assert_array_equal(loaded.get_weights()[0], np.full(4, 0.5, "float32"))


def test_functions_of_the_same_name_are_told_apart() -> None:
    def twice(factor: float) -> Callable[[Any], Any]:
        def act(x: Any) -> Any:
            return x * factor

        return act

    model = keras.Sequential([keras.Input((4,)), keras.layers.Activation(twice(2)), keras.layers.Activation(twice(5))])
    rebuilt = pack(model).unpack()
    np.testing.assert_allclose(rebuilt.predict(X, verbose=0), X * 10, rtol=1e-6)
    assert [layer.activation.__name__ for layer in model.layers] == ["act", "act"]


def test_classes_of_the_same_name_are_an_error() -> None:
    def scaled() -> Any:
        class Scale(keras.layers.Layer):
            """Another one of that name."""

            def call(self, x: Any) -> Any:
                return x

        return Scale

    model = keras.Sequential([keras.Input((4,)), Scale(), scaled()()])
    with pytest.raises(ArgumentError, match=r"two different classes of the name 'Scale'.*Rename one of them"):
        pack(model)


def test_an_uncompiled_model_and_one_without_weights_travel() -> None:
    rebuilt = pack(keras.Sequential([keras.layers.Dense(2)])).unpack()
    assert not rebuilt.built
    assert not rebuilt.compiled
    rebuilt(X)
    assert [array.shape for array in weights_of(rebuilt)] == [(4, 2), (2,)]


@pytest.mark.in_rank
@pytest.mark.parametrize("family", [keras, tf_keras], ids=lambda family: str(family.__name__))
def test_a_mixed_precision_policy_survives(family: Any) -> None:
    policy = family.mixed_precision.set_global_policy if family is tf_keras else family.config.set_dtype_policy
    policy("mixed_float16")
    try:
        model = Tower() if family is keras else OldTower()
        model(X)
        model.compile("adam", "mse")
    finally:
        policy("float32")
    model.fit(X, Y, verbose=0)
    rebuilt = pack(model).unpack()
    assert [layer.compute_dtype for layer in rebuilt._flatten_layers()] == ["float16"] * 3
    assert "LossScale" in type(rebuilt.optimizer).__name__
    for one, other in zip(optimizer_state(rebuilt) or [], optimizer_state(model) or [], strict=True):
        np.testing.assert_array_equal(one, other)
    current = family.mixed_precision.global_policy() if family is tf_keras else family.config.dtype_policy()
    assert current.name == "float32"


@pytest.mark.in_rank
def test_a_loss_that_was_not_to_be_scaled_is_not() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="mixed")
    model.dtype_policy = "mixed_float16"
    model.compile("adam", "mse", auto_scale_loss=False)
    assert type(pack(model).unpack().optimizer).__name__ == "Adam"


def test_vocabularies_travel() -> None:
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
    model = keras.Sequential([keras.Input((1,), dtype="string"), lookup])
    rebuilt = pack(model).unpack()
    assert np.array(rebuilt(tf.constant([["b"], ["z"]]))).tolist() == [[2], [0]]


class Closed(keras.Model):
    """Have no config."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def call(self, x: Any) -> Any:
        return self.layer(x)


class Stubborn(Tower):
    """Have a compile of its own."""

    def compile(self, speed: float) -> None:  # type: ignore[override]
        super().compile(keras.optimizers.SGD(speed), "mse")


def test_what_cannot_travel_says_to_pass_a_creator() -> None:
    with pytest.raises(ArgumentError, match=r"'tower.*' \(Tower\) is not built.*Pass model_creator"):
        pack(Tower())
    with pytest.raises(ArgumentError, match=r"\(OldTower\) is not built.*Pass model_creator"):
        pack(OldTower())
    closed = Closed(keras.layers.Dense(1))
    closed(X)
    with pytest.raises(ArgumentError, match=r"Closed.*get_config.*Pass model_creator"):
        pack(closed)
    stubborn = Stubborn()
    stubborn(X)
    stubborn.compile(0.1)
    with pytest.raises(ArgumentError, match=r"compile\(\) of its own.*compile_from_config.*Pass model_creator"):
        pack(stubborn)
    with pytest.raises(ArgumentError, match="a Keras model is needed.*got 'model' of type str"):
        pack("model")


def test_weights_of_another_model_are_an_error() -> None:
    one = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.BatchNormalization()], name="one")
    arrays = weights_of(one)
    assert len(arrays) == 6
    arrays[5] = np.full(2, 7, "float32")
    set_weights(one, arrays)
    np.testing.assert_array_equal(weights_of(one)[5], [7, 7])
    with pytest.raises(ArgumentError, match="the model 'one' has 6 weights, but 5 came"):
        set_weights(one, arrays[:5])
    arrays[0] = np.zeros((3, 2), "float32")
    with pytest.raises(
        ArgumentError, match=r"weight 0 of the model 'one' .*kernel.* has the shape \(4, 2\), but .*\(3"
    ):
        set_weights(one, arrays)
    with pytest.raises(ArgumentError, match="has no optimizer to give a state to"):
        set_optimizer_state(one, [])
    assert optimizer_state(one) is None
