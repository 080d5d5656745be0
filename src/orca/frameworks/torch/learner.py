"""TorchLearner: PyTorch on one rank. Owns the only batch loop of torch: building, training, evaluating, predicting."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from orca.core.callbacks.numbers import names_of_epoch
from orca.core.columns import single
from orca.core.draws import kept_draws
from orca.core.feed import Feed, StreamFeed
from orca.core.learner import FitPlan, Learner
from orca.core.metrics import Metric
from orca.core.source import Batch
from orca.core.state import Losses, OutputSpec, State
from orca.core.world import World
from orca.errors import ArgumentError, DataError
from orca.frameworks.torch.batch_loss import BatchLoss, Tally, scalar
from orca.frameworks.torch.batchnorm import Statistics
from orca.frameworks.torch.build import (
    build_loss,
    build_models,
    build_optimizers,
    build_schedulers,
    check_fits,
    check_kinds,
    check_linked,
    load_weights,
)
from orca.frameworks.torch.files import write_method
from orca.frameworks.torch.hooks import TorchHooks
from orca.frameworks.torch.losses import LossPart, LossRecord, together
from orca.frameworks.torch.operator import TrainingOperator, overrides
from orca.frameworks.torch.options import PRECISIONS, Options, clipping_of
from orca.frameworks.torch.paged import building_on_disk, give_memory_back
from orca.frameworks.torch.resident import keep
from orca.frameworks.torch.runner import TorchRunner
from orca.frameworks.torch.steps import Steps, set_deterministic
from orca.frameworks.torch.sync import Sync, sync_of
from orca.frameworks.torch.targets import link_of
from orca.frameworks.torch.tensors import (
    Place,
    answering_device,
    call,
    copied,
    device_of,
    first_row,
    floats,
    full,
    integer_inputs,
    pieces_of,
    squeezed,
    template_of,
    to_numpy,
    twice,
)
from orca.frameworks.torch.trained_weights import TrainedWeights
from orca.frameworks.torch.user_loop import conduct, conduct_evaluation
from orca.frameworks.torch.writes import refuse_max_norm
from orca.monitor.heartbeat import BACKWARD, DATA, EVALUATE, FORWARD, OPTIMIZER, Heartbeat, waiting_for_storage
from orca.rows.tree import flatten, listed, map_tree, same_form
from orca.storage.states import load_state

_NO_WEIGHTS = "sample weights cannot reach a loss of your own. Weigh the rows there."
_FROZEN = "frozen"  # among the states of callbacks
logger = logging.getLogger(__name__)


@dataclass
class TorchLearner(Learner):
    """A torch model that learns. The fields travel to a rank; everything else is built there.

    Attributes:
        model: A module, or a creator `(config)` of one; or several.
        optimizer: An optimizer of that module, or a creator `(model, config)`; None where nothing is trained.
        loss: A loss module or class, a function `(output, target)`, or a creator `(config)`; None where there is none.
        config: The argument of the creators.
        sync: How replicas agree: "replicated", "sharded", "fully sharded", or the class of a plug-in ("module:Class").
        hook: Called on each rank before anything else.
        options: How to train beyond the plain step.
        callbacks: Callbacks of predictions.
        features: The names of the feature columns, for messages; () for data without columns.
    """

    model: Any
    optimizer: Any = None
    loss: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    sync: str = "replicated"
    hook: Callable[[], None] | None = None
    options: Options = field(default_factory=Options)
    callbacks: tuple[Any, ...] = ()
    features: tuple[str, ...] = ()
    framework: ClassVar[str] = "torch"
    numbers: ClassVar[bool] = True  # torch has no tensors of texts or dates
    warned = False  # that the last thing in an item is taken for a label

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
        """Check the arguments, as far as that is possible before anything travels."""
        check_kinds(model, optimizer, loss)
        if isinstance(optimizer, torch.optim.Optimizer):
            check_linked(optimizer, model)
        options = options or Options()
        options.check(sync)
        options.check_optimizers([optimizer])
        if options.operator is not None and not (
            isinstance(options.operator, type) and issubclass(options.operator, TrainingOperator)
        ):
            raise ArgumentError(
                f"training_operator_cls must be a subclass of TrainingOperator, not an instance; got "
                f"{options.operator!r}. Import it from orca.operator.",
                code="bad-operator",
            )
        return cls(model, optimizer, loss, config, sync, hook, options)._checked()

    @staticmethod
    def options_of(clip_norm: Any = None, clip_value: Any = None, **options: Any) -> Options:
        """Return how to train beyond the plain step; see Options."""
        return Options(clipping=clipping_of(clip_norm, clip_value), **options)

    @property
    def spread(self) -> bool:  # type: ignore[override]
        """Say whether no rank holds the whole model: its state may be too large to travel."""
        return self.sync == "fully sharded"

    @property
    def pauses(self) -> bool:  # type: ignore[override]
        """Say whether an epoch may be trained in several parts: one that the user's operator trains is not."""
        return not self._own_step

    @staticmethod
    def default_seed() -> int:
        """Return torch's own seed: the one the user set with torch.manual_seed, or the one torch began with."""
        return torch.initial_seed() % 2**63

    def check_trainable(self) -> None:
        """Check that there is a model, an optimizer and a loss."""
        if self.model is None:
            raise ArgumentError(
                "there is no model to train. Pass model= to from_torch, or load an entire model.", code="missing-model"
            )
        if self.optimizer is None:
            raise ArgumentError(
                "You must provide the optimizer for train. Pass optimizer= to from_torch.", code="missing-optimizer"
            )
        if self.loss is None and not self._own_step:
            raise ArgumentError("You must provide the loss for train. Pass loss= to from_torch.", code="missing-loss")

    def with_columns(self, features: tuple[str, ...]) -> TorchLearner:
        """Return this learner for data whose feature columns have these names."""
        return replace(self, features=features)

    def epoch_numbers(self, metrics: Sequence[Metric], validates: bool) -> set[str] | None:
        """Return the names of an epoch's numbers; None if the user's operator may add some."""
        if self.options.operator is not None:
            return None
        return names_of_epoch([metric.name for metric in metrics], validates)

    def weight_bytes(self) -> int | None:
        """Return the bytes of the weights of a module; None where a creator makes it."""
        weights = self.model.parameters() if isinstance(self.model, nn.Module) else ()
        return sum(weight.numel() * weight.element_size() for weight in weights) or None

    def check_callbacks(self, callbacks: Sequence[Any]) -> None:
        """Check callbacks before anything travels.

        Raises:
            ArgumentError: They are none, or do not go with the options.
        """
        hooks = TorchHooks(callbacks)
        if hooks.main_has("on_iter_backward"):
            self.options.check_hands_on(f"the callback {type(hooks.main).__name__}", self.sync)

    def build(self, state: State) -> Any:
        """Return a module of its own (a list where there are several) with the weights of a state."""
        own = listed(self.model)
        nets = [copy.deepcopy(net) if any(net is one for one in own) else net for net in self._made()]
        for net, weights in zip(nets, state.payload.get("averages") or state.payload["models"], strict=True):
            load_weights(net, weights)
        return single(nets)

    def check_state(self, state: State, name: str) -> None:
        """Check names and shapes of a state's weights; the ranks do it for a model that none of them holds whole."""
        if self.spread or self.model is None:
            return
        try:
            nets = self._made()
        except Exception as error:  # the user's creator, which may need files or devices of workers
            logger.warning("the model cannot be built here, to compare it with %s: %r", name, error)
            return
        models = state.payload.get("models") or []
        if len(models) != len(nets):
            raise ArgumentError(
                f"{name} holds the weights of {len(models)} models, and this Estimator has {len(nets)}. The weights "
                "stay as they were.",
                code="weights-do-not-fit",
            )
        for net, weights in zip(nets, models, strict=True):
            check_fits(net, weights, name)

    def _made(self) -> list[nn.Module]:
        """Return the modules, or those that the creator makes; its draws and changes of the config are undone."""
        with kept_draws(), self._room():
            return build_models(self.model, dict(self.config))

    def initial_state(self, seed: int) -> State:
        """Return the weights training would begin with."""
        with kept_draws():
            torch.manual_seed(seed)
            nets = build_models(self.model, dict(self.config))
        return State(payload={"models": [copied(n.state_dict()) for n in nets], "optimizers": [], "schedulers": []})

    def with_parts(self, model: nn.Module | list[nn.Module] | None, loss: Any) -> TorchLearner:
        """Return this learner with another model or loss; an optimizer of the old model cannot follow."""
        is_linked = model is not None and isinstance(self.optimizer, torch.optim.Optimizer)
        return replace(
            self,
            model=self.model if model is None else model,
            loss=self.loss if loss is None else loss,
            optimizer=None if is_linked else self.optimizer,
        )

    def with_clipping(self, bounds: tuple[float, float] | None, norm: float | None) -> TorchLearner:
        """Return this learner with gradients clipped otherwise."""
        return replace(self, options=replace(self.options, clipping=clipping_of(norm, bounds)))._checked()

    def _checked(self) -> TorchLearner:
        """Return this learner, whose options must go with the steps that its operator does itself."""
        if self._own_step and self.options.operator is not None:
            self.options.check_hands_on(f"the operator {self.options.operator.__name__}", self.sync)
        return self

    def for_answers(self, callbacks: Sequence[Any], precision: str | None) -> TorchLearner:
        """Return this learner as predictions need it: with callbacks, and perhaps in half precision."""
        self.check_callbacks(callbacks)
        options = replace(self.options, precision=precision or self.options.precision)
        options.check(self.sync)
        return replace(self, callbacks=tuple(callbacks), options=options)

    # On a rank: coming and going.

    def _begin_blank(self) -> None:
        """Start without the parts that only training, or options, bring."""
        self.steppers: list[torch.optim.Optimizer] = []
        self.schedulers: list[Any] = []
        self.agrees: list[Sync] = []
        self.average: AveragedModel | None = None
        self.operator: TrainingOperator | None = None
        self.resident = False  # whether the rows to train on are on the device
        self.casts_integers = False  # whether the model takes floating-point numbers where the data has integers

    def join(self, world: World, state: State | None, seed: int, training: bool) -> None:
        """Build model, loss and optimizer on this rank, with the same weights everywhere."""
        if self.hook:
            self.hook()
        self.world, self.seed = world, seed
        state = self._fetched(state)
        if self.spread:
            give_memory_back()
        self.exits = ExitStack()
        self.exits.enter_context(kept_draws())
        if self.options.deterministic:
            self.exits.callback(set_deterministic, set_deterministic(True))
        torch.manual_seed(seed)
        self._set_up(state, device_of(world))
        self.runner = TorchRunner(self, world.rank, world.size, state, self.config)
        if training:
            self._prepare_training(state)
            return
        self.operator = self._operator(state)
        if state and state.payload.get("averages"):
            self._begin_average(state)
        if self.spread:
            from orca.frameworks.torch.fsdp import shard

            for net in self.nets:
                shard(net, world, self.place.device)

    def _prepare_training(self, state: State | None) -> None:
        """Build optimizers, schedulers, average and loss scaler, each with its state."""
        self.steppers = build_optimizers(self.optimizer, self.nets, self.config)
        self.options.check_optimizers(self.steppers)
        self.schedulers = build_schedulers(self.options.scheduler, self.steppers, self.config)
        self.options.check_schedulers(self.schedulers)
        # Of an optimizer's state each rank takes its part when the model is cut.
        steppers = [] if self.spread else self.steppers
        for things, name in ((steppers, "optimizers"), (self.schedulers, "schedulers")):
            for thing, memory in zip(things, state.payload.get(name, ()) if state else (), strict=False):
                _load(thing, memory)
        if self.options.ema:
            self._begin_average(state)
        self.scaler = torch.amp.GradScaler(self.place.device.type, enabled=self.options.precision == "fp16")
        if state and state.payload.get("scaler"):
            self.scaler.load_state_dict(state.payload["scaler"])
        # It begins with the first number that it scales, and this rank may have none.
        self.scaler.scale(torch.zeros((), device=self.place.device))

    def call_back(self, callbacks: Sequence[Any], world: World, state: State | None) -> TorchHooks:
        """Take the callbacks of a run; return their hooks, of which the loop calls those around epochs."""
        self.hooks = TorchHooks(callbacks, self.runner, self.start.payload.get("callbacks") if self.start else None)
        return self.hooks

    def begin(self, plan: FitPlan, steps: int | None) -> None:
        """Begin a fit: wrap the model for all ranks."""
        self.validates = plan.validation_trigger is not None  # in some epochs
        self.hooked = self.hooks.main is not None or self.hooks.has("before_train_iter", "after_train_iter")
        self.hands_on = self._own_step or self.hooks.main_has("on_iter_backward")
        if not self.hands_on:
            self._check_single()
        if self.hands_on or self._own_forward:
            if plan.weighted:
                raise ArgumentError(_NO_WEIGHTS, code="no-weights-to-train")
            if not self._knows_loss:
                self.counting = BatchLoss(None, self.options.reduction)
        self.statistics = [Statistics(net, always=self.options.sync_batchnorm) for net in self.nets]
        for statistics in self.statistics:
            self.exits.callback(statistics.release)
        options: dict[str, Any] = {"unused": self.options.unused, "hands_on": self.hands_on}
        if self.spread:
            optimizers = self.start.payload.get("optimizers") if self.start else None
            options |= {"device": self.place.device, "optimizer_state": optimizers[0] if optimizers else None}
        for net, stepper in zip(self.nets, self._stepper_of_each(), strict=True):
            self.agrees.append(sync_of(self.sync, net, stepper, self.world, **options))
            self.exits.callback(self.agrees[-1].close)
        self.casting = self.autocast()  # which takes long to make, next to the step of a small model
        refuse_max_norm(self.nets, self.world.size)
        self.trained_weights = TrainedWeights(self.nets, self.steppers, self.world, self.hands_on)
        self.exits.callback(self.trained_weights.close)
        self.operator = self._operator(self.start)

    def output_link(self) -> str:
        """Return what makes probabilities of the outputs, as the loss says; "" if the user's own code makes them."""
        operator = self.options.operator
        own = operator is not None and overrides(operator, "forward_batch", "validate", "validate_batch")
        own = own or self.hooks.main_has("on_iter_forward", "on_val_forward")
        return "" if own else link_of(self.criterion)

    def keep_rows(self, train: Feed | StreamFeed, valid: Feed | StreamFeed | None) -> None:
        """Keep the rows of a fit on this rank's device, where that is asked for and they fit."""
        if self.options.device_cache:
            self.resident = keep(train, self.place, self.counting.counted)
            if valid is not None:
                keep(valid, self.place, self.measure.counted)

    def revert(self) -> None:
        """Undo the changes of the user's code as a resumed fit began; weights are frozen as they were in its state."""
        if self.start is None or not self._watched:
            return
        payload = self.start.payload
        freezes = payload.get("callbacks", {}).get(_FROZEN)
        for net, names in zip(self.nets, freezes, strict=True) if freezes else ():
            for name, weight in net.named_parameters():
                weight.requires_grad_(name not in names)
        self.runner.put_back_weights(payload["models"], payload.get("averages", ()))
        # As in join, there may be a scheduler now where there was none, and none where there was one.
        for stepper, memory in zip(self.steppers, payload["optimizers"], strict=False):
            for group, settings in zip(stepper.param_groups, memory["param_groups"], strict=False):
                group |= {name: copy.deepcopy(value) for name, value in settings.items() if name != "params"}
        for scheduler, memory in zip(self.schedulers, payload["schedulers"], strict=False):
            scheduler.load_state_dict(memory)

    def callback_states(self) -> dict[str, Any]:
        """Return which weights are frozen, where code of the user's may have done it."""
        if not self._watched:
            return {}
        return {_FROZEN: [[name for name, w in net.named_parameters() if not w.requires_grad] for net in self.nets]}

    def _check_single(self) -> None:
        """Check that there is nothing that the user's own steps alone can train."""
        if len(self.nets) > 1:
            raise ArgumentError(
                f"{len(self.nets)} models need to be told how they are trained together. Pass training_operator_cls, "
                "or a MainCallback with its own forward and backward pass.",
                code="several-models",
            )
        if len(self.steppers) > 1:
            raise ArgumentError(
                f"{len(self.steppers)} optimizers need to be told when each of them steps. Pass one optimizer with "
                "several parameter groups, training_operator_cls, or a MainCallback with its own backward pass.",
                code="several-optimizers",
            )

    def end_epoch(self, line: dict[str, Any]) -> bool:
        """Step the schedulers that step once an epoch; tell optimizers of its end that want to know."""
        self.runner.epoch_stats = line
        skips = self.validates and "val_loss" not in line
        for stepper in self.steppers:
            if hasattr(stepper, "end_epoch"):
                stepper.end_epoch(line["train_loss"], _score(line), skips)
        if self.hooks.main is not None:
            self.hooks.on_main("on_lr_adjust")
        elif not self._conducts or self._ends_epoch():
            self.step_schedulers(line)
        return False

    def _ends_epoch(self) -> bool:
        """Say whether the operator trained the epoch with our own train_epoch, and left its end to us."""
        ends = self.operator is not None and self.operator.ends_epoch
        if self.operator is not None:
            self.operator.ends_epoch = False
        return ends

    def state(self) -> State:
        """Return weights and optimizer state on the CPU; the output's description from whoever saw a row.

        Rank 0 alone copies the tensors, where its sync has not done that: its state is the one that counts.
        """
        if self.agrees:
            self._check_alike()
            self._follow()
        specs = self.world.all_gather(self._describe())
        own = copied if self.world.rank == 0 else dict
        whole = dict if self.spread else own
        payload: dict[str, Any] = {"models": [], "optimizers": [], "schedulers": []}
        if self.agrees:
            payload["models"] = [whole(agree.model_state()) for agree in self.agrees]
            payload["optimizers"] = [whole(state) for state in self._optimizer_states()]
            payload["schedulers"] = [own(scheduler.state_dict()) for scheduler in self.schedulers]
            if self.average is not None:
                payload["averages"] = [whole(self.average.module.state_dict())]
            if self.scaler.is_enabled():
                payload["scaler"] = self.scaler.state_dict()
        elif not self.spread:
            payload["models"] = [whole(net.state_dict()) for net in self.nets]
        if self.operator is not None:
            payload["operator"] = own(self.operator.state_dict())
        row, output = next(filter(None, specs), (None, None))
        return State(payload=payload, output=output, input=row)

    def write_state(self, state: State, path: str) -> None:
        """Write a state to a path that the Estimator loads; with the name of a checkpoint of BigDL, the method too."""
        if self.steppers:
            write_method(self.optimizer, self.steppers[0], path)
        super().write_state(state, path)

    def leave(self) -> None:
        """Drop all that was built: torch cannot destroy a process group that a DistributedDataParallel still holds."""
        if "exits" in self.__dict__:
            self.exits.close()
        for name in self.__dict__.keys() - {own.name for own in fields(self)}:
            del self.__dict__[name]

    # Training.

    def begin_epoch(self, epoch: int) -> None:
        """Let all layers train; those that callbacks switch off then stay as they are, also over a pause."""
        for module in self.modules:
            module.train()

    def train(
        self, batches: Iterable[Batch], heartbeat: Heartbeat, epoch: int, plan: FitPlan, first_step: int = 0
    ) -> Losses:
        """Train one epoch, or the rest of it after its first steps."""
        self._check_alike()
        if self._conducts:
            return conduct(self, batches, heartbeat, epoch, plan)
        record = LossRecord(epoch, plan.on_nan, first_step)
        rates: list[float] = []
        stops = False
        heartbeat.at(DATA)
        for step, batch in self.steps(batches, epoch, first_step):
            self.runner.batch_idx = step
            rates.append(self._rate())
            part = self._hooked_step(batch, heartbeat, step) if self.hooked else self._train_step(batch, heartbeat)
            heartbeat.step(
                epoch, step + 1, heartbeat.steps, record.add(part, batch.rows), heartbeat.rows + batch.step_rows
            )
            heartbeat.at(DATA)
            if stops := self.hooked and self.agree_to_stop():
                break
        losses = replace(record.close(), rates=rates, stopped=stops)
        if heartbeat.profiling:
            heartbeat.profile["communication"] += self.agree.communicated() * losses.steps
        return losses

    def _train_step(self, batch: Batch, heartbeat: Heartbeat) -> LossPart | None:
        self._open(batch)
        if isinstance(self.steppers[0], torch.optim.LBFGS):
            part = self._closure_step(batch, heartbeat)
        else:
            part = self._gradients(batch, heartbeat)
            heartbeat.at(OPTIMIZER)
            if self.options.clipping:
                self.scaler.unscale_(self.steppers[0])
                self.agree.clip(self.options.clipping)
            self.agree.step(batch.leader, self._update)
        self._close()
        return part

    def _open(self, batch: Batch) -> None:
        """Prepare for a step: of how many rows on each rank, and of which weights."""
        self._follow()
        weight = batch.rows * self.world.size / batch.step_rows if self.hands_on else 1.0
        for statistics in self.statistics:
            statistics.open(batch.shares, weight, first=self.runner.batch_idx == 0)
        for agree in self.agrees:
            agree.open(batch)

    def _close(self) -> None:
        for statistics in self.statistics:
            statistics.close()
        self._after_update()

    def _check_alike(self) -> None:
        if self._watched:
            self.trained_weights.check_alike()

    def _follow(self) -> None:
        """Let the replicas agree on the weights that the user's code trains now; it must do the same on every rank."""
        if not self._watched or not self.trained_weights.changed:
            return
        for agree in self.agrees:
            agree.renew()
        if self.operator is not None:
            self.operator._models = self.modules
        self.trained_weights.settle()

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

    def _closure_step(self, batch: Batch, heartbeat: Heartbeat) -> LossPart | None:
        """Step an optimizer that asks for the loss several times: every rank must see the same loss."""
        parts: list[LossPart | None] = []

        def closure() -> float:
            part = self._gradients(batch, heartbeat)
            if self.options.clipping:
                self.agree.clip(self.options.clipping)
            parts.append(part)
            mean = torch.zeros((), dtype=torch.float64, device=self.place.device)
            if part is not None:
                mean += part.loss.double() * part.weight / self.world.size
            dist.all_reduce(mean)
            return float(mean)

        self.agree.step(batch.leader, lambda: self.steppers[0].step(closure))  # type: ignore[arg-type]
        return parts[0]

    def _gradients(self, batch: Batch, heartbeat: Heartbeat) -> LossPart | None:
        """Leave the step's gradients in the weights; return this rank's part of the loss."""
        heartbeat.at(FORWARD)
        self.agree.zero()
        self.counting.send(batch)
        pieces = self._pieces(batch)
        parts: list[LossPart | None] = []
        whole = 0.0
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            for statistics in self.statistics:
                statistics.counts = bool(piece.rows)
            with nullcontext() if last else self.agree.no_sync():
                heartbeat.at(FORWARD)
                with self.casting:
                    outputs, targets, loss = self._loss_of(piece)
                if not whole:  # after the first forward pass, which may hold a collective of its own
                    whole = self.counting.whole(batch, piece, (outputs, targets))
                heartbeat.at(BACKWARD)
                parts.append(self._backward(piece, outputs, targets, loss, whole))
        return together([part for part in parts if part is not None])

    def _backward(
        self, piece: Batch, outputs: list[Any], targets: list[Any], loss: torch.Tensor, whole: float
    ) -> LossPart | None:
        """Run the backward pass of a piece; return its part of the loss, None where nothing in it counts."""
        if not piece.rows:
            self.agree.idle(loss if self._own_forward else outputs)
            return None
        times, mass = self.counting.times(piece, targets)
        if not mass:  # every target of this piece is ignored: its mean is 0 / 0
            self.agree.backward(_nothing_of(outputs), 1.0)
            return None
        part = LossPart(loss.detach(), times, mass, times / whole * self.world.size)
        self.agree.backward(self.scaler.scale(loss), part.weight)
        return part

    def _pieces(self, batch: Batch) -> list[Batch]:
        """Return a rank's part of a step in pieces: as many on every rank where ranks meet in each pass.

        Those that others have more of are template rows, and count nothing.
        """
        shared = any(statistics.shared for statistics in self.statistics)
        least = 2 if shared or any(statistics.needs_two for statistics in self.statistics) else 1
        count, own = (max(1, min(self.options.accumulate, rows // least)) for rows in (max(batch.shares), batch.rows))
        pieces, more = pieces_of(batch, own), count - own if shared or self.spread else 0
        return [*pieces, *[template_of(batch)] * more] if more else pieces

    def _loss_of(self, piece: Batch) -> tuple[list[Any], list[Any], torch.Tensor]:
        """Return (outputs, targets, loss) of a piece of a batch, by the user's own forward pass where there is one."""
        if self._own_forward:
            self.runner.batch = self.place.loaded(piece)
            self.hooks.on_main("on_train_forward")
            runner = self.runner
            (outputs, targets), loss = self.measure.leaves(runner.output, runner.target), scalar(runner.loss)
            if piece.rows and self.counting:
                self.counting.check_own(piece, outputs, targets, loss, self.counting.steps + 1)
            return outputs, targets, loss
        if not piece.rows:
            piece = replace(piece, x=twice(piece.x), y=twice(piece.y), weights=None)
        outputs, targets = self._pair(self._forward(self.agree.module, piece.x), piece)
        loss = self.measure(outputs, targets, piece)
        if self.hooked:
            self.runner.output, self.runner.target = self.measure.trees(outputs, targets)
            self.runner.loss = loss
        return outputs, targets, loss

    # Steps that the user's own code does.

    def _hooked_step(self, batch: Batch, heartbeat: Heartbeat, step: int) -> LossPart | None:
        runner = self.runner
        runner.batch = self.place.loaded(batch)
        self.hooks("before_train_iter", step)
        part = self._handed_step(batch, heartbeat) if self.hands_on else self._train_step(batch, heartbeat)
        self.hooks("after_train_iter", step)
        return part

    def _handed_step(self, batch: Batch, heartbeat: Heartbeat) -> LossPart | None:
        """Let the main callback do forward pass, backward pass and update."""
        runner = self.runner
        self.open_step(batch)
        runner.batch = self.place.loaded(batch)
        heartbeat.at(FORWARD)
        with self.autocast():
            self.hooks.on_main("on_train_forward")
        heartbeat.at(BACKWARD)
        self.hooks.on_main("on_iter_backward")
        self.close_step(batch)
        if not batch.rows or runner.loss is None:
            return None
        weight = batch.rows * self.world.size / batch.step_rows
        return LossPart(scalar(runner.loss).detach(), batch.rows, batch.rows, weight)

    def open_step(self, batch: Batch) -> None:
        """Weigh this rank's rows in the step to come."""
        if batch.rows and self.world.size > 1 and self.counting and not self.counting.is_even(batch):
            raise ArgumentError(
                f"the rows of {self.criterion} do not count the same (a sum, class weights, ignored labels), but your "
                "own backward pass is averaged over workers by their rows. Use a loss that is a mean over rows, leave "
                "loss out of from_torch and weigh the rows yourself, or leave the backward pass to Orca.",
                code="loss-not-averaged",
            )
        self._open(batch)
        for statistics in self.statistics:
            statistics.counts = bool(batch.rows)

    def close_step(self, batch: Batch) -> None:
        """Agree on the buffers after a step that the user did."""
        for agree in self.agrees:
            agree.step(batch.leader, lambda: None)
        self._close()

    def step_schedulers(self, line: dict[str, Any]) -> None:
        """Step the schedulers that step once an epoch; one that watches a number gets the (validation) loss."""
        if self.options.step_freq != "epoch":
            return
        for scheduler in self.schedulers:
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                if not self.validates or "val_loss" in line:  # losses of training and validation are not compared
                    scheduler.step(line.get("val_loss", line["train_loss"]))
            else:
                scheduler.step()

    def forward(self, runner: TorchRunner) -> None:
        """Compute output and loss of the runner's batch."""
        *features, target = runner.batch
        runner.output = self._called(runner.model, features)
        outputs, targets = self.measure.pair(runner.output, target)
        _, runner.target = self.measure.trees(outputs, targets)
        runner.loss = self.measure(outputs, targets)

    # Evaluating and answering.

    def evaluate(self, batches: Iterable[Batch], metrics: Sequence[Metric], heartbeat: Heartbeat) -> Losses:
        """Feed outputs and targets to the metrics; return the sum of losses. An epoch may continue afterwards."""
        with evaluating(self.modules):
            return self._evaluate(batches, metrics, heartbeat)

    def _evaluate(self, batches: Iterable[Batch], metrics: Sequence[Metric], heartbeat: Heartbeat) -> Losses:
        if self.operator is not None and overrides(type(self.operator), "validate", "validate_batch"):
            return conduct_evaluation(self, batches, metrics, heartbeat)
        self.hooks("before_val_epoch")
        own = self.measure.asks and self._own_judge  # then there is nothing to ask
        losses, tally = Losses(), Tally(BatchLoss(None, self.options.reduction) if own else self.measure)
        heartbeat.at(DATA)
        with torch.no_grad():
            for step, batch in enumerate(map(self.measure.counted, batches)):
                heartbeat.at(EVALUATE)
                losses.steps += 1
                if batch.rows or self.spread:  # whose forward pass all ranks do together
                    self.runner.batch_idx = step
                    outputs, targets, loss = self._judge_batch(batch)
                    if batch.rows and loss is not None:
                        tally.add(batch, outputs, targets, loss)
                    for metric in metrics if batch.rows else ():
                        metric.update(*self.measure.trees(outputs, targets))
                    losses.rows += batch.rows
                heartbeat.at(DATA)
        losses.loss_sum, losses.mass = tally.close()
        if self.criterion is None:
            losses.loss_sum = np.nan
        self.hooks("after_val_epoch")
        return losses

    def _judge_batch(self, batch: Batch) -> tuple[list[Any], list[Any], Any]:
        """Return (outputs, targets, loss) of a batch without training on it."""
        runner = self.runner
        if self.hooks:
            runner.batch = self.place.loaded(batch)
            self.hooks("before_val_iter")
        own = self._own_judge
        if own and batch.weights is not None:
            raise ArgumentError(_NO_WEIGHTS, code="no-weights-to-train")
        with self.autocast():
            if self.operator is not None and overrides(type(self.operator), "forward_batch"):
                output, target, loss = self.operator.forward_batch(self.place.loaded(batch), {})
                result = *self.measure.leaves(output, target), loss
            elif own:
                self.hooks.on_main("on_val_forward")
                result = *self.measure.leaves(runner.output, runner.target), runner.loss
            else:
                outputs, targets = self._pair(self._forward(self.judge, batch.x), batch)
                result = outputs, targets, None
                if self.criterion is not None:
                    result = outputs, targets, self.measure(outputs, targets, batch)
            outputs, targets, loss = result
            if own and self._knows_loss and batch.rows and loss is not None:
                self.measure.check_own(batch, outputs, targets, scalar(loss), runner.batch_idx + 1)
        if self.hooks:
            runner.output, runner.target = self.measure.trees(outputs, targets)
            runner.loss = loss
            self.hooks("after_val_iter")
        return [full(o) for o in outputs], targets, None if loss is None else scalar(loss)

    def restore(self, state: State) -> None:
        """Build the model for answering."""
        device = answering_device(self.gpu)
        state = self._fetched(state)
        self.nets = [net.to(device).eval() for net in listed(self.build(state))]
        self.place, self.criterion = Place.of(self.net, device), None
        self._begin_blank()
        self.runner = TorchRunner(self, config=self.config)
        self.hooks = TorchHooks(self.callbacks, self.runner)
        self.start: State | None = state
        self.operator = self._operator(state)
        self.hooks.begin()
        self.hooks("before_pred_epoch")

    def takes(self, x: Any) -> bool:
        """Say whether these may be the model's inputs: the form is that of training, else its forward takes so many."""
        if self.start is not None and self.start.input is not None:
            return same_form(flatten(x)[1], self.start.input.structure)
        return self._binds(listed(x))

    def spares(self, x: Any) -> bool:
        """Say whether the model can do without the last of its inputs, which is then more likely a label.

        It is an optional argument of its forward pass, and no value of it has been seen yet.
        """
        if self.start is not None and self.start.input is not None:
            return False
        *inputs, _ = listed(x)
        parameters = inspect.signature(self.net.forward).parameters.values()
        spares = not any(p.kind is p.VAR_POSITIONAL for p in parameters) and self._binds(inputs)
        if spares and not self.warned:
            self.warned = True
            logger.warning(
                "the forward pass of %s has optional inputs, and has seen no data yet: the last of the %d things in an "
                "item is taken for a label. Where it is an input, evaluate or train the model first, or name the "
                "inputs: {'x': (first, second)}.",
                *(type(self.net).__name__, len(inputs) + 1),
            )
        return spares

    def _binds(self, inputs: list[Any]) -> bool:
        try:
            inspect.signature(self.net.forward).bind(*inputs)
        except (TypeError, ValueError):
            return False
        return True

    def predict(self, x: Any) -> Any:
        """Return the outputs for a block of rows, as a tree of numpy arrays."""
        runner = self.runner
        with torch.inference_mode(), self.autocast():
            runner.batch = listed(self.place.features(x))
            self.hooks("before_pred_iter")
            if self.hooks.main is not None:
                self.hooks.on_main("on_pred_forward")
            else:
                self.answer(runner)
            self.hooks("after_pred_iter")
            runner.batch_idx += 1
            return map_tree(to_numpy, runner.output)

    def answer(self, runner: TorchRunner) -> None:
        """Compute the output for the runner's features."""
        if self.operator is not None and overrides(type(self.operator), "predict_batch"):
            runner.output = self.operator.predict_batch(runner.batch)
        else:
            runner.output = self._called(self.judge, runner.batch)
        if self.options.squeeze:
            runner.output = map_tree(squeezed, runner.output)

    # The parts.

    @property
    def net(self) -> nn.Module:
        """Return the first model as the user made it."""
        return self.nets[0]

    @property
    def agree(self) -> Sync:
        """Return the sync of the first model."""
        return self.agrees[0]

    @property
    def modules(self) -> list[nn.Module]:
        """Return the models as they are trained, wrapped for all ranks; as they are where nothing is trained."""
        return [agree.module for agree in self.agrees] or self.nets

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
    def _own_forward(self) -> bool:
        """Say whether the main callback computes output and loss of training itself."""
        return self.hooks.main_has("on_iter_forward", "on_train_forward")

    @property
    def _own_judge(self) -> bool:
        """Say whether the user's own code computes the loss of an evaluation."""
        own = self.operator is not None and overrides(type(self.operator), "forward_batch")
        return own or self.hooks.main_has("on_iter_forward", "on_val_forward")

    @property
    def _knows_loss(self) -> bool:
        """Say whether the loss itself says its kind."""
        return self.criterion is not None and not self.measure.asks and self.options.reduction is None

    @property
    def _watched(self) -> bool:
        """Say whether there is code of the user's that may change which weights are trained."""
        return bool(self.hooks) or self.operator is not None

    @property
    def _conducts(self) -> bool:
        return self._own_step and self.operator is not None

    def _set_up(self, state: State | None, device: torch.device) -> None:
        """Build models and loss."""
        self.start = state
        with self._room():
            self.nets = build_models(self.model, self.config)
        if not self.spread:  # else its parts go there when it is cut
            self.nets = [net.to(device) for net in self.nets]
        self.place = Place.of(self.net, device)
        self.criterion = build_loss(self.loss, self.config)
        if isinstance(self.criterion, nn.Module):
            self.criterion.to(device)
        apart = self.world.size > 1 or self.options.accumulate > 1
        self.measure: BatchLoss = BatchLoss(self.criterion, self.options.reduction, apart)
        self.counting = self.measure
        self.sample: Any = None
        self.hooks, self.hands_on = TorchHooks(), False
        self._begin_blank()
        if state:
            for net, weights in zip(self.nets, state.payload["models"], strict=True):
                load_weights(net, weights)
        if self.options.compiled:
            for net in self.nets:
                _compile(net, self.options.compiled if isinstance(self.options.compiled, dict) else {})

    def _room(self) -> AbstractContextManager[None]:
        """Return the context to build a model in: one that no rank holds as a whole is built on the disk."""
        return building_on_disk() if self.spread else nullcontext()

    def _fetched(self, state: Any) -> Any:
        """Return a state with its payload, where that did not travel along."""
        if state is None or state.path is None:
            return state
        with waiting_for_storage(f"the state {state.path} is being read"):
            whole = replace(state, payload=load_state(state.path, self.framework, mapped=True).payload)
        return whole if state.position is not None else whole.settled()

    def _begin_average(self, state: State | None) -> None:
        decay = get_ema_multi_avg_fn(self.options.ema or 0.999)
        self.average = AveragedModel(self.net, multi_avg_fn=decay)
        averages = state.payload.get("averages") if state else None
        if averages:
            self.average.module.load_state_dict(averages[0])
            self.average.n_averaged.fill_(1)
        self.average.eval()

    def _operator(self, state: State | None) -> TrainingOperator | None:
        if self.options.operator is None:
            return None
        operator: TrainingOperator = self.options.operator(
            self.config,
            self.modules,
            self.steppers,
            self.runner.rank,
            criterion=self.criterion,
            schedulers=self.schedulers,
            use_fp16=self.options.precision is not None,
        )
        if state and state.payload.get("operator"):
            operator.load_state_dict(state.payload["operator"])
        return operator

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
        seed = (self.seed, epoch, self.world.rank)
        return Steps(batches, self.place, seed, first_step, self.counting.counted, self.resident)

    def agree_to_stop(self) -> bool:
        """Say whether any rank's callbacks want to stop; all ranks ask after every step."""
        flags = np.array([self.runner.stop, self.trained_weights.changed], np.int64)
        stops, changes = self.world.all_reduce([flags], "sum")[0]
        if changes:
            self._check_alike()
        self.runner.stop = bool(stops)
        return self.runner.stop

    def _rate(self) -> float:
        group = self.steppers[0].param_groups[0]
        rate = group.get("rate", group["lr"])  # some rules need another number than the one users know
        return rate if isinstance(rate, float) else float("nan") if isinstance(rate, torch.Tensor) else float(rate)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of forward passes, in mixed precision where that is asked for."""
        if self.options.precision is None:
            return nullcontext()
        return torch.autocast(self.place.device.type, PRECISIONS[self.options.precision])

    def _forward(self, module: nn.Module, x: Any) -> Any:
        if self.sample is None:
            self.sample = first_row(x)
        return self._called(module, self.place.features(x))

    def _called(self, module: nn.Module, x: Any) -> Any:
        """Call a model; integers for floating-point numbers are refused, or cast if the sync is BigDL's."""
        if self.casts_integers:
            x = floats(x)
        try:
            return call(module, x, self.features)
        except RuntimeError as error:
            mismatch = integer_inputs(error, x, self.features)
            if mismatch is None:
                raise
            if self.sync != "sharded":
                raise mismatch from error
            output = self._called_with_floats(module, x, mismatch)
        self.casts_integers = True
        return output

    def _called_with_floats(self, module: nn.Module, x: Any, mismatch: DataError) -> Any:
        try:
            return call(module, floats(x))
        except RuntimeError as error:  # another of its layers takes integers
            raise mismatch from error

    def _describe(self) -> tuple[OutputSpec, OutputSpec] | None:
        """Describe a row, and the model's answer for it: a model in training may give something else."""
        if self.sample is None:
            return None
        runner = copy.copy(self.runner)  # the view of callbacks stays
        try:
            with evaluating(self.nets), kept_draws(), torch.no_grad(), self.autocast():
                # Twice, as a model that drops dimensions of size 1 drops that of a single row, too.
                runner.batch = listed(self.place.features(twice(self.sample)))
                self.answer(runner)
        except Exception:
            if self.hands_on:  # the first of the user's models need not be one that answers for rows of training
                return None
            raise
        return OutputSpec.of(self.sample), OutputSpec.of(map_tree(full, runner.output))

    def _pair(self, output: Any, batch: Batch) -> tuple[list[Any], list[Any]]:
        return self.measure.pair(output, None if batch.y is None else self.place.targets(batch.y))


@contextmanager
def evaluating(nets: Sequence[nn.Module]) -> Iterator[None]:
    """Let models evaluate for a while; then each layer trains, or not, as before."""
    modes = [(module, module.training) for net in nets for module in net.modules()]
    for net in nets:
        net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _compile(net: nn.Module, options: dict[str, Any]) -> None:
    """Compile the calls of a module.

    As of torch 2.11, Module.compile does nothing where forward is torch's own, as that of nn.Sequential: the compiler
    begins with code outside of torch, such as this function.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        return net._call_impl(*args, **kwargs)

    net._compiled_call_impl = torch.compile(forward, **options)


def _load(thing: Any, memory: dict[str, Any]) -> None:
    """Give an optimizer or a scheduler its state back."""
    mine, theirs = len(getattr(thing, "param_groups", ())), len(memory.get("param_groups", ()))
    if mine != theirs:
        raise ArgumentError(
            f"the state to resume from has {theirs} parameter groups of {type(thing).__name__}, and its creator makes "
            f"{mine}. Make all groups there: those that a callback or an operator adds are not there yet when a fit is "
            "resumed.",
            code="parameter-groups-differ",
        )
    thing.load_state_dict(memory)


def _score(line: dict[str, Any]) -> float | None:
    """Return the first metric of an epoch's validation that is a number, else its loss."""
    others = ("val_num_samples", "val_loss")
    scores = [value for name, value in line.items() if name.startswith("val_") and name not in others]
    return next((float(value) for value in [*scores, line.get("val_loss")] if isinstance(value, float | int)), None)


def _nothing_of(outputs: Sequence[Any]) -> torch.Tensor:
    """Return a loss whose gradients are exactly zero."""
    leaves = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return torch.stack([leaf.sum() * 0.0 for leaf in leaves]).sum()
