"""Optimizer: MXNet's own, for weights by name. Owns how it is made of the config, its step and its state."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np

from orca.errors import ArgumentError


class NamedOptimizer:
    """An optimizer of MXNet that knows weights by their names.

    Args:
        config: Has `optimizer` and `optimizer_params`.
        parameters: The weights by name.
        symbol: The symbol of a Module, whose attributes scale rates and weight decay; None for a block, whose
            parameters do.

    Raises:
        ArgumentError: The optimizer is not one that can be exact here.
    """

    def __init__(self, config: Mapping[str, Any], parameters: Mapping[str, Any], symbol: Any = None) -> None:
        self.parameters = parameters
        self.names = sorted(parameters)
        self.places = {name: place for place, name in enumerate(self.names)}
        self.updater = mx.optimizer.get_updater(self._made(config, symbol))

    @property
    def optimizer(self) -> Any:
        """The optimizer itself."""
        return self.updater.optimizer

    def _made(self, config: Mapping[str, Any], symbol: Any) -> Any:
        method, options = config.get("optimizer", "sgd"), copy.deepcopy(dict(config.get("optimizer_params") or {}))
        parameters = {place: self.parameters[name] for name, place in self.places.items()}
        if isinstance(method, mx.optimizer.Optimizer) and symbol is None:
            optimizer = copy.deepcopy(method)
            optimizer.param_dict = parameters
        elif not isinstance(method, str):
            raise ArgumentError(
                f"optimizer must be a name such as 'adam'; got {type(method).__name__}. Pass its arguments in "
                "optimizer_params."
            )
        elif symbol is None:
            optimizer = mx.optimizer.create(method, param_dict=parameters, **options)
        elif "rescale_grad" in options:
            raise ArgumentError(
                "rescale_grad does not go with a Module: gradients are means over the rows of all workers already. "
                "Leave it out."
            )
        else:
            names = {place: parameter.name for place, parameter in parameters.items()}
            optimizer = mx.optimizer.create(method, sym=symbol, param_idx2name=names, **options)
        if isinstance(optimizer, mx.optimizer.LBSGD):
            raise ArgumentError("LBSGD gathers gradients of several steps, which is not supported. Use 'lars'.")
        return optimizer

    def step(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Update the weights that have a gradient."""
        names = [name for name in self.names if name in gradients]
        if names:
            weights = [self.parameters[name].list_data()[0] for name in names]
            self.updater([self.places[name] for name in names], [array_of(gradients[name]) for name in names], weights)

    def rate(self) -> float:
        """Return the learning rate of the next update; the schedule stays as it is."""
        schedule = self.optimizer.lr_scheduler
        return float(self.optimizer.lr if schedule is None else copy.copy(schedule)(self.optimizer.num_update + 1))

    def state(self) -> dict[str, Any]:
        """Return slots and counts of updates by weight, and the numbers that optimizer and schedule hold."""
        counts = self.optimizer._index_update_count
        return {
            "kind": type(self.optimizer).__name__,
            "slots": {self.names[place]: _told(slot) for place, slot in self.updater.states.items()},
            "counts": {self.names[place]: count for place, count in counts.items()},
            "values": _numbers(self.optimizer),
            "schedule": _numbers(self.optimizer.lr_scheduler),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over a result of `state`.

        Raises:
            ArgumentError: It is that of another optimizer.
        """
        if state["kind"] != type(self.optimizer).__name__:
            raise ArgumentError(
                f"the state is that of the optimizer {state['kind']}, but the config has "
                f"{type(self.optimizer).__name__}. Use the same, or load the weights alone: load_state_dict(weights)."
            )
        vars(self.optimizer).update(state["values"])
        if state["schedule"]:
            vars(self.optimizer.lr_scheduler).update(state["schedule"])
        counts = {self.places[name]: count for name, count in state["counts"].items()}
        self.optimizer._index_update_count.update(counts)
        self.updater.states = {self.places[name]: _remade(slot) for name, slot in state["slots"].items()}
        self.updater.states_synced = dict.fromkeys(self.updater.states, True)


def array_of(value: np.ndarray) -> Any:
    """Return an array of MXNet of the same number type."""
    return mx.nd.array(value, dtype=value.dtype)


def _told(slot: Any) -> Any:
    """Return an optimizer's state of a weight as numpy arrays."""
    if isinstance(slot, tuple | list):
        return [_told(part) for part in slot]
    return slot.asnumpy() if isinstance(slot, mx.nd.NDArray) else slot


def _remade(slot: Any) -> Any:
    if isinstance(slot, tuple | list):
        return tuple(map(_remade, slot))
    return array_of(slot) if isinstance(slot, np.ndarray) else slot


def _numbers(thing: Any) -> dict[str, Any]:
    """Return the attributes of an optimizer or schedule that are numbers, or lists of them."""
    values = getattr(thing, "__dict__", {})
    return {name: copy.copy(value) for name, value in values.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float)
