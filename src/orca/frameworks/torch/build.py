"""Build: from the user's arguments to modules, optimizers, losses and schedulers. Owns how creators are called."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from orca.core.columns import single
from orca.core.creators import call_creator, required
from orca.errors import ArgumentError
from orca.frameworks.torch.penalties import build_penalised, penalised
from orca.rows.tree import listed


def build_models(model: Any, config: dict[str, Any]) -> list[nn.Module]:
    """Return the modules themselves, or those their creator makes; most often one."""
    if model is None:
        raise ArgumentError(
            "there is no model. Pass model= to from_torch, or load an entire model.", code="missing-model"
        )
    models = call_creator(model, config) if callable(model) and not isinstance(model, nn.Module) else model
    nets = listed(models)
    for net in nets or [None]:
        if not isinstance(net, nn.Module):
            raise ArgumentError(
                f"the model must be a torch.nn.Module (or a list of them) or a function that returns one; "
                f"got {type(net).__name__}. Return the module from model_creator(config).",
                code="bad-model",
            )
    return nets


def build_optimizers(optimizer: Any, nets: list[nn.Module], config: dict[str, Any]) -> list[torch.optim.Optimizer]:
    """Return the optimizers themselves, or those their creator makes for these modules."""
    if optimizer is None:
        raise ArgumentError(
            "You must provide the optimizer for train. Pass optimizer= to the Estimator.", code="missing-optimizer"
        )
    result = optimizer
    if any(True for net in nets for _ in penalised(net)):
        result = build_penalised(optimizer, nets)
    elif callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
        result = call_creator(optimizer, single(nets), config)
    optimizers = listed(result)
    for one in optimizers or [None]:
        if not isinstance(one, torch.optim.Optimizer):
            raise ArgumentError(
                "the optimizer must be a torch.optim.Optimizer (or a list of them) or a function that returns one; "
                f"got {type(one).__name__}. Return it from optimizer_creator(model, config).",
                code="bad-optimizer",
            )
        if isinstance(one, torch.optim.LBFGS):  # which keeps these beside its groups, and loses them when it travels
            one._params, one._numel_cache = one.param_groups[0]["params"], None
    return optimizers


def build_schedulers(creator: Any, optimizers: list[torch.optim.Optimizer], config: dict[str, Any]) -> list[Any]:
    """Return the learning rate schedulers that a creator `(optimizer, config)` makes."""
    if creator is None:
        return []
    answer = call_creator(creator, single(optimizers), config)
    schedulers = list(answer) if isinstance(answer, list | tuple) else [answer]
    for scheduler in schedulers:
        if not callable(getattr(scheduler, "step", None)):
            raise ArgumentError(
                "scheduler_creator must return a scheduler of torch.optim.lr_scheduler (or a list of them); got "
                f"{type(scheduler).__name__}. Return it from scheduler_creator(optimizer, config).",
                code="bad-scheduler",
            )
    return schedulers


def build_loss(loss: Any, config: dict[str, Any]) -> Any:
    """Return a callable loss: a module, a function of output and target, or the product of a class or creator."""
    if loss is None or isinstance(loss, nn.Module):
        return loss
    if isinstance(loss, type):
        return call_creator(loss, config)
    if not callable(loss):
        raise ArgumentError(f"the loss must be a torch loss or a function; got {type(loss).__name__}.", code="bad-loss")
    return call_creator(loss, config) if required(loss) == 1 else loss


def check_kinds(model: Any, optimizer: Any, loss: Any) -> None:
    """Check that each is an object of its kind, or a function that may make one."""
    for things, kind, words in (
        (model, nn.Module, "the model must be a torch.nn.Module or a function that returns one"),
        (
            optimizer,
            torch.optim.Optimizer,
            "the optimizer must be a torch.optim.Optimizer or a function (model, config) that returns one",
        ),
        ((loss,), nn.Module, "the loss must be a torch loss, a function (output, target) or a creator"),
    ):
        for thing in listed(things):
            if isinstance(thing, type) and issubclass(thing, torch.optim.Optimizer):
                example = f"{thing.__name__}(model.parameters())"
                raise ArgumentError(
                    f"{words}; got the class {thing.__name__}. Pass {example}.", code="class-not-object"
                )
            if thing is not None and not isinstance(thing, kind) and not callable(thing):
                raise ArgumentError(f"{words}; got {type(thing).__name__}.", code="bad-model-argument")


def check_linked(optimizer: torch.optim.Optimizer, model: Any) -> None:
    """Check that an optimizer instance has parameters of the given module."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            "an optimizer instance needs the module whose parameters it has; got a model creator. "
            "Pass the module itself, or an optimizer creator (model, config).",
            code="optimizer-without-module",
        )
    ids = {id(p) for p in model.parameters()}
    if not any(id(p) in ids for group in optimizer.param_groups for p in group["params"]):
        raise ArgumentError(
            "the optimizer has none of the model's parameters. Make it with model.parameters().",
            code="optimizer-of-other-model",
        )


def load_weights(net: nn.Module, weights: Any) -> None:
    """Give a module the weights that the Estimator has trained.

    Raises:
        ArgumentError: They are those of another model: the user changed its class or its creator since.
    """
    try:
        net.load_state_dict(weights)
    except RuntimeError:
        remedy = "Its class or creator has changed since. Make a new Estimator for the new model."
        check_fits(net, weights, "what this Estimator has trained so far", remedy)
        raise


def check_fits(
    net: nn.Module,
    weights: Any,
    name: str,
    remedy: str = "The weights stay as they were. Build the model as it was when it was saved.",
) -> None:
    """Check that a module takes these weights; it is not changed."""
    own, others = net.state_dict(), weights if isinstance(weights, Mapping) else {}
    missing, foreign = [key for key in own if key not in others], sorted(key for key in others if key not in own)
    shapes = [
        f"{key} {tuple(others[key].shape)} where the model has {tuple(value.shape)}"
        for key, value in own.items()
        if isinstance(value, torch.Tensor)
        and isinstance(others.get(key), torch.Tensor)
        and not is_lazy(value)
        and others[key].shape != value.shape
    ]
    if not missing and not foreign and not shapes:
        return
    try:
        copy.deepcopy(net).load_state_dict(weights)  # where the module's own hooks know better
    except Exception as error:
        parts = (("it lacks", missing), ("the model has no", foreign), ("other shapes:", shapes))
        differences = "; ".join(f"{words} {_few(keys)}" for words, keys in parts if keys)
        raise ArgumentError(
            f"{name} does not fit the model: {differences}. {remedy}", code="weights-do-not-fit"
        ) from error


def _few(things: list[str], most: int = 3) -> str:
    rest = len(things) - most
    return ", ".join(things[:most]) + (f" and {rest} more" if rest > 0 else "")
