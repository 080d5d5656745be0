"""TorchRunner: the callbacks' view of a run of torch, beyond that of all runs. Owns the names of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from orca.core.callbacks.runner import Runner
from orca.core.state import State
from orca.frameworks.torch.files import save_file
from orca.frameworks.torch.tensors import copied


class TorchRunner(Runner):
    """A callback's view of a run of torch: its models, optimizers, schedulers and the loss.

    `batch` is on the device. Weights and rates are read here: a replica may hold a part of them.
    """

    # Called by the session.

    def show_batch(self, batch: Any) -> None:
        """Show a batch."""
        self.batch = batch

    def show_output(self, output: Any) -> None:
        """Show the output for a batch of predictions."""
        self.output = output

    # The parts of the run.

    @property
    def models(self) -> list[nn.Module]:
        """Return the models as they are trained, wrapped for all ranks; without gradients, those that answer."""
        run = self._session
        return list(run.modules) if torch.is_grad_enabled() else [run.replica.eval_model, *run.replica.models[1:]]

    @property
    def given_models(self) -> list[nn.Module]:
        """Return the models as the user made them."""
        return list(self._session.replica.models)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers."""
        return list(self._session.training.optimizers) if self._session.training else []

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Return the first optimizer."""
        return self.optimizers[0]

    @property
    def schedulers(self) -> list[Any]:
        """Return the learning rate schedulers."""
        return list(self._session.training.schedulers) if self._session.training else []

    @property
    def scheduler(self) -> Any:
        """Return the first scheduler, None where there is none."""
        return next(iter(self.schedulers), None)

    @property
    def criterion(self) -> Any:
        """Return the loss."""
        return self._session.criterion

    @property
    def learning_rates(self) -> list[float]:
        """Return the learning rate of every parameter group."""
        return [float(group["lr"]) for one in self.optimizers for group in one.param_groups]

    @property
    def description(self) -> dict[str, Any]:
        """Return the optimizer's name and its learning rate."""
        return {"optimizer": type(self.optimizer).__name__, **super().description}

    # The parts of a step that a main callback does.

    def forward(self) -> None:
        """Compute output and loss of the batch."""
        self._session.forward(self)

    def answer(self) -> None:
        """Compute the output for the batch's features."""
        self._session.answer(self)

    def step_schedulers(self) -> None:
        """Step the learning rate schedulers."""
        self._session.step_schedulers(self.epoch_stats)

    # States.

    def write_state(self, state: State, path: str) -> None:
        """Write a state as one torch file."""
        save_file(state, path)

    def copied(self, states: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a callback's state, its tensors in the machine's memory."""
        return dict(copied(states, tensors=not self._session.spec.spread))

    def copy_weights(self) -> list[dict[str, torch.Tensor]]:
        """Return copies of the models' weights and buffers as this rank holds them; an average of them is the last."""
        return [_tensors_of(net, clone=True) for net in self._weighed()]

    def put_back_weights(self, weights: Sequence[dict[str, torch.Tensor]], averages: Sequence[Any] = ()) -> None:
        """Write weights, of copy_weights or of a state, into the models; all ranks must do it.

        In place: a sync may hold the weights as parts of larger tensors.
        """
        with torch.no_grad():
            for net, tensors in zip(self._weighed(), [*weights, *averages], strict=False):
                for name, tensor in _tensors_of(net).items():
                    tensor.copy_(self._part_of(tensors[name], tensor))

    def gather_weights(self, weights: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
        """Return copied weights as whole tensors on rank 0, to be kept in a file; all ranks must do it."""
        if not self._session.spec.spread:
            return weights
        from orca.frameworks.torch.fsdp import gathered

        return [gathered(tensors, self._session.world) for tensors in weights]

    def _part_of(self, weight: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Return a rank's part of a weight that came whole from a file, as `tensor` is cut."""
        if not self._session.spec.spread or type(weight) is type(tensor):
            return weight
        from orca.frameworks.torch.fsdp import cut

        part: torch.Tensor = cut(weight, tensor, self._session.world)
        return part

    def _weighed(self) -> list[nn.Module]:
        return list(self._session.replica.with_average)


def _tensors_of(net: nn.Module, clone: bool = False) -> dict[str, torch.Tensor]:
    state = {name: value for name, value in net.state_dict().items() if isinstance(value, torch.Tensor)}
    return {name: value.detach().clone() if clone else value.detach() for name, value in state.items()}
