"""Validation: BigDL's validation methods as metrics of ours. Owns labels that count from 1, and rankings in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orca.core import metrics
from orca.core.metrics import MeanMetric, Metric
from orca.core.shapes import classes_last, largest
from orca.errors import DataError

Tensor = Any


class _ClassMetric(MeanMetric):
    """A metric that reads class numbers.

    Args:
        first_class: The number of the first class: 1, as BigDL counts; 0 for labels of TensorFlow.
    """

    def __init__(self, *, first_class: int = 1) -> None:
        self.first_class = first_class


class Top1Accuracy(_ClassMetric):
    """How often the largest class is the right one; labels count from 1. A single output is 1 from 0.5 on, else 0."""

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        if output.ndim == 1 or output.shape[1] == 1:
            return (output.reshape(-1) >= 0.5) == target.reshape(-1)
        scores, labels = classes_last(self.name, output, target)
        return largest(scores) + self.first_class == labels


class Top5Accuracy(metrics.Top5Accuracy):
    """How often the right class is among the five largest; labels count from 1."""

    def __init__(self, *, first_class: int = 1) -> None:
        super().__init__(zero_based_label=not first_class)


class TreeNNAccuracy(_ClassMetric):
    """How often the class of a tree's first node is the right one; labels count from 1."""

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        scores = output[:, 0] if output.ndim == 3 else output
        labels = target.reshape(len(target), -1)[:, 0]
        return (scores[:, 0] >= 0.5) == labels if scores.shape[1] == 1 else largest(scores) + self.first_class == labels


class MAE(_ClassMetric):
    """The mean absolute error; of class scores that of the largest class, which counts from 1."""

    def _values(self, output: Tensor, target: Tensor) -> Tensor:
        if output.numel() == target.numel():
            return (output - target.reshape(output.shape)).abs()
        scores, labels = classes_last(self.name, output, target)
        return (largest(scores) + self.first_class - labels).abs().double()


def with_classes_from_zero(metrics: Sequence[Metric]) -> list[Metric]:
    """Return metrics for labels of TensorFlow, which count from 0: as the older systems count for its models."""
    kinds = (_ClassMetric, Top5Accuracy)
    return [type(each)(first_class=0).named(each.name) if isinstance(each, kinds) else each for each in metrics]


class Loss(Metric):
    """The mean of a criterion, ClassNLLCriterion unless given."""

    def __init__(self, cri: Any = None) -> None:
        from orca_classic.bigdl.criterion import CRITERIONS

        self.criterion = CRITERIONS["ClassNLLCriterion"]() if cri is None else cri

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return the sum of losses, and the count that their mean divides by."""
        module, kind = self.criterion.to_torch(), self.criterion.reduction
        count = kind(target).sum() if callable(kind) else len(output)
        loss = module(output, target)
        return loss if kind == "sum" else loss * count, count


class HitRatio(Metric):
    """How often the positive row of a group is among its first k.

    A group is one positive row (its label is 1) and neg_num others, in the order of the data.
    """

    keeps_rows = True

    def __init__(self, k: int = 10, neg_num: int = 100) -> None:
        self.k, self.neg_num = k, neg_num

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return the score and the label of each row."""
        scores = output.reshape(len(output), -1)
        return scores[:, -1], target.reshape(len(target), -1)[:, 0]

    def score(self, scores: Any, labels: Any) -> Any:
        """Return the mean over the groups."""
        size = self.neg_num + 1
        groups, rest = divmod(len(scores), size)
        if rest:
            raise DataError(f"{self.name} needs groups of {size} rows; got {len(scores)} rows. Check neg_num=.")
        points, right = scores.reshape(groups, size), labels.reshape(groups, size) == labels.max()
        own = (points * right).sum(1, keepdim=True)
        return self._gain(((points > own) & ~right).sum(1)).mean()

    def _gain(self, place: Tensor) -> Tensor:
        return (place < self.k).double()


class NDCG(HitRatio):
    """The discounted gain of the positive row of each group: 1 / log2(its place + 1) within the first k."""

    def _gain(self, place: Tensor) -> Tensor:
        return (place < self.k) / (place + 2).double().log2()


class MeanAveragePrecision(Metric):
    """The mean over classes of the average precision of the first k rows; labels count from 0."""

    keeps_rows = True

    def __init__(self, k: int, classes: int) -> None:
        self.k, self.classes = k, classes

    def tally(self, output: Tensor, target: Tensor) -> tuple[Any, ...]:
        """Return scores and labels."""
        return output, target.reshape(-1)

    def score(self, scores: Any, labels: Any) -> Any:
        """Return the mean of all classes."""
        import torch

        values = []
        for number in range(self.classes):
            order = scores[:, number].argsort(descending=True, stable=True)[: self.k]
            hits = (labels[order] == number).double()
            positives = (labels == number).sum()
            precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1, dtype=torch.float64)
            values.append((precision * hits).sum() / positives if positives else hits.sum() * 0)
        return torch.stack(values).mean()


METHODS = {kind.__name__: kind for kind in (Top1Accuracy, Top5Accuracy, TreeNNAccuracy, MAE, Loss, HitRatio, NDCG,
                                            MeanAveragePrecision)}  # fmt: skip
