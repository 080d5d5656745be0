"""TFPredictor: answers of a graph for the rows of a TFDataset. Owns how answers become an RDD."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from orca.rows.tree import flatten, unflatten
from orca.tfpark.dataset import TFDataset, dataset_behind


class TFPredictor:
    """The answers of a graph for the rows of a TFDataset. Make one with a `from_...` method.

    Args:
        sess: The session with the variables.
        outputs: The tensors to answer with: one, or a list.
        inputs: Where features are fed; the dataset's own placeholders unless given.
        dataset: The data; found by way of the placeholders unless given.
        options: More arguments of `Estimator.from_graph`: backend, workers_per_node.
    """

    def __init__(
        self, sess: Any, outputs: Any, inputs: Any = None, dataset: TFDataset | None = None, **options: Any
    ) -> None:
        from orca.estimators.tfgraph import GraphEstimator

        heads = outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs
        self.dataset = dataset or dataset_behind(flatten(heads)[0])
        with flatten(heads)[0][0].graph.as_default():
            fed = self.dataset.feature_tensors if inputs is None else inputs
            self.estimator: Any = GraphEstimator.of(inputs=fed, outputs=heads, sess=sess, **options)

    @classmethod
    def from_outputs(cls, sess: Any, outputs: Any, **options: Any) -> TFPredictor:
        """Make a predictor of tensors that are computed from a TFDataset's."""
        return cls(sess, outputs, **options)

    @classmethod
    def from_keras(cls, keras_model: Any, dataset: TFDataset, **options: Any) -> TFPredictor:
        """Make a predictor of a Keras model."""
        from orca.estimators.tfkeras import keras_estimator

        predictor = cls.__new__(cls)
        predictor.dataset, predictor.estimator = dataset, keras_estimator(keras_model, **options)
        return predictor

    def predict(self) -> Any:
        """Return the answers: an RDD of arrays where a Spark is up (of lists, for several outputs), else arrays."""
        return as_records(self.estimator.predict(self.dataset, batch_size=self.dataset.batch_per_thread))


def as_records(answers: Any) -> Any:
    """Return answers as an RDD with a record a row where a Spark is up; else arrays as they are."""
    if hasattr(answers, "rdd") and hasattr(answers, "columns"):  # a DataFrame
        return answers.select("prediction").rdd.map(_cell)
    if hasattr(answers, "rdd"):
        return answers.rdd.flatMap(_shard_rows)
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.SparkContext._active_spark_context
    return answers if context is None else context.parallelize(list(_rows(answers)))


def _cell(row: Any) -> np.ndarray:
    value = row[0]
    return np.asarray(value.toArray() if hasattr(value, "toArray") else value)


def _shard_rows(shard: dict[str, Any]) -> list[Any]:
    return list(_rows(shard["prediction"]))


def _rows(answers: Any) -> Iterator[Any]:
    heads, structure = flatten(answers)
    for row in zip(*heads, strict=True):
        yield unflatten(structure, list(row))
