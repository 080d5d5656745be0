"""ArrayLearner: a learner of any framework that gives its gradients as numpy arrays. Owns how its replicas agree.

A framework gives its model, weights, the gradients of a batch, a step of its optimizer, and outputs for rows. The
distributed part is here: gradients are added up over the ranks and divided by the mass of the loss (its rows, or their
weights), so that any number of ranks, with rows split in any way, takes the step that one process takes.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from orca.core.callbacks.numbers import names_of_epoch
from orca.core.learner import FitPlan, Learner
from orca.core.metrics import Metric
from orca.core.source import Batch
from orca.core.state import Losses, OutputSpec, State, report_loss
from orca.core.world import World
from orca.errors import ArgumentError
from orca.monitor.heartbeat import BACKWARD, DATA, EVALUATE, FORWARD, OPTIMIZER, Heartbeat
from orca.rows.tree import cut_rows

Arrays = Mapping[str, np.ndarray]


class ArrayLearner(Learner):
    """A learner whose weights and gradients are named numpy arrays.

    A subclass is a dataclass of the user's arguments, which travels to the ranks, with a `framework` name and the
    methods below. Batches that it is given hold true rows only, at least one; `batch.weights` are the rows' weights, or
    None. `self.generator` is the generator to draw from (initial weights, dropout): in training it is a new one in each
    step, so that a resumed fit draws the same numbers as without the interruption. `learning_rates` may tell the
    learning rate, for curves and callbacks.
    """

    pauses = True
    last_names: Sequence[str] = ()  # the weights that the step before had gradients of, on any rank

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
        if type(self).train is not ArrayLearner.train or type(self).evaluate is not ArrayLearner.evaluate:
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

    # Called by the loop.

    def initial_state(self, seed: int) -> State:
        """Return the weights that training would begin with."""
        twin = copy.copy(self)  # stays here: the learner itself travels, and a model may not be picklable
        twin._make(seed)
        return twin._state()

    def restore(self, state: State) -> None:
        """Make the model for answering."""
        self._make(0)
        self.set_weights(state.payload["models"][0])

    def predict(self, x: Any) -> Any:
        """Return the outputs for a block of rows."""
        return self.outputs(x)

    def join(self, world: World, state: State | None, seed: int, training: bool) -> None:
        """Make the model: the seed, or the state, is the same on every rank."""
        self.world, self.seed = world, seed
        self.sample: Any = None
        self.start, self.last_names = state, []
        self._make(seed)
        self.revert()

    def revert(self) -> None:
        """Take over weights and optimizer of the state that this rank joined with, if any."""
        if self.start is not None:
            self.set_weights(copy.deepcopy(self.start.payload["models"][0]))
            for state in self.start.payload.get("optimizers", ()):
                self.set_optimizer_state(copy.deepcopy(state))

    def train(
        self, batches: Iterable[Batch], heartbeat: Heartbeat, epoch: int, plan: FitPlan, first_step: int = 0
    ) -> Losses:
        """Train an epoch, or the part of it that follows its first steps."""
        losses, on_nan = Losses(), plan.on_nan
        heartbeat.at(DATA)
        for step, batch in enumerate(batches, first_step):
            heartbeat.at(FORWARD)
            losses.rates += self.learning_rates()[:1]
            self.generator = np.random.default_rng((self.seed, epoch, self.world.rank, step))
            total, mass, gradients = self._part(batch)
            heartbeat.at(BACKWARD)
            step_loss, mean = self._agree(total, mass, gradients)
            heartbeat.at(OPTIMIZER)
            if mean:
                self.apply(mean)
            losses.add(total, mass, batch.rows)
            if not np.isfinite(step_loss):
                report_loss(step_loss, f"at step {step + 1} of epoch {epoch}", on_nan)
                on_nan = "ignore"  # said once an epoch
            heartbeat.step(epoch, step + 1, heartbeat.steps, step_loss, heartbeat.rows + batch.step_rows)
            heartbeat.at(DATA)
        return losses

    def evaluate(self, batches: Iterable[Batch], metrics: Sequence[Metric], heartbeat: Heartbeat) -> Losses:
        """Feed outputs and targets of this rank's rows to the metrics; return the loss."""
        losses = Losses()
        heartbeat.at(DATA)
        for batch in batches:
            heartbeat.at(EVALUATE)
            total, mass = 0.0, 0.0
            if batch.rows:
                rows = self._seen(batch)
                outputs = self.outputs(rows.x)
                total, mass = self.loss(outputs, rows)
                for metric in metrics:
                    metric.update(outputs, rows.y)
            losses.add(total, mass, batch.rows)
            heartbeat.at(DATA)
        return losses

    def state(self) -> State:
        """Return weights and the optimizer's state; the specs of rows and answers come from a rank that saw some."""
        specs = None
        if self.sample is not None:
            specs = OutputSpec.of(self.sample), OutputSpec.of(self.outputs(self.sample))
        state = self._state()
        state.input, state.output = next(filter(None, self.world.all_gather(specs)), (None, None))
        return state

    def copy_weights(self) -> dict[str, np.ndarray]:
        """Return copies of the weights."""
        return {name: np.array(value) for name, value in self.weights().items()}

    def put_back_weights(self, weights: Any) -> None:
        """Take over copies of the weights, which stay as they are."""
        self.set_weights(copy.deepcopy(weights))

    def leave(self) -> None:
        """Let go of the world."""
        for name in ("world", "start"):
            self.__dict__.pop(name, None)

    def _make(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.make()

    def _state(self) -> State:
        """Return copies: training continues while a checkpoint is written."""
        optimizer = copy.deepcopy(self.optimizer_state())
        return State(payload={"models": [self.copy_weights()], "optimizers": [optimizer], "schedulers": []})

    def _seen(self, batch: Batch) -> Batch:
        """Return the true rows of a batch."""
        cut = slice(0, batch.rows)
        x, y = cut_rows(batch.x, cut), None if batch.y is None else cut_rows(batch.y, cut)
        if self.sample is None:
            self.sample = cut_rows(x, slice(0, 1))
        return replace(batch, x=x, y=y, weights=None if batch.weights is None else batch.weights[cut])

    def _part(self, batch: Batch) -> tuple[float, float, Arrays]:
        """Return this rank's part of a step: nothing, where it has no rows."""
        if batch.rows:
            return self.loss_and_gradients(self._seen(batch))
        self.idle(batch)
        return 0.0, 0.0, {}

    def _agree(self, total: float, mass: float, gradients: Arrays) -> tuple[float, Arrays]:
        """Return the mean loss of a step, and the gradients of that mean, over the rows of all ranks.

        A weight that no rank has a gradient for is left out, as it is in one process.

        Raises:
            ArgumentError: There is a gradient under a name that no weight has.
        """
        weights = self.templates()
        if unknown := sorted(gradients.keys() - weights.keys()):
            raise ArgumentError(
                f"loss_and_gradients returned gradients of {unknown}, but the weights are {sorted(weights)}. Return "
                "them under the names that weights() has.",
                code="unknown-gradients",
            )
        # Always float64: numbers of the user's may be of other types, and those of a rank without rows are not.
        mine, agreed = np.array([total, mass, *(name in gradients for name in weights)], np.float64), False
        # Most steps have gradients of the same weights as the step before: then one sum is enough. Else all are added
        # up again, as the next step will do it: a resumed fit must not add up in another order.
        while not agreed:
            whole, *sums = self.world.all_reduce([mine, *_parts(self.last_names, gradients, weights)], "sum")
            names = [name for name, ranks in zip(weights, whole[2:], strict=True) if ranks]
            agreed, self.last_names = names == self.last_names, names
        total, mass = whole[:2].tolist()
        if not mass:
            return 0.0, {}
        return total / mass, {
            name: np.divide(part, mass, out=part).astype(_gradient_type(weights[name].dtype), copy=False)
            for name, part in zip(names, sums, strict=True)
        }


def _parts(names: Iterable[str], gradients: Arrays, weights: Arrays) -> list[np.ndarray]:
    """Return this rank's part of the sums, of types that go by the weights: gradients may differ between ranks."""
    kinds = {name: np.result_type(np.float32, weights[name].dtype) for name in names}  # a sum of halves overflows
    return [
        np.asarray(gradients[name]).astype(kind, copy=False).reshape(weights[name].shape)
        if name in gradients
        else np.zeros(weights[name].shape, kind)
        for name, kind in kinds.items()
    ]


def _gradient_type(kind: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the gradients of weights: the same, but for whole numbers."""
    return np.dtype(np.float64) if kind.kind in "biu" else kind
