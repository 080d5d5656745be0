"""Keras in programs of TensorFlow 1: the verbs of the TensorFlow 1 Estimator for Keras models. Owns which way they go.

A model that was built in a graph (with tf1) is trained as a graph, in Keras' own session. A model of today, built
eagerly, is trained by KerasEstimator; the trained weights are then given to the user's own model.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from orca.core.columns import single
from orca.core.metrics import metrics_of
from orca.core.state import State
from orca.errors import ArgumentError
from orca.estimators.estimator import name_of
from orca.estimators.keras import KerasEstimator
from orca.frameworks.keras.files import load_weights, save_model, save_weights
from orca.frameworks.keras.travel import family_of, set_weights, weights_of
from orca.rows.tree import flatten, listed
from orca_classic.tf1.estimators.graph import GraphEstimator, split_metrics
from orca_classic.tf1.estimators.verbs import GraphFit, GraphVerbs
from orca_classic.tf1.graph.program import quiet, tf


def keras_estimator(
    keras_model: Any, metrics: Any = None, model_dir: str | None = None, optimizer: Any = None, **options: Any
) -> GraphKerasEstimator | EagerKerasEstimator:
    """Make the Estimator of a compiled Keras model, as it was built.

    Args:
        keras_model: The model, compiled.
        metrics: Metrics of `orca.metrics`, besides those it was compiled with.
        model_dir: The folder of checkpoints and summaries.
        optimizer: An optimizer in place of the compiled one: of `tf.train` or BigDL, for a graph.
        options: More arguments of `Estimator.from_graph` or `Estimator.from_keras`: backend, workers_per_node, seed.

    Raises:
        ArgumentError: It is not compiled, or cannot be trained in this mode.
    """
    family_of(keras_model)
    if is_graph_model(keras_model):
        return GraphKerasEstimator.of_model(keras_model, metrics, model_dir, optimizer, **options)
    if not tf.executing_eagerly() and not keras_model.built:
        raise ArgumentError(
            "the model has no input shape yet, so it is not built. Give its first layer input_shape=, or call "
            "model.build((None, ...))."
        )
    if not tf.executing_eagerly():
        raise ArgumentError(
            "the model was built by Keras 3, which has no graph mode, and tf1 has turned graph mode on. Import tf1 "
            "before tensorflow, so that tensorflow.keras is tf_keras; or leave tf1 out."
        )
    if metrics is not None or optimizer is not None:
        raise ArgumentError(
            "metrics and optimizer of from_keras are for models that are built in a graph. Give them to model.compile."
        )
    return EagerKerasEstimator.of_model(keras_model, model_dir, **options)


def is_graph_model(model: Any) -> bool:
    """Say whether a Keras model was built in a graph, by its symbolic inputs."""
    tensors = listed(getattr(model, "inputs", None))
    return bool(tensors) and hasattr(tensors[0], "graph")


class KerasFiles:
    """The verbs of both Estimators that read and write files of a Keras model."""

    model: Any

    def _model_name(self) -> Any:
        return name_of(self.model)

    def get_model(self) -> Any:
        """Return the model with its trained weights."""
        return self.model

    def save(self, path: str | None = None, overwrite: bool = True, **other_names: str) -> str:
        """Save the model as Keras does; returns the path, any of fsspec."""
        place: str = self._path("save", path, other_names)  # type: ignore[attr-defined]
        save_model(self.model, place, overwrite=overwrite)
        return place

    def save_keras_model(self, path: str, overwrite: bool = True) -> str:
        """Save the model as Keras does; returns the path, any of fsspec."""
        return self.save(path, overwrite)

    def save_keras_weights(self, filepath: str, overwrite: bool = True, save_format: str | None = None) -> str:
        """Save the weights as Keras does; returns the path."""
        save_weights(self.model, filepath, overwrite=overwrite, save_format=save_format)
        return filepath

    def load_keras_weights(self, filepath: str, by_name: bool = False) -> Any:
        """Load weights that Keras wrote into the model."""
        load_weights(self.model, filepath, by_name=by_name)
        self._weights_loaded()
        return self

    def _weights_loaded(self) -> None:
        """Hear that the model has other weights now."""


class GraphKerasEstimator(KerasFiles, GraphEstimator):  # type: ignore[misc]
    """A Keras model that was built in a graph; its variables are in Keras' own session."""

    @classmethod
    def of_model(
        cls, model: Any, metrics: Any = None, model_dir: str | None = None, optimizer: Any = None, **options: Any
    ) -> GraphKerasEstimator:
        """Make an Estimator of a compiled model; see `keras_estimator`.

        Raises:
            ArgumentError: It is not compiled.
        """
        backend = importlib.import_module(f"{family_of(model)}.src.backend")  # its public part has no learning phase
        loss = getattr(model, "total_loss", None)
        if loss is None and metrics is not None:
            raise ArgumentError("the model is not compiled, so there is no loss. Call model.compile(...) first.")
        graph = listed(model.inputs)[0].graph
        with graph.as_default():
            phase = backend.symbolic_learning_phase()
            session = backend.get_session()
            model_metrics = {} if loss is None else _compiled_metrics(model)
            tensors, others = split_metrics(metrics)
            more_metrics = tensors | {metric.name: metric for metric in metrics_of(others)}
            estimator = cls.of(
                inputs=single(listed(model.inputs)),
                outputs=single(listed(model.outputs)),
                labels=None if loss is None else single(listed(model._feed_targets)),
                loss=loss,
                optimizer=None if loss is None else optimizer or model.optimizer,
                metrics=model_metrics | more_metrics or None,
                updates=[*model.get_updates_for(None), *model.get_updates_for(model.inputs)],
                sess=session,
                model_dir=model_dir,
                feeds={phase: (True, False)} if hasattr(phase, "graph") else None,
                **options,
            )
        assert isinstance(estimator, cls)
        estimator.model = model
        return estimator

    def load(self, path: str | None = None, **other_names: str) -> GraphKerasEstimator:
        """Load the weights of a model that `save` wrote."""
        place = self._path("load", path, other_names)
        with self.sess.graph.as_default():
            load_weights(self.model, place)
        return self


class EagerKerasEstimator(KerasFiles, GraphVerbs, KerasEstimator):  # type: ignore[misc]
    """A Keras model that was built eagerly, with the verbs of TensorFlow 1's Estimator."""

    @classmethod
    def of_model(cls, model: Any, model_dir: str | None = None, **options: Any) -> EagerKerasEstimator:
        """Make an Estimator of a compiled model; see `keras_estimator`."""
        estimator = cls.from_keras(keras_model=model, model_dir=model_dir, **options)
        assert isinstance(estimator, cls)
        estimator.model = model
        return estimator

    def _fit(self, request: GraphFit, **plan: Any) -> None:
        refuse_feeding(request.feed_dict)
        self._take_weights()
        features, labels = request.cols
        KerasEstimator.fit(
            self, request.data, batch_size=request.batch_size, validation_data=request.valid, feature_cols=features,
            label_cols=labels, **plan,
        )  # fmt: skip
        assert self._state is not None
        if not self.model.built:  # a Sequential without an input shape
            self.model.build(KerasEstimator.get_model(self).input_shape)
        set_weights(self.model, self._state.payload["models"][0])

    def _score(
        self, data: Any, cols: tuple[Any, Any], batch_size: int, feed_dict: Any, num_steps: int | None
    ) -> dict[str, float]:
        refuse_feeding(feed_dict)
        self._take_weights()
        names = dict(zip(("feature_cols", "label_cols"), cols, strict=True))
        scores = KerasEstimator.evaluate(self, data, batch_size, num_steps, **names)
        return {name.removeprefix("validation_"): value for name, value in scores.items() if name != "num_samples"}

    def _answer(self, data: Any, feature_cols: Any, batch_size: int | None, output_cols: Any, feed_dict: Any) -> Any:
        refuse_feeding(feed_dict)
        self._take_weights()
        return KerasEstimator.predict(self, data, batch_size, feature_cols=feature_cols, output_cols=output_cols)

    def load(self, path: str | None = None, **other_names: str) -> EagerKerasEstimator:  # type: ignore[override]
        """Load a model that Keras or `save` wrote, in place of this one's."""
        KerasEstimator.load(self, self._path("load", path, other_names))
        self.model = KerasEstimator.get_model(self)
        return self

    def get_model(self, *args: Any, **options: Any) -> Any:
        """Return the user's own model, with its trained weights."""
        return self.model

    def _take_weights(self) -> None:
        """Begin with the weights that the user's model has now: it may have loaded others."""
        now = weights_of(self.model)
        if self._state is None:
            return
        models = self._state.payload.get("models") or [None]
        if models[0] is None or not all(map(np.array_equal, models[0], now)):
            self._state.payload["models"] = [now]

    def _weights_loaded(self) -> None:
        if self._state is None:
            self._state = self.learner.state_of(self.model, None)

    def _take(self, state: State, name: str) -> None:
        super()._take(state, name)
        set_weights(self.model, state.payload["models"][0])


def _compiled_metrics(model: Any) -> dict[str, Any]:
    """Return the metrics that a model was compiled with, as means in its graph, by the names they were given."""
    metrics: dict[str, Any] = {}
    for place, own in enumerate(model._per_output_metrics):
        words = _words(model, place)
        for at, (name, metric) in enumerate(own.items()):
            if len(words) == len(own) and isinstance(words[at], str):  # Keras has other names in graph mode
                name = f"{model.output_names[place]}_{words[at]}" if len(model.outputs) > 1 else words[at]
            if not hasattr(metric, "_fn"):
                raise ArgumentError(
                    f"the metric {name!r} counts in variables of its own, which graph mode does not add up over "
                    "workers. Compile with the function of it, or pass metrics= of orca.metrics to from_keras."
                )
            output = model.outputs[place]
            values = tf.cast(metric._fn(model._feed_targets[place], output, **metric._fn_kwargs), tf.float32)
            mask = output._keras_mask if hasattr(output, "_keras_mask") else None
            if mask is None:
                metrics[name] = tf.reduce_mean(values)
            else:
                weights = tf.cast(mask, tf.float32)
                metrics[name] = tf.reduce_sum(values * weights) / tf.reduce_sum(weights)
    return metrics


def _words(model: Any, place: int) -> list[Any]:
    """Return the metrics of an output as they were given to compile."""
    given = model._compile_metrics
    if isinstance(given, dict):
        return listed(given.get(model.output_names[place]))
    if any(isinstance(each, list | tuple) for each in listed(given)):
        return listed(given[place])
    return listed(given)


def refuse_feeding(feed_dict: Any) -> None:
    """Refuse values for placeholders, which a model that was built eagerly has none of.

    Raises:
        ArgumentError: Some are given.
    """
    if feed_dict is not None:
        raise ArgumentError(
            "feed_dict has values for placeholders of a graph, and the model was built eagerly. Leave it out."
        )


def build_for(model: Any, data: Any) -> None:
    """Give a model of graph mode that has no input shape yet that of a TFDataset's features."""
    if tf.executing_eagerly() or not hasattr(model, "built") or model.built or listed(model.inputs):
        return
    metas = flatten(data.tensor_structure[0])[0]
    rows = [np.zeros([1, *(m.shape or ())], tf.as_dtype(m.dtype).as_numpy_dtype) for m in metas]
    with quiet():
        model._set_inputs(single(rows))  # as Keras does with the first batch that it sees
        model.compile(
            model.optimizer, model.loss, model._compile_metrics, model.loss_weights,
            weighted_metrics=model._compile_weighted_metrics,
        )  # fmt: skip
