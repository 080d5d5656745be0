"""Files: how a Keras model and its training state are kept. Owns the formats.

The content of a path tells its format, not its name: any name works with any format. Loading runs no code
from a file unless the caller says safe_mode=False; `trust.py` judges what a file names before Keras sees it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h5py
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from orca.errors import ArgumentError
from orca.frameworks.keras.optimizers import assign, is_built, optimizer_state, set_optimizer_state
from orca.frameworks.keras.travel import family_of, library, without_optimizer
from orca.frameworks.keras.trust import check_file, check_storage, would_run_code
from orca.storage import files

H5_SUFFIXES = (".h5", ".hdf5")
_STATE, _SLOTS = files.MARKER, "optimizer.safetensors"
_SAVED, _INSIDE = "saved_model.pb", "model.keras"
_SAVED_MODEL = {_SAVED, _INSIDE, _SLOTS, "keras_metadata.pb", "fingerprint.pb", "variables", "assets", "assets.extra"}


def save_model(
    model: Any,
    path: str,
    *,
    overwrite: bool = True,
    include_optimizer: bool = True,
    save_format: str | None = None,
    signatures: Any = None,
    options: Any = None,
) -> None:
    """Write a whole model: `.keras`, `.h5`, or a folder with a SavedModel.

    A SavedModel of Keras 3 can be served but not be made a model again. So a folder written for Keras 3 holds such a
    SavedModel and, beside it, `model.keras`, which `load_model` reads. The arguments are those of
    `KerasEstimator.save`.
    """
    form, family = _format_of(path, save_format), family_of(model)
    if form != "tf" and (signatures is not None or options is not None):
        raise ArgumentError(
            f"signatures and options belong to a SavedModel, but {path} is to be a {form} file. Pass save_format='tf'.",
            code="not-a-saved-model",
        )

    def write(draft: str) -> None:
        if form == "tf":
            _write_saved_model(model, family, draft, include_optimizer, signatures, options)
        elif form == "h5":
            library(family).models.save_model(model, draft, include_optimizer=include_optimizer)
        else:
            _write_keras(model, family, draft, include_optimizer)

    _refuse_to_overwrite(path, overwrite)
    with _naming(f"the model {model.name!r} cannot be saved to {path} as {form}"):
        _put(path, write, {"tf": "model", "h5": "model.h5", "keras": "model.keras"}[form], _SAVED_MODEL, _SAVED)


def load_model(
    path: str, custom_objects: dict[str, Any] | None = None, compile: bool = True, safe_mode: bool = True
) -> Any:
    """Read a model that save_model, or Keras itself, wrote; the arguments are those of `KerasEstimator.load`."""
    with _local(path, "saved model") as place:
        if os.path.isdir(place):
            return _load_folder(place, path, custom_objects, compile, safe_mode)
        kind = _kind_of(place)
        if kind == "keras":
            family = _family_of_archive(place, path)
        elif kind == "h5":
            family = _family_of_h5(place, path)
        else:
            raise ArgumentError(
                f"{path} is no Keras model: neither a .keras nor an HDF5 file. Is it complete?", code="not-a-keras-file"
            )
        with _named_for(place, "model.keras" if kind == "keras" else "model.h5") as link:
            return _read_model(family, link, path, custom_objects, compile, safe_mode)


def save_weights(model: Any, path: str, overwrite: bool = True, save_format: str | None = None) -> None:
    """Write a model's weights in Keras' own format of `.weights.h5` files, whatever the path.

    Models of tf_keras write HDF5 of Keras 2 to other paths that end in `.h5`, and else a TensorFlow checkpoint.

    Args:
        save_format: "h5" or "tf"; by default the one of the path's ending. Keras 3 has "h5" alone, whatever the path.
    """
    family = family_of(model)
    if save_format not in (None, "h5", "tf", "keras"):
        raise ArgumentError(f"save_format of weights is 'h5' or 'tf'; got {save_format!r}.", code="bad-save-format")
    as_h5 = path.endswith((*H5_SUFFIXES, ".keras")) if save_format is None else save_format != "tf"
    if family == "keras" and save_format == "tf":
        raise ArgumentError(
            "Keras 3 writes no TensorFlow checkpoints: leave save_format out for a .weights.h5 file, or use "
            "tf.train.Checkpoint(model=model).",
            code="bad-save-format",
        )
    with _naming(f"the weights of {model.name!r} cannot be saved to {path}"):
        if as_h5 or family == "keras":
            _refuse_to_overwrite(path, overwrite)
            old = family == "tf_keras" and not path.endswith(".weights.h5")
            _put(path, model.save_weights, "weights.h5" if old else "model.weights.h5")
        else:
            _refuse_to_overwrite(path + ".index", overwrite)
            _put_checkpoint(model, path)


def load_weights(model: Any, path: str, by_name: bool = False, skip_mismatch: bool = False) -> None:
    """Give a model the weights that save_weights, save_model (`.keras`, `.h5`) or Keras wrote.

    Args:
        by_name: Match layers by name, for HDF5 files of Keras 2.
        skip_mismatch: Leave out layers whose weights do not fit.
    """
    family = family_of(model)
    options = {"skip_mismatch": skip_mismatch} | ({"by_name": True} if by_name else {})
    fs, place = files.filesystem(path)
    if not fs.exists(place) and fs.exists(place + ".index"):
        _load_checkpoint_of_tensorflow(model, family, fs, place, path, skip_mismatch)
        return
    with _local(path, "saved weights") as file:
        if os.path.isdir(file):
            raise ArgumentError(
                f"{path} is a folder, not a file of weights. Use load_model or load_checkpoint for it.",
                code="weights-path-is-folder",
            )
        kind = _kind_of(file)
        if kind == "other":
            raise ArgumentError(
                f"{path} holds no weights: neither an HDF5 nor a .keras file. Is it complete?",
                code="not-a-weights-file",
            )
        check_storage(file, path)
        name = "model.keras" if kind == "keras" else ("old.h5" if _is_old_h5(file, path) else "new.weights.h5")
        with _named_for(file, name) as link, _naming(f"the weights in {path} do not fit the model {model.name!r}"):
            model.load_weights(link, **options)


# Writing models.


def _format_of(path: str, save_format: str | None) -> str:
    if save_format is None:
        if path.endswith(".keras"):
            return "keras"
        return "h5" if path.endswith(H5_SUFFIXES) else "tf"
    if save_format not in ("keras", "h5", "tf"):
        raise ArgumentError(
            f"save_format is 'keras', 'h5' or 'tf' (a SavedModel); got {save_format!r}.", code="bad-save-format"
        )
    return save_format


def _write_keras(model: Any, family: str, path: str, include_optimizer: bool) -> None:
    library(family).models.save_model(model, path)
    if not include_optimizer:
        with open(path, "rb") as file:
            data = without_optimizer(file.read())
        with open(path, "wb") as file:
            file.write(data)


def _write_saved_model(
    model: Any, family: str, path: str, include_optimizer: bool, signatures: Any, options: Any
) -> None:
    if family == "tf_keras":
        model.save(path, save_format="tf", include_optimizer=include_optimizer, signatures=signatures, options=options)
        optimizer = model.optimizer if include_optimizer else None
        if optimizer is not None and is_built(optimizer):  # tf_keras gives a loaded model a new one
            slots = {f"0/{number}": array for number, array in enumerate(optimizer_state(model) or [])}
            with open(os.path.join(path, _SLOTS), "wb") as file:
                file.write(save_arrays(slots))
        return
    if signatures is None and options is None:
        model.export(path, verbose=False)
    else:
        import tensorflow as tf

        tf.saved_model.save(model, path, signatures=signatures, options=options)
    _write_keras(model, family, os.path.join(path, _INSIDE), include_optimizer)


def _put_checkpoint(model: Any, path: str) -> None:
    """Write a TensorFlow checkpoint: the data first, then the index that makes it one, then which is the newest."""
    fs, place = files.filesystem(path)
    folder, name = os.path.split(place)
    with tempfile.TemporaryDirectory(prefix="orca-keras-") as draft:
        model.save_weights(os.path.join(draft, name), save_format="tf")
        rank = {f"{name}.index": 1, "checkpoint": 2}
        for file in sorted(os.listdir(draft), key=lambda file: rank.get(file, 0)):
            fs.makedirs(folder, exist_ok=True)
            with files.replacing(fs, f"{folder}/{file}") as target:
                fs.put_file(os.path.join(draft, file), target)


# Reading models.


def _load_folder(place: str, path: str, custom_objects: Any, compile: bool, safe_mode: bool) -> Any:
    if os.path.exists(os.path.join(place, _INSIDE)):
        inside = os.path.join(place, _INSIDE)
        return _read_model(_family_of_archive(inside, path), inside, path, custom_objects, compile, safe_mode)
    if os.path.exists(os.path.join(place, "keras_metadata.pb")):
        model = _read_model("tf_keras", place, path, custom_objects, compile, safe_mode)
        if compile and os.path.exists(os.path.join(place, _SLOTS)):
            with open(os.path.join(place, _SLOTS), "rb") as file, _naming(f"the optimizer in {path} cannot be read"):
                slots = load_arrays(file.read())
            set_optimizer_state(model, [slots[f"0/{number}"] for number in range(len(slots))])
        return model
    if os.path.exists(os.path.join(place, _SAVED)):
        raise ArgumentError(
            f"{path} is a SavedModel that was exported for serving: it holds no Keras model. Load it with "
            "keras.layers.TFSMLayer to predict, or save the model again with save().",
            code="saved-model-for-serving",
        )
    hint = " It is a checkpoint: use load_checkpoint." if os.path.exists(os.path.join(place, _STATE)) else ""
    raise ArgumentError(
        f"the folder {path} holds no Keras model: there is no {_SAVED} in it.{hint}", code="not-a-keras-file"
    )


def _read_model(family: str, place: str, path: str, custom_objects: Any, compile: bool, safe_mode: bool) -> Any:
    if safe_mode:
        check_file(place, path, family, custom_objects, compile)
    # Keras 3 (3.15 still) does not find losses by their short names ("mse") when it compiles from an .h5 itself.
    by_hand = family == "keras" and compile and os.path.isfile(place) and h5py.is_hdf5(place)
    try:
        model = library(family).models.load_model(
            place, custom_objects=custom_objects, compile=compile and not by_hand, safe_mode=safe_mode
        )
        if by_hand:
            _compile_from_h5(model, place, custom_objects)
        return model
    except Exception as error:  # in many ways, from zip files to the user's from_config
        words = " ".join(str(error).split())
        if safe_mode and "safe_mode" in words:
            raise would_run_code(path) from error
        match = re.search(r"(?:[Cc]ould not locate|Unknown) (?:class|function|object|layer|\w+)[ :]*'([^']+)'", words)
        if match:
            raise ArgumentError(
                f"{path} names {match[1]!r}, a class or function that is not known here. Pass "
                f"custom_objects={{{match[1]!r}: ...}}, or register it with register_keras_serializable.",
                code="unknown-class",
            ) from error
        raise ArgumentError(
            f"{path} cannot be read as a model of {family}: {type(error).__name__}: {words}",
            code="model-file-not-readable",
        ) from error


def _compile_from_h5(model: Any, place: str, custom_objects: Any) -> None:
    """Compile a model of Keras 3 as its .h5 file says, and give the optimizer its variables."""
    from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group

    keras = library("keras")
    with h5py.File(place, "r") as file:
        if "training_config" not in file.attrs:
            return
        arguments = json.loads(file.attrs["training_config"])
        weights = load_optimizer_weights_from_hdf5_group(file) if "optimizer_weights" in file else []
        arrays = [array[()] for array in weights]
    with keras.saving.custom_object_scope(custom_objects or {}):
        optimizer = keras.optimizers.deserialize(arguments.pop("optimizer_config"))
        model.compile(optimizer=optimizer, **keras.saving.deserialize_keras_object(arguments))
    if len(arrays) > len(optimizer.variables):
        set_optimizer_state(model, arrays)
    else:  # of an optimizer that has made no step yet, or has no slots
        assign(optimizer.variables[: len(arrays)], arrays, f"the optimizer of {model.name!r}", "variable")


def _kind_of(place: str) -> str:
    if zipfile.is_zipfile(place):
        return "keras"
    return "h5" if h5py.is_hdf5(place) else "other"


def _family_of_archive(place: str, path: str) -> str:
    try:
        with zipfile.ZipFile(place) as archive:
            version = str(json.loads(archive.read("metadata.json"))["keras_version"])
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ArgumentError(
            f"{path} is no .keras file: {type(error).__name__}: {error}. Is it complete?",
            code="model-file-not-readable",
        ) from error
    return _family_of_version(version)


def _family_of_h5(place: str, path: str) -> str:
    with _opened_h5(place, path) as file:
        if "model_config" not in file.attrs:
            raise ArgumentError(
                f"{path} holds weights alone, not a whole model. Build the model and use load_weights.",
                code="weights-only-file",
            )
        return _family_of_version(str(file.attrs.get("keras_version", "2")))


def _family_of_version(version: str) -> str:
    return "tf_keras" if version.startswith(("1.", "2")) else "keras"


def _is_old_h5(place: str, path: str) -> bool:
    with _opened_h5(place, path) as file:
        return "layer_names" in file.attrs or "model_weights" in file


@contextmanager
def _opened_h5(place: str, path: str) -> Iterator[h5py.File]:
    try:
        with h5py.File(place, "r") as file:
            yield file
    except OSError as error:
        raise ArgumentError(
            f"{path} cannot be read as HDF5: {error}. Is it complete?", code="model-file-not-readable"
        ) from error


def _load_checkpoint_of_tensorflow(
    model: Any, family: str, fs: Any, place: str, path: str, skip_mismatch: bool
) -> None:
    if family == "keras":
        raise ArgumentError(
            f"{path} is a TensorFlow checkpoint, which Keras 3 does not read. Use a .weights.h5 file, or "
            "tf.train.Checkpoint(model=model).restore(path).",
            code="checkpoint-of-tensorflow",
        )
    if not model.built:
        raise ArgumentError(
            f"the model {model.name!r} is not built. Call it once on a batch before load_weights.",
            code="model-not-built",
        )
    # A checkpoint holds the optimizer too. For slots that are not there yet TensorFlow would read it again later.
    optimizer = optimizer_state(model)
    with tempfile.TemporaryDirectory(prefix="orca-keras-") as folder:
        name = os.path.basename(place)
        for file in fs.glob(f"{place}.*"):
            fs.get_file(file, os.path.join(folder, os.path.basename(file)))
        with _naming(f"the weights in {path} do not fit the model {model.name!r}"):
            status = model.load_weights(os.path.join(folder, name), skip_mismatch=skip_mismatch)
            if status is not None and not skip_mismatch:
                status.assert_existing_objects_matched()
    if optimizer is not None:
        set_optimizer_state(model, optimizer)


# Places.


def _refuse_to_overwrite(path: str, overwrite: bool) -> None:
    fs, place = files.filesystem(path)
    if not overwrite and fs.exists(place):
        raise ArgumentError(
            f"{path} exists already and overwrite is False. Pass another path, or overwrite=True.", code="file-exists"
        )


def _put(
    path: str, make: Callable[[str], Any], name: str, names: set[str] | None = None, mark: str = files.MARKER
) -> None:
    """Let `make` make a file or folder of this name here, and move it to a path, where it appears whole.

    `names` are the entries of a folder of this kind: one that holds other things is not replaced. `mark` is the file
    without which a folder is nothing.
    """
    files.refuse_foreign(path, names, "what is to be saved", "a path")
    with tempfile.TemporaryDirectory(prefix="orca-keras-") as folder:
        draft = os.path.join(folder, name)
        make(draft)
        files.put(draft, path, names, mark)


@contextmanager
def _local(path: str, what: str) -> Iterator[str]:
    """Give a path on this machine with the content of a path."""
    fs, place = files.filesystem(path)
    if not fs.exists(place):
        raise ArgumentError(f"there is no {what} at {path}. Check the path.", code="missing-file")
    if files.is_local(fs):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="orca-keras-") as folder:
        copy = os.path.join(folder, os.path.basename(place.rstrip("/")) or "model")
        fs.get(place.rstrip("/"), copy, recursive=bool(fs.isdir(place)))
        yield copy


@contextmanager
def _named_for(place: str, name: str) -> Iterator[str]:
    """Give a path to the same file whose name tells Keras its format."""
    suffix = name[name.index(".") :]
    if place.endswith(suffix) and (suffix != ".h5" or not place.endswith(".weights.h5")):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="orca-keras-") as folder:
        link = os.path.join(folder, name)
        try:
            os.symlink(os.path.abspath(place), link)
        except OSError:
            shutil.copyfile(place, link)
        yield link


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Name the step that failed in errors of Keras."""
    try:
        yield
    except ArgumentError:
        raise
    except Exception as error:  # of Keras, TensorFlow, HDF5 and file systems
        raise ArgumentError(
            f"{what}: {type(error).__name__}: {' '.join(str(error).split())}", code="model-file-not-readable"
        ) from error
