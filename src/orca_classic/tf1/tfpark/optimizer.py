"""TFOptimizer: training of a loss, a train op or a Keras model on a TFDataset. Owns how triggers end it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from orca.core.triggers import MaxEpoch, MaxIteration, Trigger, trigger_of
from orca.errors import ArgumentError
from orca.rows.tree import flatten
from orca_classic.data.tf.loading import tensorflow
from orca_classic.tf1.tfpark.dataset import TFDataset, dataset_behind, only
from orca_classic.tf1.tfpark.summaries import SummaryVerbs

_ENDLESS = 1 << 30  # epochs of a fit that a trigger ends


class TFOptimizer(SummaryVerbs):
    """The training of a graph on the data of a TFDataset. Make one with a `from_...` method.

    Args:
        estimator: The Estimator that trains.
        dataset: The data.
        session_config: A tf.ConfigProto for the workers' sessions.
    """

    def __init__(self, estimator: Any, dataset: TFDataset, session_config: Any = None) -> None:
        self.estimator, self.dataset, self.session_config = estimator, dataset, session_config

    @property
    def sess(self) -> Any:
        """Return the session, which holds the trained variables after `optimize`; None for a model built eagerly."""
        return getattr(self.estimator, "sess", None)

    @classmethod
    def from_loss(
        cls,
        loss: Any,
        optim_method: Any,
        session: Any = None,
        inputs: Any = None,
        dataset: TFDataset | None = None,
        val_outputs: Any = None,
        val_labels: Any = None,
        val_method: Any = None,
        clip_norm: float | None = None,
        clip_value: Any = None,
        metrics: Any = None,
        tensor_with_value: Mapping[Any, Any] | None = None,
        session_config: Any = None,
        model_dir: str | None = None,
        updates: Any = None,
        val_split: float = 0.0,
        **options: Any,
    ) -> TFOptimizer:
        """Make the training of a loss that is computed from the tensors of a TFDataset.

        Args:
            loss: A scalar tensor.
            optim_method: An optimizer of `bigdl.optim.optimizer`, `tf.train` or Keras; or a dict of those of
                `bigdl.optim.optimizer`, by the prefixes of the names of the variables that they train.
            session: The session with the variables; a new one unless given.
            inputs: The tensors that data is fed to, when these are not `dataset.tensors`: (features, labels).
            dataset: The data, when the graph is not built on its tensors.
            val_outputs: The tensor, or a list of one, that validation methods compare with the labels.
            val_labels: The tensors that they compare it with, where those are not the labels as they come.
            val_method: Validation methods or metrics.
            clip_norm: The largest norm that all gradients together may have.
            clip_value: The largest size of a gradient's values, or a pair of the least and the largest value.
            metrics: Name -> tensor, for the validation.
            tensor_with_value: Tensor -> (value in training, value in the validation).
            session_config: A tf.ConfigProto for the workers' sessions.
            model_dir: The folder of checkpoints.
            updates: Operations that run with each step.
            val_split: 0 alone: give the TFDataset validation data.
            options: More arguments of `Estimator.from_graph`: backend, workers_per_node, seed.
        """
        return cls._of(
            loss, optim_method, session, inputs, None, dataset, session_config, val_split,
            outputs=only(val_outputs), targets=only(val_labels), metrics=_metrics(metrics, val_method),
            clip_norm=clip_norm, clip_value=clip_value, feeds=tensor_with_value, model_dir=model_dir,
            updates=updates, **options,
        )  # fmt: skip

    @classmethod
    def from_train_op(
        cls,
        train_op: Any,
        loss: Any,
        *,
        inputs: Any = None,
        labels: Any = None,
        metrics: Any = None,
        updates: Any = None,
        sess: Any = None,
        dataset: TFDataset | None = None,
        tensor_with_value: Mapping[Any, Any] | None = None,
        session_config: Any = None,
        model_dir: str | None = None,
        **options: Any,
    ) -> TFOptimizer:
        """Make the training of a train op that a ZooOptimizer made; see `from_loss` for the arguments."""
        from orca_classic.tf1.graph.optimizers import step_of

        return cls._of(
            loss, step_of(train_op), sess, inputs, labels, dataset, session_config, 0.0,
            metrics=metrics, feeds=tensor_with_value, model_dir=model_dir, updates=updates, **options,
        )  # fmt: skip

    @classmethod
    def from_keras(
        cls,
        keras_model: Any,
        dataset: TFDataset,
        session_config: Any = None,
        model_dir: str | None = None,
        metrics: Any = None,
        optimizer: Any = None,
        optim_method: Any = None,
        val_split: float = 0.0,
        val_spilt: float = 0.0,
        **options: Any,
    ) -> TFOptimizer:
        """Make the training of a compiled Keras model.

        Args:
            keras_model: The model.
            dataset: The data.
            session_config: A tf.ConfigProto for the workers' sessions.
            model_dir: The folder of checkpoints.
            metrics: Metrics of `orca.metrics`, besides those it was compiled with.
            optimizer: An optimizer in place of the compiled one.
            optim_method: The same, as older releases called it.
            val_split: 0 alone: give the TFDataset validation data.
            val_spilt: The same.
            options: More arguments of the Estimator: backend, workers_per_node, seed.
        """
        from orca_classic.tf1.estimators.keras import build_for, keras_estimator

        _refuse_split(val_split or val_spilt)
        build_for(keras_model, dataset)
        estimator = keras_estimator(keras_model, metrics, model_dir, optimizer or optim_method, **options)
        return cls(estimator, dataset, session_config)

    @classmethod
    def _of(
        cls, loss: Any, optimizer: Any, session: Any, inputs: Any, labels: Any, dataset: TFDataset | None,
        session_config: Any, val_split: float, **ends: Any,
    ) -> TFOptimizer:  # fmt: skip
        from orca_classic.tf1.estimators.graph import GraphEstimator

        _refuse_split(val_split)
        data = dataset or dataset_behind([loss])
        with loss.graph.as_default():
            features, targets = _fed(data, inputs, labels)
            estimator = GraphEstimator.of(
                inputs=features, labels=targets, loss=loss, optimizer=optimizer, sess=session, **ends
            )
        return cls(estimator, data, session_config)

    def optimize(self, end_trigger: Trigger | None = None, checkpoint_trigger: Any = None) -> TFOptimizer:
        """Train until a trigger fires; the session then holds the trained variables.

        Args:
            end_trigger: When to stop; after one epoch unless given. Counts are over all calls.
            checkpoint_trigger: When to keep a checkpoint under model_dir.

        Returns:
            This optimizer.

        Raises:
            ArgumentError: The TFDataset has no batch_size.
        """
        data = self.dataset
        data.get_training_data()
        if getattr(self.estimator, "ends", {"labels": ...})["labels"] is None:
            data = data.filled()
        state = getattr(self.estimator, "_state", None)
        epoch, steps = (0, 0) if state is None else (state.epoch, state.steps)
        trigger = MaxEpoch(epoch + 1) if end_trigger is None else trigger_of(end_trigger)
        epochs = trigger.max_epoch - epoch if isinstance(trigger, MaxEpoch) else _ENDLESS
        if epochs < 1 or (isinstance(trigger, MaxIteration) and steps >= trigger.max_iteration):
            return self
        options = {} if self.session_config is None else {"session_config": self.session_config}
        self._show(self.estimator).fit(
            data,
            epochs=epochs,
            batch_size=data.batch_size,
            validation_data=data.validation_for(),
            checkpoint_trigger=checkpoint_trigger,
            shuffle=data.shuffle,
            end_trigger=None if isinstance(trigger, MaxEpoch) else trigger,
            **options,
        )
        if self.sess is not None and self.estimator.model_dir is not None:  # where tf.train.latest_checkpoint looks
            self.estimator.save_tf_checkpoint(
                f"{self.estimator.model_dir.rstrip('/')}/model-{self.estimator.trained[1]}"
            )
        return self

    def set_constant_gradient_clipping(self, min_value: float, max_value: float) -> None:
        """Keep every value of a gradient between two numbers."""
        self.estimator.set_constant_gradient_clipping(min_value, max_value)

    def set_gradient_clipping_by_l2_norm(self, clip_norm: float) -> None:
        """Keep the norm of all gradients together from exceeding a number."""
        self.estimator.set_l2_norm_gradient_clipping(clip_norm)

    def load_checkpoint(self, path: str, version: int | None = None) -> None:
        """Go on from a checkpoint that `optimize` kept."""
        self.estimator.load_orca_checkpoint(path, version)

    @staticmethod
    def export_training_model(
        export_dir: str,
        loss: Any,
        sess: Any,
        inputs: Any,
        labels: Any = None,
        predictions: Any = None,
        metrics: Any = None,
        tensor_with_value: Any = None,
        updates: Any = None,
    ) -> str:
        """Write a graph and the variables of its session as TensorFlow does: `model.meta` and a checkpoint."""
        from orca_classic.tf1.graph.checkpoints import save_checkpoint

        tf = tensorflow().compat.v1
        os.makedirs(export_dir, exist_ok=True)
        save_checkpoint(sess, os.path.join(export_dir, "model"))
        tf.train.export_meta_graph(os.path.join(export_dir, "model.meta"), graph=loss.graph)
        return export_dir


def _fed(data: TFDataset, inputs: Any, labels: Any) -> tuple[Any, Any]:
    """Return the tensors that features and labels are fed to."""
    if inputs is None:
        return data.feature_tensors, data.label_tensors
    if labels is not None or not data.labelled:
        return inputs, labels
    if isinstance(inputs, list | tuple) and len(inputs) == 2:
        return inputs[0], inputs[1]
    count = len(flatten(data.tensor_structure[0])[0])
    leaves = flatten(inputs)[0]
    if len(leaves) <= count:
        raise ArgumentError("inputs must be the tensors of features and labels: (features, labels).")
    return (leaves[0] if count == 1 else leaves[:count]), (leaves[-1] if len(leaves) == count + 1 else leaves[count:])


def _metrics(tensors: Any, methods: Any) -> Any:
    """Return metrics that are tensors, and those of a validation method, in one dict or list."""
    all_methods = [] if methods is None else list(methods) if isinstance(methods, list | tuple) else [methods]
    if not all_methods:
        return tensors
    from orca.core.metrics import metrics_of

    metrics = metrics_of([each for each in all_methods if type(each).__name__ != "Loss"])  # every validation has it
    return dict(tensors or {}) | {metric.name: metric for metric in metrics}


def _refuse_split(share: float) -> None:
    if share:
        raise ArgumentError(
            f"val_split={share} is not supported. Split the data, and pass the second part to the TFDataset: val_rdd, "
            "val_tensors, validation_df."
        )
