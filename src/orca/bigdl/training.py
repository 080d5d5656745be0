"""Training: BigDL's data and verbs on the Estimator. Owns rows of Samples as arrays, and answers on RDDs.

An RDD of Samples becomes XShards of blocks of rows; the Estimator does the rest.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import cloudpickle
import numpy as np

from orca.bigdl.layer import Layer
from orca.bigdl.validation import Loss
from orca.classic.sample import EvaluatedResult, JTensor, Sample
from orca.core.metrics import Metric
from orca.errors import ArgumentError, DataError

logger = logging.getLogger(__name__)

BLOCK = 256  # rows that are answered, or put together, at a time


def is_rdd(data: Any) -> bool:
    """Recognise an RDD."""
    return hasattr(data, "mapPartitions") and hasattr(data, "context")


def samples_of(data: Any) -> Any:
    """Return data as it comes from a set of features, an image set or a text set: what `to_samples` gives."""
    while hasattr(data, "to_samples"):
        data = data.to_samples()
    return data


def data_of(data: Any) -> Any:
    """Return data as the Estimator takes it: RDDs and lists of Samples become XShards and arrays, all else stays."""
    data = samples_of(data)
    if is_rdd(data):
        from orca.data.shard import SparkXShards

        return SparkXShards.lazy(data.mapPartitions(blocks))
    if isinstance(data, Sequence) and data and isinstance(data[0], Sample):
        block = stacked(data)
        return (block["x"], block["y"]) if "y" in block else block["x"]
    return data


def rows_for(data: Any, features: Any, labels: Any) -> tuple[Any, bool]:
    """Return data as the Estimator takes it, and whether it has columns, which it reads by itself.

    Args:
        data: The data.
        features: The preprocessing of features, or None.
        labels: That of labels, or None.
    """
    samples = is_rdd(samples_of(data))
    given = data_of(data)
    if hasattr(given, "columns") and not hasattr(given, "transform_shard"):
        return given, True
    if features is None and labels is None:
        return given, hasattr(given, "transform_shard") and not samples
    if hasattr(given, "transform_shard"):
        return given.transform_shard(partial(_preprocessed, features=features, labels=labels)), False
    if isinstance(given, tuple) and len(given) == 2:
        block = _preprocessed({"x": given[0], "y": given[1]}, features, labels)
        return (block["x"], block["y"]), False
    return _preprocessed({"x": given}, features, None)["x"], False


def _preprocessed(block: Any, features: Any, labels: Any) -> Any:
    if not isinstance(block, dict):
        raise ArgumentError(f"a preprocessing works on shards {{'x', 'y'}} and columns; got {type(block).__name__}.")
    for key, step in (("x", features), ("y", labels)):
        if step is not None and key in block:
            block = {**block, key: step.apply(block[key])}
    return block


def blocks(rows: Iterable[Any], size: int = BLOCK) -> Iterator[dict[str, Any]]:
    """Yield rows as blocks {"x", "y"} of arrays."""
    rows = iter(rows)
    while some := list(islice(rows, size)):
        yield stacked(some)


def stacked(rows: Sequence[Any]) -> dict[str, Any]:
    """Return Samples (or arrays, which have no labels) as arrays, with a first dimension of rows; several as tuples.

    Raises:
        DataError: Rows differ in shape.
    """
    if isinstance(rows[0], Sample):
        parts = {"x": [row.features for row in rows], "y": [row.labels for row in rows]}
    else:
        parts = {"x": [row if isinstance(row, list | tuple) else [row] for row in rows]}
    return {key: _columns(values) for key, values in parts.items() if values[0]}


def _columns(rows: Sequence[Sequence[Any]]) -> Any:
    columns = []
    for column in zip(*rows, strict=True):
        arrays = [cell.to_ndarray() if isinstance(cell, JTensor) else np.asarray(cell, np.float32) for cell in column]
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            raise DataError(f"all rows must have one shape; got {sorted(shapes)[:3]}. Pad or resize them first.")
        columns.append(np.stack(arrays))
    return columns[0] if len(columns) == 1 else tuple(columns)


def backend_now(data: Any = None) -> str:
    """Return where to train: on Spark where it is up or the data is there, else in processes of this machine."""
    from orca.cluster.context import OrcaContext

    pyspark = sys.modules.get("pyspark")
    up = pyspark is not None and pyspark.SparkContext._active_spark_context is not None
    cluster = OrcaContext.cluster()
    return "bigdl" if up or (cluster is not None and cluster.runtime == "spark") else "local"


def predicted(layer: Layer, features: Any, batch_size: int = -1) -> Any:
    """Return the outputs of a layer: arrays for arrays and Samples, an RDD of arrays for an RDD, XShards for XShards."""
    size = batch_size if batch_size and batch_size > 0 else BLOCK
    data = samples_of(features)
    if is_rdd(data):
        answer = data.context.broadcast(_frozen(layer))
        return data.mapPartitions(partial(_answers, answer, size))
    if isinstance(data, Sequence) and data and isinstance(data[0], Sample):
        data = stacked(data)["x"]
    if hasattr(data, "transform_shard") or hasattr(data, "toPandas"):
        raise ArgumentError(
            f"predict of a layer takes arrays and RDDs; got {type(data).__name__}. Use Estimator.from_bigdl(model=...).predict."
        )
    outputs = [_call(layer.module, _cut(data, slice(at, at + size))) for at in range(0, _length(data), size)]
    return _joined(outputs)


def evaluated(layer: Layer, data: Any, batch_size: int, methods: Any) -> list[EvaluatedResult]:
    """Return an EvaluatedResult of each validation method over all rows, exactly."""
    metrics = list(methods) if isinstance(methods, list | tuple) else [methods]
    wrong = [type(each).__name__ for each in metrics if not isinstance(each, Metric)]
    if wrong:
        raise ArgumentError(
            f"validation methods are Top1Accuracy(), Loss(), ... with brackets; got {', '.join(wrong)}."
        )
    data = samples_of(data)
    size = batch_size if batch_size and batch_size > 0 else BLOCK
    if is_rdd(data):
        answer = data.context.broadcast(_frozen(layer))
        states = data.mapPartitions(partial(_counted, answer, size, metrics)).collect()
    else:
        if isinstance(data, Sequence) and data and isinstance(data[0], Sample):
            block = stacked(data)
            data = block["x"], block.get("y")
        x, y = data
        pieces = (
            {"x": _cut(x, slice(at, at + size)), "y": _cut(y, slice(at, at + size))}
            for at in range(0, _length(x), size)
        )
        states = [_count(layer.module, pieces, metrics)]
    results = []
    for at, metric in enumerate(metrics):
        total = metric.start()
        total.merge(*(state[at] for state in states))
        results.append(EvaluatedResult(total.result(), sum(state[at].rows for state in states), metric.name))
    return results


def metrics_for(methods: Any) -> Any:
    """Return validation methods as the Estimator takes metrics: the loss is always told, under its own name."""
    if methods is None:
        return None
    given = list(methods) if isinstance(methods, list | tuple) else [methods]
    kept = []
    for each in given:
        if not isinstance(each, Loss):
            kept.append(each)
        elif type(each.criterion).__name__ != "ClassNLLCriterion":
            kept.append(each.named(f"LossOf{type(each.criterion).__name__}"))
    return kept


def _frozen(layer: Layer) -> bytes:
    return cloudpickle.dumps(layer.to_torch().eval() if not layer.is_training() else _in_eval(layer))


def _in_eval(layer: Layer) -> Any:
    import copy

    return copy.deepcopy(layer.to_torch()).eval()


def _answers(answer: Any, size: int, rows: Iterable[Any]) -> Iterator[Any]:
    module = cloudpickle.loads(answer.value).layer
    for block in blocks(rows, size):
        output = _call(module, block["x"])
        yield from zip(*output, strict=True) if isinstance(output, list) else output


def _counted(answer: Any, size: int, metrics: list[Metric], rows: Iterable[Any]) -> Iterator[Any]:
    yield _count(cloudpickle.loads(answer.value).layer, blocks(rows, size), metrics)


def _count(module: Any, pieces: Iterable[dict[str, Any]], metrics: list[Metric]) -> list[Any]:
    counters = [metric.start() for metric in metrics]
    for piece in pieces:
        output = _call(module, piece["x"])
        for counter in counters:
            counter.update(output, piece["y"])
    return [counter.state() for counter in counters]


def _call(module: Any, x: Any) -> Any:
    """Return the output for some rows, computed as in answering, whatever mode the module is in."""
    import torch

    from orca.bigdl.layer import _arrays, _tensors, run
    from orca.frameworks.torch.learner import evaluating

    with torch.no_grad(), evaluating([module]):
        return _arrays(run(module, _tensors(list(x) if isinstance(x, tuple) else x), "model"))


def _length(data: Any) -> int:
    return len(data[0] if isinstance(data, list | tuple) else data)


def _cut(data: Any, rows: slice) -> Any:
    return [part[rows] for part in data] if isinstance(data, list | tuple) else data[rows]


def _joined(outputs: list[Any]) -> Any:
    if not outputs:
        raise DataError("there are no rows to answer for.")
    if isinstance(outputs[0], list):
        return [np.concatenate(parts) for parts in zip(*outputs, strict=True)]
    return np.concatenate(outputs)
