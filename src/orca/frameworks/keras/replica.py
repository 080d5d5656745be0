"""KerasReplica: a Keras model with its variables. Owns its steps, and its metrics and statistics over all ranks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from orca.core.source import Batch
from orca.core.state import OutputSpec, State
from orca.core.world import World
from orca.errors import ArgumentError, DataError
from orca.frameworks.keras.agree import Agreement, twice
from orca.frameworks.keras.build import (
    check_optimizers_saved,
    floatx_of,
    load_optimizers,
    load_weights,
    packed,
    preserved,
    tensors_of,
    to_numpy,
)
from orca.frameworks.keras.columns import named_features, named_labels
from orca.frameworks.keras.draws import StepDraws
from orca.frameworks.keras.graphs import Graphs
from orca.frameworks.keras.logs import LastLogs
from orca.frameworks.keras.travel import set_weights, weights_of
from orca.rows.tree import flatten, map_tree, unflatten

if TYPE_CHECKING:
    from orca.frameworks.keras.learner import KerasLearner

logger = logging.getLogger(__name__)

Values = dict[str, list[np.ndarray]]  # of the variables of each metric


class KerasReplica:
    """A Keras model with variables, the same on every rank; made with the first batch, which tells their shapes.

    Args:
        spec: The learner.
        model: The model.
        world: The ranks.
        state: The state to begin with.
        seed: The seed of each step's random numbers.
        trains: Whether it is trained, or only evaluated.
        features: The features of the first batch.
    """

    def __init__(
        self, spec: KerasLearner, model: Any, world: World, state: State, seed: int, *, trains: bool, features: Any
    ) -> None:
        self.spec, self.model, self.world, self.trains = spec, model, world, trains
        self._floatx = floatx_of(model)
        sample = self._tensors(named_features(features, spec.features, model))
        load_weights(model, state, sample)
        if not state.payload.get("models"):
            set_weights(model, world.broadcast(weights_of(model)))
        if trains:
            check_optimizers_saved(state)
            load_optimizers(model, state)
        self._draws = StepDraws(model, seed, world.rank) if trains else None
        self._graphs: dict[str, Graphs] = {}
        self.agreement = Agreement(model, world, spec.sync_batch_norm)
        with preserved(model.non_trainable_variables):  # counts of its layers
            self.agreement.ask_layers(sample)
            self.specs = self._describe(sample)  # with the rows they were seen in

    # A step.

    def train_step(self, batch: Batch, epoch: int, step: int) -> Any:
        """Run the model's train_step on a batch; return its logs."""
        assert self._draws is not None
        self._draws.set_step(epoch, step)
        with self.agreement.writing(batch.rows, batch.step_rows):
            logs, _ = self._step("train", batch)
        return logs

    def test_step(self, batch: Batch) -> tuple[Any, float]:
        """Run the model's test_step on a batch; return its logs, and the loss of this rank's rows."""
        logs, loss = self._step("test", batch)
        return logs, float(loss)

    def _step(self, kind: str, batch: Batch) -> tuple[Any, Any]:
        """Run one training or test step; return (logs, loss of this rank's rows)."""
        spec, model = self.spec, self.model
        weights = self._weights(batch) if kind == "train" else batch.weights
        x, y = named_features(batch.x, spec.features, model), named_labels(batch.y, spec.labels, model)
        parts = {"x": x, "y": y, "weights": weights}
        tree = {name: self._tensors(part) for name, part in parts.items() if part is not None}
        if "y" not in tree and _compares(model):
            raise DataError(
                "there are no labels to compare the outputs with. Pass label_cols, or data with labels.",
                code="missing-labels",
            )
        flat, structure = flatten(tree)
        if kind not in self._graphs:
            self._build_variables(kind, tree.get("y"))
            own = self._seeded_train_step if kind == "train" else model.test_step
            self._graphs[kind] = Graphs(model, partial(self._run, own))
        counts = (tf.constant(float(number), tf.float64) for number in (batch.rows, batch.step_rows))
        self.agreement.forget_loss()
        try:
            with self._undone_without(batch.rows):
                result: tuple[Any, Any] = self._graphs[kind](structure, *counts, *flat)
                return result
        except tf.errors.OpError:
            if self.agreement.error is not None:
                raise self.agreement.error from None
            raise

    def _build_variables(self, kind: str, labels: Any) -> None:
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

    def _seeded_train_step(self, data: Any) -> Any:
        assert self._draws is not None
        self._draws.enter()
        return self.model.train_step(data)

    def _run(self, own: Callable[..., Any], structure: Any, rows: Any, step_rows: Any, *leaves: Any) -> tuple[Any, Any]:
        parts = unflatten(structure, list(leaves))
        with self.agreement.step(rows, step_rows):
            logs = own(packed(**parts))
        return logs, self.agreement.my_loss()

    @contextmanager
    def _undone_without(self, rows: int) -> Iterator[None]:
        """Leave no trace of a step without rows in statistics: its dummy row is not the data's."""
        if rows:
            yield
            return
        variables = self._passive_variables()
        ids = set(map(id, variables))
        with preserved(variables):
            yield
        for variable in self._passive_variables():
            if id(variable) not in ids:  # a metric that this step made
                variable.assign(np.zeros_like(variable.numpy()))

    def _passive_variables(self) -> list[Any]:
        """Return the variables that a forward pass changes by this rank's own rows: statistics, seeds and metrics."""
        ids = {id(v) for layer in self.agreement.shared_norms for v in (layer.moving_mean, layer.moving_variance)}
        own = [variable for variable in self.model.non_trainable_variables if id(variable) not in ids]
        return [*own, *self._metric_variables()]

    def _weights(self, batch: Batch) -> Any:
        """Return the weights of rows: those of the data, times those of their classes."""
        class_weight = self.spec.class_weight
        if class_weight is None or batch.y is None:
            return batch.weights
        labels = flatten(batch.y)[0]
        if len(labels) > 1:
            raise ArgumentError(
                "class_weight is for models with one output; got several labels. Use loss_weights.",
                code="bad-class-weight",
            )
        y = np.asarray(labels[0])
        classes = y.argmax(-1) if y.ndim > 1 and y.shape[-1] > 1 else y.reshape(len(y)).astype(np.int64)
        table = np.ones(max(int(classes.max(initial=0)), *class_weight) + 1)
        for number, weight in class_weight.items():
            table[number] = weight
        weights = table[classes]
        return weights if batch.weights is None else weights * np.asarray(batch.weights)

    def _tensors(self, tree: Any) -> Any:
        return tensors_of(tree, self._floatx)

    def _describe(self, sample: Any) -> tuple[int, OutputSpec, OutputSpec | None]:
        """Return the number of rows of a batch, and the specs of its rows and of the model's outputs.

        A batch of training, as not every model takes any number of rows; but one row alone may lose its dimension.
        """
        rows, row = int(flatten(sample)[0][0].shape[0]), OutputSpec.of(map_tree(to_numpy, sample))
        try:
            output = self.model.predict_step(packed(twice(sample) if rows == 1 else sample))
        except Exception as error:  # a model that only trains; if it has to predict, it says so itself
            logger.info("The model's outputs are not known yet: %s: %s", type(error).__name__, error)
            return rows, row, None
        return rows, row, OutputSpec.of(map_tree(to_numpy, output))

    # Metrics.

    def metrics(self) -> dict[str, list[Any]]:
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

    def metric_values(self) -> Values:
        """Return the values of the variables of each metric."""
        return {name: [variable.numpy() for variable in variables] for name, variables in self.metrics().items()}

    def set_metric_values(self, values: Values) -> None:
        """Give the metrics values that metric_values returned."""
        for name, variables in self.metrics().items():
            for variable, value in zip(variables, values[name], strict=True):
                variable.assign(value)

    def add_metric_values(self, counts: Values, idle: Sequence[str]) -> None:
        """Add the values of an interrupted epoch, of a rank whose metrics of these names had counted nothing.

        Raises:
            ArgumentError: The model was compiled with other metrics then.
        """
        metrics = self.metrics()
        for name in counts.keys() | (metrics.keys() - set(idle)):
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

    def metrics_result(self, in_use: bool = True) -> dict[str, Any]:
        """Return the metrics' results, without those of compile if the user's own train_step does not use them."""
        idle = getattr(self.model, "_compile_metrics", None)
        if idle is None or (idle.built and in_use):
            return dict(self.model.get_metrics_result())
        return {metric.name: metric.result() for metric in self.model.metrics if metric is not idle}

    def has_counted(self, own: Values, blank: Values) -> bool:
        """Return whether an epoch has counted in the metrics of compile: a validation may have built them."""
        metrics = getattr(self.model, "_compile_metrics", None)
        name = f"{getattr(metrics, 'name', '')}-0"
        return name not in own or name not in blank or not equal(own[name], blank[name])

    def merge_metrics(self, last: LastLogs, in_use: bool = True) -> dict[str, Any]:
        """Add the ranks' metrics up and return the logs that Keras would: a metric keeps sums, so its result is exact.

        If a step returned other logs than the metrics, Keras shows those of the last step.
        """
        variables = self._metric_variables()
        values = [np.array(in_use), *(variable.numpy() for variable in variables)]
        flat = np.concatenate([np.ravel(value).astype(np.float64) for value in values])
        total = self.world.all_reduce([flat], "sum")[0]
        in_use = total[0] > 0  # on some rank
        own = {name: np.asarray(value).tolist() for name, value in self.metrics_result(in_use).items()}
        parts = np.split(total, np.cumsum([np.size(value) for value in values])[:-1])
        for variable, value, part in zip(variables, values[1:], parts[1:], strict=True):
            variable.assign(part.reshape(value.shape).astype(value.dtype))
        overall = {name: np.asarray(value).tolist() for name, value in self.metrics_result(in_use).items()}
        tracks = any(metric.name == "loss" and _has_count(metric) for metric in self.model.metrics)
        if not tracks or not self.agreement.reduces:  # ours is the loss then
            overall.pop("loss", None)
        return last.over_ranks(self.world, own, overall)

    def _metric_variables(self) -> list[Any]:
        return [variable for variables in self.metrics().values() for variable in variables]

    # Running statistics.

    def local_statistics(self) -> list[Any]:
        """Return the running statistics of batch normalization that saw only its own rank's rows."""
        return [v for layer in self.agreement.local_norms for v in (layer.moving_mean, layer.moving_variance)]

    def mean_statistics(self, rows: int) -> list[tuple[Any, np.ndarray]]:
        """Return these statistics with their means over the ranks, by the rows of the epoch."""
        means = []
        for variable in self.local_statistics():
            own = variable.numpy()
            total, count = self.world.all_reduce([own * rows, np.array([rows], own.dtype)], "sum")
            means.append((variable, total / count[0]))
        return means


def equal(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Return whether two lists of arrays are equal."""
    return len(some) == len(others) and all(map(np.array_equal, some, others))


def _has_count(metric: Any) -> bool:
    count = getattr(metric, "count", None)
    return count is None or float(count) > 0


def _compares(model: Any) -> bool:
    """Return whether a model compares its outputs with labels: a step of the user's own may do without."""
    step = inspect.getmodule(type(model).train_step)
    own = step is None or not step.__name__.startswith(("keras.", "tf_keras."))
    return getattr(model, "loss", None) is not None and not own
