"""Session: a learner at work on one rank. Owns the contract between the loop and a framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from orca.core.callbacks.hooks import Hooks
from orca.core.callbacks.runner import Runner
from orca.core.feed import Feed, StreamFeed
from orca.core.losses import LossAccumulator, StepResult
from orca.core.metrics import Metric
from orca.core.source import Batch
from orca.core.state import Losses, State
from orca.errors import NotSupported
from orca.monitor.heartbeat import Heartbeat
from orca.rows.tree import cut_rows

UserEpoch = Callable[[Iterator[Batch], Heartbeat, int], Losses]
UserEvaluation = Callable[[Iterator[Batch], Sequence[Metric], Heartbeat], Losses]


class Session(ABC):
    """A learner at work on one rank, complete when constructed, and a context manager.

    `Learner.join` opens it on all ranks together; `close` releases all that it built. In a fit, the loop in
    `core/loop.py` calls `begin_epoch`, then `train_step` for each batch that `prepare` yields, then `end_epoch`, and
    in the end `end_fit`. Evaluations may come between two steps. All ranks make the same calls.

    A State's payload holds arrays (tensors of torch or numpy) and plain values in dicts, lists and tuples, under names
    of the framework's own; `storage/states.py` writes it to disk.

    Attributes:
        framework: The name that saved states carry.
        callbacks: The hooks of the run's callbacks, which the loop calls; those of a framework's own kind are not
            among them.
        runner: What these callbacks see.
        is_sharded: Whether no rank holds the whole model.
        user_epoch: Trains an epoch `(batches, heartbeat, epoch)`, if code of the user's has the loop over batches:
            then nothing can be due within an epoch.
        user_evaluation: Evaluates `(batches, metrics, heartbeat)`, if code of the user's has that loop.
    """

    framework: str
    callbacks: Hooks
    runner: Runner
    is_sharded: bool = False
    user_epoch: UserEpoch | None = None
    user_evaluation: UserEvaluation | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def output_link(self) -> str:
        """Return what makes probabilities of the outputs, as the loss says: "sigmoid", "softmax", or "" if unknown.

        It is the link of the output that metrics see: the first one. All ranks call it.
        """
        return ""

    def cache_rows(self, train: Feed | StreamFeed, valid: Feed | StreamFeed | None) -> None:  # noqa: B027
        """Let the feeds of a fit read their rows from a nearer place, if an option requests it."""

    def begin_epoch(self, epoch: int, on_nan: str) -> LossAccumulator:
        """Begin an epoch, before its callbacks are called; return what adds up its losses."""
        return LossAccumulator(epoch, on_nan)

    def prepare(self, batches: Iterator[Batch], epoch: int, first_step: int) -> Iterator[Batch]:
        """Return the batches of an epoch that follow its first steps, ready to train on. The loop closes it."""
        return batches

    def batch_view(self, batch: Batch) -> Any:
        """Return a batch as callbacks see it: the true rows of features and labels."""
        cut = slice(0, batch.rows)
        return [cut_rows(part, cut) for part in (batch.x, batch.y) if part is not None]

    @abstractmethod
    def train_step(self, batch: Batch, step: int) -> StepResult:
        """Train on a batch: one update, the same on every rank."""

    @abstractmethod
    def agree_to_stop(self, wants_stop: bool | None) -> bool:
        """Return whether any rank wants to stop after this step; None if no callback can, on any rank."""

    def end_epoch(self, line: dict[str, Any]) -> bool:
        """Take the statistics of an epoch over all ranks, before callbacks do; return whether to stop."""
        return False

    def communication_seconds(self) -> float:
        """Return the mean seconds that a step spends in communication beside other phases, for profiles."""
        return 0.0

    @abstractmethod
    def evaluation(self, metrics: Sequence[Metric]) -> AbstractContextManager[Evaluation]:
        """Open an evaluation that feeds outputs and targets to these metrics. An epoch may continue afterwards."""

    def end_fit(self) -> None:  # noqa: B027
        """End a fit: its epochs are done."""

    @abstractmethod
    def rewind(self) -> None:
        """Restore weights and optimizer of the state that the session was opened with.

        The loop calls it in a resumed fit, after the callbacks' hooks that begin a fit or an epoch: that state has
        their changes already.
        """

    @abstractmethod
    def state(self) -> State:
        """Return weights and optimizer state; all ranks call it together, and rank 0's counts."""

    def resume_state(self) -> dict[str, Any]:
        """Return what only a resumed fit needs, such as the states of the framework's own callbacks.

        All ranks call it together, and rank 0's counts. It travels in `payload["callbacks"]` of the state, under names
        that no class has.
        """
        return {}

    def write_state(self, state: State, path: str) -> None:
        """Write a state to a path that the Estimator loads."""
        from orca.storage.states import save_state  # loads torch, as every rank does anyway

        save_state(state, path, self.framework)

    def learning_rates(self) -> list[float]:
        """Return the learning rates of the next step, one for each group of weights; [] if unknown."""
        return []

    def copy_weights(self) -> Any:
        """Return a copy of the weights as this rank holds them: arrays and plain values."""
        raise NotSupported(
            f"{type(self).__name__} cannot put weights back. Give it copy_weights and put_back_weights, or leave out "
            "restore_best_weights.",
            code="weights-not-restorable",
        )

    def put_back_weights(self, weights: Any) -> None:
        """Put back weights that copy_weights returned on any rank."""
        raise NotSupported(
            f"{type(self).__name__} has a copy_weights, but no put_back_weights. Give it both.",
            code="weights-not-restorable",
        )

    @abstractmethod
    def close(self) -> None:
        """Release all that was built: what holds on to the process group first, then the models."""


class Evaluation(ABC):
    """An evaluation under way: the loop steps it as it steps training."""

    def steps(self) -> AbstractContextManager[Any]:
        """Return the context of all steps, and of the hooks around each of them."""
        return nullcontext()

    def joins(self, batch: Batch) -> bool:
        """Return whether this rank computes outputs in a step: it may have no rows in it."""
        return batch.rows > 0

    @abstractmethod
    def step(self, batch: Batch, step: int) -> None:
        """Evaluate a batch, which may have no rows."""

    @abstractmethod
    def result(self) -> Losses:
        """Return the losses, and the framework's own metrics; all ranks call it together."""
