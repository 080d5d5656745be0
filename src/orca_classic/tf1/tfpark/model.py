"""KerasModel: a compiled Keras model that runs here or distributed. Owns the choice between the two."""

from __future__ import annotations

from typing import Any

import numpy as np

from orca.errors import ArgumentError
from orca_classic.tf1.tfpark.dataset import TFDataset
from orca_classic.tf1.tfpark.predictor import as_records
from orca_classic.tf1.tfpark.summaries import SummaryVerbs

_LOCAL = 32
# Keras' name of a metric -> the name that it had in distributed evaluations: Keras' short one, and BigDL's.
_OLDER_NAMES = {
    "acc": "acc Top1Accuracy", "accuracy": "acc Top1Accuracy", "mae": "mae MAE", "mean_absolute_error": "mae MAE",
    "top_k_categorical_accuracy": "top5acc Top5Accuracy", "sparse_top_k_categorical_accuracy": "top5acc Top5Accuracy",
}  # fmt: skip


class Scores(dict[str, float]):
    """The results of a distributed evaluation, under the names that they had; Keras' names find them, too."""

    def __missing__(self, name: str) -> float:
        if name in _OLDER_NAMES and _OLDER_NAMES[name] in self:
            return self[_OLDER_NAMES[name]]
        raise KeyError(name)


class KerasModel(SummaryVerbs):
    """A compiled Keras model: built in a graph (with tf1), or eagerly by the Keras of today.

    Args:
        model: The model.
        model_dir: The folder of checkpoints.
        optimizer: An optimizer in place of the compiled one, for a model in a graph.
        options: More arguments of the Estimator: backend, workers_per_node, seed.
    """

    def __init__(self, model: Any, model_dir: str | None = None, optimizer: Any = None, **options: Any) -> None:
        self.model, self.model_dir, self.optimizer, self.options = model, model_dir, optimizer, options
        self._estimator: Any = None
        self._metrics: dict[str, Any] = {}

    @property
    def estimator(self) -> Any:
        """Return the Estimator that trains the model."""
        if self._estimator is None:
            from orca_classic.tf1.estimators.keras import keras_estimator

            self._estimator = keras_estimator(
                self.model, self._metrics or None, self.model_dir, self.optimizer, **self.options
            )
        return self._estimator

    @property
    def metrics_names(self) -> list[str]:
        """Return the names of an evaluation's numbers, as Keras lists them; before any training, "loss" alone."""
        names = []
        for name in self.model.metrics_names:
            whole = name == "compile_metrics"  # Keras 3 lists all of compile as one
            names += [metric.name for metric in self.model._compile_metrics.metrics] if whole else [name]
        return names

    def add_metric(self, tensor: Any, name: str) -> None:
        """Add a metric to evaluations: a scalar tensor of the model's graph, or a metric of `orca.metrics`."""
        self._metrics[name] = tensor
        self._estimator = None

    def get_weights(self) -> list[np.ndarray]:
        """Return the weights."""
        return list(self.model.get_weights())

    def set_weights(self, weights: list[np.ndarray]) -> None:
        """Set the weights."""
        self.model.set_weights(weights)

    def save_weights(self, filepath: str, overwrite: bool = True, save_format: str | None = None) -> None:
        """Save the weights as Keras does, at any path of fsspec."""
        self.estimator.save_keras_weights(filepath, overwrite, save_format)

    def load_weights(self, filepath: str, by_name: bool = False) -> None:
        """Load weights that Keras wrote."""
        self.estimator.load_keras_weights(filepath, by_name)

    def save_model(self, path: str, overwrite: bool = True) -> None:
        """Save the model as Keras does, at any path of fsspec."""
        self.estimator.save_keras_model(path, overwrite)

    @staticmethod
    def load_model(path: str, **options: Any) -> KerasModel:
        """Load a model that Keras wrote.

        Args:
            path: Any fsspec path.
            options: custom_objects and safe_mode, as those of `KerasEstimator.load`.
        """
        from orca.frameworks.keras.files import load_model

        return KerasModel(load_model(path, **options))

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        validation_split: float = 0.0,
        validation_data: Any = None,
        distributed: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Train: on a TFDataset distributed; on arrays here, by Keras itself, unless `distributed`.

        Args:
            x: A TFDataset with a batch_size, or arrays.
            y: Arrays of labels.
            batch_size: Rows of one step; 32 unless given.
            epochs: The number of epochs.
            validation_split: The share of the rows that Keras keeps for validations; 0 when distributed.
            validation_data: Arrays (x, y) for validations; those of a TFDataset come with it.
            distributed: Whether to train on arrays distributed.
            kwargs: More arguments of Keras' fit, or of the Estimator's, where `verbose` is ignored.

        Raises:
            ArgumentError: A TFDataset has no batch_size.
        """
        if isinstance(x, TFDataset):
            if x.batch_size is None:
                raise ArgumentError("The batch_size of TFDataset must be specified when used in KerasModel fit.")
            valid = x.validation_for() if validation_data is None else validation_data
            size: int | None = x.batch_size
            kwargs.setdefault("shuffle", x.shuffle)
            self._build(x)
        elif not distributed:
            return self.model.fit(
                x, y, batch_size=batch_size, epochs=epochs, validation_split=validation_split,
                validation_data=validation_data, **kwargs,
            )  # fmt: skip
        else:
            x, valid, size = (x, y), validation_data, batch_size or _LOCAL
        kwargs.pop("verbose", None)
        if validation_split:
            raise ArgumentError(
                "validation_split is for training here. Pass validation_data, or give the TFDataset validation data."
            )
        return self._show(self.estimator).fit(x, epochs=epochs, batch_size=size, validation_data=valid, **kwargs)

    def evaluate(
        self, x: Any = None, y: Any = None, batch_per_thread: int | None = None, distributed: bool = False
    ) -> dict[str, float]:
        """Evaluate the loss and the metrics, on a TFDataset or on arrays; returns them by name."""
        if isinstance(x, TFDataset):
            return dict(self.estimator.evaluate(x, batch_size=_batch_of(x, "evaluate")))
        if distributed:
            scores = self.estimator.evaluate((x, y), batch_size=batch_per_thread or _LOCAL)
            return Scores({_OLDER_NAMES.get(name, name): value for name, value in scores.items()})
        values = self.model.evaluate(x, y, batch_size=batch_per_thread, verbose=0)
        return dict(zip(self.metrics_names, values if isinstance(values, list) else [values], strict=True))

    def predict(self, x: Any, batch_per_thread: int | None = None, distributed: bool = False) -> Any:
        """Predict the rows of a TFDataset, as an RDD where a Spark is up; arrays, as arrays."""
        if isinstance(x, TFDataset):
            return as_records(self.estimator.predict(x, batch_size=_batch_of(x, "predict")), self.model.outputs)
        if distributed:
            return self.estimator.predict(x, batch_size=batch_per_thread)
        return self.model.predict(x, batch_size=batch_per_thread, verbose=0)

    def _build(self, data: TFDataset) -> None:
        """Give a model without an input shape that of the data, where it is built in a graph."""
        from orca_classic.tf1.estimators.keras import build_for

        build_for(self.model, data)

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, reset_metrics: bool = True
    ) -> Any:
        """Take one step here, by Keras itself."""
        return self.model.train_on_batch(x, y, sample_weight=sample_weight, class_weight=class_weight)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, reset_metrics: bool = True) -> Any:
        """Evaluate one batch here, by Keras itself."""
        return self.model.test_on_batch(x, y, sample_weight=sample_weight)

    def predict_on_batch(self, x: Any) -> Any:
        """Predict one batch here, by Keras itself."""
        return self.model.predict_on_batch(x)


def _batch_of(data: TFDataset, verb: str) -> int:
    """Return the batch size of a dataset.

    Raises:
        ArgumentError: It has none.
    """
    size = data.batch_per_thread or data.batch_size
    if size is None:
        raise ArgumentError(
            f"The batch_per_thread of TFDataset must be specified when used in KerasModel {verb}. Pass it to the "
            "from_ method."
        )
    return size
