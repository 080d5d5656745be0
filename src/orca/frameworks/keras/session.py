"""KerasSession: a Keras model at work on one rank. Owns the order of a fit: variables, callbacks, epochs, metrics.

The model's own train_step and test_step run, its callbacks and metrics as they are; the difference from `model.fit`
is that the ranks' gradients (agree.py) and metrics are added up, exactly.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from orca.core.callbacks.hooks import Hooks
from orca.core.learner import FitPlan
from orca.core.losses import LossAccumulator, StepLoss, StepResult
from orca.core.metrics import Metric
from orca.core.session import Evaluation, Session
from orca.core.source import Batch
from orca.core.state import Losses, State
from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.keras.build import (
    NOT_COMPILED,
    load_optimizers,
    make_model,
    preserved,
    state_of_model,
)
from orca.frameworks.keras.logits import advice_on_metrics
from orca.frameworks.keras.logs import LastLogs, plain_logs
from orca.frameworks.keras.memory import Memory, continue_logs
from orca.frameworks.keras.monitors import check_names, has_own_logs
from orca.frameworks.keras.optimizers import optimizer_state, set_optimizer_state
from orca.frameworks.keras.replica import KerasReplica, Values, equal
from orca.frameworks.keras.travel import family_of, is_compiled, library, set_weights, weights_of
from orca.monitor.heartbeat import FORWARD

if TYPE_CHECKING:
    from orca.frameworks.keras.learner import KerasLearner

logger = logging.getLogger(__name__)

# Callbacks that write files: one rank does it for all.
_WRITERS = ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "ProgbarLogger", "RemoteMonitor", "TensorBoard")


class KerasSession(Session):
    """A Keras model at work on one rank. KerasLearner.join opens it; close() releases everything it built.

    Args:
        spec: The learner.
        world: The ranks.
        state: The state to begin with, if any.
        seed: The seed of each step's random numbers.
        callbacks: Keras callbacks of the run; they begin with the first batch, when the model has its variables.
        fit: The plan of the fit; None for an evaluation.
        steps: Steps of an epoch, if known.
        exits: Closed by close().

    Raises:
        ArgumentError: The model is not compiled.
    """

    framework = "keras"

    def __init__(
        self,
        spec: KerasLearner,
        world: World,
        state: State | None,
        seed: int,
        callbacks: Sequence[Any],
        fit: FitPlan | None,
        steps: int | None,
        exits: ExitStack,
    ) -> None:
        self.spec, self.world, self.start, self.seed, self._exits = spec, world, state, seed, exits
        self.callbacks = Hooks()  # Keras calls its own
        self.runner = self.callbacks.runner
        self.plan, self.usual_steps, self.keras_callbacks = fit, steps, tuple(callbacks)
        self.model = make_model(spec)
        if not is_compiled(self.model):
            raise ArgumentError(NOT_COMPILED, code="model-not-compiled")
        if world.rank == 0:
            for line in advice_on_metrics(self.model):
                logger.warning("%s", line)
        # Each of these is complete when made: with the first batch, when callbacks begin, when an epoch begins.
        self._replica: KerasReplica | None = None
        self._fit: KerasFit | None = None
        self._epoch: KerasEpoch | None = None
        self._next_epoch = (0, 0)  # the number of the epoch to train, and the steps of it that were done before

    def replica(self, features: Any) -> KerasReplica:
        """Return the model with its variables, which it gets with the features of the first batch."""
        if self._replica is None:
            self._replica = KerasReplica(
                self.spec,
                self.model,
                self.world,
                self.start or State(),
                self.seed,
                trains=self.plan is not None,
                features=features,
            )
        return self._replica

    # A fit.

    def begin_epoch(self, epoch: int, on_nan: str) -> LossAccumulator:
        """Begin an epoch, which its callbacks hear of with its first batch."""
        return KerasLosses(self, epoch, on_nan)

    def prepare(self, batches: Iterator[Batch], epoch: int, first_step: int) -> Iterator[Batch]:
        """Return the batches as they are."""
        self._next_epoch = epoch, first_step
        return batches

    def train_step(self, batch: Batch, step: int) -> StepResult:
        """Train on a batch by the model's own train_step."""
        replica, fit, epoch = self._opened(batch.x)
        self.world.heartbeat.at(FORWARD)
        epoch.resume_metrics()
        fit.list.on_train_batch_begin(step)
        logs = replica.train_step(batch, epoch.number, step)
        logs = epoch.with_earlier(logs)
        if not epoch.steps and self.plan is not None and not has_own_logs(self.model):
            check_names(self.plan.callbacks, logs, self.plan.validates)
        epoch.add(logs, batch)
        loss = fit.loss_of(logs, replica)
        fit.list.on_train_batch_end(step, logs)
        replica.agreement.ask_to_stop(bool(self.model.stop_training))
        return StepResult(StepLoss(loss, batch.rows, batch.rows), loss if fit.has_loss else None)

    def agree_to_stop(self, wants_stop: bool | None) -> bool:
        """Return whether any rank asked to stop: it travels with the gradients, so it takes effect a step later."""
        return self._replica is not None and self._replica.agreement.stop

    def end_epoch(self, line: dict[str, Any]) -> bool:
        """Tell the callbacks the statistics of the epoch; return whether one of them asks to stop."""
        assert self._fit is not None and self.plan is not None
        if self._epoch is not None:
            self._epoch.close()
        self._fit.end_epoch(line)
        is_over = self._fit.number >= self.plan.initial_epoch + self.plan.epochs and not self.plan.max_steps
        return bool(self.model.stop_training) or is_over

    def logs_of_epoch(self) -> dict[str, Any]:
        """Return the logs of the epoch over all ranks, which call it together."""
        number, _ = self._next_epoch
        if self._epoch is None or self._epoch.number != number:  # resumed after the last step of a stream
            assert self.start is not None and self.start.input is not None
            self._opened(self.start.input.example(2))
        assert self._epoch is not None
        return self._epoch.logs_over_ranks()

    def end_fit(self) -> None:
        """Tell the callbacks that the fit is over."""
        if self._fit is None:
            return  # there was nothing left to train
        finalize = getattr(self.model.optimizer, "finalize_variable_values", None)
        if finalize is not None:  # an optimizer that averages weights leaves the average behind
            finalize(self.model.trainable_variables)
        self._fit.list.on_train_end(self._fit.logs)

    def _opened(self, features: Any) -> tuple[KerasReplica, KerasFit, KerasEpoch]:
        """Return replica, fit and epoch; begin those that have not begun."""
        replica, (number, first_step) = self.replica(features), self._next_epoch
        if self._fit is None:
            assert self.plan is not None
            self._fit = KerasFit(self, self.plan)
        if self._epoch is None or self._epoch.number != number:
            self._epoch = self._begin_keras_epoch(replica, self._fit, number, first_step)
        return replica, self._fit, self._epoch

    def _begin_keras_epoch(self, replica: KerasReplica, fit: KerasFit, number: int, first_step: int) -> KerasEpoch:
        """Begin a new epoch, or the rest of one that an earlier run had begun."""
        seed = np.random.SeedSequence([self.seed, number, self.world.rank])
        tf.random.set_seed(int(seed.generate_state(1)[0]))
        replica.agreement.begin_epoch()
        self.model.reset_metrics()
        epoch = KerasEpoch(replica, number)
        if not first_step:
            self._restore(fit)
        fit.list.on_epoch_begin(fit.number)
        if first_step:  # callbacks had begun this epoch before the state was saved
            record = self._restore(fit)
            epoch.continue_from(record.get("logs", {}), record.get("ranks", []))
        return epoch

    def _restore(self, fit: KerasFit) -> dict[str, Any]:
        """Undo the changes that callbacks made at the beginning of a resumed fit, and restore their memory.

        Returns:
            What the interrupted fit left behind besides weights and optimizer; nothing but for the first time.
        """
        record = fit.take_record()
        if record is None or self.start is None:
            return {}
        set_weights(self.model, self.start.payload["models"][0])
        load_optimizers(self.model, self.start)
        fit.memory.restore(record.get("callbacks", {}))
        return record

    # Evaluations.

    @contextmanager
    def evaluation(self, metrics: Sequence[Metric]) -> Iterator[Evaluation]:
        """Open an evaluation by the model's own test_step and metrics."""
        if self._epoch is not None:
            self._epoch.logs_over_ranks()
        with self._merged_statistics():
            yield KerasEvaluation(self)

    def callbacks_of_evaluation(self) -> Any:
        """Return the list of callbacks that hear of an evaluation: those of the fit, or its own."""
        if self._fit is not None:
            return self._fit.list
        params = {"epochs": 1, "steps": None, "verbose": 0}
        return callback_list(self.model, _own(self.keras_callbacks, self.world), params, self.world)

    @contextmanager
    def _merged_statistics(self) -> Iterator[None]:
        """Show the model as if its epoch ended here."""
        means = [] if self._epoch is None else self._epoch.mean_statistics()
        with preserved([variable for variable, _ in means]):
            for variable, mean in means:
                variable.assign(mean)
            yield

    # States.

    def rewind(self) -> None:
        """Nothing: the state is restored as the callbacks of Keras begin, with the first batch."""

    def state(self) -> State:
        """Return weights and optimizer state; the specs of rows and outputs come from a rank that saw some."""
        own = None if self._replica is None else self._replica.specs
        specs = [each for each in self.world.all_gather(own) if each]
        if self._replica is not None:
            with self._merged_statistics():
                used = self._replica.agreement.optimizers if self.plan is not None else None
                state = state_of_model(self.model, used)
        else:
            state = (self.start or State()).settled()
        if specs:
            _, row, output = max(specs, key=lambda each: each[0])
            return replace(state, input=row, output=output)
        return state

    def resume_state(self) -> dict[str, Any]:
        """Return the states of callbacks, and those of ranks within an epoch."""
        if self._fit is None or self._epoch is None:
            return {}
        logs = self._epoch.logs_over_ranks()
        ranks = self.world.all_gather(self._epoch.record()) if self._epoch.is_open else []
        memory = self._fit.memory.kept() if self.world.rank == 0 else {}
        return {"callbacks": memory, "ranks": ranks, "logs": logs}

    def close(self) -> None:
        """Release the model, and give Keras' classes their own methods back."""
        self._exits.close()


class KerasFit:
    """The callbacks of a fit; made when they begin.

    Args:
        session: The session, whose model has its variables.
        plan: The plan of the fit.
    """

    def __init__(self, session: KerasSession, plan: FitPlan) -> None:
        model, world, start = session.model, session.world, session.start
        self.model, self.logs = model, dict[str, Any]()
        self.has_loss = True  # whether the logs of steps have one
        self.number = plan.initial_epoch  # of the epoch, for callbacks
        self._record: dict[str, Any] | None = None  # of the fit that is resumed
        if start is not None and start.position is not None:
            self.number += len(start.position["lines"])
            self._record = dict(start.payload.get("callbacks") or {})
        self._listener = _listener(library(family_of(model)).callbacks)
        own = [*_own(plan.callbacks, world), self._listener]
        params = {"epochs": plan.initial_epoch + plan.epochs, "steps": session.usual_steps, "verbose": 0}
        self.list = callback_list(model, own, params, world, add_history=True)
        model.stop_training = False
        if self._record is not None:
            continue_logs(own, self.number)
        self.list.on_train_begin()
        self.memory = Memory(self.list.callbacks)
        if any(is_a(callback, "BackupAndRestore") for callback in plan.callbacks):
            restored = _follow_restored(model, world, self.number)
            self.number = self.number if self._record is not None else restored

    def take_record(self) -> dict[str, Any] | None:
        """Return what the interrupted fit left behind, for the first time; None later, or if there was none."""
        record, self._record = self._record, None
        return record

    def loss_of(self, logs: Any, replica: KerasReplica) -> float:
        """Return the loss of a step: over all ranks if we saw it, else that of the model's logs; nan for none."""
        if replica.agreement.loss is not None:
            return replica.agreement.loss
        self.has_loss = isinstance(logs, dict) and "loss" in logs
        return float(logs["loss"]) if self.has_loss else float("nan")

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Tell the callbacks the statistics of an epoch, and add what they have added to the logs."""
        logs = {name.removeprefix("train_"): line[name] for name in line if name.startswith("train_")}
        logs |= {name: line[name] for name in line if name.startswith("val_") and name != "val_num_samples"}
        if not self.has_loss:  # a train_step of the user's own that names other losses
            line["train_loss"] = None
            logs.pop("loss", None)
        self.list.on_epoch_end(self.number, logs)
        self.logs = logs
        val_names = {name for name in line if name.startswith("val_")}
        line |= {name if name in val_names else f"train_{name}": value for name, value in self._listener.logs.items()}
        self.number += 1


class KerasEpoch:
    """An epoch of training under way on one rank.

    The metrics of the model hold this rank's values while steps are trained, and those of all ranks, or of a
    validation, in between: then `own` has this rank's.

    Args:
        replica: The model, whose metrics were reset.
        number: Its number over all fits.
    """

    def __init__(self, replica: KerasReplica, number: int) -> None:
        self.replica, self.number, self.is_open = replica, number, True
        self.steps = self.rows = 0  # those of this run, and all rows of this rank
        self._blank: Values = replica.metric_values()
        self._own: Values = {}
        self._is_merged = False
        self._logs: dict[str, Any] = {}
        self._last = LastLogs()
        self._earlier: list[dict[str, Any]] = []  # ranks of an interrupted epoch, until there are variables for metrics

    def continue_from(self, logs: dict[str, Any], ranks: Sequence[dict[str, Any]]) -> None:
        """Continue the interrupted epoch: of this rank, or of the ranks in whose place it is now."""
        replica, world = self.replica, self.replica.world
        self._logs, self._earlier = logs, list(ranks[world.rank :: world.size])
        self.rows = sum(rank["rows"] for rank in self._earlier)
        if len(ranks) == world.size:
            for variable, value in zip(replica.local_statistics(), self._earlier[0]["norms"], strict=True):
                variable.assign(value)
            replica.model.stop_training = self._earlier[0]["stops"]
            replica.agreement.ask_to_stop(self._earlier[0]["stops"])

    def resume_metrics(self) -> None:
        """Give the metrics this rank's values back before a step."""
        if self._is_merged:
            self.replica.set_metric_values(self._own)
            self._is_merged = False

    def with_earlier(self, logs: Any) -> Any:
        """Add the metrics of an interrupted epoch to those of its first step here."""
        earlier, self._earlier = self._earlier, []
        if not earlier:
            return logs
        for rank in earlier:
            self.replica.add_metric_values(rank["metrics"], rank["idle"])
        return {**logs, **{k: v for k, v in self.replica.metrics_result().items() if k in logs}}

    def add(self, logs: Any, batch: Batch) -> None:
        """Count a step."""
        self._last.hear(logs, batch)
        self.steps += 1
        self.rows += batch.rows

    def logs_over_ranks(self) -> dict[str, Any]:
        """Return the logs of the epoch so far over all ranks, which call it together."""
        if self.is_open and self.steps and not self._is_merged:
            self._own, self._is_merged = self.replica.metric_values(), True
            in_use = self.replica.has_counted(self._own, self._blank)
            self._logs = self.replica.merge_metrics(self._last, in_use)
        return dict(self._logs)

    def record(self) -> dict[str, Any]:
        """Return this rank's counts, to continue from."""
        own, blank = self._own, self._blank
        idle = [name for name in own if name in blank and equal(own[name], blank[name])]
        return {
            "metrics": {name: values for name, values in own.items() if name not in idle},
            "idle": idle,
            "rows": self.rows,
            "norms": [variable.numpy() for variable in self.replica.local_statistics()],
            "stops": self.replica.agreement.wants_stop,
        }

    def mean_statistics(self) -> list[tuple[Any, np.ndarray]]:
        """Return running statistics of this rank's rows with their means over all ranks."""
        return self.replica.mean_statistics(self.rows) if self.is_open else []

    def close(self) -> None:
        """End the epoch: running statistics become their means over all ranks."""
        for variable, mean in self.mean_statistics():
            variable.assign(mean)
        self.is_open = False


class KerasLosses(LossAccumulator):
    """The losses of an epoch, with the model's own metrics.

    Args:
        session: The session.
        epoch: The number of the epoch.
        on_nan: What to do if a loss is not finite.
    """

    def __init__(self, session: KerasSession, epoch: int, on_nan: str) -> None:
        super().__init__(epoch, on_nan)
        self.session = session

    def result(self) -> Losses:
        """Return the losses, and the logs of the epoch over all ranks."""
        return replace(self.totals(), logs=self.session.logs_of_epoch())


class KerasEvaluation(Evaluation):
    """An evaluation of the loss and the model's own metrics, exact over all ranks.

    Args:
        session: The session.
    """

    def __init__(self, session: KerasSession) -> None:
        self.session, self.losses, self._last = session, Losses(), LastLogs()
        self._list: Any = None  # of callbacks, from the first batch on

    def step(self, batch: Batch, step: int) -> None:
        """Evaluate a batch."""
        replica = self.session.replica(batch.x)
        if self._list is None:
            replica.model.reset_metrics()
            self._list = self.session.callbacks_of_evaluation()
            self._list.on_test_begin()
        self._list.on_test_batch_begin(step)
        logs, loss = replica.test_step(batch)
        self._last.hear(logs, batch)
        self._list.on_test_batch_end(step, logs)
        self.losses.add(loss * batch.rows if batch.rows else 0.0, batch.rows, batch.rows)

    def result(self) -> Losses:
        """Return the losses, and the metrics over all ranks."""
        if self._list is None:
            return self.losses
        session, losses = self.session, self.losses
        total, rows = session.world.all_reduce([np.array([losses.loss_sum, losses.rows])], "sum")[0]
        logs = {} if np.isnan(total) else {"loss": float(total / rows)}
        logs |= session.replica(None).merge_metrics(self._last)
        self._list.on_test_end(logs)
        return replace(losses, logs={f"val_{name}": value for name, value in logs.items()})


def callback_list(model: Any, callbacks: list[Any], params: dict[str, Any], world: World, **options: Any) -> Any:
    """Return Keras' list of callbacks, which calls them in their order."""
    module = library(family_of(model)).callbacks
    callbacks_of_run = module.CallbackList(callbacks, add_progbar=False, model=model, **options, **params)
    callbacks_of_run.set_params(params | {"rank": world.rank, "size": world.size})
    return callbacks_of_run


def is_a(callback: Any, *names: str) -> bool:
    """Return whether a callback is of one of these classes of Keras, of whichever Keras."""
    return any(kind.__name__ in names for kind in type(callback).__mro__)


def _own(callbacks: Sequence[Any], world: World) -> list[Any]:
    """Return the callbacks that this rank calls."""
    return [callback for callback in callbacks if world.rank == 0 or not is_a(callback, *_WRITERS)]


def _follow_restored(model: Any, world: World, number: int) -> int:
    """Take over weights, optimizer and epoch number that a callback restored on rank 0; return the number."""
    epoch = getattr(model, "_initial_epoch", None) or number
    own = (weights_of(model), optimizer_state(model), epoch) if world.rank == 0 else None
    weights, optimizer, restored = world.broadcast(own)
    set_weights(model, weights)
    set_optimizer_state(model, optimizer)
    return int(restored)


def _listener(module: Any) -> Any:
    """Return a callback that hears the logs of an epoch after all others had their say: they may add to them."""

    class Listener(module.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.logs: dict[str, Any] = {}

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.logs = plain_logs(logs or {})

    return Listener()
