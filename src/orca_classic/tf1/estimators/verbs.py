"""GraphVerbs: fit, evaluate and predict of the TensorFlow 1 Estimator, of graphs and of Keras. Owns their arguments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from orca.core.arguments import checked
from orca.errors import ArgumentError
from orca.rows.tree import flatten, unflatten
from orca_classic.data.tf.data import Dataset
from orca_classic.tf1.packed_rows import PackedDataset


@dataclass(frozen=True)
class GraphFit:
    """The arguments of a fit: data that can travel, how to read its batches, other feeds and the session's settings."""

    data: Any
    valid: Any
    cols: tuple[Any, Any]
    batch_size: int
    feed_dict: Any
    session_config: Any


class GraphVerbs:
    """The verbs of an Estimator whose variables live with the user: each way to train has its own `_fit` and others."""

    model_dir: str | None
    _summaries: Any
    set_tensorboard: Any

    @checked
    def fit(
        self,
        data: Any,
        epochs: int = 1,
        batch_size: int = 32,
        feature_cols: Sequence[str] | str | None = None,
        label_cols: Sequence[str] | str | None = None,
        validation_data: Any = None,
        session_config: Any = None,
        checkpoint_trigger: Any = None,
        auto_shard_files: bool = False,
        feed_dict: Mapping[Any, Any] | None = None,
        labels_cols: Sequence[str] | str | None = None,
        hard_code_batch_size: bool = False,
        *,
        shuffle: bool = True,
        on_nan: str = "raise",
        callbacks: Any = None,
        max_steps: int | None = None,
        end_trigger: Any = None,
        max_failures: int = 0,
        resume: bool = False,
        keep_checkpoints: int | None = None,
        **more: Any,
    ) -> Self:
        """Train, beginning with the values that the user's variables have now, and leave the trained ones there.

        Args:
            data: XShards of {"x", "y"}, a Spark DataFrame, an unbatched tf.data.Dataset of (features, labels) or of
                the inputs and labels in their order, a TFDataset, or arrays `(x, y)`. A tf.data.Dataset without end
                is read step by step, and needs max_steps.
            epochs: How many times to see every row.
            batch_size: Rows of one step over all workers: any number.
            feature_cols: Columns for the inputs, in their order.
            label_cols: Columns for the labels.
            validation_data: Data of the same kind, evaluated after every epoch.
            session_config: A tf.ConfigProto for the workers' sessions.
            checkpoint_trigger: When to keep a checkpoint under model_dir, such as EveryEpoch().
            auto_shard_files: Accepted: each worker reads a tf.data.Dataset, and keeps its part of the rows.
            feed_dict: Tensor -> value, or a pair of its value in training and its value in the validation.
            labels_cols: The name that label_cols had in an older release.
            hard_code_batch_size: Accepted as False alone: workers have different numbers of rows.
            shuffle: Whether each epoch reads in a new order.
            on_nan: "raise", "warn" or "ignore" when the loss is not finite.
            callbacks: Callbacks (`orca.callbacks`), called on every worker.
            max_steps: Train this many steps, over as many epochs as it takes, instead of `epochs`.
            end_trigger: When to stop before the epochs are over, such as MinLoss(0.1).
            max_failures: How many times to resume by itself when a worker is lost or stuck.
            resume: Whether to resume the fit whose checkpoints are the newest under model_dir, if there is one.
            keep_checkpoints: How many of the newest checkpoints stay; all unless given.
            more: For a Keras model that was built eagerly, more arguments of `KerasEstimator.fit`.

        Returns:
            This Estimator; `history` has the losses.

        Raises:
            ArgumentError: An argument or the data is wrong.
            WorkerFailed: A worker failed, was lost or stalled; says which and why.
        """
        refuse_fixed_batch(hard_code_batch_size)
        if self.model_dir is not None and self._summaries is None:
            self.set_tensorboard(self.model_dir, "summary")
        request = GraphFit(
            packed(self._paired(data), "fit"),
            None if validation_data is None else packed(self._paired(validation_data), "fit"),
            columns_of(data, feature_cols, label_cols if label_cols is not None else labels_cols),
            batch_size,
            feed_dict,
            session_config,
        )
        self._fit(
            request,
            epochs=epochs,
            checkpoint_trigger=checkpoint_trigger,
            shuffle=bool(shuffle),
            on_nan=on_nan,
            callbacks=callbacks,
            max_steps=max_steps,
            end_trigger=end_trigger,
            max_failures=max_failures,
            resume=resume,
            keep_checkpoints=keep_checkpoints,
            **more,
        )
        return self

    @checked
    def evaluate(
        self,
        data: Any,
        batch_size: int = 32,
        feature_cols: Sequence[str] | str | None = None,
        label_cols: Sequence[str] | str | None = None,
        auto_shard_files: bool = False,
        labels_cols: Sequence[str] | str | None = None,
        hard_code_batch_size: bool = False,
        feed_dict: Mapping[Any, Any] | None = None,
        num_steps: int | None = None,
    ) -> dict[str, float]:
        """Evaluate the loss and all metrics, exactly, over all rows.

        Args:
            data: Labelled data of any kind `fit` takes.
            batch_size: Rows of one step over all workers.
            feature_cols: Columns for the inputs.
            label_cols: Columns for the labels.
            auto_shard_files: Accepted.
            labels_cols: The name that label_cols had in an older release.
            hard_code_batch_size: Accepted as False alone.
            feed_dict: Tensor -> value, or a pair of its value in training and its value here.
            num_steps: Stop after this many steps; None sees every row.

        Returns:
            "loss", where there is one, and each metric under its name.
        """
        refuse_fixed_batch(hard_code_batch_size)
        cols = columns_of(data, feature_cols, label_cols if label_cols is not None else labels_cols)
        return self._score(packed(self._paired(data), "evaluate"), cols, batch_size, feed_dict, num_steps)

    @checked
    def predict(
        self,
        data: Any,
        batch_size: int | None = None,
        feature_cols: Sequence[str] | str | None = None,
        auto_shard_files: bool = False,
        hard_code_batch_size: bool = False,
        output_cols: Sequence[str] | str | None = None,
        feed_dict: Mapping[Any, Any] | None = None,
    ) -> Any:
        """Answer for every row, in the kind the data came in and in its order.

        Args:
            data: Data of any kind `fit` takes; labels are not needed.
            batch_size: Rows the graph sees at a time.
            feature_cols: Columns for the inputs.
            auto_shard_files: Accepted.
            hard_code_batch_size: Accepted as False alone.
            output_cols: Names of the prediction columns; `prediction` unless given.
            feed_dict: Tensor -> value, or a pair of its value in training and its value here.

        Returns:
            Arrays for arrays and a tf.data.Dataset; the same XShards with "prediction"; a DataFrame with one more
            column an output, computed lazily; an RDD with an entry per row for a Dataset of `orca.data.tf`.
        """
        refuse_fixed_batch(hard_code_batch_size)
        cols, _ = columns_of(data, feature_cols, None)
        predictions = self._answer(packed(data, "predict"), cols, batch_size, output_cols, feed_dict)
        return predictions.rdd.flatMap(_rows_of) if isinstance(data, Dataset) else predictions

    def _paired(self, data: Any) -> Any:
        """Return data; a tf.data.Dataset of single inputs and labels as one of (inputs, labels)."""
        return data

    @abstractmethod
    def _fit(self, request: GraphFit, **plan: Any) -> None:
        """Train, and give the user's variables the trained values."""

    @abstractmethod
    def _score(
        self, data: Any, cols: tuple[Any, Any], batch_size: int, feed_dict: Any, num_steps: int | None
    ) -> dict[str, float]:
        """Return the loss and the metrics by name."""

    @abstractmethod
    def _answer(self, data: Any, feature_cols: Any, batch_size: int | None, output_cols: Any, feed_dict: Any) -> Any:
        """Return the outputs for every row."""


def _rows_of(shard: Any) -> Iterator[Any]:
    heads, structure = flatten(shard["prediction"])
    return (unflatten(structure, list(row)) for row in zip(*heads, strict=True))


def packed(data: Any, verb: str) -> Any:
    """Return data that can travel: a TFDataset's own, and a tf.data.Dataset written down."""
    if hasattr(data, "data_for"):
        data = data.data_for(verb)
    return PackedDataset.of(data) if hasattr(data, "_variant_tensor") else data


def columns_of(data: Any, features: Any, labels: Any) -> tuple[Any, Any]:
    """Return the columns to read: those given, else those that a TFDataset of a DataFrame names."""
    own = (getattr(data, "feature_cols", None), getattr(data, "label_cols", None)) if hasattr(data, "data_for") else ()
    return (features or own[0], labels or own[1]) if own else (features, labels)


def refuse_fixed_batch(hard_code_batch_size: bool) -> None:
    """Refuse placeholders with a fixed number of rows.

    Raises:
        ArgumentError: They are asked for.
    """
    if hard_code_batch_size:
        raise ArgumentError(
            "hard_code_batch_size=True is not supported: workers have different numbers of rows, so that no row is "
            "dropped. Leave it out, and write tf.shape(x)[0] where the graph needs the number of rows."
        )
