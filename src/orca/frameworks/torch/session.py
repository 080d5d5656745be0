"""TorchSession: torch models at work on one rank. Owns their life there, from the first weights to the last state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from orca.core.draws import kept_draws
from orca.core.feed import Feed, StreamFeed
from orca.core.learner import FitPlan
from orca.core.losses import LossAccumulator, StepResult
from orca.core.metrics import Metric
from orca.core.session import Evaluation, Session
from orca.core.source import Batch
from orca.core.state import OutputSpec, State
from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.torch.batch_loss import BatchLoss
from orca.frameworks.torch.build import build_loss, build_optimizers, build_schedulers
from orca.frameworks.torch.evaluation import NO_WEIGHTS, choose_evaluation, tally_of
from orca.frameworks.torch.files import write_method
from orca.frameworks.torch.hooks import TorchHooks
from orca.frameworks.torch.losses import DeviceLosses
from orca.frameworks.torch.operator import TrainingOperator, overrides
from orca.frameworks.torch.replica import Replica, average_of, evaluating, models_for
from orca.frameworks.torch.resident import keep
from orca.frameworks.torch.runner import TorchRunner
from orca.frameworks.torch.step import Step, check_even, choose_step, has_user_forward
from orca.frameworks.torch.steps import Steps
from orca.frameworks.torch.targets import link_of
from orca.frameworks.torch.tensors import copied, device_of, full, squeezed, twice
from orca.frameworks.torch.training import Training, restore_states
from orca.frameworks.torch.user_loop import OperatorEpoch, OperatorValidation
from orca.rows.tree import listed, map_tree

if TYPE_CHECKING:
    from orca.frameworks.torch.learner import TorchLearner

_FROZEN = "frozen"  # among the states of callbacks


class TorchRun:
    """Torch models at work in one process, as their callbacks see them.

    Args:
        spec: The learner.
        replica: The models.
        criterion: The loss, if there is one.
        loss_fn: The loss of a batch.
    """

    runner: TorchRunner
    callbacks: TorchHooks
    training: Training | None = None
    operator: TrainingOperator | None = None

    def __init__(self, spec: TorchLearner, replica: Replica, criterion: Any, loss_fn: BatchLoss) -> None:
        self.spec, self.replica, self.criterion, self.loss_fn = spec, replica, criterion, loss_fn

    @property
    def modules(self) -> list[nn.Module]:
        """The models as they are trained, wrapped for all ranks; as they are if nothing is trained."""
        return self.replica.models if self.training is None else self.training.modules

    def forward(self, runner: TorchRunner) -> None:
        """Compute output and loss of the runner's batch."""
        *features, target = runner.batch
        output = self.replica.call(runner.model, features)
        outputs, targets = self.loss_fn.pair(output, target)
        _, target = self.loss_fn.trees(outputs, targets)
        runner.show_result(output, target, self.loss_fn(outputs, targets))

    def answer(self, runner: TorchRunner) -> None:
        """Compute the output for the runner's features."""
        runner.show_output(self.outputs_for(runner.batch))

    def outputs_for(self, x: Any) -> Any:
        """Return the outputs for features on the device."""
        if self.operator is not None and overrides(type(self.operator), "predict_batch"):
            output = self.operator.predict_batch(x)
        else:
            output = self.replica.call(self.replica.eval_model, x)
        return map_tree(squeezed, output) if self.spec.options.squeeze else output

    def step_schedulers(self, line: dict[str, Any]) -> None:
        """Step the schedulers that step once an epoch, if anything is trained."""

    def build_operator(self, rank: int, state: State | None) -> TrainingOperator | None:
        """Return the user's operator with its state, if there is one."""
        options, training = self.spec.options, self.training
        if options.operator is None:
            return None
        operator: TrainingOperator = options.operator(
            self.spec.config,
            self.modules,
            training.optimizers if training else [],
            rank,
            criterion=self.criterion,
            schedulers=training.schedulers if training else [],
            use_fp16=options.precision is not None,
        )
        if state and state.payload.get("operator"):
            operator.load_state_dict(state.payload["operator"])
        return operator


class TorchSession(TorchRun, Session):
    """Torch models at work on one rank. TorchLearner.join opens it; close() releases everything it built.

    Args:
        spec: The learner.
        world: The ranks.
        state: The state to begin with, with its payload, if any.
        seed: The seed of each step's random numbers.
        callbacks: The callbacks of the run.
        fit: The plan of the fit; None for an evaluation.
        exits: Closed by close(), in reverse: what was built here, deterministic mode, random state.
    """

    framework = "torch"
    runner: TorchRunner
    callbacks: TorchHooks
    step: Step | None = None

    def __init__(
        self,
        spec: TorchLearner,
        world: World,
        state: State | None,
        seed: int,
        callbacks: Sequence[Any],
        fit: FitPlan | None,
        exits: ExitStack,
    ) -> None:
        self.world, self.start, self.seed, self._exits = world, state, seed, exits
        self.is_sharded = spec.spread
        device = device_of(world)
        models = models_for(spec, state, device)
        criterion = build_loss(spec.loss, spec.config)
        if isinstance(criterion, nn.Module):
            criterion.to(device)
        in_parts = world.size > 1 or spec.options.accumulate > 1
        has_average = spec.options.ema if fit is not None else state and state.payload.get("averages")
        average = average_of(models[0], spec.options.ema, state) if has_average else None
        loss_fn = BatchLoss(criterion, spec.options.reduction, in_parts)
        super().__init__(spec, Replica(spec, models, device, average), criterion, loss_fn)
        self.runner = TorchRunner(self, world.rank, world.size, state, spec.config)
        self.callbacks = TorchHooks(callbacks, self.runner, state.payload.get("callbacks") if state else None)
        exits.callback(self.runner.close)
        self._skips_validations = fit is not None and fit.validation_trigger is not None
        self._is_on_device = False  # whether the rows to train on are on the device
        self.weighting = self.loss_fn if fit is None else self._choose_weighting(fit)
        if fit is not None:
            self.training = self._open_training()
            self.step = choose_step(self, self.training, self.weighting)
        self.operator = self.build_operator(world.rank, state)
        if self.training is not None and self.operator is not None:
            self.training.serve(self.operator)
        if fit is None and spec.spread:
            from orca.frameworks.torch.fsdp import shard

            for model in models:
                shard(model, world, device)
        if self.operator is not None:
            if fit is not None and spec.has_user_step:
                self.user_epoch = OperatorEpoch(self, self.operator, fit)
            if overrides(type(self.operator), "validate", "validate_batch"):
                self.user_evaluation = OperatorValidation(self, self.operator)
        self.evaluation_type = choose_evaluation(self)

    @property
    def knows_loss(self) -> bool:
        """Whether the loss itself says its kind."""
        return self.criterion is not None and not self.loss_fn.asks and self.spec.options.reduction is None

    @property
    def user_code(self) -> bool:
        """Whether there is code of the user's that may change which weights are trained."""
        return bool(self.callbacks) or self.spec.options.operator is not None

    # A fit.

    def output_link(self) -> str:
        """Return what makes probabilities of the outputs, as the loss says; "" if the user's own code makes them."""
        operator = self.spec.options.operator
        is_users = operator is not None and overrides(operator, "forward_batch", "validate", "validate_batch")
        is_users = is_users or self.callbacks.main_has("on_iter_forward", "on_val_forward")
        return "" if is_users else link_of(self.criterion)

    def cache_rows(self, train: Feed | StreamFeed, valid: Feed | StreamFeed | None) -> None:
        """Keep the rows of a fit on this rank's device, if device_cache requests it and they fit."""
        if self.spec.options.device_cache:
            self._is_on_device = keep(train, self.replica.place, self.weighting.counted)
            if valid is not None:
                keep(valid, self.replica.place, self.loss_fn.counted)

    def begin_epoch(self, epoch: int, on_nan: str) -> LossAccumulator:
        """Let all layers train; those that callbacks switch off then stay as they are, also over an evaluation."""
        for module in self.modules:
            module.train()
        return DeviceLosses(epoch, on_nan)

    def prepare(self, batches: Iterator[Batch], epoch: int, first_step: int) -> Iterator[Batch]:
        """Return batches on their way to the device, each with random numbers of its own."""
        assert self.training is not None
        self.training.check_same()
        seed = (self.seed, epoch, self.world.rank)
        return iter(Steps(batches, self.replica.place, seed, first_step, self.weighting.counted, self._is_on_device))

    def batch_view(self, batch: Batch) -> Any:
        """Return a batch as a loader gives it, on the device."""
        return self.replica.place.loaded(batch)

    def train_step(self, batch: Batch, step: int) -> StepResult:
        """Train on a batch."""
        assert self.training is not None and self.step is not None
        rate = self.training.rate()
        self.runner.begin_step(step)
        self.open_step(batch, step)
        loss = self.step(batch, step)
        self.training.close_step(steps_schedulers=True)
        return StepResult(loss, learning_rate=rate)

    def open_step(self, batch: Batch, step: int) -> None:
        """Prepare for a step, which may be the user's own."""
        assert self.training is not None
        if not self.training.user_backward:
            self.training.open_step(batch, step)
            return
        check_even(batch, self.weighting, self.world.size)
        self.training.open_step(batch, step)
        self.training.count_rows(bool(batch.rows))

    def close_user_step(self, batch: Batch) -> None:
        """End a step that the user's operator did."""
        assert self.training is not None
        self.training.share_buffers(batch)
        self.training.close_step(steps_schedulers=False)

    def agree_to_stop(self, wants_stop: bool | None) -> bool:
        """Return whether any rank wants to stop; on the way, ranks learn whether what is trained has changed."""
        if wants_stop is None or self.training is None:
            return False
        flags = np.array([wants_stop, self.training.trained_weights.changed], np.int64)
        stops, changes = self.world.all_reduce([flags], "sum")[0]
        if changes:
            self.training.check_same()
        return bool(stops)

    def end_epoch(self, line: dict[str, Any]) -> bool:
        """Step the schedulers that step once an epoch; tell optimizers of its end that want to know."""
        assert self.training is not None
        self.runner.end_epoch(line)
        is_skipped = self._skips_validations and "val_loss" not in line
        for optimizer in self.training.optimizers:
            if hasattr(optimizer, "end_epoch"):
                optimizer.end_epoch(line["train_loss"], _score(line), is_skipped)
        if self.callbacks.main is not None:
            self.callbacks.on_main("on_lr_adjust")
        elif self.user_epoch is None or (self.operator is not None and self.operator._take_epoch_end()):
            self.step_schedulers(line)
        return False

    def step_schedulers(self, line: dict[str, Any]) -> None:
        """Step the schedulers that step once an epoch; one that watches a number gets the (validation) loss."""
        if self.training is None or self.spec.options.step_freq != "epoch":
            return
        for scheduler in self.training.schedulers:
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                # Losses of training and validation are not compared.
                if not self._skips_validations or "val_loss" in line:
                    scheduler.step(line.get("val_loss", line["train_loss"]))
            else:
                scheduler.step()

    def communication_seconds(self) -> float:
        """Return the mean seconds of a step's communication beside the backward pass."""
        return 0.0 if self.training is None else self.training.sync.communicated()

    @contextmanager
    def evaluation(self, metrics: Sequence[Metric]) -> Iterator[Evaluation]:
        """Open an evaluation; afterwards each layer trains, or not, as before."""
        with evaluating(self.modules):
            yield self.evaluation_type(self, metrics, tally_of(self))
        if self.training is not None:
            self.training.check_same()  # its callbacks may have frozen weights

    # States.

    def rewind(self) -> None:
        """Undo the changes of the user's code as a resumed fit began; weights are frozen as they were in its state."""
        if self.start is None or self.training is None or not self.user_code:
            return
        payload = self.start.payload
        frozen = payload.get("callbacks", {}).get(_FROZEN)
        for model, names in zip(self.replica.models, frozen, strict=True) if frozen else ():
            for name, weight in model.named_parameters():
                weight.requires_grad_(name not in names)
        self.runner.put_back_weights(payload["models"], payload.get("averages", ()))
        self.training.rewind(payload)

    def resume_state(self) -> dict[str, Any]:
        """Return which weights are frozen, if code of the user's may have done it."""
        if not self.user_code:
            return {}
        models = self.replica.models
        return {_FROZEN: [[name for name, w in model.named_parameters() if not w.requires_grad] for model in models]}

    def state(self) -> State:
        """Return weights and optimizer state on the CPU; the output's description from a rank that saw a row.

        Only rank 0 copies the tensors, unless its sync has done that: its state is the one that counts.
        """
        if self.training is not None:
            self.training.check_same()
            self.training.follow()
        specs = self.world.all_gather(self._describe())
        own = copied if self.world.rank == 0 else dict
        gathered = dict if self.spec.spread else own
        payload: dict[str, Any] = {"models": [], "optimizers": [], "schedulers": []}
        if self.training is not None:
            payload = self.training.payload(own, gathered)
        elif not self.spec.spread:
            payload["models"] = [gathered(model.state_dict()) for model in self.replica.models]
        if self.operator is not None:
            payload["operator"] = own(self.operator.state_dict())
        row, output = next(filter(None, specs), (None, None))
        return State(payload=payload, output=output, input=row)

    def write_state(self, state: State, path: str) -> None:
        """Write a state to a path that the Estimator loads; with the name of a checkpoint of BigDL, the method too."""
        if self.training is not None:
            write_method(self.spec.optimizer, self.training.optimizer, path)
        super().write_state(state, path)

    def close(self) -> None:
        """Release all: torch cannot destroy a process group that a DistributedDataParallel still holds."""
        self._exits.close()

    def _describe(self) -> tuple[OutputSpec, OutputSpec] | None:
        """Describe a row, and the model's output for it: a model in training may give something else."""
        if self.replica.sample is None:
            return None
        try:
            with evaluating(self.replica.models), kept_draws(), torch.no_grad(), self.replica.autocast():
                # Twice, as a model that drops dimensions of size 1 drops that of a single row, too.
                output = self.outputs_for(listed(self.replica.place.features(twice(self.replica.sample))))
        except Exception:
            if self.training is not None and self.training.user_backward:
                return None  # the first of the user's models need not be one that predicts for rows of training
            raise
        return OutputSpec.of(self.replica.sample), OutputSpec.of(map_tree(full, output))

    # Opening.

    def _choose_weighting(self, fit: FitPlan) -> BatchLoss:
        """Return how rows count in the mean of the loss: as the loss says, or as rows if the user's code computes it.

        Raises:
            ArgumentError: Rows bring weights, which the user's code would not see.
        """
        if not self._has_user_backward and not has_user_forward(self.callbacks):
            return self.loss_fn
        if fit.weighted:
            raise ArgumentError(NO_WEIGHTS, code="no-weights-to-train")
        return self.loss_fn if self.knows_loss else BatchLoss(None, self.spec.options.reduction)

    @property
    def _has_user_backward(self) -> bool:
        """Whether code of the user's calls backward and updates the weights."""
        return self.spec.has_user_step or self.callbacks.main_has("on_iter_backward")

    def _open_training(self) -> Training:
        """Build optimizers, schedulers, loss scaler and syncs, each with its state."""
        spec, options, state, models = self.spec, self.spec.options, self.start, self.replica.models
        optimizers = build_optimizers(spec.optimizer, models, spec.config)
        options.check_optimizers(optimizers)
        schedulers = build_schedulers(options.scheduler, optimizers, spec.config)
        options.check_schedulers(schedulers)
        # Of an optimizer's state each rank takes its part when the model is sharded.
        restore_states([] if spec.spread else optimizers, "optimizers", state)
        restore_states(schedulers, "schedulers", state)
        if not self._has_user_backward:
            _check_single(models, optimizers)
        optimizer_states = state.payload.get("optimizers") if state else None
        return Training(
            self.replica,
            self.world,
            optimizers,
            schedulers,
            self._scaler(),
            optimizer_state=optimizer_states[0] if optimizer_states else None,
            user_backward=self._has_user_backward,
            user_code=self.user_code,
            exits=self._exits,
        )

    def _scaler(self) -> torch.amp.GradScaler:
        device, state = self.replica.place.device, self.start
        scaler = torch.amp.GradScaler(device.type, enabled=self.spec.options.precision == "fp16")
        if state and state.payload.get("scaler"):
            scaler.load_state_dict(state.payload["scaler"])
        # It begins with the first number that it scales, and this rank may have none.
        scaler.scale(torch.zeros((), device=device))
        return scaler


def _check_single(models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Check that there is nothing that only the user's own steps can train."""
    if len(models) > 1:
        raise ArgumentError(
            f"{len(models)} models need to be told how they are trained together. Pass training_operator_cls, "
            "or a MainCallback with its own forward and backward pass.",
            code="several-models",
        )
    if len(optimizers) > 1:
        raise ArgumentError(
            f"{len(optimizers)} optimizers need to be told when each of them steps. Pass one optimizer with "
            "several parameter groups, training_operator_cls, or a MainCallback with its own backward pass.",
            code="several-optimizers",
        )


def _score(line: dict[str, Any]) -> float | None:
    """Return the first metric of an epoch's validation that is a number, else its loss."""
    others = ("val_num_samples", "val_loss")
    scores = [value for name, value in line.items() if name.startswith("val_") and name not in others]
    return next((float(value) for value in [*scores, line.get("val_loss")] if isinstance(value, float | int)), None)
