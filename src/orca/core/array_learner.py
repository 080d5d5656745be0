"""ArrayLearner: a learner of any framework that gives its gradients as numpy arrays. Owns how its replicas agree.

A framework gives its model, weights, the gradients of a batch, a step of its optimizer, and outputs for rows. The
distributed part is here: gradients are added up over the ranks and divided by the mass of the loss (its rows, or their
weights), so that any number of ranks, with rows split in any way, takes the step that one process takes.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from orca.core.array_session import ArrayPredictor, Arrays, ArraySession
from orca.core.callbacks.numbers import names_of_epoch
from orca.core.learner import FitPlan, Learner, Predictor
from orca.core.metrics import Metric
from orca.core.session import Session
from orca.core.source import Batch
from orca.core.state import State
from orca.core.world import World

__all__ = ["ArrayLearner", "Arrays"]


class ArrayLearner(Learner):
    """A learner whose weights and gradients are named numpy arrays.

    A subclass is a dataclass of the user's arguments, which travels to the ranks, with a `framework` name and the
    methods below. Batches that it is given hold true rows only, at least one; `batch.weights` are the rows' weights, or
    None. `self.generator` is the generator to draw from (initial weights, dropout): in training it is a new one in each
    step, so that a resumed fit draws the same numbers as without the interruption. `learning_rates` may return the
    learning rate, for curves and callbacks.

    `make` and the methods behind it are called on a copy that belongs to a session, an ArrayPredictor or a state, so
    that the learner itself never has a model: it travels, and a model may not be picklable.

    Attributes:
        generator: Draws random numbers.
        world: The ranks that the copy of a session works with; else None.
        seed: The seed of that session.
        steps_before: Steps trained before that session.
        session_type: What works on a rank.
        predictor_type: What predicts.
    """

    generator: Any = None
    world: Any = None
    seed: int = 0
    steps_before: int = 0
    session_type: ClassVar[type[ArraySession]] = ArraySession
    predictor_type: ClassVar[type[ArrayPredictor]] = ArrayPredictor

    @abstractmethod
    def make(self) -> None:
        """Make the model and its optimizer, weights drawn from `self.generator`."""

    @abstractmethod
    def weights(self) -> Arrays:
        """Return all weights."""

    @abstractmethod
    def set_weights(self, weights: Arrays) -> None:
        """Take over weights that `weights` returned."""

    def epoch_numbers(self, metrics: Sequence[Metric], validates: bool) -> set[str] | None:
        """Return the names of an epoch's numbers; None for a learner that trains or evaluates in its own way."""
        if self.session_type is not ArraySession:
            return None
        return names_of_epoch([metric.name for metric in metrics], validates)

    def templates(self) -> Arrays:
        """Return an array in the shape and type of each gradient: the weights, unless others are cheaper to have."""
        return self.weights()

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's state: arrays and plain values."""
        return {}

    def set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `optimizer_state` returned."""

    @abstractmethod
    def outputs(self, x: Any) -> Any:
        """Return the outputs for rows, a tree of arrays, as in an evaluation."""

    @abstractmethod
    def loss(self, outputs: Any, batch: Batch) -> tuple[float, float]:
        """Return the sum of the rows' losses, and the divisor for the mean: the rows, or the sum of their weights."""

    @abstractmethod
    def loss_and_gradients(self, batch: Batch) -> tuple[float, float, Arrays]:
        """Return the loss of a batch of training, as `loss` does, and the gradients of the sum.

        A weight without a gradient (a frozen one) is left out, the same on every rank or not.
        """

    def idle(self, batch: Batch) -> None:
        """Take part in a step in which this rank has no rows: the batch has a row that does not count."""

    @abstractmethod
    def apply(self, gradients: Arrays) -> None:
        """Take a step of the optimizer: with the gradients of the mean over all ranks' rows."""

    def learning_rates(self) -> list[float]:
        """Return the learning rates of the next step, one for each group of weights; [] if unknown."""
        return []

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Take the statistics of an epoch over all ranks, for a schedule."""

    def takes(self, x: Any) -> bool:
        """Return whether these may be the model's inputs, if it can tell."""
        return True

    def close(self) -> None:
        """Release what `make` has opened."""

    # Called by sessions and predictors, on a copy of their own.

    def initial_state(self, seed: int) -> State:
        """Return the weights that training would begin with."""
        return self.copy_for(None, seed).copied_state()

    def open_predictor(self, state: State, gpu: str | None = None) -> Predictor:
        """Make the model for predictions."""
        learner = self.copy_for(None, 0)
        learner.set_weights(state.payload["models"][0])
        return self.predictor_type(learner, state)

    def join(
        self,
        world: World,
        state: State | None,
        seed: int,
        callbacks: Sequence[Any] = (),
        fit: FitPlan | None = None,
        steps: int | None = None,
    ) -> Session:
        """Make the model: the seed, or the state, is the same on every rank."""
        learner = self.copy_for(world, seed, state.steps if state else 0)
        return self.session_type(learner, world, state, seed, callbacks)

    def copy_for(self, world: World | None, seed: int, steps_before: int = 0) -> Self:
        """Return a copy with a model, whose weights are drawn from the seed."""
        learner = copy.copy(self)
        learner._enter(world, seed, steps_before)
        return learner

    def seed_step(self, *numbers: int) -> None:
        """Draw from these numbers from now on."""
        self.generator = np.random.default_rng(numbers)

    def copied_weights(self) -> dict[str, np.ndarray]:
        """Return copies of the weights."""
        return {name: np.array(value) for name, value in self.weights().items()}

    def copied_state(self) -> State:
        """Return copies of weights and optimizer state: training continues while a checkpoint is written."""
        optimizer = copy.deepcopy(self.optimizer_state())
        return State(payload={"models": [self.copied_weights()], "optimizers": [optimizer], "schedulers": []})

    def _enter(self, world: World | None, seed: int, steps_before: int) -> None:
        self.world, self.seed, self.steps_before = world, seed, steps_before
        self.generator = np.random.default_rng(seed)
        self.make()
