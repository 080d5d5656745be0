"""TorchLearner: PyTorch on one rank. Owns the only batch loop of torch: building, training, evaluating, predicting."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from orca.core.learner import FitPlan, Losses, NoCallbacks, OutputSpec, State
from orca.core.metrics import Meter
from orca.core.pulse import BACKWARD, DATA, EVALUATE, FORWARD, OPTIMIZER, Pulse
from orca.core.source import Batch
from orca.core.tree import cut_rows, flatten, map_tree
from orca.core.world import World
from orca.errors import ArgumentError, DataError, LossNotFinite, NotYet
from orca.frameworks.torch.files import load_state, save_module, save_state
from orca.frameworks.torch.sync import Sync, sync_of
from orca.frameworks.torch.targets import align_all, mass_of, takes_classes, weighs

logger = logging.getLogger(__name__)

_WINDOW = 64  # steps whose losses are looked at together: one look costs as much as a step of a tiny model


@dataclass
class TorchLearner(NoCallbacks):
    """Train a torch model. The fields travel to a rank; everything else is built there.

    Attributes:
        model: A module, or a creator `(config)` of one.
        optimizer: An optimizer of that module, or a creator `(model, config)`; None where nothing is trained.
        loss: A loss module or class, a function `(output, target)`, or a creator `(config)`; None where there is none.
        config: What the creators get.
        sync: How replicas agree: "replicated" or "sharded".
    """

    model: Any
    optimizer: Any = None
    loss: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    sync: str = "replicated"
    hook: Callable[[], None] | None = None

    @classmethod
    def of(
        cls,
        model: Any,
        optimizer: Any,
        loss: Any,
        config: dict[str, Any],
        sync: str,
        hook: Callable[[], None] | None = None,
    ) -> TorchLearner:
        """Check what can be checked before anything travels.

        Raises:
            ArgumentError: An argument has the wrong kind.
        """
        if isinstance(model, list | tuple):
            raise NotYet("a list of models is not built yet. Put them into one torch.nn.Module.")
        if model is not None and not isinstance(model, nn.Module) and not callable(model):
            raise ArgumentError(
                f"the model must be a torch.nn.Module or a function that returns one; got {type(model).__name__}."
            )
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer) and not callable(optimizer):
            raise ArgumentError(
                "the optimizer must be a torch.optim.Optimizer or a function (model, config) that returns one; "
                f"got {type(optimizer).__name__}."
            )
        if loss is not None and not callable(loss):
            raise ArgumentError(
                f"the loss must be a torch loss, a function (output, target) or a creator; got {type(loss).__name__}."
            )
        if isinstance(optimizer, torch.optim.Optimizer):
            _check_linked(optimizer, model)
        return cls(model, optimizer, loss, config, sync, hook)

    @staticmethod
    def default_seed() -> int:
        """Return torch's own seed: the one the user set with torch.manual_seed, or what torch began with."""
        return torch.initial_seed() % 2**63

    def check_trainable(self) -> None:
        """Check that there is a model, an optimizer and a loss."""
        if self.model is None:
            raise ArgumentError("there is no model to train. Pass model= to from_torch, or load an entire model.")
        if self.optimizer is None:
            raise ArgumentError("You must provide the optimizer for train. Pass optimizer= to from_torch.")
        if self.loss is None:
            raise ArgumentError("You must provide the loss for train. Pass loss= to from_torch.")

    def build(self, state: State) -> nn.Module:
        """Return a module of its own with the weights of a state."""
        with torch.random.fork_rng(devices=[]):  # a creator's draws, and what it does to its config, are thrown away
            net = build_model(self.model, dict(self.config))
        net = copy.deepcopy(net) if net is self.model else net
        net.load_state_dict(state.payload["models"][0])
        return net

    def initial_state(self, seed: int) -> State:
        """Return the weights training would begin with."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = build_model(self.model, dict(self.config))
        return State(payload={"models": [_on_cpu(net.state_dict())], "optimizers": [], "schedulers": []})

    def with_parts(self, model: nn.Module | None, loss: Any) -> TorchLearner:
        """Return this learner with another model or loss; an optimizer of the old model cannot follow."""
        linked = model is not None and isinstance(self.optimizer, torch.optim.Optimizer)
        return replace(
            self,
            model=self.model if model is None else model,
            loss=self.loss if loss is None else loss,
            optimizer=None if linked else self.optimizer,
        )

    save_state = staticmethod(save_state)
    save_model = staticmethod(save_module)
    load_state = staticmethod(load_state)

    def join(self, world: World, state: State | None, seed: int, training: bool) -> None:
        """Build model, loss and optimizer on this rank, with the same weights everywhere."""
        if self.hook:
            self.hook()
        self.world, self.seed = world, seed
        self.device = _device(world)
        torch.manual_seed(seed)
        self.net = build_model(self.model, self.config).to(self.device)
        self.precision = _precision(self.net)
        self.criterion = build_loss(self.loss, self.config)
        if isinstance(self.criterion, nn.Module):
            self.criterion.to(self.device)
        self.classes = takes_classes(self.criterion)
        self.sample: Any = None
        if state:
            self.net.load_state_dict(state.payload["models"][0])
        if training:
            stepper = build_optimizer(self.optimizer, self.net, self.config)
            if state and state.payload.get("optimizers"):
                stepper.load_state_dict(state.payload["optimizers"][0])
            self.stepper = stepper
            self.agree: Sync = sync_of(self.sync, self.net, stepper, world)

    def train(self, batches: Iterable[Batch], pulse: Pulse, epoch: int, plan: FitPlan) -> Losses:
        """Train one epoch."""
        torch.manual_seed(np.random.SeedSequence([self.seed, epoch, self.world.rank]).generate_state(1, np.uint64)[0])
        self.agree.module.train()
        book = _LossBook(epoch, plan.on_nan)
        pulse.at(DATA)
        for step, batch in enumerate(batches):
            part = self._train_step(batch, pulse)
            pulse.step(epoch, step + 1, pulse.steps, book.add(part, batch.rows))
            pulse.at(DATA)
        return book.close()

    def evaluate(self, batches: Iterable[Batch], metrics: Sequence[Meter], pulse: Pulse) -> Losses:
        """Feed outputs and targets to the metrics; return the sum of losses."""
        self.net.eval()
        losses, sums = Losses(), []
        pulse.at(DATA)
        with torch.no_grad():
            for batch in batches:
                pulse.at(EVALUATE)
                losses.steps += 1
                if batch.rows:
                    outputs, targets = self._pair(self._forward(self.net, batch.x), batch)
                    if self.criterion is not None:
                        times, mass = self._times(batch, targets)
                        sums.append(self.criterion(*outputs, *targets).double().mean() * times if mass else 0.0)
                        losses.mass += mass
                    for metric in metrics:
                        metric.update(_single(outputs), _single(targets))
                    losses.rows += batch.rows
                pulse.at(DATA)
        losses.loss_sum = float(sum(sums)) if self.criterion is not None else np.nan
        return losses

    def state(self) -> State:
        """Return weights and optimizer state on the CPU; the output's description from whoever saw a row."""
        told = self.world.all_gather(self._describe())
        payload = {"models": [_on_cpu(self.net.state_dict())], "optimizers": [], "schedulers": []}
        if hasattr(self, "agree"):
            payload["optimizers"] = [_on_cpu(self.agree.optimizer_state())]
        given, output = next((specs for specs in told if specs), (None, None))
        return State(payload=payload, output=output, input=given)

    def leave(self) -> None:
        """Drop the replicas: torch cannot destroy a process group that a DistributedDataParallel still holds."""
        for name in ("agree", "net", "stepper"):
            self.__dict__.pop(name, None)

    def restore(self, state: State) -> None:
        """Build the model for answering."""
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.net = self.build(state).to(self.device).eval()
        self.precision = _precision(self.net)

    def predict(self, x: Any) -> Any:
        """Return the outputs for a block of rows, as a tree of numpy arrays."""
        with torch.inference_mode():
            output = _call(self.net, self._tensors(x))
            return map_tree(_to_numpy, output)

    def _train_step(self, batch: Batch, pulse: Pulse) -> _Part | None:
        if isinstance(self.stepper, torch.optim.LBFGS):
            return self._closure_step(batch, pulse)
        part = self._gradients(batch, pulse)
        pulse.at(OPTIMIZER)
        self.agree.step(batch.leader)
        return part

    def _closure_step(self, batch: Batch, pulse: Pulse) -> _Part | None:
        """Step an optimizer that asks for the loss several times: every rank must see the same loss."""
        seen: list[_Part | None] = []

        def closure() -> float:
            part = self._gradients(batch, pulse)
            seen.append(part)
            mean = torch.zeros((), dtype=torch.float64, device=self.device)
            if part is not None:
                mean += part.loss.double() * part.weight / self.world.size
            dist.all_reduce(mean)
            return float(mean)

        self.agree.step(batch.leader, closure)
        return seen[0]

    def _gradients(self, batch: Batch, pulse: Pulse) -> _Part | None:
        """Leave the step's gradients in the weights; return this rank's part of the loss."""
        pulse.at(FORWARD)
        self.agree.zero()
        if not batch.rows:
            self._idle(batch, pulse)
            return None
        outputs, targets = self._pair(self._forward_training(batch), batch)
        loss = self.criterion(*outputs, *targets)
        loss = loss.mean() if loss.dim() else loss
        times, mass = self._times(batch, targets)
        share = times / self._total(mass) if self._weighs(batch) else times / self._times(batch)[0]
        pulse.at(BACKWARD)
        if not mass:  # every target of this rank is ignored: its mean is 0 / 0
            self.agree.idle(outputs)
            return None
        part = _Part(loss.detach(), times, mass, share * self.world.size)
        self.agree.backward(loss, part.weight)
        return part

    def _idle(self, batch: Batch, pulse: Pulse) -> None:
        """Step along without rows: the template row goes through twice (batch norm needs two) and counts nothing."""
        kept = [buffer.clone() for buffer in self.net.buffers()]
        twice = map_tree(lambda leaf: np.repeat(leaf, 2, axis=0), batch.x)
        output = self._forward(self.agree.module, twice)
        if self._weighs(batch):  # after the forward pass, which may hold a collective of DistributedDataParallel's own
            self._total(0.0)
        pulse.at(BACKWARD)
        self.agree.idle(output)
        for buffer, old in zip(self.net.buffers(), kept, strict=True):
            buffer.copy_(old)

    def _forward(self, module: nn.Module, x: Any) -> Any:
        if self.sample is None:
            self.sample = cut_rows(x, slice(0, 1))
        return _call(module, self._tensors(x))

    def _forward_training(self, batch: Batch) -> Any:
        try:
            return self._forward(self.agree.module, batch.x)
        except ValueError as error:
            if batch.rows > 1 or "more than 1 value per channel" not in str(error):
                raise
        # Batch norm has no statistics of one row. One process would have had more of them: use the running ones.
        norms = [module for module in self.net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.eval()
        output = self._forward(self.agree.module, batch.x)
        for norm in norms:
            norm.train()
        return output

    def _describe(self) -> tuple[OutputSpec, OutputSpec] | None:
        """Describe a row, and what the model answers for it: a model in training may give something else."""
        if self.sample is None:
            return None
        self.net.eval()
        with torch.no_grad():
            return OutputSpec.of(self.sample), OutputSpec.of(_call(self.net, self._tensors(self.sample)))

    def _pair(self, output: Any, batch: Batch) -> tuple[list[Any], list[Any]]:
        if batch.y is None:
            if self.criterion is None:
                return flatten(output)[0], []
            raise DataError("there are no labels to compare the outputs with. Pass label_cols, or data with labels.")
        targets = map_tree(lambda leaf: self._tensor(leaf, cast=False), batch.y)
        return align_all(output, targets, self.classes)

    def _weighs(self, batch: Batch) -> bool:
        """Say whether the loss divides by the weights of its targets instead of the rows."""
        return weighs(self.criterion, batch.y)

    def _times(self, batch: Batch, targets: list[Any] | None = None) -> tuple[float, float]:
        """Return (the factor that makes the loss of this rank's rows a sum, what that sum is a mean over).

        Without targets: those of the whole step, for losses that do not look at targets for it.
        """
        rows = batch.step_rows if targets is None else batch.rows
        if getattr(self.criterion, "reduction", "mean") == "sum":
            return 1.0, rows
        if targets is not None and self._weighs(batch):
            mass = float(mass_of(self.criterion, targets[0]))
            return mass, mass
        return rows, rows

    def _total(self, mass: float) -> float:
        """Return the sum of all ranks' masses."""
        total = torch.tensor(mass, dtype=torch.float64)
        dist.all_reduce(total)
        return float(total) or 1.0

    def _tensors(self, x: Any) -> Any:
        return map_tree(lambda leaf: self._tensor(leaf, cast=True), x)

    def _tensor(self, leaf: Any, cast: bool) -> Any:
        """Return an array as a tensor on the device; floating features in the model's own precision."""
        if isinstance(leaf, torch.Tensor):
            return leaf.to(self.device, non_blocking=True)
        array = np.asarray(leaf)
        if array.dtype.kind not in "biufc":
            raise DataError(
                f"a torch model cannot take values of type {array.dtype} (for example {array.reshape(-1)[:1]}). "
                "Turn such columns into numbers first, for instance with StringIndexer or a cast."
            )
        if not array.flags.writeable or not array.flags.c_contiguous:
            array = np.array(array)
        tensor = torch.from_numpy(array)
        if cast and tensor.is_floating_point():
            tensor = tensor.to(self.precision)
        return tensor.to(self.device, non_blocking=True)


@dataclass(frozen=True)
class _Part:
    """Be one rank's part of a step's loss.

    Attributes:
        loss: The loss of this rank's rows.
        times: What makes it a sum: rows for a mean, 1 for a sum.
        mass: What that sum is divided by for the mean: rows, or the targets' weights.
        weight: What the loss is scaled by, so that the mean over ranks is the loss of the whole step.
    """

    loss: torch.Tensor
    times: float
    mass: float
    weight: float


class _LossBook:
    """Keep the losses of an epoch without waiting for each: they are looked at a window at a time."""

    def __init__(self, epoch: int, on_nan: str) -> None:
        self.epoch, self.on_nan = epoch, on_nan
        self.losses = Losses()
        self.window: list[_Part] = []
        self.seen: list[int] = []
        self.shown: float | None = None

    def add(self, part: _Part | None, rows: int) -> float | None:
        """Write down a step's loss (None for a step without rows); return the newest loss that was looked at."""
        self.losses.steps += 1
        self.losses.rows += rows
        self.losses.last_mass = part.mass if part else 0
        if part is not None:
            self.window.append(part)
            self.seen.append(self.losses.steps)
        if len(self.window) >= _WINDOW:
            self._look()
        return self.shown

    def close(self) -> Losses:
        """Return the sums of the epoch."""
        self._look()
        if self.losses.last_mass:
            self.losses.last_loss_sum = (self.shown or 0.0) * self.losses.last_mass
        return self.losses

    def _look(self) -> None:
        if not self.window:
            return
        values = torch.stack([part.loss for part in self.window]).double().cpu().numpy()
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad) and self.on_nan != "ignore":
            step = self.seen[bad[0]]
            text = (
                f"the loss became {values[bad[0]]} at step {step} of epoch {self.epoch}. Lower the learning rate, look "
                "at the data for NaN or infinite values, clip gradients, or pass on_nan='warn' to go on."
            )
            if self.on_nan == "raise":
                raise LossNotFinite(text)
            logger.warning(text)
            self.on_nan = "ignore"
        sums = values * [part.times for part in self.window]
        self.losses.loss_sum += float(sums.sum())
        self.losses.mass += sum(part.mass for part in self.window)
        self.shown = float(sums[-1]) / self.window[-1].mass
        self.window, self.seen = [], []


def build_model(model: Any, config: dict[str, Any]) -> nn.Module:
    """Return the module itself, or the one its creator makes."""
    if model is None:
        raise ArgumentError("there is no model. Pass model= to from_torch, or load an entire model.")
    net = model if isinstance(model, nn.Module) else call_creator(model, config)
    if not isinstance(net, nn.Module):
        raise ArgumentError(
            f"the model must be a torch.nn.Module or a function that returns one; got {type(net).__name__}. "
            "Return the module from model_creator(config)."
        )
    return net


def build_optimizer(optimizer: Any, net: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    """Return the optimizer itself, or the one its creator makes for this module."""
    if optimizer is None:
        raise ArgumentError("You must provide the optimizer for train. Pass optimizer= to the Estimator.")
    made = optimizer if isinstance(optimizer, torch.optim.Optimizer) else call_creator(optimizer, net, config)
    if not isinstance(made, torch.optim.Optimizer):
        raise ArgumentError(
            f"the optimizer must be a torch.optim.Optimizer or a function that returns one; got {type(made).__name__}. "
            "Return it from optimizer_creator(model, config)."
        )
    return made


def build_loss(loss: Any, config: dict[str, Any]) -> Any:
    """Return a callable loss: a module, a function of output and target, or what a class or creator makes."""
    if loss is None or isinstance(loss, nn.Module):
        return loss
    if isinstance(loss, type):
        return call_creator(loss, config)
    if not callable(loss):
        raise ArgumentError(f"the loss must be a torch loss or a function; got {type(loss).__name__}.")
    return call_creator(loss, config) if _required(loss) == 1 else loss


def call_creator(creator: Callable[..., Any], *arguments: Any) -> Any:
    """Call a creator with as many of the arguments as it takes."""
    if not callable(creator):
        raise ArgumentError(
            f"expected an object or a creator function; got {type(creator).__name__} {creator!r}. "
            "Pass the object itself, or a function that makes it on the worker."
        )
    if isinstance(creator, type):
        return creator(*arguments[: _required(creator)])  # its defaults are not meant for a config
    parameters = inspect.signature(creator).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return creator(*arguments)
    places = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return creator(*arguments[:places])


def _check_linked(optimizer: torch.optim.Optimizer, model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            "an optimizer instance needs the module whose parameters it has; got a model creator. "
            "Pass the module itself, or an optimizer creator (model, config)."
        )
    known = {id(p) for p in model.parameters()}
    if not any(id(p) in known for group in optimizer.param_groups for p in group["params"]):
        raise ArgumentError("the optimizer has none of the model's parameters. Make it with model.parameters().")


def _required(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _precision(net: nn.Module) -> torch.dtype:
    """Return the precision of a module's weights: floating features are given in it."""
    first = next((p for p in net.parameters() if p.is_floating_point()), None)
    return first.dtype if first is not None else torch.get_default_dtype()


def _call(module: nn.Module, x: Any) -> Any:
    return module(*x) if isinstance(x, tuple | list) else module(x)


def _single(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tuple(parts)


def _device(world: World) -> torch.device:
    """Return this rank's own GPU where every rank of the node has one, else the CPU."""
    if torch.cuda.is_available() and torch.cuda.device_count() >= world.local_size:
        torch.cuda.set_device(world.local_rank)
        return torch.device("cuda", world.local_rank)
    return torch.device("cpu")


def _on_cpu(tree: Any) -> Any:
    return map_tree(lambda leaf: leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf, dict(tree))


def _to_numpy(leaf: torch.Tensor) -> np.ndarray:
    leaf = leaf.detach().cpu()
    return (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy()
