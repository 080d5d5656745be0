"""KerasLearner: Keras on one rank, version 3 on TensorFlow or 2 (tf_keras). Owns the only batch loop of Keras.

The model's own train_step and test_step run, its callbacks and metrics as they are; the difference from `model.fit`
is that the ranks' gradients (agree.py) and metrics are added up, exactly.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from orca.core.callbacks.hooks import Hooks
from orca.core.creators import call_creator
from orca.core.engine import threads_asked_for
from orca.core.learner import FitPlan, Learner
from orca.core.metrics import Metric
from orca.core.source import Batch
from orca.core.state import Losses, OutputSpec, State, report_loss
from orca.core.world import World
from orca.errors import ArgumentError, DataError
from orca.frameworks.keras.agree import Agreement, twice, watch
from orca.frameworks.keras.columns import named_features, named_labels
from orca.frameworks.keras.draws import StepDraws, forget_names, seeded, set_seed
from orca.frameworks.keras.graphs import Graphs
from orca.frameworks.keras.logits import advice_on_metrics
from orca.frameworks.keras.logs import LastLogs, plain_logs
from orca.frameworks.keras.memory import Memory, continue_logs
from orca.frameworks.keras.monitors import check_kinds, check_names, check_validated, has_own_logs
from orca.frameworks.keras.optimizers import (
    OptimizerState,
    optimizer_state,
    optimizer_states,
    set_optimizer_state,
    set_optimizer_states,
    unkept,
)
from orca.frameworks.keras.travel import (
    PackedModel,
    family_of,
    is_compiled,
    is_model,
    library,
    pack,
    set_weights,
    weights_of,
)
from orca.monitor.heartbeat import DATA, EVALUATE, FORWARD, Heartbeat
from orca.rows.tree import flatten, map_tree, same_form, unflatten

logger = logging.getLogger(__name__)

_ENVIRONMENT = ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")
# Callbacks that write files: one rank does it for all.
_WRITERS = ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "ProgbarLogger", "RemoteMonitor", "TensorBoard")

_NOT_COMPILED = (
    "the model is not compiled, so there is no loss to train or evaluate with. Call model.compile(...), "
    "or pass compile_args_creator."
)


@dataclass
class KerasLearner(Learner):
    """A Keras model that learns. The fields travel to a rank; everything else is built there.

    Attributes:
        creator: A function `(config)` that returns a compiled model; None where a packed model is given.
        packed_model: A model instance, ready to travel.
        compile_args: A function `(config)` that returns arguments for `model.compile`, or None.
        config: The argument of the creators; its inter_op_parallelism and intra_op_parallelism set TensorFlow's
            threads.
        sync_batch_norm: Whether batch normalization sees the rows of all ranks.
        features: The names of the feature columns, for models whose inputs have names.
        labels: The names of the label columns, for models whose outputs have names.
        class_weight: Class number -> weight of its rows.
        own_logs: Whether the model's own steps may log other numbers than its loss and metrics; None if it is made by
            the creator.
        environment: Variables that select a Keras, as they were on the driver.
    """

    creator: Callable[..., Any] | None
    packed_model: PackedModel | None = None
    compile_args: Callable[..., Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    sync_batch_norm: bool = True
    features: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    class_weight: dict[int, float] | None = None
    own_logs: bool | None = None
    environment: dict[str, str] = field(default_factory=dict)
    framework = "keras"
    pauses = True

    @classmethod
    def of(
        cls,
        model: Any,
        compile_args: Callable[..., Any] | None,
        config: dict[str, Any],
        sync_batch_norm: bool,
    ) -> KerasLearner:
        """Make a learner of a Keras model, or of a creator of one; check all that can be checked here."""
        if model is None:
            raise ArgumentError(
                "there is no model. Pass model_creator=, a function (config), or keras_model=.", code="missing-model"
            )
        if compile_args is not None and not callable(compile_args):
            raise ArgumentError(
                "compile_args_creator must be a function (config) that returns a dict; "
                f"got {type(compile_args).__name__}.",
                code="bad-compile-args",
            )
        options: dict[str, Any] = {"config": config, "sync_batch_norm": sync_batch_norm}
        options["environment"] = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        if is_model(model):
            _check_layers(model)
            return cls(None, pack(model), compile_args, own_logs=has_own_logs(model), **options)
        if not callable(model):
            raise ArgumentError(
                f"the model must be a Keras model or a function (config) that returns one; got {type(model).__name__}.",
                code="bad-model",
            )
        return cls(model, None, compile_args, **options)

    def with_model(self, model: Any) -> KerasLearner:
        """Return the same learner of another model, compiled as it is; where it is not, by compile_args."""
        compile_args = None if is_compiled(model) else self.compile_args
        return self.of(model, compile_args, self.config, self.sync_batch_norm)

    def check_trainable(self) -> None:
        """Check that a model instance is compiled; the model of a creator is checked on the ranks."""
        if self.packed_model is not None and self.packed_model.compiling is None and self.compile_args is None:
            raise ArgumentError(_NOT_COMPILED, code="model-not-compiled")

    def check_callbacks(self, callbacks: Sequence[Any]) -> None:
        """Check that these are callbacks of Keras."""
        check_kinds(callbacks)

    def check_monitors(self, callbacks: Sequence[Any], metrics: Sequence[Metric], validates: bool) -> None:
        """Check that there is a validation if callbacks watch one; other names are checked after the first step."""
        if self.own_logs is False:
            check_validated(callbacks, validates)

    def build(self, state: State, sample: Any = None) -> Any:
        """Return a model of its own with the weights of a state, made whole by a sample where it needs one."""
        model = self._make()
        example = None if state.input is None else map_tree(tf.convert_to_tensor, state.input.example())
        _seat(model, state, example if sample is None else self._tensors(named_features(sample, self.features, model)))
        _seat_optimizers(model, state)
        return model

    def check_state(self, state: State, name: str) -> None:
        """Check the number and the shapes of a state's weights, where the model has its own without a row."""
        try:
            with seeded(0):  # this model is thrown away
                model = self._make()
        except Exception as error:  # the user's creator may only work on workers
            logger.warning("the model cannot be built here, to compare it with %s: %r", name, error)
            return
        if model.built and state.payload.get("models"):
            _seat(model, state, None)

    def initial_state(self, seed: int) -> State:
        """Return the weights training would begin with."""
        with seeded(seed):
            return _state_of(self._make(), None)

    def state_of(self, model: Any, state: State | None) -> State:
        """Return the state of a model that was changed or loaded outside of training."""
        fresh = _state_of(model, [])
        if state is not None:
            fresh.epoch, fresh.steps, fresh.input, fresh.output = state.epoch, state.steps, state.input, state.output
        return fresh

    def join(self, world: World, state: State | None, seed: int, training: bool) -> None:
        """Build the model on this rank; its weights agree as soon as the first batch tells their shapes."""
        _set_threads(self.config)
        forget_names()
        world.all_gather(None)  # ranks that are threads share the names: none may forget while another makes its model
        self.world, self.seed, self.training = world, seed, training
        set_seed(seed)
        watch()  # before there is a metric that remembers its class' own methods
        self.model = self._make()
        if not is_compiled(self.model):
            raise ArgumentError(_NOT_COMPILED, code="model-not-compiled")
        if world.rank == 0:
            for line in advice_on_metrics(self.model):
                logger.warning("%s", line)
        self.start: State | None = state
        self.ready = self.begun = self.open = False
        self.specs: tuple[int, OutputSpec, OutputSpec | None] | None = None  # with the rows they were seen in
        self.steps: dict[str, Any] = {}
        self.test_callbacks: tuple[Any, ...] = ()
        self.callbacks: Any = library(family_of(self.model)).callbacks.CallbackList([], model=self.model)

    def call_back(self, callbacks: Sequence[Any], world: World, state: State | None) -> Hooks:
        """Remember the callbacks of an evaluation, which begin with its first batch, when the model is whole."""
        self.test_callbacks = tuple(callbacks)
        return Hooks()

    def begin(self, plan: FitPlan, steps: int | None) -> None:
        """Remember the plan; callbacks begin with the first batch, when the model is whole."""
        self.plan, self.usual, self.number = plan, steps, plan.initial_epoch
        self.test_callbacks = ()
        self.begun = self.warned = self.open = False
        self.has_loss = True
        self.logs: dict[str, Any] = {}
        self.epoch = -1
        self.so_far: dict[str, Any] = {}  # logs of the epoch
        self.own: dict[str, Any] = {}  # this rank's metrics, while the variables hold those of all ranks
        self.blank: dict[str, Any] = {}  # the same when the epoch began
        self.earlier: list[dict[str, Any]] = []  # ranks of an interrupted epoch, until there are variables for metrics
        self.memories: dict[str, Any] | None = None
        if self.start is not None and self.start.position is not None:
            self.number += len(self.start.position["lines"])
            self.memories = dict(self.start.payload.get("callbacks") or {})

    def train(
        self, batches: Iterable[Batch], heartbeat: Heartbeat, epoch: int, plan: FitPlan, first_step: int = 0
    ) -> Losses:
        """Train one epoch, or the part of it that follows its first steps."""
        losses, last = Losses(), LastLogs()
        heartbeat.at(DATA)
        for step, batch in enumerate(batches, first_step):
            if not losses.steps:
                self._open_epoch(batch.x, epoch, first_step)
            heartbeat.at(FORWARD)
            self.callbacks.on_train_batch_begin(step)
            self.draws.set_step(epoch, step)
            with self.agreement.writing(batch.rows, batch.step_rows):
                logs, _ = self._step("train", batch)
            if self.earlier:
                logs = self._with_earlier(logs)
            if not losses.steps and not has_own_logs(self.model):
                check_names(plan.callbacks, logs, plan.validates)
            last.hear(logs, batch)
            loss = self._step_loss(logs)
            losses.add(loss * batch.rows, batch.rows, batch.rows)
            self._check_finite(loss, step + 1, epoch, plan)
            self.callbacks.on_train_batch_end(step, logs)
            self.agreement.wants_stop = bool(self.model.stop_training)
            heartbeat.step(epoch, step + 1, heartbeat.steps, loss, heartbeat.rows + batch.step_rows)
            heartbeat.at(DATA)
            if self.agreement.stop:
                losses.stopped = True
                break
        if losses.steps:
            self.rows += losses.rows
            self.own = self._metric_values()
            self.so_far = self._merge_metrics(last, self._uses_compiled_metrics())
        elif self.epoch != epoch:  # resumed after the last step of a stream, as it turns out
            self._open_epoch(self._example(), epoch, first_step)
        losses.logs = dict(self.so_far)
        return losses

    def evaluate(self, batches: Iterable[Batch], metrics: Sequence[Metric], heartbeat: Heartbeat) -> Losses:
        """Evaluate the loss and the model's own metrics, exactly over all ranks. An epoch may continue afterwards."""
        with self._merged_norms():
            return self._evaluate(batches, heartbeat)

    def _evaluate(self, batches: Iterable[Batch], heartbeat: Heartbeat) -> Losses:
        losses, last = Losses(), LastLogs()
        heartbeat.at(DATA)
        for batch in batches:
            if not losses.steps:
                self._prepare(batch.x)
                self.model.reset_metrics()
                if self.test_callbacks:
                    self._set_callbacks(self._mine(self.test_callbacks), {"epochs": 1, "steps": None, "verbose": 0})
                self.callbacks.on_test_begin()
            heartbeat.at(EVALUATE)
            self.callbacks.on_test_batch_begin(losses.steps)
            logs, loss = self._step("test", batch)
            last.hear(logs, batch)
            self.callbacks.on_test_batch_end(losses.steps, logs)
            losses.add(float(loss) * batch.rows if batch.rows else 0.0, batch.rows, batch.rows)
            heartbeat.at(DATA)
        if losses.steps:
            total, rows = self.world.all_reduce([np.array([losses.loss_sum, losses.rows])], "sum")[0]
            loss_log = {} if np.isnan(total) else {"loss": float(total / rows)}
            logs = loss_log | self._merge_metrics(last)
            self.callbacks.on_test_end(logs)
            losses.logs = {f"val_{name}": value for name, value in logs.items()}
        return losses

    def end_epoch(self, line: dict[str, Any]) -> bool:
        """Tell the callbacks the statistics of the epoch; say whether one of them asks to stop."""
        self._close_epoch()
        logs = {name.removeprefix("train_"): line[name] for name in line if name.startswith("train_")}
        logs |= {name: line[name] for name in line if name.startswith("val_") and name != "val_num_samples"}
        if not self.has_loss:  # a train_step of the user's own that names other losses
            line["train_loss"] = None
            logs.pop("loss", None)
        self.callbacks.on_epoch_end(self.number, logs)
        self.logs = logs
        val_names = {name for name in line if name.startswith("val_")}
        line |= {name if name in val_names else f"train_{name}": value for name, value in self.listener.logs.items()}
        self.number += 1
        is_over = self.number >= self.plan.initial_epoch + self.plan.epochs and not self.plan.max_steps
        return bool(self.model.stop_training) or is_over

    def finish(self) -> None:
        """Tell the callbacks that the fit is over."""
        if not self.begun:
            return  # there was nothing left to train
        finalize = getattr(self.model.optimizer, "finalize_variable_values", None)
        if finalize is not None:  # an optimizer that averages weights leaves the average behind
            finalize(self.model.trainable_variables)
        self.callbacks.on_train_end(self.logs)

    def state(self) -> State:
        """Return weights and optimizer state; the specs of rows and answers come from a rank that saw some."""
        specs = [specs for specs in self.world.all_gather(self.specs) if specs]
        if self.ready:
            with self._merged_norms():
                state = _state_of(self.model, self.agreement.optimizers if self.training else None)
        else:
            state = (self.start or State()).settled()
        if specs:
            _, state.input, state.output = max(specs, key=lambda each: each[0])
        return state

    def callback_states(self) -> dict[str, Any]:
        """Return the states for a resumed fit besides weights and optimizer: of callbacks, and of ranks mid-epoch."""
        if not self.begun:
            return {}
        idle = [name for name in self.own if name in self.blank and _equal(self.own[name], self.blank[name])]
        mine = {
            "metrics": {name: values for name, values in self.own.items() if name not in idle},
            "idle": idle,
            "rows": self.rows,
            "norms": [variable.numpy() for variable in self._norms()],
            "stops": self.agreement.wants_stop,
        }
        ranks = self.world.all_gather(mine) if self.open else []
        memory = self.memory.kept() if self.world.rank == 0 else {}
        return {"callbacks": memory, "ranks": ranks, "logs": self.so_far}

    def leave(self) -> None:
        """Drop the model."""
        close = getattr(self.__dict__.get("world"), "close", None)
        if close is not None:
            close()
        for name in ("model", "agreement", "callbacks", "memory", "draws", "steps"):
            self.__dict__.pop(name, None)

    def restore(self, state: State) -> None:
        """Build the model for answering."""
        _set_threads(self.config)
        with seeded(0):  # a model without weights yet must at least be the same on all workers
            self.model = self._make()
        self.start = state
        self.answer: Any = None

    def predict(self, x: Any) -> Any:
        """Return the outputs for a block of rows, as a tree of numpy arrays."""
        flat, structure = flatten(self._tensors(named_features(x, self.features, self.model)))
        if self.answer is None:
            with seeded(0):
                _seat(self.model, self.start or State(), unflatten(structure, flat))
            self.answer = Graphs(self.model, self._answer)
        return map_tree(_to_numpy, self.answer(structure, *flat))

    def takes(self, x: Any) -> bool:
        """Say whether these may be the model's inputs: as in training, else as many as it has, else one as in Keras."""
        structure = flatten(x)[1]
        if self.start is not None and self.start.input is not None:
            return same_form(structure, self.start.input.structure)
        inputs = getattr(self.model, "inputs", None)
        return len(flatten(x)[0]) == len(inputs) if inputs else structure is None

    def _answer(self, structure: Any, *leaves: Any) -> Any:
        return self.model.predict_step(_packed(unflatten(structure, list(leaves))))

    def _make(self) -> Any:
        os.environ.update(self.environment)
        model = self.packed_model.unpack() if self.packed_model else call_creator(self.creator, self.config)
        if not is_model(model):
            raise ArgumentError(
                f"model_creator must return a Keras model; got {type(model).__name__}. Return the compiled model.",
                code="bad-model",
            )
        _check_backend(model)
        _check_layers(model)
        self.floatx = str(library(family_of(model)).backend.floatx())
        if self.compile_args:
            arguments = call_creator(self.compile_args, self.config)
            if not isinstance(arguments, dict):
                raise ArgumentError(
                    "compile_args_creator must return a dict of arguments for model.compile; "
                    f"got {type(arguments).__name__}.",
                    code="bad-compile-args",
                )
            model.compile(**arguments)
        return model

    def _prepare(self, features: Any) -> None:
        """Make the model whole: variables, the same weights on every rank, the way of the gradients."""
        if self.ready:
            return
        sample = self._tensors(named_features(features, self.features, self.model))
        state = self.start or State()
        _seat(self.model, state, sample)
        if not state.payload.get("models"):
            set_weights(self.model, self.world.broadcast(weights_of(self.model)))
        if self.training:
            _check_kept(state)
            _seat_optimizers(self.model, state)
            self.draws = StepDraws(self.model, self.seed, self.world.rank)
        self.agreement = Agreement(self.model, self.world, self.sync_batch_norm)
        with _kept(self.model.non_trainable_variables):  # counts of its layers
            self.agreement.ask_layers(sample)
            self.specs = self._describe(sample)
        self.ready = True

    def _open_epoch(self, features: Any, epoch: int, first_step: int) -> None:
        """Begin an epoch: a new one, the rest of one that was paused, or of one that an earlier run had begun."""
        if self.epoch == epoch:
            for name, variables in self._metrics().items():
                for variable, value in zip(variables, self.own[name], strict=True):
                    variable.assign(value)
            return
        self._prepare(features)
        if not self.begun:
            self._begin_callbacks()
            self.begun = True
        tf.random.set_seed(int(np.random.SeedSequence([self.seed, epoch, self.world.rank]).generate_state(1)[0]))
        self.agreement.wants_stop = self.agreement.stop = False
        self.model.reset_metrics()
        self.blank = self._metric_values()
        self.epoch, self.open, self.rows = epoch, True, 0
        self.so_far, self.earlier = {}, []
        if not first_step:
            self._restore()
        self.callbacks.on_epoch_begin(self.number)
        if first_step:  # callbacks had begun this epoch before the state was kept
            self._restore()
            self._restore_ranks()

    def _close_epoch(self) -> None:
        if self.open:
            for variable, mean in self._norm_means():
                variable.assign(mean)
        self.open = False

    def _restore(self) -> None:
        """Undo the changes that callbacks made at the beginning of a resumed fit, and restore their memory."""
        memory, self.memories = self.memories, None
        if memory is None or self.start is None:
            return
        set_weights(self.model, self.start.payload["models"][0])
        _seat_optimizers(self.model, self.start)
        self.memory.restore(memory.get("callbacks", {}))
        self.so_far, self.ranks = memory.get("logs", {}), memory.get("ranks", [])

    def _restore_ranks(self) -> None:
        """Take over the counts of the interrupted epoch from this rank, or from the ranks in whose place it is now."""
        mine = self.ranks[self.world.rank :: self.world.size]
        self.earlier = mine
        self.rows = sum(rank["rows"] for rank in mine)
        if len(self.ranks) == self.world.size:
            for variable, value in zip(self._norms(), mine[0]["norms"], strict=True):
                variable.assign(value)
            self.model.stop_training = self.agreement.wants_stop = mine[0]["stops"]

    def _with_earlier(self, logs: Any) -> Any:
        """Add the metrics of an interrupted epoch to those of its first step here."""
        metrics = self._metrics()
        for rank in self.earlier:
            counts = rank["metrics"]
            for name in counts.keys() | (metrics.keys() - set(rank["idle"])):
                shapes = [tuple(variable.shape) for variable in metrics.get(name, [])]
                if name not in counts or shapes != [value.shape for value in counts[name]]:
                    raise ArgumentError(
                        "the resumed fit was interrupted in the middle of an epoch, and the model was compiled with "
                        f"other metrics then, so those of this epoch cannot be added up: {name!r} is not the same. "
                        "Compile it with the same metrics, or begin a new fit from its checkpoint with "
                        "load_orca_checkpoint.",
                        code="metrics-differ-from-resumed",
                    )
                for variable, value in zip(metrics[name], counts[name], strict=True):
                    variable.assign(variable.numpy() + value)
        self.earlier = []
        return {**logs, **{k: v for k, v in self._metrics_result().items() if k in logs}}

    def _example(self) -> Any:
        assert self.start is not None and self.start.input is not None
        return self.start.input.example(2)

    def _begin_callbacks(self) -> None:
        self.listener = _listener(library(family_of(self.model)).callbacks)
        mine = [*self._mine(self.plan.callbacks), self.listener]
        epochs = self.plan.initial_epoch + self.plan.epochs
        self._set_callbacks(mine, {"epochs": epochs, "steps": self.usual, "verbose": 0}, add_history=True)
        self.model.stop_training = False
        if self.memories is not None:
            continue_logs(mine, self.number)
        number = self.number
        self.callbacks.on_train_begin()
        self.memory = Memory(self.callbacks.callbacks)
        if any(_is_a(each, "BackupAndRestore") for each in self.plan.callbacks):
            self._follow_restored()
        if self.memories is not None:
            self.number = number

    def _mine(self, callbacks: Sequence[Any]) -> list[Any]:
        return [each for each in callbacks if self.world.rank == 0 or not _is_a(each, *_WRITERS)]

    def _set_callbacks(self, callbacks: list[Any], params: dict[str, Any], **options: Any) -> None:
        module = library(family_of(self.model)).callbacks
        self.callbacks = module.CallbackList(callbacks, add_progbar=False, model=self.model, **options, **params)
        self.callbacks.set_params(params | {"rank": self.world.rank, "size": self.world.size})

    def _follow_restored(self) -> None:
        """Take over weights, optimizer and epoch number that a callback restored on rank 0."""
        epoch = getattr(self.model, "_initial_epoch", None) or self.number
        mine = (weights_of(self.model), optimizer_state(self.model), epoch) if self.world.rank == 0 else None
        weights, optimizer, self.number = self.world.broadcast(mine)
        set_weights(self.model, weights)
        set_optimizer_state(self.model, optimizer)

    def _step(self, kind: str, batch: Batch) -> tuple[Any, Any]:
        """Run one training or test step; return (logs, loss of this rank's rows)."""
        weights = self._weights(batch) if kind == "train" else batch.weights
        x, y = named_features(batch.x, self.features, self.model), named_labels(batch.y, self.labels, self.model)
        parts = {"x": x, "y": y, "weights": weights}
        tree = {name: self._tensors(part) for name, part in parts.items() if part is not None}
        if "y" not in tree and _compares(self.model):
            raise DataError(
                "there are no labels to compare the outputs with. Pass label_cols, or data with labels.",
                code="missing-labels",
            )
        flat, structure = flatten(tree)
        if kind not in self.steps:
            self._build_parts(kind, tree.get("y"))
            own = self._train_step if kind == "train" else self.model.test_step
            self.steps[kind] = Graphs(self.model, partial(self._run, own))
        counts = (tf.constant(float(number), tf.float64) for number in (batch.rows, batch.step_rows))
        self.agreement.loss = None
        try:
            with self._aside(batch.rows > 0):
                result: tuple[Any, Any] = self.steps[kind](structure, *counts, *flat)
                return result
        except tf.errors.OpError:
            if self.agreement.error is not None:
                raise self.agreement.error from None
            raise

    def _build_parts(self, kind: str, labels: Any) -> None:
        """Give optimizer and metrics their variables before a step: one that makes variables is traced twice."""
        model = self.model
        if not type(model).__module__.startswith("keras."):  # a user's class steps and scores as it likes
            return
        if kind == "train" and model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        metrics = model._compile_metrics
        graph = getattr(model, "_functional", model)  # None: a Sequential of several inputs
        if metrics is None or metrics.built or labels is None or graph is None:
            return
        # Some metrics are chosen by sizes: the number of rows is left open, as in the step, and all others are known.
        if all(None not in output.shape[1:] for output in graph.outputs):
            specs = map_tree(lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), labels)
            metrics.build(specs, graph.output)

    def _train_step(self, data: Any) -> Any:
        self.draws.enter()
        return self.model.train_step(data)

    def _run(self, own: Callable[..., Any], structure: Any, rows: Any, step_rows: Any, *leaves: Any) -> tuple[Any, Any]:
        parts = unflatten(structure, list(leaves))
        with self.agreement.step(rows, step_rows):
            logs = own(_packed(**parts))
        return logs, self.agreement.my_loss()

    @contextmanager
    def _aside(self, counts: bool) -> Iterator[None]:
        """Leave no trace of a step without rows in statistics: its template row is not the data's."""
        if counts:
            yield
            return
        variables = self._passive()
        ids = set(map(id, variables))
        with _kept(variables):
            yield
        for variable in self._passive():
            if id(variable) not in ids:  # a metric that this step made
                variable.assign(np.zeros_like(variable.numpy()))

    def _passive(self) -> list[Any]:
        """Return the variables that a forward pass changes by this rank's rows alone: statistics, seeds and metrics."""
        ids = {id(v) for layer in self.agreement.shared_norms for v in (layer.moving_mean, layer.moving_variance)}
        mine = [variable for variable in self.model.non_trainable_variables if id(variable) not in ids]
        return [*mine, *self._metric_variables()]

    def _metrics(self) -> dict[str, list[Any]]:
        """Return the variables of each metric that has some, by its name, with a number where names are alike."""
        metrics: dict[str, list[Any]] = {}
        ids: set[int] = set()
        for metric in self.model.metrics:
            variables = [variable for variable in metric.variables if id(variable) not in ids]
            ids |= {id(variable) for variable in variables}
            if variables:
                alike = sum(name.rpartition("-")[0] == metric.name for name in metrics)
                metrics[f"{metric.name}-{alike}"] = variables
        return metrics

    def _metric_variables(self) -> list[Any]:
        return [variable for variables in self._metrics().values() for variable in variables]

    def _metric_values(self) -> dict[str, list[np.ndarray]]:
        return {name: [variable.numpy() for variable in variables] for name, variables in self._metrics().items()}

    def _metrics_result(self, in_use: bool = True) -> dict[str, Any]:
        """Return the metrics' values, without those of compile where the user's own train_step does not use them."""
        idle = getattr(self.model, "_compile_metrics", None)
        if idle is None or (idle.built and in_use):
            return dict(self.model.get_metrics_result())
        return {metric.name: metric.result() for metric in self.model.metrics if metric is not idle}

    def _uses_compiled_metrics(self) -> bool:
        """Say whether the epoch has counted in the metrics of compile: the validation may have built them."""
        metrics = getattr(self.model, "_compile_metrics", None)
        name = f"{getattr(metrics, 'name', '')}-0"
        return name not in self.own or name not in self.blank or not _equal(self.own[name], self.blank[name])

    def _merge_metrics(self, last: LastLogs, in_use: bool = True) -> dict[str, Any]:
        """Add the ranks' metrics up and return the logs that Keras would: a metric keeps sums, so its result is exact.

        Where a step returned other logs than the metrics, Keras shows those of the last step.
        """
        variables = self._metric_variables()
        values = [np.array(in_use), *(variable.numpy() for variable in variables)]
        flat = np.concatenate([np.ravel(value).astype(np.float64) for value in values])
        total = self.world.all_reduce([flat], "sum")[0]
        in_use = total[0] > 0  # on some rank
        mine = {name: np.asarray(value).tolist() for name, value in self._metrics_result(in_use).items()}
        parts = np.split(total, np.cumsum([np.size(value) for value in values])[:-1])
        for variable, value, part in zip(variables, values[1:], parts[1:], strict=True):
            variable.assign(part.reshape(value.shape).astype(value.dtype))
        overall = {name: np.asarray(value).tolist() for name, value in self._metrics_result(in_use).items()}
        tracks = any(metric.name == "loss" and _has_counted(metric) for metric in self.model.metrics)
        if not tracks or not self.agreement.reduces:  # ours is the loss then
            overall.pop("loss", None)
        return last.over_ranks(self.world, mine, overall)

    def _step_loss(self, logs: Any) -> float:
        """Return the loss of the step: over all ranks where we saw it, else that of the model's logs; nan for none."""
        if self.agreement.loss is not None:
            return self.agreement.loss
        self.has_loss = isinstance(logs, dict) and "loss" in logs
        return float(logs["loss"]) if self.has_loss else float("nan")

    def _check_finite(self, loss: float, step: int, epoch: int, plan: FitPlan) -> None:
        if not np.isfinite(loss) and self.has_loss and not self.warned:
            report_loss(loss, f"at step {step} of epoch {epoch}", plan.on_nan)
            self.warned = True

    def _norms(self) -> list[Any]:
        """Return the running statistics of batch normalization that saw its own rank's rows alone."""
        return [v for layer in self.agreement.local_norms for v in (layer.moving_mean, layer.moving_variance)]

    def _norm_means(self) -> list[tuple[Any, np.ndarray]]:
        """Return these statistics with their means over the ranks, by the rows of the epoch."""
        means = []
        for variable in self._norms():
            mine = variable.numpy()
            total, count = self.world.all_reduce([mine * self.rows, np.array([self.rows], mine.dtype)], "sum")
            means.append((variable, total / count[0]))
        return means

    @contextmanager
    def _merged_norms(self) -> Iterator[None]:
        """Show the model as if its epoch ended here."""
        means = self._norm_means() if self.open else []
        with _kept([variable for variable, _ in means]):
            for variable, mean in means:
                variable.assign(mean)
            yield

    def _describe(self, sample: Any) -> tuple[int, OutputSpec, OutputSpec | None]:
        """Return the number of rows of a batch, and the specs of its rows and of the model's answers.

        A batch of training, as not every model takes any number of rows; but one row alone may lose its dimension.
        """
        rows, row = int(flatten(sample)[0][0].shape[0]), OutputSpec.of(map_tree(_to_numpy, sample))
        try:
            output = self.model.predict_step(_packed(twice(sample) if rows == 1 else sample))
        except Exception as error:  # a model that only trains; if it is asked to predict, it says so itself
            logger.info("The model's answers are not known yet: %s: %s", type(error).__name__, error)
            return rows, row, None
        return rows, row, OutputSpec.of(map_tree(_to_numpy, output))

    def _weights(self, batch: Batch) -> Any:
        """Return the weights of rows: those of the data, times those of their classes."""
        if self.class_weight is None or batch.y is None:
            return batch.weights
        labels = flatten(batch.y)[0]
        if len(labels) > 1:
            raise ArgumentError(
                "class_weight is for models with one output; got several labels. Use loss_weights.",
                code="bad-class-weight",
            )
        y = np.asarray(labels[0])
        classes = y.argmax(-1) if y.ndim > 1 and y.shape[-1] > 1 else y.reshape(len(y)).astype(np.int64)
        table = np.ones(max(int(classes.max(initial=0)), *self.class_weight) + 1)
        for number, weight in self.class_weight.items():
            table[number] = weight
        weights = table[classes]
        return weights if batch.weights is None else weights * np.asarray(batch.weights)

    def _tensors(self, tree: Any) -> Any:
        return map_tree(lambda leaf: _tensor(leaf, self.floatx), tree)


def _check_backend(model: Any) -> None:
    backend = library(family_of(model)).backend.backend()
    if backend != "tensorflow":
        raise ArgumentError(
            f"Keras runs on {backend!r} here; from_keras needs it on TensorFlow. Set KERAS_BACKEND=tensorflow before "
            "keras is imported.",
            code="keras-not-on-tensorflow",
        )


def _check_layers(model: Any) -> None:
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and hasattr(layer, "return_sequences"):
            raise ArgumentError(
                f"the layer {layer.name!r} is stateful: it continues in a batch where the same row of the batch before "
                "ended, but workers get another part of each step. Give it stateful=False.",
                code="stateful-layer",
            )


def _listener(module: Any) -> Any:
    """Return a callback that hears the logs of an epoch after all others had their say: they may add to them."""

    class Listener(module.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.logs: dict[str, Any] = {}

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.logs = plain_logs(logs or {})

    return Listener()


def _has_counted(metric: Any) -> bool:
    count = getattr(metric, "count", None)
    return count is None or float(count) > 0


def _equal(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return len(some) == len(others) and all(map(np.array_equal, some, others))


def _is_a(callback: Any, *names: str) -> bool:
    """Say whether a callback is of one of these classes of Keras, of whichever Keras."""
    return any(kind.__name__ in names for kind in type(callback).__mro__)


def _compares(model: Any) -> bool:
    """Say whether a model compares its outputs with labels: a step of the user's own may do without."""
    step = inspect.getmodule(type(model).train_step)
    own = step is None or not step.__name__.startswith(("keras.", "tf_keras."))
    return getattr(model, "loss", None) is not None and not own


def _seat(model: Any, state: State, example: Any) -> None:
    """Give a model its variables, from an example row where it has none yet, and the weights of a state."""
    if not model.built:
        if example is None:
            raise ArgumentError(
                "the model has no weights before it sees a row: its input shape is not known. Fit, evaluate or predict "
                "first, or give it an Input (or input_shape).",
                code="model-not-built",
            )
        try:
            model(example)
        except NotImplementedError:  # without a `call`: its train_step calls the models in it
            if not model.weights:
                raise
            model.built = True
    if state.payload.get("models") and state.payload["models"][0] is not None:
        set_weights(model, state.payload["models"][0])


@contextmanager
def _kept(variables: Sequence[Any]) -> Iterator[None]:
    """Give variables the values back that they have now."""
    before = [variable.numpy() for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


def _seat_optimizers(model: Any, state: State) -> None:
    """Give the optimizers of a model their part of a state."""
    record = state.payload.get("stepping")
    if record is not None:
        states = zip(record["names"], record["weights"], state.payload["optimizers"], strict=True)
        set_optimizer_states(model, {name: OptimizerState(weights, values) for name, weights, values in states})


def _check_kept(state: State) -> None:
    names = (state.payload.get("stepping") or {}).get("lost")
    if names:
        raise ArgumentError(
            f"the train_step of the earlier fit stepped optimizers whose state cannot be kept: {'; '.join(names)}. "
            "A resumed fit would begin them anew. Keep each optimizer in an attribute of the model, and the variables "
            "it steps among the model's weights; or continue with the weights alone: save_weights, and load_weights in "
            "a new Estimator.",
            code="optimizer-not-kept",
        )


def _state_of(model: Any, optimizers: Sequence[Any] | None) -> State:
    """Return the weights of a model and, unless `optimizers` is None, the states of its optimizers.

    Args:
        model: The model.
        optimizers: Those that training has used: the ones whose state cannot be kept are named in the state.
    """
    payload: dict[str, Any] = {"models": [weights_of(model)] if model.built else [], "optimizers": [], "schedulers": []}
    if optimizers is not None:
        states = optimizer_states(model)
        payload["optimizers"] = [state.arrays for state in states.values()]
        weights = [state.weights for state in states.values()]
        payload["stepping"] = {"names": list(states), "weights": weights, "lost": unkept(model, optimizers)}
    return State(payload=payload)


def _packed(x: Any, y: Any = None, weights: Any = None) -> Any:
    """Return a batch as Keras hands it to train_step, which users write too."""
    if y is None:
        return (x,) if isinstance(x, tuple | list) else x
    return (x, y) if weights is None else (x, y, weights)


def _tensor(leaf: Any, floatx: str) -> Any:
    """Return an array as a tensor, floating numbers in Keras' own precision."""
    if isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind == "f":
        array = array.astype(floatx, copy=False)
    if array.dtype.kind in "mM":
        raise DataError(
            f"a Keras model cannot take values of type {array.dtype}. Turn dates into numbers first.", code="bad-dtype"
        )
    return tf.convert_to_tensor(array)


def _set_threads(config: dict[str, Any]) -> None:
    """Give TensorFlow the threads that its config asks for, or those that this worker may use."""
    for kind in ("intra", "inter"):
        threads = config.get(f"{kind}_op_parallelism", threads_asked_for() or None)
        if threads is not None:
            with suppress(RuntimeError):  # TensorFlow is at work in this process already
                getattr(tf.config.threading, f"set_{kind}_op_parallelism_threads")(int(threads))


def _to_numpy(leaf: Any) -> np.ndarray:
    if isinstance(leaf, tf.SparseTensor):
        leaf = tf.sparse.to_dense(leaf)
    array = np.asarray(leaf.to_tensor() if isinstance(leaf, tf.RaggedTensor) else leaf)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
