"""TFEstimator: a model function, trained on the data of an input function. Owns its graphs and its checkpoints.

Each call builds the graph of its mode again, and gives its variables the values of the last training: from model_dir,
else from memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, SimpleNamespace
from typing import Any

from orca.core.metrics import AUC, Accuracy, Metric, metrics_of
from orca.errors import ArgumentError
from orca_classic.data.tf.loading import tensorflow
from orca_classic.tf1.tfpark.dataset import TFDataset, batched_by
from orca_classic.tf1.tfpark.predictor import as_records
from orca_classic.tf1.tfpark.summaries import SummaryVerbs

TRAIN, EVAL, PREDICT = "train", "eval", "infer"
_GRAPH_SEED = 87654321  # TensorFlow's own for graphs without a seed, where an operation has one
# The user's word for a metric -> BigDL's name of it, and our metric.
_ACCURACY = Accuracy(threshold=0.5)
_METHODS: dict[str, tuple[str, str | Metric]] = {
    "acc": ("Top1Accuracy", _ACCURACY),
    "accuracy": ("Top1Accuracy", _ACCURACY),
    "top1accuracy": ("Top1Accuracy", _ACCURACY),
    "top5acc": ("Top5Accuracy", "top5accuracy"),
    "top5accuracy": ("Top5Accuracy", "top5accuracy"),
    "mae": ("MAE", "mae"),
    "auc": ("AUC", AUC(200)),
}


class TFEstimatorSpec(SimpleNamespace):
    """The result of a model function.

    Args:
        mode: tf.estimator.ModeKeys.TRAIN, EVAL or PREDICT.
        predictions: A tensor, or a dict of tensors.
        loss: A scalar tensor.
    """

    def __init__(self, mode: str, predictions: Any = None, loss: Any = None) -> None:
        super().__init__(mode=mode, predictions=predictions, loss=loss, train_op=None, eval_metric_ops=None)


class GraphMemory:
    """An object that builds a graph with each call, and keeps the values of its variables between them."""

    model_dir: str | None
    options: dict[str, Any]
    _values: Mapping[str, Any] = MappingProxyType({})

    def _seed(self, tf: Any) -> None:
        """Set the seed of the new graph; with seed 0, operations with seeds of their own draw as without any."""
        tf.set_random_seed(_GRAPH_SEED + self.options.get("seed", 0))

    def _held(self, path: str | None = None) -> Mapping[str, Any]:
        """Return the values of a checkpoint: of the newest in model_dir unless given, else of the last training."""
        from orca_classic.tf1.graph.checkpoints import latest, read_checkpoint

        path = path or (latest(self.model_dir) if self.model_dir else None)
        return self._values if path is None else read_checkpoint(path)

    def _keep(self, session: Any) -> None:
        """Remember the values of a session's variables, and write them to model_dir."""
        from orca_classic.tf1.graph.checkpoints import save_checkpoint

        tf = tensorflow().compat.v1
        variables = tf.global_variables()
        self._values = {v.op.name: value for v, value in zip(variables, session.run(variables), strict=True)}
        if self.model_dir is not None:
            number = int(session.run(tf.train.get_global_step()))
            save_checkpoint(session, f"{self.model_dir.rstrip('/')}/model-{number}")


class TFEstimator(GraphMemory, SummaryVerbs):
    """A model function for distributed training, evaluation and prediction.

    Args:
        model_fn: A function (features, labels, mode, params, config), of which the last two may be left out, that
            returns a TFEstimatorSpec or an EstimatorSpec; or an object with such a `model_fn`.
        optimizer: The optimizer of the spec's loss, unless the spec has a train_op of a ZooOptimizer.
        model_dir: The folder that checkpoints are written to and read from.
        config: The argument `config` of model_fn.
        params: The argument `params` of model_fn.
        warm_start_from: A checkpoint to start from, if model_dir has none.
        options: More arguments of `Estimator.from_graph`: backend, workers_per_node, seed. The seed is that of the
            first weights, too.
    """

    def __init__(
        self,
        model_fn: Any,
        optimizer: Any = None,
        model_dir: str | None = None,
        config: Any = None,
        params: Any = None,
        warm_start_from: str | None = None,
        **options: Any,
    ) -> None:
        if not inspect.isfunction(model_fn) and not inspect.ismethod(model_fn) and hasattr(model_fn, "model_fn"):
            estimator = model_fn
            model_fn = getattr(estimator, "_model_fn", estimator.model_fn)
            model_dir, params = model_dir or estimator.model_dir, params or getattr(estimator, "params", None)
        if not callable(model_fn):
            raise ArgumentError(f"model_fn must be a function (features, labels, mode); got {type(model_fn).__name__}.")
        self.model_fn, self.optimizer, self.model_dir = model_fn, optimizer, model_dir
        self.config, self.params, self.warm_start_from, self.options = config, params, warm_start_from, options
        self._clip: dict[str, Any] = {}
        self._progress = (0, 0)  # epochs and steps

    @classmethod
    def from_model_fn(
        cls,
        model_fn: Callable[..., Any],
        model_dir: str | None = None,
        config: Any = None,
        params: Any = None,
        warm_start_from: str | None = None,
        **options: Any,
    ) -> TFEstimator:
        """Make an estimator of a model function whose spec has a train_op of a ZooOptimizer."""
        return cls(model_fn, None, model_dir, config, params, warm_start_from, **options)

    def set_optimizer(self, optimizer: Any) -> None:
        """Train with this optimizer from now on."""
        self.optimizer = optimizer

    def clear_gradient_clipping(self) -> None:
        """Train without clipping from now on."""
        self._clip = {}

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Keep every value of a gradient between two numbers from now on."""
        self._clip["clip_value"] = (min, max)

    def set_gradient_clipping_by_l2_norm(self, clip_norm: float) -> None:
        """Keep the norm of all gradients together from exceeding a number from now on."""
        self._clip["clip_norm"] = clip_norm

    def train(self, input_fn: Callable[..., Any], steps: int | None = None, session_config: Any = None) -> TFEstimator:
        """Train on the data of an input function.

        Args:
            input_fn: A function (mode), or (), that returns a TFDataset or a batched tf.data.Dataset.
            steps: How many steps; an epoch unless given.
            session_config: A tf.ConfigProto for the workers' sessions.

        Returns:
            This estimator.

        Raises:
            ArgumentError: There is no loss, or nothing to lower it with.
        """
        from orca_classic.tf1.graph.optimizers import step_of

        with self._graph(input_fn, TRAIN) as (tf, dataset, spec):
            if spec.loss is None:
                raise ArgumentError(
                    "model_fn must return a loss in the mode TRAIN. Return TFEstimatorSpec(..., loss=)."
                )
            optimizer = self.optimizer if spec.train_op is None else step_of(spec.train_op)
            if optimizer is None:
                raise ArgumentError(
                    "there is nothing to lower the loss with. Pass optimizer= to TFEstimator, or return a spec with a "
                    "train_op=ZooOptimizer(...).minimize(loss)."
                )
            updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
            estimator = self._estimator(dataset, loss=spec.loss, optimizer=optimizer, updates=updates, **self._clip)
            self._restore(estimator.sess)
            epochs, start = self._progress
            estimator.begin_after(epochs, start)
            ends = {"epochs": 1} if steps is None else {"max_steps": steps}
            self._show(estimator).fit(
                dataset.filled(),
                batch_size=dataset.batch_size or dataset.batch_per_thread or 32,
                shuffle=dataset.shuffle,
                session_config=session_config,
                **ends,
            )
            self._progress = estimator.trained
            self._keep(estimator.sess)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        eval_methods: Any = None,
        steps: int | None = None,
        checkpoint_path: str | None = None,
    ) -> dict[str, float]:
        """Evaluate metrics, exactly, over all rows.

        Args:
            input_fn: As in train.
            eval_methods: Names ("acc", "top5acc", "mae", "auc", "loss") or metrics; the spec's own unless given.
            steps: Stop after this many steps; all rows unless given.
            checkpoint_path: The checkpoint to evaluate; the last training unless given.

        Returns:
            The value of each metric, under BigDL's name of it ("Top1Accuracy"); "loss", where the model has one.
        """
        with self._graph(input_fn, EVAL) as (_, dataset, spec):
            methods = [] if eval_methods is None else eval_methods if isinstance(eval_methods, list) else [eval_methods]
            metrics: dict[str, Any] = dict(spec.eval_metric_ops or {})
            for each in methods:
                if isinstance(each, str) and each.lower() != "loss":
                    name, method = _METHODS.get(each.lower(), (each, each))
                    metrics[name] = metrics_of([method])[0]
                elif not isinstance(each, str):
                    (metric,) = metrics_of([each])
                    metrics[metric.name] = metric
            head = spec.predictions
            head = next(iter(head.values())) if isinstance(head, Mapping) else head
            estimator = self._estimator(dataset, loss=spec.loss, outputs=head, metrics=metrics or None)
            self._restore(estimator.sess, checkpoint_path, trained=True)
            size = dataset.batch_per_thread or dataset.batch_size or 32
            return dict(estimator.evaluate(dataset.filled(), batch_size=size, num_steps=steps))

    def predict(
        self, input_fn: Callable[..., Any], predict_keys: Any = None, checkpoint_path: str | None = None
    ) -> Any:
        """Predict every row: as an RDD where a Spark is up, else as arrays; a dict of predictions keeps its keys.

        Args:
            input_fn: As in train; labels are not needed.
            predict_keys: The keys to predict, of predictions that are a dict; all unless given.
            checkpoint_path: The checkpoint to predict with; the last training unless given.
        """
        with self._graph(input_fn, PREDICT) as (_, dataset, spec):
            heads = spec.predictions
            if heads is None:
                raise ArgumentError("model_fn must return predictions in the mode PREDICT.")
            if predict_keys is not None:
                keys = [predict_keys] if isinstance(predict_keys, str) else list(predict_keys)
                missing = [key for key in keys if not isinstance(heads, Mapping) or key not in heads]
                if missing:
                    names = list(heads) if isinstance(heads, Mapping) else "one tensor"
                    raise ArgumentError(f"predict_keys asks for {missing[0]!r}; the model's predictions are {names}.")
                heads = {key: heads[key] for key in keys}
            estimator = self._estimator(dataset, labelled=False, outputs=heads)
            self._restore(estimator.sess, checkpoint_path, trained=True)
            answers = estimator.predict(dataset, batch_size=dataset.batch_per_thread or dataset.batch_size)
            return as_records(answers, heads)

    @contextmanager
    def _graph(self, input_fn: Callable[..., Any], mode: str) -> Iterator[tuple[Any, TFDataset, Any]]:
        """Build the graph of a mode; yield TensorFlow, the data and the spec."""
        tf = tensorflow().compat.v1
        with tf.Graph().as_default():
            self._seed(tf)
            tf.train.get_or_create_global_step()
            dataset = dataset_of(call_with(input_fn, mode=mode), mode)
            labels = dataset.label_tensors if mode != PREDICT else None
            spec = call_with(
                self.model_fn,
                dataset.feature_tensors,
                labels,
                mode=mode,
                params=self.params,
                config=self.config,
            )
            if not hasattr(spec, "predictions") or not hasattr(spec, "loss"):
                raise ArgumentError(f"model_fn must return a TFEstimatorSpec; got {type(spec).__name__}.")
            for name in ("train_op", "eval_metric_ops"):
                if not hasattr(spec, name):
                    setattr(spec, name, None)
            yield tf, dataset, spec

    def _estimator(self, dataset: TFDataset, labelled: bool = True, **ends: Any) -> Any:
        from orca_classic.tf1.estimators.graph import GraphEstimator

        labels = dataset.label_tensors if labelled else None
        return GraphEstimator.of(inputs=dataset.feature_tensors, labels=labels, **ends, **self.options)

    def _restore(self, session: Any, checkpoint_path: str | None = None, trained: bool = False) -> None:
        """Give a new session the values of a checkpoint, or of the last training; refuse neither if `trained`."""
        from orca_classic.tf1.estimators.graph import restore_values

        values = self._held(checkpoint_path) or (self._held(self.warm_start_from) if self.warm_start_from else {})
        if trained and not values and tensorflow().compat.v1.trainable_variables():
            raise ArgumentError(
                "the model has not learned anything yet. Call train first, or pass a model_dir or checkpoint_path with "
                "a checkpoint."
            )
        restore_values(session, values)


def dataset_of(data: Any, mode: str) -> TFDataset:
    """Return the data of an input function as a TFDataset; a tf.data.Dataset gives batches, as in `tf.estimator`."""
    if isinstance(data, TFDataset):
        return data
    if not hasattr(data, "element_spec"):
        raise ArgumentError(
            f"input_fn must return a TFDataset or a tf.data.Dataset; got {type(data).__name__}. Wrap arrays with "
            "TFDataset.from_ndarrays((x, y), batch_size=32)."
        )
    from orca_classic.tf1.packed_rows import mode_of

    size = batched_by(data) or 32
    sizes = (size, None) if mode == TRAIN else (None, size)
    with mode_of(data):
        rows = data.unbatch()
    return TFDataset.from_tf_data_dataset(rows, *sizes)


def call_with(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function with those of the named arguments that it takes."""
    parameters = inspect.signature(function).parameters
    free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return function(*args, **{name: value for name, value in options.items() if free or name in parameters})
