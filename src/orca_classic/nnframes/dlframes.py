"""Dlframes: the stages of BigDL before NNFrames. Owns their constructors, which take sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orca_classic.nnframes.stages import NNClassifier, NNClassifierModel, NNEstimator, NNModel

__all__ = ["DLClassifier", "DLClassifierModel", "DLEstimator", "DLModel"]


class DLModel(NNModel):
    """An NNModel of a model and the size of its input."""

    def __init__(self, model: Any, featureSize: Sequence[int], bigdl_type: str = "float") -> None:
        super().__init__(model, featureSize)


class DLEstimator(NNEstimator):
    """An NNEstimator of a model, a criterion, and the sizes of input and label."""

    makes = DLModel

    def __init__(
        self, model: Any, criterion: Any, feature_size: Sequence[int], label_size: Sequence[int],
        bigdl_type: str = "float",
    ) -> None:  # fmt: skip
        super().__init__(model, criterion, feature_size, label_size)


class DLClassifierModel(NNClassifierModel):
    """An NNClassifierModel of a model and the size of its input."""

    def __init__(self, model: Any, featureSize: Sequence[int], bigdl_type: str = "float") -> None:
        super().__init__(model, featureSize)


class DLClassifier(NNClassifier):
    """An NNClassifier of a model, a criterion, and the size of the input."""

    makes = DLClassifierModel

    def __init__(self, model: Any, criterion: Any, feature_size: Sequence[int], bigdl_type: str = "float") -> None:
        super().__init__(model, criterion, feature_size)
