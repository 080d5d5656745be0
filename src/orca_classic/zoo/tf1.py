"""tf1: the Estimator of TensorFlow 1 as older programs know it. Owns its two constructors, and folders of runs."""

from __future__ import annotations

import time
from typing import Any

import orca.estimators


class Estimator(orca.estimators.Estimator):
    """The Estimator of `orca.learn.tf`: of a graph, or of a Keras model, built in a graph or eagerly."""

    @staticmethod
    def from_keras(  # type: ignore[override]
        keras_model: Any,
        metrics: Any = None,
        model_dir: str | None = None,
        optimizer: Any = None,
        backend: str | None = None,
        **options: Any,
    ) -> Any:
        """Make an Estimator of a compiled Keras model.

        Args:
            keras_model: The model.
            metrics: Metrics of `orca.metrics`, besides those it was compiled with.
            model_dir: The folder of checkpoints and summaries.
            optimizer: An optimizer in place of the compiled one, for a model in a graph.
            backend: "bigdl" or "spark", "ray", "local"; unless given, the cluster that is up.
            options: workers_per_node, seed and others of `Estimator.from_graph`.
        """
        from orca_classic.tf1.estimators.keras import keras_estimator

        return keras_estimator(keras_model, metrics, model_dir, optimizer, backend=backend, **options)

    @staticmethod
    def load_keras_model(path: str, **options: Any) -> Any:
        """Make an Estimator of a model that `save_keras_model`, or Keras, wrote.

        Args:
            path: Any fsspec path.
            options: custom_objects and safe_mode, as those of `KerasEstimator.load`.
        """
        from orca.frameworks.keras.files import load_model
        from orca_classic.tf1.estimators.keras import keras_estimator

        return keras_estimator(load_model(path, **options))


def save_model_dir(model_dir: str) -> str:
    """Return the folder of a run that begins now, under model_dir."""
    return f"{model_dir.rstrip('/')}/{time.strftime('%Y-%m-%d_%H-%M-%S')}"
