"""tf1: TensorFlow 1 as its programs know it. Owns the names that today's TensorFlow lost, and turning graph mode on.

Importing this module turns eager execution off for the whole program. Import it before anything imports tensorflow:
then `tensorflow.keras` is the Keras of those years, too (tf_keras).
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any

from orca.errors import MissingDependency

if "tensorflow" not in sys.modules:
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import tensorflow.compat.v1 as _v1

_level = _v1.logging.get_verbosity()
_v1.logging.set_verbosity(_v1.logging.ERROR)  # it warns of variables that are no resources
_v1.disable_v2_behavior()
_v1.logging.set_verbosity(_level)

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
        eval_metric_ops: Name -> scalar tensor.
        other: Accepted.
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


def __getattr__(name: str) -> Any:
    if name in _LEGACY:
        return importlib.import_module(_LEGACY[name])
    if name == "estimator":
        return SimpleNamespace(ModeKeys=ModeKeys, EstimatorSpec=EstimatorSpec)
    if name == "contrib":
        return _contrib()
    return getattr(_v1, name)


def __dir__() -> list[str]:
    return sorted({*dir(_v1), *_LEGACY, "contrib", "estimator"})


@cache
def _contrib() -> Any:
    """Return the parts of tf.contrib that still exist: slim, its layers and losses."""
    slim = _slim()
    return SimpleNamespace(slim=slim, layers=slim.layers, framework=slim)


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
