"""Learner: what a framework must know, on the driver and on a rank. Owns Learner, and the plan and state of a fit."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from orca.core.metrics import Metric
from orca.core.pulse import Pulse
from orca.core.source import Batch
from orca.core.tree import flatten, unflatten
from orca.core.triggers import Trigger
from orca.core.world import World
from orca.errors import ArgumentError, LossNotFinite

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FitPlan:
    """Say how to train: travels to every rank, the same on each.

    Attributes:
        epochs: How many epochs to add to those already trained.
        batch_size: Rows of a step over all ranks; None takes what the data brings itself.
        shuffle: Whether each epoch reads in a new order.
        seed: Seed of initial weights, order and dropout.
        on_nan: "raise", "warn" or "ignore" when the loss is not finite.
        profile: Whether to measure where time goes.
        max_steps: Train this many steps instead, over as many epochs as it takes.
        steps_per_epoch: Steps of an epoch, which goes on in the data where the last one ended; None for all of it.
        validation_steps: Steps of a validation; None for all of the data.
        validation_freq: After which epochs to validate: every n-th, or the epochs of these numbers, counted from 1.
        initial_epoch: The number of the first epoch, for callbacks that count them.
        callbacks: Callbacks of the framework, which its learner calls.
        weighted: Whether every row brings a weight.
        checkpoint_trigger: When to keep a checkpoint in `checkpoint_folder`; None keeps none.
        checkpoint_folder: Where checkpoints go.
        checkpoint_keep: How many of the newest checkpoints stay; None for all.
        stores: Whether the state stays in `checkpoint_folder` at the end, instead of travelling back.
        end_trigger: When to stop before `epochs` are over.
        info: What the user tells her own training operator.
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
    initial_epoch: int = 0
    callbacks: tuple[Any, ...] = ()
    weighted: bool = False
    checkpoint_trigger: Trigger | None = None
    checkpoint_folder: str = ""
    checkpoint_keep: int | None = None
    stores: bool = False
    end_trigger: Trigger | None = None
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Losses:
    """Hold what one rank saw in an epoch: sums, so that ranks can be added up exactly.

    The mean loss is `loss_sum / mass`: the mass is the rows, or the weights of the targets for a loss with weights.
    `logs` are what metrics of the framework itself say, over all ranks already. `trace` has the loss sum and the mass
    of every step, `rates` the learning rate: filled where the framework's loop is ours. `conducted` says that the user
    evaluated herself, and may have left metrics alone; `stopped`, that a callback ended the epoch early.
    """

    loss_sum: float = 0.0
    mass: float = 0.0
    rows: int = 0
    last_loss_sum: float = 0.0
    last_mass: float = 0.0
    steps: int = 0
    logs: dict[str, Any] = field(default_factory=dict)
    trace: list[tuple[float, float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    conducted: bool = False
    stopped: bool = False

    def then(self, later: Losses) -> Losses:
        """Return the sums of this part of an epoch and the one after it."""
        last = later if later.steps else self
        return Losses(
            loss_sum=self.loss_sum + later.loss_sum,
            mass=self.mass + later.mass,
            rows=self.rows + later.rows,
            last_loss_sum=last.last_loss_sum,
            last_mass=last.last_mass,
            steps=self.steps + later.steps,
            logs=self.logs | later.logs,
            trace=self.trace + later.trace,
            rates=self.rates + later.rates,
            stopped=later.stopped,
        )


def report_loss(loss: float, where: str, on_nan: str) -> None:
    """Raise, or warn, that a loss is not finite.

    Raises:
        LossNotFinite: `on_nan` is "raise".
    """
    text = (
        f"the loss became {loss} {where}. Lower the learning rate, look at the data for NaN or infinite values, "
        "clip gradients, or pass on_nan='warn' to go on."
    )
    if on_nan == "raise":
        raise LossNotFinite(text)
    if on_nan == "warn":
        logger.warning(text)


@dataclass(frozen=True)
class Position:
    """Say where in a fit a checkpoint was taken: all that is needed to go on with the next unseen batch.

    Attributes:
        first_epoch: Epochs trained before the fit began.
        first_steps: Steps trained before the fit began.
        step: Steps done of the epoch that was going on.
        seed: The seed that decides on the order of the rows.
        layout: What the order of the rows depends on besides: rows of each rank, and rows of a step.
        losses: What all ranks saw of that epoch.
        lines: The history of the epochs before it.
        ended: COMPLETE where the fit was over, STOPPED where a callback stopped it, STOPPING before the callbacks' last
            hooks were called, and "" while it was going on.
    """

    first_epoch: int
    first_steps: int
    step: int
    seed: int
    layout: tuple[int, ...] = ()
    losses: Losses = field(default_factory=Losses)
    lines: tuple[dict[str, Any], ...] = ()
    ended: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as numbers, texts, lists and dicts; what cannot be written so is left out of the history."""
        sums = {name: getattr(self.losses, name) for name in _SUMS}
        lines = [{key: _plain(value) for key, value in line.items() if _is_plain(value)} for line in self.lines]
        plain = {name: getattr(self, name) for name in ("first_epoch", "first_steps", "step", "seed", "ended")}
        return plain | {"layout": list(self.layout), "losses": sums, "lines": lines}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Position:
        """Return what as_json wrote down."""
        parts = {"layout": tuple(told["layout"]), "losses": Losses(**told["losses"]), "lines": tuple(told["lines"])}
        return cls(**{**told, **parts})


COMPLETE, STOPPED, STOPPING = "complete", "stopped", "stopping"  # how a fit ended
_SUMS = ("loss_sum", "mass", "rows", "last_loss_sum", "last_mass", "steps")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | np.bool_ | np.integer | np.floating) or value is None


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class OutputSpec:
    """Describe a row of a model's output (or input): (dtype, shape) of each head, and the heads' structure."""

    heads: tuple[tuple[str, tuple[int, ...]], ...]
    structure: Any = None

    @classmethod
    def of(cls, output: Any) -> OutputSpec:
        """Describe an output, a tree of arrays or tensors."""
        heads, structure = flatten(output)
        return cls(tuple((str(h.dtype).removeprefix("torch."), tuple(h.shape[1:])) for h in heads), structure)

    def example(self, rows: int = 1) -> Any:
        """Return a tree of arrays of this kind: zeros, or empty texts."""
        made = [
            np.full((rows, *s), "", object) if kind == "object" else np.zeros((rows, *s), kind)
            for kind, s in self.heads
        ]
        return unflatten(self.structure, made)


@dataclass
class State:
    """Hold everything training needs to go on: picklable, independent of how many ranks made it.

    `payload` holds lists of state dicts under "models", "optimizers" and "schedulers"; `input` and `output` tell what
    a row of the model's features and of its answers looks like, as far as it is known; `position`, where a fit was
    interrupted (a Position as JSON); `stored`, the path that the ranks read the payload from where it is too large to
    travel.
    """

    epoch: int = 0
    steps: int = 0
    payload: dict[str, Any] = field(default_factory=dict)
    output: OutputSpec | None = None
    input: OutputSpec | None = None
    position: dict[str, Any] | None = None
    stored: str | None = None

    def to_send(self) -> State:
        """Return what travels to the ranks."""
        return self if self.stored is None else replace(self, payload={})

    def settled(self) -> State:
        """Return what a new fit begins with: where an interrupted one was, and what its callbacks held, is left out."""
        payload = {name: value for name, value in self.payload.items() if name != "callbacks"}
        return replace(self, payload=payload, position=None)

    def for_answers(self) -> State:
        """Return what answering needs: the weights without the optimizers' state."""
        needed = ("models", "averages", "operator")
        return replace(self, payload={name: self.payload[name] for name in needed if name in self.payload}).to_send()


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

    On the driver: the constructor remembers what the user gave, the checks refuse what cannot work, and states are made
    and turned into the user's own kind of model. Then the learner travels to every rank.

    On a rank, in this order: `join` builds model and optimizer; `begin` opens a fit; `train`, `evaluate` and
    `end_epoch` take turns, called by the loop in `core/loop.py`, which also decides on checkpoints and asks for `state`
    and `callback_states`; `finish` closes the fit; `leave` lets go of everything. All ranks make the same calls.

    A State's payload holds arrays (tensors of torch or numpy) and plain values in dicts, lists and tuples, under names
    of the framework's own; `storage/states.py` writes it to disk.

    Attributes:
        framework: The name that saved states carry.
        pauses: Whether an epoch may be trained in several calls of `train`, so that a checkpoint can be kept mid-epoch.
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
        if callbacks:
            raise ArgumentError(f"{type(self).__name__} calls no callbacks; got {len(callbacks)}. Leave them out.")

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

    def call_back(self, callbacks: Sequence[Any]) -> None:
        """Take the callbacks of an evaluation; those of a fit are in its plan."""
        self.check_callbacks(callbacks)

    def begin(self, plan: FitPlan, steps: int | None) -> None:
        """Begin a fit whose epochs have this many steps (None where nobody knows yet)."""

    @abstractmethod
    def train(self, batches: Iterable[Batch], pulse: Pulse, epoch: int, plan: FitPlan, first_step: int = 0) -> Losses:
        """Train an epoch, or the part of it that follows its first steps: the framework's only batch loop."""

    @abstractmethod
    def evaluate(self, batches: Iterable[Batch], metrics: Sequence[Metric], pulse: Pulse) -> Losses:
        """Feed outputs and targets to the metrics; return the loss."""

    def end_epoch(self, line: dict[str, Any]) -> bool:
        """Hear what an epoch gave over all ranks, validation included; say whether to stop here."""
        return False

    def finish(self) -> None:
        """End a fit: its epochs are done."""

    @abstractmethod
    def state(self) -> State:
        """Return weights and optimizer state; all ranks call it, rank 0's answer counts."""

    def callback_states(self) -> dict[str, Any]:
        """Return what the callbacks of a fit hold, for a resumed one; all ranks call it, rank 0's answer counts.

        `begin` gives it back to them where `join` was given a state with a position: from `payload["callbacks"]`.
        """
        return {}

    @abstractmethod
    def leave(self) -> None:
        """Drop everything that holds on to the process group."""
