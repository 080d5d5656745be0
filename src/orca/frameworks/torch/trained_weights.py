"""TrainedWeights: the weights that a fit trains. Owns that they are the same on all ranks, whatever user code does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.torch.sync import held


class TrainedWeights:
    """The weights that have gradients, and the groups of each optimizer, as replicas agreed on them last.

    Args:
        nets: The models.
        optimizers: Their optimizers.
        world: The ranks.
        hands_on: Whether the user's own code calls backward, and may do it with weights that were frozen.
    """

    def __init__(
        self, nets: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], world: World, hands_on: bool
    ) -> None:
        self.optimizers, self.world = optimizers, world
        self.weights = [param for net in nets for param in net.parameters()]
        apart = hands_on and world.size > 1
        self.guards = [one.register_step_pre_hook(self._check_agreed) for one in optimizers if apart]
        self.settle()

    @property
    def changed(self) -> bool:
        """Say whether something else is trained now."""
        return self._now() != self.last_flags

    def settle(self) -> None:
        """Remember which weights are trained now, as all ranks agree on it."""
        self.last_flags = self._now()

    def check_alike(self) -> None:
        """Check that the same weights are trained on all ranks, which call it together."""
        ranks = self.world.all_gather(self._now())
        if all(rank == ranks[0] for rank in ranks):
            return
        changes, size = sum(rank != self.last_flags for rank in ranks), self.world.size
        raise ArgumentError(
            "a callback or an operator changed what is trained (requires_grad, or the optimizer's groups) "
            f"{f'on {changes} of' if changes < size else 'differently on'} {size} workers. Do it on every worker in "
            "the same way, whatever runner.rank is.",
            code="trained-weights-differ",
        )

    def close(self) -> None:
        """Stop watching steps."""
        for guard in self.guards:
            guard.remove()

    def _now(self) -> tuple[list[bool], list[int]]:
        return [weight.requires_grad for weight in self.weights], [len(one.param_groups) for one in self.optimizers]

    def _check_agreed(self, optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        """Check that replicas agreed on the gradients that the user's own code steps with."""
        frozen_ids = {id(weight) for weight, learns in zip(self.weights, self.last_flags[0], strict=True) if not learns}
        if any(
            id(weight) in frozen_ids and weight.requires_grad and weight.grad is not None for weight in held(optimizer)
        ):
            raise ArgumentError(
                "weights are trained that were frozen (requires_grad=False) when the step began: their gradients are "
                "not averaged over workers. Freeze and unfreeze within a step if need be, but leave requires_grad as "
                "it was at its end.",
                code="frozen-weights-changed",
            )
