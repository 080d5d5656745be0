"""Objectives: losses, metrics and optim methods of the Keras-style API. Owns their names; classes count from 0."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from orca import metrics as ours
from orca.bigdl.criterion import (
    CRITERIONS,
    PADDING,
    AbsCriterion,
    BCECriterion,
    CosineProximityCriterion,
    Criterion,
    KullbackLeiblerDivergenceCriterion,
    MarginCriterion,
    MeanAbsolutePercentageCriterion,
    MeanSquaredLogarithmicCriterion,
    PoissonCriterion,
    _beside,
    _classes,
    _word,
    criterion,
    likelihood,
)
from orca.errors import ArgumentError
from orca.optimizers import SGD, Adadelta, Adagrad, Adamax, KerasAdam, OptimMethod, RMSprop


@criterion(counts=True)
def SparseCategoricalCrossEntropy(x, target, log_prob_as_input=False, zero_based_label=True, weights=None,
                                  size_average=True, padding_value=-1):  # fmt: skip
    """The cross entropy of probabilities and classes, which count from 0 unless zero_based_label is False."""
    counted = target + 1 if zero_based_label else target
    scores, labels = _classes(x, torch.where(target == padding_value, torch.full_like(counted, PADDING), counted))
    return likelihood(scores if log_prob_as_input else scores.clamp(min=1e-8).log(), labels, weights, size_average)


@criterion()
def MeanSquaredError(x, target, size_average=True):
    """The mean squared difference."""
    return F.mse_loss(x, _beside(x, target), reduction=_word(size_average))


@criterion(reduction=None)
def RankHinge(x, target, margin=1.0):
    """By how much the first row of each pair is not ahead of the second by a margin."""
    pairs = x.reshape(-1, 2)
    return F.relu(margin - pairs[:, 0] + pairs[:, 1]).mean()


@criterion()
def Hinge(x, target, margin=1.0, size_average=True):
    """By how much outputs are not on the side of their truths, -1 or 1, by a margin."""
    return MarginCriterion.row(x, target, margin, size_average)


@criterion()
def SquaredHinge(x, target, margin=1.0, size_average=True):
    """The square of Hinge."""
    return MarginCriterion.row(x, target, margin, size_average, squared=True)


OBJECTIVES: dict[str, Any] = {
    "SparseCategoricalCrossEntropy": SparseCategoricalCrossEntropy, "MeanSquaredError": MeanSquaredError,
    "MeanAbsoluteError": AbsCriterion, "BinaryCrossEntropy": BCECriterion, "Hinge": Hinge, "SquaredHinge": SquaredHinge,
    "CategoricalCrossEntropy": CRITERIONS["CategoricalCrossEntropy"], "CosineProximity": CosineProximityCriterion,
    "KullbackLeiblerDivergence": KullbackLeiblerDivergenceCriterion, "Poisson": PoissonCriterion, "RankHinge": RankHinge,
    "MeanAbsolutePercentageError": MeanAbsolutePercentageCriterion, "LossFunction": Criterion,
    "MeanSquaredLogarithmicError": MeanSquaredLogarithmicCriterion,
}  # fmt: skip
_LOSSES = {
    "sparse_categorical_crossentropy": "SparseCategoricalCrossEntropy", "categorical_crossentropy": "CategoricalCrossEntropy",
    "binary_crossentropy": "BinaryCrossEntropy", "mse": "MeanSquaredError", "mean_squared_error": "MeanSquaredError",
    "mae": "MeanAbsoluteError", "mean_absolute_error": "MeanAbsoluteError", "hinge": "Hinge", "squared_hinge": "SquaredHinge",
    "mape": "MeanAbsolutePercentageError", "mean_absolute_percentage_error": "MeanAbsolutePercentageError",
    "msle": "MeanSquaredLogarithmicError", "mean_squared_logarithmic_error": "MeanSquaredLogarithmicError",
    "kld": "KullbackLeiblerDivergence", "kullback_leibler_divergence": "KullbackLeiblerDivergence", "poisson": "Poisson",
    "cosine_proximity": "CosineProximity", "rank_hinge": "RankHinge",
}  # fmt: skip
_METHODS: dict[str, Any] = {
    "sgd": lambda: SGD(learningrate=0.01), "adam": KerasAdam, "adagrad": lambda: Adagrad(learningrate=0.01),
    "adadelta": lambda: Adadelta(decayrate=0.95, epsilon=1e-8), "adamax": Adamax,
    "rmsprop": lambda: RMSprop(learningrate=0.001, decayrate=0.9),
}  # fmt: skip


def objective_of(loss: Any, shape: Any) -> Any:
    """Return the loss of a name, of a function of variables, or as it is.

    Raises:
        ArgumentError: There is no such loss.
    """
    if isinstance(loss, str):
        if loss.lower() not in _LOSSES:
            raise ArgumentError(f"there is no loss named {loss!r}; there are {', '.join(_LOSSES)}.")
        return OBJECTIVES[_LOSSES[loss.lower()]]()
    if isinstance(loss, Criterion) or hasattr(loss, "to_torch") or hasattr(loss, "parameters") or loss is None:
        return loss
    if callable(loss):
        from orca.bigdl.keras.autograd import CustomLoss

        return CustomLoss(loss, shape)
    raise ArgumentError(
        f"the loss must be an objective, its name or a function of variables; got {type(loss).__name__}."
    )


def optimizer_of(optimizer: Any) -> Any:
    """Return the optim method of a name, or as it is.

    Raises:
        ArgumentError: There is no such method.
    """
    if isinstance(optimizer, str):
        if optimizer.lower() not in _METHODS:
            raise ArgumentError(f"there is no optimizer named {optimizer!r}; there are {', '.join(_METHODS)}.")
        return _METHODS[optimizer.lower()]()
    if not isinstance(optimizer, OptimMethod) and not callable(optimizer):
        raise ArgumentError(f"the optimizer must be an optim method or its name; got {type(optimizer).__name__}.")
    return optimizer


def metrics_named(metrics: Any) -> Any:
    """Return metrics; "acc" and "accuracy" are Accuracy, and other names those of ours."""
    given = [] if metrics is None else list(metrics) if isinstance(metrics, list | tuple) else [metrics]
    known = {"acc": ours.Accuracy, "accuracy": ours.Accuracy, "top5acc": ours.Top5Accuracy, "top5accuracy": ours.Top5Accuracy,
             "mae": ours.MAE, "mse": ours.MSE, "auc": ours.AUC}  # fmt: skip
    return [
        known[each.lower()]() if isinstance(each, str) and each.lower() in known else each for each in given
    ] or None
