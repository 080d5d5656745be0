"""Settings: the objects of a stage's params as plain values and tensors. Owns the kinds that can be written.

An object is written as the name of its class and its attributes, a function as its name, a torch optimizer as its
groups and its state. Reading imports named classes, and calls no constructor: nothing is pickled.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler

from orca.core.metrics import Metric
from orca.core.triggers import Trigger
from orca.errors import ArgumentError
from orca.frameworks.torch.architecture import build, describe, imported, reference
from orca_classic.bigdl.criterion import Criterion
from orca_classic.bigdl.feature.preprocessing import Preprocessing
from orca_classic.bigdl.layer import Layer
from orca_classic.bigdl.optimizer import TrainSummary
from orca_classic.bigdl.optimizers.methods import OptimMethod
from orca_classic.bigdl.optimizers.schedules import Scheduler

_KIND = "orca.kind"
_PLAIN = (bool, int, float, str, bytes, type(None))
# Classes whose objects are made again of their attributes; ReduceLROnPlateau is an LRScheduler from torch 2.2 on.
_OBJECTS = (Preprocessing, Trigger, OptimMethod, Scheduler, Criterion, Layer, Metric, TrainSummary, LRScheduler)
_SUMMARIES = "summaries"  # of a TrainSummary: derived from its other attributes
_SCALE = "_scale_fn_ref"  # of a CyclicLR: likewise. It may be a partial, by which a file could call any function.


def packed(value: Any, what: str, weights: Sequence[nn.Parameter] = ()) -> Any:
    """Return a setting as plain values and tensors, which `storage.states` writes as JSON and safetensors.

    Args:
        value: The setting.
        what: Its name in an error.
        weights: The parameters of the stage's model, by which an optimizer names its own.

    Raises:
        ArgumentError: It cannot be written without pickles; names the part, and the remedy.
    """

    def inside(part: Any) -> Any:
        return packed(part, what, weights)

    if type(value) in _PLAIN or isinstance(value, np.ndarray | np.generic):
        return value
    if isinstance(value, list | tuple):
        return [*map(inside, value)] if isinstance(value, list) else tuple(map(inside, value))
    if isinstance(value, dict):
        return {key: inside(item) for key, item in value.items()}
    if isinstance(value, nn.Module):
        return {_KIND: "module", "about": describe(value, what, ""), "tensors": dict(value.state_dict())}
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, Optimizer):
        return _optimizer(value, what, weights)
    if isinstance(value, _OBJECTS):
        left_out = {"optimizer", _SCALE} if isinstance(value, LRScheduler) else {_SUMMARIES, "_last"}
        attributes = {name: inside(part) for name, part in vars(value).items() if name not in left_out}
        return {_KIND: "object", "class": reference(type(value), what), "attributes": attributes}
    if isinstance(value, type) or inspect.isroutine(value):
        return {_KIND: "name", "name": reference(value, what)}
    if hasattr(value, "to_ndarray"):
        return value.to_ndarray()
    raise ArgumentError(
        f"{what} is, or holds, a {type(value).__name__}, which cannot be saved without pickles. Set it again after "
        "loading: clear it first (stage.clear(stage.<param>)), or use a setting of this library instead."
    )


def unpacked(value: Any, weights: Sequence[nn.Parameter] = ()) -> Any:
    """Return the setting that `packed` described.

    Args:
        value: The result of `packed`.
        weights: The parameters of the model that was loaded.

    Raises:
        ArgumentError: It names something that cannot be imported here, or that is no setting.
    """

    def inside(part: Any) -> Any:
        return unpacked(part, weights)

    if isinstance(value, list | tuple):
        return type(value)(map(inside, value))
    if not isinstance(value, dict):
        return value
    match value.get(_KIND):
        case "module":
            net = build(value["about"])
            net.load_state_dict(value["tensors"])
            return net
        case "name":
            return imported(value["name"])
        case "optimizer":
            return _made_optimizer(value, weights)
        case "object":
            return _made_object(value["class"], {name: inside(part) for name, part in value["attributes"].items()})
    return {key: inside(item) for key, item in value.items()}


def _made_object(name: str, attributes: dict[str, Any]) -> Any:
    kind = imported(name)
    if not (isinstance(kind, type) and issubclass(kind, _OBJECTS)):
        raise ArgumentError(f"the saved stage names {name}, which is no setting of a stage.")
    if issubclass(kind, TrainSummary):
        return kind(attributes["log_dir"], attributes["app_name"])
    thing: Any = object.__new__(kind)
    vars(thing).update(attributes)
    if isinstance(thing, CyclicLR):
        thing._init_scale_fn()
    if isinstance(getattr(thing, "optimizer", None), Optimizer):
        _bind(attributes.get("torch_scheduler"), thing.optimizer)
    return thing


def _bind(scheduler: Any, optimizer: Optimizer) -> None:
    """Give a scheduler and its inner schedulers the optimizer whose rates they set."""
    if scheduler is not None:
        scheduler.optimizer = optimizer
        for part in getattr(scheduler, "_schedulers", ()):
            _bind(part, optimizer)


def _optimizer(optimizer: Optimizer, what: str, weights: Sequence[nn.Parameter]) -> dict[str, Any]:
    """Return an optimizer as its groups and its state; the model's parameters by number, others by shape."""
    places = {id(param): place for place, param in enumerate(weights)}

    def named(param: torch.Tensor) -> Any:
        shape = {"shape": list(param.shape), "dtype": str(param.dtype).removeprefix("torch.")}
        return places.get(id(param), shape)

    groups = [
        {key: [*map(named, part)] if key == "params" else packed(part, what, weights) for key, part in group.items()}
        for group in optimizer.param_groups
    ]
    states = [optimizer.state.get(param, {}) for group in optimizer.param_groups for param in group["params"]]
    return {
        _KIND: "optimizer",
        "class": reference(type(optimizer), what),
        "defaults": packed(optimizer.defaults, what, weights),
        "groups": groups,
        "states": [packed(dict(state), what, weights) for state in states],
    }


def _made_optimizer(about: dict[str, Any], weights: Sequence[nn.Parameter]) -> Optimizer:
    kind = imported(about["class"])
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise ArgumentError(f"the saved stage names {about['class']}, which is no torch.optim.Optimizer.")

    def param_of(name: Any) -> nn.Parameter:
        if isinstance(name, int):
            return weights[name]
        return nn.Parameter(torch.zeros(name["shape"], dtype=getattr(torch, name["dtype"])))

    groups = [group | {"params": [*map(param_of, group["params"])]} for group in about["groups"]]
    optimizer: Optimizer = kind.__new__(kind)
    Optimizer.__init__(optimizer, groups, about["defaults"])
    params = [param for group in optimizer.param_groups for param in group["params"]]
    optimizer.state.update({p: state for p, state in zip(params, about["states"], strict=True) if state})
    return optimizer
