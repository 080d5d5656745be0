"""Optimizer: training with the API of bigdl.optim.optimizer. Owns the Optimizers, summaries, and Trainer.

Trainer is the base of the Keras-style models, the low-level Estimator and the Optimizers.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from orca.core.triggers import MaxEpoch, trigger_of
from orca.errors import ArgumentError, KnownArguments, NotSupported
from orca.report.tensorboard import Summaries, SummaryPair
from orca_classic.bigdl.optimizers import SGD
from orca_classic.bigdl.validation import Top1Accuracy

logger = logging.getLogger(__name__)


class TrainSummary(KnownArguments):
    """The course of training for TensorBoard, under log_dir/app_name/train, at any fsspec path."""

    part = "train"

    def __init__(self, log_dir: str, app_name: str, bigdl_type: str = "float") -> None:
        self.summaries = Summaries(log_dir, app_name)
        self.log_dir, self.app_name = self.summaries.log_dir, self.summaries.app_name

    def read_scalar(self, tag: str) -> np.ndarray[Any, Any]:
        """Return rows of step, value and time of "Loss", "LearningRate" or "Throughput"; no rows before a fit."""
        return np.array(self.summaries.read(self.part, tag) or np.empty((0, 3)))

    def set_summary_trigger(self, name: str, trigger: Any) -> TrainSummary:
        """Check a tag and its trigger; numbers are written in every step, distributions of weights are not."""
        if name == "Parameters":
            logger.warning("summaries hold no distributions of weights: the trigger of %r changes nothing.", name)
        elif name not in ("Loss", "LearningRate", "Throughput"):
            raise ArgumentError(f"a summary has Loss, LearningRate, Throughput and Parameters; got {name!r}.")
        trigger_of(trigger)
        return self


class ValidationSummary(TrainSummary):
    """The validation of a run for TensorBoard, under log_dir/app_name/validation."""

    part = "validation"


class Trainer(KnownArguments):
    """The settings of a training that may change between fits, and the state kept from one fit to the next."""

    workers_per_node = 1  # ranks on each node of the cluster
    estimator: Any = None  # of the last fit
    outline: Any = None  # of the model that it trained
    clipping: tuple[Any, Any] = (None, None)
    board: Any = None

    def set_tensorboard(self, log_dir: str, app_name: str) -> None:
        """Write the curves of each fit for TensorBoard, under log_dir/app_name."""
        self.board = Summaries(log_dir, app_name)

    def get_train_summary(self, tag: str | None = None) -> Any:
        """Return rows of step, value and time of "Loss", "LearningRate" or "Throughput"; None if there are none."""
        return self._summary("train", tag)

    def get_validation_summary(self, tag: str | None = None) -> Any:
        """Return rows of step, value and time of a metric of the validation; None if there are none."""
        return self._summary("validation", tag)

    def _summary(self, part: str, tag: str | None) -> Any:
        points = None if self.board is None else self.board.read(part, tag)
        return None if points is None else np.array(points)

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Clip each gradient into [min, max]."""
        self.clipping = (float(min), float(max)), None

    def set_gradient_clipping_by_l2_norm(self, clip_norm: float) -> None:
        """Clip the gradients of a step to a norm."""
        self.clipping = None, float(clip_norm)

    set_l2_norm_gradient_clipping = set_gradient_clipping_by_l2_norm

    def clear_gradient_clipping(self) -> None:
        """Turn clipping off."""
        self.clipping = None, None

    def estimator_of(self, model: Any, loss: Any, optimizer: Any, backend: str | None = None, **more: Any) -> Any:
        """Return an Estimator with the current weights and the optimizer state of the last fit."""
        from orca_classic.bigdl.training import backend_now
        from orca_classic.estimator import Estimator

        est = Estimator.from_bigdl(
            model=model, loss=loss, optimizer=optimizer, backend=backend or backend_now(),
            workers_per_node=self.workers_per_node, **more,
        )  # fmt: skip
        net = model.to_torch() if hasattr(model, "to_torch") else model
        outline = outline_of(net)
        if outline != self.outline and self.estimator is not None:
            logger.warning("the layers or regularizers of %s have changed: its optimizer starts over.", model)
            self.estimator = None
        self.outline = outline
        if self.estimator is not None and self.estimator._state is not None:
            state = self.estimator._state.settled()
            est._state = replace(state, payload=state.payload | {"models": [net.state_dict()]})
        est._clip(*self.clipping)
        est._summaries = self.board
        self.estimator = est
        return est


class BaseOptimizer(Trainer):
    """The settings of a training, which `optimize` runs; see Optimizer."""

    def __init__(self, model: Any, data: Any, criterion: Any, end_trigger: Any = None, batch_size: int = 32,
                 optim_method: Any = None, backend: str | None = None) -> None:  # fmt: skip
        self.model, self.data, self.criterion = model, data, criterion
        self.end_trigger = MaxEpoch(1) if end_trigger is None else trigger_of(end_trigger)
        self.batch_size, self.method, self.backend = batch_size, one_method(optim_method), backend
        self.validation: dict[str, Any] = {}
        self.checkpoint: tuple[Any, str | None, bool] = (None, None, False)
        self.summaries: list[Any] = [None, None]

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
        self.set_constant_gradient_clipping(min_value, max_value)

    set_gradclip_l2norm = Trainer.set_gradient_clipping_by_l2_norm
    disable_gradclip = Trainer.clear_gradient_clipping

    def set_train_summary(self, summary: TrainSummary) -> BaseOptimizer:
        """Write the course of training."""
        self.summaries[0] = summary
        return self

    def set_val_summary(self, summary: ValidationSummary) -> BaseOptimizer:
        """Write the validation."""
        self.summaries[1] = summary
        return self

    def _validate(self, data: Any, trigger: Any, methods: Any) -> None:
        self.validation = {
            "validation_data": data, "validation_trigger": trigger_of(trigger),
            "validation_methods": [Top1Accuracy()] if methods is None else methods,
        }  # fmt: skip

    def prepare_input(self) -> None:
        """Do nothing: data is read when it is needed."""

    def optimize(self, resume: bool = False) -> Any:
        """Train, and return the model with its trained weights; another call continues from there.

        Args:
            resume: Whether to resume from the newest checkpoint under the path of `set_checkpoint`, if there is one:
                in another program, after the first one was interrupted.
        """
        trigger, path, keeps_one = self.checkpoint
        if any(self.summaries):
            self.board = SummaryPair(*self.summaries)
        est = self.estimator_of(self.model, self.criterion, self.method, self.backend, model_dir=path)
        est.fit(
            self.data, batch_size=self.batch_size, end_trigger=self.end_trigger, checkpoint_trigger=trigger,
            keep_checkpoints=1 if keeps_one else None, resume=resume,
            **self.validation,
        )  # fmt: skip
        return trained(est, self.model)


class Optimizer(BaseOptimizer):
    """Training on an RDD of Samples, or on other data that is distributed.

    Args:
        model: A layer.
        training_rdd: The training data: an RDD of Samples, arrays (x, y), XShards, a FeatureSet, ImageSet or TextSet.
        criterion: A criterion.
        end_trigger: When to end; MaxEpoch(1) unless given.
        batch_size: Rows of one step over all workers.
        optim_method: An optim method; SGD() unless given.
        backend: Where to train: on the cluster that is up, else "local", unless given.

    Example:
        >>> from orca_classic.bigdl.criterion import MSECriterion
        >>> from orca_classic.bigdl.layers import Linear
        >>> data = np.zeros((8, 2), np.float32), np.zeros((8, 1), np.float32)
        >>> optimizer = Optimizer(Linear(2, 1), data, MSECriterion(), batch_size=4)  # and then optimizer.optimize()
        >>> optimizer.end_trigger
        MaxEpoch(max_epoch=1)
    """

    def __init__(self, model: Any, training_rdd: Any, criterion: Any, end_trigger: Any = None, batch_size: int = 32,
                 optim_method: Any = None, bigdl_type: str = "float", backend: str | None = None) -> None:  # fmt: skip
        super().__init__(model, training_rdd, criterion, end_trigger, batch_size, optim_method, backend)

    @staticmethod
    def create(model: Any, training_set: Any, criterion: Any, end_trigger: Any = None, batch_size: int =
               32, optim_method: Any = None, cores: int | None = None, bigdl_type: str = "float") -> BaseOptimizer:  # fmt: skip
        """Return a LocalOptimizer for arrays (x, y), else an Optimizer."""
        if isinstance(training_set, tuple) and len(training_set) == 2:
            return LocalOptimizer(*training_set, model, criterion, end_trigger, batch_size, optim_method, cores)
        return Optimizer(model, training_set, criterion, end_trigger, batch_size, optim_method)

    def set_validation(self, batch_size: int, val_rdd: Any, trigger: Any, val_method: Any = None) -> None:
        """Validate after epochs in which the trigger fires, by these methods (Top1Accuracy unless given)."""
        self._validate(val_rdd, trigger, val_method)

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
        """Validate after epochs in which the trigger fires, by these methods (Top1Accuracy unless given)."""
        self._validate((X_val, Y_val), trigger, val_method)


def trained(est: Any, model: Any) -> Any:
    """Return a model with the weights of its Estimator; a torch module loads them here."""
    answer = est.get_model()
    if answer is not model:
        model.load_state_dict(answer.state_dict())
    return model


def outline_of(net: Any) -> list[Any]:
    """Return the shape and the penalty of each weight: an optimizer's state fits models with the same outline."""
    from orca.frameworks.torch.penalties import penalised

    penalties = {id(parameter): sizes for parameter, sizes in penalised(net)}
    return [(name, tuple(weight.shape), penalties.get(id(weight))) for name, weight in net.named_parameters()]


def one_method(optim_method: Any) -> Any:
    """Return an optim method, SGD() for None; several are refused."""
    if isinstance(optim_method, dict):
        raise NotSupported(
            "an optim method for each layer is not supported: pass one, and freeze the layers that shall not be trained."
        )
    return SGD() if optim_method is None else optim_method
