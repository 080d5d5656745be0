"""Runner: what callbacks see of a run on one rank. Owns the names that they read and set."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Runner:
    """What a callback sees of a run, and where it has a say.

    Attributes:
        batch: The batch as a loader gives it: features and target, on the device.
        batch_idx: Its number in the epoch, from 0.
        output, target, loss: What the forward pass made of it.
        epochs: The number of the epoch that is going on, from 1.
        num_epochs: Epochs of this fit.
        num_steps: Steps of an epoch; None where nobody knows.
        global_step: Training steps done in all, also in fits before.
        epoch_stats: Statistics of the last epoch over all ranks, validation included.
        rank, size: This rank, and how many there are.
        config: What the creators get.
        stop: Set it to end the fit after this step; all ranks stop when one of them asks for it.
        timers: Seconds spent in each phase, where the fit is profiled.
    """

    def __init__(self, learner: Any, rank: int, size: int) -> None:
        self._learner, self._pocket = learner, dict[str, Any]()
        self.rank, self.size, self.config = rank, size, learner.config
        self.batch: Any = None
        self.output: Any = None
        self.target: Any = None
        self.loss: Any = None
        self.batch_idx = self.epochs = self.num_epochs = self.global_step = 0
        self.num_steps: int | None = None
        self.epoch_stats: dict[str, Any] = {}
        self.timers: dict[str, float] = {}
        self.stop = False

    # The parts of the run.

    @property
    def models(self) -> list[nn.Module]:
        """Return the models as they are trained, wrapped for all ranks; without gradients, those that answer."""
        learner = self._learner
        return list(learner.modules) if torch.is_grad_enabled() else [learner.judge, *learner.nets[1:]]

    @property
    def model(self) -> nn.Module:
        """Return the first model."""
        return self.models[0]

    @property
    def given_models(self) -> list[nn.Module]:
        """Return the models as the user made them."""
        return list(self._learner.nets)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers."""
        return list(self._learner.steppers)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Return the first optimizer."""
        return self.optimizers[0]

    @property
    def schedulers(self) -> list[Any]:
        """Return the learning rate schedulers."""
        return list(self._learner.schedulers)

    @property
    def scheduler(self) -> Any:
        """Return the first scheduler, None where there is none."""
        return next(iter(self.schedulers), None)

    @property
    def criterion(self) -> Any:
        """Return the loss."""
        return self._learner.criterion

    @property
    def learning_rates(self) -> list[float]:
        """Return the learning rate of every parameter group."""
        return [float(group["lr"]) for one in self.optimizers for group in one.param_groups]

    # Where the run is.

    @property
    def training(self) -> bool:
        """Say whether this is a fit, not an evaluation or a prediction by itself."""
        return self.num_epochs > 0

    @property
    def metrics_stats(self) -> dict[str, Any]:
        """Return the statistics of the last validation."""
        return {name: value for name, value in self.epoch_stats.items() if name.startswith("val_")}

    # What a main callback does.

    def forward(self) -> None:
        """Compute output and loss of the batch."""
        self._learner.forward(self)

    def answer(self) -> None:
        """Compute the output for the batch's features."""
        self._learner.answer(self)

    def step_schedulers(self) -> None:
        """Step the learning rate schedulers."""
        self._learner.step_schedulers(self.epoch_stats)

    def get_state_dict(self) -> dict[str, Any]:
        """Return models, optimizers and schedulers as state dicts; all ranks must call it together."""
        state = self._learner.state()
        return {"epoch": self.epochs, "steps": self.global_step, **state.payload}

    def copy_weights(self) -> list[dict[str, torch.Tensor]]:
        """Return copies of the models' weights and buffers as this rank holds them; an average of them is the last."""
        return [_tensors_of(net, clone=True) for net in self._weighed()]

    def put_back_weights(self, kept: list[dict[str, torch.Tensor]]) -> None:
        """Write what copy_weights returned into the models; all ranks must do it.

        In place: a sync may hold the weights as parts of larger tensors.
        """
        with torch.no_grad():
            for net, weights in zip(self._weighed(), kept, strict=True):
                for name, tensor in _tensors_of(net).items():
                    tensor.copy_(self._part_of(weights[name], tensor))

    def gather_weights(self, kept: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
        """Return what copy_weights returned as whole tensors on rank 0, to be kept in a file; all ranks must do it."""
        if not self._learner.spread:
            return kept
        from orca.frameworks.torch.fsdp import gathered

        return [gathered(weights, self._learner.world) for weights in kept]

    def _part_of(self, weight: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Return a rank's part of a weight that came whole from a file, as `tensor` is cut."""
        if not self._learner.spread or type(weight) is type(tensor):
            return weight
        from orca.frameworks.torch.fsdp import cut

        part: torch.Tensor = cut(weight, tensor, self._learner.world)
        return part

    def _weighed(self) -> list[nn.Module]:
        average = self._learner.average
        return [*self._learner.nets, *([] if average is None else [average.module])]

    # The pocket: what callbacks leave for each other.

    def put(self, key: str, value: Any) -> None:
        """Keep a value under a new name."""
        self._pocket[key] = value

    update = put

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value that was put."""
        return self._pocket.get(key, default)

    def remove(self, key: str) -> None:
        """Forget a value."""
        self._pocket.pop(key, None)


def _tensors_of(net: nn.Module, clone: bool = False) -> dict[str, torch.Tensor]:
    state = {name: value for name, value in net.state_dict().items() if isinstance(value, torch.Tensor)}
    return {name: value.detach().clone() if clone else value.detach() for name, value in state.items()}
