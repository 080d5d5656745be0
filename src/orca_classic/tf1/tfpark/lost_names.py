"""Lost names: `tf.estimator`, `tf.contrib` and others that TensorFlow has dropped. Owns where programs find them."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

from orca.core.imports import ImportHook
from orca.errors import MissingDependency

_KERAS = "tf_keras.api._v1.keras"
_LEGACY = {
    "keras": _KERAS,
    "layers": f"{_KERAS}.__internal__.legacy.layers",
}


class ModeKeys:
    """The modes of a model function."""

    TRAIN, EVAL, PREDICT = "train", "eval", "infer"


class EstimatorSpec(SimpleNamespace):
    """The result of a model function.

    Args:
        mode: One of ModeKeys.
        predictions: A tensor, or a dict of tensors.
        loss: A scalar.
        train_op: An operation of a ZooOptimizer.
        eval_metric_ops: Name -> scalar tensor, or a pair of tf.metrics.
        other: Ignored; kept for compatibility.
    """

    def __init__(
        self,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Any = None,
        **other: Any,
    ) -> None:
        super().__init__(
            mode=mode, predictions=predictions, loss=loss, train_op=train_op, eval_metric_ops=eval_metric_ops, **other
        )


class _Contrib:
    """The parts of tf.contrib that still exist: slim, with its layers, initializers, regularizers and losses."""

    slim = property(lambda self: _slim())
    framework = property(lambda self: _slim())

    @property
    def layers(self) -> Any:
        """Return the layers, initializers and regularizers."""
        _slim()
        return sys.modules["tf_slim.layers"]  # the attribute of slim is a module within it


estimator = SimpleNamespace(ModeKeys=ModeKeys, EstimatorSpec=EstimatorSpec)
contrib = _Contrib()


def lost(name: str) -> Any:
    """Return what a name of TensorFlow 1 stood for.

    Raises:
        AttributeError: It is no such name.
    """
    if name in _LEGACY:
        return importlib.import_module(_LEGACY[name])
    if name in ("estimator", "contrib"):
        return {"estimator": estimator, "contrib": contrib}[name]
    raise AttributeError(f"TensorFlow has no {name!r}")


def names() -> set[str]:
    """Return all names that `lost` knows."""
    return {*_LEGACY, "estimator", "contrib"}


def put_back() -> None:
    """Give TensorFlow its lost names: now, or once it is imported."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and "compat" in vars(tensorflow):
        _put_back(tensorflow)
    elif _put_back not in ImportHook.after:
        ImportHook.after.append(_put_back)


def _put_back(tensorflow: ModuleType) -> None:
    for module in (tensorflow, tensorflow.compat.v1, importlib.import_module("tensorflow.compat.v1")):  # two copies
        for name, value in (("estimator", estimator), ("contrib", contrib)):
            if not hasattr(module, name):
                setattr(module, name, value)


def make_optimizers_for_graphs() -> None:
    """Let the optimizers of tf_keras that work eagerly alone make, in graph mode, those of the same name for graphs."""
    import tensorflow.compat.v1 as tf
    from tf_keras import optimizers
    from tf_keras.src.optimizers import optimizer as newer
    from tf_keras.src.optimizers import optimizer_v1 as older

    def make(cls: type, *args: Any, **options: Any) -> Any:
        is_twin = cls.__module__.startswith("tf_keras.") and hasattr(optimizers.legacy, cls.__name__)
        if tf.executing_eagerly() or not is_twin:
            return object.__new__(cls)
        return getattr(optimizers.legacy, cls.__name__)(*args, **options)

    type.__setattr__(newer._BaseOptimizer, "__new__", make)
    for module in (optimizers, importlib.import_module(f"{_KERAS}.optimizers")):
        vars(module).setdefault("TFOptimizer", older.TFOptimizer)


def _slim() -> Any:
    """Import tf_slim, which asks TensorFlow for names that have moved."""
    from tensorflow.python.framework import indexed_slices, ops, tensor
    from tensorflow.python.ops import cond, control_flow_ops

    new_places = {
        (ops, "Tensor"): tensor.Tensor,
        (ops, "IndexedSlices"): indexed_slices.IndexedSlices,
        (control_flow_ops, "cond"): cond.cond,
    }
    for (module, name), value in new_places.items():
        if not hasattr(module, name):
            setattr(module, name, value)
    with suppress(ModuleNotFoundError):  # slim asks Keras 2 for its layers by a name that has moved
        layers = importlib.import_module("tf_keras.src.legacy_tf_layers")
        sys.modules.setdefault("tf_keras.legacy_tf_layers", layers)
    try:
        return importlib.import_module("tf_slim")
    except ModuleNotFoundError as error:
        raise MissingDependency.of("tf_slim", "tf1", "tf.contrib.slim") from error
