"""Objectives: losses, metrics and optim methods of the Keras-style API. Owns their names; classes count from 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F

from orca import metrics as ours
from orca.errors import ArgumentError, DataError
from orca_classic.bigdl.criterion import CRITERIONS, Criterion, _beside, _margin, _word, likelihood, rows
from orca_classic.bigdl.layer import lookup
from orca_classic.bigdl.optimizers import SGD, Adadelta, Adagrad, Adamax, KerasAdam, OptimMethod, RMSprop


def _sparse(x: Any, target: Any, log_prob_as_input: bool = False, zero_based_label: bool = True, weights: Any = None,
            size_average: bool = True, padding_value: int = -1) -> Any:  # fmt: skip
    logs = x if log_prob_as_input else x.clamp(min=1e-8).log()
    return likelihood(logs, target, weights, size_average, 0 if zero_based_label else 1, padding_value)


def _rank_hinge(x: Any, target: Any, margin: float = 1.0) -> Any:
    if x.numel() % 2:
        raise DataError(f"RankHinge takes pairs of rows; got {x.numel()} outputs.")
    pairs = x.reshape(-1, 2)
    return F.relu(margin - pairs[:, 0] + pairs[:, 1]).mean()


OBJECTIVES: dict[str, Any] = {"LossFunction": Criterion}
rows({"SparseCategoricalCrossEntropy": (_sparse,
    "The cross entropy of probabilities and classes, which count from 0 unless zero_based_label is False.")},
     counts=True, home=OBJECTIVES)  # fmt: skip
rows({"RankHinge": (_rank_hinge,
    "How much the first row of each pair falls short of a margin over the second.")},
     reduction=None, home=OBJECTIVES)  # fmt: skip
rows({
    "MeanSquaredError": (lambda x, target, size_average=True: F.mse_loss(x, _beside(x, target), reduction=_word(
        size_average)), "The mean squared difference."),
    "Hinge": (lambda x, target, margin=1.0, size_average=True: _margin(x, target, margin, size_average),
        "By how much outputs are not on the side of their truths, -1 or 1, by a margin."),
    "SquaredHinge": (lambda x, target, margin=1.0, size_average=False: _margin(x, target, margin, size_average,
        squared=True), "The square of Hinge."),
}, home=OBJECTIVES)  # fmt: skip

_NAMES = {
    "MeanAbsoluteError": "AbsCriterion", "BinaryCrossEntropy": "BCECriterion", "Poisson": "PoissonCriterion",
    "CosineProximity": "CosineProximityCriterion", "CategoricalCrossEntropy": "CategoricalCrossEntropy",
    "KullbackLeiblerDivergence": "KullbackLeiblerDivergenceCriterion",
    "MeanAbsolutePercentageError": "MeanAbsolutePercentageCriterion",
    "MeanSquaredLogarithmicError": "MeanSquaredLogarithmicCriterion",
}  # fmt: skip
OBJECTIVES |= {name: CRITERIONS[own] for name, own in _NAMES.items()}
_LOSSES = {
    "sparse_categorical_crossentropy": "SparseCategoricalCrossEntropy", "mse": "MeanSquaredError",
    "categorical_crossentropy": "CategoricalCrossEntropy", "binary_crossentropy": "BinaryCrossEntropy",
    "mean_squared_error": "MeanSquaredError", "mae": "MeanAbsoluteError", "mean_absolute_error": "MeanAbsoluteError",
    "hinge": "Hinge", "squared_hinge": "SquaredHinge", "rank_hinge": "RankHinge", "poisson": "Poisson",
    "mape": "MeanAbsolutePercentageError", "mean_absolute_percentage_error": "MeanAbsolutePercentageError",
    "msle": "MeanSquaredLogarithmicError", "mean_squared_logarithmic_error": "MeanSquaredLogarithmicError",
    "kld": "KullbackLeiblerDivergence", "kullback_leibler_divergence": "KullbackLeiblerDivergence",
    "cosine_proximity": "CosineProximity",
}  # fmt: skip
_METHODS: dict[str, Any] = {
    "sgd": lambda: SGD(learningrate=0.01), "adam": KerasAdam, "adagrad": lambda: Adagrad(learningrate=0.01),
    "adadelta": lambda: Adadelta(decayrate=0.95, epsilon=1e-8),
    "adamax": Adamax,
    "rmsprop": lambda: RMSprop(learningrate=0.001, decayrate=0.9),
}  # fmt: skip


def objective_of(loss: Any, shape: Any) -> Any:
    """Return the loss of a name or of a function of variables; other losses unchanged."""
    if isinstance(loss, str):
        if loss.lower() not in _LOSSES:
            raise ArgumentError(f"there is no loss named {loss!r}; there are {', '.join(_LOSSES)}.")
        kind = OBJECTIVES[_LOSSES[loss.lower()]]
        return kind(size_average=True) if "size_average" in kind.signature.parameters else kind()
    if isinstance(loss, Criterion) or hasattr(loss, "to_torch") or hasattr(loss, "parameters") or loss is None:
        return loss
    if callable(loss):
        from orca_classic.bigdl.keras.autograd import CustomLoss

        return CustomLoss(loss, shape)
    raise ArgumentError(
        f"the loss must be an objective, its name or a function of variables; got {type(loss).__name__}."
    )


def optimizer_of(optimizer: Any) -> Any:
    """Return the optim method of a name; other optimizers unchanged."""
    if isinstance(optimizer, str):
        if optimizer.lower() not in _METHODS:
            raise ArgumentError(f"there is no optimizer named {optimizer!r}; there are {', '.join(_METHODS)}.")
        return _METHODS[optimizer.lower()]()
    if not isinstance(optimizer, OptimMethod) and not callable(optimizer):
        raise ArgumentError(f"the optimizer must be an optim method or its name; got {type(optimizer).__name__}.")
    return optimizer


def metrics_named(metrics: Any) -> Any:
    """Return metrics as a list, None for none; the Keras-style API's own names become metrics.

    The loss is evaluated in any case: its name among the metrics is left out.
    """
    metrics = [] if metrics is None else metrics if isinstance(metrics, list | tuple) else [metrics]
    accuracy = partial(ours.Accuracy, threshold=0.5)
    kinds: dict[str, Callable[[], Any]] = {
        "acc": accuracy, "accuracy": accuracy, "top5acc": ours.Top5Accuracy, "top5accuracy": ours.Top5Accuracy,
        "mae": ours.MAE, "mse": ours.MSE, "auc": partial(ours.AUC, 200),
    }  # fmt: skip
    named = [each for each in metrics if not isinstance(each, str) or each.lower() != "loss"]
    return [
        kinds[each.lower()]() if isinstance(each, str) and each.lower() in kinds else each for each in named
    ] or None


__getattr__ = lookup(OBJECTIVES, "loss")
