"""Metrics: how good a model is, exact over ranks for any split of the rows. Owns their counts, and merging.

A metric counts batches (``update``), returns the value over all of them (``compute``) and can be called, as those of
torchmetrics. Ranks count with metrics of their own (``start``); their counts (``state``) are put together (``merge``).
A metric keeps sums or, if it is no function of sums, the rows themselves; never means. Over no rows the value is nan.
A metric that compares probabilities must know whether outputs are some. The loss says it if it is known (``resolved``):
then logits are cut at 0. Else outputs outside [0, 1] are refused, unless the user gave a threshold.

Outputs and targets are torch tensors, or arrays, which become tensors here. Sums stay on the tensors' device, and
``update`` never waits for it; rows that are kept go to this machine's memory at once. Of a model with several outputs
a metric sees the first, and the first target; a CustomizedMetric gets everything.

Not torchmetrics: its metrics need the number of classes before the first batch, sum regressions in float32, and
communicate within `compute`; these return float64 sums, which travel with the step's own exchange.
"""

from __future__ import annotations

import copy
import functools
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from orca.core import shapes
from orca.core.columns import array_of
from orca.core.items import travels
from orca.core.shapes import double, largest, shaped
from orca.errors import ArgumentError, DataError
from orca.rows.tree import flatten, map_tree, unflatten

__all__ = [
    "AUC", "MAE", "MSE", "ROC", "Accuracy", "BinaryAccuracy", "BinaryCrossEntropy", "CategoricalAccuracy",
    "CategoricalCrossEntropy", "CustomizedMetric", "F1Score", "KLDivergence", "MeanMetric", "Metric", "Poisson",
    "Precision", "PrecisionRecallCurve", "Recall", "SparseCategoricalAccuracy",
    "SparseCategoricalCrossEntropy", "Top5Accuracy", "metrics_of",
]  # fmt: skip

Tensor = Any  # a torch tensor; torch is loaded with the first batch
Tree = Any  # tensors or arrays, or tuples, lists and dicts of them

EPSILON = 1e-7  # Keras' own: probabilities are kept this far from 0 and 1 before a logarithm
RESERVED = ("loss", "num_samples", "profile", "val_loss")  # keys of the statistics that are not metrics
BACKENDS = ("bigdl", "tf", "pytorch", "mxnet")


def metrics_of(spec: object, backend: str = "pytorch") -> list[Metric]:
    """Return the metrics a user asked for, each with a name of its own and nothing counted.

    Args:
        spec: Nothing, a metric of ours or of torchmetrics, its plain name ("accuracy"), a function
            ``f(output, target)``, a list of these, or a dict name -> one of these.
            A metric given by name has that name, as it is written. Given objects are never changed: copies are
            returned. Names that differ in case alone count as equal, as some statistics are lower-case; the second
            becomes ``Accuracy_2``.
        backend: For which of the older systems' backends to ask classes of the user: see `Metric.get_metric`.

    Raises:
        ArgumentError: For anything else, and for a name that the statistics need themselves.

    Example:
        >>> [metric.name for metric in metrics_of([Accuracy(), Accuracy(), AUC()])]
        ['Accuracy', 'Accuracy_2', 'AUC']
        >>> [metric.name for metric in metrics_of({"top": Accuracy()})]
        ['top']
        >>> [metric.name for metric in metrics_of(["accuracy", "f1"])]
        ['accuracy', 'f1']
    """
    if spec is None:
        return []
    if isinstance(spec, Mapping):
        metrics = []
        for name, item in spec.items():
            members = _metrics_of(item, backend)
            metrics += [m.named(str(name) if len(members) == 1 else f"{name}_{m.name}") for m in members]
    else:
        items = spec if isinstance(spec, (list, tuple)) else [spec]
        metrics = [metric for item in items for metric in _metrics_of(item, backend)]
    return _uniquely_named(metrics)


def _metrics_of(item: object, backend: str) -> list[Metric]:
    if isinstance(item, Metric) and not _is_own(item):
        counter = item.get_metric(backend)
        ready = isinstance(counter, Metric) and not _is_own(counter)
        return [m.named(item.get_name()) for m in ([counter] if ready else _metrics_of(counter, backend))]
    if isinstance(item, str):
        return [_by_name(item)]
    if "torchmetrics" in sys.modules:
        from orca.core.torchmetric import torch_metrics

        theirs = torch_metrics(item)
        if theirs is not None:
            return theirs
    if callable(item) and not isinstance(item, type):
        return [OwnMetric(item) if hasattr(item, "compute") else CustomizedMetric(item)]
    raise _no_metric(item)


def _is_own(metric: Metric) -> bool:
    """Say whether a metric counts in the user's own way: in `__call__` and `compute`."""
    return type(metric).compute is not Metric.compute


def _by_name(word: str) -> Metric:
    """Return the metric of a plain name, however that is written: "accuracy", "Top5Accuracy", "binary_accuracy"."""
    name = word.lower().replace("_", "").replace("-", "").replace(" ", "")
    kind = ALIASES.get(name) or next((kind for kind in NAMED if kind.__name__.lower() == name), None)
    if kind is None:
        names = ", ".join(sorted(kind.__name__ for kind in NAMED))
        raise ArgumentError(
            f"There is no metric named {word!r}. Pass one of {names}, or a function f(output, target).",
            code="unknown-metric",
        )
    return kind().named(word)


def _no_metric(item: object) -> ArgumentError:
    if isinstance(item, type) and issubclass(item, Metric):
        thing, advice = f"the class {item.__name__}", f"Write {item.__name__}(), with the brackets."
    else:
        thing = type(item).__name__
        advice = "Pass metrics such as [Accuracy()] from orca.metrics, or functions f(output, target)."
    return ArgumentError(
        f"Only orca metrics and customized functions are supported, but get {thing}. {advice}", code="not-a-metric"
    )


def _uniquely_named(metrics: list[Metric]) -> list[Metric]:
    names: set[str] = set()
    unique = []
    for metric in metrics:
        name, number = metric.name, 1
        if name.lower() in RESERVED:
            raise ArgumentError(
                f"A metric cannot be named {name!r}: the statistics hold something else under that key. "
                f"Give it another name with a dict: metrics={{'my_{name}': ...}}.",
                code="metric-name-taken",
            )
        while name.lower() in names:
            number += 1
            name = f"{metric.name}_{number}"
        names.add(name.lower())
        unique.append(metric if name == metric.name else metric.named(name))
    return unique


@travels
@dataclass(frozen=True)
class Counts:
    """The counts of a metric over some rows: a tree of tensors that are sums, or hold the rows themselves."""

    rows: int
    values: Tree


class Metric:
    """A metric: a function of sums over the rows, or of all rows.

    A new one has a ``tally`` and, unless it is a mean, a ``score``; with ``keeps_rows`` the tally's tensors are not
    added up but put behind one another.

    Example:
        >>> class RootMeanSquareError(Metric):
        ...     def tally(self, output, target):
        ...         return ((output - target) ** 2).sum(), output.numel()
        ...
        ...     def score(self, total, count):
        ...         return (total / count).sqrt()
        >>> metric = RootMeanSquareError()
        >>> metric(np.array([1.0, 2.0]), np.array([4.0, 2.0]))
        tensor(2.1213)
        >>> metric.update(np.array([3.0]), np.array([3.0]))
        >>> metric.compute()
        tensor(1.7321)
        >>> metric.reset()
        >>> metric.compute()
        tensor(nan)
    """

    name = "Metric"
    link = ""  # "sigmoid" or "softmax": what makes probabilities of the outputs; "" if they are not known to be logits
    keeps_rows = False
    _parts: Any = ()  # a list of Counts

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __call__(self, output: Tree, target: Tree) -> Any:
        """Count a batch; return the value over this batch, as `compute` does."""
        counts = self._count(output, target)
        self._add(counts)
        return map_tree(lambda value: double(value).float(), self._value(counts))

    def update(self, output: Tree, target: Tree) -> None:
        """Count a batch."""
        self._add(self._count(output, target))

    def compute(self) -> Any:
        """Return the value over every row counted or merged, as a tensor of float32.

        It is nan when there was no row. Curves are tuples of tensors.
        """
        return map_tree(lambda value: double(value).float(), self._value(self._total()))

    def result(self) -> Any:
        """Return the same in double precision, as a float; curves as tuples of lists."""
        return map_tree(lambda value: double(value).tolist(), self._value(self._total()))

    def reset(self) -> None:
        """Forget all that was counted."""
        self._parts = ()

    def start(self) -> Metric:
        """Return a copy that has seen no rows."""
        fresh = copy.copy(self)
        fresh.reset()
        return fresh

    def named(self, name: str) -> Metric:
        """Return a copy under another name that has seen no rows."""
        fresh = self.start()
        fresh.name = name
        return fresh

    def resolved(self, link: str) -> Metric:
        """Return a copy for the outputs of a model, as its loss takes them, that has seen no rows.

        Args:
            link: "sigmoid" or "softmax" if the loss takes logits, of which these make probabilities; else "".
        """
        fresh = self.start()
        fresh.link = link
        return fresh

    def state(self) -> Counts:
        """Return the counts, in this machine's memory: plain values and tensors, which travel to other ranks."""
        return _on_cpu(self._total())

    def merge(self, *states: Counts) -> None:
        """Add the counts of other copies of this metric, in this order."""
        self._parts = [_on_cpu(part) for part in (*self._parts, *states) if part.rows]

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return the counts of a batch: sums (tensors or numbers), or a value for each row where rows are kept.

        Both tensors are on one device, with equal rows; a target (n,) beside an output (n, 1), or the reverse, has
        the output's shape. Reading a value here would wait for the device.
        """
        raise NotImplementedError(f"{type(self).__name__} has no tally(output, target).")

    def score(self, total: Any, count: Any) -> Any:
        """Return the value, given the sums over all rows as float64 tensors (or all rows): here their mean."""
        return total / count

    # The methods of orca.learn.metrics. One kind of metric serves every backend.

    def get_name(self) -> str:
        """Return the name, as the statistics show it."""
        return self.name

    def get_metric(self, backend: str = "bigdl") -> Any:
        """Return a copy that counts for a backend: "bigdl", "tf", "pytorch" or "mxnet"."""
        if backend not in BACKENDS:
            raise ArgumentError(
                f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}.", code="unknown-metric-backend"
            )
        return getattr(self, f"get_{backend}_metric")()

    def get_pytorch_metric(self) -> Any:
        """Return a copy that has seen no rows; a subclass may return a metric of torchmetrics."""
        return self.start()

    get_bigdl_metric = get_tf_metric = get_mxnet_metric = get_pytorch_metric

    @staticmethod
    def convert_metrics_list(metrics: object, backend: str = "bigdl") -> list[Metric] | None:
        """Return the metrics for a backend, with nothing counted."""
        return None if metrics is None else metrics_of(metrics, backend)

    @staticmethod
    def convert_metrics_dict(metrics: object, backend: str = "bigdl") -> dict[str, Metric]:
        """Return name -> metric for a backend, with nothing counted."""
        return {metric.name: metric for metric in metrics_of(metrics, backend)}

    def _read(self, output: Tree, target: Tree) -> tuple[Tree, Tree]:
        """Return the first output and target of a batch, as tensors on the output's device.

        Of dicts, the first output that has a target of its name.
        """
        while isinstance(output, dict) and isinstance(target, dict) and (names := [n for n in output if n in target]):
            output, target = output[names[0]], target[names[0]]
        output, target = (_first(self.name, tree) for tree in (output, target))
        return output, target.to(output.device)

    def _count(self, output: Tree, target: Tree) -> Counts:
        output, target = self._read(output, target)
        rows = _rows_in(self.name, output, target)
        values = self.tally(output, _beside(output, target)) if rows else ()
        return Counts(rows, map_tree(_copy, values) if self.keeps_rows else values)

    def _add(self, counts: Counts) -> None:
        if counts.rows:
            self._parts = self._parts or []
            self._parts.append(counts)
            if not self.keeps_rows:
                self._parts = [self._join(self._parts)]

    def _total(self) -> Counts:
        return self._join(self._parts) if self._parts else Counts(0, ())

    def _join(self, parts: Sequence[Counts]) -> Counts:
        leaves, (structure, *_) = zip(*(flatten(part.values) for part in parts), strict=True)
        join = _concatenated if self.keeps_rows else functools.partial(functools.reduce, operator.add)
        values = unflatten(structure, [join(values) for values in zip(*leaves, strict=True)])
        return Counts(sum(part.rows for part in parts), values)

    def _value(self, counts: Counts) -> Any:
        if not counts.rows:
            return math.nan
        return self.score(*(counts.values if self.keeps_rows else map(double, counts.values)))


class MeanMetric(Metric):
    """A mean of one value for each row or element. A metric of this kind says which values, given a batch."""

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return the sum of the values, and how many there are."""
        values = self._values(output, target)
        return values.sum(), values.numel()

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no _values(output, target).")


class _BinaryDecisions(Metric):
    """A metric of outputs that say 1 above a threshold."""

    threshold: float | None = None

    def _cut(self, output: Tensor) -> tuple[Tensor, Any]:
        """Return which outputs say 1, and how many of them would have to be probabilities and are none."""
        scores = double(output)
        if self.threshold is not None:
            return scores > self.threshold, 0
        if self.link == "sigmoid":
            return scores > 0, 0
        chances = shapes.probabilities(output, self.link)
        return chances > 0.5, shapes.count_outside(chances)

    def _refuse(self, outside: Any) -> None:
        shapes.refuse_outside(
            self.name,
            outside,
            f"If they are logits, give the Estimator a loss that says so (BCEWithLogitsLoss, CrossEntropyLoss), or "
            f"write {type(self).__name__}(threshold=0.0); else end the model with a sigmoid, or name the threshold= "
            f"above which an output says 1.",
        )


class _BinaryAccuracyMetric(_BinaryDecisions, MeanMetric):
    """A mean of decisions that are right."""

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return how many decisions are right, how many there are, and outputs that are no probabilities."""
        right, outside = self._decisions(output, target)
        return right.sum(), right.numel(), outside

    def score(self, total: Any, count: Any, outside: Any = 0) -> Any:
        """Return the mean, or refuse outputs that are no probabilities."""
        self._refuse(outside)
        return total / count

    def _decisions(self, output: Tensor, target: Tensor) -> tuple[Tensor, Any]:
        """Return which elements are on the right side of the threshold, and how many outputs are no probabilities."""
        output, truth = shaped(self.name, output, target)
        positive, outside = self._cut(output)
        return positive == truth + (truth == -1), outside  # some losses have -1 for 0


class Accuracy(_BinaryAccuracyMetric):
    """How often the predicted class is the right one.

    Outputs (n,) or (n, 1) say 1 above a threshold (integers say themselves). Of outputs (n, c) the largest class
    counts. Classes lie on axis 1, or on the last axis where only that fits the labels. Targets are class numbers (or -1
    and 1, beside outputs (n,) or (n, 1)) or, in the shape of (n, c) outputs, one-hot: for several labels a row take
    BinaryAccuracy.

    Args:
        zero_based_label: Whether the class numbers of (n, c) outputs start at 0; else they start at 1.
        threshold: Where outputs (n,) or (n, 1) are cut. Unless given, at 0 if the loss of the Estimator takes logits,
            else at 0.5, and outputs must be probabilities.

    Example:
        >>> accuracy = Accuracy()
        >>> accuracy(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))  # of this batch
        tensor(0.5000)
        >>> accuracy(np.array([[0.3, 0.7], [0.4, 0.6]]), np.array([1, 1]))
        tensor(1.)
        >>> accuracy.compute()  # of all
        tensor(0.7500)
        >>> Accuracy(threshold=0.0)(np.array([-2.0, 0.2]), np.array([0, 1]))  # of logits
        tensor(1.)
    """

    def __init__(self, zero_based_label: bool = True, *, threshold: float | None = None) -> None:
        self.zero_based_label, self.threshold = zero_based_label, _threshold("Accuracy", threshold)

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return the counts of every metric of decisions, and how many one-hot targets name several classes or none."""
        return *super().tally(output, target), shapes.count_ambiguous(self.name, self.link, output, target)

    def score(self, total: Any, count: Any, outside: Any = 0, ambiguous: Any = 0) -> Any:
        """Return the mean, or refuse what has no meaning."""
        shapes.refuse_ambiguous(self.name, ambiguous)
        return super().score(total, count, outside)

    def _decisions(self, output: Tensor, target: Tensor) -> tuple[Tensor, Any]:
        if shapes.is_binary(self.link, output, target):
            if output.is_floating_point():
                return super()._decisions(output, target)
            answer, truth = shaped(self.name, output, target)
            return answer == truth, 0
        if output.shape == target.shape:
            scores, truth = shapes.one_hot(self.name, self.link, output, target)
            return largest(scores) == largest(truth), 0
        scores, labels = shapes.classes_last(self.name, output, target)
        return largest(scores) + (0 if self.zero_based_label else 1) == labels, 0


class SparseCategoricalAccuracy(MeanMetric):
    """How often the largest class of (n, c) outputs is the right one; targets are class numbers from 0."""

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        scores, labels = shapes.classes_last(self.name, output, target)
        return largest(scores) == labels


class _OneClassMetric(MeanMetric):
    """A mean over rows of one class each. One-hot targets that name several classes, or none, are refused."""

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        return *super().tally(output, target), shapes.count_ambiguous(self.name, self.link, output, target)

    def score(self, total: Any, count: Any, ambiguous: Any = 0) -> Any:
        shapes.refuse_ambiguous(self.name, ambiguous)
        return total / count


class CategoricalAccuracy(_OneClassMetric):
    """How often the largest class of the outputs is the right one; targets are one-hot.

    Classes lie on the last axis; on axis 1 if the loss is one of torch's that take logits of classes.
    """

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        scores, truth = shapes.one_hot(self.name, self.link, output, target)
        return largest(scores) == largest(truth)


class BinaryAccuracy(_BinaryAccuracyMetric):
    """How often an output is on the right side of a threshold, over all elements; targets are 0 (or -1) and 1.

    Args:
        threshold: Where outputs are cut. Unless given, at 0 if the loss of the Estimator takes logits, else at 0.5, and
            outputs must be probabilities.
    """

    def __init__(self, threshold: float | None = None) -> None:
        self.threshold = _threshold("BinaryAccuracy", threshold)


class Top5Accuracy(_OneClassMetric):
    """How often the right class is among the five largest; targets are class numbers, or one-hot.

    Of equal scores the lower class comes first, as in argmax.

    Args:
        zero_based_label: Whether class numbers start at 0; else they start at 1.
    """

    def __init__(self, zero_based_label: bool = True) -> None:
        self.zero_based_label = zero_based_label

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        if output.ndim > 1 and output.shape == target.shape:
            scores, target = shapes.one_hot(self.name, self.link, output, target)
            labels = largest(target)
        else:
            scores, labels = shapes.classes_last(self.name, output, target)
            labels = labels - (0 if self.zero_based_label else 1)
        valid, label, own = shapes.of_labels(scores, labels)
        numbers = label.new_ones(scores.shape[-1]).cumsum(0) - 1
        ahead = (scores > own) | ((scores == own) & (numbers < label))
        return (ahead.sum(-1, keepdim=True) < 5) & valid & (own == own)


class MSE(MeanMetric):
    """The mean square error over all elements."""

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        output, target = shaped(self.name, output, target)
        return (output - target) ** 2


class MAE(MeanMetric):
    """The mean absolute error over all elements."""

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        output, target = shaped(self.name, output, target)
        return (output - target).abs()


class Poisson(MeanMetric):
    """The mean of output - target * log(output) over all elements; outputs are rates, not their logarithms."""

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return the sum of the values, how many there are, and outputs that are no rates."""
        return *super().tally(output, target), (output < 0).sum()

    def score(self, total: Any, count: Any, negative: Any = 0) -> Any:
        """Return the mean, or refuse outputs that are no rates."""
        if negative:
            raise DataError(
                f"{self.name} needs rates as outputs; {int(negative)} are negative. End the model with exp or "
                "softplus, or evaluate its loss instead.",
                code="negative-rates",
            )
        return total / count

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        rate, count = shaped(self.name, output, target)
        return rate - count * (rate + EPSILON).log()


class _ProbabilityMetric(MeanMetric):
    """A mean over outputs that must be probabilities. Those that are not are counted, and refused in the end."""

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        return *super().tally(output, target), shapes.count_outside(self._chances(output))

    def score(self, total: Any, count: Any, outside: Any = 0) -> Any:
        shapes.refuse_outside(
            self.name, outside, "End the model with a sigmoid or softmax, or evaluate its loss instead."
        )
        return total / count

    def _chances(self, output: Tensor) -> Tensor:
        return double(output)


class BinaryCrossEntropy(_ProbabilityMetric):
    """The cross entropy of probabilities against targets of 0 and 1, the mean over all elements.

    Targets may be -1 and 1. If the loss takes logits, so does this.
    """

    def _chances(self, output: Tensor) -> Tensor:
        return shapes.probabilities(output, self.link)

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        output, truth = shaped(self.name, output, target)
        truth = truth + (truth == -1)
        chance = self._chances(output).clip(EPSILON, 1 - EPSILON)
        return -(truth * chance.log() + (1 - truth) * (1 - chance).log())


class _ClassProbabilityMetric(_ProbabilityMetric):
    """A mean over probabilities of classes, on the last axis."""

    def _chances(self, output: Tensor) -> Tensor:
        return double(output).softmax(-1) if self.link == "softmax" else double(output)


class CategoricalCrossEntropy(_ClassProbabilityMetric):
    """The cross entropy of class probabilities against one-hot targets, the mean over rows.

    Classes lie where CategoricalAccuracy finds them. If the loss takes logits of classes, so does this.
    """

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        output, target = shapes.one_hot(self.name, self.link, output, target)
        return -(double(target) * self._chances(output).clip(EPSILON, 1 - EPSILON).log()).sum(-1)


class KLDivergence(_ClassProbabilityMetric):
    """The Kullback-Leibler divergence of class probabilities from the targets', the mean over rows.

    Classes lie where CategoricalAccuracy finds them. If the loss takes logits of classes, so does this.
    """

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        output, target = shapes.one_hot(self.name, self.link, output, target)
        chance, truth = self._chances(output), double(target)
        return (truth * (truth.clip(EPSILON, 1).log() - chance.clip(EPSILON, 1).log())).sum(-1)


class SparseCategoricalCrossEntropy(_ClassProbabilityMetric):
    """The cross entropy of (n, c) class probabilities against class numbers from 0, the mean over rows.

    If the loss takes logits of classes, so does this.
    """

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return the sum of losses, how many, outputs outside [0, 1], and labels that are no class."""
        scores, labels = shapes.classes_last(self.name, output, target)
        chances = self._chances(scores)
        valid, _, chance = shapes.of_labels(chances, labels)
        losses = -chance.clip(EPSILON, 1 - EPSILON).log()
        return losses.sum(), losses.numel(), shapes.count_outside(chances), (~valid).sum()

    def score(self, total: Any, count: Any, outside: Any = 0, unknown: Any = 0) -> Any:
        """Return the mean, or refuse outputs outside [0, 1] and labels that are no class."""
        if unknown:
            raise DataError(
                f"{self.name} needs class numbers from 0 to one less than the number of outputs; {int(unknown)} labels "
                f"are not. Subtract 1 from labels that start at 1, and leave out rows without a class.",
                code="labels-not-classes",
            )
        return super().score(total, count, outside)


class PositivesMetric(_BinaryDecisions):
    """True positives, divided by themselves and a weighted sum of false positives and false negatives; 0 for 0 / 0."""

    weights = (0.0, 0.0)

    def __init__(self, threshold: float | None = None) -> None:
        self.threshold = _threshold(type(self).__name__, threshold)

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return true positives, false positives, false negatives, and outputs that are no probabilities."""
        if not shapes.is_two_class(output, target):
            positive, outside = self._cut(output)
        elif self.threshold is None:
            positive, outside = output[:, 1] > output[:, 0], 0
        else:
            chance = shapes.probabilities(output, self.link)[:, 1]
            positive, outside = chance > self.threshold, shapes.count_outside(chance)
        said = positive.reshape(-1)
        truth = shaped(self.name, output[:, 1] if shapes.is_two_class(output, target) else output, target)[1]
        truth = truth.reshape(-1) > 0.5
        return (said & truth).sum(), (said & ~truth).sum(), (~said & truth).sum(), outside

    def score(self, true: Any, false: Any, misses: Any = 0, outside: Any = 0) -> Any:
        """Return the ratio, or refuse outputs that are no probabilities."""
        self._refuse(outside)
        return true / (true + self.weights[0] * false + self.weights[1] * misses).clip(1)


class Precision(PositivesMetric):
    """The share of the outputs saying 1 that are right; 0 when none says 1.

    Outputs (n, 2) with n targets (probabilities or logits) say 1 where class 1 is the larger.

    Args:
        threshold: Above which output it says 1; of (n, 2) outputs, above which probability of class 1. Unless given,
            0 if the loss of the Estimator takes logits, else 0.5, and outputs must be probabilities.
    """

    weights = (1.0, 0.0)


class Recall(PositivesMetric):
    """The share of the targets 1 whose output says 1 too; 0 when no target is 1. See Precision."""

    weights = (0.0, 1.0)


class F1Score(PositivesMetric):
    """The harmonic mean of precision and recall; 0 when there are no positives. See Precision."""

    weights = (0.5, 0.5)


class ROC(Metric):
    """The ROC curve: rates of false and of true positives at each distinct score, and the score, which falls.

    Outputs are any scores, targets 0 or 1, over all elements. Of outputs (n, 2) with n targets the score is the second
    minus the first; of logits of classes beside one-hot targets, the logarithm of the probability. Keeps every score.
    The first point lies above all scores.

    Example:
        >>> [points.tolist() for points in ROC()(np.array([0.25, 0.5, 0.0, 0.75]), np.array([0, 1, 1, 0]))]
        [[0.0, 0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 0.5, 0.5, 1.0], [inf, 0.75, 0.5, 0.25, 0.0]]
    """

    keeps_rows = True

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return scores, and which are those of positives."""
        if shapes.is_two_class(output, target):
            output = double(output[:, 1]) - double(output[:, 0])  # right for logits too
        elif shapes.has_class_logits(output, self.link):  # comparable over rows
            output = double(output).log_softmax(1)
        return output.reshape(-1), shaped(self.name, output, target)[1].reshape(-1) > 0.5

    def score(self, scores: Any, truth: Any) -> Any:
        """Return (false positive rates, true positive rates, thresholds)."""
        false, true, thresholds = _curve(scores, truth)
        return false / false[-1].clip(1), true / true[-1].clip(1), thresholds


class PrecisionRecallCurve(ROC):
    """Precision and recall at each distinct score, and the score, which rises. Outputs and targets are as in ROC.

    Behind the last score, precision is 1 and recall 0.

    Example:
        >>> curve = PrecisionRecallCurve()(np.array([0.25, 0.5, 0.0, 0.75]), np.array([0, 1, 1, 0]))
        >>> [points.tolist() for points in curve]
        [[0.5, 0.3333333432674408, 0.5, 0.0, 1.0], [1.0, 0.5, 0.5, 0.0, 0.0], [0.0, 0.25, 0.5, 0.75]]
    """

    def score(self, scores: Any, truth: Any) -> Any:
        """Return (precisions, recalls, thresholds)."""
        false, true, thresholds = _curve(scores, truth)
        precision, recall = true / (true + false), true / true[-1].clip(1)
        precision[0] = 1
        return precision.flip(0), recall.flip(0), thresholds[1:].flip(0)


class AUC(ROC):
    """The area under the ROC curve, over all elements; nan when the targets are all 0 or all 1.

    Outputs are any scores. Outputs (n, 2) with n targets are two classes, of which 1 is the positive one.

    Args:
        threshold_num: None for the exact area, which keeps every score (5 bytes a row for scores in single precision);
            else at how many evenly spaced thresholds the curve is taken, as Keras does: its points are joined by
            lines, and outputs must be probabilities, or logits of a loss that takes them.

    Example:
        >>> AUC()(np.array([0.3, 0.4, 0.2, 0.5]), np.array([0, 1, 0, 0]))
        tensor(0.6667)
    """

    def __init__(self, threshold_num: int | None = None) -> None:
        if threshold_num is not None and threshold_num < 2:
            raise ArgumentError(
                f"AUC needs at least 2 thresholds; got threshold_num={threshold_num}. Pass 200, or None for the exact "
                f"area.",
                code="bad-threshold-count",
            )
        self.threshold_num, self.keeps_rows = threshold_num, threshold_num is None

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return the counts of ROC; with thresholds, the rows of each class in each bin, and outputs outside [0, 1]."""
        if self.threshold_num is None:
            return super().tally(output, target)
        chance = shapes.probabilities(output, self.link)
        chance, truth = shaped(self.name, chance[:, 1] if shapes.is_two_class(output, target) else chance, target)
        bins = self.threshold_num
        below = -(-chance.clip(0, 1) * (bins - 1) // 1)  # how many thresholds lie below: rounded up, at least 1
        place = (below.clip(1).nan_to_num().long() + bins * (truth > 0.5)).reshape(-1)  # nan goes to bin 0
        counts = place.new_zeros(2 * bins).index_add(0, place, place.new_ones(place.shape))  # bincount would wait
        return counts, shapes.count_outside(chance)

    def score(self, counts: Any, outside: Any) -> Any:
        """Return the area, given the tally."""
        if self.threshold_num is None:
            false, true, thresholds = _curve(counts, outside)
            has_nan = (thresholds != thresholds).any()
        else:
            advice = (
                "End the model with a sigmoid or softmax, or use AUC(), without threshold_num, which takes any scores."
            )
            shapes.refuse_outside(self.name, outside, advice)
            counts = counts.reshape(2, -1)
            has_nan = counts[:, 0].any()  # bin 0 holds nan alone; else it is the point of no positives
            false, true = counts.flip(1).roll(1, 1).cumsum(1)
        area = (false.diff() * (true[1:] + true[:-1])).sum() / 2
        return math.nan if has_nan else area / (false[-1] * true[-1])  # without one of the classes 0 / 0: nan


def _curve(scores: Tensor, truth: Tensor) -> Tensor:
    """Return false positives, true positives and the score at each distinct score, falling, after a point of none."""
    import torch

    scores, order = double(scores).sort(descending=True)
    ends = torch.cat([scores[1:] != scores[:-1], truth.new_ones(1)]).nonzero()[:, 0]  # the last of equal scores
    true = truth[order].cumsum(0)[ends]
    points = torch.stack([ends + 1 - true, true, scores[ends]])
    return torch.cat([points.new_tensor([[0], [0], [math.inf]]), points], 1)


class CustomizedMetric(Metric):
    """A metric of the user's own: a function f(output, target) -> number, called once over all rows.

    The function need not be a mean: every rank's outputs and targets are kept, joined in rank order, and handed over
    on the CPU in the model's own kind, tensors or numpy arrays; all of them when there are several outputs. A target
    (n,) beside an output (n, 1), or the reverse, takes the output's shape.

    Example:
        >>> def largest_error(output, target):
        ...     return abs(output - target).max()
        >>> metric = CustomizedMetric(largest_error)
        >>> metric(np.array([1.0, 2.0]), np.array([1.5, 2.0]))
        tensor(0.5000)
        >>> metric.name
        'largest_error'
    """

    keeps_rows = True

    def __init__(self, compute_function: Callable[[Any, Any], Any]) -> None:
        if not callable(compute_function):
            raise _no_metric(compute_function)
        self.compute_function = compute_function
        inner = getattr(compute_function, "func", compute_function)  # of a functools.partial
        self.name = getattr(inner, "__name__", type(compute_function).__name__)

    def tally(self, output: Tree, target: Tree) -> tuple[Any, ...]:
        """Return everything."""
        return output, target

    def score(self, output: Tree, target: Tree) -> float:
        """Return the value of the function."""
        need = f"The metric function {self.name!r} must return one number"
        return _one_number(self.compute_function(output, target), need, "Return for example its mean.")

    def _read(self, output: Tree, target: Tree) -> tuple[Tree, Tree]:
        output, target = (map_tree(functools.partial(_array, self.name), tree) for tree in (output, target))
        return output, target


class OwnMetric(CustomizedMetric):
    """A metric that counts in a `__call__` and a `compute` of the user's own: a copy of it sees all rows at once."""

    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self.name = metric.get_name() if isinstance(metric, Metric) else type(metric).__name__

    def score(self, output: Tree, target: Tree) -> float:
        """Return the value of a copy of the metric."""
        counter: Any = copy.deepcopy(self.compute_function)
        if hasattr(counter, "reset"):
            counter.reset()  # the program may have used it
        counter(output, target)
        need = f"compute() of the metric {self.name!r} must return one number"
        return _one_number(counter.compute(), need, "Return for example its mean.")


# Metrics that have a plain name.
NAMED: tuple[type[Metric], ...] = (
    AUC, MAE, MSE, ROC, Accuracy, BinaryAccuracy, BinaryCrossEntropy, CategoricalAccuracy, CategoricalCrossEntropy,
    F1Score, KLDivergence, Poisson, Precision, PrecisionRecallCurve, Recall, SparseCategoricalAccuracy,
    SparseCategoricalCrossEntropy, Top5Accuracy,
)  # fmt: skip
ALIASES: dict[str, type[Metric]] = {
    "acc": Accuracy, "f1": F1Score, "top5": Top5Accuracy, "meansquarederror": MSE, "meanabsoluteerror": MAE,
}  # fmt: skip


# ---- how outputs and targets meet -------------------------------------------------------------------------------


def _array(name: str, leaf: Any) -> Any:
    """Return a tensor without its gradient, or a numpy array of numbers."""
    if leaf is None or _is_tensor(leaf):
        return leaf if leaf is None else leaf.detach()
    array = array_of(leaf, f"the data of {name}")
    if array.dtype.kind in "OUSMmc":
        raise DataError(
            f"{name} needs numbers; got {array.dtype} ({type(leaf).__name__}). Encode labels as numbers.",
            code="not-numbers",
        )
    return array


def _first(name: str, tree: Tree) -> Tensor:
    """Return the first leaf of a tree as a tensor."""
    import torch

    leaves, _ = flatten(tree)
    if not leaves or leaves[0] is None:
        raise DataError(
            f"{name} compares outputs with targets; got {tree!r} for one of them. Give labels to evaluate.",
            code="metric-needs-targets",
        )
    array = _array(name, leaves[0])
    return array if _is_tensor(array) else torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _rows_in(name: str, output: Tree, target: Tree) -> int:
    """Return the number of rows, or refuse trees that do not agree on it."""
    shapes = [[tuple(leaf.shape) for leaf in flatten(tree)[0] if leaf is not None] for tree in (output, target)]
    counts = {shape[:1] for group in shapes for shape in group}
    if len(counts) != 1 or () in counts or not shapes[0]:
        words = [", ".join(map(str, group)) or "nothing" for group in shapes]
        raise DataError(
            f"{name} needs one target for every output, row by row; got output {words[0]} and target {words[1]}. "
            f"Let the model return an output for every row of its batch.",
            code="metric-rows-differ",
        )
    ((count,),) = counts
    return int(count)


def _beside(output: Tree, target: Tree) -> Tree:
    """Return the targets, those of (n,) beside an output (n, 1) or the reverse in the output's shape."""
    if isinstance(target, (list, tuple)):
        is_pair = isinstance(output, (list, tuple)) and len(output) == len(target)
        return type(target)(map(_beside, output, target)) if is_pair else target
    same = (
        hasattr(output, "shape") and hasattr(target, "shape") and shapes.core(output.shape) == shapes.core(target.shape)
    )
    return target.reshape(output.shape) if same else target


def _threshold(owner: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise ArgumentError(
            f"threshold of {owner} must be a number; got {value!r}. Pass 0.5 for probabilities, 0.0 for logits.",
            code="bad-threshold",
        )
    return float(value)


def _one_number(value: Any, need: str, advice: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = tuple(getattr(value, "shape", ()))
        raise ArgumentError(
            f"{need}; got {type(value).__name__} of shape {shape}. {advice}", code="metric-not-a-number"
        ) from error


# ---- tensors ----------------------------------------------------------------------------------------------------


def _is_tensor(leaf: object) -> bool:
    return hasattr(leaf, "detach")


def _copy(leaf: Any) -> Any:
    """Return a copy in this machine's memory: the caller may fill the old with the next batch, and a GPU is small."""
    return leaf.to("cpu", copy=True) if _is_tensor(leaf) else copy.copy(leaf)


def _concatenated(parts: tuple[Any, ...]) -> Any:
    import torch

    return None if parts[0] is None else torch.cat(parts) if _is_tensor(parts[0]) else np.concatenate(parts)


def _on_cpu(counts: Counts) -> Counts:
    return Counts(counts.rows, map_tree(lambda leaf: leaf.cpu() if _is_tensor(leaf) else leaf, counts.values))
