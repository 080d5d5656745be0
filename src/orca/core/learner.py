"""Learner: the contract of a framework, on the driver and on a rank. Owns Predictor, Learner and FitPlan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from orca.core.callbacks.hooks import Hooks
from orca.core.callbacks.numbers import check_monitors
from orca.core.callbacks.runner import Runner
from orca.core.feed import Feed, StreamFeed
from orca.core.metrics import Metric
from orca.core.source import Batch
from orca.core.state import Losses, State
from orca.core.triggers import Trigger
from orca.core.units import positive
from orca.core.world import World
from orca.errors import ArgumentError, NotSupported
from orca.monitor.heartbeat import Heartbeat
from orca.storage.retries import STORAGE_TIMEOUT


@dataclass(frozen=True)
class FitPlan:
    """A plan of training: travels to every rank, the same on each.

    Attributes:
        epochs: How many epochs to add to those already trained.
        batch_size: Rows of a step over all ranks; None where the data brings its own batches.
        shuffle: Whether each epoch reads in a new order.
        seed: Seed of initial weights, order and dropout.
        on_nan: "raise", "warn" or "ignore" when the loss is not finite.
        profile: Whether to measure where time goes.
        max_steps: Train this many steps instead, over as many epochs as it takes.
        steps_per_epoch: Steps of an epoch, which continues in the data where the last one ended; None for all of it.
        validation_steps: Steps of a validation; None for all of the data.
        validation_freq: After which epochs to validate: every n-th, or the epochs of these numbers, counted from 1.
        validation_trigger: A trigger that says it instead; it is asked after every step, as that of checkpoints is.
        initial_epoch: The number of the first epoch, for callbacks that count them.
        callbacks: Callbacks: ours, which the loop calls, or those of a framework that has its own.
        weighted: Whether every row brings a weight.
        validates: Whether there is validation data; the job sets it.
        checkpoint_trigger: When to keep a checkpoint in `checkpoint_folder`; None keeps none.
        checkpoint_folder: The folder of checkpoints.
        checkpoint_keep: How many of the newest checkpoints stay; None for all.
        checkpoint_visible: Whether the driver sees that folder as one of its own machine, so that rank 0 must see it.
        storage_timeout: Seconds for which storage that fails is tried again.
        stores: Whether the state stays in `checkpoint_folder` at the end, instead of travelling back.
        end_trigger: When to stop before `epochs` are over.
        info: A dict for the user's own training operator.
    """

    epochs: int = 1
    batch_size: int | None = 32
    shuffle: bool = True
    seed: int = 0
    on_nan: str = "raise"
    profile: bool = False
    max_steps: int | None = None
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_freq: int | tuple[int, ...] = 1
    validation_trigger: Trigger | None = None
    initial_epoch: int = 0
    callbacks: tuple[Any, ...] = ()
    weighted: bool = False
    validates: bool = False
    checkpoint_trigger: Trigger | None = None
    checkpoint_folder: str = ""
    checkpoint_keep: int | None = None
    checkpoint_visible: bool = False
    storage_timeout: float = STORAGE_TIMEOUT
    stores: bool = False
    end_trigger: Trigger | None = None
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("max_steps", "steps_per_epoch", "validation_steps"):
            if (value := getattr(self, name)) is not None:
                positive(name, value)
        if self.on_nan not in ("raise", "warn", "ignore"):
            raise ArgumentError(f"on_nan must be 'raise', 'warn' or 'ignore'; got {self.on_nan!r}.", code="bad-on-nan")


class Predictor(ABC):
    """A model that answers.

    It is made on the driver, travels to the workers by pickle, and is given its weights there by `restore`.

    Attributes:
        numbers: Whether the framework has tensors of numbers alone, so that texts and dates are refused on the driver.
        gpu: The GPU to answer on, where the cluster gave this process one.
    """

    numbers: ClassVar[bool] = False
    gpu: str | None = None

    @abstractmethod
    def restore(self, state: State) -> None:
        """Build the model and give it these weights."""

    @abstractmethod
    def predict(self, x: Any) -> Any:
        """Return the outputs for a block of rows as a tree of numpy arrays."""

    def takes(self, x: Any) -> bool:
        """Say whether these may be the model's inputs, as far as it can tell: a dataset's items may end in a label."""
        return True

    def spares(self, x: Any) -> bool:
        """Say whether the model can do without the last of its inputs, which is then more likely a label."""
        return False


class Learner(Predictor):
    """A model that learns.

    On the driver: the constructor remembers its arguments, the checks refuse those that cannot work, and states are
    made and turned into the user's own kind of model. Then the learner travels to every rank.

    On a rank, in this order: `join` builds model and optimizer; `call_back` takes the callbacks; `begin` opens a fit;
    `begin_epoch`, `train`, `evaluate` and `end_epoch` take turns, called by the loop in `core/loop.py`, which also
    calls the callbacks, decides on checkpoints and asks for `state`; `finish` closes the fit; `leave` lets go of
    everything. All ranks make the same calls.

    Callbacks (`orca.callbacks`) need nothing of a learner that trains on each batch before it asks for the next one.
    Some of them ask for `learning_rates`, `copy_weights` and `put_back_weights`.

    A State's payload holds arrays (tensors of torch or numpy) and plain values in dicts, lists and tuples, under names
    of the framework's own; `storage/states.py` writes it to disk.

    Attributes:
        framework: The name that saved states carry.
        pauses: Whether an epoch may be trained in several calls of `train`, so that a checkpoint can be kept mid-epoch,
            or the model evaluated.
        spread: Whether no rank holds the whole model, so that its state may be too large to travel.
    """

    framework: ClassVar[str]
    pauses: bool = False
    spread: bool = False

    # On the driver.

    def check_trainable(self) -> None:
        """Check that all is there that training needs.

        Raises:
            ArgumentError: Something is missing.
        """

    def check_callbacks(self, callbacks: Sequence[Any]) -> None:
        """Check callbacks before anything travels.

        Raises:
            ArgumentError: They are of another kind than the framework's, or do not go with the options.
        """
        Hooks(callbacks)

    def check_state(self, state: State, name: str) -> None:
        """Check that a state fits the model, as far as that can be told here; `name` is for the message.

        Raises:
            ArgumentError: It does not; names the difference.
        """

    def with_columns(self, features: tuple[str, ...]) -> Self:
        """Return this learner for data whose feature columns have these names; () for data without columns."""
        return self

    def epoch_numbers(self, metrics: Sequence[Metric], validates: bool) -> set[str] | None:
        """Return the names of the numbers that an epoch of training ends with, before callbacks add theirs.

        None if they are known only when an epoch has ended.
        """
        return None

    def check_monitors(self, callbacks: Sequence[Any], metrics: Sequence[Metric], validates: bool) -> None:
        """Check that epochs will have the numbers that callbacks watch, as far as that can be told here.

        Raises:
            ArgumentError: They will not; names those that there are.
        """
        names = self.epoch_numbers(metrics, validates)
        if names is not None:
            check_monitors(callbacks, names)

    def weight_bytes(self) -> int | None:
        """Return the bytes of the weights; None where the model would have to be built to tell."""
        return None

    @abstractmethod
    def initial_state(self, seed: int) -> State:
        """Return the weights that training would begin with."""

    @abstractmethod
    def build(self, state: State) -> Any:
        """Return the user's kind of model with the weights of a state."""

    # On a rank.

    @abstractmethod
    def join(self, world: World, state: State | None, seed: int, training: bool) -> None:
        """Build model and optimizer on this rank, the same on every rank, and agree with the others."""

    def call_back(self, callbacks: Sequence[Any], world: World, state: State | None) -> Hooks:
        """Return the hooks of a run's callbacks, which the loop calls: none for callbacks of the framework's own.

        Callbacks of a resumed fit get their states back from `payload["callbacks"]` of the state.
        """
        runner = Runner(self, world.rank, world.size, state)
        return Hooks(callbacks, runner, state.payload.get("callbacks") if state else None)

    def begin(self, plan: FitPlan, steps: int | None) -> None:
        """Begin a fit whose epochs have this many steps (None where nobody knows yet)."""

    def output_link(self) -> str:
        """Return what makes probabilities of the outputs, as the loss says: "sigmoid", "softmax", or "" if unknown.

        It is the link of the output that metrics see: the first one. Asked after `call_back`, of all ranks alike.
        """
        return ""

    def keep_rows(self, train: Feed | StreamFeed, valid: Feed | StreamFeed | None) -> None:
        """Let the feeds of a fit that has begun read their rows from a nearer place, where that is asked for."""

    def revert(self) -> None:
        """Put weights and optimizer back to the state that `join` was given, from which a fit is resumed.

        The loop calls it after the callbacks' hooks that begin a fit or an epoch: that state has their changes already.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Get ready to train an epoch, before its callbacks are called."""

    @abstractmethod
    def train(
        self, batches: Iterable[Batch], heartbeat: Heartbeat, epoch: int, plan: FitPlan, first_step: int = 0
    ) -> Losses:
        """Train an epoch, or the part of it that follows its first steps: the framework's only batch loop."""

    @abstractmethod
    def evaluate(self, batches: Iterable[Batch], metrics: Sequence[Metric], heartbeat: Heartbeat) -> Losses:
        """Feed outputs and targets to the metrics; return the loss."""

    def end_epoch(self, line: dict[str, Any]) -> bool:
        """Take the statistics of an epoch over all ranks, before callbacks do; say whether to stop."""
        return False

    def finish(self) -> None:
        """End a fit: its epochs are done."""

    @abstractmethod
    def state(self) -> State:
        """Return weights and optimizer state; all ranks call it, rank 0's answer counts."""

    def callback_states(self) -> dict[str, Any]:
        """Return the states of the framework's own callbacks, for a resumed fit; as for `state`, rank 0's counts.

        It may also hold changes by the user's code that `state` does not have, under names that no class has.

        `begin` gives it back to them where `join` was given a state with a position: from `payload["callbacks"]`.
        """
        return {}

    def write_state(self, state: State, path: str) -> None:
        """Write a state to a path that the Estimator loads."""
        from orca.storage.states import save_state  # loads torch, as every rank does anyway

        save_state(state, path, self.framework)

    def learning_rates(self) -> list[float]:
        """Return the learning rates of the next step, one of each group of weights; none where nobody knows."""
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
    def leave(self) -> None:
        """Drop everything that holds on to the process group."""
