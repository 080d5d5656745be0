"""Trust: files of models as an attacker would write them run nothing; those of everyday models are loaded."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
tf_keras = pytest.importorskip("tf_keras")

from orca.errors import ArgumentError  # noqa: E402
from orca.frameworks.keras import trust  # noqa: E402
from orca.frameworks.keras.files import load_model, load_weights, save_model  # noqa: E402

FAMILIES = pytest.mark.parametrize("family", [keras, tf_keras], ids=lambda family: str(family.__name__))
X = np.ones((3, 4), "float32")


def touch(x: Any, path: str) -> Any:
    """A function of a module that is loaded, but that the program did not register."""
    Path(path).touch()
    return x


class Scene:
    """Where an attack takes place: `run` is what code in a file would write; `evil` a module that writes it, too."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        (folder / "evil_module.py").write_text(f"open({str(self.run)!r}, 'w').close()\n")

    def keras(self, layers: list[Any], version: str = "2.15.0", **more: Any) -> str:
        """Write a `.keras` file with these layers, which claims to come from a version of Keras."""
        family = tf_keras if version.startswith("2") else keras
        path = str(self.folder / "net.keras")
        save_model(plain(family), path)
        config = {
            "module": "keras",
            "class_name": "Sequential",
            "config": {"name": "net", "layers": layers},
            "registered_name": None,
            **more,
        }
        return rewritten(path, {"config.json": json.dumps(config)}, version)

    def h5(self, layers: list[Any], family: Any = tf_keras, **attributes: Any) -> str:
        path = str(self.folder / "net.h5")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save_model(plain(family), path)
        with h5py.File(path, "r+") as file:
            config = {"class_name": "Sequential", "config": {"name": "net", "layers": layers}}
            file.attrs["model_config"] = json.dumps(config)
            for name, value in attributes.items():
                file.attrs[name] = json.dumps(value)
        return path

    def saved(self, *layers: Any) -> str:
        path = str(self.folder / "net")
        save_model(tf_keras.Sequential([tf_keras.layers.InputLayer((4,)), *layers]), path)
        return path

    def loads_nothing(self, path: str, match: str, **options: Any) -> None:
        with pytest.raises(ArgumentError, match=match) as error:
            load_model(path, **options)
        assert path in str(error.value)
        assert not self.run.exists()
        assert "evil_module" not in sys.modules


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Scene(tmp_path)
    sys.modules.pop("evil_module", None)


def plain(family: Any) -> Any:
    return family.Sequential([family.layers.InputLayer((4,), name="in"), family.layers.Dense(2, name="out")])


def rewritten(path: str, members: dict[str, str], version: str) -> str:
    """Replace members of a `.keras` file."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content |= {"metadata.json": json.dumps({"keras_version": version}).encode()}
    content |= {name: text.encode() for name, text in members.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def layer(name: str, config: dict[str, Any], module: str | None = "keras.layers", **more: Any) -> dict[str, Any]:
    return {"module": module, "class_name": name, "config": config, "registered_name": None, **more}


def first() -> dict[str, Any]:
    return layer("InputLayer", {"batch_input_shape": [None, 4], "name": "in"})


def dense(**config: Any) -> dict[str, Any]:
    return layer("Dense", {"name": "out", "units": 2, **config})


def function(name: str | None, module: str | None, registered: str | None = None) -> dict[str, Any]:
    return {"module": module, "class_name": "function", "config": name, "registered_name": registered}


NAMES = r"names {!r}, a class or function that is not known here\. Pass custom_objects=.*or register it"
CODE = "would run code from the file. If you trust it, pass safe_mode=False"


def bytecode(scene: Scene) -> dict[str, Any]:
    """Return the config of a Lambda of Keras 2 whose bytecode writes the mark."""
    path = str(scene.run)
    made = tf_keras.layers.Lambda(lambda x, path=path: (open(path, "w").close(), x)[1], output_shape=(4,), name="x")
    return json.loads(json.dumps(made.get_config()))


OLD_FILES: dict[str, tuple[Callable[[Scene], str], str]] = {
    "function of a loaded module": (
        lambda scene: scene.keras(
            [
                first(),
                layer(
                    "Lambda",
                    {
                        "name": "x",
                        "function": function("touch", __name__, "touch"),
                        "function_type": "function",
                        "module": __name__,
                        "output_shape": None,
                        "output_shape_type": "raw",
                        "output_shape_module": None,
                        "arguments": {"path": str(scene.run)},
                    },
                ),
            ]
        ),
        NAMES.format("touch"),
    ),
    "class of a module that is imported": (
        lambda scene: scene.keras([first(), layer("Dense", {"units": 2}, "evil_module", registered_name="Dense")]),
        NAMES.format("Dense"),
    ),
    "function of a module that is imported": (
        lambda scene: scene.keras([first(), dense(activation=function("relu", "evil_module", "relu"))]),
        NAMES.format("relu"),
    ),
    "function without a config": (
        lambda scene: scene.keras(
            [
                first(),
                dense(activation={"class_name": "function", "module": "evil_module", "registered_name": "relu"}),
            ]
        ),
        NAMES.format("relu"),
    ),
    "registered name of another module": (
        lambda scene: scene.keras([first(), dense(activation=function("relu", "keras.activations", "system"))]),
        NAMES.format("system"),
    ),
    "specification of a type": (
        lambda scene: scene.keras(
            [first(), dense()],
            build_config={
                "input_shape": {
                    "class_name": "__typespec__",
                    "spec_name": "TensorSpec",
                    "module": "evil_module",
                    "registered_name": None,
                    "config": [],
                }
            },
        ),
        NAMES.format("TensorSpec"),
    ),
    "mark of a value with a module": (
        lambda scene: scene.keras([first(), dense(bias_initializer=layer("__slice__", {}, "evil_module"))]),
        NAMES.format("__slice__"),
    ),
    "loss of compile": (
        lambda scene: scene.keras(
            [first(), dense()], compile_config={"optimizer": "sgd", "loss": function("loss", "evil_module")}
        ),
        NAMES.format("loss"),
    ),
    "shared object": (
        lambda scene: scene.keras(
            [first(), dense(kernel_initializer=layer("Zeros", {}, "evil_module", shared_object_id=1))]
        ),
        NAMES.format("Zeros"),
    ),
    "nested model": (
        lambda scene: scene.keras(
            [
                first(),
                layer(
                    "Sequential",
                    {"name": "deep", "layers": [first(), layer("Dense", {"units": 2}, "evil_module")]},
                    "keras",
                ),
            ]
        ),
        NAMES.format("Dense"),
    ),
    "function of tensorflow": (
        lambda scene: scene.keras(
            [first(), layer("TFOpLambda", {"name": "x", "function": "io.write_file"}, "keras.layers")],
        ),
        NAMES.format("TFOpLambda") + "|" + CODE,
    ),
    "loader of Keras as a layer": (
        lambda scene: scene.keras([first(), layer("load_model", {}, "keras.models")]),
        NAMES.format("load_model"),
    ),
    "bytecode": (lambda scene: scene.keras([first(), layer("Lambda", bytecode(scene))]), CODE),
    "bytecode with an escape": (
        lambda scene: rewritten(
            scene.keras([first(), layer("Lambda", bytecode(scene))]),
            {
                "config.json": zipfile.ZipFile(scene.folder / "net.keras")
                .read("config.json")
                .decode()
                .replace('"lambda"', r'"\u006cambda"')
            },
            "2.15.0",
        ),
        CODE,
    ),
    "function of no name": (
        lambda scene: scene.keras([first(), dense(activation=function(None, "evil_module", "function"))]),
        NAMES.format("function"),
    ),
    "class that is no name": (lambda scene: scene.keras([first(), layer(["Dense"], {})]), "has no plain name"),  # type: ignore[arg-type]
    "vocabulary of a path": (
        lambda scene: scene.keras([first(), layer("StringLookup", {"name": "x", "vocabulary": "/etc/passwd"})]),
        "would read the file '/etc/passwd'",
    ),
}


@pytest.mark.parametrize("attack", OLD_FILES)
def test_a_file_that_claims_keras_2_runs_and_imports_nothing(scene: Scene, attack: str) -> None:
    write, match = OLD_FILES[attack]
    scene.loads_nothing(write(scene), match)


NEW_LAMBDA = {"class_name": "__lambda__", "config": {"code": "4wEAAAA=", "defaults": None, "closure": None}}
NEW_FILES: dict[str, tuple[list[Any], str]] = {
    "download as a layer": (
        [layer("get_file", {"origin": "http://127.0.0.1"}, "keras.utils")],
        NAMES.format("get_file"),
    ),
    "leaving safe mode": (
        [layer("enable_unsafe_deserialization", {}, "keras.config")],
        NAMES.format("enable_unsafe_deserialization"),
    ),
    "old layer in a new file": ([{"class_name": "Lambda", "config": {"function": ["4wEAAAA=", None, None]}}], CODE),
    "lambda": ([layer("Lambda", {"name": "x", "function": NEW_LAMBDA})], CODE),
    "lambda as an activation": ([dense(activation=NEW_LAMBDA)], CODE),
    "bare name of a loader": ([layer("Lambda", {"name": "x", "function": "deserialize"})], NAMES.format("deserialize")),
    "pickle of torch": (
        [layer("TorchModuleWrapper", {"module": "gASV"}, "keras.layers")],
        NAMES.format("TorchModuleWrapper") + "|" + CODE,
    ),
    "SavedModel elsewhere": ([layer("TFSMLayer", {"filepath": "/tmp/other"}, "keras.layers")], CODE),
    "vocabulary of a path": (
        [layer("TextVectorization", {"name": "x", "vocabulary": "/etc/passwd"})],
        "would read the file '/etc/passwd'",
    ),
    "module that is not there yet": ([layer("Dense", {"units": 2}, "keras.nothing")], NAMES.format("Dense")),
    "callback": ([layer("CSVLogger", {"filename": "/tmp/x"}, "keras.callbacks")], NAMES.format("CSVLogger")),
}


@pytest.mark.parametrize("attack", NEW_FILES)
def test_a_file_of_keras_3_is_judged_the_same_way(scene: Scene, attack: str) -> None:
    layers, match = NEW_FILES[attack]
    begin = layer("InputLayer", {"batch_shape": [None, 4], "name": "in"})
    scene.loads_nothing(scene.keras([begin, *layers], "3.9.0"), match)


@pytest.mark.parametrize("part", ["model", "loss"])
def test_a_saved_model_elsewhere_is_not_loaded(scene: Scene, part: str) -> None:
    """The layer of Keras 2 that loads one is not public; a file may name it all the same."""
    run = str(scene.run)

    class Served(tf.Module):  # type: ignore[name-defined,misc]
        @tf.function(input_signature=[tf.TensorSpec((None, 4))])
        def serve(self, x: Any) -> Any:
            with tf.control_dependencies([tf.io.write_file(run, "x")]):
                return tf.identity(x)

    tf.saved_model.save(Served(), str(scene.folder / "served"))
    reloaded = layer("ReloadedLayer", {"filepath": str(scene.folder / "served")}, "keras.src.export.export_lib")
    config = {"compile_config": {"optimizer": "sgd", "loss": reloaded}} if part == "loss" else reloaded
    scene.loads_nothing(scene.keras([first(), dense()], **config), CODE)


@FAMILIES
def test_no_other_class_of_keras_takes_a_path(family: Any) -> None:
    """A new one that does needs a judgement of its own."""
    words = {"path", "file", "filepath", "filename", "file_path", "url", "directory", "folder"}
    takers = {
        kind.__name__
        for kind in trust._classes(family.__name__)
        if words & set(inspect.signature(kind.__init__).parameters)  # type: ignore[misc]
    }
    assert takers <= trust._RUNNING


@pytest.mark.parametrize("key", ["model_config", "training_config"])
def test_bytecode_in_an_h5_file_does_not_run_however_its_type_is_spelt(scene: Scene, key: str) -> None:
    path = scene.h5([first(), layer("Lambda", bytecode(scene))] if key == "model_config" else [first(), dense()])
    with h5py.File(path, "r+") as file:
        if key == "model_config":
            file.attrs[key] = str(file.attrs[key]).replace('"lambda"', r'"\u006cambda"')
        else:
            loss = layer("Lambda", bytecode(scene))
            config = {"optimizer_config": {"class_name": "SGD", "config": {}}, "loss": loss, "loss_weights": None}
            file.attrs[key] = json.dumps(config).replace('"lambda"', r'"\u006cambda"')
    scene.loads_nothing(path, CODE)


@FAMILIES
def test_an_h5_file_calls_no_function_of_its_choice(scene: Scene, family: Any) -> None:
    for name in ("deserialize", "get_file", "load_model", "tf"):
        scene.loads_nothing(scene.h5([first(), {"class_name": name, "config": {}}], family), NAMES.format(name))
    call = {"name": "x", "function": "io.write_file", "inbound_nodes": [["in", 0, 0, {"contents": "x"}]]}
    if family is tf_keras:
        scene.loads_nothing(scene.h5([first(), {"class_name": "TFOpLambda", "config": call}]), CODE)


def test_bytecode_in_a_saved_model_does_not_run(scene: Scene) -> None:
    from tf_keras.protobuf.saved_metadata_pb2 import SavedMetadata

    run = str(scene.run)
    path = scene.saved(tf_keras.layers.Lambda(lambda x, run=run: (open(run, "w").close(), x)[1]))
    scene.run.unlink(missing_ok=True)  # saving calls the layer
    file = Path(path, "keras_metadata.pb")
    metadata = SavedMetadata.FromString(file.read_bytes())
    for node in metadata.nodes:
        node.metadata = node.metadata.replace('"lambda"', r'"\u006cambda"')
    file.write_bytes(metadata.SerializeToString())
    scene.loads_nothing(path, CODE)
    file.write_bytes(b"")
    scene.loads_nothing(path, "its keras_metadata.pb is empty")


def test_a_graph_in_a_saved_model_touches_no_files(scene: Scene) -> None:
    run = str(scene.run)

    class Writes(tf_keras.layers.Layer):
        def call(self, x: Any) -> Any:
            with tf.control_dependencies([tf.io.write_file(run, "x")]):
                return tf.identity(x)

    path = scene.saved(Writes())
    scene.loads_nothing(path, r"holds code \(TensorFlow's operation WriteFile\).*" + CODE)


def test_what_a_file_says_twice_is_refused(scene: Scene) -> None:
    path = scene.keras([first(), dense()])
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("config.json", json.dumps(layer("Sequential", {"layers": []}, "evil_module")))
    scene.loads_nothing(path, "holds 'config.json' twice|Dense|Sequential")
    path = scene.keras([first(), dense()])
    text = (
        zipfile.ZipFile(path)
        .read("config.json")
        .decode()
        .replace('"module": "keras"', '"module": "evil", "module": "keras"')
    )
    scene.loads_nothing(rewritten(path, {"config.json": text}, "2.15.0"), "'module' is there twice")


@pytest.mark.parametrize("how", ["link", "external", "virtual"])
def test_an_h5_file_reads_no_other_file(scene: Scene, how: str) -> None:
    path, other = scene.h5([first(), dense()]), scene.folder / "other.h5"
    with h5py.File(other, "w") as file:
        file["secret"] = np.ones(2)
    with h5py.File(path, "r+") as file:
        if how == "link":
            file["model_weights/more"] = h5py.ExternalLink(str(other), "secret")
        elif how == "external":
            file.create_dataset("model_weights/more", (2,), "f8", external=[(str(other), 0, 16)])
        else:
            layout = h5py.VirtualLayout((2,), "f8")
            layout[:] = h5py.VirtualSource(str(other), "secret", (2,))
            file["model_weights"].create_virtual_dataset("more", layout)
    scene.loads_nothing(path, "refers to another file of this machine at 'model_weights/more'")
    with pytest.raises(ArgumentError, match="refers to another file"):
        load_weights(plain(tf_keras), path)


class Pickled:
    """An object whose pickle touches a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@FAMILIES
def test_arrays_of_objects_are_not_unpickled(scene: Scene, monkeypatch: pytest.MonkeyPatch, family: Any) -> None:
    path = str(scene.folder / "net.keras")
    save_model(plain(family), path)
    arrays = BytesIO()
    np.savez(arrays, layer=np.array([Pickled(scene.run)], object))
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist() if not name.endswith(".h5")}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**content, "model.weights.npz": arrays.getvalue()}.items():
            archive.writestr(name, data)
    load = np.load
    monkeypatch.setattr(  # as of versions of Keras that unpickle
        np, "load", lambda file, allow_pickle=True: load(file, allow_pickle=allow_pickle)
    )
    scene.loads_nothing(path, "would run code from the file")
    with pytest.raises(ArgumentError, match="would run code from the file"):
        load_weights(plain(family), path)
    assert not scene.run.exists()


def everyday(family: Any, metric: Any) -> Any:
    """Return a model of many of the things that models are made of."""
    layers = family.layers
    word = layers.Input((1,), dtype="string", name="word")
    given = layers.Input((6, 4), name="given")
    looked = layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(word)
    x = layers.Bidirectional(layers.LSTM(2, return_sequences=True))(given)
    x = layers.MultiHeadAttention(1, 2)(x, x)
    x = layers.Dense(3, activation=family.activations.gelu, kernel_regularizer="l2", bias_initializer="ones")(x)
    shared = family.Sequential([layers.InputLayer((3,)), layers.Dense(3, kernel_constraint="max_norm"), layers.ReLU()])
    pooled = layers.GlobalAveragePooling1D()(x)
    outputs = layers.Concatenate()([shared(pooled), shared(pooled), looked])
    if family is tf_keras:
        outputs = tf.concat([outputs * 2.0, tf.nn.relu(outputs)[:, :1]], 1)
    model = family.Model([word, given], layers.Dense(1, name="last")(outputs))
    schedule = family.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model.compile(family.optimizers.Adam(schedule), "mse", metrics=[metric])
    return model


@FAMILIES
@pytest.mark.parametrize("name", ["net.keras", "net.h5"])
def test_everyday_models_are_loaded(tmp_path: Path, family: Any, name: str) -> None:
    # Keras 3 does not read objects of metrics from its .h5 files.
    model = everyday(family, "mae" if name.endswith(".h5") else family.metrics.RootMeanSquaredError())
    save_model(model, str(tmp_path / name))
    loaded = load_model(str(tmp_path / name))
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert type(loaded.optimizer).__name__ == "Adam"


def test_a_saved_model_with_a_class_that_is_not_known_runs_its_graph(scene: Scene) -> None:
    class Tripled(tf_keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x * 3

    loaded = load_model(scene.saved(Tripled()))
    np.testing.assert_array_equal(loaded(X), X * 3)


@FAMILIES
def test_classes_and_functions_of_the_program_are_found_where_it_put_them(tmp_path: Path, family: Any) -> None:
    class Scaled(family.layers.Layer):  # type: ignore[name-defined,misc]
        def call(self, x: Any) -> Any:
            return x * 2

    def halved(x: Any) -> Any:
        return x / 2

    def net(*more: Any) -> Any:
        return family.Sequential([family.layers.InputLayer((4,)), Scaled(), *more])

    save_model(net(family.layers.Activation(halved)), str(tmp_path / "passed.keras"))
    with pytest.raises(ArgumentError, match=NAMES.format("Scaled") + "|" + NAMES.format("halved")):
        load_model(str(tmp_path / "passed.keras"))
    loaded = load_model(str(tmp_path / "passed.keras"), {"Scaled": Scaled, "halved": halved})
    np.testing.assert_array_equal(loaded(X), X)
    register, registry = family.saving.register_keras_serializable, family.saving.get_custom_objects()
    register("tests")(Scaled)
    register("tests")(halved)
    try:
        save_model(net(family.layers.Activation(halved)), str(tmp_path / "registered.keras"))
        np.testing.assert_array_equal(load_model(str(tmp_path / "registered.keras"))(X), X)
        save_model(net(), str(tmp_path / "registered.h5"))
        np.testing.assert_array_equal(load_model(str(tmp_path / "registered.h5"))(X), X * 2)
    finally:
        for name in ("tests>Scaled", "tests>halved"):
            del registry[name]


def test_a_file_that_is_trusted_runs_its_code(scene: Scene) -> None:
    path = scene.h5([first(), layer("Lambda", bytecode(scene))])
    with contextlib.suppress(ArgumentError):  # its weights are those of another model
        load_model(path, safe_mode=False)
    assert scene.run.exists()


@FAMILIES
@pytest.mark.parametrize("name", ["net.keras", "net.h5"])  # a loss in an .h5 file is a bare name
def test_a_loss_that_is_not_known_matters_to_compiling_alone(tmp_path: Path, family: Any, name: str) -> None:
    def distance(y: Any, predictions: Any) -> Any:
        return abs(y - predictions)

    model, path = plain(family), str(tmp_path / name)
    model.compile("sgd", loss=distance)
    save_model(model, path)
    np.testing.assert_array_equal(load_model(path, compile=False)(X), model(X))
    if name == "net.keras":
        with pytest.raises(ArgumentError, match=NAMES.format("distance")):
            load_model(path)
    assert load_model(path, {"distance": distance}).loss is not None


def test_a_class_of_the_program_does_not_let_one_of_keras_pass(scene: Scene) -> None:
    path = scene.keras([first(), layer("Lambda", bytecode(scene))])
    scene.loads_nothing(path, CODE, custom_objects={"Lambda": tf_keras.layers.Dense})
