"""Methods: BigDL's optim methods. Owns the torch optimizer of each of them, and its settings.

An OptimMethod is a picklable description. It is also an optimizer creator `(model, config)`, so that Estimators take it
as an optimizer. `build` returns one of torch's own optimizers; before each step its parameter groups hold the settings
(rate, and the differences from torch's rule) that make the step BigDL's.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from orca.errors import ArgumentError, KnownArguments
from orca_classic.bigdl.optimizers import schedules
from orca_classic.bigdl.optimizers.schedules import Default, Ramp, Scheduler

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

DOUBLEMAX = 1.7976931348623157e308  # how older programs say "not given"
_COUNTS = {"evaluations": 0, "epochs": 0}


@dataclass
class OptimMethod(KnownArguments):
    """A way to update weights. Each method remembers BigDL's arguments under their names.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = SGD(learningrate=0.5, learningrate_decay=1.0).build([weight])
        >>> weight.grad = torch.ones(1)
        >>> for _ in range(3):
        ...     optimizer.step()
        >>> round(float(weight.detach()), 4)  # 1 - 0.5 - 0.5 / 2 - 0.5 / 3
        0.0833
    """

    torch_name: ClassVar[str] = ""  # of the class in torch.optim
    moments: ClassVar[tuple[str, ...]] = ()  # torch's state of each weight, where its rule also counts steps
    # The names of arguments that several methods have.
    names: ClassVar[Mapping[str, str]] = {
        "rate": "learningrate",
        "decay": "learningrate_decay",
        "schedule": "learningrate_schedule",
    }

    def build(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """Return an optimizer of these parameters (or groups of them).

        Its `step()` applies the update and advances the schedule; `end_epoch(loss, score, skipped)` must be called at
        the end of an epoch, with `skipped` if the fit validates, but not in this one. Both counts are in its state
        dict, so that an optimizer that loads it continues exactly.
        """
        optimizer = self._made(list(parameters))
        for group in optimizer.param_groups:
            group.update(_COUNTS, base_lr=group["lr"], memory={})
            group.update(self.settings(group))
        if self.moments:
            optimizer.register_step_pre_hook(lambda stepping, *_: _count_alike(stepping, self.moments))
        optimizer.register_step_post_hook(lambda one, *_: self._passed(one, "evaluations"))

        def end_epoch(loss: float, score: float | None = None, skipped: bool = False) -> None:
            """Advance the schedule by an epoch."""
            numbers = {"Loss": loss} | ({"score": score} if skipped or score is not None else {})
            for group in optimizer.param_groups:
                self.scheduler.watch(*_place(group), numbers)
            self._passed(optimizer, "epochs")

        optimizer.end_epoch, optimizer.varies = end_epoch, self.varies  # type: ignore[attr-defined]
        return optimizer

    def __call__(self, model: Any, config: Any = None) -> torch.optim.Optimizer:
        """Return an optimizer of a model: this is an optimizer creator."""
        models = model if isinstance(model, list | tuple) else [model]
        return self.build(param for one in models for param in one.parameters())

    @property
    def scheduler(self) -> Scheduler:
        """Return the schedule: the one given, else that of the decay."""
        schedule: Any = getattr(self, self.names["schedule"], None)
        decay = getattr(self, self.names["decay"], 0.0)
        return Default(decay) if schedule is None or isinstance(schedule, Default) else schedule.get_scheduler()

    @property
    def varies(self) -> bool:
        """Say whether the learning rate changes by itself."""
        return self.scheduler != Default()

    def with_rate(self, rate: float | None = None, decay: float | None = None) -> Self:
        """Return this method with another learning rate, and perhaps another decay of it, if it has them."""
        names = {one.name for one in fields(self)}
        changes: dict[str, Any] = {}
        for word, value in (("rate", rate), ("decay", decay)):
            name = self.names[word]
            if value is not None and name in names:
                changes[name] = value
            elif value:
                logger.warning("%s has no %s: %r is ignored.", type(self).__name__, name, value)
        return replace(self, **changes)

    def get_optimizer(self) -> Self:
        """Return this method, for older programs."""
        return self

    def save(self, path: str, overWrite: bool = False) -> None:
        """Write the method and its arguments as JSON, to any fsspec path.

        Raises:
            ArgumentError: There is a file already, or an argument cannot be written as JSON.
        """
        from orca.storage.files import filesystem

        fs, place = filesystem(path)
        if fs.exists(place) and not overWrite:
            raise ArgumentError(f"there is a file at {path} already. Pass overWrite=True to replace it.")
        fs.pipe_file(place, json.dumps(self.as_json()).encode())

    @staticmethod
    def load(path: str) -> OptimMethod:
        """Read a method that `save` wrote."""
        from orca.storage.files import filesystem

        fs, place = filesystem(path)
        if not fs.exists(place):
            raise ArgumentError(f"there is no optim method at {path}. Check the path given to save().")
        return OptimMethod.from_json(json.loads(fs.cat_file(place)))

    def as_json(self) -> dict[str, Any]:
        """Return the method's name and arguments as values for JSON."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        return {"method": type(self).__name__} | {name: _packed(value) for name, value in values.items()}

    @staticmethod
    def from_json(about: Mapping[str, Any]) -> OptimMethod:
        """Return the method that as_json describes."""
        kind = {one.__name__: one for one in _kinds(OptimMethod)}.get(about["method"])
        if kind is None:
            raise ArgumentError(f"there is no optim method {about['method']!r} to read.")
        return kind(**{name: _unpacked(value) for name, value in about.items() if name != "method"})

    def settings(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a group before its next step; without a schedule, the rate is left alone."""
        return {"lr": self.scheduler.rate(*_place(group))} if self.varies else {}

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of torch's optimizer."""
        raise NotImplementedError

    def _made(self, parameters: list[Any]) -> torch.optim.Optimizer:
        import torch

        optimizer: torch.optim.Optimizer = getattr(torch.optim, self.torch_name)(parameters, **self._arguments())
        return optimizer

    def _passed(self, optimizer: torch.optim.Optimizer, count: str) -> None:
        """Count a step or an epoch, and prepare the next step."""
        for group in optimizer.param_groups:
            group[count] += 1
            group.update(self.settings(group))


@dataclass
class SGD(OptimMethod):
    """Stochastic gradient descent with momentum.

    v = momentum * v + (1 - dampening) * g, with v = g at first; x = x - rate * v. With nesterov, x = x - rate * (g +
    momentum * v).

    Args:
        learningrate: The rate.
        learningrate_decay: rate / (1 + steps * decay), unless there is a schedule.
        weightdecay: The share of the weights that is added to their gradients.
        momentum: The momentum.
        dampening: The dampening of the momentum; the momentum itself unless given, 0 with nesterov.
        nesterov: Whether to look ahead; needs a momentum and no dampening.
        learningrate_schedule: A schedule.
        learningrates: A factor of the rate for each number of the model, in the order of its parameters.
        weightdecays: A weight decay for each number of the model.
    """

    learningrate: float = 1e-3
    learningrate_decay: float = 0.0
    weightdecay: float = 0.0
    momentum: float = 0.0
    dampening: float = DOUBLEMAX
    nesterov: bool = False
    learningrate_schedule: Scheduler | None = None
    learningrates: Any = None
    weightdecays: Any = None
    leaningrate_schedule: Scheduler | None = field(default=None, kw_only=True)  # as bigdl.optim spelled it
    torch_name: ClassVar[str] = "SGD"

    def __post_init__(self) -> None:
        if self.leaningrate_schedule is not None:
            self.learningrate_schedule, self.leaningrate_schedule = self.leaningrate_schedule, None
        if self.nesterov and not (self.momentum > 0 and self.damps == 0):
            raise ArgumentError(
                "Nesterov momentum needs a momentum above 0 and no dampening; got "
                f"momentum={self.momentum!r}, dampening={self.dampening!r}."
            )
        if self.weightdecay and self.weightdecays is not None:
            raise ArgumentError("weightdecay and weightdecays do not go together. Pass one of them.")

    @property
    def damps(self) -> float:
        """Return the dampening."""
        unset = self.dampening is None or self.dampening >= DOUBLEMAX
        return (0.0 if self.nesterov else self.momentum) if unset else self.dampening

    def _arguments(self) -> dict[str, Any]:
        own = self.learningrates is not None
        return {
            "lr": self.learningrate,
            "momentum": self.momentum,
            "dampening": self.damps,
            "nesterov": self.nesterov,
            "weight_decay": 0.0 if own else self.weightdecay,
        }

    def _made(self, parameters: list[Any]) -> torch.optim.Optimizer:
        optimizer = super()._made(parameters)
        vectors = {"rates": self.learningrates, "decays": self.weightdecays}
        numbers = {name: vector for name, vector in vectors.items() if vector is not None}
        if numbers:
            if self.learningrates is not None and self.weightdecay:
                numbers["decays"] = [self.weightdecay] * _count(optimizer)
            _deal_out(optimizer, numbers)
            optimizer.register_step_pre_hook(_scale_gradients)
        return optimizer


@dataclass
class Adagrad(OptimMethod):
    """Adagrad: s = s + g * g; x = x - rate / (1 + steps * decay) * g / (sqrt(s) + 1e-10)."""

    learningrate: float = 1e-3
    learningrate_decay: float = 0.0
    weightdecay: float = 0.0
    torch_name: ClassVar[str] = "Adagrad"

    def _arguments(self) -> dict[str, Any]:
        return {"lr": self.learningrate, "weight_decay": self.weightdecay, "eps": 1e-10}


@dataclass
class Adadelta(OptimMethod):
    """Adadelta, which needs no rate.

    s = decayrate * s + (1 - decayrate) * g * g; d = sqrt(u + epsilon) / sqrt(s + epsilon) * g; x = x - d;
    u = decayrate * u + (1 - decayrate) * d * d.
    """

    decayrate: float = 0.9
    epsilon: float = 1e-10
    torch_name: ClassVar[str] = "Adadelta"

    def _arguments(self) -> dict[str, Any]:
        return {"lr": 1.0, "rho": self.decayrate, "eps": self.epsilon}


class AdamRule(OptimMethod):
    """Adam's rule, for any names of its arguments."""

    epsilon: float
    torch_name: ClassVar[str] = "Adam"
    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def settings(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return the rate, and the epsilon: torch adds it to the corrected root, BigDL to the uncorrected one."""
        return super().settings(group) | {"eps": self.epsilon / _corrections(group)[1]}


@dataclass
class Adam(AdamRule):
    """Adam in the efficient form of its paper: epsilon is added to the uncorrected root of the second moment.

    m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g * g;
    x = x - rate * sqrt(1 - beta2 ** t) / (1 - beta1 ** t) * m / (sqrt(v) + epsilon).

    t counts the steps of the method: it is one for all weights, also those that had no gradient in some of the steps.
    """

    learningrate: float = 1e-3
    learningrate_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def _arguments(self) -> dict[str, Any]:
        return {"lr": self.learningrate, "betas": (self.beta1, self.beta2)}


@dataclass
class ParallelAdam(Adam):
    """Adam; `parallel_num`, the threads of an update, is accepted: torch chooses them."""

    parallel_num: int = -1


@dataclass
class KerasAdam(AdamRule):
    """Adam with the arguments it has in the Keras-style API, where it also has a schedule and a weight decay."""

    lr: float = 1e-3
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.0
    schedule: Scheduler | None = None
    weight_decay: float = 0.0
    names: ClassVar[Mapping[str, str]] = {"rate": "lr", "decay": "decay", "schedule": "schedule"}

    def _arguments(self) -> dict[str, Any]:
        return {"lr": self.lr, "betas": (self.beta_1, self.beta_2), "weight_decay": self.weight_decay}


@dataclass
class AdamWeightDecay(OptimMethod):
    """Adam without bias corrections and with a weight decay apart from the gradients, as BERT is trained.

    x = x - rate * (m / (sqrt(v) + epsilon) + weight_decay * x). With a `total` of steps the rate grows over the first
    `warmup_portion` of them, and falls to zero by the last.
    """

    lr: float = 1e-3
    warmup_portion: float = -1.0
    total: int = -1
    schedule: str = "linear"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    torch_name: ClassVar[str] = "AdamW"
    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    names: ClassVar[Mapping[str, str]] = {"rate": "lr", "decay": "no decay", "schedule": ""}

    def __post_init__(self) -> None:
        if self.schedule != "linear":
            raise ArgumentError(f"the schedule of AdamWeightDecay must be 'linear'; got {self.schedule!r}.")

    @property
    def scheduler(self) -> Scheduler:
        """Return the ramp up and down."""
        return Ramp(self.warmup_portion, self.total)

    def _arguments(self) -> dict[str, Any]:
        return {"lr": self.lr, "betas": (self.beta1, self.beta2)}

    def settings(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return rate, epsilon and decay so that torch's bias corrections cancel out; `rate` is the one users know."""
        rate, (first, second) = self.scheduler.rate(*_place(group)), _corrections(group)
        share = first / second
        return {
            "lr": rate * share,
            "rate": rate,
            "eps": self.epsilon / second,
            "weight_decay": self.weight_decay / share,
        }


@dataclass
class Adamax(OptimMethod):
    """Adamax: m as in Adam; u = max(beta2 * u, |g| + epsilon); x = x - rate / (1 - beta1 ** t) * m / u."""

    learningrate: float = 2e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-38
    torch_name: ClassVar[str] = "Adamax"
    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_inf")

    def _arguments(self) -> dict[str, Any]:
        return {"lr": self.learningrate, "betas": (self.beta1, self.beta2), "eps": self.epsilon}


@dataclass
class RMSprop(OptimMethod):
    """RMSprop: s = decayrate * s + (1 - decayrate) * g * g; x = x - rate * g / (sqrt(s) + epsilon)."""

    learningrate: float = 1e-2
    learningrate_decay: float = 0.0
    decayrate: float = 0.99
    epsilon: float = 1e-8
    torch_name: ClassVar[str] = "RMSprop"

    def _arguments(self) -> dict[str, Any]:
        return {"lr": self.learningrate, "alpha": self.decayrate, "eps": self.epsilon}


@dataclass
class Ftrl(OptimMethod):
    """FTRL-proximal, for sparse models; see `orca_classic.bigdl.optimizers.ftrl` for the rule."""

    learningrate: float = 1e-3
    learningrate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0

    def _made(self, parameters: list[Any]) -> torch.optim.Optimizer:
        from orca_classic.bigdl.optimizers.ftrl import FtrlOptimizer

        return FtrlOptimizer(
            parameters,
            lr=self.learningrate,
            power=self.learningrate_power,
            initial=self.initial_accumulator_value,
            l1=self.l1_regularization_strength,
            l2=self.l2_regularization_strength,
            shrinkage=self.l2_shrinkage_regularization_strength,
        )


@dataclass
class LBFGS(OptimMethod):
    """L-BFGS, which computes loss and gradients several times a step.

    The update is BigDL's. A step ends early if the largest gradient is at most `tolfun` or the largest change at most
    `tolx`, as in torch.
    """

    max_iter: int = 20
    max_eval: float = DOUBLEMAX
    tolfun: float = 1e-5
    tolx: float = 1e-9
    ncorrection: int = 100
    learningrate: float = 1.0
    verbose: bool = False
    linesearch: Any = None
    linesearch_options: Any = None
    torch_name: ClassVar[str] = "LBFGS"

    def __post_init__(self) -> None:
        if self.linesearch not in (None, "strong_wolfe") or self.linesearch_options:
            raise ArgumentError(
                "the line search of LBFGS must be 'strong_wolfe' or None, without options; got "
                f"{self.linesearch!r} and {self.linesearch_options!r}."
            )

    def _arguments(self) -> dict[str, Any]:
        return {
            "lr": self.learningrate,
            "max_iter": self.max_iter,
            "max_eval": None if self.max_eval >= DOUBLEMAX else int(self.max_eval),
            "tolerance_grad": self.tolfun,
            "tolerance_change": self.tolx,
            "history_size": self.ncorrection,
            "line_search_fn": self.linesearch,
        }


def _place(group: dict[str, Any]) -> tuple[float, int, int, dict[str, Any]]:
    """Return the arguments of a schedule's `rate`."""
    return group["base_lr"], group["evaluations"], group["epochs"], group["memory"]


def _corrections(group: dict[str, Any]) -> tuple[float, float]:
    """Return torch's divisors in the next step: of the first moment, and of the root of the second."""
    (beta1, beta2), step = group["betas"], group["evaluations"] + 1
    return 1 - beta1**step, math.sqrt(1 - beta2**step)


def _count_alike(optimizer: torch.optim.Optimizer, moments: Sequence[str]) -> None:
    """Give all weights the same count of steps before a step: torch counts those in which each had a gradient."""
    import torch

    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is None:
                continue
            own = optimizer.state[param]
            if not own and group["evaluations"]:  # its first gradient comes late
                own.update({name: torch.zeros_like(param) for name in moments}, step=torch.tensor(0.0))
            if own:
                own["step"].fill_(group["evaluations"])


def _count(optimizer: torch.optim.Optimizer) -> int:
    return sum(param.numel() for group in optimizer.param_groups for param in group["params"])


def _deal_out(optimizer: torch.optim.Optimizer, vectors: Mapping[str, Any]) -> None:
    """Split vectors over all numbers of a model into the states of its parameters."""
    import numpy as np
    import torch

    for name, vector in vectors.items():
        numbers = torch.from_numpy(np.array(getattr(vector, "to_ndarray", lambda v=vector: v)(), np.float32).ravel())
        if numbers.numel() != _count(optimizer):
            raise ArgumentError(
                f"learning {name} are one for each number of the model, {_count(optimizer)}; got {numbers.numel()}."
            )
        for group in optimizer.param_groups:
            for param in group["params"]:
                own, numbers = numbers[: param.numel()], numbers[param.numel() :]
                optimizer.state[param][name] = own.view(param.shape).to(param).clone()


def _scale_gradients(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
    """Add each number's weight decay to its gradient and multiply it by its rate, before the common rule."""
    import torch

    with torch.no_grad():
        for group in optimizer.param_groups:
            for param in group["params"]:
                own = optimizer.state[param]
                if param.grad is not None and "decays" in own:
                    param.grad.addcmul_(own["decays"], param)
                if param.grad is not None and "rates" in own:
                    param.grad.mul_(own["rates"])


def _kinds(kind: type[OptimMethod]) -> list[type[OptimMethod]]:
    return [kind, *(deeper for each in kind.__subclasses__() for deeper in _kinds(each))]


def _packed(value: Any) -> Any:
    """Return an argument as JSON has it: a schedule by its name and arguments, a vector as a list."""
    if isinstance(value, Scheduler) and is_dataclass(value):
        about = {one.name: _packed(getattr(value, one.name)) for one in fields(value)}
        return {"schedule": type(value).__name__} | about
    if isinstance(value, list | tuple):
        return [_packed(one) for one in value]
    if hasattr(value, "to_ndarray"):
        value = value.to_ndarray()
    return value.tolist() if hasattr(value, "tolist") else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(one) for one in value]
    if isinstance(value, dict) and "schedule" in value:
        values = {name: _unpacked(one) for name, one in value.items() if name != "schedule"}
        return getattr(schedules, value["schedule"])(**values)
    return value
