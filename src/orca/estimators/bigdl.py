"""BigdlEstimator: the BigDL Estimator on the torch one. Owns the arguments of its verbs, and the model it gives back.

A model of BigDL has `to_torch()`; a criterion has it too, and `reduction`; an optim method is a creator. Nothing else
of them is asked for, so that a torch module, loss or optimizer may stand in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orca.core.metrics import metrics_of
from orca.core.source import DataSpec
from orca.core.triggers import MaxEpoch, trigger_of
from orca.errors import ArgumentError
from orca.estimators.estimator import listed
from orca.estimators.torch import TorchEstimator
from orca.estimators.training import TrainingEstimator
from orca.feature.preprocessing import preprocessing_of
from orca.optimizers import SGD
from orca.registry import bigdl_data, bigdl_loader

ENDLESS = 10**9  # epochs of a fit that a trigger ends


class BigdlEstimator(TorchEstimator):
    """A model of BigDL that learns and answers on any engine. Made by `Estimator.from_bigdl`."""

    model: Any
    criterion: Any
    method: Any
    options: dict[str, Any]
    preprocessing: tuple[Any, Any] = (None, None)
    readers: dict[str, Any] = {}  # noqa: RUF012  (columns of a DataFrame -> how they are read)

    @classmethod
    def of(  # type: ignore[override]
        cls,
        *,
        model: Any,
        loss: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        feature_preprocessing: Any = None,
        label_preprocessing: Any = None,
        model_dir: str | None = None,
        backend: str | None = None,
        **options: Any,
    ) -> BigdlEstimator:
        """Make an Estimator of a BigDL model.

        Args:
            model: A layer of `bigdl.nn.layer` or of the Keras-style API.
            loss: A criterion; needed to train.
            optimizer: An optim method; SGD() unless given.
            metrics: Validation methods of BigDL, or metrics of `orca.metrics`.
            feature_preprocessing: A Preprocessing, or the shape of a row (a list of shapes for several inputs).
            label_preprocessing: The same of labels.
            model_dir: Where checkpoints go.
            backend: "bigdl" (Spark, optimizer state cut among the workers) unless given; any of `from_torch`.
            options: Other arguments of `from_torch`, as workers_per_node or seed.

        Raises:
            ArgumentError: An argument has the wrong kind.
        """
        module = model.to_torch() if hasattr(model, "to_torch") else model
        criterion = loss.to_torch() if hasattr(loss, "to_torch") else loss
        reduction = getattr(loss, "reduction", None) if hasattr(loss, "to_torch") else None
        known = {} if reduction is None else {"loss_reduction": reduction}
        method = optimizer if optimizer is not None else SGD()
        made: Any = super().of(
            model=module,
            loss=criterion,
            optimizer=method,
            metrics=metrics,
            model_dir=model_dir,
            backend=backend or "bigdl",
            **known | options,
        )
        made.model, made.criterion, made.method = model, loss, method
        made.options, made.preprocessing = {"backend": backend, **options}, (feature_preprocessing, label_preprocessing)
        return made  # type: ignore[no-any-return]

    def fit(  # type: ignore[override]
        self,
        data: Any,
        epochs: int | None = None,
        batch_size: int = 32,
        feature_cols: Sequence[str] | str | None = "features",
        label_cols: Sequence[str] | str | None = "label",
        caching_sample: bool = True,
        validation_data: Any = None,
        validation_trigger: Any = None,
        checkpoint_trigger: Any = None,
        *,
        end_trigger: Any = None,
        validation_methods: Any = None,
        val_data: Any = None,
        val_trigger: Any = None,
        val_methods: Any = None,
        labels_cols: Sequence[str] | str | None = None,
        **more: Any,
    ) -> BigdlEstimator:
        """Train, going on from where the last fit (or load) ended; returns the Estimator.

        Args:
            data: A Spark DataFrame, XShards of {"x", "y"}, an RDD of Samples, a FeatureSet, ImageSet or TextSet, or all
                that the torch Estimator takes.
            epochs: How many times to see every row; may be left out where end_trigger says when to end.
            batch_size: Rows of one step over all workers.
            feature_cols: Columns of features of a DataFrame.
            label_cols: Columns of labels of a DataFrame (labels_cols in earlier releases).
            caching_sample: Accepted: rows are kept on the workers' disks while a fit lasts.
            validation_data: Data of the same kind, evaluated after every epoch (val_data in earlier releases).
            validation_trigger: Which epochs to validate: those in which, or at whose end, it fires; all unless given.
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
        trigger = validation_trigger if validation_trigger is not None else val_trigger
        checking = validation_data if validation_data is not None else val_data
        end = None if end_trigger is None else trigger_of(end_trigger)
        done = 0 if self._state is None else self._state.epoch
        if isinstance(end, MaxEpoch) and epochs is None:
            epochs = end.max_epoch - done
            if epochs < 1:
                return self
        rows = self._rows(data, feature_cols, labels_cols or label_cols)
        methods = val_methods if validation_methods is None else validation_methods
        super().fit(
            rows[0],
            epochs=ENDLESS if epochs is None else epochs,
            batch_size=batch_size,
            validation_data=None
            if checking is None
            else self._rows(checking, feature_cols, labels_cols or label_cols)[0],
            checkpoint_trigger=checkpoint_trigger,
            end_trigger=end,
            validation_methods=methods,
            validation_trigger=trigger,
            **rows[1],
            **more,
        )
        return self

    def evaluate(  # type: ignore[override]
        self,
        data: Any,
        batch_size: int = 32,
        feature_cols: Sequence[str] | str | None = "features",
        label_cols: Sequence[str] | str | None = "label",
        validation_methods: Any = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Evaluate all metrics, exactly, over all rows.

        Returns:
            The value of each metric under its name, and num_samples and val_loss.
        """
        rows, columns = self._rows(data, feature_cols, label_cols)
        metrics = self.metrics if validation_methods is None else metrics_of(validation_methods)
        found = super().evaluate(rows, batch_size=batch_size, validation_methods=validation_methods, **columns, **more)
        names = {metric.name.lower(): metric.name for metric in metrics}
        return {names.get(key.lower(), key): value for key, value in found.items()}

    def predict(  # type: ignore[override]
        self,
        data: Any,
        batch_size: int = 4,
        feature_cols: Sequence[str] | str | None = "features",
        sample_preprocessing: Any = None,
        **more: Any,
    ) -> Any:
        """Answer for every row, in the kind the data came in: a DataFrame gets a column "prediction" of arrays."""
        if sample_preprocessing is not None:
            raise ArgumentError(
                "sample_preprocessing is not supported here: pass feature_preprocessing= to from_bigdl."
            )
        rows, columns = self._rows(data, feature_cols, None)
        columns.pop("label_cols", None)
        return super().predict(rows, batch_size=batch_size, **columns, **more)

    def get_model(self) -> Any:
        """Return the model that was given, with its trained weights."""
        trained = TrainingEstimator.get_model(self)
        if not hasattr(self.model, "to_torch"):
            return trained
        self.model.to_torch().load_state_dict(trained.state_dict())
        return self.model

    def save(self, model_path: str | None = None, *args: Any, **other_names: Any) -> str:  # type: ignore[override]
        """Save the trained model: its definition at <path>.bigdl and its weights at <path>.bin; returns the path."""
        place = self._path("save", model_path, other_names)
        self.get_model().saveModel(f"{place}.bigdl", f"{place}.bin", True)
        return place

    def load(  # type: ignore[override]
        self,
        checkpoint: str | None = None,
        optimizer: Any = None,
        loss: Any = None,
        feature_preprocessing: Any = None,
        label_preprocessing: Any = None,
        model_dir: str | None = None,
        is_checkpoint: bool = False,
        **other_names: str,
    ) -> BigdlEstimator:
        """Load what save wrote, or with is_checkpoint the newest checkpoint in a folder; returns the Estimator."""
        place = self._path("load", checkpoint, other_names)
        model = self.model if is_checkpoint else bigdl_loader()(f"{place}.bigdl", f"{place}.bin")
        given = (feature_preprocessing or self.preprocessing[0], label_preprocessing or self.preprocessing[1])
        made = type(self).of(
            model=model,
            loss=loss if loss is not None else self.criterion,
            optimizer=optimizer if optimizer is not None else self.method,
            metrics=list(self.metrics) or None,
            feature_preprocessing=given[0],
            label_preprocessing=given[1],
            model_dir=model_dir or self.model_dir,
            **self.options,
        )
        self.__dict__.update(vars(made))
        if is_checkpoint:
            self.load_orca_checkpoint(place)
        return self

    save_checkpoint = TorchEstimator.save
    load_checkpoint = TorchEstimator.load

    def _rows(self, data: Any, features: Any, labels: Any) -> tuple[Any, dict[str, Any]]:
        """Return data as the torch Estimator takes it, with the columns that it has."""
        given, tabular = bigdl_data()(data, *map(self._preprocess, self.preprocessing))
        if not tabular:
            return given, {}
        self.readers = {
            name: preprocess.read
            for columns, preprocess in zip((features, labels), map(self._preprocess, self.preprocessing), strict=True)
            for name in listed(columns)
            if preprocess is not None
        }
        return given, {"feature_cols": features, "label_cols": labels}

    @staticmethod
    def _preprocess(given: Any) -> Any:
        return preprocessing_of(given, "feature_preprocessing")

    def _spec(self, *args: Any, **kwargs: Any) -> DataSpec:
        return replace(super()._spec(*args, **kwargs), readers=self.readers, vectors=False)
