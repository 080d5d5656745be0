"""Training: what a replica needs to train. Owns the optimizers, and how replicas follow each other."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from orca.core.source import Batch
from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.torch.batchnorm import Statistics
from orca.frameworks.torch.operator import TrainingOperator
from orca.frameworks.torch.replica import Replica
from orca.frameworks.torch.sync import Sync, sync_of
from orca.frameworks.torch.trained_weights import TrainedWeights
from orca.frameworks.torch.writes import refuse_max_norm

if TYPE_CHECKING:
    from orca.core.state import State


class Training:
    """The optimizers, schedulers and syncs of a replica.

    Args:
        replica: The models.
        world: The ranks.
        optimizers: The optimizers, with their state.
        schedulers: Learning rate schedulers, with theirs.
        scaler: Scales losses in half precision.
        optimizer_state: The state of the optimizer of a model that no rank holds whole, of which each takes its part.
        user_backward: Whether code of the user's calls backward.
        user_code: Whether there is code of the user's that may change which weights are trained.
        exits: Closes what this opens.
    """

    def __init__(
        self,
        replica: Replica,
        world: World,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[Any],
        scaler: torch.amp.GradScaler,
        *,
        optimizer_state: dict[str, Any] | None,
        user_backward: bool,
        user_code: bool,
        exits: ExitStack,
    ) -> None:
        self.replica, self.world, self.options = replica, world, replica.spec.options
        self.optimizers, self.schedulers, self.scaler = list(optimizers), list(schedulers), scaler
        self.user_backward, self.user_code = user_backward, user_code
        self.statistics = [Statistics(model, always=self.options.sync_batchnorm) for model in replica.models]
        for statistics in self.statistics:
            exits.callback(statistics.release)
        self.syncs: list[Sync] = []
        options: dict[str, Any] = {"unused": self.options.unused, "hands_on": user_backward}
        if replica.spec.spread:
            options |= {"device": replica.place.device, "optimizer_state": optimizer_state}
        for model, optimizer in zip(replica.models, self._optimizer_of_each(), strict=True):
            self.syncs.append(sync_of(replica.spec.sync, model, optimizer, world, **options))
            exits.callback(self.syncs[-1].close)
        refuse_max_norm(replica.models, world.size)
        self.trained_weights = TrainedWeights(replica.models, self.optimizers, world, user_backward)
        exits.callback(self.trained_weights.close)
        self.operator: TrainingOperator | None = None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The first optimizer."""
        return self.optimizers[0]

    @property
    def sync(self) -> Sync:
        """The sync of the first model."""
        return self.syncs[0]

    @property
    def modules(self) -> list[nn.Module]:
        """The models as they are trained, wrapped for all ranks."""
        return [sync.module for sync in self.syncs]

    def serve(self, operator: TrainingOperator) -> None:
        """Keep the models of an operator those that are trained."""
        self.operator = operator

    def rate(self) -> float:
        """Return the learning rate of the next step."""
        group = self.optimizers[0].param_groups[0]
        rate = group.get("rate", group["lr"])  # some rules need another number than the one users know
        return rate if isinstance(rate, float) else float("nan") if isinstance(rate, torch.Tensor) else float(rate)

    # A step.

    def open_step(self, batch: Batch, step: int) -> None:
        """Prepare for a step: of how many rows on each rank, and of which weights."""
        self.follow()
        weight = batch.rows * self.world.size / batch.step_rows if self.user_backward else 1.0
        for statistics in self.statistics:
            statistics.open(batch.shares, weight, first=step == 0)
        for sync in self.syncs:
            sync.open(batch)

    def count_rows(self, counts: bool) -> None:
        """Let batch normalization count the rows of the next forward pass, or not: a dummy row does not."""
        for statistics in self.statistics:
            statistics.count(counts)

    def share_buffers(self, batch: Batch) -> None:
        """Give all ranks the buffers of one that had rows, after an update that code of the user's did."""
        for sync in self.syncs:
            sync.step(batch.leader, lambda: None)

    def close_step(self, steps_schedulers: bool) -> None:
        """End a step after its update."""
        for statistics in self.statistics:
            statistics.close()
        self.replica.update_average()
        if self.options.step_freq == "batch" and steps_schedulers:
            for scheduler in self.schedulers:
                scheduler.step()

    def update(self) -> None:
        """Update the weights by their gradients."""
        if self.scaler.is_enabled():
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    # What is trained.

    def check_same(self) -> None:
        """Check that the same weights are trained on all ranks, which call it together."""
        if self.user_code:
            self.trained_weights.check_alike()

    def follow(self) -> None:
        """Let replicas sync the weights that code of the user's trains now; it must do the same on every rank."""
        if not self.user_code or not self.trained_weights.changed:
            return
        for sync in self.syncs:
            sync.renew()
        if self.operator is not None:
            self.operator.models[:] = self.modules
        self.trained_weights.settle()

    # States.

    def payload(self, own: Any, gathered: Any) -> dict[str, Any]:
        """Return the state of models and optimizers; all ranks call it together.

        Args:
            own: Copies what only this rank holds.
            gathered: Copies what all ranks have gathered together.
        """
        payload: dict[str, Any] = {
            "models": [gathered(sync.model_state()) for sync in self.syncs],
            "optimizers": [gathered(state) for state in self._optimizer_states()],
            "schedulers": [own(scheduler.state_dict()) for scheduler in self.schedulers],
        }
        if self.replica.average is not None:
            payload["averages"] = [gathered(self.replica.average.module.state_dict())]
        if self.scaler.is_enabled():
            payload["scaler"] = self.scaler.state_dict()
        return payload

    def rewind(self, payload: dict[str, Any]) -> None:
        """Restore settings of optimizers and schedulers."""
        # As in the constructor, there may be a scheduler now that was not there, or none any more.
        for optimizer, state in zip(self.optimizers, payload["optimizers"], strict=False):
            for group, settings in zip(optimizer.param_groups, state["param_groups"], strict=False):
                group |= {name: copy.deepcopy(value) for name, value in settings.items() if name != "params"}
        for scheduler, state in zip(self.schedulers, payload["schedulers"], strict=False):
            scheduler.load_state_dict(state)

    def _optimizer_of_each(self) -> list[torch.optim.Optimizer]:
        """Return the optimizer of each model; the first one if there is one for all."""
        has_each = len(self.optimizers) == len(self.replica.models)
        return self.optimizers if has_each else [self.optimizer] * len(self.replica.models)

    def _optimizer_states(self) -> list[dict[str, Any]]:
        if len(self.syncs) == len(self.optimizers):
            return [sync.optimizer_state() for sync in self.syncs]
        return [optimizer.state_dict() for optimizer in self.optimizers]


def restore_states(objects: Sequence[Any], name: str, state: State | None) -> None:
    """Give optimizers or schedulers their states back.

    Raises:
        ArgumentError: Their parameter groups are others.
    """
    for each, record in zip(objects, state.payload.get(name, ()) if state else (), strict=False):
        groups, saved = len(getattr(each, "param_groups", ())), len(record.get("param_groups", ()))
        if groups != saved:
            raise ArgumentError(
                f"the state to resume from has {saved} parameter groups of {type(each).__name__}, and its creator "
                f"makes {groups}. Make all groups there: those that a callback or an operator adds are not there yet "
                "when a fit is resumed.",
                code="parameter-groups-differ",
            )
        each.load_state_dict(record)
