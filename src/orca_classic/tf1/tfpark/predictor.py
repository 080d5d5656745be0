"""TFPredictor: answers of a graph for the rows of a TFDataset. Owns how answers become an RDD."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from orca.rows.tree import flatten, unflatten
from orca_classic.tf1.tfpark.dataset import TFDataset, dataset_behind, only


class TFPredictor:
    """The answers of a graph for the rows of a TFDataset. Make one with a `from_...` method.

    Args:
        sess: The session with the variables.
        outputs: The tensors to answer with: one, or a list.
        inputs: The tensors that features are fed to; the dataset's own placeholders unless given.
        dataset: The data; found by way of the placeholders unless given.
        options: More arguments of `Estimator.from_graph`: backend, workers_per_node.
    """

    def __init__(
        self, sess: Any, outputs: Any, inputs: Any = None, dataset: TFDataset | None = None, **options: Any
    ) -> None:
        from orca_classic.tf1.estimators.graph import GraphEstimator

        heads = only(outputs)
        self.dataset, self.outputs = dataset or dataset_behind(flatten(heads)[0]), heads
        with flatten(heads)[0][0].graph.as_default():
            ports = self.dataset.feature_tensors if inputs is None else inputs
            self.estimator: Any = GraphEstimator.of(inputs=ports, outputs=heads, sess=sess, **options)

    @classmethod
    def from_outputs(cls, sess: Any, outputs: Any, **options: Any) -> TFPredictor:
        """Make a predictor of tensors that are computed from a TFDataset's."""
        return cls(sess, outputs, **options)

    @classmethod
    def from_keras(cls, keras_model: Any, dataset: TFDataset, **options: Any) -> TFPredictor:
        """Make a predictor of a Keras model."""
        from orca_classic.tf1.estimators.keras import keras_estimator

        predictor = cls.__new__(cls)
        predictor.dataset, predictor.estimator = dataset, keras_estimator(keras_model, **options)
        predictor.outputs = keras_model.outputs
        return predictor

    def predict(self) -> Any:
        """Return the answers: an RDD of arrays where a Spark is up (of lists, for several outputs), else arrays."""
        answers = self.estimator.predict(self.dataset, batch_size=self.dataset.batch_per_thread)
        return as_records(answers, self.outputs)


def as_records(answers: Any, outputs: Any = None) -> Any:
    """Return predictions as an RDD of one record per row where a Spark is up; else arrays unchanged.

    Args:
        answers: Arrays, XShards, or a DataFrame with a column an output.
        outputs: The model's outputs, where a DataFrame may have several: a record is a tree like them.
    """
    if hasattr(answers, "rdd") and hasattr(answers, "columns"):  # a DataFrame
        columns = [name for name in answers.columns if re.fullmatch(r"prediction(_\d+)?", name)]
        structure = flatten(outputs)[1] if len(columns) > 1 else None
        return answers.select(*columns).rdd.map(partial(_cells, structure))
    if hasattr(answers, "rdd"):
        return answers.rdd.flatMap(lambda shard: _rows(shard["prediction"]))
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.SparkContext._active_spark_context
    return answers if context is None else context.parallelize(list(_rows(answers)))


def _cells(structure: Any, row: Any) -> Any:
    cells = [np.asarray(cell.toArray() if hasattr(cell, "toArray") else cell) for cell in row]
    return unflatten(structure, cells)


def _rows(answers: Any) -> Iterator[Any]:
    heads, structure = flatten(answers)
    for row in zip(*heads, strict=True):
        yield unflatten(structure, list(row))
