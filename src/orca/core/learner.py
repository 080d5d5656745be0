"""Learner: the contract of a framework, beside the session on a rank. Owns Predictor, Learner and FitPlan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from orca.core.callbacks.hooks import Hooks
from orca.core.callbacks.numbers import check_monitors
from orca.core.metrics import Metric
from orca.core.session import Session
from orca.core.state import State
from orca.core.triggers import Trigger
from orca.core.units import positive
from orca.core.world import World
from orca.errors import ArgumentError
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
    """A model that predicts in one process; opened once, used for many blocks of rows."""

    @abstractmethod
    def predict(self, x: Any) -> Any:
        """Return the outputs for a block of rows as a tree of numpy arrays."""

    def takes(self, x: Any) -> bool:
        """Return whether these may be the model's inputs, if it can tell: a dataset's items may end in a label."""
        return True

    def spares(self, x: Any) -> bool:
        """Return whether the model can do without the last of its inputs, which is then more likely a label."""
        return False


class PredictorSpec(ABC):
    """A description of a model that predicts: made on the driver, it travels to the workers by pickle.

    Attributes:
        numbers: Whether the framework has only tensors of numbers, so that texts and dates raise an error on the
            driver.
    """

    numbers: ClassVar[bool] = False

    @abstractmethod
    def open_predictor(self, state: State, gpu: str | None = None) -> Predictor:
        """Build the model with the weights of a state, on the GPU that the cluster gave this process, if any."""


class Learner(PredictorSpec):
    """A description of a model and how to train it.

    On the driver: the constructor remembers its arguments, the checks raise errors for those that cannot work, and
    states are made and turned into the user's own kind of model. Then the learner travels to every rank, where `join`
    opens a Session: all that is built on the rank belongs to that.

    Attributes:
        framework: The name that saved states carry.
        spread: Whether no rank holds the whole model, so that its state may be too large to travel.
    """

    framework: ClassVar[str]
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
    def join(
        self,
        world: World,
        state: State | None,
        seed: int,
        callbacks: Sequence[Any] = (),
        fit: FitPlan | None = None,
        steps: int | None = None,
    ) -> Session:
        """Open a session on this rank; all ranks call it together.

        If it fails, it leaves nothing behind: random state and settings of the framework are as they were.

        Args:
            world: The ranks.
            state: Weights and optimizer state to begin with; None to draw weights from the seed, the same on every
                rank. Callbacks of a resumed fit get their states back from its `payload["callbacks"]`.
            seed: The seed.
            callbacks: The callbacks of the run.
            fit: The plan of the fit; None for an evaluation.
            steps: Steps of an epoch, if known.
        """
