"""Penalties: regularizers on weights, which modules carry as `penalties`. Owns how they reach the gradients of a step.

The gradient of a penalty is added right before the optimizer steps, element by element: whatever ranks hold of a weight
then, its penalty is exact. Gradients are clipped before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from orca.errors import ArgumentError


def weights_of_kind(module: nn.Module, kind: str) -> list[nn.Parameter]:
    """Return a module's weights of a kind: "bias", "hidden" (of a recurrent state) or "weight", all the others.

    A module may tell the kinds of some of its weights: `weight_kinds` is {name: kind}.
    """
    weights = []
    kinds = {
        id(parameter): part.weight_kinds[name]  # type: ignore[index, union-attr]
        for part in module.modules() if hasattr(part, "weight_kinds")
        for name, parameter in part.named_parameters() if name in part.weight_kinds  # type: ignore[operator]
    }  # fmt: skip
    for name, parameter in module.named_parameters():
        word = name.rsplit(".", 1)[-1]
        own = "bias" if word.startswith("bias") else "hidden" if word.startswith("hidden") else "weight"
        if kinds.get(id(parameter), own) == kind:
            weights.append(parameter)
    return weights


def penalised(module: nn.Module) -> Iterator[tuple[nn.Parameter, tuple[float, float]]]:
    """Yield the weights that have a penalty, with its l1 and l2."""
    for part in module.modules():
        for kind, sizes in getattr(part, "penalties", {}).items():
            yield from ((parameter, sizes) for parameter in weights_of_kind(part, kind))


def build_penalised(method: Any, nets: Sequence[nn.Module]) -> torch.optim.Optimizer:
    """Return the optimizer of models whose modules carry penalties.

    Raises:
        ArgumentError: The optimizer cannot tell weights apart: it is no optim method, or one that takes all at once.
    """
    if not hasattr(method, "build"):
        raise ArgumentError(
            f"the model has regularizers, which need an optim method of BigDL; got {type(method).__name__}. "
            "Use its weight decay instead, or pass SGD(), Adam(), ...",
            code="regularizers-need-optim-method",
        )
    sizes = {id(parameter): pair for net in nets for parameter, pair in penalised(net)}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in (parameter for net in nets for parameter in net.parameters()):
        groups.setdefault(sizes.get(id(parameter), (0.0, 0.0)), []).append(parameter)
    try:
        optimizer: torch.optim.Optimizer = method.build(
            [{"params": members, "penalty_l1": l1, "penalty_l2": l2} for (l1, l2), members in groups.items()]
        )
    except ValueError as error:
        raise ArgumentError(
            f"{type(method).__name__} does not go with regularizers: {error}. Choose another optim method.",
            code="regularizers-need-optim-method",
        ) from error
    optimizer.register_step_pre_hook(_add_penalties)
    return optimizer


def _add_penalties(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            l1, l2 = group.get("penalty_l1", 0.0), group.get("penalty_l2", 0.0)
            for parameter in group["params"] if l1 or l2 else ():
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.sign(), alpha=l1).add_(parameter, alpha=l2)
