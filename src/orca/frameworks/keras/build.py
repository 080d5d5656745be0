"""Build: Keras models on a worker, from a learner or a state. Owns what every model must be like to train on ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from orca.core.creators import call_creator
from orca.core.engine import threads_asked_for
from orca.core.state import State
from orca.errors import ArgumentError, DataError
from orca.frameworks.keras.optimizers import OptimizerState, optimizer_states, set_optimizer_states, unkept
from orca.frameworks.keras.travel import family_of, is_model, library, set_weights, weights_of
from orca.rows.tree import map_tree

if TYPE_CHECKING:
    from orca.frameworks.keras.learner import KerasLearner


NOT_COMPILED = (
    "the model is not compiled, so there is no loss to train or evaluate with. Call model.compile(...), "
    "or pass compile_args_creator."
)


def make_model(spec: KerasLearner) -> Any:
    """Return a new model of a learner: that of its creator or a copy of its own, compiled if it says how."""
    os.environ.update(spec.environment)
    model = spec.packed_model.unpack() if spec.packed_model else call_creator(spec.creator, spec.config)
    if not is_model(model):
        raise ArgumentError(
            f"model_creator must return a Keras model; got {type(model).__name__}. Return the compiled model.",
            code="bad-model",
        )
    _check_backend(model)
    check_layers(model)
    if spec.compile_args:
        arguments = call_creator(spec.compile_args, spec.config)
        if not isinstance(arguments, dict):
            raise ArgumentError(
                "compile_args_creator must return a dict of arguments for model.compile; "
                f"got {type(arguments).__name__}.",
                code="bad-compile-args",
            )
        model.compile(**arguments)
    return model


def floatx_of(model: Any) -> str:
    """Return the type of floating-point numbers in the Keras of a model."""
    return str(library(family_of(model)).backend.floatx())


def tensors_of(tree: Any, floatx: str) -> Any:
    """Return a tree of arrays as tensors, floating-point numbers in this type."""
    return map_tree(lambda leaf: _tensor(leaf, floatx), tree)


def _check_backend(model: Any) -> None:
    backend = library(family_of(model)).backend.backend()
    if backend != "tensorflow":
        raise ArgumentError(
            f"Keras runs on {backend!r} here; from_keras needs it on TensorFlow. Set KERAS_BACKEND=tensorflow before "
            "keras is imported.",
            code="keras-not-on-tensorflow",
        )


def check_layers(model: Any) -> None:
    """Check that no layer continues where the batch before ended."""
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and hasattr(layer, "return_sequences"):
            raise ArgumentError(
                f"the layer {layer.name!r} is stateful: it continues in a batch where the same row of the batch before "
                "ended, but workers get another part of each step. Give it stateful=False.",
                code="stateful-layer",
            )


def load_weights(model: Any, state: State, example: Any) -> None:
    """Give a model its variables, from an example row where it has none yet, and the weights of a state."""
    if not model.built:
        if example is None:
            raise ArgumentError(
                "the model has no weights before it sees a row: its input shape is not known. Fit, evaluate or predict "
                "first, or give it an Input (or input_shape).",
                code="model-not-built",
            )
        try:
            model(example)
        except NotImplementedError:  # without a `call`: its train_step calls the models in it
            if not model.weights:
                raise
            model.built = True
    if state.payload.get("models") and state.payload["models"][0] is not None:
        set_weights(model, state.payload["models"][0])


@contextmanager
def preserved(variables: Sequence[Any]) -> Iterator[None]:
    """Give variables the values back that they have now."""
    before = [variable.numpy() for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


def load_optimizers(model: Any, state: State) -> None:
    """Give the optimizers of a model their part of a state."""
    record = state.payload.get("stepping")
    if record is not None:
        states = zip(record["names"], record["weights"], state.payload["optimizers"], strict=True)
        set_optimizer_states(model, {name: OptimizerState(weights, values) for name, weights, values in states})


def check_optimizers_saved(state: State) -> None:
    """Check that a state has all optimizers of the earlier fit."""
    names = (state.payload.get("stepping") or {}).get("lost")
    if names:
        raise ArgumentError(
            f"the train_step of the earlier fit stepped optimizers whose state cannot be kept: {'; '.join(names)}. "
            "A resumed fit would begin them anew. Keep each optimizer in an attribute of the model, and the variables "
            "it steps among the model's weights; or continue with the weights alone: save_weights, and load_weights in "
            "a new Estimator.",
            code="optimizer-not-kept",
        )


def state_of_model(model: Any, optimizers: Sequence[Any] | None) -> State:
    """Return the weights of a model and, unless `optimizers` is None, the states of its optimizers.

    Args:
        model: The model.
        optimizers: Those that training has used: the ones whose state cannot be kept are named in the state.
    """
    payload: dict[str, Any] = {"models": [weights_of(model)] if model.built else [], "optimizers": [], "schedulers": []}
    if optimizers is not None:
        states = optimizer_states(model)
        payload["optimizers"] = [state.arrays for state in states.values()]
        weights = [state.weights for state in states.values()]
        payload["stepping"] = {"names": list(states), "weights": weights, "lost": unkept(model, optimizers)}
    return State(payload=payload)


def packed(x: Any, y: Any = None, weights: Any = None) -> Any:
    """Return a batch as Keras hands it to train_step, which users write too."""
    if y is None:
        return (x,) if isinstance(x, tuple | list) else x
    return (x, y) if weights is None else (x, y, weights)


def _tensor(leaf: Any, floatx: str) -> Any:
    """Return an array as a tensor, floating numbers in Keras' own precision."""
    if isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind == "f":
        array = array.astype(floatx, copy=False)
    if array.dtype.kind in "mM":
        raise DataError(
            f"a Keras model cannot take values of type {array.dtype}. Turn dates into numbers first.", code="bad-dtype"
        )
    return tf.convert_to_tensor(array)


def set_threads(config: dict[str, Any]) -> None:
    """Give TensorFlow the threads that its config asks for, or those that this worker may use."""
    for kind in ("intra", "inter"):
        threads = config.get(f"{kind}_op_parallelism", threads_asked_for() or None)
        if threads is not None:
            with suppress(RuntimeError):  # TensorFlow is at work in this process already
                getattr(tf.config.threading, f"set_{kind}_op_parallelism_threads")(int(threads))


def to_numpy(leaf: Any) -> np.ndarray:
    """Return a tensor as an array."""
    if isinstance(leaf, tf.SparseTensor):
        leaf = tf.sparse.to_dense(leaf)
    array = np.asarray(leaf.to_tensor() if isinstance(leaf, tf.RaggedTensor) else leaf)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
