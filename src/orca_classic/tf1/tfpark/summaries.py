"""Summaries: the folder of a training's curves. Owns set_train_summary and set_val_summary of TFPark's classes."""

from __future__ import annotations

from typing import Any

from orca.report.tensorboard import SummaryPair


class SummaryVerbs:
    """An object that trains, with the verbs that set the folder of its curves."""

    train_summary: Any = None
    val_summary: Any = None

    def set_train_summary(self, summary: Any) -> None:
        """Write the curves of training for TensorBoard, to the folder of a TrainSummary."""
        self.train_summary = summary

    def set_val_summary(self, summary: Any) -> None:
        """Write the curves of validations for TensorBoard, to the folder of a ValidationSummary."""
        self.val_summary = summary

    def _show(self, estimator: Any) -> Any:
        """Let an Estimator write its curves, and return it."""
        if self.train_summary is not None or self.val_summary is not None:
            estimator._summaries = SummaryPair(self.train_summary, self.val_summary)
        return estimator
