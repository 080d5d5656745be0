"""Step: who does the forward pass, the backward pass and the update of a step. Chosen once, when a fit opens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from orca.core.source import Batch
from orca.errors import ArgumentError
from orca.frameworks.torch.batch_loss import BatchLoss, scalar
from orca.frameworks.torch.hooks import TorchHooks
from orca.frameworks.torch.losses import DeviceStepLoss, merged
from orca.frameworks.torch.replica import Replica
from orca.frameworks.torch.tensors import pieces_of, template_of, twice
from orca.frameworks.torch.training import Training
from orca.monitor.heartbeat import BACKWARD, FORWARD, OPTIMIZER

if TYPE_CHECKING:
    from orca.frameworks.torch.session import TorchSession

Pair = tuple[list[Any], list[Any], torch.Tensor]  # outputs and targets side by side, and their loss
Forward = Callable[[Batch, int], Pair]


class PlainStep:
    """Forward, backward, clip, update: the step of an ordinary training script, exact for uneven ranks.

    Args:
        training: The replica and its optimizers.
        weighting: How rows count in the mean of the loss.
        forward: Returns outputs, targets and loss of a micro-batch of a step.
        user_loss: Whether code of the user's computes the loss, so that zeros start from it.
    """

    def __init__(self, training: Training, weighting: BatchLoss, forward: Forward, user_loss: bool) -> None:
        self.training, self.replica, self.weighting = training, training.replica, weighting
        self.options, self.world = training.options, training.world
        self.forward, self.user_loss = forward, user_loss
        self.casting = self.replica.autocast()  # which takes long to make, next to the step of a small model

    def __call__(self, batch: Batch, step: int) -> DeviceStepLoss | None:
        """Train on a batch; return this rank's loss, None if none of its rows counted."""
        training = self.training
        loss = self.gradients(batch, step)
        self.world.heartbeat.at(OPTIMIZER)
        if self.options.clipping:
            training.scaler.unscale_(training.optimizer)
            training.sync.clip(self.options.clipping)
        training.sync.step(batch.leader, training.update)
        return loss

    def gradients(self, batch: Batch, step: int) -> DeviceStepLoss | None:
        """Leave the step's gradients in the weights; return this rank's loss."""
        heartbeat, sync = self.world.heartbeat, self.training.sync
        heartbeat.at(FORWARD)
        sync.zero()
        self.weighting.send(batch)
        micro_batches = self._micro_batches(batch)
        losses: list[DeviceStepLoss | None] = []
        denominator = 0.0
        for number, micro_batch in enumerate(micro_batches):
            is_last = number == len(micro_batches) - 1
            self.training.count_rows(bool(micro_batch.rows))
            with nullcontext() if is_last else sync.no_sync():
                heartbeat.at(FORWARD)
                with self.casting:
                    outputs, targets, loss = self.forward(micro_batch, step)
                if not denominator:  # after the first forward pass, which may hold a collective of its own
                    denominator = self.weighting.whole(batch, micro_batch, (outputs, targets))
                heartbeat.at(BACKWARD)
                losses.append(self._backward(micro_batch, outputs, targets, loss, denominator))
        return merged([loss for loss in losses if loss is not None])

    def _backward(
        self, micro_batch: Batch, outputs: list[Any], targets: list[Any], loss: torch.Tensor, denominator: float
    ) -> DeviceStepLoss | None:
        """Run the backward pass of a micro-batch; return its loss, None if nothing in it counts."""
        sync = self.training.sync
        if not micro_batch.rows:
            sync.idle(loss if self.user_loss else outputs)
            return None
        scale, weight_sum = self.weighting.times(micro_batch, targets)
        if not weight_sum:  # every target of this micro-batch is ignored: its mean is 0 / 0
            sync.backward(_zero_of(outputs), 1.0)
            return None
        # A sync averages over ranks; this factor turns that mean into the mean over all rows of the step.
        part = DeviceStepLoss(loss.detach(), scale, weight_sum, scale / denominator * self.world.size)
        sync.backward(self.training.scaler.scale(loss), part.weight)
        return part

    def _micro_batches(self, batch: Batch) -> list[Batch]:
        """Return a rank's rows of a step in micro-batches: as many on every rank if ranks meet in each pass.

        Those that others have more of are dummy rows, and count nothing.
        """
        statistics = self.training.statistics
        shared = any(each.shared for each in statistics)
        least = 2 if shared or any(each.needs_two for each in statistics) else 1
        count, own = (max(1, min(self.options.accumulate, rows // least)) for rows in (max(batch.shares), batch.rows))
        micro_batches, more = pieces_of(batch, own), count - own if shared or self.replica.spec.spread else 0
        return [*micro_batches, *[template_of(batch)] * more] if more else micro_batches


class ClosureStep(PlainStep):
    """The step of an optimizer that asks for the loss several times (LBFGS): every rank must see the same loss."""

    def __call__(self, batch: Batch, step: int) -> DeviceStepLoss | None:
        """Train on a batch; return the first loss of this rank's rows."""
        training = self.training
        losses: list[DeviceStepLoss | None] = []

        def closure() -> float:
            loss = self.gradients(batch, step)
            if self.options.clipping:
                training.sync.clip(self.options.clipping)
            losses.append(loss)
            mean = torch.zeros((), dtype=torch.float64, device=self.replica.place.device)
            if loss is not None:
                mean += loss.value.double() * loss.weight / self.world.size
            dist.all_reduce(mean)
            return float(mean)

        training.sync.step(batch.leader, lambda: training.optimizer.step(closure))  # type: ignore[arg-type]
        return losses[0]


class ModelForward:
    """The forward pass of the model, and its loss.

    Args:
        training: The replica and its optimizers.
        loss_fn: The loss.
        callbacks: See the results, if they watch steps.
    """

    def __init__(self, training: Training, loss_fn: BatchLoss, callbacks: TorchHooks) -> None:
        self.training, self.replica, self.loss_fn = training, training.replica, loss_fn
        self.runner, self.watched = callbacks.runner, callbacks.watches_steps

    def __call__(self, batch: Batch, step: int) -> Pair:
        """Return outputs, targets and loss."""
        if not batch.rows:
            batch = replace(batch, x=twice(batch.x), y=twice(batch.y), weights=None)
        output = self.replica.forward(self.training.sync.module, batch.x)
        outputs, targets = paired(self.loss_fn, self.replica, output, batch)
        loss = self.loss_fn(outputs, targets, batch)
        if self.watched:
            self.runner.show_result(*self.loss_fn.trees(outputs, targets), loss)
        return outputs, targets, loss


class CallbackForward:
    """The forward pass of the user's MainCallback.

    Args:
        replica: The models.
        loss_fn: The loss.
        weighting: How rows count in the mean of the user's loss.
        callbacks: Have the main callback.
    """

    def __init__(self, replica: Replica, loss_fn: BatchLoss, weighting: BatchLoss, callbacks: TorchHooks) -> None:
        self.replica, self.loss_fn, self.weighting, self.callbacks = replica, loss_fn, weighting, callbacks

    def __call__(self, batch: Batch, step: int) -> Pair:
        """Return outputs, targets and loss."""
        runner = self.callbacks.runner
        runner.show_batch(self.replica.place.loaded(batch))
        self.callbacks.on_main("on_train_forward")
        (outputs, targets), loss = self.loss_fn.leaves(runner.output, runner.target), scalar(runner.loss)
        if batch.rows and self.weighting:
            self.weighting.check_own(batch, outputs, targets, loss, self.weighting.steps + 1)
        return outputs, targets, loss


class CallbackStep:
    """A step whose backward pass and update the user's MainCallback does; gradients are weighted when averaged.

    Args:
        training: The replica and its optimizers.
        weighting: How rows count in the mean of the loss.
        callbacks: Have the main callback.
    """

    def __init__(self, training: Training, weighting: BatchLoss, callbacks: TorchHooks) -> None:
        self.training, self.replica, self.weighting, self.callbacks = training, training.replica, weighting, callbacks

    def __call__(self, batch: Batch, step: int) -> DeviceStepLoss | None:
        """Train on a batch; return this rank's loss, None if it has none."""
        runner, heartbeat, world = self.callbacks.runner, self.training.world.heartbeat, self.training.world
        runner.show_batch(self.replica.place.loaded(batch))
        heartbeat.at(FORWARD)
        with self.replica.autocast():
            self.callbacks.on_main("on_train_forward")
        heartbeat.at(BACKWARD)
        self.callbacks.on_main("on_iter_backward")
        self.training.share_buffers(batch)
        if not batch.rows or runner.loss is None:
            return None
        weight = batch.rows * world.size / batch.step_rows
        return DeviceStepLoss(scalar(runner.loss).detach(), batch.rows, batch.rows, weight)


Step = PlainStep | CallbackStep


def choose_step(session: TorchSession, training: Training, weighting: BatchLoss) -> Step:
    """Return who does the steps of a fit: the callback that has its own backward pass, or we."""
    callbacks = session.callbacks
    if training.user_backward:
        return CallbackStep(training, weighting, callbacks)
    user_loss = has_user_forward(callbacks)
    forward: Forward = ModelForward(training, session.loss_fn, callbacks)
    if user_loss:
        forward = CallbackForward(training.replica, session.loss_fn, weighting, callbacks)
    asks_for_loss = isinstance(training.optimizer, torch.optim.LBFGS)
    return (ClosureStep if asks_for_loss else PlainStep)(training, weighting, forward, user_loss)


def has_user_forward(callbacks: TorchHooks) -> bool:
    """Return whether the main callback computes output and loss of training itself."""
    return callbacks.main_has("on_iter_forward", "on_train_forward")


def check_even(batch: Batch, weighting: BatchLoss, world_size: int) -> None:
    """Check that gradients of the user's own backward pass may be averaged by rows.

    Raises:
        ArgumentError: The rows of the loss do not count the same.
    """
    if batch.rows and world_size > 1 and weighting and not weighting.is_even(batch):
        raise ArgumentError(
            f"the rows of {weighting.loss} do not count the same (a sum, class weights, ignored labels), but your "
            "own backward pass is averaged over workers by their rows. Use a loss that is a mean over rows, leave "
            "loss out of from_torch and weigh the rows yourself, or leave the backward pass to Orca.",
            code="loss-not-averaged",
        )


def paired(loss_fn: BatchLoss, replica: Replica, output: Any, batch: Batch) -> tuple[list[Any], list[Any]]:
    """Return outputs and targets side by side."""
    return loss_fn.pair(output, None if batch.y is None else replica.place.targets(batch.y))


def _zero_of(outputs: list[Any]) -> torch.Tensor:
    """Return a loss whose gradients are exactly zero."""
    leaves = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return torch.stack([leaf.sum() * 0.0 for leaf in leaves]).sum()
