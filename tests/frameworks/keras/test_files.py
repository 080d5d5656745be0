from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
tf_keras = pytest.importorskip("tf_keras")

from orca.core.state import OutputSpec, State  # noqa: E402
from orca.errors import ArgumentError  # noqa: E402
from orca.frameworks.keras.files import (  # noqa: E402
    load_model,
    load_weights,
    save_model,
    save_weights,
)
from orca.frameworks.keras.optimizers import optimizer_state  # noqa: E402
from orca.storage.checkpoints import latest_checkpoint  # noqa: E402
from orca.storage.states import load_state, save_state  # noqa: E402

FAMILIES = pytest.mark.parametrize("family", [keras, tf_keras], ids=lambda family: str(family.__name__))
X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def trained(family: Any, name: str = "net") -> Any:
    model = family.Sequential(
        [
            family.layers.InputLayer((4,)),
            family.layers.Dense(3, "relu", name="first"),
            family.layers.BatchNormalization(name="norm"),
            family.layers.Dense(1, name="last"),
        ],
        name=name,
    )
    model.compile(family.optimizers.Adam(0.02), "mse", metrics=["mae"])
    model.run_eagerly = True  # to trace takes longer than a step
    model.train_on_batch(X, Y)
    model.run_eagerly = False
    return model


def same(one: Any, other: Any) -> None:
    for ours, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture
def memory() -> Any:
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@FAMILIES
@pytest.mark.parametrize(
    ("name", "save_format"),
    [
        ("net.keras", None),
        ("deep/er/net.h5", None),
        ("folder", None),
        ("folder.v1", "tf"),
        ("net", "keras"),
        ("net.model", "h5"),
    ],
)
def test_a_model_comes_back_with_its_optimizer(tmp_path: Path, family: Any, name: str, save_format: str | None) -> None:
    model, path = trained(family), str(tmp_path / name)
    save_model(model, path, save_format=save_format)
    loaded = load_model(path)
    assert isinstance(loaded, family.Model)
    same(loaded, model)
    assert [entry for entry in os.listdir(os.path.dirname(path))] == [os.path.basename(path)]  # no draft
    for one, other in zip(optimizer_state(loaded) or [], optimizer_state(model) or [], strict=True):
        np.testing.assert_allclose(one, other)
    assert loaded.evaluate(X, Y, verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0))


@FAMILIES
@pytest.mark.parametrize("name", ["net.keras", "net.h5", "folder"])
def test_a_model_saved_without_its_optimizer_is_not_compiled(tmp_path: Path, family: Any, name: str) -> None:
    model, path = trained(family), str(tmp_path / name)
    save_model(model, path, include_optimizer=False)
    loaded = load_model(path)
    same(loaded, model)
    assert getattr(loaded, "optimizer", None) is None
    assert b"iteration" not in fsspec.open(path).open().read() if name == "net.keras" else True
    assert getattr(load_model(path, compile=False), "optimizer", None) is None


def test_a_folder_of_keras_3_can_be_served_too(tmp_path: Path) -> None:
    model = trained(keras)
    save_model(model, str(tmp_path / "net"))
    served = tf.saved_model.load(str(tmp_path / "net"))
    np.testing.assert_allclose(served.serve(tf.constant(X)).numpy(), model.predict(X, verbose=0), rtol=1e-5)
    os.remove(tmp_path / "net" / "model.keras")
    with pytest.raises(ArgumentError, match="exported for serving: it holds no Keras model.*TFSMLayer"):
        load_model(str(tmp_path / "net"))


@FAMILIES
def test_signatures_are_kept_in_a_saved_model_alone(tmp_path: Path, family: Any) -> None:
    model = trained(family)

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
    def double(x: Any) -> dict[str, Any]:
        return {"doubled": model(x) * 2}

    save_model(model, str(tmp_path / "net"), signatures={"double": double})
    served = tf.saved_model.load(str(tmp_path / "net")).signatures["double"]
    np.testing.assert_allclose(served(tf.constant(X))["doubled"], model.predict(X, verbose=0) * 2, rtol=1e-5)
    with pytest.raises(ArgumentError, match="signatures and options belong to a SavedModel.*Pass save_format='tf'"):
        save_model(model, str(tmp_path / "net.keras"), signatures={"double": double})


@FAMILIES
@pytest.mark.parametrize("name", ["net.keras", "net.h5", "net"])
def test_any_file_system_holds_models(memory: Any, family: Any, name: str) -> None:
    model, path = trained(family), f"memory://models/{name}"
    save_model(trained(family), path)
    save_model(model, path)
    same(load_model(path), model)
    with pytest.raises(ArgumentError, match="exists already and overwrite is False. Pass another path"):
        save_model(model, path, overwrite=False)


def test_a_file_system_that_renames_gets_a_draft_first(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orca.storage.files._RENAMING", {"memory"})
    model = trained(keras)
    for path in ("memory://models/net.keras", "memory://models/net"):
        save_model(trained(keras), path)
        save_model(model, path)
        same(load_model(path), model)
    assert sorted(memory.ls("/models", detail=False)) == ["/models/net", "/models/net.keras"]


def test_a_failed_save_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = trained(keras), str(tmp_path / "net")
    save_model(model, path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(type(fsspec.filesystem("file")), "put_file", full)
    with pytest.raises(ArgumentError, match="the model 'net' cannot be saved to .* as tf: OSError: disk full"):
        save_model(trained(keras), path)
    same(load_model(path), model)
    assert os.listdir(tmp_path) == ["net"]


def test_a_folder_with_other_things_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for save in (lambda path: save_model(trained(keras), path), lambda path: save_state(some_state(), path, "keras")):
        with pytest.raises(ArgumentError, match="holds other things.*'thesis.txt' for example.*of its own"):
            save(str(tmp_path))
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


class Tripled(keras.layers.Layer):
    """A layer that only this module knows."""

    def call(self, x: Any) -> Any:
        return x * 3


@pytest.mark.parametrize("name", ["net.keras", "net.h5"])
def test_a_class_that_is_not_known_is_named(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    save_model(keras.Sequential([keras.Input((4,)), Tripled()]), path)
    with pytest.raises(
        ArgumentError, match="names 'Tripled', a class or function that is not known here. Pass custom_"
    ):
        load_model(path)
    np.testing.assert_allclose(load_model(path, {"Tripled": Tripled}).predict(X, verbose=0), X * 3, rtol=1e-6)


@FAMILIES
@pytest.mark.parametrize("name", ["net.keras", "net.h5", "net"])
def test_a_lambda_is_loaded_only_when_trusted(tmp_path: Path, family: Any, name: str) -> None:
    path = str(tmp_path / name)
    save_model(family.Sequential([family.layers.InputLayer((4,)), family.layers.Lambda(lambda x: x * 3)]), path)
    with pytest.raises(ArgumentError, match="would run code from the file. If you trust it, pass safe_mode=False"):
        load_model(path)
    np.testing.assert_allclose(load_model(path, safe_mode=False).predict(X, verbose=0), X * 3, rtol=1e-6)


def test_what_is_no_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no saved model at .*nothing.keras"):
        load_model(str(tmp_path / "nothing.keras"))
    (tmp_path / "text.keras").write_text("not a model")
    with pytest.raises(ArgumentError, match="text.keras is no Keras model: neither a .keras nor an HDF5 file"):
        load_model(str(tmp_path / "text.keras"))
    save_model(trained(keras), str(tmp_path / "net.keras"))
    (tmp_path / "half.keras").write_bytes((tmp_path / "net.keras").read_bytes()[:3000])
    with pytest.raises(ArgumentError, match="half.keras is no Keras model.*Is it complete"):
        load_model(str(tmp_path / "half.keras"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match="the folder .*empty holds no Keras model: there is no saved_model.pb"):
        load_model(str(tmp_path / "empty"))
    save_weights(trained(keras), str(tmp_path / "net.weights.h5"))
    with pytest.raises(ArgumentError, match="holds weights alone, not a whole model.*use load_weights"):
        load_model(str(tmp_path / "net.weights.h5"))
    with pytest.raises(ArgumentError, match="save_format is 'keras', 'h5' or 'tf'.*got 'onnx'"):
        save_model(trained(keras), str(tmp_path / "net.onnx"), save_format="onnx")


@FAMILIES
@pytest.mark.parametrize(
    ("place", "name"),
    [
        *(("", name) for name in ("net.weights.h5", "net.h5", "net", "net.ckpt")),
        *(("memory://weights", name) for name in ("net.h5", "net")),
    ],
)
def test_weights_come_back(tmp_path: Path, memory: Any, family: Any, place: str, name: str) -> None:
    model, other, path = trained(family), trained(family), f"{place or tmp_path}/deep/{name}"
    save_weights(other, path)
    save_weights(model, path)
    load_weights(other, path)
    same(other, model)
    with pytest.raises(ArgumentError, match="exists already and overwrite is False"):
        save_weights(model, path, overwrite=False)


@FAMILIES
@pytest.mark.parametrize("name", ["net.keras", "net.h5"])
def test_weights_are_taken_from_a_whole_model(tmp_path: Path, family: Any, name: str) -> None:
    model, other = trained(family), trained(family)
    save_model(model, str(tmp_path / name))
    load_weights(other, str(tmp_path / name))
    same(other, model)


@pytest.mark.parametrize("optimizer", [tf_keras.optimizers.legacy.Adam, tf_keras.optimizers.SGD])
def test_checkpoint_of_tensorflow_gives_weights_and_leaves_the_optimizer_alone(tmp_path: Path, optimizer: Any) -> None:
    def made() -> Any:
        model = tf_keras.Sequential([tf_keras.layers.InputLayer((4,)), tf_keras.layers.Dense(1)])
        model.compile(optimizer(0.1), "mse", run_eagerly=True)
        return model

    model, other = made(), made()
    model.train_on_batch(X, Y)
    save_weights(model, str(tmp_path / "net"))
    load_weights(other, str(tmp_path / "net"))
    same(other, model)
    assert int(other.optimizer.iterations) == 0
    other.train_on_batch(X, Y)  # nothing is left to be read from the copy that is gone


@FAMILIES
def test_keras_reads_weights_from_a_file_of_any_of_its_names(tmp_path: Path, family: Any) -> None:
    model = trained(family)
    for name in ("net.weights.h5", *["net.h5", "net.hdf5"] * (family is tf_keras)):
        other, path = trained(family), str(tmp_path / name)
        save_weights(model, path)
        other.load_weights(path)
        same(other, model)


def test_weights_of_keras_have_one_format_whatever_their_name(tmp_path: Path) -> None:
    model, other = trained(keras), trained(keras)
    save_weights(model, str(tmp_path / "net.h5"))
    load_weights(other, str(tmp_path / "net.h5"))
    same(other, model)
    (tmp_path / "net.h5").rename(tmp_path / "net.weights.h5")
    other = trained(keras)
    other.load_weights(tmp_path / "net.weights.h5")
    same(other, model)


def test_weights_of_keras_2_are_matched_by_name(tmp_path: Path) -> None:
    model, other = trained(tf_keras), trained(tf_keras)
    save_weights(model, str(tmp_path / "net.h5"))
    load_weights(other, str(tmp_path / "net.h5"), by_name=True)
    same(other, model)


def test_weights_are_matched_by_name_and_mismatches_skipped(tmp_path: Path) -> None:
    model, path = trained(tf_keras), str(tmp_path / "net.h5")
    save_weights(model, path)
    other = tf_keras.Sequential(
        [
            tf_keras.layers.InputLayer((4,)),
            tf_keras.layers.Dense(3, name="first"),
            tf_keras.layers.Dense(7, name="last"),
        ],
        name="other",
    )
    with pytest.raises(ArgumentError, match="the weights in .*net.h5 do not fit the model 'other'"):
        load_weights(other, path)
    load_weights(other, path, by_name=True, skip_mismatch=True)
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])


def test_weights_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    new, old = trained(keras), trained(tf_keras)
    with pytest.raises(ArgumentError, match="there is no saved weights at|there is no saved weights"):
        load_weights(new, str(tmp_path / "nothing.h5"))
    with pytest.raises(ArgumentError, match="Keras 3 writes no TensorFlow checkpoints"):
        save_weights(new, str(tmp_path / "net"), save_format="tf")
    save_weights(old, str(tmp_path / "net"))
    with pytest.raises(ArgumentError, match="TensorFlow checkpoint, which Keras 3 does not read"):
        load_weights(new, str(tmp_path / "net"))
    (tmp_path / "text.h5").write_text("no weights")
    with pytest.raises(ArgumentError, match="text.h5 holds no weights: neither"):
        load_weights(new, str(tmp_path / "text.h5"))
    wider = keras.Sequential([keras.Input((9,)), keras.layers.Dense(3)], name="wider")
    save_weights(new, str(tmp_path / "net.weights.h5"))
    with pytest.raises(ArgumentError, match="do not fit the model 'wider'"):
        load_weights(wider, str(tmp_path / "net.weights.h5"))


def some_state(epoch: int = 3) -> State:
    model = trained(keras)
    return State(
        epoch=epoch,
        steps=17,
        payload={
            "models": [[*model.get_weights(), np.arange(6.0).reshape(2, 3).T]],
            "optimizers": [optimizer_state(model)],
            "schedulers": [],
        },
        output=OutputSpec((("float32", (1,)),), ("tuple", (), (None, None))),
        position={"step": 5, "rows": [1, 2]},
    )


@pytest.mark.parametrize("place", ["", "memory://states"])
def test_a_checkpoint_comes_back_exactly(tmp_path: Path, memory: Any, place: str) -> None:
    path = f"{place or tmp_path}/deep/epoch-3"
    save_state(some_state(1), path, "keras")
    state = some_state()
    save_state(state, path, "keras")
    loaded = load_state(path, "keras")
    assert (loaded.epoch, loaded.steps, loaded.output, loaded.position) == (3, 17, state.output, state.position)
    assert loaded.payload["schedulers"] == []
    for key in ("models", "optimizers"):
        (ours,), (theirs,) = loaded.payload[key], state.payload[key]
        assert [(a.dtype, a.shape) for a in ours] == [(a.dtype, a.shape) for a in theirs]
        assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))
    if not place:
        assert sorted(os.listdir(path)) == ["optimizer.safetensors", "state.json", "weights.safetensors"]
        assert os.listdir(tmp_path / "deep") == ["epoch-3"]


def test_the_latest_checkpoint_is_the_newest_of_any_kind(tmp_path: Path) -> None:
    assert latest_checkpoint(str(tmp_path / "nothing")) is None
    assert latest_checkpoint(str(tmp_path)) is None
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    (tmp_path / "empty").mkdir()
    assert latest_checkpoint(str(tmp_path)) is None
    new, old, state = trained(keras), trained(tf_keras), some_state()
    saves = {
        "epoch-9": lambda path: save_state(state, path, "keras"),
        "epoch-10.keras": lambda path: save_model(new, path),
        "epoch-11": lambda path: save_model(new, path),
        "epoch-12.weights.h5": lambda path: save_weights(new, path),
        "epoch-13": lambda path: save_model(old, path),
        "epoch-14": lambda path: save_weights(old, path),
        "epoch-2": lambda path: save_state(state, path, "keras"),
    }
    for number, (name, save) in enumerate(saves.items()):
        save(str(tmp_path / name))
        for mark in ("", "/state.json", "/saved_model.pb", ".index"):
            if os.path.isfile(f"{tmp_path}/{name}{mark}"):
                os.utime(f"{tmp_path}/{name}{mark}", (1e9 + number, 1e9 + number))
        assert latest_checkpoint(str(tmp_path)) == str(tmp_path / name)
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "epoch-14")


def test_checkpoints_of_the_same_time_are_ordered_by_number(tmp_path: Path) -> None:
    for name in ("step-9", "step-10"):
        save_state(State(payload={"models": []}), str(tmp_path / name), "keras")
        os.utime(tmp_path / name / "state.json", (1e9, 1e9))
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / "step-10")
