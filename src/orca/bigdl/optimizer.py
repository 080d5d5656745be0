"""Optimizer: training in the words of bigdl.optim.optimizer. Owns Optimizer and its kin, and summaries of a run."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from orca.bigdl.initial import L1L2Regularizer, L1Regularizer, L2Regularizer
from orca.bigdl.validation import (
    MAE,
    NDCG,
    HitRatio,
    Loss,
    MeanAveragePrecision,
    Top1Accuracy,
    Top5Accuracy,
    TreeNNAccuracy,
)
from orca.core.triggers import (
    EveryEpoch,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    SeveralIteration,
    TriggerAnd,
    TriggerOr,
    trigger_of,
)
from orca.errors import ArgumentError, NotSupported
from orca.optimizers.methods import (
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    OptimMethod,
    ParallelAdam,
    RMSprop,
)
from orca.optimizers.schedules import Default, Exponential, MultiStep, Plateau, Poly, SequentialSchedule, Step, Warmup
from orca.report.tensorboard import Summaries

logger = logging.getLogger(__name__)

__all__ = [
    "LBFGS", "MAE", "NDCG", "SGD", "ActivityRegularization", "Adadelta", "Adagrad", "Adam", "Adamax", "BaseOptimizer",
    "Default", "DistriOptimizer", "EveryEpoch", "Exponential", "Ftrl", "HitRatio", "L1L2Regularizer", "L1Regularizer",
    "L2Regularizer", "LocalOptimizer", "Loss", "MaxEpoch", "MaxIteration", "MaxScore", "MeanAveragePrecision",
    "MeanAveragePrecisionObjectDetection", "MinLoss", "MultiStep", "OptimMethod", "Optimizer", "ParallelAdam",
    "Plateau", "Poly", "RMSprop", "SequentialSchedule", "SeveralIteration", "Step", "Top1Accuracy", "Top5Accuracy",
    "TrainSummary", "TreeNNAccuracy", "TriggerAnd", "TriggerOr", "ValidationSummary", "Warmup",
]  # fmt: skip


class TrainSummary:
    """The course of training for TensorBoard, under log_dir/app_name/train.

    Args:
        log_dir: A folder at any fsspec path.
        app_name: The name of the run.
    """

    part = "train"

    def __init__(self, log_dir: str, app_name: str, bigdl_type: str = "float") -> None:
        self.summaries = Summaries(log_dir, app_name)
        self.log_dir, self.app_name = self.summaries.log_dir, self.summaries.app_name

    def read_scalar(self, tag: str) -> np.ndarray[Any, Any]:
        """Return rows of step, value and time of "Loss", "LearningRate" or "Throughput"; none before a fit."""
        return np.array(self.summaries.read(self.part, tag) or np.empty((0, 3)))

    def set_summary_trigger(self, name: str, trigger: Any) -> TrainSummary:
        """Say when to write a tag: those of numbers are written in every step; distributions of weights are not."""
        if name == "Parameters":
            logger.warning("summaries hold no distributions of weights: the trigger of %r changes nothing.", name)
        elif name not in ("Loss", "LearningRate", "Throughput"):
            raise ArgumentError(f"a summary has Loss, LearningRate, Throughput and Parameters; got {name!r}.")
        trigger_of(trigger)
        return self


class ValidationSummary(TrainSummary):
    """The validation of a run for TensorBoard, under log_dir/app_name/validation."""

    part = "validation"


class SummaryPair:
    """The summaries of training and validation, in folders that may differ."""

    def __init__(self, *given: Any) -> None:
        named = {(each.log_dir, each.app_name): each.summaries for each in given if each is not None}
        self.members = list(named.values())

    def write(self, *args: Any, **kwargs: Any) -> None:
        """Write what a fit gave."""
        for member in self.members:
            member.write(*args, **kwargs)

    def read(self, part: str, tag: str | None) -> Any:
        """Return what was written under a tag."""
        return self.members[0].read(part, tag)


class BaseOptimizer:
    """The settings of a training, which `optimize` runs.

    Args:
        model: A layer.
        data: The training data: an RDD of Samples, arrays (x, y), XShards, a FeatureSet, ImageSet or TextSet.
        criterion: A criterion.
        end_trigger: When to end; MaxEpoch(1) unless given.
        batch_size: Rows of one step over all workers.
        optim_method: An optim method; SGD() unless given.
        backend: Where to train: "bigdl" where Spark is up, else "local", unless given.
    """

    def __init__(self, model: Any, data: Any, criterion: Any, end_trigger: Any = None, batch_size: int = 32,
                 optim_method: Any = None, backend: str | None = None) -> None:  # fmt: skip
        if isinstance(optim_method, dict):
            raise NotSupported(
                "an optim method for each layer is not supported: pass one, and freeze the layers that are not to learn."
            )
        self.model, self.data, self.criterion = model, data, criterion
        self.end_trigger = MaxEpoch(1) if end_trigger is None else trigger_of(end_trigger)
        self.batch_size, self.method, self.backend = batch_size, optim_method or SGD(), backend
        self.validation: dict[str, Any] = {}
        self.checkpoint: tuple[Any, str, bool] | None = None
        self.clipping: dict[str, Any] = {}
        self.summaries: list[Any] = [None, None]
        self.estimator: Any = None  # of the last training

    def set_model(self, model: Any) -> None:
        """Train another model, from the beginning."""
        self.model, self.estimator = model, None

    def set_criterion(self, criterion: Any) -> None:
        """Train with another criterion."""
        self.criterion = criterion

    def set_end_when(self, end_when: Any) -> BaseOptimizer:
        """End by another trigger."""
        self.end_trigger = trigger_of(end_when)
        return self

    def set_checkpoint(self, checkpoint_trigger: Any, checkpoint_path: str, isOverWrite: bool = True) -> None:
        """Keep checkpoints under a path when a trigger fires; only the newest with isOverWrite."""
        self.checkpoint = trigger_of(checkpoint_trigger), checkpoint_path, isOverWrite

    def set_gradclip_const(self, min_value: float, max_value: float) -> None:
        """Clip each gradient into [min_value, max_value]."""
        self.clipping = {"clip_value": (float(min_value), float(max_value))}

    def set_gradclip_l2norm(self, clip_norm: float) -> None:
        """Clip the gradients of a step to a norm."""
        self.clipping = {"clip_norm": float(clip_norm)}

    def disable_gradclip(self) -> None:
        """Clip gradients no more."""
        self.clipping = {}

    def set_train_summary(self, summary: TrainSummary) -> BaseOptimizer:
        """Write the course of training."""
        self.summaries[0] = summary
        return self

    def set_val_summary(self, summary: ValidationSummary) -> BaseOptimizer:
        """Write the validation."""
        self.summaries[1] = summary
        return self

    def prepare_input(self) -> None:
        """Do nothing: data is read when it is needed."""

    def optimize(self) -> Any:
        """Train, and return the model with its trained weights; another call goes on where the last one ended."""
        from orca.bigdl.training import backend_now, data_of, metrics_for
        from orca.estimators import Estimator

        trigger, path, keeps_one = self.checkpoint or (None, None, False)
        est = Estimator.from_bigdl(
            model=self.model, loss=self.criterion, optimizer=self.method, backend=self.backend or backend_now(),
            model_dir=path, **self.clipping,
        )  # fmt: skip
        if self.estimator is not None:
            state = self.estimator.get_state_dict()
            est.load_state_dict(state | {"models": [self.model.to_torch().state_dict()]})
        if any(self.summaries):
            est._summaries = SummaryPair(*self.summaries)
        est.fit(
            data_of(self.data), batch_size=self.batch_size, end_trigger=self.end_trigger, checkpoint_trigger=trigger,
            keep_checkpoints=1 if keeps_one else None,
            **{**self.validation, "validation_methods": metrics_for(self.validation.get("validation_methods"))},
        )  # fmt: skip
        self.estimator = est
        return est.get_model()


class Optimizer(BaseOptimizer):
    """Training on an RDD of Samples, or on other data that is distributed."""

    def __init__(self, model: Any, training_rdd: Any, criterion: Any, end_trigger: Any = None, batch_size: int = 32,
                 optim_method: Any = None, bigdl_type: str = "float", **more: Any) -> None:  # fmt: skip
        super().__init__(model, training_rdd, criterion, end_trigger, batch_size, optim_method, **more)

    @staticmethod
    def create(model: Any, training_set: Any, criterion: Any, end_trigger: Any = None, batch_size: int =
               32, optim_method: Any = None, cores: int | None = None, bigdl_type: str = "float") -> BaseOptimizer:  # fmt: skip
        """Return a LocalOptimizer for arrays (x, y), else an Optimizer."""
        if isinstance(training_set, tuple) and len(training_set) == 2:
            return LocalOptimizer(*training_set, model, criterion, end_trigger, batch_size, optim_method, cores)
        return Optimizer(model, training_set, criterion, end_trigger, batch_size, optim_method)

    def set_validation(self, batch_size: int, val_rdd: Any, trigger: Any, val_method: Any = None) -> None:
        """Validate in epochs in which, or at whose end, a trigger fires, by these methods (Top1Accuracy unless given)."""
        methods = [Top1Accuracy()] if val_method is None else val_method
        self.validation = {
            "validation_data": val_rdd, "validation_trigger": trigger_of(trigger), "validation_methods": methods,
        }  # fmt: skip

    def set_traindata(self, training_rdd: Any, batch_size: int) -> None:
        """Train on other data."""
        self.data, self.batch_size = training_rdd, batch_size


class DistriOptimizer(Optimizer):
    """Optimizer under its other name."""


class LocalOptimizer(BaseOptimizer):
    """Training on arrays, in processes of this machine."""

    def __init__(self, X: Any, Y: Any, model: Any, criterion: Any, end_trigger: Any = None, batch_size: int = 32,
                 optim_method: Any = None, cores: int | None = None, bigdl_type: str = "float") -> None:  # fmt: skip
        super().__init__(model, (X, Y), criterion, end_trigger, batch_size, optim_method, "local")

    def set_validation(self, batch_size: int, X_val: Any, Y_val: Any, trigger: Any, val_method: Any = None) -> None:
        """Validate in epochs in which, or at whose end, a trigger fires, by these methods (Top1Accuracy unless given)."""
        methods = [Top1Accuracy()] if val_method is None else val_method
        self.validation = {
            "validation_data": (X_val, Y_val), "validation_trigger": trigger_of(trigger), "validation_methods": methods,
        }  # fmt: skip


class ActivityRegularization:
    """A penalty on activities, which is refused: what it adds to a gradient depends on how rows are dealt out."""

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **more: Any) -> None:
        raise NotSupported("ActivityRegularization is not supported: add the penalty to the loss (CustomLoss).")


class MeanAveragePrecisionObjectDetection:
    """The mean average precision of boxes, which is refused: torchmetrics has it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotSupported("use torchmetrics.detection.MeanAveragePrecision, which every Estimator takes as a metric.")
