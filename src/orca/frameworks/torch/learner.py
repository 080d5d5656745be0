"""TorchLearner: PyTorch on one rank. Owns the only batch loop of torch: building, training, evaluating, predicting."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from orca.core.horovod import require
from orca.core.learner import FitPlan, Losses, OutputSpec, State
from orca.core.metrics import Meter
from orca.core.pulse import BACKWARD, DATA, EVALUATE, FORWARD, OPTIMIZER, Pulse
from orca.core.source import Batch
from orca.core.tree import flatten, map_tree, same_form
from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.torch.book import LossBook, Part, refuse, together
from orca.frameworks.torch.build import (
    build_loss,
    build_models,
    build_optimizers,
    build_schedulers,
    check_linked,
    scheduler_state,
)
from orca.frameworks.torch.callbacks.callback import Hooks
from orca.frameworks.torch.criterion import Criterion, scalar
from orca.frameworks.torch.files import load_state, save_module, save_state
from orca.frameworks.torch.hands import Handed
from orca.frameworks.torch.operator import TrainingOperator, overrides
from orca.frameworks.torch.options import PRECISIONS, Options, clipping_of
from orca.frameworks.torch.paged import building_on_disk, give_memory_back
from orca.frameworks.torch.runner import Runner
from orca.frameworks.torch.steps import Steps, set_deterministic
from orca.frameworks.torch.sync import Sync, sync_of
from orca.frameworks.torch.tensors import (
    Place,
    answering_device,
    call,
    copied,
    device_of,
    first_row,
    full,
    listed,
    pieces_of,
    single,
    squeezed,
    to_numpy,
    twice,
)


@dataclass
class TorchLearner:
    """Train a torch model. The fields travel to a rank; everything else is built there.

    Attributes:
        model: A module, or a creator `(config)` of one; or several.
        optimizer: An optimizer of that module, or a creator `(model, config)`; None where nothing is trained.
        loss: A loss module or class, a function `(output, target)`, or a creator `(config)`; None where there is none.
        config: What the creators get.
        sync: How replicas agree: "replicated", "sharded", "fully sharded" or "horovod".
        hook: Called on each rank before anything else.
        options: How to train beyond the plain step.
        callbacks: Callbacks of predictions.
    """

    model: Any
    optimizer: Any = None
    loss: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    sync: str = "replicated"
    hook: Callable[[], None] | None = None
    options: Options = field(default_factory=Options)
    callbacks: tuple[Any, ...] = ()
    numbers: ClassVar[bool] = True  # torch has no tensors of texts or dates
    gpu = None  # the number of the GPU to answer on, where a cluster gave this process one

    @classmethod
    def of(
        cls,
        model: Any,
        optimizer: Any,
        loss: Any,
        config: dict[str, Any],
        sync: str,
        hook: Callable[[], None] | None = None,
        options: Options | None = None,
    ) -> TorchLearner:
        """Check what can be checked before anything travels.

        Raises:
            ArgumentError: An argument has the wrong kind.
        """
        for net in model if isinstance(model, list | tuple) else [model]:
            if net is not None and not isinstance(net, nn.Module) and not callable(net):
                raise ArgumentError(
                    f"the model must be a torch.nn.Module or a function that returns one; got {type(net).__name__}."
                )
        for one in optimizer if isinstance(optimizer, list | tuple) else [optimizer]:
            if one is not None and not isinstance(one, torch.optim.Optimizer) and not callable(one):
                raise ArgumentError(
                    "the optimizer must be a torch.optim.Optimizer or a function (model, config) that returns one; "
                    f"got {type(one).__name__}."
                )
        if loss is not None and not callable(loss):
            raise ArgumentError(
                f"the loss must be a torch loss, a function (output, target) or a creator; got {type(loss).__name__}."
            )
        if isinstance(optimizer, torch.optim.Optimizer):
            check_linked(optimizer, model)
        options = options or Options()
        options.check(sync)
        if sync == "horovod":
            require("torch")
        if options.operator is not None and not (
            isinstance(options.operator, type) and issubclass(options.operator, TrainingOperator)
        ):
            raise ArgumentError(
                f"training_operator_cls must be a subclass of TrainingOperator, not an instance; got "
                f"{options.operator!r}. Import it from orca.learn.pytorch."
            )
        made = cls(model, optimizer, loss, config, sync, hook, options)
        if made._own_step and options.operator is not None:
            options.check_hands_on(f"the operator {options.operator.__name__}", sync)
        return made

    @staticmethod
    def options_of(clip_norm: Any = None, clip_value: Any = None, **options: Any) -> Options:
        """Return how to train beyond the plain step; see Options."""
        return Options(clipping=clipping_of(clip_norm, clip_value), **options)

    @property
    def spread(self) -> bool:
        """Say whether no rank holds the whole model: its state may be too large to travel."""
        return self.sync == "fully sharded"

    @property
    def pauses(self) -> bool:
        """Say whether an epoch may be trained in several parts: one that the user's operator trains is hers."""
        return not self._own_step

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
        if self.loss is None and not self._own_step:
            raise ArgumentError("You must provide the loss for train. Pass loss= to from_torch.")

    def check_callbacks(self, callbacks: Sequence[Any]) -> None:
        """Check callbacks before anything travels.

        Raises:
            ArgumentError: They are none, or do not go with the options.
        """
        hooks = Hooks(callbacks)
        if hooks.main_has("on_iter_backward"):
            self.options.check_hands_on(f"the callback {type(hooks.main).__name__}", self.sync)

    def build(self, state: State) -> Any:
        """Return a module of its own (a list where there are several) with the weights of a state."""
        # A creator's draws, and what it does to its config, are thrown away.
        with torch.random.fork_rng(devices=[]), self._room():
            made = build_models(self.model, dict(self.config))
        given = self.model if isinstance(self.model, list | tuple) else [self.model]
        nets = [copy.deepcopy(net) if any(net is one for one in given) else net for net in made]
        for net, weights in zip(nets, state.payload.get("averages") or state.payload["models"], strict=True):
            net.load_state_dict(weights)
        return nets[0] if len(nets) == 1 else nets

    def initial_state(self, seed: int) -> State:
        """Return the weights training would begin with."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            nets = build_models(self.model, dict(self.config))
        return State(payload={"models": [copied(n.state_dict()) for n in nets], "optimizers": [], "schedulers": []})

    def with_parts(self, model: nn.Module | None, loss: Any) -> TorchLearner:
        """Return this learner with another model or loss; an optimizer of the old model cannot follow."""
        linked = model is not None and isinstance(self.optimizer, torch.optim.Optimizer)
        return replace(
            self,
            model=self.model if model is None else model,
            loss=self.loss if loss is None else loss,
            optimizer=None if linked else self.optimizer,
        )

    def with_clipping(self, bounds: tuple[float, float] | None, norm: float | None) -> TorchLearner:
        """Return this learner with gradients clipped otherwise."""
        options = replace(self.options, clipping=clipping_of(norm, bounds))
        if self._own_step and options.operator is not None:
            options.check_hands_on(f"the operator {options.operator.__name__}", self.sync)
        return replace(self, options=options)

    def for_answers(self, callbacks: Sequence[Any], precision: str | None) -> TorchLearner:
        """Return this learner as predictions need it: with callbacks, and perhaps in half precision."""
        self.check_callbacks(callbacks)
        options = replace(self.options, precision=precision or self.options.precision)
        options.check(self.sync)
        return replace(self, callbacks=tuple(callbacks), options=options)

    save_state = staticmethod(save_state)
    save_model = staticmethod(save_module)
    load_state = staticmethod(load_state)

    # On a rank: coming and going.

    def join(self, world: World, state: State | None, seed: int, training: bool) -> None:
        """Build model, loss and optimizer on this rank, with the same weights everywhere."""
        if self.hook:
            self.hook()
        self.world, self.seed = world, seed
        state = self._fetched(state)
        if self.spread:
            give_memory_back()
        self._were_deterministic = set_deterministic(True) if self.options.deterministic else None
        torch.manual_seed(seed)
        self._set_up(state, device_of(world))
        self.runner = Runner(self, world.rank, world.size)
        self.runner.global_step = state.steps if state else 0
        self.epoch = -1
        if training:
            self.steppers = build_optimizers(self.optimizer, self.nets, self.config)
            self.schedulers = build_schedulers(self.options.scheduler, self.steppers, self.config)
            self.options.check_schedulers(self.schedulers)
            # Of an optimizer's state each rank takes its part when the model is cut.
            steppers = [] if self.spread else self.steppers
            for things, name in ((steppers, "optimizers"), (self.schedulers, "schedulers")):
                for thing, kept in zip(things, state.payload.get(name, ()) if state else (), strict=False):
                    thing.load_state_dict(kept)
            if self.options.ema:
                self._begin_average(state)
            self.scaler = torch.amp.GradScaler(self.place.device.type, enabled=self.options.precision == "fp16")
            if state and state.payload.get("scaler"):
                self.scaler.load_state_dict(state.payload["scaler"])
            # It begins with the first number that it scales, and this rank may have none.
            self.scaler.scale(torch.zeros((), device=self.place.device))
        else:
            self.operator = self._operator(state)
            if state and state.payload.get("averages"):
                self._begin_average(state)
            if self.spread:
                from orca.frameworks.torch.fsdp import shard

                for net in self.nets:
                    shard(net, world, self.place.device)

    def call_back(self, callbacks: Sequence[Any]) -> None:
        """Take the callbacks of an evaluation."""
        self.hooks = Hooks(callbacks)
        self.hooks.begin(self.runner, self.net, {"config": self.config})

    def begin(self, plan: FitPlan, steps: int | None) -> None:
        """Begin a fit: wrap the model for all ranks, and introduce the callbacks."""
        self.hooks = Hooks(plan.callbacks)
        self.hooked = self.hooks.main is not None or self.hooks.has("before_train_iter", "after_train_iter")
        self.hands_on = self._own_step or self.hooks.main_has("on_iter_backward")
        if self.hands_on or self.hooks.main_has("on_iter_forward", "on_train_forward"):
            if plan.weighted:
                raise ArgumentError("sample weights cannot reach a loss of your own. Weigh the rows there.")
            self.counting = Criterion(None)  # whatever the loss is: a mean over rows
        if len(self.nets) > 1 and not self.hands_on:
            raise ArgumentError(
                f"{len(self.nets)} models need to be told how they are trained together. Pass training_operator_cls, "
                "or a MainCallback with its own forward and backward pass."
            )
        if self.options.sync_batchnorm:
            from orca.frameworks.torch.batchnorm import share_statistics

            self.statistics = [share_statistics(net) for net in self.nets]
        options: dict[str, Any] = {"unused": self.options.unused, "hands_on": self.hands_on}
        if self.spread:
            kept = self.given.payload.get("optimizers") if self.given else None
            options |= {"device": self.place.device, "kept": kept[0] if kept else None}
        self.agrees: list[Sync] = [
            sync_of(self.sync, net, stepper, self.world, **options)
            for net, stepper in zip(self.nets, self._stepper_of_each(), strict=True)
        ]
        self.operator = self._operator(self.given)
        self.runner.num_epochs, self.runner.num_steps = plan.epochs, steps
        if self.hooks:
            self.hooks.begin(self.runner, self.net, {"epochs": plan.epochs, "steps": steps, "config": self.config})

    def end_epoch(self, line: dict[str, Any]) -> bool:
        """Step the schedulers that step once an epoch, and tell the callbacks; say whether one wants to stop."""
        self.runner.epoch_stats = line
        if self.hooks.main is not None:
            self.hooks.on_main("on_lr_adjust", self.runner)
        elif not self._conducts or self._ends_epoch():
            self.step_schedulers(line)
        if self.hooks:
            self.hooks("after_train_epoch", self.runner, line["epoch"], logs=line)
        return self.runner.stop

    def _ends_epoch(self) -> bool:
        """Say whether the operator trained the epoch with our own train_epoch, and left its end to us."""
        ends = self.operator is not None and self.operator.ends_epoch
        if self.operator is not None:
            self.operator.ends_epoch = False
        return ends

    def finish(self) -> None:
        """End a fit."""
        if self.hooks:
            self.hooks("after_run", self.runner, logs=self.runner.epoch_stats)

    def state(self) -> State:
        """Return weights and optimizer state on the CPU; the output's description from whoever saw a row.

        Rank 0 alone copies the tensors, where its sync has not done that: its state is the one that counts.
        """
        told = self.world.all_gather(self._describe())
        kept = copied if self.world.rank == 0 and not self.spread else dict
        payload: dict[str, Any] = {"models": [], "optimizers": [], "schedulers": []}
        if hasattr(self, "agrees"):
            payload["models"] = [kept(agree.model_state()) for agree in self.agrees]
            payload["optimizers"] = [kept(state) for state in self._optimizer_states()]
            payload["schedulers"] = [scheduler_state(scheduler) for scheduler in self.schedulers]
            if self.average is not None:
                payload["averages"] = [kept(self.average.module.state_dict())]
            if self.scaler.is_enabled():
                payload["scaler"] = self.scaler.state_dict()
        elif not self.spread:
            payload["models"] = [kept(net.state_dict()) for net in self.nets]
        if self.operator is not None:
            payload["operator"] = self.operator.state_dict()
        given, output = next((specs for specs in told if specs), (None, None))
        return State(payload=payload, output=output, input=given)

    def leave(self) -> None:
        """Drop the replicas: torch cannot destroy a process group that a DistributedDataParallel still holds."""
        if "hooks" in self.__dict__:
            self.hooks.release()
        for agree in self.__dict__.get("agrees", ()):
            agree.close()
        for statistics in self.__dict__.get("statistics", ()):
            statistics.release()
        before: bool | None = self.__dict__.get("_were_deterministic")
        if before is not None:
            set_deterministic(before)
        for name in ("agrees", "nets", "steppers", "schedulers", "average", "operator", "runner", "hooks", "scaler"):
            self.__dict__.pop(name, None)

    # Training.

    def train(self, batches: Iterable[Batch], pulse: Pulse, epoch: int, plan: FitPlan, first_step: int = 0) -> Losses:
        """Train one epoch, or what follows its first steps."""
        for module in self.modules:
            module.train()
        if self.epoch != epoch:
            self.epoch = self.runner.epochs = epoch
            if self.hooks:
                self.hooks("before_train_epoch", self.runner, epoch)
        if self._conducts:
            return self._conduct(batches, pulse, plan)
        book = LossBook(epoch, plan.on_nan, first_step)
        rates: list[float] = []
        pulse.at(DATA)
        for step, batch in self.steps(batches, epoch, first_step):
            rates.append(self._rate())
            part = self._hooked_step(batch, pulse, step) if self.hooked else self._train_step(batch, pulse)
            pulse.step(epoch, step + 1, pulse.steps, book.add(part, batch.rows), pulse.rows + batch.step_rows)
            pulse.at(DATA)
            if self.hooked and self.agree_to_stop():
                break
        losses = replace(book.close(), rates=rates)
        if pulse.profiling:
            pulse.profile["communication"] += self.agree.communicated() * losses.steps
        return losses

    def _train_step(self, batch: Batch, pulse: Pulse) -> Part | None:
        if isinstance(self.steppers[0], torch.optim.LBFGS):
            part = self._closure_step(batch, pulse)
        else:
            part = self._gradients(batch, pulse)
            pulse.at(OPTIMIZER)
            if self.options.clipping:
                self.scaler.unscale_(self.steppers[0])
                self.agree.clip(self.options.clipping)
            self.agree.step(batch.leader, self._update)
        self._after_update()
        return part

    def _update(self) -> None:
        if self.scaler.is_enabled():
            self.scaler.step(self.steppers[0])
            self.scaler.update()
        else:
            self.steppers[0].step()

    def _after_update(self) -> None:
        if self.average is not None:
            self.average.update_parameters(self.net)
        if self.options.step_freq == "batch" and not self._conducts:
            for scheduler in self.schedulers:
                scheduler.step()
        self.runner.global_step += 1

    def _closure_step(self, batch: Batch, pulse: Pulse) -> Part | None:
        """Step an optimizer that asks for the loss several times: every rank must see the same loss."""
        seen: list[Part | None] = []

        def closure() -> float:
            part = self._gradients(batch, pulse)
            if self.options.clipping:
                self.agree.clip(self.options.clipping)
            seen.append(part)
            mean = torch.zeros((), dtype=torch.float64, device=self.place.device)
            if part is not None:
                mean += part.loss.double() * part.weight / self.world.size
            dist.all_reduce(mean)
            return float(mean)

        self.agree.step(batch.leader, lambda: self.steppers[0].step(closure))  # type: ignore[arg-type]
        return seen[0]

    def _gradients(self, batch: Batch, pulse: Pulse) -> Part | None:
        """Leave the step's gradients in the weights; return this rank's part of the loss."""
        pulse.at(FORWARD)
        self.agree.zero()
        if not batch.rows:
            self._idle(batch, pulse)
            return None
        self._count_statistics(True)
        pieces = pieces_of(batch, self.options.accumulate)
        parts: list[Part] = []
        whole = 0.0
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            with nullcontext() if last else self.agree.no_sync():
                pulse.at(FORWARD)
                with self._autocast():
                    outputs, targets, loss = self._loss_of(piece)
                times, mass = self.counting.times(piece, targets)
                if not whole:  # after the first forward pass, as on a rank without rows
                    whole = self.counting.whole(batch, mass if len(pieces) == 1 else self._mass(batch))
                pulse.at(BACKWARD)
                if not mass:  # every target of this piece is ignored: its mean is 0 / 0
                    self.agree.idle(outputs)
                    continue
                part = Part(loss.detach(), times, mass, times / whole * self.world.size)
                self.agree.backward(self.scaler.scale(loss), part.weight)
                parts.append(part)
        return together(parts)

    def _loss_of(self, piece: Batch) -> tuple[list[Any], list[Any], torch.Tensor]:
        """Return (outputs, targets, loss) of a piece of a batch, in the user's words where she has some."""
        if self.hooks.main_has("on_iter_forward", "on_train_forward"):
            self.runner.batch = self.place.loaded(piece)
            self.hooks.on_main("on_train_forward", self.runner)
            runner = self.runner
            return flatten(runner.output)[0], flatten(runner.target)[0], scalar(runner.loss)
        outputs, targets = self._pair(self._forward_training(piece), piece)
        loss = self.measure(outputs, targets, piece.weights)
        if self.hooked:
            self.runner.output, self.runner.target, self.runner.loss = single(outputs), single(targets), loss
        return outputs, targets, loss

    def _idle(self, batch: Batch, pulse: Pulse) -> None:
        """Step along without rows: the template row goes through twice (batch norm needs two) and counts nothing."""
        self._count_statistics(False)
        kept = self._buffers()
        with self._autocast():
            output = self._forward(self.agree.module, twice(batch.x))
        self.counting.whole(batch, 0.0)  # after the forward pass, which may hold a collective of its own
        pulse.at(BACKWARD)
        self.agree.idle(output)
        if not self.options.sync_batchnorm:
            self._put_back(kept)

    # Training with the user's own hands.

    def _hooked_step(self, batch: Batch, pulse: Pulse, step: int) -> Part | None:
        runner = self.runner
        runner.batch_idx, runner.batch = step, self.place.loaded(batch)
        self.hooks("before_train_iter", runner, step)
        part = self._handed_step(batch, pulse) if self.hands_on else self._train_step(batch, pulse)
        self.hooks("after_train_iter", runner, step)
        return part

    def _handed_step(self, batch: Batch, pulse: Pulse) -> Part | None:
        """Let the main callback do forward pass, backward pass and update."""
        runner = self.runner
        kept = self.open_step(batch)
        runner.batch = self.place.loaded(batch)
        pulse.at(FORWARD)
        with self._autocast():
            self.hooks.on_main("on_train_forward", runner)
        pulse.at(BACKWARD)
        self.hooks.on_main("on_iter_backward", runner)
        self.close_step(batch, kept)
        weight = batch.rows * self.world.size / batch.step_rows
        loss = runner.loss
        return Part(scalar(loss).detach(), batch.rows, batch.rows, weight) if batch.rows and loss is not None else None

    def open_step(self, batch: Batch) -> list[torch.Tensor]:
        """Weigh this rank's gradients in the step to come; return the buffers as they are."""
        for agree in self.agrees:
            if hasattr(agree, "weight"):
                agree.weight = batch.rows * self.world.size / batch.step_rows
        self._count_statistics(bool(batch.rows))
        if batch.rows == 1:  # of which batch norm has no statistics: use the running ones
            self._calm(nn.BatchNorm1d)
        return [] if batch.rows else self._buffers()

    def close_step(self, batch: Batch, kept: list[torch.Tensor]) -> None:
        """Agree on the buffers after a step that the user did."""
        if not batch.rows:
            self._put_back(kept)
        if batch.rows == 1:
            self._calm(nn.BatchNorm1d, False)
        for agree in self.agrees:
            agree.step(batch.leader, lambda: None)
        self._after_update()

    def _conduct(self, batches: Iterable[Batch], pulse: Pulse, plan: FitPlan) -> Losses:
        """Let the user's operator train the epoch."""
        assert self.operator is not None
        handed = Handed(self, batches, pulse, self.epoch)
        info = {"epoch_idx": self.epoch - 1, "num_steps": pulse.steps, "scheduler_step_freq": self.options.step_freq}
        self.operator.global_step = self.runner.global_step
        with self._autocast():
            told = self.operator.train_epoch(handed, info | plan.info)
        handed.close()
        numbers = _numbers("train_epoch", told)
        mean = numbers.pop("train_loss", np.nan)
        last = numbers.pop("last_train_loss", mean)
        if handed.rows_seen and np.isinf(mean) | np.isnan(mean) and plan.on_nan != "ignore" and "train_loss" in told:
            refuse(mean, f"in epoch {self.epoch}", plan.on_nan)
        kept = {name.removeprefix("train_"): value for name, value in numbers.items() if not name.startswith("last_")}
        for name in ("num_samples", "batch_count", "epoch"):
            kept.pop(name, None)
        mean, last = (value if handed.rows_seen else 0.0 for value in (mean, last))
        seen, rest = handed.rows_seen, self._mean_over_ranks(kept, handed.rows_seen)
        return Losses(mean * seen, seen, seen, last * handed.rows, handed.rows, handed.steps, rest)

    def step_schedulers(self, line: dict[str, Any]) -> None:
        """Step the schedulers that step once an epoch; one that watches a number gets the (validation) loss."""
        if self.options.step_freq != "epoch":
            return
        for scheduler in self.schedulers:
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(line.get("val_loss", line["train_loss"]))
            else:
                scheduler.step()

    def forward(self, runner: Runner) -> None:
        """Compute output and loss of the runner's batch."""
        *features, target = runner.batch
        module = self.modules[0] if torch.is_grad_enabled() else self.judge
        runner.output = call(module, features)
        outputs, targets = self.measure.pair(runner.output, target)
        runner.target = single(targets)
        runner.loss = self.measure(outputs, targets)

    # Evaluating and answering.

    def evaluate(self, batches: Iterable[Batch], metrics: Sequence[Meter], pulse: Pulse) -> Losses:
        """Feed outputs and targets to the metrics; return the sum of losses."""
        for module in self.modules:
            module.eval()
        if self.operator is not None and overrides(type(self.operator), "validate", "validate_batch"):
            return self._conduct_evaluation(batches, metrics, pulse)
        self._hook("before_val_epoch")
        losses, sums = Losses(), []
        pulse.at(DATA)
        with torch.no_grad():
            for step, batch in enumerate(batches):
                pulse.at(EVALUATE)
                losses.steps += 1
                if batch.rows or self.spread:  # whose forward pass all ranks do together
                    self.runner.batch_idx = step
                    outputs, targets, loss = self._judge_batch(batch)
                    if batch.rows and loss is not None:
                        times, mass = self.measure.times(batch, targets)
                        sums.append(loss.double() * times if mass else 0.0)
                        losses.mass += mass
                    for metric in metrics if batch.rows else ():
                        metric.update(single(outputs), single(targets))
                    losses.rows += batch.rows
                pulse.at(DATA)
        losses.loss_sum = float(sum(sums)) if self.criterion is not None else np.nan
        self._hook("after_val_epoch")
        if not self.runner.training:
            self._hook("after_run")
        return losses

    def _judge_batch(self, batch: Batch) -> tuple[list[Any], list[Any], Any]:
        """Return (outputs, targets, loss) of a batch without training on it."""
        runner = self.runner
        if self.hooks:
            runner.batch = self.place.loaded(batch)
            self._hook("before_val_iter")
        with self._autocast():
            if self.operator is not None and overrides(type(self.operator), "forward_batch"):
                output, target, loss = self.operator.forward_batch(self.place.loaded(batch), {})
                found = flatten(output)[0], flatten(target)[0], loss
            elif self.hooks.main_has("on_iter_forward", "on_val_forward"):
                self.hooks.on_main("on_val_forward", runner)
                found = flatten(runner.output)[0], flatten(runner.target)[0], runner.loss
            else:
                outputs, targets = self._pair(self._forward(self.judge, batch.x), batch)
                found = outputs, targets, None
                if self.criterion is not None:
                    found = outputs, targets, self.measure(outputs, targets, batch.weights)
        outputs, targets, loss = found
        if self.hooks:
            runner.output, runner.target, runner.loss = single(outputs), single(targets), loss
            self._hook("after_val_iter")
        return [full(o) for o in outputs], targets, None if loss is None else scalar(loss)

    def _conduct_evaluation(self, batches: Iterable[Batch], metrics: Sequence[Meter], pulse: Pulse) -> Losses:
        """Let the user's operator evaluate; its numbers are means over rows."""
        assert self.operator is not None
        handed = Handed(self, batches, pulse, epoch=0)
        self._hook("before_val_epoch")
        with torch.no_grad(), self._autocast():
            told = self.operator.validate(handed, {}, list(metrics))
        handed.close()
        self._hook("after_val_epoch")
        numbers = _numbers("validate", told)
        numbers = {k: v for k, v in numbers.items() if k != "num_samples" and not k.startswith("last_")}
        mean, seen = numbers.pop("val_loss", np.nan) if handed.rows_seen else 0.0, handed.rows_seen
        numbers.pop("val_loss", None)
        logs = self._mean_over_ranks(numbers, seen)
        return Losses(mean * seen, seen, seen, steps=handed.steps, logs=logs, conducted=True)

    def restore(self, state: State) -> None:
        """Build the model for answering."""
        device = answering_device(self.gpu)
        state = self._fetched(state)
        self.nets = [net.to(device).eval() for net in listed(self.build(state))]
        self.place, self.criterion = Place.of(self.net, device), None
        self.average: AveragedModel | None = None
        self.hooks, self.runner = Hooks(self.callbacks), Runner(self, 0, 1)
        self.given: State | None = state
        self.operator = self._operator(state)
        if self.hooks:
            self.hooks.begin(self.runner, self.net, {"config": self.config})
            self.hooks("before_pred_epoch", self.runner)

    def takes(self, x: Any) -> bool:
        """Say whether these may be the model's inputs: the form is that of training, else its forward takes so many."""
        if self.given is not None and self.given.input is not None:
            return same_form(flatten(x)[1], self.given.input.structure)
        try:
            inspect.signature(self.net.forward).bind(*listed(x))
        except (TypeError, ValueError):
            return False
        return True

    def predict(self, x: Any) -> Any:
        """Return the outputs for a block of rows, as a tree of numpy arrays."""
        runner = self.runner
        with torch.inference_mode(), self._autocast():
            runner.batch = listed(self.place.features(x))
            if self.hooks:
                self.hooks("before_pred_iter", runner)
                if self.hooks.main is not None:
                    self.hooks.on_main("on_pred_forward", runner)
                else:
                    self.answer(runner)
                self.hooks("after_pred_iter", runner)
                runner.batch_idx += 1
            else:
                self.answer(runner)
            return map_tree(to_numpy, runner.output)

    def answer(self, runner: Runner) -> None:
        """Compute the output for the runner's features."""
        if self.operator is not None and overrides(type(self.operator), "predict_batch"):
            runner.output = self.operator.predict_batch(runner.batch)
        else:
            runner.output = call(self.judge, runner.batch)
        if self.options.squeeze:
            runner.output = map_tree(squeezed, runner.output)

    # The parts.

    @property
    def net(self) -> nn.Module:
        """Return the first model as the user made it."""
        return self.nets[0]

    @property
    def agree(self) -> Sync:
        """Return how the first model agrees."""
        return self.agrees[0]

    @property
    def modules(self) -> list[nn.Module]:
        """Return the models as they are trained, wrapped for all ranks; as they are where nothing is trained."""
        agrees = self.__dict__.get("agrees")
        return [agree.module for agree in agrees] if agrees else self.nets

    @property
    def judge(self) -> nn.Module:
        """Return the model that evaluates and answers: the averaged one where there is one."""
        return self.net if self.average is None else self.average.module

    @property
    def _own_step(self) -> bool:
        """Say whether the user's operator does forward pass, backward pass or update itself."""
        operator = self.options.operator
        return operator is not None and overrides(operator, "train_epoch", "train_batch", "forward_batch")

    @property
    def _conducts(self) -> bool:
        return self._own_step and self.operator is not None

    def _set_up(self, state: State | None, device: torch.device) -> None:
        """Build models and loss."""
        self.given = state
        with self._room():
            self.nets = build_models(self.model, self.config)
        if not self.spread:  # else its parts go there when it is cut
            self.nets = [net.to(device) for net in self.nets]
        self.place = Place.of(self.net, device)
        self.criterion = build_loss(self.loss, self.config)
        if isinstance(self.criterion, nn.Module):
            self.criterion.to(device)
        self.measure = self.counting = Criterion(self.criterion)
        self.sample: Any = None
        self.hooks, self.operator, self.hands_on = Hooks(()), None, False
        self.average = None
        if state:
            for net, weights in zip(self.nets, state.payload["models"], strict=True):
                net.load_state_dict(weights)
        if self.options.compiled:
            for net in self.nets:
                net.compile(**(self.options.compiled if isinstance(self.options.compiled, dict) else {}))

    def _room(self) -> AbstractContextManager[None]:
        """Return the context to build a model in: one that no rank holds as a whole is built on the disk."""
        return building_on_disk() if self.spread else nullcontext()

    def _fetched(self, state: Any) -> Any:
        """Return a state with its payload, where that did not travel along."""
        if state is None or state.stored is None:
            return state
        return replace(state, payload=load_state(state.stored, mapped=True)[0].payload)

    def _begin_average(self, state: State | None) -> None:
        decay = get_ema_multi_avg_fn(self.options.ema or 0.999)
        self.average = AveragedModel(self.net, multi_avg_fn=decay)
        averages = state.payload.get("averages") if state else None
        if averages:
            self.average.module.load_state_dict(averages[0])
            self.average.n_averaged.fill_(1)
        self.average.eval()

    def _operator(self, state: State | None) -> TrainingOperator | None:
        """Return the user's operator, with its own state."""
        if self.options.operator is None:
            return None
        steppers, schedulers = self.__dict__.get("steppers"), self.__dict__.get("schedulers")
        made: TrainingOperator = self.options.operator(
            self.config,
            self.modules,
            steppers,
            self.runner.rank,
            criterion=self.criterion,
            schedulers=schedulers,
            use_fp16=self.options.precision is not None,
        )
        kept = state.payload.get("operator") if state else None
        if kept:
            made.load_state_dict(kept)
        return made

    def _stepper_of_each(self) -> list[torch.optim.Optimizer]:
        """Return the optimizer of each model; the first one where there is one for all."""
        alike = len(self.steppers) == len(self.nets)
        return self.steppers if alike else [self.steppers[0]] * len(self.nets)

    def _optimizer_states(self) -> list[dict[str, Any]]:
        if len(self.agrees) == len(self.steppers):
            return [agree.optimizer_state() for agree in self.agrees]
        return [stepper.state_dict() for stepper in self.steppers]

    def steps(self, batches: Iterable[Batch], epoch: int, first_step: int) -> Steps:
        """Return the steps of an epoch that follow its first ones."""
        return Steps(batches, self.place, (self.seed, epoch, self.world.rank), first_step)

    def agree_to_stop(self) -> bool:
        """Say whether any rank's callbacks want to stop; all ranks ask after every step."""
        flag = torch.tensor(int(self.runner.stop))
        dist.all_reduce(flag)
        self.runner.stop = bool(flag)
        return self.runner.stop

    def _hook(self, name: str) -> None:
        if self.hooks:
            self.hooks(name, self.runner)

    def _rate(self) -> float:
        rate = self.steppers[0].param_groups[0]["lr"]
        return rate if isinstance(rate, float) else float("nan") if isinstance(rate, torch.Tensor) else float(rate)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.options.precision is None:
            return nullcontext()
        return torch.autocast(self.place.device.type, PRECISIONS[self.options.precision])

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer.clone() for net in self.nets for buffer in net.buffers()]

    def _put_back(self, kept: list[torch.Tensor]) -> None:
        for buffer, old in zip((buffer for net in self.nets for buffer in net.buffers()), kept, strict=True):
            buffer.copy_(old)

    def _count_statistics(self, counts: bool) -> None:
        for statistics in self.__dict__.get("statistics", ()):
            statistics.counts = counts

    def _forward(self, module: nn.Module, x: Any) -> Any:
        if self.sample is None:
            self.sample = first_row(x)
        return call(module, self.place.features(x))

    def _forward_training(self, batch: Batch) -> Any:
        try:
            return self._forward(self.agree.module, batch.x)
        except ValueError as error:
            if batch.rows > 1 or self.options.sync_batchnorm or "more than 1 value per channel" not in str(error):
                raise
        # Batch norm has no statistics of one row. One process would have had more of them: use the running ones.
        self._calm(nn.modules.batchnorm._BatchNorm)
        output = self._forward(self.agree.module, batch.x)
        self._calm(nn.modules.batchnorm._BatchNorm, False)
        return output

    def _calm(self, kind: type[nn.Module], calm: bool = True) -> None:
        """Let modules of a kind use what they know already, or learn again."""
        for module in (module for net in self.nets for module in net.modules() if isinstance(module, kind)):
            module.train(not calm)

    def _describe(self) -> tuple[OutputSpec, OutputSpec] | None:
        """Describe a row, and what the model answers for it: a model in training may give something else."""
        if self.sample is None:
            return None
        for net in self.nets:
            net.eval()
        try:
            with torch.no_grad(), self._autocast():
                # Twice, as a model that drops dimensions of size 1 drops that of a single row, too.
                self.runner.batch = listed(self.place.features(twice(self.sample)))
                self.answer(self.runner)
        except Exception:
            if self.hands_on:  # the first of the user's models need not be one that answers for rows of training
                return None
            raise
        return OutputSpec.of(self.sample), OutputSpec.of(map_tree(full, self.runner.output))

    def _pair(self, output: Any, batch: Batch) -> tuple[list[Any], list[Any]]:
        return self.measure.pair(output, None if batch.y is None else self.place.targets(batch.y))

    def _mass(self, batch: Batch) -> float:
        """Return what the loss of a whole batch is a mean over."""
        targets = [] if batch.y is None else flatten(self.place.targets(batch.y))[0]
        return self.counting.times(batch, targets)[1]

    def _mean_over_ranks(self, numbers: dict[str, float], rows: int) -> dict[str, float]:
        """Return means over the rows of all ranks."""
        told = self.world.all_gather((numbers if rows else {}, rows))
        names = {name: None for own, _ in told for name in own}
        sums = {name: sum(own[name] * n for own, n in told if name in own) for name in names}
        return {name: total / sum(n for own, n in told if name in own) for name, total in sums.items()}


def _numbers(name: str, told: Any) -> dict[str, float]:
    """Return what an operator said as floats; anything that is no number is left out."""
    if not isinstance(told, dict):
        raise ArgumentError(
            f"{name} of a TrainingOperator must return a dict of numbers, such as {{'train_loss': ...}}; "
            f"got {type(told).__name__}."
        )
    numbers = {}
    for key, value in told.items():
        try:
            numbers[str(key)] = float(value)
        except (TypeError, ValueError):
            continue
    return numbers
