"""GraphEstimator: a graph of TensorFlow 1 that learns. Owns how it is described, and the user's session.

The variables live in the user's session: a fit begins with their values there, and leaves the trained values there.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import Any

from orca.core.arguments import refuse_unknown
from orca.core.callbacks.callback import Callback
from orca.core.columns import single
from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.core.metrics import Metric, metrics_of
from orca.core.state import State
from orca.core.units import natural
from orca.errors import ArgumentError, NotSupported
from orca.estimators.training import TrainingEstimator
from orca.registry import backend_of, source_of
from orca.rows.tree import flatten, listed
from orca_classic.bigdl.validation import with_classes_from_zero
from orca_classic.data.tf.loading import tensorflow
from orca_classic.tf1.estimators.verbs import GraphFit, GraphVerbs
from orca_classic.tf1.graph.checkpoints import load_checkpoint, save_checkpoint
from orca_classic.tf1.graph.learner import GraphLearner, Values
from orca_classic.tf1.graph.optimizers import (
    MethodsByPrefix,
    TrainStep,
    ZooOptimizer,
    is_optim_method,
    no_variables,
    step_of,
)
from orca_classic.tf1.graph.program import GraphProgram, VariableSpec, quiet, tf, training_program
from orca_classic.tf1.graph.scores import TensorMetric
from orca_classic.tf1.graph.terms import SUM, ancestors
from orca_classic.tf1.packed_rows import mode_of

_RAN_TOO_EARLY = (
    "sess has run before the optimizer was made, and then TensorFlow cannot change a tf.while_loop or tf.cond. Make "
    "the session afterwards (leave sess out), or call tf.disable_control_flow_v2() first."
)


class GraphEstimator(GraphVerbs, TrainingEstimator):  # type: ignore[misc]
    """A graph of TensorFlow 1 that learns and answers on any engine. Made by `Estimator.from_graph`.

    Args:
        ends: The tensors of the graph, under the names of `training_program`'s arguments.
        session: The session that holds the variables.
        step: The optimizer's step in the graph, or an optim method of `orca_classic.bigdl.optimizers`.
        metrics: Metrics of `orca.metrics`; those that are tensors are among the ends.
        clip_norm: The largest norm that all gradients together may have.
        clip_value: The largest size of a gradient's values, or the least and the largest value.
        options: Arguments of TrainingEstimator.

    Example:
        >>> import numpy as np, tensorflow.compat.v1 as tf
        >>> from orca_classic import Estimator
        >>> with tf.Graph().as_default():
        ...     x, y = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.float32, [None])
        ...     weight = tf.get_variable("weight", [2, 1])
        ...     output = tf.squeeze(x @ weight, 1)
        ...     loss = tf.reduce_mean(tf.square(output - y))
        ...     est = Estimator.from_graph(inputs=x, outputs=output, labels=y, loss=loss,
        ...                                optimizer=tf.train.AdamOptimizer(0.1), backend="local")
        >>> rows = np.random.rand(64, 2).astype("float32")
        >>> est.fit((rows, rows.sum(axis=1)), epochs=20, batch_size=16).evaluate((rows, rows.sum(axis=1)))["loss"] < 0.1
        True
    """

    learner: GraphLearner

    def __init__(
        self,
        ends: Mapping[str, Any],
        session: Any,
        step: TrainStep | Any = None,
        *,
        metrics: Sequence[Metric] = (),
        clip_norm: float | None = None,
        clip_value: Any = None,
        **options: Any,
    ) -> None:
        self.ends, self.sess, self.step = dict(ends), session, step
        self._programs: dict[Any, GraphProgram] = {}
        learner = GraphLearner(
            self._program({}),
            method=None if step is None or isinstance(step, TrainStep) else step,
            clip_norm=None if clip_norm is None else float(clip_norm),
            clip_value=_clip_values(clip_value),
        )
        super().__init__(learner, **options)
        parts = learner.program.metrics
        self.metrics = (*(TensorMetric(name, parts[name].kind == SUM) for name in parts), *metrics)

    @classmethod
    def of(
        cls,
        *,
        inputs: Any,
        outputs: Any = None,
        labels: Any = None,
        loss: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        clip_norm: float | None = None,
        clip_value: Any = None,
        updates: Sequence[Any] | None = None,
        sess: Any = None,
        model_dir: str | None = None,
        backend: str | None = None,
        workers_per_node: int = 1,
        seed: int = 0,
        log_to_driver: bool = True,
        stall_timeout: float = 300.0,
        start_timeout: float = 0.0,
        threads_per_worker: int | None = None,
        feeds: Mapping[Any, Any] | None = None,
        targets: Any = None,
        turns: Sequence[tuple[TrainStep, int]] = (),
        loss_reduction: str | None = None,
    ) -> GraphEstimator:
        """Make an Estimator of a graph's ends; see `Estimator.from_graph` for the arguments."""
        if loss_reduction not in (None, "mean", "sum", "none"):
            raise ArgumentError(f'loss_reduction must be "mean", "sum", "none" or None; got {loss_reduction!r}.')
        _check_ends(inputs, labels, outputs, loss, optimizer, loss_reduction == "none")
        graph = flatten(inputs)[0][0].graph
        tensors, others = split_metrics(metrics)
        ends = {"inputs": inputs, "labels": labels, "outputs": outputs, "loss": loss, "metrics": tensors}
        with graph.as_default(), quiet():
            step = optimizer if optimizer is None else _stepping(loss, optimizer)
            if isinstance(step, TrainStep) and step.loss is not None:
                ends["loss"] = step.loss  # the loss of the train op, with its penalties
            session = sess or tf.Session(graph=graph)
            if session.graph is not graph:
                raise ArgumentError("sess belongs to another graph than the inputs. Pass a tf.Session of their graph.")
            all_updates = [*(updates or ()), *(step.updates if isinstance(step, TrainStep) else ())]
            estimator = cls(
                ends
                | {"updates": all_updates, "feeds": feeds, "targets": targets, "turns": turns}
                | {"loss_reduction": loss_reduction},
                session,
                step,
                metrics=with_classes_from_zero(metrics_of(others)),
                clip_norm=clip_norm,
                clip_value=clip_value,
                backend=backend_of(backend, "tensorflow") if backend else None,
                workers_per_node=workers_per_node,
                model_dir=model_dir,
                seed=natural("seed", seed),
                settings=Settings(
                    stall_timeout,
                    True,
                    threads_per_worker or 0,
                    log_to_driver=log_to_driver,
                    start_timeout=start_timeout,
                ),
            )
            try:
                initialize(session)
            except tf.errors.InvalidArgumentError as error:
                if "output_all_intermediates" not in str(error):
                    raise
                raise ArgumentError(_RAN_TOO_EARLY) from error
        return estimator

    def _paired(self, data: Any) -> Any:
        program = self.learner.program
        if program.labels is None or not isinstance(data, tensorflow().data.Dataset):
            return data
        element = data.element_spec
        inputs, labels = (len(flatten(tree)[0]) for tree in (program.inputs, program.labels))
        is_flat = type(element) is tuple and len(element) == inputs + labels > 2
        if not is_flat or any(isinstance(part, tuple | dict) for part in element):
            return data
        with mode_of(data):
            return data.map(lambda *parts: (single(parts[:inputs]), single(parts[inputs:])))

    def _fit(self, request: GraphFit, **plan: Any) -> None:
        plan.pop("verbose", None)
        if weights := [name for name in ("sample_weight", "class_weight") if plan.pop(name, None) is not None]:
            raise ArgumentError(
                f"{weights[0]} is not supported for a graph. Feed the weights of rows as an input or a label, and "
                "multiply each row's loss by them."
            )
        plan["callbacks"] = [
            ScheduledRate(each.schedule) if type(each).__name__ == "LearningRateScheduler" else each
            for each in listed(plan.get("callbacks"))
        ]
        known = [*signature(GraphVerbs.fit).parameters, *(each.name for each in fields(FitPlan))]
        refuse_unknown(plan, known, "Estimator.fit()")
        learner = self._learner(request.feed_dict, request.session_config)
        if learner.program.active and self.engine.workers == 1:
            learner = replace(learner, program=self._program(request.feed_dict or {}, alone=True))
        learner.check_trainable()
        learner.program.checked()
        spec = self._spec(request.batch_size, *request.cols)
        self._state = self._current()
        self._train(request.data, request.valid, spec, learner=learner, metrics=self.metrics, **plan)
        self._put_back()

    def _warn_of_metrics(self, metrics: Sequence[Metric]) -> None:
        """Say nothing: programs of TensorFlow 1 give metrics for evaluations, and a Keras model brings its own."""

    def _score(
        self, data: Any, cols: tuple[Any, Any], batch_size: int, feed_dict: Any, num_steps: int | None
    ) -> dict[str, float]:
        learner = self._learner(feed_dict, None)
        learner = replace(learner, program=learner.program.evaluating().checked(), method=None)
        if not learner.program.loss and not self.metrics:
            raise ArgumentError("there is nothing to evaluate. Pass loss= or metrics= to from_graph.")
        self._state = self._current()
        spec = self._spec(batch_size, *cols)
        ((statistics, _), *_) = self._evaluate(data, spec, num_steps, self.metrics, learner=learner)
        loss = {"loss": statistics["val_loss"]} if learner.program.loss else {}
        return loss | {name: value for name, value in statistics.items() if name not in ("val_loss", "num_samples")}

    def _answer(self, data: Any, feature_cols: Any, batch_size: int | None, output_cols: Any, feed_dict: Any) -> Any:
        learner = self._learner(feed_dict, None)
        self._state = self._current()
        learner = replace(learner, program=learner.program.answering().checked(), method=None)
        spec = self._spec(batch_size, feature_cols, None, output_cols, labelled=False)
        return source_of(data, spec).answer(self._answers(learner, spec), self.engine)

    def get_model(self) -> Any:
        """Refuse: the model is the user's graph.

        Raises:
            NotSupported: Always; says where the variables are.
        """
        raise NotSupported("the model is your own graph; its trained variables are in the session est.sess.")

    def save(self, path: str | None = None, **other_names: str) -> str:
        """Save the variables as a checkpoint of TensorFlow; returns the path, any of fsspec."""
        return self.save_tf_checkpoint(self._path("save", path, other_names))

    def load(self, path: str | None = None, **other_names: str) -> GraphEstimator:
        """Load a checkpoint of `save`, or any other one of TensorFlow, with these variables."""
        return self.load_tf_checkpoint(self._path("load", path, other_names))

    def save_tf_checkpoint(self, path: str) -> str:
        """Save all variables of the graph, the optimizer's too, as `tf.train.Saver` does; returns the path."""
        save_checkpoint(self.sess, path)
        return path

    def load_tf_checkpoint(self, path: str) -> GraphEstimator:
        """Restore the variables of the graph from a checkpoint of `tf.train.Saver`."""
        load_checkpoint(self.sess, path)
        return self

    def clear_gradient_clipping(self) -> None:
        """Train without clipping from now on."""
        self.learner = replace(self.learner, clip_norm=None, clip_value=None)

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Keep every value of a gradient between two numbers from now on."""
        self.learner = replace(self.learner, clip_value=_clip_values((min, max)))

    def set_l2_norm_gradient_clipping(self, clip_norm: float) -> None:
        """Keep the norm of all gradients together from exceeding a number from now on."""
        self.learner = replace(self.learner, clip_norm=float(clip_norm))

    @property
    def trained(self) -> tuple[int, int]:
        """Return how many epochs and steps were trained."""
        return (0, 0) if self._state is None else (self._state.epoch, self._state.steps)

    def begin_after(self, epochs: int, steps: int) -> None:
        """Count epochs and steps on from these, which were trained elsewhere."""
        self._state = State(epoch=epochs, steps=steps)

    def _program(self, feeds: Mapping[Any, Any], alone: bool = False) -> GraphProgram:
        """Return the program with these tensors fed, for one worker alone or for any number; made once."""
        key = (alone, *((id(tensor), pickle.dumps(value)) for tensor, value in feeds.items()))
        if key not in self._programs:
            own = self.step if isinstance(self.step, TrainStep) else None
            weights: Sequence[Any] = ()
            if self.step is not None and own is None:
                weights = trained_by(self.ends["loss"])
            all_feeds = dict(self.ends.get("feeds") or {}) | dict(feeds)
            with quiet():
                self._programs[key] = training_program(
                    **self.ends | {"feeds": all_feeds}, step=own, weights=weights, alone=alone
                )
        return self._programs[key]

    def _learner(self, feed_dict: Mapping[Any, Any] | None, session_config: Any) -> GraphLearner:
        if feed_dict is not None and not isinstance(feed_dict, Mapping):
            raise ArgumentError(f"feed_dict must be a dict of tensors and values; got {type(feed_dict).__name__}.")
        learner = replace(self.learner, program=self._program(feed_dict or {}))
        if session_config is not None:
            learner = replace(learner, session_config=session_config.SerializeToString())
        return learner

    def _current(self) -> State:
        """Return the state to answer with: the values that variables have in the session now."""
        program = self.learner.program
        values = Values(self.sess, program.variables)
        with self.sess.graph.as_default():
            initialize(self.sess)
        state = State() if self._state is None else self._state
        weights = values.read([spec.name for spec in program.variables if spec.name not in program.slots])
        slots = values.read(sorted(program.slots & values.specs.keys()))
        optimizers = [{"slots": slots, "steps": state.steps}]  # several optimizers take turns by the steps
        if self.learner.method is not None:
            optimizers = state.payload.get("optimizers") or []
        return replace(state, payload={"models": [weights], "optimizers": optimizers, "schedulers": []})

    def _take(self, state: State, name: str) -> None:
        super()._take(state, name)
        self._put_back()

    def _put_back(self) -> None:
        """Give the session the values of the state."""
        assert self._state is not None
        program, payload = self.learner.program, self._state.payload
        values = Values(self.sess, program.variables)
        arrays = dict(payload["models"][0])
        for optimizer in payload.get("optimizers") or ():
            arrays |= optimizer.get("slots") or {}
        values.write({name: value for name, value in arrays.items() if name in values.specs})


@dataclass
class ScheduledRate(Callback):
    """A LearningRateScheduler of Keras at work in a graph.

    Attributes:
        schedule: A function (epoch) or (epoch, rate) that returns the learning rate; epochs count from 0.
    """

    schedule: Callable[..., float]

    def before_train_epoch(self, runner: Any) -> None:
        """Set the rate of an epoch."""
        learner, epoch = runner.given_models[0], runner.epochs - 1
        takes_rate = len(signature(self.schedule).parameters) > 1
        learner.set_learning_rate(self.schedule(epoch, *(learner.learning_rates() if takes_rate else ())))


def initialize(session: Any) -> None:
    """Give the variables of a session that have no value yet their first one."""
    graph = session.graph
    with graph.as_default(), quiet():
        known = _values_of.setdefault(session, set())
        fresh = [v for v in tf.global_variables() if v.op.name not in known]
        if not fresh:
            return
        checks = session.run([tf.is_variable_initialized(variable) for variable in fresh])
        session.run(tf.variables_initializer([v for v, has_value in zip(fresh, checks, strict=True) if not has_value]))
        known.update(v.op.name for v in fresh)


def restore_values(session: Any, values: Mapping[str, Any]) -> None:
    """Give the variables of a session that some values name these values."""
    initialize(session)
    with session.graph.as_default():
        variables = {variable.op.name: variable for variable in tf.global_variables()}
    specs = [VariableSpec.of(variables[name]) for name in values if name in variables]
    Values(session, specs).write({spec.name: values[spec.name] for spec in specs})


def trained_by(loss: Any) -> list[Any]:
    """Return the variables that lower a loss.

    Raises:
        ArgumentError: There are none.
    """
    before = ancestors([loss.op])
    with loss.graph.as_default():
        variables = [variable for variable in tf.trainable_variables() if variable.op in before]
    if not variables:
        raise no_variables(loss)
    return variables


def _stepping(loss: Any, optimizer: Any) -> Any:
    """Return the step of an optimizer in the graph; one of `orca_classic.bigdl.optimizers` as it is."""
    if isinstance(optimizer, TrainStep):
        return optimizer
    if isinstance(optimizer, Mapping) and optimizer and all(map(is_optim_method, optimizer.values())):
        optimizer = MethodsByPrefix(dict(optimizer))
        optimizer.check(variable.op.name for variable in trained_by(loss))
    if is_optim_method(optimizer):
        trained_by(loss)
        return optimizer
    train_op = ZooOptimizer(optimizer).minimize(loss, tf.train.get_global_step(), trained_by(loss))
    return step_of(train_op)


def split_metrics(metrics: Any) -> tuple[dict[str, Any], Any]:
    """Return the metrics that are tensors, by name, and the others; of a pair of `tf.metrics`, the one that counts."""
    if isinstance(metrics, Mapping):
        metrics = {name: _counting(metric) for name, metric in metrics.items()}
        tensors = {name: metric for name, metric in metrics.items() if _is_tensor(metric)}
        return tensors, {name: metric for name, metric in metrics.items() if name not in tensors} or None
    tensors = {metric.op.name: metric for metric in listed(metrics) if _is_tensor(metric)}
    return tensors, [metric for metric in listed(metrics) if not _is_tensor(metric)] or None


def _check_ends(inputs: Any, labels: Any, outputs: Any, loss: Any, optimizer: Any, by_row: bool = False) -> None:
    for name, tree in (("inputs", inputs), ("labels", labels), ("outputs", outputs), ("loss", loss)):
        _check_tensors(name, tree, required=name == "inputs")
    if loss is None and optimizer is not None:
        raise ArgumentError("an optimizer lowers a loss, and there is none. Pass loss= to from_graph.")
    if loss is not None and loss.shape.rank and loss.shape.num_elements() != 1 and not by_row:
        raise ArgumentError(
            f"the loss {loss.name!r} must be one number; it has the shape {loss.shape}. Pass tf.reduce_mean of it."
        )


def _counting(metric: Any) -> Any:
    """Return the tensor of (value, update) of `tf.metrics` that counts rows and gives the value; others unchanged."""
    is_pair = isinstance(metric, tuple) and len(metric) == 2 and all(map(_is_tensor, metric))
    return metric[1] if is_pair else metric


def _is_tensor(thing: Any) -> bool:
    return hasattr(thing, "graph") and hasattr(thing, "dtype")


def _check_tensors(name: str, tree: Any, required: bool) -> None:
    leaves = [] if tree is None else flatten(tree)[0]
    if required and not leaves:
        raise ArgumentError(f"from_graph needs {name}. Pass the tensor that is fed, or a list of them.")
    for leaf in leaves:
        if not _is_tensor(leaf):
            mode = ". TensorFlow is in eager mode: build the graph within tf.Graph().as_default(), or import tf1"
            raise ArgumentError(
                f"{name} must be tensors of a graph; got {type(leaf).__name__}{mode * hasattr(leaf, 'numpy')}."
            )


def _clip_values(bounds: Any) -> tuple[float, float] | None:
    if bounds is None:
        return None
    pair = tuple(bounds) if isinstance(bounds, list | tuple) else (-bounds, bounds)
    if len(pair) != 2 or not pair[0] < pair[1]:
        raise ArgumentError(f"clip_value must be a positive number, or a pair (min, max); got {bounds!r}.")
    return float(pair[0]), float(pair[1])


_values_of: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()  # session -> variables with a value
