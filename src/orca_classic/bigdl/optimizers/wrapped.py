"""Wrapped: a torch optimizer or scheduler as an optim method. Owns TorchOptim, and how one follows another model."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from orca.errors import ArgumentError
from orca_classic.bigdl.optimizers.methods import OptimMethod
from orca_classic.bigdl.optimizers.schedules import Default

if TYPE_CHECKING:
    import torch

DECAYS = ("EpochDecay", "IterationDecay", "EpochDecayByScore")


@dataclass
class TorchOptim(OptimMethod):
    """A torch optimizer, with its parameter groups and its state, and perhaps the scheduler of its learning rate.

    Args:
        optimizer: The optimizer.
        torch_scheduler: The scheduler, or None.
        decayType: When the scheduler steps: "EpochDecay", "IterationDecay", or "EpochDecayByScore", which hands it the
            score of the validation (its first metric, else its loss) after epochs that were validated; the loss of the
            training where nothing is validated.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> TorchOptim.from_pytorch(torch.optim.Adam(model.parameters(), lr=0.01)).learningrate
        0.01
    """

    optimizer: Any
    torch_scheduler: Any = None
    decayType: str = "EpochDecay"
    decay: float = 0.0
    names: ClassVar[Mapping[str, str]] = {"rate": "no rate", "decay": "decay", "schedule": ""}

    @staticmethod
    def from_pytorch(optim: Any, decayType: str = "EpochDecay") -> TorchOptim:
        """Wrap a `torch.optim.Optimizer`, or a scheduler of `torch.optim.lr_scheduler` with its optimizer.

        Raises:
            ArgumentError: It is neither, or decayType is unknown or does not go with the scheduler.
        """
        import torch

        if decayType not in DECAYS:
            raise ArgumentError(f"decayType must be one of {', '.join(DECAYS)}; got {decayType!r}.")
        if isinstance(optim, torch.optim.Optimizer):
            return TorchOptim(optim, None, decayType)
        scores = isinstance(optim, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if not scores and not isinstance(optim, torch.optim.lr_scheduler.LRScheduler):
            raise ArgumentError(
                "TorchOptim wraps a torch.optim.Optimizer or a scheduler of torch.optim.lr_scheduler; got "
                f"{type(optim).__name__}."
            )
        if scores != (decayType == "EpochDecayByScore"):
            raise ArgumentError(
                f"ReduceLROnPlateau, and no other scheduler, steps by score; got {type(optim).__name__} and "
                f"decayType={decayType!r}. Pass decayType={'EpochDecayByScore' if scores else 'EpochDecay'!r}."
            )
        return TorchOptim(optim.optimizer, optim, decayType)

    @property
    def learningrate(self) -> float:
        """Return the learning rate of the first group."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def scheduler(self) -> Default:
        """Return the decay of `setLearningRateDecay`; torch's scheduler is in `torch_scheduler`."""
        return Default(self.decay)

    @property
    def varies(self) -> bool:
        """Say whether the learning rate changes by itself."""
        return self.torch_scheduler is not None or bool(self.decay)

    def with_rate(self, rate: float | None = None, decay: float | None = None) -> Self:
        """Return a copy with another learning rate, also in groups that have the optimizer's default; see OptimMethod.

        Groups with a rate of their own keep it. A scheduler begins with the new rate.

        Raises:
            ArgumentError: Every group has a rate of its own, or a scheduler decays the rate already.
        """
        if decay and self.torch_scheduler is not None:
            raise ArgumentError(
                "a TorchOptim with a scheduler cannot decay the learning rate as well. Leave one of them out."
            )
        method = replace(self, decay=self.decay if decay is None else decay)
        if rate is None:
            return method
        optimizer = copy.copy(self.optimizer)  # the same parameters and state, in groups of its own
        old = optimizer.defaults.get("lr")
        optimizer.defaults = optimizer.defaults | {"lr": rate}
        optimizer.param_groups = [dict(group) for group in optimizer.param_groups]
        scheduler = _moved(self.torch_scheduler, optimizer)
        names = ["initial_lr" if "initial_lr" in group else "lr" for group in optimizer.param_groups]
        own = [group[name] != old for group, name in zip(optimizer.param_groups, names, strict=True)]
        if all(own):
            rates = [group[name] for group, name in zip(optimizer.param_groups, names, strict=True)]
            raise ArgumentError(
                f"the learning rate {rate!r} cannot reach the TorchOptim, whose groups (or whose scheduler) have rates "
                f"of their own: {rates}, where the optimizer's default is {old!r}. Make the optimizer with the rate "
                "itself, or leave setLearningRate out."
            )
        for number, (group, name) in enumerate(zip(optimizer.param_groups, names, strict=True)):
            if own[number]:
                continue
            _rebase(scheduler, number, rate)
            group["lr"] = rate * group["lr"] / group[name] if group[name] else rate
            group[name] = rate
        method.optimizer, method.torch_scheduler = optimizer, scheduler
        return method

    def as_json(self) -> dict[str, Any]:
        """Refuse: a torch optimizer is an object of its own, linked with a model."""
        raise ArgumentError("a TorchOptim cannot be written as JSON. Make a new one after loading the model.")

    def build(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """Return an optimizer like this one for these parameters, which steps its own scheduler."""
        optimizer = super().build(parameters)
        scheduler = _moved(self.torch_scheduler, optimizer)
        if scheduler is None:
            return optimizer

        def step(*score: float) -> None:
            with warnings.catch_warnings():  # that the optimizer's step is not the one it saw when it was made
                warnings.simplefilter("ignore")
                scheduler.step(*score)
            _keep(scheduler, optimizer)

        def end_epoch(loss: float, score: float | None = None, skipped: bool = False) -> None:
            """Step the scheduler; not after a skipped validation, which gives no score."""
            if self.decayType == "EpochDecayByScore":
                if not skipped:
                    step(loss if score is None else score)
            elif self.decayType == "EpochDecay":
                step()

        if self.decayType == "IterationDecay":
            optimizer.register_step_post_hook(lambda *_: step())
        optimizer.end_epoch = end_epoch  # type: ignore[attr-defined]
        _keep(scheduler, optimizer)
        optimizer.register_load_state_dict_post_hook(
            lambda one: scheduler.load_state_dict(copy.deepcopy(one.param_groups[0]["scheduler"]))  # it takes parts out
        )
        return optimizer

    def settings(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return the decayed rate; a scheduler sets its own."""
        return super().settings(group) if self.decay else {}

    def _made(self, parameters: list[Any]) -> torch.optim.Optimizer:
        """Return a copy of the optimizer: with its own parameters if they are among these, else with these."""
        import torch

        optimizer = copy.copy(self.optimizer)
        groups, states = self.optimizer.param_groups, self.optimizer.state
        own = [param for group in groups for param in group["params"]]
        if {id(param) for param in own} <= {id(param) for param in parameters}:
            heirs = {id(param): param for param in own}
            alike = True
        else:
            alike = [tuple(param.shape) for param in own] == [tuple(param.shape) for param in parameters]
            heirs = dict(zip(map(id, own), parameters, strict=False)) if alike else {}
        if not alike and len(groups) > 1:
            raise ArgumentError(
                f"the TorchOptim has {len(own)} parameters in {len(groups)} groups, and the model has other ones. Make "
                "the optimizer with the parameters of the model that is trained."
            )
        optimizer.param_groups = [
            dict(group) | {"params": [heirs[id(param)] for param in group["params"]] if alike else parameters}
            for group in groups
        ]
        optimizer.state = defaultdict(
            dict, {heirs[id(p)]: copy.deepcopy(states[p]) for p in own if p in states and alike}
        )
        if isinstance(optimizer, torch.optim.LBFGS):  # which keeps these beside its groups, where no copy has them
            optimizer._params, optimizer._numel_cache = optimizer.param_groups[0]["params"], None
        return optimizer


def _moved(scheduler: Any, optimizer: torch.optim.Optimizer) -> Any:
    """Return a scheduler for another optimizer with the same groups."""
    if scheduler is None or scheduler.optimizer is optimizer:
        return scheduler
    twin = copy.copy(scheduler)
    twin.optimizer = optimizer
    if hasattr(twin, "_schedulers"):  # of SequentialLR and ChainedScheduler
        twin._schedulers = [_moved(one, optimizer) for one in twin._schedulers]
    return twin


def _rebase(scheduler: Any, number: int, rate: float) -> None:
    """Set the base rate of a group in a scheduler and its inner schedulers."""
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [rate if at == number else one for at, one in enumerate(scheduler.base_lrs)]
    for part in getattr(scheduler, "_schedulers", ()):
        _rebase(part, number, rate)


def _keep(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Keep a scheduler's state, but its functions, in a group, with which it is saved."""
    state = scheduler.state_dict()
    optimizer.param_groups[0]["scheduler"] = {
        name: value for name, value in state.items() if not inspect.isroutine(value)
    }
