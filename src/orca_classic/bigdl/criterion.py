"""Criterion: BigDL's losses as rows of a table. Owns their formulas, labels that count from 1, and their reductions.

A row is a name, a function of `x` (the output), `target` and its arguments, and a docstring. `to_torch()` returns the
loss as torch calls losses; `reduction` tells the torch learner how to reduce it over the rows of all ranks: "mean",
"sum", or a function that returns the weight of each row.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from orca.errors import ArgumentError, DataError
from orca_classic.bigdl.layer import (
    UNFIT,
    Layer,
    _arrays,
    _leaves,
    _like,
    _tensors,
    bound,
    lookup,
    refused_input,
    shapes_of,
    table_of,
)

CRITERIONS: dict[str, type[Criterion]] = {}
PADDING = -1  # a label that is ignored


class CriterionModule(nn.Module):
    """A criterion as torch calls losses: with the outputs, then the targets."""

    weights: Any

    def __init__(self, kind: type[Criterion], arguments: dict[str, Any]) -> None:
        super().__init__()
        self.kind = kind
        weights = arguments.get("weights")
        self.register_buffer(
            "weights", None if weights is None else torch.as_tensor(weights, dtype=torch.float32).reshape(-1)
        )
        parts = {key: value.to_torch() for key, value in arguments.items() if hasattr(value, "to_torch")}
        self.parts = nn.ModuleDict(parts)  # criterions and layers among the arguments
        self.arguments = {key: value for key, value in arguments.items() if key != "weights" and key not in parts}
        self.inner, self.shares = nn.ModuleList(), list[float]()  # of criterions that hold several

    def forward(self, *tensors: Any) -> Tensor:
        """Return the loss of outputs, then targets; one of each, or several."""
        half = self.outputs(len(tensors))
        x, target = (
            values[0] if len(values) == 1 else list(values) for values in (tensors[:half], tensors[half:] or (None,))
        )
        return self.loss(x, target)

    def outputs(self, count: int) -> int:
        """Return how many of `count` outputs and targets are outputs."""
        name = self.kind.__name__
        if count < 3 or name in ONES:  # a table is a list then
            return 1
        if name in PAIRS:
            return 2
        if name == "ParallelCriterion":
            return count - 1 if self.arguments["repeat_target"] else count // 2
        criterions = [*self.inner, *self.parts.values()]
        counts = {part.outputs(count) for part in criterions if isinstance(part, CriterionModule)}
        return counts.pop() if len(counts) == 1 else count // 2

    def loss(self, x: Any, target: Any) -> Tensor:
        """Return the loss of an output (a list of several) and a target."""
        row = self.kind.row
        parameters, more = inspect.signature(row).parameters, dict[str, Any]()
        if "weights" in parameters:
            more["weights"] = self.weights
        if "inner" in parameters:
            more["inner"] = list(zip(self.inner, self.shares, strict=True))
        try:
            loss: Tensor = row(x, target, **self.arguments, **self.parts, **more)
        except UNFIT as error:
            description = f"outputs of shape {shapes_of(x)} and targets of shape {shapes_of(target)}"
            refusal = refused_input(error, self.kind.__name__, description, x, target)
            if refusal is None:
                raise
            raise refusal from error
        return loss

    def counts(self, target: Tensor, *_: Any) -> Tensor:
        """Return the weight of each row in a mean: the weights of its classes, 0 for padding."""
        cells = target.reshape(len(target), -1)
        padding = self.arguments.get("padding_value", self.arguments.get("ignore_label"))
        labels, valid = cells.long(), cells != (PADDING if padding is None else padding)
        inner = dict(self.parts.items()).get("criterion")
        if isinstance(inner, CriterionModule) and inner.kind.counted:
            return (inner.counts(labels.reshape(-1)).reshape(labels.shape) * valid).sum(1)
        if self.weights is None:
            return valid.double().sum(1)
        first, weights = 0 if self.arguments.get("zero_based_label") else 1, self.weights.to(labels.device).double()
        return (weights[(labels - first).clamp(0, len(weights) - 1)] * valid).sum(1)


PAIRS = {"CosineEmbeddingCriterion", "L1HingeEmbeddingCriterion", "MarginRankingCriterion", "GaussianCriterion",
         "KLDCriterion"}  # of two outputs  # fmt: skip
ONES = {"SmoothL1CriterionWithWeights"}  # of one output and several targets


def rows(table: Mapping[str, tuple[Callable[..., Any], str]], one_based: bool = False, reduction: str | None = "",
         counts: bool = False, holds: bool = False, home: dict[str, type[Criterion]] = CRITERIONS) -> None:  # fmt: skip
    """Make a Criterion class of each row, in the table `home`: name -> (function, docstring).

    one_based: labels are classes that count from 1. reduction: "mean" or "sum" over rows for any arguments; None to be
    detected; "" to follow size_average. counts: a mean is one over labels. holds: `add` puts criterions in.
    """
    for name, (row, words) in table.items():
        own = [p.replace(annotation=p.empty) for p in inspect.signature(row).parameters.values()]
        signature = inspect.Signature([p for p in own if p.name not in ("x", "target", "inner")])
        scope = {"__doc__": words, "__module__": row.__module__, "row": staticmethod(row), "one_based": one_based,
                 "fixed_reduction": reduction, "counted": counts, "signature": signature,
                 "__signature__": signature}  # fmt: skip
        home[name] = type(name, (_Several if holds else Criterion,), scope)


class Criterion:
    """A loss of BigDL, which `to_torch()` returns as a torch module.

    Example:
        >>> import numpy as np
        >>> from orca_classic.bigdl.criterion import MSECriterion
        >>> MSECriterion().forward(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
        2.0
    """

    signature: ClassVar[inspect.Signature] = inspect.Signature()
    row: ClassVar[Callable[..., Tensor]]
    one_based: bool = False  # whether labels are classes that count from 1
    fixed_reduction: ClassVar[str | None] = ""
    counted: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.arguments = bound(type(self), args, kwargs)
        self.module: nn.Module = CriterionModule(type(self), self.arguments)
        self.one_based = type(self).one_based or any(
            getattr(value, "one_based", False) for value in self.arguments.values()
        )

    @classmethod
    def of(cls, loss: Callable[..., Any]) -> Criterion:
        """Return the Criterion of a torch loss or a function of output and target."""
        criterion = Criterion.__new__(Criterion)
        criterion.arguments, criterion.module = {}, loss  # type: ignore[assignment]
        return criterion

    def to_torch(self) -> Any:
        """Return the loss as torch calls losses."""
        return self.module

    @property
    def reduction(self) -> Any:
        """The reduction over rows: "mean", "sum", or a function that returns the weight of each row."""
        if not isinstance(self.module, CriterionModule) or type(self).fixed_reduction is None:
            return None
        if self.fixed_reduction:
            return self.fixed_reduction
        if (mode := self.arguments.get("normalize_mode")) is not None:  # the divisor of a sum
            return {"VALID": self.module.counts, "NONE": "sum"}.get(mode, "mean")
        inner = [value for value in self.arguments.values() if isinstance(value, Criterion)]
        if inner and not self.counted:
            return inner[0].reduction if isinstance(inner[0].reduction, str) else None
        if inner and inner[0].reduction in ("sum", None):
            return inner[0].reduction
        average = self.arguments.get("size_average", self.arguments.get("sizeAverage", True))
        return ("mean" if not self.counted else self.module.counts) if average else "sum"

    def forward(self, input: Any, target: Any = None) -> float:
        """Return the loss of arrays, JTensors or lists of them."""
        return float(self._loss(_tensors(input), target))

    def backward(self, input: Any, target: Any = None) -> Any:
        """Return the gradient of the loss by the input."""
        inputs = _tensors(input)
        leaves = [leaf.requires_grad_() for leaf in _leaves(inputs)]
        return _arrays(_like(inputs, torch.autograd.grad(self._loss(inputs, target), leaves, allow_unused=True)))

    def _loss(self, inputs: Any, target: Any) -> Tensor:
        truth = None if target is None else _tensors(target)
        if not isinstance(self.module, CriterionModule):
            return self.module(inputs, truth)
        return self.module.loss(inputs, truth)


class _Several(Criterion):
    """A criterion that holds others."""

    def add(self, criterion: Any, weight: float = 1.0) -> Any:
        """Add a criterion with its weight; returns this one."""
        if not isinstance(criterion, Criterion):
            raise ArgumentError(f"{type(self).__name__} takes criterions; got {type(criterion).__name__}.")
        self.__dict__.setdefault("held", []).append(criterion)
        self.module.inner.append(criterion.to_torch())  # type: ignore[operator, union-attr]
        self.module.shares.append(weight)  # type: ignore[operator, union-attr]
        return self

    @property
    def reduction(self) -> Any:
        """The reduction of all criterions: the same word, or a function of the weight of each row in all of them."""
        criterions = self.__dict__.get("held", [])
        kinds = [each.reduction for each in criterions]
        if len(set(kinds)) == 1 and isinstance(kinds[0], str):
            return kinds[0]
        if not criterions or None in kinds or "sum" in kinds:
            return None
        weights = {None if each.module.weights is None else tuple(each.module.weights.tolist()) for each in criterions}
        apart = self.arguments.get("repeat_target") is False  # each has a target of its own
        return partial(_agreed, type(self).__name__, kinds, apart) if len(weights) == 1 else None


def _agreed(name: str, kinds: list[Any], apart: bool, *targets: Any) -> Tensor:
    """Return how many labels of each row count, where all criterions agree on their share.

    Args:
        name: The criterion that holds the others.
        kinds: The reductions of the others: "mean", or functions of the weight of each row.
        apart: Whether each has a target of its own; else it has all of them.
        targets: The targets.

    Raises:
        DataError: They do not agree, and there are several workers.
    """
    tensors = tuple(targets[0]) if isinstance(targets[0], list | tuple) else targets
    every = [(target,) for target in tensors] if apart else [tensors] * len(kinds)
    sizes = [math.prod(first.shape[1:]) for first, *_ in every]
    shares = [
        kind(*own).double() / size if callable(kind) else torch.ones(len(own[0]), dtype=torch.float64)
        for kind, own, size in zip(kinds, every, sizes, strict=True)
    ]
    if all(torch.equal(shares[0], share) for share in shares):
        return shares[0] * sizes[0]
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise DataError(
            f"{name} adds up means over different labels: some are padding to one of its criterions and count in "
            "another, so that the losses of several workers have no common mean. Give all of them the same padding, "
            "take the rows with padding out, or train on one worker."
        )
    return torch.full_like(shares[0], sizes[0])  # as many as in steps without padding


def _beside(x: Tensor, target: Any) -> Tensor:
    """Return the target in the shape of the output; refuse another number of values instead of broadcasting."""
    if target is None or target.numel() != x.numel():
        raise DataError("targets must have the shape of the outputs")
    return target.reshape(x.shape).to(x.dtype)


def _classes(x: Tensor, target: Any, first: int = 1, padding: int | None = PADDING) -> tuple[Tensor, Tensor]:
    """Return rows of class scores, and their classes as torch counts them; padding becomes -100, which is ignored."""
    scores = x.unsqueeze(0) if x.dim() == 1 else x.movedim(1, -1).flatten(0, -2) if x.dim() > 2 else x
    values = target.reshape(-1)
    if len(values) != len(scores):
        raise DataError(f"{len(scores)} rows of class scores need as many labels; got {len(values)}.")
    labels, count = values.long() - first, scores.shape[1]
    valid = torch.ones_like(values, dtype=torch.bool) if padding is None else values != padding
    wrong = valid & ((labels < 0) | (labels >= count) | (labels + first != values))
    if bool(wrong.any()):
        raise DataError(
            f"labels are classes that count from {first}: {first} to {count - 1 + first}; got {values[wrong][0]:g}. "
            + ("Add 1 to labels that count from 0." if first else "Take 1 off labels that count from 1.")
        )
    return scores, torch.where(valid, labels, -100)


def _over(values: Tensor, size_average: bool) -> Tensor:
    return values.mean() if size_average else values.sum()


def _word(size_average: bool) -> str:
    return "mean" if size_average else "sum"


def likelihood(logs: Tensor, target: Tensor, weights: Tensor | None, size_average: bool, *first: int) -> Tensor:
    """Return the negative log likelihood of classes; the mean of a batch of padding alone is 0."""
    scores, labels = _classes(logs, target, *first)
    total = F.nll_loss(scores, labels, weights, reduction="sum")
    if not size_average:
        return total
    valid = labels >= 0
    mass = valid.sum() if weights is None else (weights.to(scores)[labels.clamp(min=0)] * valid).sum()
    return total / torch.where(mass == 0, torch.ones_like(mass), mass)


# Classes.


def _softmax_with(x: Tensor, target: Tensor, ignore_label: Any = None, normalize_mode: str = "VALID") -> Tensor:
    scores, labels = _classes(x, target, 1, PADDING if ignore_label is None else ignore_label)
    total, count = F.cross_entropy(scores, labels, reduction="sum"), 1 if x.dim() == 1 else len(x)
    divisors = {"VALID": int((labels >= 0).sum()), "FULL": len(labels), "BATCH_SIZE": count, "NONE": 1}
    if normalize_mode not in divisors:
        raise ArgumentError(f"normalize_mode must be one of {', '.join(divisors)}; got {normalize_mode!r}.")
    return total / max(divisors[normalize_mode], 1)


def _multi_margin(x: Tensor, target: Tensor, p: int = 1, weights: Any = None, margin: float = 1.0,
                  size_average: bool = True) -> Tensor:  # fmt: skip
    return F.multi_margin_loss(*_classes(x, target, padding=None), p, margin, weights, reduction=_word(size_average))


def _corner_distance(x: Tensor, target: Tensor, n_classes: int) -> Tensor:
    scores, labels = _classes(x, target, padding=None)
    return F.mse_loss(scores, _simplex(int(n_classes)).to(x)[labels])


def _simplex(count: int) -> Tensor:
    """Return as many corners, all of length 1 and equally far apart."""
    corners = torch.zeros(count, count)
    for at in range(count - 1):
        corners[at, at] = math.sqrt(max(1 - float(corners[at, :at].square().sum()), 0))
        for later in range(at + 1, count):
            corners[later, at] = (-1 / (count - 1) - float(corners[at, :at] @ corners[later, :at])) / corners[at, at]
    return corners


rows({
    "ClassNLLCriterion": (lambda x, target, weights=None, size_average=True, logProbAsInput=True: likelihood(
        x if logProbAsInput else x.clamp(min=1e-8).log(), target, weights, size_average),
        "Minus the log likelihood of the right class: outputs are logarithms, labels count from 1, -1 is ignored."),
    "CrossEntropyCriterion": (lambda x, target, weights=None, size_average=True: likelihood(F.log_softmax(x, 0 if x.dim(
        ) == 1 else 1), target, weights, size_average), "LogSoftMax and ClassNLLCriterion in one."),
}, one_based=True, counts=True)  # fmt: skip
rows({
    "MultiMarginCriterion": (_multi_margin, "By how much the right class is not ahead of the others by a margin."),
    "MultiLabelMarginCriterion": (lambda x, target, size_average=True: F.multilabel_margin_loss(x, target.reshape(
        x.shape).long() - 1, reduction=_word(size_average)),
        "By how much several right classes are not ahead; labels count from 1, a 0 ends them."),
}, one_based=True)  # fmt: skip
rows({"SoftmaxWithCriterion": (_softmax_with,
    "Softmax and the negative log likelihood at every place; normalize_mode chooses the divisor of the sum.")},
     one_based=True)  # fmt: skip
rows({"ClassSimplexCriterion": (_corner_distance,
    "The squared distance to the corner of the right class: all corners are equally far from each other.")},
     one_based=True, reduction="mean")  # fmt: skip

# Distances between outputs and targets.


def _margin(x: Tensor, target: Any, margin: float = 1.0, size_average: bool = True, squared: bool = False) -> Tensor:
    short = F.relu(margin - x * _beside(x, target))
    return _over(short.square() if squared else short, size_average)


def _binary(x: Tensor, target: Any, weights: Any = None, size_average: bool = True) -> Tensor:
    truth, least = _beside(x, target), 1e-12
    each = -(truth * (x + least).log() + (1 - truth) * (1 - x + least).log())
    return _over(each if weights is None else each * weights, size_average)


def _dice(x: Tensor, target: Any, size_average: bool = True, epsilon: float = 1.0) -> Tensor:
    a, b = (each.reshape(1 if x.dim() == 1 else len(x), -1) for each in (x, _beside(x, target)))
    return _over(1 - (2 * (a * b).sum(1) + epsilon) / (a.sum(1) + b.sum(1) + epsilon), size_average)


def _weighted_smooth(x: Tensor, target: Any, sigma: float, num: int = 0) -> Tensor:
    ones = torch.ones_like(x)
    truth, inside, outside = target if isinstance(target, list | tuple) else (target, ones, ones)
    each = F.smooth_l1_loss(x * inside, _beside(x, truth) * inside, reduction="none", beta=1 / sigma**2)
    return (outside * each).sum() / (num or 1)


def _divergence(x: Tensor, target: Any) -> Tensor:
    chance, truth = x.clamp(1e-7, 1), _beside(x, target).clamp(1e-7, 1)
    return (truth * (truth / chance).log()).sum(-1).mean()


def _percentage(x: Tensor, target: Any) -> Tensor:
    truth = _beside(x, target)
    return ((truth - x).abs() / truth.abs().clamp(min=1e-7)).mean() * 100


def _by_rows(total: Tensor, x: Tensor, size_average: bool) -> Tensor:
    """Return a sum, or its mean over the rows."""
    return total / (1 if x.dim() == 1 or not size_average else len(x))


rows({
    "MSECriterion": (lambda x, target: F.mse_loss(x, _beside(x, target)), "The mean squared difference."),
    "CategoricalCrossEntropy": (lambda x, target: -(_beside(x, target) * (x / x.sum(-1, keepdim=True)).clamp(
        1e-8, 1).log()).sum(-1).mean(),
        "The cross entropy of probabilities, divided by their sum, and truths of every class."),
    "KullbackLeiblerDivergenceCriterion": (_divergence, "How far probabilities are from others."),
    "PoissonCriterion": (lambda x, target: (x - _beside(x, target) * (x + 1e-7).log()).mean(), "x - y log(x)."),
    "CosineProximityCriterion": (lambda x, target: -(F.normalize(x, dim=-1, eps=1e-6) * F.normalize(_beside(x, target),
        dim=-1, eps=1e-6)).mean(), "Minus the mean product of outputs and targets, each of length 1."),
    "MeanAbsolutePercentageCriterion": (_percentage, "The mean difference as a percentage of the target."),
    "MeanSquaredLogarithmicCriterion": (lambda x, target: (_beside(x, target).clamp(min=1e-7).log1p() - x.clamp(
        min=1e-7).log1p()).square().mean(), "The mean squared difference of logarithms."),
}, reduction="mean")  # fmt: skip
rows({
    "AbsCriterion": (lambda x, target, size_average=True: F.l1_loss(x, _beside(x, target), reduction=_word(
        size_average)), "The mean absolute difference."),
    "SmoothL1Criterion": (lambda x, target, size_average=True: F.smooth_l1_loss(x, _beside(x, target), reduction=_word(
        size_average)), "Half the square of small differences, the size of large ones."),
    "BCECriterion": (_binary, "The cross entropy of probabilities and truths between 0 and 1."),
    "MultiLabelSoftMarginCriterion": (lambda x, target, weights=None, size_average=True:
        F.binary_cross_entropy_with_logits(x, _beside(x, target), weights, reduction=_word(size_average)),
        "The cross entropy of several truths, each of 0 or 1; outputs are scores."),
    "SoftMarginCriterion": (lambda x, target, size_average=True: F.soft_margin_loss(x, _beside(x, target),
        reduction=_word(size_average)), "log(1 + exp(-y x)) of truths -1 and 1."),
    "MarginCriterion": (_margin, "By how much x is not on the side of its truth, -1 or 1, by a margin."),
    "HingeEmbeddingCriterion": (lambda x, target, margin=1.0, size_average=True: F.hinge_embedding_loss(x, _beside(x,
        target), margin, reduction=_word(size_average)),
        "Distances of similar pairs (1), and how far other pairs (-1) are within a margin."),
    "DistKLDivCriterion": (lambda x, target, size_average=True: F.kl_div(x, _beside(x, target), reduction="sum") / (
        x.numel() if size_average else 1), "How far logarithms of probabilities are from probabilities."),
    "CosineDistanceCriterion": (lambda x, target, size_average=True: _over(1 - F.cosine_similarity(x, _beside(x,
        target), dim=-1), size_average), "1 minus the cosine between output and target."),
    "DiceCoefficientCriterion": (_dice, "1 minus the overlap of output and target."),
    "DotProductCriterion": (lambda x, target, size_average=False: _by_rows((x * _beside(x, target)).sum(), x,
        size_average), "The dot product of output and target."),
    "PGCriterion": (lambda x, target, sizeAverage=False: _by_rows(-(x.log() * _beside(x, target)).sum(), x,
        sizeAverage), "The loss of policy gradients: minus rewards times the logarithms of probabilities."),
})  # fmt: skip
rows({
    "SmoothL1CriterionWithWeights": (_weighted_smooth,
        "SmoothL1 of a table (target, inside weights, outside weights), divided by num."),
    "L1Cost": (lambda x, target=None: x.abs().sum(), "The sum of all sizes; there is no target."),
}, reduction="sum")  # fmt: skip

# Tables, and criterions of criterions.


def _two(x: Any) -> tuple[Tensor, Tensor]:
    """Return the two tensors of a table, which must have one shape."""
    if not isinstance(x, list | tuple) or len(x) != 2 or x[0].shape != x[1].shape:
        raise DataError("outputs must be a table of two tensors of one shape")
    return x[0], x[1]


def _first(target: Any) -> Tensor:
    tensor: Tensor = target[0] if isinstance(target, list | tuple) else target
    return tensor


def _cosine_embedding(x: Any, target: Any, margin: float = 0.0, size_average: bool = True) -> Tensor:
    a, b = (each.unsqueeze(0) if each.dim() == 1 else each for each in _two(x))
    return F.cosine_embedding_loss(a, b, _first(target).reshape(-1), margin, reduction=_word(size_average))


def _hinge_embedding(x: Any, target: Any, margin: float = 1.0) -> Tensor:
    distance = torch.sub(*_two(x)).abs().sum(-1).reshape(-1)
    alike = _beside(distance, _first(target))
    return torch.where(alike > 0, distance, F.relu(margin - distance)).mean()


def _ranking(x: Any, target: Any, margin: float = 1.0, size_average: bool = True) -> Tensor:
    a, b = (each.reshape(-1) for each in _two(x))
    return F.margin_ranking_loss(a, b, _first(target).reshape(-1).expand_as(a), margin, reduction=_word(size_average))


def _gaussian(x: Any, target: Any) -> Tensor:
    mean, variance = _two(x)
    truth = _beside(mean, _first(target))
    return (0.5 * (math.log(2 * math.pi) + variance) + (truth - mean).square() / (2 * variance.exp())).sum()


def _from_normal(x: Any, target: Any = None, size_average: bool = True) -> Tensor:
    mean, variance = _two(x)
    return _by_rows(0.5 * (mean.square() + variance.exp() - 1 - variance).sum(), mean, size_average)


def _in_parallel(x: Any, target: Any, repeat_target: bool = False, inner: Any = ()) -> Any:
    outputs, targets = table_of(x), [target] * len(inner) if repeat_target else table_of(target)
    if not len(inner) == len(outputs) == len(targets):
        raise DataError(f"{len(inner)} criterions take as many outputs and targets")
    parts = zip(inner, outputs, targets, strict=True)
    return sum(share * part(output, truth) for (part, share), output, truth in parts)


def _over_time(x: Tensor, target: Tensor, criterion: Any, size_average: bool = False, dimension: int = 2) -> Any:
    steps = x.shape[dimension - 1]
    if target.shape[dimension - 1] != steps:
        raise DataError(f"targets must have as many steps of time as the outputs, {steps}")
    losses = [criterion(x.select(dimension - 1, at), target.select(dimension - 1, at)) for at in range(steps)]
    return sum(losses) / (steps if size_average else 1)


def _masked(x: Tensor, target: Tensor, criterion: Any, padding_value: int = 0) -> Any:
    valid = torch.ne(target, padding_value).reshape(-1)
    return criterion(x.flatten(0, 1)[valid], target.flatten(0, 1)[valid]) if bool(valid.any()) else (x * 0).sum()


def _transformed(x: Any, target: Any, criterion: Any, input_transformer: Any = None,
                 target_transformer: Any = None) -> Any:  # fmt: skip
    output = x if input_transformer is None else input_transformer(x)
    return criterion(output, target if target_transformer is None else target_transformer(target).detach())


rows({
    "CosineEmbeddingCriterion": (_cosine_embedding, "Angles between two outputs that are alike (1) or not (-1)."),
    "MarginRankingCriterion": (_ranking,
        "By how much the first output is not above (1) or below (-1) the second by a margin."),
    "KLDCriterion": (_from_normal,
        "The divergence of the normal distribution of a table (mean, logarithm of the variance) from N(0, 1)."),
    "TimeDistributedCriterion": (_over_time,
        "A criterion at every step of time, added up, or averaged with size_average."),
    "TransformerCriterion": (_transformed, "A criterion of output and target after layers have transformed them."),
})  # fmt: skip
rows({"L1HingeEmbeddingCriterion": (_hinge_embedding,
    "L1 distances between two outputs that are alike (1), and how far others (-1) are within a margin.")},
     reduction="mean")  # fmt: skip
rows({"GaussianCriterion": (_gaussian,
    "The negative log likelihood of targets under a table (mean, logarithm of the variance).")},
     reduction="sum")  # fmt: skip
rows({"TimeDistributedMaskCriterion": (_masked,
    "A criterion at every step of time whose target is not padding, averaged over these.")}, counts=True)  # fmt: skip
rows({
    "MultiCriterion": (lambda x, target, inner=(): sum(share * part(x, target) for part, share in inner),
        "The weighted sum of several criterions of the same output and target."),
    "ParallelCriterion": (_in_parallel,
        "The weighted sum of several criterions, each of its own output and target of a table."),
}, holds=True)  # fmt: skip


def loss_of(loss: Any) -> tuple[Any, Any]:
    """Return a loss as torch calls it, and its reduction over rows (None to be detected)."""
    if isinstance(loss, Criterion):
        return loss.to_torch(), loss.reduction
    if isinstance(loss, Layer) or not (callable(loss) or loss is None):
        raise ArgumentError(f"the loss must be a criterion, a torch loss or a function; got {type(loss).__name__}.")
    return loss, None


__getattr__ = lookup(CRITERIONS, "criterion")
