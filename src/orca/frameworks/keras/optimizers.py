"""Optimizers: the state of every optimizer that a Keras model holds. Owns its form, and how it comes back.

A model has its own optimizer, and may hold more that its train_step steps (a GAN has two), in attributes, lists and
dicts, or in objects of the user's. Each is known by where it is: "optimizer", "critic_optimizer", "optimizers.maker".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orca.errors import ArgumentError

_OWN = "optimizer"
_LIBRARIES = {"keras", "tf_keras", "tensorflow", "builtins", "numpy", "h5py", "threading", "weakref"}


@dataclass(frozen=True)
class OptimizerState:
    """An optimizer's variables.

    Attributes:
        weights: The numbers of the model's weights that it steps; None before its first step, when it has no slots.
        arrays: The values of its variables; before its first step only those that it has then.
    """

    weights: list[int] | None
    arrays: list[np.ndarray] = field(repr=False)


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return the optimizers that a model holds, its own first, by the place of each."""
    own = getattr(model, _OWN, None)
    optimizers = {} if own is None else {_OWN: own}
    ids = {id(own)}
    queue: deque[tuple[str, Any]] = deque([("", model)])
    while queue:
        path, thing = queue.popleft()
        if id(thing) in ids:
            continue
        ids.add(id(thing))
        if _is_optimizer(thing):
            optimizers[path] = thing
            continue
        for name, value in _parts_of(thing):
            if isinstance(value, dict | list | tuple) or hasattr(value, "__dict__"):
                queue.append((f"{path}.{name}" if path else str(name), value))
    return optimizers


def optimizer_states(model: Any) -> dict[str, OptimizerState]:
    """Return the state of each optimizer that a model holds, but for those that step weights of others."""
    numbers = {id(variable): number for number, variable in enumerate(model.weights if model.built else ())}
    states = {}
    for name, optimizer in optimizers_of(model).items():
        if not is_built(optimizer):
            states[name] = OptimizerState(None, _values(_early_variables(optimizer)))
            continue
        weights = [numbers.get(id(variable)) for variable in _stepped_by(optimizer, model)]
        if None not in weights:
            states[name] = OptimizerState([n for n in weights if n is not None], _values(variables_of(optimizer)))
    return states


def set_optimizer_states(model: Any, states: Mapping[str, OptimizerState]) -> None:
    """Give the optimizers of a model their states."""
    optimizers = optimizers_of(model)
    absent = sorted(states.keys() - optimizers.keys())
    if absent:
        raise ArgumentError(
            f"there is a state of the optimizers {sorted(states)}, but the model {model.name!r} holds "
            f"{sorted(optimizers)}: {', '.join(absent)} would be lost. Build and compile it as it was when it was "
            "saved.",
            code="optimizers-differ",
        )
    weights = model.weights if model.built else ()
    for name, state in states.items():
        optimizer, whose = optimizers[name], f"the optimizer {type(optimizers[name]).__name__}"
        if state.weights is None:
            assign(_early_variables(optimizer), state.arrays, whose, "variable")
            continue
        if max(state.weights, default=-1) >= len(weights):
            raise ArgumentError(
                f"{whose} stepped weight {max(state.weights)}, but the model {model.name!r} has {len(weights)}. Its "
                "state belongs to another model: build it as it was when it was saved.",
                code="optimizer-state-differs",
            )
        _build(optimizer, [weights[number] for number in state.weights])
        assign(variables_of(optimizer), state.arrays, whose, "variable")


def unkept(model: Any, optimizers: Iterable[Any]) -> list[str]:
    """Describe those of the optimizers used whose state `optimizer_states` leaves out."""
    names = {id(optimizer): name for name, optimizer in optimizers_of(model).items()}
    states = optimizer_states(model)
    reasons = []
    for optimizer in optimizers:
        name, kind = names.get(id(optimizer)), type(optimizer).__name__
        if name is None:
            reasons.append(f"{kind}, which is no attribute of the model")
        elif name not in states:
            reasons.append(f"{name} ({kind}), which steps variables that are not the model's weights")
    return reasons


def optimizer_state(model: Any) -> list[np.ndarray] | None:
    """Return all variables of the model's own optimizer (steps, learning rate, slots); None when it has none.

    Slots that are not there yet are made first, so that the state is the same before and after the first step.
    """
    optimizer = getattr(model, _OWN, None)
    if optimizer is None:
        return None
    _build(optimizer, model.trainable_variables)
    return _values(variables_of(optimizer))


def set_optimizer_state(model: Any, arrays: Sequence[np.ndarray]) -> None:
    """Give the model's own optimizer its variables, in the order of `optimizer_state`."""
    optimizer = getattr(model, _OWN, None)
    if optimizer is None:
        raise ArgumentError(
            f"the model {model.name!r} has no optimizer to give a state to. Call compile(optimizer=...) first.",
            code="missing-optimizer",
        )
    _build(optimizer, model.trainable_variables)
    assign(variables_of(optimizer), arrays, f"the optimizer {type(optimizer).__name__}", "variable")


def is_built(optimizer: Any) -> bool:
    """Say whether an optimizer has its slots: after its first step, or with a restored state."""
    if not _is_tf_keras(optimizer):
        return bool(optimizer.built)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return bool(inner._hypers_created if _is_legacy(inner) else getattr(inner, "_built", False))


def variables_of(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer in order, with those that the library itself does not list.

    tf_keras leaves out the learning rate, which schedules of callbacks change, the loss scale, and Nadam's product.
    """
    if not _is_tf_keras(optimizer):
        return list(optimizer.variables)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        scale: Any = getattr(optimizer, "_loss_scale", None)
        own = [scale._current_loss_scale, scale._counter] if hasattr(scale, "_counter") else []
        return [*own, *variables_of(inner)]
    if _is_legacy(optimizer):
        hyper = [value for _, value in sorted(optimizer._hyper.items()) if hasattr(value, "assign")]
        return [*optimizer.weights, *hyper]
    variables = list(optimizer.variables)
    others = [getattr(optimizer, name, None) for name in ("_learning_rate", "_u_product")]
    return variables + [
        one for one in others if hasattr(one, "assign") and all(one is not other for other in variables)
    ]


def assign(variables: Sequence[Any], arrays: Sequence[np.ndarray], whose: str, word: str) -> None:
    """Give variables their values."""
    if len(variables) != len(arrays):
        raise ArgumentError(
            f"{whose} has {len(variables)} {word}s, but {len(arrays)} came. They belong to another model or optimizer: "
            "build and compile it as it was when they were saved, or make a new Estimator for the new one.",
            code="optimizer-state-differs",
        )
    for number, (variable, array) in enumerate(zip(variables, arrays, strict=True)):
        if tuple(variable.shape) != tuple(np.shape(array)):
            raise ArgumentError(
                f"{word} {number} of {whose} ({getattr(variable, 'path', variable.name)}) has the shape "
                f"{tuple(variable.shape)}, but one of the shape {tuple(np.shape(array))} came. They belong to another "
                "model: build it as it was when they were saved, or make a new Estimator for the new one.",
                code="optimizer-state-differs",
            )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def _parts_of(thing: Any) -> Iterable[tuple[Any, Any]]:
    """Return the parts of a thing by name: a container's items, attributes of layers and of the user's own objects."""
    if isinstance(thing, dict):
        return list(thing.items())
    if isinstance(thing, list | tuple):
        return list(enumerate(thing))
    own = type(thing).__module__.split(".", 1)[0] not in _LIBRARIES and not isinstance(thing, type)
    return list(vars(thing).items()) if own or hasattr(thing, "_flatten_layers") else []


def _is_optimizer(thing: Any) -> bool:
    kinds = ((kind.__module__.split(".", 1)[0], kind.__name__) for kind in type(thing).__mro__)
    return any(package in ("keras", "tf_keras") and name in ("Optimizer", "OptimizerV2") for package, name in kinds)


def _stepped_by(optimizer: Any, model: Any) -> list[Any]:
    """Return the weights that an optimizer has slots for, in their order; None for one that is not the model's."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not _is_tf_keras(inner):
        return list(inner._trainable_variables)
    weights = {variable._unique_id: variable for variable in model.weights}
    keys = inner._slots if _is_legacy(inner) else inner._index_dict
    return [weights.get(key) for key in keys]


def _build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the slots of an optimizer, if they are not there yet."""
    if not _is_tf_keras(optimizer):
        if not optimizer.built:
            optimizer.build(variables)
        return
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if _is_legacy(inner):
        inner._create_all_weights(variables)
    elif not getattr(inner, "_built", False):
        inner.build(variables)


def _early_variables(optimizer: Any) -> list[Any]:
    """Return the step count and, where it is a variable, the learning rate, which are there before it is built.

    The inner optimizer's for one that scales the loss; a legacy one tells its learning rate in its config.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(inner, "_learning_rate", None)
    return [inner.iterations, *([rate] if hasattr(rate, "assign") else [])]


def _values(variables: Sequence[Any]) -> list[np.ndarray]:
    return [np.array(variable.numpy()) for variable in variables]


def _is_tf_keras(optimizer: Any) -> bool:
    return any(kind.__module__.split(".", 1)[0] == "tf_keras" for kind in type(optimizer).__mro__)


def _is_legacy(optimizer: Any) -> bool:
    return hasattr(optimizer, "_hyper")
