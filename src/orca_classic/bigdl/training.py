"""Training: BigDL's data and verbs on the Estimator. Owns rows of Samples as arrays, and predictions row by row.

An RDD of Samples becomes XShards of blocks of rows; the Estimator does the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from orca.core.metrics import Metric
from orca.errors import ArgumentError, DataError
from orca.frameworks.torch.replica import evaluating
from orca.rows.tree import cut_rows, flatten, listed, map_tree, rows_of
from orca_classic.bigdl.layer import Layer, LayerEntry, _arrays, _tensors, run
from orca_classic.bigdl.validation import Loss
from orca_classic.zoo.sample import EvaluatedResult, JTensor, Sample

_LOSS = "criterion_loss"  # the name of the validation method Loss as a metric: "loss" is that of the training
BLOCK = 256  # rows of one forward pass, or of one shard


def is_rdd(data: Any) -> bool:
    """Recognise an RDD."""
    return hasattr(data, "mapPartitions") and hasattr(data, "context")


def is_samples(data: Any) -> bool:
    """Recognise a list of Samples."""
    return isinstance(data, Sequence) and bool(data) and isinstance(data[0], Sample)


def samples_of(data: Any) -> Any:
    """Return the Samples of a FeatureSet, an ImageSet or a TextSet; other data unchanged."""
    while hasattr(data, "to_samples"):
        data = data.to_samples()
    return data


def data_of(data: Any) -> Any:
    """Return data as the Estimator takes it: RDDs and lists of Samples become XShards and arrays."""
    data = samples_of(data)
    if isinstance(data, list | tuple) and not data:
        raise DataError("there are no rows: the data is empty.")
    if is_rdd(data):
        from orca.data.shard import SparkXShards

        return SparkXShards.lazy(data.mapPartitions(blocks))
    if is_samples(data):
        block = stacked(data)
        return (block["x"], block["y"]) if "y" in block else block["x"]
    return data


def rows_for(data: Any, features: Any, labels: Any) -> tuple[Any, bool]:
    """Return data as the Estimator takes it, after a preprocessing of features and one of labels (or None).

    Also return whether it has columns, to which the Estimator applies the preprocessing itself.
    """
    source = data_of(data)
    shards = hasattr(source, "transform_shard")
    if hasattr(source, "columns") and not shards:
        return source, True
    if features is None and labels is None:
        return source, shards and source is data
    step = partial(_preprocessed, features=features, labels=labels)
    if shards:
        return source.transform_shard(step), False
    if isinstance(source, tuple) and len(source) == 2:
        return tuple(step({"x": source[0], "y": source[1]}).values()), False
    return step({"x": source})["x"], False


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
    """Return Samples (or arrays, without labels) as arrays with a first dimension of rows; several as tuples."""
    if isinstance(rows[0], Sample):
        parts = {"x": [row.features for row in rows], "y": [row.labels for row in rows]}
    else:
        parts = {"x": [row if isinstance(row, list | tuple) else [row] for row in rows]}
    return {key: _columns(cells, key) for key, cells in parts.items() if any(cells)}


def _columns(rows: Sequence[Sequence[Any]], key: str) -> Any:
    what = {"x": "features", "y": "labels"}[key]
    if len(counts := {len(row) for row in rows}) > 1:
        raise DataError(f"all rows must have as many {what}; got rows with {sorted(counts)}. Complete or drop them.")
    columns = []
    for column in zip(*rows, strict=True):
        arrays = [cell.to_ndarray() if isinstance(cell, JTensor) else np.asarray(cell, np.float32) for cell in column]
        if len(shapes := {array.shape for array in arrays}) > 1:
            raise DataError(f"all {what} must have one shape; got {sorted(shapes)[:3]}. Pad or resize them first.")
        columns.append(np.stack(arrays))
    return columns[0] if len(columns) == 1 else tuple(columns)


def backend_now() -> str:
    """Return the backend: the Spark or Ray that is up, else processes of this machine."""
    from orca.cluster.context import OrcaContext

    pyspark = sys.modules.get("pyspark")
    up = pyspark is not None and pyspark.SparkContext._active_spark_context is not None
    cluster = OrcaContext.cluster()
    runtime = "spark" if up else cluster.runtime if cluster is not None else "local"
    return {"spark": "bigdl"}.get(runtime, runtime)


def predicted(layer: Any, features: Any, batch_size: int = -1) -> Any:
    """Return the outputs of a layer: arrays for arrays and Samples, an RDD of arrays for an RDD of either."""
    data, size = samples_of(features), batch_size if batch_size > 0 else BLOCK
    if is_rdd(data):
        return answered(layer, data, size)
    if is_samples(data):
        data = stacked(data)["x"]
    outputs = [_call(entry_of(layer), piece["x"]) for piece in _pieces({"x": data}, size)]
    if isinstance(outputs[0], list):
        return [np.concatenate(parts) for parts in zip(*outputs, strict=True)]
    return np.concatenate(outputs)


def answered(layer: Any, rows: Any, size: int = BLOCK, sample: Callable[[Any], Any] | None = None,
             join: Callable[[Any, Any], Any] | None = None) -> Any:  # fmt: skip
    """Return the output of a layer, which gets `size` rows at a time, for each row of a list or an RDD.

    `sample` returns the Sample (or array) of a row of another kind, `join` the result for a row and its output.
    """
    if not is_rdd(rows):
        return list(_answers(entry_of(layer), size, sample, join, rows))
    model = rows.context.broadcast(cloudpickle.dumps(entry_of(layer)))
    return rows.mapPartitions(lambda some: _answers(cloudpickle.loads(model.value), size, sample, join, some))


def _answers(net: Any, size: int, sample: Any, join: Any, rows: Iterable[Any]) -> Iterator[Any]:
    rows = iter(rows)
    while some := list(islice(rows, size)):
        output = _call(net, stacked([sample(row) for row in some] if sample else some)["x"])
        outputs = map(list, zip(*output, strict=True)) if isinstance(output, list) else output
        yield from map(join, some, outputs) if join else outputs


def evaluated(layer: Any, data: Any, batch_size: int, methods: Any) -> list[EvaluatedResult]:
    """Return an EvaluatedResult of each validation method over all rows, exactly."""
    metrics = list(methods) if isinstance(methods, list | tuple) else [methods]
    if wrong := [type(each).__name__ for each in metrics if not isinstance(each, Metric)]:
        raise ArgumentError(
            f"validation methods are Top1Accuracy(), Loss(), ... with brackets; got {', '.join(wrong)}."
        )
    data, size = samples_of(data), batch_size if batch_size and batch_size > 0 else BLOCK
    if is_rdd(data):
        model = data.context.broadcast(cloudpickle.dumps(entry_of(layer)))
        states = data.mapPartitions(
            lambda rows: [_count(cloudpickle.loads(model.value), blocks(rows, size), metrics)]
        ).collect()
    elif is_samples(data):
        states = [_count(entry_of(layer), blocks(data, size), metrics)]
    elif isinstance(data, list | tuple) and len(data) == 2:
        states = [_count(entry_of(layer), _pieces({"x": data[0], "y": data[1]}, size), metrics)]
    else:
        raise ArgumentError(
            f"evaluate takes arrays x and y, Samples, or an RDD of Samples; got {type(data).__name__}. "
            "Estimator.from_bigdl(model=...).evaluate takes XShards and DataFrames."
        )
    if metrics and not sum(state[0].rows for state in states):
        raise DataError("there are no rows to evaluate: the data is empty.")
    results = []
    for at, metric in enumerate(metrics):
        total = metric.start()
        total.merge(*(state[at] for state in states))
        results.append(EvaluatedResult(total.result(), sum(state[at].rows for state in states), metric.name))
    return results


def metrics_for(methods: Any) -> Any:
    """Return validation methods as the Estimator takes metrics: a Loss has another name there."""
    if methods is None or isinstance(methods, dict):
        return methods
    return [each.named(_LOSS) if isinstance(each, Loss) else each for each in listed(methods)]


class BigdlValidations:
    """An Estimator whose validations are BigDL's: their loss is that of the validation method Loss, if there is one.

    BigDL asks at each step whether an epoch has ended since it asked before: a first epoch of one step has no
    validation in the summary.
    """

    def _remember(self, history: Any, *args: Any) -> None:
        for line in history.epochs:
            for stats in (line, *line.get("validations", ())):
                if f"val_{_LOSS}" in stats:
                    stats["val_loss"] = stats.pop(f"val_{_LOSS}")
        super()._remember(history, *args)  # type: ignore[misc]

    def _summary_lines(self, lines: Sequence[dict[str, Any]], first_step: int) -> Sequence[dict[str, Any]]:
        if first_step > 1 or not lines or lines[0]["batch_count"] != 1:
            return lines
        validation = [key for key in lines[0] if key.startswith("val")]
        return [{key: value for key, value in lines[0].items() if key not in validation}, *lines[1:]]


def with_loss(statistics: dict[str, Any]) -> dict[str, Any]:
    """Return the statistics of an evaluation with the validation method Loss under its own name."""
    return {"Loss" if key == _LOSS else key: value for key, value in statistics.items()}


def syncs_batchnorm(model: Any, options: Mapping[str, Any]) -> bool:
    """Return whether a layer with batch normalization takes its statistics over the rows of all workers."""
    if not isinstance(model, Layer) or type(model).to_torch is not Layer.to_torch or options.get("accumulate", 1) != 1:
        return False
    return any(isinstance(module, _BatchNorm) for module in model.module.modules())


def entry_of(layer: Any) -> torch.nn.Module:
    """Return the torch module of a layer, for numbers of any type; a torch module unchanged."""
    module: torch.nn.Module = layer.to_torch() if isinstance(layer, Layer) else layer
    if isinstance(module, LayerEntry) and not module._forward_pre_hooks:
        module.register_forward_pre_hook(_floats)
    return module


def _floats(module: torch.nn.Module, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return inputs as floats, as BigDL's tensors are; pixels may be bytes."""
    return tuple(x.float() if isinstance(x, torch.Tensor) and not x.is_floating_point() else x for x in inputs)


def _count(net: torch.nn.Module, pieces: Iterable[dict[str, Any]], metrics: list[Metric]) -> list[Any]:
    counters = [metric.start() for metric in metrics]
    for piece in pieces:
        if piece.get("y") is None:
            raise DataError(
                "these rows have no labels to compare with. Evaluate on Samples with labels, or on x and y."
            )
        output = _call(net, piece["x"])
        for counter in counters:
            counter.update(output, piece["y"])
    return [counter.state() for counter in counters]


def _call(net: torch.nn.Module, x: Any) -> Any:
    """Return the output for some rows in evaluation mode.

    A layer such as Squeeze() drops the dimension of a single row: the model sees that row twice.
    """
    output, rows = _forward(net, x), rows_of(x)
    if rows == 1 and any(np.shape(leaf)[:1] != (1,) for leaf in flatten(output)[0]):
        twice = _forward(net, map_tree(lambda leaf: np.repeat(leaf, 2, axis=0), x))
        return cut_rows(twice, slice(0, 1)) if rows_of(twice) == 2 else output
    return output


def _forward(net: torch.nn.Module, x: Any) -> Any:
    inputs = [_tensors(part) for part in (x if isinstance(x, list | tuple) else [x])]
    with torch.no_grad(), evaluating([net]):
        if isinstance(net, LayerEntry):  # run names the layer in errors
            return _arrays(run(net.layer, inputs[0] if len(inputs) == 1 else inputs, "model"))
        return _arrays(net(*inputs))


def _pieces(data: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Yield arrays in blocks of rows; one empty block for no rows."""
    arrays = {key: _array_tree(tree) for key, tree in data.items()}
    count = rows_of(arrays)
    return (cut_rows(arrays, slice(at, at + size)) for at in range(0, max(count, 1), size))


def _array_tree(tree: Any) -> Any:
    several = isinstance(tree, list | tuple) and any(isinstance(each, np.ndarray | JTensor) for each in tree)
    if several:
        return tuple(_array_tree(each) for each in tree)
    array = tree.to_ndarray() if isinstance(tree, JTensor) else np.asarray(tree)
    if array.dtype == object:
        raise DataError(
            f"a layer takes arrays of numbers, Samples and RDDs of them; got {type(tree).__name__}. "
            "Estimator.from_bigdl(model=...) takes XShards and DataFrames."
        )
    return array
