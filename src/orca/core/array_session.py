"""ArraySession: an ArrayLearner at work on one rank. Owns how its replicas become one."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.core.callbacks.hooks import Hooks
from orca.core.callbacks.runner import Runner
from orca.core.learner import Predictor
from orca.core.losses import LossAccumulator, StepLoss, StepResult
from orca.core.metrics import Metric
from orca.core.session import Evaluation, Session
from orca.core.source import Batch
from orca.core.state import Losses, OutputSpec, State
from orca.core.world import World
from orca.errors import ArgumentError
from orca.monitor.heartbeat import BACKWARD, FORWARD, OPTIMIZER
from orca.rows.tree import cut_rows

if TYPE_CHECKING:
    from orca.core.array_learner import ArrayLearner

Arrays = Mapping[str, np.ndarray]


class ArrayPredictor(Predictor):
    """An ArrayLearner that predicts.

    Args:
        learner: A copy of its own, with the weights.
        state: The state that they are from.
    """

    def __init__(self, learner: ArrayLearner, state: State) -> None:
        self.learner, self.state = learner, state

    def predict(self, x: Any) -> Any:
        """Return the outputs for a block of rows."""
        return self.learner.outputs(x)

    def takes(self, x: Any) -> bool:
        """Return whether these may be the model's inputs, if it can tell."""
        return self.learner.takes(x)


class ArraySession(Session):
    """An ArrayLearner at work on one rank.

    Args:
        learner: A copy of its own, with a model.
        world: The ranks.
        state: The state to begin with, if any.
        seed: The seed of each step's random numbers.
        callbacks: The callbacks of the run.
    """

    def __init__(
        self, learner: ArrayLearner, world: World, state: State | None, seed: int, callbacks: Sequence[Any] = ()
    ) -> None:
        self.learner, self.world, self.start, self.seed = learner, world, state, seed
        self.framework = learner.framework
        self.runner = Runner(self, world.rank, world.size, state, model=learner)
        self.callbacks = Hooks(callbacks, self.runner, state.payload.get("callbacks") if state else None)
        self.epoch = 0
        self.sample: Any = None  # the first row that this rank has seen
        self._last_names: Sequence[str] = []  # the weights that the step before had gradients of, on any rank
        self.rewind()

    def rewind(self) -> None:
        """Restore weights and optimizer of the state that the session was opened with, if any."""
        if self.start is not None:
            self.learner.set_weights(copy.deepcopy(self.start.payload["models"][0]))
            for state in self.start.payload.get("optimizers", ()):
                self.learner.set_optimizer_state(copy.deepcopy(state))

    def begin_epoch(self, epoch: int, on_nan: str) -> LossAccumulator:
        """Begin an epoch."""
        self.epoch = epoch
        return super().begin_epoch(epoch, on_nan)

    def train_step(self, batch: Batch, step: int) -> StepResult:
        """Train on a batch, with random numbers of its own."""
        learner, heartbeat = self.learner, self.world.heartbeat
        heartbeat.at(FORWARD)
        rates = learner.learning_rates()
        learner.seed_step(self.seed, self.epoch, self.world.rank, step)
        total, weight_sum, gradients = self._gradients(batch)
        heartbeat.at(BACKWARD)
        global_loss, mean = self.all_reduce(total, weight_sum, gradients)
        heartbeat.at(OPTIMIZER)
        if mean:
            learner.apply(mean)
        return StepResult(StepLoss(total, 1.0, weight_sum), global_loss, rates[0] if rates else None)

    def agree_to_stop(self, wants_stop: bool | None) -> bool:
        """Return whether any rank wants to stop."""
        if wants_stop is None:
            return False
        return bool(self.world.all_reduce([np.array([float(wants_stop)])], "sum")[0].any())

    def end_epoch(self, line: dict[str, Any]) -> bool:
        """Let the learner's schedule see the statistics."""
        self.learner.end_epoch(line)
        return False

    @contextmanager
    def evaluation(self, metrics: Sequence[Metric]) -> Iterator[Evaluation]:
        """Open an evaluation."""
        yield ArrayEvaluation(self, metrics)

    def state(self) -> State:
        """Return weights and the optimizer's state; the specs of rows and outputs come from a rank that saw some."""
        specs = None
        if self.sample is not None:
            specs = OutputSpec.of(self.sample), OutputSpec.of(self.learner.outputs(self.sample))
        row, output = next(filter(None, self.world.all_gather(specs)), (None, None))
        return replace(self.learner.copied_state(), input=row, output=output)

    def learning_rates(self) -> list[float]:
        """Return the learning rates of the next step; [] if unknown."""
        return self.learner.learning_rates()

    def copy_weights(self) -> dict[str, np.ndarray]:
        """Return copies of the weights."""
        return self.learner.copied_weights()

    def put_back_weights(self, weights: Any) -> None:
        """Take over copies of the weights, which stay as they are."""
        self.learner.set_weights(copy.deepcopy(weights))

    def close(self) -> None:
        """Release the model."""
        self.runner.close()
        self.learner.close()

    def true_rows(self, batch: Batch) -> Batch:
        """Return the true rows of a batch."""
        cut = slice(0, batch.rows)
        x, y = cut_rows(batch.x, cut), None if batch.y is None else cut_rows(batch.y, cut)
        if self.sample is None:
            self.sample = cut_rows(x, slice(0, 1))
        return replace(batch, x=x, y=y, weights=None if batch.weights is None else batch.weights[cut])

    def _gradients(self, batch: Batch) -> tuple[float, float, Arrays]:
        """Return this rank's loss, its divisor and gradients in a step: nothing if it has no rows."""
        if batch.rows:
            total, weight_sum, gradients = self.learner.loss_and_gradients(self.true_rows(batch))
            return total, weight_sum, gradients
        self.learner.idle(batch)
        return 0.0, 0.0, {}

    def all_reduce(self, total: float, weight_sum: float, gradients: Arrays) -> tuple[float, Arrays]:
        """Return the mean loss of a step, and the gradients of that mean, over the rows of all ranks.

        A weight that no rank has a gradient for is left out, as it is in one process.

        Raises:
            ArgumentError: There is a gradient under a name that no weight has.
        """
        weights = self.learner.templates()
        if unknown := sorted(gradients.keys() - weights.keys()):
            raise ArgumentError(
                f"loss_and_gradients returned gradients of {unknown}, but the weights are {sorted(weights)}. Return "
                "them under the names that weights() has.",
                code="unknown-gradients",
            )
        # Always float64: numbers of the user's may be of other types, and those of a rank without rows are not.
        counts = np.array([total, weight_sum, *(name in gradients for name in weights)], np.float64)
        # Most steps have gradients of the same weights as the step before: then one sum is enough. Else all are added
        # up again, as the next step will do it: a resumed fit must not add up in another order.
        is_settled = False
        while not is_settled:
            summed, *sums = self.world.all_reduce([counts, *_shares(self._last_names, gradients, weights)], "sum")
            names = [name for name, ranks in zip(weights, summed[2:], strict=True) if ranks]
            is_settled, self._last_names = names == self._last_names, names
        total, weight_sum = summed[:2].tolist()
        if not weight_sum:
            return 0.0, {}
        return total / weight_sum, {
            name: np.divide(share, weight_sum, out=share).astype(_gradient_type(weights[name].dtype), copy=False)
            for name, share in zip(names, sums, strict=True)
        }


class ArrayEvaluation(Evaluation):
    """An evaluation by an ArrayLearner: losses and metrics are sums.

    Args:
        session: Its session.
        metrics: The metrics to feed.
    """

    def __init__(self, session: ArraySession, metrics: Sequence[Metric]) -> None:
        self.session, self.metrics = session, metrics
        self.losses = Losses()

    def step(self, batch: Batch, step: int) -> None:
        """Feed outputs and targets of this rank's rows to the metrics."""
        total, weight_sum = 0.0, 0.0
        if batch.rows:
            rows, learner = self.session.true_rows(batch), self.session.learner
            outputs = learner.outputs(rows.x)
            total, weight_sum = learner.loss(outputs, rows)
            for metric in self.metrics:
                metric.update(outputs, rows.y)
        self.losses.add(total, weight_sum, batch.rows)

    def result(self) -> Losses:
        """Return the losses."""
        return self.losses


def _shares(names: Iterable[str], gradients: Arrays, weights: Arrays) -> list[np.ndarray]:
    """Return this rank's share of the sums, of types that go by the weights: gradients may differ between ranks."""
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
