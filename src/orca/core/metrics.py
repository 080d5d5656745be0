"""Metrics: how good a model is, exact over ranks for any split of the rows. Owns what each metric counts, and merging.

A Metric is what the user writes down, ``Accuracy()``; it only remembers. ``metric.start()`` gives a Meter, which
counts: ``update`` per batch, ``state`` to send what it counted, ``merge`` to add what others counted, ``result``.
A meter keeps sums (SumMeter) or, where a metric is no function of sums, the rows themselves (RowMeter): never means.

Outputs and targets are torch tensors or numpy arrays (other frameworks hand over numpy arrays). Sums stay on the
tensors' device, and nothing waits for it, until ``state`` or ``result`` is asked for; rows that are kept go to this
machine's memory at once. Of a model with several outputs
a metric sees the first, and the first target; a CustomizedMetric gets everything.
The result over no rows at all is nan.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from orca.core.tree import Structure, flatten, map_tree, unflatten
from orca.errors import ArgumentError, DataError

__all__ = [
    "AUC", "MAE", "MSE", "Accuracy", "BinaryAccuracy", "BinaryCrossEntropy", "CategoricalAccuracy",
    "CategoricalCrossEntropy", "CustomizedMetric", "F1Score", "KLDivergence", "Meter", "Metric", "Poisson",
    "Precision", "Recall", "RowMeter", "Rows", "SparseCategoricalAccuracy", "SparseCategoricalCrossEntropy",
    "SumMeter", "SumMetric", "Sums", "Top5Accuracy", "metrics_of", "result_dict",
]  # fmt: skip

Array = Any  # a torch tensor or a numpy array
Tree = Any  # an Array, or tuples, lists and dicts of them

EPSILON = 1e-7  # Keras' own: probabilities are kept this far from 0 and 1 before a logarithm
SLACK = 1e-6  # how far rounding may carry a probability out of [0, 1]
TAKEN = ("loss", "num_samples", "profile", "val_loss")  # keys of the statistics that are not metrics


def metrics_of(spec: object) -> list[Metric]:
    """Return the metrics a user asked for, each with a name of its own.

    Args:
        spec: Nothing, a metric of ours or of torchmetrics, its plain name ("accuracy"), a function
            ``f(output, target)``, a list of these, or a dict name -> one of these.
            A metric given by name has that name, as it is written. Given objects are never changed: a name from a dict
            goes to a copy. Names that differ in case alone count as equal, as some statistics are lower-case; the
            second becomes ``Accuracy_2``.

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
        wanted = []
        for name, item in spec.items():
            members = _metrics_of(item)
            wanted += [m.named(str(name) if len(members) == 1 else f"{name}_{m.name}") for m in members]
    else:
        wanted = [m for item in (spec if isinstance(spec, (list, tuple)) else [spec]) for m in _metrics_of(item)]
    return _uniquely_named(wanted)


def result_dict(meters: Iterable[Meter]) -> dict[str, float]:
    """Return name -> result of every meter."""
    return {meter.name: meter.result() for meter in meters}


def _metrics_of(item: object) -> list[Metric]:
    if isinstance(item, Metric):
        return [item]
    if isinstance(item, str):
        return [_by_name(item)]
    if "torchmetrics" in sys.modules:
        from orca.core.torchmetric import torch_metrics

        theirs = torch_metrics(item)
        if theirs is not None:
            return theirs
    if callable(item) and not isinstance(item, type):
        return [CustomizedMetric(item)]
    raise _no_metric(item)


def _by_name(word: str) -> Metric:
    """Return the metric of a plain name, however that is written: "accuracy", "Top5Accuracy", "binary_accuracy"."""
    name = word.lower().replace("_", "").replace("-", "").replace(" ", "")
    kind = ALIASES.get(name) or next((kind for kind in NAMED if kind.__name__.lower() == name), None)
    if kind is None:
        known = ", ".join(sorted(kind.__name__ for kind in NAMED))
        raise ArgumentError(f"There is no metric named {word!r}. Pass one of {known}, or a function f(output, target).")
    return kind().named(word)


def _no_metric(item: object) -> ArgumentError:
    if isinstance(item, type) and issubclass(item, Metric):
        got, advice = f"the class {item.__name__}", f"Write {item.__name__}(), with the brackets."
    else:
        got = type(item).__name__
        advice = "Pass metrics such as [Accuracy()] from orca.learn.metrics, or functions f(output, target)."
    return ArgumentError(f"Only orca metrics and customized functions are supported, but get {got}. {advice}")


def _uniquely_named(metrics: list[Metric]) -> list[Metric]:
    seen: set[str] = set()
    unique = []
    for metric in metrics:
        name, number = metric.name, 1
        if name.lower() in TAKEN:
            raise ArgumentError(
                f"A metric cannot be named {name!r}: the statistics hold something else under that key. "
                f"Give it another name with a dict: metrics={{'my_{name}': ...}}."
            )
        while name.lower() in seen:
            number += 1
            name = f"{metric.name}_{number}"
        seen.add(name.lower())
        unique.append(metric if name == metric.name else metric.named(name))
    return unique


class Meter(Protocol):
    """Count one metric over batches of rows; the meters of all ranks merge into the result over all rows."""

    name: str

    def update(self, output: Tree, target: Tree, rows: int | None = None) -> None:
        """Count a batch; of a padded batch, only its first ``rows`` rows."""

    def state(self) -> Any:
        """Return what was counted: picklable, of numpy arrays and numbers alone."""

    def merge(self, *states: Any) -> None:
        """Add what other meters of the same metric counted, in the order given."""

    def result(self) -> float:
        """Return the metric over every row counted or merged; nan when there was none."""


class Metric:
    """Be what a user writes down for a metric: it remembers its options and starts meters, and never changes."""

    name: str = "Metric"

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def start(self) -> Meter:
        """Return a meter of this metric that has seen no rows."""
        raise NotImplementedError(f"{type(self).__name__} has no start(). Derive from SumMetric, or return a Meter.")

    def named(self, name: str) -> Metric:
        """Return this metric under another name."""
        renamed = copy.copy(self)
        renamed.name = name
        return renamed

    def get_name(self) -> str:
        """Return the name, as the statistics show it."""
        return self.name

    def get_metric(self, backend: str = "bigdl") -> Meter:
        """Return a new meter; one kind serves every backend."""
        return self.start()

    @staticmethod
    def convert_metrics_list(metrics: object, backend: str = "bigdl") -> list[Meter] | None:
        """Return a new meter for each metric."""
        return None if metrics is None else [metric.start() for metric in metrics_of(metrics)]

    @staticmethod
    def convert_metrics_dict(metrics: object, backend: str = "bigdl") -> dict[str, Meter]:
        """Return name -> a new meter for each metric."""
        return {metric.name: metric.start() for metric in metrics_of(metrics)}


class SumMetric(Metric):
    """Be a metric that is a function of sums over the rows. A new one needs a tally and, if no mean, a score."""

    def start(self) -> SumMeter:
        """Return a meter of this metric that has seen no rows."""
        return SumMeter(self.name, self.tally, self.score)

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return a batch's sums: numbers or arrays of its own kind that may be added to those of other batches."""
        raise NotImplementedError(f"{type(self).__name__} has no tally(output, target).")

    def score(self, total: Any, count: Any) -> float:
        """Return the result from the sums over all rows, given as float64 arrays: their mean."""
        return float(total / count)


class Accuracy(SumMetric):
    """Measure how often the predicted class is the right one.

    Outputs (n,) or (n, 1) are probabilities, and say 1 above 0.5 (integers say themselves). Of outputs (n, c) the
    largest class counts. Classes lie on axis 1, or on the last axis where only that fits the labels. Targets are
    class numbers or, in the shape of (n, c) outputs, one-hot.

    Args:
        zero_based_label: Whether the class numbers of (n, c) outputs start at 0; else they start at 1.

    Example:
        >>> meter = Accuracy().start()
        >>> meter.update(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
        >>> meter.result()
        0.5
    """

    def __init__(self, zero_based_label: bool = True) -> None:
        self.zero_based_label = zero_based_label

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return right answers, and answers."""
        if output.ndim == 1 or output.shape[1] == 1:
            said = output > 0.5 if _is_float(output) else output
            right = _double(said) == _double(_shaped(self.name, output, target))
        elif output.shape == target.shape:
            right = _argmax(output, -1) == _argmax(target, -1)
        else:
            axis, labels = _class_labels(self.name, output, target)
            right = _double(_argmax(output, axis)) + (0 if self.zero_based_label else 1) == _double(labels)
        return right.sum(), _size(right)


class SparseCategoricalAccuracy(SumMetric):
    """Measure how often the largest class of (n, c) outputs is the right one; targets are class numbers from 0."""

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return right answers, and answers."""
        axis, labels = _class_labels(self.name, output, target)
        right = _double(_argmax(output, axis)) == _double(labels)
        return right.sum(), _size(right)


class CategoricalAccuracy(SumMetric):
    """Measure how often the largest class (last axis) of the outputs is the right one; targets are one-hot."""

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return right answers, and answers."""
        right = _argmax(output, -1) == _argmax(_one_hot(self.name, output, target), -1)
        return right.sum(), _size(right)


class BinaryAccuracy(SumMetric):
    """Measure how often an output is on the right side of a threshold, over all elements; targets are 0 or 1."""

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = threshold

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return right answers, and answers."""
        right = _double(_double(output) > self.threshold) == _double(_shaped(self.name, output, target))
        return right.sum(), _size(right)


class Top5Accuracy(SumMetric):
    """Measure how often the right class is among the five largest; targets are class numbers from 0, or one-hot.

    Of equal scores the lower class comes first, as in argmax.
    """

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return right answers, and answers."""
        if output.ndim > 1 and output.shape == target.shape:
            axis, labels = -1, _argmax(target, -1)
        else:
            axis, labels = _class_labels(self.name, output, target)
        scores = _double(output)
        known, label = _known_labels(labels, scores, axis)
        own = _take(scores, label, axis)
        ahead = (scores > own) | ((scores == own) & (_class_numbers(scores, axis) < label))
        right = (ahead.sum(axis).reshape(label.shape) < 5) & known & (own == own)
        return right.sum(), _size(right)


class MSE(SumMetric):
    """Measure the mean square error over all elements."""

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return the sum of squares, and elements."""
        error = _double(output) - _double(_shaped(self.name, output, target))
        return (error * error).sum(), _size(error)


class MAE(SumMetric):
    """Measure the mean absolute error over all elements."""

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return the sum of absolute errors, and elements."""
        error = _double(output) - _double(_shaped(self.name, output, target))
        return abs(error).sum(), _size(error)


class Poisson(SumMetric):
    """Measure the mean of output - target * log(output) over all elements."""

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return the sum of losses, and elements."""
        rate, seen = _double(output), _double(_shaped(self.name, output, target))
        return (rate - seen * _log(rate + EPSILON)).sum(), _size(rate)


class _ProbabilityMetric(SumMetric):
    """Be a mean over outputs that must be probabilities. What is wrong with them is counted, and told at the end."""

    def score(self, total: Any, count: Any, outside: Any = 0, unknown: Any = 0) -> float:
        """Return the mean, or refuse outputs outside [0, 1] and labels that are no class."""
        _refuse_outside(self.name, outside, "End the model with a sigmoid or softmax, or evaluate its loss instead.")
        if unknown:
            raise DataError(
                f"{self.name} needs class numbers from 0 to one less than the number of outputs; {int(unknown)} labels "
                f"are not. Subtract 1 from labels that start at 1, and leave out rows without a class."
            )
        return float(total / count)


class BinaryCrossEntropy(_ProbabilityMetric):
    """Measure the cross entropy of probabilities against targets of 0 and 1, the mean over all elements."""

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return the sum of losses, elements, and outputs outside [0, 1]."""
        chance, truth = _double(output), _double(_shaped(self.name, output, target))
        kept = chance.clip(EPSILON, 1 - EPSILON)
        loss = -(truth * _log(kept) + (1 - truth) * _log(1 - kept))
        return loss.sum(), _size(loss), _outside(chance)


class CategoricalCrossEntropy(_ProbabilityMetric):
    """Measure the cross entropy of class probabilities (last axis) against one-hot targets, the mean over rows."""

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return the sum of losses, how many, and outputs outside [0, 1]."""
        chance, truth = _double(output), _double(_one_hot(self.name, output, target))
        loss = -truth * _log(chance.clip(EPSILON, 1 - EPSILON))
        return loss.sum(), _size(loss) / loss.shape[-1], _outside(chance)


class SparseCategoricalCrossEntropy(_ProbabilityMetric):
    """Measure the cross entropy of (n, c) class probabilities against class numbers from 0, the mean over rows."""

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return the sum of losses, how many, outputs outside [0, 1], and labels that are no class."""
        axis, labels = _class_labels(self.name, output, target)
        chance = _double(output)
        known, label = _known_labels(labels, chance, axis)
        loss = -_log(_take(chance, label, axis).clip(EPSILON, 1 - EPSILON))
        return loss.sum(), _size(loss), _outside(chance), _size(known) - known.sum()


class KLDivergence(_ProbabilityMetric):
    """Measure the Kullback-Leibler divergence of class probabilities (last axis) from the targets', mean over rows."""

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return the sum of divergences, how many, and outputs outside [0, 1]."""
        chance, truth = _double(output), _double(_one_hot(self.name, output, target))
        loss = truth * (_log(truth.clip(EPSILON, 1)) - _log(chance.clip(EPSILON, 1)))
        return loss.sum(), _size(loss) / loss.shape[-1], _outside(chance)


class _PositivesMetric(SumMetric):
    """Be a metric of true positives, false positives and false negatives."""

    def tally(self, output: Array, target: Array) -> tuple[Any, ...]:
        """Return true positives, false positives and false negatives."""
        if _is_two_class(output, target):
            said, target = output[:, 1] > output[:, 0], target.reshape(-1)
        else:
            said, target = _double(output) > 0.5, _shaped(self.name, output, target)
        truth = _double(target) > 0.5
        return (said & truth).sum(), (said & ~truth).sum(), (~said & truth).sum()


class Precision(_PositivesMetric):
    """Measure which part of the outputs that say 1 is right; 0 when none says 1.

    Outputs say 1 above 0.5; (n, 2) outputs with n targets (probabilities or logits) where class 1 is the larger.
    """

    def score(self, true: Any, false: Any, missed: Any = 0) -> float:
        """Return true / said positives."""
        return _part(true, true + false)


class Recall(_PositivesMetric):
    """Measure which part of the targets 1 is found; 0 when there is none. What says 1 is as in Precision."""

    def score(self, true: Any, false: Any, missed: Any = 0) -> float:
        """Return true / actual positives."""
        return _part(true, true + missed)


class F1Score(_PositivesMetric):
    """Measure the harmonic mean of precision and recall; 0 when there are no positives. See Precision."""

    def score(self, true: Any, false: Any, missed: Any = 0) -> float:
        """Return the harmonic mean of precision and recall."""
        return _part(2 * true, 2 * true + false + missed)


class AUC(Metric):
    """Measure the area under the ROC curve, over all elements; nan when the targets are all 0 or all 1.

    Outputs (n, 2) with n targets are two classes, of which 1 is the positive one.

    Args:
        threshold_num: At how many evenly spaced thresholds the curve is taken (its points are joined by lines, as
            Keras does); outputs must be probabilities. None: the exact area, of any scores; keeps every score.

    Example:
        >>> meter = AUC(threshold_num=None).start()
        >>> meter.update(np.array([0.3, 0.4, 0.2, 0.5]), np.array([0, 1, 0, 0]))
        >>> round(meter.result(), 4)
        0.6667
    """

    def __init__(self, threshold_num: int | None = 200) -> None:
        if threshold_num is not None and threshold_num < 2:
            raise ArgumentError(
                f"AUC needs at least 2 thresholds; got threshold_num={threshold_num}. Pass 200, or None for the exact "
                f"area."
            )
        self.threshold_num = threshold_num

    def start(self) -> Meter:
        """Return a meter of this metric that has seen no rows."""
        if self.threshold_num is None:
            return RowMeter(self.name, self._scores, exact_auc)
        return SumMeter(self.name, self._histograms, self._area)

    def _scores(self, output: Tree, target: Tree, rows: int | None) -> tuple[int, Tree, Tree]:
        output, target = _pair(self.name, output, target, rows)
        if _is_two_class(output, target):
            score = _double(output[:, 1]) - _double(output[:, 0])  # right for logits too
            return output.shape[0], score, target.reshape(-1)
        return output.shape[0], output.reshape(-1), _shaped(self.name, output, target).reshape(-1)

    def _histograms(self, output: Array, target: Array) -> tuple[Any, ...]:
        if _is_two_class(output, target):
            output, target = output[:, 1], target.reshape(-1)
        score, truth = _double(output), _double(_shaped(self.name, output, target)) > 0.5
        bins = self.threshold_num or 0
        passed = -(-score.clip(0, 1) * (bins - 1) // 1)  # how many thresholds lie below: rounded up, at least 1
        return _histogram(_whole(passed.clip(1)) + bins * _whole(truth), 2 * bins), _outside(score)

    def _area(self, counts: Any, outside: Any) -> float:
        _refuse_outside(
            self.name,
            outside,
            "End the model with a sigmoid or softmax, or use AUC(threshold_num=None), which takes any scores.",
        )
        negatives, positives = counts.reshape(2, -1)
        if negatives[0] or positives[0] or not negatives.any() or not positives.any():  # bin 0 holds nan alone
            return math.nan
        false, true = (np.cumsum(part[::-1]) for part in (negatives, positives))  # said 1 at falling thresholds
        false, true = (np.concatenate(([0.0], part)) for part in (false, true))
        return float((np.diff(false) * (true[1:] + true[:-1])).sum() / (2 * false[-1] * true[-1]))


def exact_auc(scores: Array, targets: Array) -> float:
    """Return the chance that a positive scores above a negative, ties counting half; nan without one of each."""
    scores, truth = np.asarray(scores), np.asarray(targets) > 0.5
    if truth.all() or not truth.any() or (scores != scores).any():
        return math.nan
    _, place = np.unique(scores, return_inverse=True)
    positives, everyone = np.bincount(place, weights=truth), np.bincount(place)
    negatives = everyone - positives
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / (positives.sum() * negatives.sum()))


class CustomizedMetric(Metric):
    """Be a metric of the user's own: a function f(output, target) -> number, called once over all rows.

    The function need not be a mean: every rank's outputs and targets are kept, joined in rank order, and handed over
    on the CPU as what the model gives, tensors (bfloat16 as float32) or numpy arrays; all of them when there are
    several outputs. A target (n,) beside an output (n, 1), or the reverse, takes the output's shape.

    Example:
        >>> def largest_error(output, target):
        ...     return abs(output - target).max()
        >>> meter = CustomizedMetric(largest_error).start()
        >>> meter.update(np.array([1.0, 2.0]), np.array([1.5, 2.0]))
        >>> meter.name, meter.result()
        ('largest_error', 0.5)
    """

    def __init__(self, compute_function: Callable[[Any, Any], Any]) -> None:
        if not callable(compute_function):
            raise _no_metric(compute_function)
        self.compute_function = compute_function
        inner = getattr(compute_function, "func", compute_function)  # of a functools.partial
        self.name = getattr(inner, "__name__", type(compute_function).__name__)

    def start(self) -> RowMeter:
        """Return a meter of this metric that has seen no rows."""
        return RowMeter(self.name, self._everything, self._score)

    def _everything(self, output: Tree, target: Tree, rows: int | None) -> tuple[int, Tree, Tree]:
        output, target = (map_tree(lambda leaf: _cut(_array(self.name, leaf), rows), x) for x in (output, target))
        return _rows_in(self.name, output, target, rows), output, _beside(output, target)

    def _score(self, output: Tree, target: Tree) -> float:
        value = self.compute_function(output, target)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(
                f"The metric function {self.name!r} must return one number; got {type(value).__name__} of shape "
                f"{tuple(getattr(value, 'shape', ()))}. Return for example its mean."
            ) from error


# What may be asked for by its name.
NAMED: tuple[type[Metric], ...] = (
    AUC, MAE, MSE, Accuracy, BinaryAccuracy, BinaryCrossEntropy, CategoricalAccuracy, CategoricalCrossEntropy, F1Score,
    KLDivergence, Poisson, Precision, Recall, SparseCategoricalAccuracy, SparseCategoricalCrossEntropy, Top5Accuracy,
)  # fmt: skip
ALIASES: dict[str, type[Metric]] = {
    "acc": Accuracy, "f1": F1Score, "top5": Top5Accuracy, "meansquarederror": MSE, "meanabsoluteerror": MAE,
}  # fmt: skip


@dataclass(frozen=True)
class Sums:
    """What a SumMeter counted: over how many rows, and float64 arrays that add."""

    rows: int
    values: tuple[np.ndarray, ...]

    def plus(self, other: Sums) -> Sums:
        """Return both together."""
        return Sums(self.rows + other.rows, _add(self.values, other.values))


class SumMeter:
    """Count sums.

    Args:
        name: The name of the metric.
        tally: (output, target) of a batch -> its sums. Both are arrays of one kind on one device, with equal rows.
        score: The sums over all rows -> the result.
    """

    def __init__(self, name: str, tally: Callable[..., tuple[Any, ...]], score: Callable[..., float]) -> None:
        self.name = name
        self._tally, self._score = tally, score
        self._merged = Sums(0, ())
        self._rows = 0
        self._live: tuple[Any, ...] = ()  # the batches' sums, still on their device

    def update(self, output: Tree, target: Tree, rows: int | None = None) -> None:
        """Count a batch; of a padded batch, only its first ``rows`` rows."""
        output, target = _pair(self.name, output, target, rows)
        if output.shape[0]:
            self._live = _add(self._live, self._tally(output, target))
            self._rows += output.shape[0]

    def state(self) -> Sums:
        """Return what was counted."""
        return self._merged.plus(Sums(self._rows, tuple(_numpy(value).astype(np.float64) for value in self._live)))

    def merge(self, *states: Sums) -> None:
        """Add what other meters of the same metric counted."""
        for state in states:
            self._merged = self._merged.plus(state)

    def result(self) -> float:
        """Return the metric over every row counted or merged; nan when there was none."""
        total = self.state()
        return float(self._score(*total.values)) if total.rows else math.nan


@dataclass(frozen=True)
class Rows:
    """What a RowMeter keeps of some rows: the leaves and the structure of (output, target); were they tensors?"""

    rows: int
    tensors: bool
    leaves: tuple[Array, ...]
    structure: Structure


class RowMeter:
    """Keep rows, in the order they come.

    Args:
        name: The name of the metric.
        keep: (output, target, rows) of a batch -> (how many rows, what to keep of its output, and of its target).
        score: What was kept of all rows (output, target) -> the result.
    """

    def __init__(
        self,
        name: str,
        keep: Callable[[Tree, Tree, int | None], tuple[int, Tree, Tree]],
        score: Callable[[Tree, Tree], float],
    ) -> None:
        self.name = name
        self._keep, self._score = keep, score
        self._parts: list[Rows] = []

    def update(self, output: Tree, target: Tree, rows: int | None = None) -> None:
        """Keep a batch; of a padded batch, only its first ``rows`` rows."""
        count, *pair = self._keep(output, target, rows)
        if count:
            leaves, structure = flatten(tuple(pair))
            self._parts.append(Rows(count, any(map(_is_tensor, leaves)), tuple(map(_copy, leaves)), structure))

    def state(self) -> Rows:
        """Return what was kept, as numpy arrays."""
        if not self._parts:
            return Rows(0, False, (), None)
        first = self._parts[0]
        leaves = zip(*(part.leaves for part in self._parts), strict=True)
        return Rows(sum(part.rows for part in self._parts), first.tensors, tuple(map(_joined, leaves)), first.structure)

    def merge(self, *states: Rows) -> None:
        """Put the rows of other meters of the same metric behind those kept, in the order given."""
        self._parts += [state for state in states if state.rows]

    def result(self) -> float:
        """Return the metric over every row kept or merged; nan when there was none."""
        total = self.state()
        if not total.rows:
            return math.nan
        leaves = map(_tensor, total.leaves) if total.tensors else iter(total.leaves)
        return self._score(*unflatten(total.structure, leaves))


# ---- how outputs and targets meet -------------------------------------------------------------------------------


def _pair(name: str, output: Tree, target: Tree, rows: int | None) -> tuple[Array, Array]:
    """Return the first output and target as arrays of one kind, on the output's device, cut to equal rows."""
    output, target = _array(name, _first(name, output)), _array(name, _first(name, target))
    if not _is_tensor(output):
        target = _numpy(target)
    else:
        target = (target if _is_tensor(target) else _tensor(target.copy())).to(output.device)
    output, target = _cut(output, rows), _cut(target, rows)
    _rows_in(name, output, target, rows)
    return output, target


def _cut(leaf: Array, rows: int | None) -> Array:
    return leaf[:rows] if rows is not None and leaf is not None and leaf.ndim else leaf


def _rows_in(name: str, output: Tree, target: Tree, rows: int | None) -> int:
    """Return the number of rows, or refuse what does not agree on it."""
    shapes = [[tuple(leaf.shape) for leaf in flatten(tree)[0] if leaf is not None] for tree in (output, target)]
    counts = {shape[:1] for group in shapes for shape in group}
    if len(counts) != 1 or () in counts or not shapes[0]:
        got = [", ".join(map(str, group)) or "nothing" for group in shapes]
        raise DataError(
            f"{name} needs one target for every output, row by row; got output {got[0]} and target {got[1]}. "
            f"Let the model return an output for every row of its batch."
        )
    ((count,),) = counts
    if rows is not None and count != rows:
        raise DataError(f"{name} was told to count {rows} rows; got a batch of {count}. Pass rows=None to count all.")
    return int(count)


def _first(name: str, tree: Tree) -> Array:
    leaves, _ = flatten(tree)
    if not leaves or leaves[0] is None:
        raise DataError(f"{name} compares outputs with targets; got {tree!r} for one of them. Give labels to evaluate.")
    return leaves[0]


def _array(name: str, leaf: Any) -> Array:
    if leaf is None:
        return None
    if _is_tensor(leaf):
        return leaf.detach()
    array = np.asarray(leaf)
    if array.dtype.kind in "OUSMmc":
        raise DataError(f"{name} needs numbers; got {array.dtype} ({type(leaf).__name__}). Encode labels as numbers.")
    return array


def _unfit(name: str, output: Array, target: Array, need: str) -> DataError:
    return DataError(f"{name} needs {need}; got output {tuple(output.shape)} and target {tuple(target.shape)}.")


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its axes of length 1, but with its rows."""
    return (*shape[:1], *(length for length in shape[1:] if length != 1))


def _shaped(name: str, output: Array, target: Array) -> Array:
    """Return the target in the output's shape: (n,) and (n, 1) are the same, nothing is ever broadcast."""
    if _core(output.shape) != _core(target.shape):
        raise _unfit(name, output, target, "targets in the shape of the outputs")
    return target.reshape(output.shape)


def _one_hot(name: str, output: Array, target: Array) -> Array:
    if output.ndim < 2 or output.shape != target.shape:
        need = "outputs (n, classes) and one-hot targets in the same shape"
        raise _unfit(name, output, target, f"{need} (the metrics named Sparse... take class numbers)")
    return target


def _class_labels(name: str, output: Array, target: Array) -> tuple[int, Array]:
    """Return the axis of the output that holds classes, and the labels in the output's shape without it."""
    shape = tuple(output.shape)
    for axis in (1, len(shape) - 1):  # torch's place for classes, then Keras'
        rest = shape[:axis] + shape[axis + 1 :]
        if len(shape) > 1 and _core(rest) == _core(target.shape):
            return axis, target.reshape(rest)
    raise _unfit(name, output, target, "outputs (n, classes) and a class number per row (n,)")


def _known_labels(labels: Array, scores: Array, axis: int) -> tuple[Array, Array]:
    """Return which labels are classes, and all as whole numbers safe to index with; their class axis has length 1."""
    shape = list(scores.shape)
    classes, shape[axis] = shape[axis], 1
    label = _double(labels).reshape(tuple(shape))
    return (label >= 0) & (label < classes), _whole(label.clip(0, classes - 1))


def _is_two_class(output: Array, target: Array) -> bool:
    return output.ndim == 2 and output.shape[1] == 2 and len(_core(target.shape)) == 1


def _outside(chance: Array) -> Array:
    return ((chance < -SLACK) | (chance > 1 + SLACK)).sum()


def _refuse_outside(name: str, outside: Any, advice: str) -> None:
    # Asked at the end: to look at each batch would wait for the device each time.
    if outside:
        raise DataError(f"{name} needs probabilities as outputs; {int(outside)} lie outside [0, 1]. {advice}")


def _part(some: Any, of: Any) -> float:
    return float(some / of) if of else 0.0


def _add(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    if not left or not right:
        return left or right
    return tuple(a + b for a, b in zip(left, right, strict=True))


def _beside(output: Tree, target: Tree) -> Tree:
    """Return the targets, those of (n,) beside an output (n, 1) or the reverse in the output's shape."""
    if isinstance(target, (list, tuple)):
        paired = isinstance(output, (list, tuple)) and len(output) == len(target)
        return type(target)(map(_beside, output, target)) if paired else target
    same = hasattr(output, "shape") and hasattr(target, "shape") and _core(output.shape) == _core(target.shape)
    return target.reshape(output.shape) if same else target


def _copy(leaf: Array) -> Array:
    """Return a copy in this machine's memory: the caller may fill the old with the next batch, and a GPU is small."""
    if leaf is None:
        return None
    return leaf.to("cpu", copy=True) if _is_tensor(leaf) else leaf.copy()


def _joined(parts: tuple[Array, ...]) -> Array:
    return None if parts[0] is None else np.concatenate([_numpy(part) for part in parts])


# ---- what torch and numpy call differently ----------------------------------------------------------------------


def _is_tensor(leaf: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(leaf, torch.Tensor)


def _is_float(array: Array) -> bool:
    return bool(array.is_floating_point()) if _is_tensor(array) else array.dtype.kind not in "biu"


def _size(array: Array) -> int:
    return math.prod(array.shape)


def _numpy(array: Any) -> np.ndarray:
    if not _is_tensor(array):
        return np.asarray(array)
    array = array.detach().cpu()
    try:
        return np.asarray(array.numpy())
    except TypeError:  # bfloat16: numpy has none
        return np.asarray(array.float().numpy())


def _tensor(array: Any) -> Array:
    import torch

    return None if array is None else torch.from_numpy(array)


def _double(array: Array) -> Array:
    if not _is_tensor(array):
        return array.astype(np.float64, copy=False)
    return (array.cpu() if array.device.type == "mps" else array).double()  # Apple's GPUs have no float64


def _whole(array: Array) -> Array:
    """Return whole numbers; nan becomes 0."""
    if _is_tensor(array):
        return array.nan_to_num().long()
    return np.nan_to_num(array).astype(np.int64)


def _argmax(array: Array, axis: int) -> Array:
    return (array if _is_float(array) else _double(array)).argmax(axis)


def _log(array: Array) -> Array:
    if _is_tensor(array):
        return array.log()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(array)


def _take(array: Array, index: Array, axis: int) -> Array:
    return array.gather(axis, index) if _is_tensor(array) else np.take_along_axis(array, index, axis)


def _class_numbers(scores: Array, axis: int) -> Array:
    """Return 0, 1, 2... along the class axis."""
    shape = [1] * scores.ndim
    shape[axis] = scores.shape[axis]
    numbers: Array = np.arange(scores.shape[axis])
    if _is_tensor(scores):
        import torch

        numbers = torch.arange(scores.shape[axis], device=scores.device)
    return numbers.reshape(tuple(shape))


def _histogram(index: Array, bins: int) -> Array:
    index = index.reshape(-1)
    if _is_tensor(index):  # not bincount, which waits for the device
        ones = index.new_ones(index.shape)
        return index.new_zeros(bins).index_add(0, index, ones)
    return np.bincount(index, minlength=bins)
