"""Evaluation: who computes outputs and loss of an evaluation of torch models. Chosen once, when a session opens."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from orca.core.metrics import Metric
from orca.core.session import Evaluation
from orca.core.source import Batch
from orca.core.state import Losses
from orca.errors import ArgumentError
from orca.frameworks.torch.batch_loss import BatchLoss, Tally, scalar
from orca.frameworks.torch.operator import overrides
from orca.frameworks.torch.step import paired
from orca.frameworks.torch.tensors import full

if TYPE_CHECKING:
    from orca.frameworks.torch.session import TorchSession

NO_WEIGHTS = "sample weights cannot reach a loss of your own. Weigh the rows there."

Result = tuple[list[Any], list[Any], Any]  # outputs and targets side by side, and their loss, None if there is none


class TorchEvaluation(Evaluation):
    """An evaluation of torch models; losses and metrics are sums, so they are exact for any split of the rows.

    Args:
        session: Its session.
        metrics: The metrics to feed.
        tally: Adds up the losses.
    """

    def __init__(self, session: TorchSession, metrics: Sequence[Metric], tally: Tally) -> None:
        self.session, self.metrics, self.tally = session, metrics, tally
        self.replica, self.loss_fn, self.callbacks = session.replica, session.loss_fn, session.callbacks
        self.steps_done = self.rows = 0

    def steps(self) -> AbstractContextManager[Any]:
        """Return the context without gradients."""
        return torch.no_grad()

    def joins(self, batch: Batch) -> bool:
        """Return whether this rank computes outputs: all ranks run the forward pass of a sharded model together."""
        return batch.rows > 0 or self.replica.spec.spread

    def step(self, batch: Batch, step: int) -> None:
        """Evaluate a batch."""
        batch = self.loss_fn.counted(batch)
        self.steps_done += 1
        if not self.joins(batch):
            return
        with self.replica.autocast():
            outputs, targets, loss = self.forward(batch, step)
        if self.callbacks:
            self.callbacks.runner.show_result(*self.loss_fn.trees(outputs, targets), loss)
        outputs = [full(output) for output in outputs]
        if batch.rows and loss is not None:
            self.tally.add(batch, outputs, targets, scalar(loss))
        for metric in self.metrics if batch.rows else ():
            metric.update(*self.loss_fn.trees(outputs, targets))
        self.rows += batch.rows

    def result(self) -> Losses:
        """Return the sum of losses."""
        loss_sum, weight_sum = self.tally.close()
        if self.session.criterion is None:
            loss_sum = math.nan
        return Losses(loss_sum=loss_sum, mass=weight_sum, rows=self.rows, steps=self.steps_done)

    @abstractmethod
    def forward(self, batch: Batch, step: int) -> Result:
        """Return outputs, targets and loss of a batch."""


class ModelEvaluation(TorchEvaluation):
    """An evaluation by the model's own forward pass."""

    def forward(self, batch: Batch, step: int) -> Result:
        """Return outputs, targets and loss of a batch."""
        output = self.replica.forward(self.replica.eval_model, batch.x)
        outputs, targets = paired(self.loss_fn, self.replica, output, batch)
        if self.session.criterion is None:
            return outputs, targets, None
        return outputs, targets, self.loss_fn(outputs, targets, batch)


class UserEvaluation(TorchEvaluation):
    """An evaluation whose loss the user's own code computes."""

    def forward(self, batch: Batch, step: int) -> Result:
        """Return outputs, targets and loss of a batch.

        Raises:
            ArgumentError: Rows have weights, or the loss is not the one that the learner knows.
        """
        if batch.weights is not None:
            raise ArgumentError(NO_WEIGHTS, code="no-weights-to-train")
        output, target, loss = self.user_forward(batch)
        outputs, targets = self.loss_fn.leaves(output, target)
        if self.session.knows_loss and batch.rows and loss is not None:
            self.loss_fn.check_own(batch, outputs, targets, scalar(loss), step + 1)
        return outputs, targets, loss

    @abstractmethod
    def user_forward(self, batch: Batch) -> tuple[Any, Any, Any]:
        """Return output, target and loss by the user's code."""


class OperatorEvaluation(UserEvaluation):
    """An evaluation by the forward pass of the user's TrainingOperator."""

    def user_forward(self, batch: Batch) -> tuple[Any, Any, Any]:
        """Return output, target and loss by the operator."""
        operator = self.session.operator
        assert operator is not None
        return operator.forward_batch(self.replica.place.loaded(batch), {})


class CallbackEvaluation(UserEvaluation):
    """An evaluation by the forward pass of the user's MainCallback."""

    def user_forward(self, batch: Batch) -> tuple[Any, Any, Any]:
        """Return output, target and loss by the callback."""
        self.callbacks.on_main("on_val_forward")
        runner = self.callbacks.runner
        return runner.output, runner.target, runner.loss


def choose_evaluation(session: TorchSession) -> type[TorchEvaluation]:
    """Return who computes outputs and loss of an evaluation."""
    if session.operator is not None and overrides(type(session.operator), "forward_batch"):
        return OperatorEvaluation
    if session.callbacks.main_has("on_iter_forward", "on_val_forward"):
        return CallbackEvaluation
    return ModelEvaluation


def tally_of(session: TorchSession) -> Tally:
    """Return what adds up the losses: those of the user's own code are means over rows, unless their kind is known."""
    is_unknown = session.loss_fn.asks and issubclass(session.evaluation_type, UserEvaluation)
    return Tally(BatchLoss(None, session.spec.options.reduction) if is_unknown else session.loss_fn)
