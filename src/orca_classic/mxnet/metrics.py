"""MXNet's metrics, exact over ranks for any split of the rows. Owns which of them are sums, and which need all rows."""

from __future__ import annotations

import copy
from typing import Any

import mxnet as mx
import numpy as np
import torch
from mxnet import metric as mxmetric

from orca.core.metrics import Counts, Metric, metrics_of
from orca.errors import ArgumentError
from orca.rows.tree import flatten, listed, rows_of

# Sums that ranks may add up. Those of all other metrics are means of batches: they are asked with all rows at once.
_SUMS = (
    mxmetric.Accuracy,
    mxmetric.TopKAccuracy,
    mxmetric.CrossEntropy,
    mxmetric.NegativeLogLikelihood,
    mxmetric.Perplexity,
    mxmetric.Loss,
)
_MEANS = (mxmetric.MAE, mxmetric.MSE)  # a mean of rows: rows times mean is a sum again


class MxnetMetric(Metric):
    """A metric of MXNet.

    Args:
        metric: The metric; its copies count, and it stays as it is.
    """

    def __init__(self, metric: Any) -> None:
        self.metric = copy.deepcopy(metric)
        self.metric.reset()
        self.name = str(self.metric.get()[0])
        self.keeps_rows = type(metric) not in (*_SUMS, *_MEANS)

    def score(self, *values: Any) -> Any:
        """Return the value over all rows."""
        metric = copy.deepcopy(self.metric)
        if self.keeps_rows:
            outputs, labels = ([mx.nd.array(part.numpy()) for part in parts] for parts in values)
            metric.update(labels, outputs)
        else:
            metric.sum_metric, metric.num_inst = map(float, values)
        return float(metric.get()[1])

    def _count(self, output: Any, target: Any) -> Counts:
        outputs, labels = ([np.asarray(leaf) for leaf in _leaves(tree)] for tree in (output, target))
        rows = rows_of(outputs, "outputs")
        if self.keeps_rows:
            return Counts(
                rows, tuple([torch.from_numpy(np.array(leaf)) for leaf in part] for part in (outputs, labels))
            )
        metric = copy.deepcopy(self.metric)
        metric.update([mx.nd.array(label) for label in labels], [mx.nd.array(each) for each in outputs])
        scale = rows if isinstance(metric, _MEANS) else 1
        counts = np.array([metric.sum_metric, metric.num_inst], np.float64) * scale
        return Counts(rows, tuple(torch.from_numpy(counts)))


def mxnet_metrics(items: Any) -> list[Metric]:
    """Return the metrics that a creator returned: MXNet's own or their names, functions (label, output), or ours.

    Raises:
        ArgumentError: It returned something else.
    """
    metrics: list[Any] = []
    for item in listed(items):
        if item is None or isinstance(item, Metric):
            metrics += [] if item is None else [item]
            continue
        try:
            if isinstance(item, type):  # which would be taken for a function (label, output)
                raise TypeError(f"it is a class, call it: {item.__name__}()")
            metric = mxmetric.create(item)
        except (AssertionError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise ArgumentError(
                f"a creator of metrics must return metrics of MXNet, such as mx.metric.Accuracy(), or a list of them; "
                f"got {item!r}: {error}."
            ) from error
        metrics += map(MxnetMetric, metric.metrics if isinstance(metric, mxmetric.CompositeEvalMetric) else [metric])
    return metrics_of(metrics)


def _leaves(tree: Any) -> list[Any]:
    return [] if tree is None else flatten(tree)[0]
