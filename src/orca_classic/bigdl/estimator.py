"""BigdlEstimator: the BigDL Estimator on the torch one. Owns the arguments of its verbs, and the model it gives back.

A model of BigDL has `to_torch()`; a criterion has it too, and `reduction`; an optim method is a creator. Nothing else
of them is asked for, so that a torch module, loss or optimizer may stand in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

from orca.core.arguments import checked, refuse_unknown
from orca.core.metrics import metrics_of
from orca.core.source import DataSpec
from orca.core.triggers import MaxEpoch, trigger_of
from orca.errors import ArgumentError
from orca.estimators.estimator import name_of
from orca.estimators.torch import TorchEstimator
from orca.estimators.training import TrainingEstimator
from orca.rows.tree import listed
from orca_classic.bigdl.feature.preprocessing import SeqToTensor, preprocessing_of
from orca_classic.bigdl.featuresets import FeatureSet
from orca_classic.bigdl.files import load_layer
from orca_classic.bigdl.layer import Layer, Model
from orca_classic.bigdl.optimizers import SGD
from orca_classic.bigdl.training import BigdlValidations, entry_of, metrics_for, rows_for, syncs_batchnorm, with_loss
from orca_classic.shard_frames import predicted_rows

ENDLESS = 10**9  # epochs of a fit that a trigger ends
_FEATURES, _LABELS = "joined features", "joined labels"  # columns of several columns


class BigdlEstimator(BigdlValidations, TorchEstimator):
    """A model of BigDL that learns and answers on any engine. Made by `Estimator.from_bigdl`."""

    model: Any
    criterion: Any
    method: Any
    options: dict[str, Any]
    preprocessing: tuple[Any, Any] = (None, None)
    readers: dict[str, Any] = {}  # noqa: RUF012  (columns of a DataFrame -> how they are read)

    @classmethod
    def of(cls, *, model: Any, loss: Any = None, optimizer: Any = None, metrics: Any = None,
           feature_preprocessing: Any = None, label_preprocessing: Any = None, model_dir: str | None = None,
           backend: str | None = None, **options: Any) -> BigdlEstimator:  # fmt: skip
        """Make an Estimator of a BigDL model; see `Estimator.from_bigdl` for the arguments."""
        refuse_unknown(options, signature(TorchEstimator.from_torch).parameters, "Estimator.from_bigdl()")
        module = entry_of(model) if hasattr(model, "to_torch") else model
        criterion = loss.to_torch() if hasattr(loss, "to_torch") else loss
        reduction = getattr(loss, "reduction", None) if hasattr(loss, "to_torch") else None
        extra = {} if reduction is None else {"loss_reduction": reduction}
        if getattr(module, "rests", False) and not options.get("shard_model"):
            extra["find_unused_parameters"] = True
        if syncs_batchnorm(model, options):
            extra["sync_batchnorm"] = True
        method = optimizer if optimizer is not None else SGD()
        estimator: Any = super().from_torch(
            model=module,
            loss=criterion,
            optimizer=method,
            metrics=cls._methods(metrics),
            model_dir=model_dir,
            backend=backend or "bigdl",
            **extra | options,
        )
        estimator.model, estimator.criterion, estimator.method = model, loss, method
        estimator.options = {"backend": backend, **options}
        estimator.preprocessing = (feature_preprocessing, label_preprocessing)
        return estimator  # type: ignore[no-any-return]

    def _model_name(self) -> Any:
        return name_of(self.model)

    @checked
    def fit(self, data: Any, epochs: int | None = None, batch_size: int = 32,  # type: ignore[override]
            feature_cols: Sequence[str] | str | None = "features", label_cols: Sequence[str] | str | None = "label",
            caching_sample: bool = True, validation_data: Any = None, validation_trigger: Any = None,
            checkpoint_trigger: Any = None, *, end_trigger: Any = None, validation_methods: Any = None,
            val_data: Any = None, val_trigger: Any = None, val_methods: Any = None,
            labels_cols: Sequence[str] | str | None = None, **more: Any) -> BigdlEstimator:  # fmt: skip
        """Train, going on from where the last fit (or load) ended; returns the Estimator.

        Args:
            data: A Spark DataFrame, XShards of {"x", "y"}, an RDD of Samples, a FeatureSet, ImageSet or TextSet, or all
                that the torch Estimator takes.
            epochs: How many times to see every row; may be left out where end_trigger says when to end.
            batch_size: Rows of one step over all workers.
            feature_cols: Columns of features of a DataFrame. Several are one vector, which a preprocessing may cut; for
                a model with several inputs, or one of torch, each is an input unless there is a preprocessing.
            label_cols: Columns of labels of a DataFrame (labels_cols in earlier releases); several likewise.
            caching_sample: Accepted: rows are kept on the workers' disks while a fit lasts.
            validation_data: Data of the same kind, evaluated after every epoch (val_data in earlier releases).
            validation_trigger: When to validate, also mid-epoch; at the end of every epoch unless given. The line of an
                epoch has the val_... of its last validation, and all of them, with their steps, under `validations`.
            checkpoint_trigger: When to keep a checkpoint under model_dir.
            end_trigger: When to end before the epochs are over.
            validation_methods: Metrics of the validation, instead of the Estimator's (val_methods in earlier releases).
            val_data: validation_data.
            val_trigger: validation_trigger.
            val_methods: validation_methods.
            labels_cols: label_cols.
            more: Other arguments of the torch Estimator's fit.
        """
        if epochs is None and end_trigger is None:
            raise ArgumentError("fit needs to know when to end. Pass epochs=, or end_trigger=.")
        weights = list(self.model.to_torch().parameters()) if hasattr(self.model, "to_torch") else []
        if weights and not any(weight.requires_grad for weight in weights):
            raise ArgumentError("there is nothing to learn: all weights of the model are frozen. Call unfreeze().")
        trigger = validation_trigger if validation_trigger is not None else val_trigger
        validation = validation_data if validation_data is not None else val_data
        end = None if end_trigger is None else trigger_of(end_trigger)
        before = 0 if self._state is None else self._state.epoch
        if isinstance(end, MaxEpoch) and epochs is None:
            epochs = end.max_epoch - before
            if epochs < 1:
                return self
        columns = feature_cols, labels_cols or label_cols
        rows, options = self._rows(data, *columns)
        if isinstance(data, FeatureSet):
            more = {"shuffle": data.shuffle} | more
        super().fit(
            rows,
            epochs=ENDLESS if epochs is None else epochs,
            batch_size=batch_size,
            validation_data=None if validation is None else self._rows(validation, *columns)[0],
            checkpoint_trigger=checkpoint_trigger,
            end_trigger=end,
            validation_methods=self._methods(val_methods if validation_methods is None else validation_methods),
            validation_trigger=trigger,
            **options,
            **more,
        )
        return self

    @checked
    def evaluate(self, data: Any, batch_size: int = 32,  # type: ignore[override]
                 feature_cols: Sequence[str] | str | None = "features",
                 label_cols: Sequence[str] | str | None = "label", validation_methods: Any = None,
                 **more: Any) -> dict[str, Any]:  # fmt: skip
        """Evaluate all metrics, exactly, over all rows.

        Returns:
            The value of each metric under its name, and num_samples and val_loss.
        """
        rows, columns = self._rows(data, feature_cols, label_cols)
        validation_methods = self._methods(validation_methods)
        metrics = self.metrics if validation_methods is None else metrics_of(validation_methods)
        statistics = super().evaluate(
            rows, batch_size=batch_size, validation_methods=validation_methods, **columns, **more
        )
        names = {metric.name.lower(): metric.name for metric in metrics}
        return with_loss({names.get(key.lower(), key): value for key, value in statistics.items()})

    @checked
    def predict(self, data: Any, batch_size: int = 4, feature_cols: Sequence[str] | str | None = "features",  # type: ignore[override]
                sample_preprocessing: Any = None, **more: Any) -> Any:  # fmt: skip
        """Answer for every row, in the kind the data came in.

        Args:
            data: Data of any kind `fit` takes.
            batch_size: Rows the model sees at a time.
            feature_cols: Columns of features of a DataFrame.
            sample_preprocessing: The preprocessing of features, instead of the Estimator's.
            more: Other arguments of the torch Estimator's predict.

        Returns:
            A DataFrame or XShards with "prediction"; an RDD of arrays for an RDD; an ImageSet or TextSet with
            predictions; else arrays.
        """
        features = sample_preprocessing if sample_preprocessing is not None else self.preprocessing[0]
        if hasattr(data, "predicted_by") and features is None:
            return data.predicted_by(self.get_model(), batch_size)
        rows, columns = self._rows(data, feature_cols, None, features)
        columns.pop("label_cols", None)
        answers = super().predict(rows, batch_size=batch_size, **columns, **more)
        if tuple(columns.get("feature_cols") or ()) == (_FEATURES,):
            answers = answers.drop(_FEATURES)
        if hasattr(answers, "transform_shard") and not hasattr(data, "transform_shard"):
            return answers.rdd.flatMap(predicted_rows)
        return answers

    def get_model(self) -> Any:
        """Return the model that was given, with its trained weights."""
        module = self._framework_model()
        if not hasattr(self.model, "to_torch"):
            return module
        self.model.to_torch().load_state_dict(module.state_dict())
        return self.model

    def _framework_model(self) -> Any:
        return TrainingEstimator.get_model(self)

    def save(self, model_path: str | None = None, *args: Any, **other_names: Any) -> str:  # type: ignore[override]
        """Save the trained model: its definition at <path>.bigdl and its weights at <path>.bin; returns the path."""
        place = self._path("save", model_path, other_names)
        self.get_model().saveModel(f"{place}.bigdl", f"{place}.bin", True)
        return place

    def load(self, checkpoint: str | None = None, optimizer: Any = None, loss: Any = None,  # type: ignore[override]
             feature_preprocessing: Any = None, label_preprocessing: Any = None, model_dir: str | None = None,
             is_checkpoint: bool = False, **other_names: str) -> BigdlEstimator:  # fmt: skip
        """Load a saved model, or with is_checkpoint the newest checkpoint in a folder; returns the Estimator."""
        place = self._path("load", checkpoint, other_names)
        model = self.model if is_checkpoint else load_layer(f"{place}.bigdl", f"{place}.bin")
        steps = (feature_preprocessing or self.preprocessing[0], label_preprocessing or self.preprocessing[1])
        estimator = type(self).of(
            model=model,
            loss=loss if loss is not None else self.criterion,
            optimizer=optimizer if optimizer is not None else self.method,
            metrics=list(self.metrics) or None,
            feature_preprocessing=steps[0],
            label_preprocessing=steps[1],
            model_dir=model_dir or self.model_dir,
            **self.options,
        )
        self.__dict__.update(vars(estimator))
        if is_checkpoint:
            self.load_orca_checkpoint(place)
        return self

    save_checkpoint = TorchEstimator.save
    load_checkpoint = TorchEstimator.load

    def _rows(self, data: Any, features: Any, labels: Any, preprocessing: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return data as the torch Estimator takes it, with the columns that it has."""
        both = (preprocessing if preprocessing is not None else self.preprocessing[0], self.preprocessing[1])
        steps = [preprocessing_of(each, "feature_preprocessing") for each in both]
        rows, tabular = rows_for(data, *steps)
        if not tabular:
            return rows, {}
        inputs, outputs = self._sides()
        rows, features = _joined(rows, features, _FEATURES, steps[0] is not None or inputs == 1)
        rows, labels = _joined(rows, labels, _LABELS, steps[1] is not None or outputs == 1)
        if steps[0] is None and not self._wraps_torch:  # TorchModels take whole numbers as they are
            steps[0] = SeqToTensor()  # a number is a tensor of one
        self.readers = {
            name: step.read
            for columns, step in zip((features, labels), steps, strict=True)
            for name in listed(columns)
            if step is not None
        }
        return rows, {"feature_cols": features, "label_cols": labels}

    @staticmethod
    def _methods(methods: Any) -> Any:
        """Return validation methods as metrics."""
        return metrics_for(methods)

    @property
    def _wraps_torch(self) -> bool:
        return hasattr(self.model, "to_pytorch")

    def _sides(self) -> tuple[int, int]:
        """Return how many inputs and outputs a model of BigDL has; 0 for one of torch, of which it is unknown."""
        if not isinstance(self.model, Layer) or self._wraps_torch:
            return 0, 0
        return (len(self.model.inputs), len(self.model.outputs)) if isinstance(self.model, Model) else (1, 1)

    def _spec(self, *args: Any, **kwargs: Any) -> DataSpec:
        return replace(super()._spec(*args, **kwargs), readers=self.readers, vectors=False)


def _joined(frame: Any, columns: Any, name: str, joins: bool) -> tuple[Any, Any]:
    """Return a Spark DataFrame with several columns, of numbers, arrays and vectors, as one; and that one's name."""
    names = listed(columns)
    if not joins or len(names) < 2 or not hasattr(frame, "withColumn") or not set(names) <= set(frame.columns):
        return frame, columns
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    parts = []
    for each in names:
        column, kind = F.col(f"`{each}`"), frame.schema[each].dataType.simpleString()
        if kind == "vector":
            parts.append(F.when(column.isNotNull(), vector_to_array(column, "float32")))  # alone, it fails on a null
        else:
            parts.append((column if kind.startswith("array") else F.array(column)).cast("array<float>"))
    return frame.withColumn(name, F.concat(*parts)), [name]
