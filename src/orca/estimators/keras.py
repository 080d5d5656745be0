"""KerasEstimator: the verbs of the TensorFlow 2 / Keras Estimator. Owns their arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from orca.core.arguments import checked
from orca.core.engine import Settings
from orca.core.source import DataSpec
from orca.core.state import State
from orca.core.units import natural, positive
from orca.errors import ArgumentError, NotYet
from orca.estimators.estimator import name_of
from orca.estimators.training import TrainingEstimator
from orca.frameworks.keras.files import load_model, load_weights, save_model, save_weights
from orca.frameworks.keras.learner import KerasLearner
from orca.rows.tree import listed
from orca.storage.checkpoints import first_whole, latest_checkpoint, latest_checkpoints
from orca.storage.states import is_state, save_state

_CLIPS = "the optimizer of a Keras model clips gradients itself. Give it clipnorm or clipvalue"


class KerasEstimator(TrainingEstimator):
    """A Keras model that learns and answers on any engine. Made by `Estimator.from_keras`.

    Example:
        >>> from orca import Estimator
        >>> import keras, numpy as np
        >>> def model_creator(config):
        ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        ...     model.compile(optimizer=keras.optimizers.SGD(config["lr"]), loss="mse")
        ...     return model
        >>> est = Estimator.from_keras(model_creator=model_creator, config={"lr": 0.1}, backend="local")
        >>> x = np.random.rand(64, 2).astype("float32")
        >>> stats = est.fit((x, x.sum(axis=1)), epochs=2, batch_size=16)
        >>> len(stats["loss"]), stats["train_loss"] == stats["loss"][-1]
        (2, True)
        >>> est.predict(x).shape
        (64, 1)
    """

    learner: KerasLearner
    refusals: ClassVar = dict.fromkeys(
        ("set_constant_gradient_clipping", "set_l2_norm_gradient_clipping", "clear_gradient_clipping"), _CLIPS
    )

    def _model_name(self) -> Any:
        packed = self.learner.packed_model
        return name_of(self.learner.creator) if packed is None else packed.class_name

    @checked
    def fit(  # type: ignore[override]
        self,
        data: Any,
        epochs: int = 1,
        batch_size: int = 32,
        verbose: int = 1,
        callbacks: Any = None,
        validation_data: Any = None,
        class_weight: dict[int, float] | None = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_freq: int | Sequence[int] = 1,
        data_config: dict[str, Any] | None = None,
        feature_cols: Sequence[str] | str | None = None,
        label_cols: Sequence[str] | str | None = None,
        *,
        shuffle: bool = True,
        on_nan: str = "raise",
        profile: bool = False,
        max_failures: int = 0,
        resume: bool = False,
        checkpoint_trigger: Any = None,
        keep_checkpoints: int | None = None,
        max_steps: int | None = None,
        end_trigger: Any = None,
        sample_weight: str | bool | None = None,
        cache: bool = False,
    ) -> dict[str, Any]:
        """Train, continuing from the weights and the optimizer of the last fit (or load).

        Args:
            data: A creator `(config, batch_size)` that returns a batched tf.data.Dataset, a Spark DataFrame, XShards
                of {"x", "y"}, arrays `(x, y)`, pandas, or a Ray Dataset.
            epochs: The number of the last epoch: as many are trained, less `initial_epoch`.
            batch_size: Rows of one step over all workers; a creator gets it as it is.
            verbose: 1 for a progress bar and a line for each epoch, 2 for the lines alone, 0 for neither.
            callbacks: Keras callbacks. They run on every worker; those that write files, on the first alone.
            validation_data: Data of the same kind, evaluated after every epoch.
            class_weight: Class number -> weight of its rows in the loss.
            initial_epoch: The number of the first epoch, for callbacks that count them.
            steps_per_epoch: Steps of an epoch; the next one continues in the data where it ended. All of the data
                unless given.
            validation_steps: Steps of a validation; all of the data unless given.
            validation_freq: Validate every n-th epoch, or after the epochs of these numbers, counted from 1.
            data_config: The argument of data creators in place of `config`.
            feature_cols: Columns that become the model's inputs: by name if the inputs have these names, else in this
                order.
            label_cols: Columns the outputs are compared with: by name if the outputs have these names, else in this
                order.
            shuffle: Whether each epoch reads in a new order; a tf.data.Dataset decides for itself.
            on_nan: "raise", "warn" or "ignore" when the loss is not finite.
            profile: Whether to add a `profile` with where time went, a list of one dict an epoch.
            max_failures: How many times to continue by itself when a worker is lost or stuck: from the last checkpoint
                under model_dir (one is kept every epoch unless checkpoint_trigger says otherwise), or from the start.
            resume: Whether to resume the fit whose checkpoints are the newest under model_dir, if there is one: at
                its next unseen batch, until its epochs are complete. Callbacks get their states back.
            checkpoint_trigger: When to keep a checkpoint under model_dir, such as EveryEpoch().
            keep_checkpoints: How many of the newest checkpoints stay; all unless given.
            max_steps: Train this many steps, over as many epochs as it takes, instead of `epochs`.
            end_trigger: When to stop before the epochs are over, such as MinLoss(0.1).
            sample_weight: The column with the weight of each row; True where the data comes as (x, y, weights).
            cache: Ignored, with a warning; kept for compatibility. Use `df.persist()`.

        Returns:
            The history as Keras returns it (`loss`, `accuracy`, ...: a list of one value an epoch; `val_...` too) and
            the last values under `train_loss`, `train_accuracy`, ... and `validation_loss`, ...

        Raises:
            ArgumentError: An argument or the data is wrong.
            WorkerFailed: A worker failed, was lost or stalled; says which and why.
        """
        positive("epochs", epochs)
        natural("initial_epoch", initial_epoch)
        if initial_epoch >= epochs:
            raise ArgumentError(
                f"initial_epoch must be less than epochs; got {initial_epoch} and {epochs}.", code="bad-initial-epoch"
            )
        spec = self._keras_spec(data_config, batch_size, feature_cols, label_cols, weight=sample_weight, cache=cache)
        histories = self._train(
            data,
            validation_data,
            spec,
            learner=replace(self._named(spec), class_weight=_class_weight(class_weight)),
            settings=self._settings(verbose),
            checkpoint_trigger=checkpoint_trigger,
            keep_checkpoints=keep_checkpoints,
            resume=resume,
            max_failures=max_failures,
            epochs=epochs - initial_epoch,
            shuffle=shuffle,
            on_nan="ignore" if any(type(each).__name__ == "TerminateOnNaN" for each in listed(callbacks)) else on_nan,
            profile=profile,
            max_steps=max_steps,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_freq=_frequency(validation_freq),
            initial_epoch=initial_epoch,
            callbacks=callbacks,
            end_trigger=end_trigger,
        )
        if self.model_dir is not None:
            self.save_checkpoint(f"{self.model_dir.rstrip('/')}/checkpoint-{self._current().epoch}")
        return _statistics(histories[0].epochs)

    def _named(self, spec: DataSpec) -> KerasLearner:
        """Return the learner, which knows the names of the columns."""
        return replace(self.learner, features=spec.columns.features, labels=spec.columns.labels)

    def _settings(self, verbose: int) -> Settings:
        return replace(self.settings, progress=self.settings.progress and verbose in (1, 2), bar=verbose == 1)

    @checked
    def evaluate(  # type: ignore[override]
        self,
        data: Any,
        batch_size: int = 32,
        num_steps: int | None = None,
        verbose: int = 1,
        sample_weight: str | bool | None = None,
        callbacks: Any = None,
        data_config: dict[str, Any] | None = None,
        feature_cols: Sequence[str] | str | None = None,
        label_cols: Sequence[str] | str | None = None,
        steps: int | None = None,
        *,
        cache: bool = False,
    ) -> dict[str, Any]:
        """Evaluate the loss and the compiled metrics, exactly, over all rows.

        Args:
            data: Labelled data of any kind `fit` takes.
            batch_size: Rows of one step over all workers.
            num_steps: Stop after this many steps; None sees every row.
            verbose: 0 for no progress bar.
            sample_weight: The column with the weight of each row; True where the data comes as (x, y, weights).
            callbacks: Keras callbacks, called on every worker; those that write files, on the first alone.
            data_config: The argument of data creators in place of `config`.
            feature_cols: Columns that become the model's inputs.
            label_cols: Columns the outputs are compared with.
            steps: Another name of num_steps.
            cache: Ignored, with a warning; kept for compatibility. Use `df.persist()`.

        Returns:
            A dict with num_samples, and the loss and each metric under `validation_` and its name.
        """
        spec = self._keras_spec(data_config, batch_size, feature_cols, label_cols, weight=sample_weight, cache=cache)
        ((statistics, _), *_) = self._evaluate(
            data,
            spec,
            steps if num_steps is None else num_steps,
            learner=self._named(spec),
            settings=self._settings(verbose),
            callbacks=callbacks,
        )
        return {_validation_name(name): value for name, value in statistics.items()}

    @checked
    def predict(  # type: ignore[override]
        self,
        data: Any,
        batch_size: int | None = None,
        verbose: int = 1,
        steps: int | None = None,
        callbacks: Any = None,
        data_config: dict[str, Any] | None = None,
        feature_cols: Sequence[str] | str | None = None,
        output_cols: Sequence[str] | str | None = None,
        min_partition_num: int | None = None,
        *,
        cache: bool = False,
    ) -> Any:
        """Answer for every row, in the kind the data came in and in its order.

        Args:
            data: Data of any kind `fit` takes; labels are not needed.
            batch_size: Rows the model sees at a time.
            verbose: Accepted.
            steps: Answer only so many batches of a tf.data.Dataset, which one that repeats itself needs; every row
                of other data is answered.
            callbacks: Accepted by no release; leave them out.
            data_config: The argument of data creators in place of `config`.
            feature_cols: Columns that become the model's inputs.
            output_cols: Names of the prediction columns; `prediction` unless given.
            min_partition_num: Accepted.
            cache: Ignored, with a warning; kept for compatibility. Use `df.persist()`.

        Returns:
            Arrays for arrays and creators; the same XShards with "prediction"; a DataFrame or Ray Dataset with one more
            column an output, computed lazily.
        """
        if callbacks:
            raise NotYet("predict: callbacks are not built yet; leave them out.", code="predict-callbacks-not-built")
        spec = self._keras_spec(data_config, batch_size, feature_cols, None, output_cols, labelled=False, cache=cache)
        spec = replace(spec, steps=None if steps is None else positive("steps", steps))
        return self._source(data, spec).answer(self._answers(self._named(spec), spec), self.engine)

    def get_model(self, sample_input: Any = None, set_weights: bool = True) -> Any:
        """Return the model, compiled as it was, with its trained weights and the optimizer's state.

        Args:
            sample_input: Rows to build a model from that has no weights before it sees some.
            set_weights: False returns the model as its creator makes it.
        """
        return self.learner.build(self._current() if set_weights else State(), sample_input)

    def save(  # type: ignore[override]
        self,
        filepath: str | None = None,
        overwrite: bool = True,
        include_optimizer: bool = True,
        save_format: str | None = None,
        signatures: Any = None,
        options: Any = None,
        **other_names: str,
    ) -> str:
        """Save the whole model as Keras does: `.keras`, `.h5` or a SavedModel folder; returns the path.

        Args:
            filepath: Any fsspec path. A folder of Keras 3 holds a SavedModel for serving and the model itself.
            overwrite: Whether to replace an earlier file.
            include_optimizer: Whether training can continue from it.
            save_format: "tf", "h5" or "keras", where the path does not tell.
            signatures: Signatures of a SavedModel.
            options: Options of a SavedModel.
            other_names: The path under the names it had: checkpoint, model_path, path.
        """
        place = self._path("save", filepath, other_names)
        save_model(
            self.get_model(),
            place,
            overwrite=overwrite,
            include_optimizer=include_optimizer,
            save_format=save_format,
            signatures=signatures,
            options=options,
        )
        return place

    def load(  # type: ignore[override]
        self,
        filepath: str | None = None,
        custom_objects: dict[str, Any] | None = None,
        compile: bool = True,
        options: Any = None,
        safe_mode: bool = True,
        **other_names: str,
    ) -> KerasEstimator:
        """Load a model that Keras or `save` wrote (or a checkpoint of `save_checkpoint`) in place of this one's.

        Args:
            filepath: Any fsspec path.
            custom_objects: Name -> class or function that is not Keras' own; those registered with
                register_keras_serializable are found by themselves. None is imported because a file names it.
            compile: Whether to compile it as it was saved.
            options: Ignored; kept for compatibility.
            safe_mode: False runs code that the file holds (lambdas): only for files you trust.
            other_names: The path under the names it had: checkpoint, model_path, path.

        Raises:
            ArgumentError: The file names a class or function that is not known here, or would run code.
        """
        place = self._path("load", filepath, other_names)
        if is_state(place):
            return self.load_checkpoint(place)
        model = load_model(place, custom_objects=custom_objects, compile=compile, safe_mode=safe_mode)
        self.learner = self.learner.with_model(model)
        self._state = self.learner.state_of(model, None)
        return self

    def save_weights(
        self, filepath: str, overwrite: bool = True, save_format: str | None = None, options: Any = None
    ) -> str:
        """Save the weights alone, as Keras does; returns the path."""
        save_weights(self.get_model(), filepath, overwrite=overwrite, save_format=save_format)
        return filepath

    def load_weights(
        self, filepath: str, by_name: bool = False, skip_mismatch: bool = False, options: Any = None
    ) -> KerasEstimator:
        """Load weights that Keras or `save_weights` wrote into this model."""
        model = self.get_model()
        load_weights(model, filepath, by_name=by_name, skip_mismatch=skip_mismatch)
        self._state = self.learner.state_of(model, self._state)
        return self

    def save_checkpoint(self, checkpoint: str) -> str:  # type: ignore[override]
        """Save weights, optimizer state and the number of epochs trained, to continue from; returns the path."""
        save_state(self._current(), checkpoint, self.learner.framework)
        return checkpoint

    def load_checkpoint(self, checkpoint: str, sample_input: Any = None) -> KerasEstimator:  # type: ignore[override]
        """Continue from a checkpoint of save_checkpoint."""
        self._take(self._read(checkpoint), checkpoint)
        return self

    restore = load_checkpoint

    def load_orca_checkpoint(self, path: str, version: int | None = None, prefix: str | None = None) -> KerasEstimator:
        """Load a checkpoint that a fit left.

        Args:
            path: The model_dir, or the folder of one fit in it.
            version: Epochs trained, for a checkpoint of the end of a fit; or steps, for one that a trigger kept. The
                newest unless given.
            prefix: The first part of the name of a trigger's checkpoint, where the folder has several such parts.

        Raises:
            ArgumentError: There is no such checkpoint.
        """
        last = f"{path.rstrip('/')}/checkpoint-{version}"
        if version is None and prefix is None:
            newest = latest_checkpoints(path)
            if not newest:
                raise ArgumentError(
                    f"there is no checkpoint in {path}. Pass the model_dir of the Estimator that trained.",
                    code="missing-checkpoint",
                )
            self._state = first_whole(path, newest, self._read_checked, self.settings.storage_timeout)[1].settled()
            return self
        if prefix is None and is_state(last):
            return self.load_checkpoint(last)
        return super().load_orca_checkpoint(path, version, prefix)

    @classmethod
    def latest_checkpoint(cls, checkpoint_dir: str) -> str | None:
        """Return the newest checkpoint in a folder, None where there is none."""
        return latest_checkpoint(checkpoint_dir)

    def _keras_spec(self, data_config: dict[str, Any] | None, *arguments: Any, **options: Any) -> DataSpec:
        spec = self._spec(*arguments, **options)
        return replace(spec, config=spec.config if data_config is None else dict(data_config), whole=True)


def _class_weight(weights: Any) -> dict[int, float] | None:
    if weights is None:
        return None
    try:
        by_class = {int(number): float(weight) for number, weight in weights.items()}
    except (AttributeError, TypeError, ValueError):
        by_class = {}
    if not by_class or min(by_class) < 0:
        raise ArgumentError(
            f"class_weight must be a dict of class numbers and weights; got {weights!r}. Example: {{0: 1.0, 1: 5.0}}.",
            code="bad-class-weight",
        )
    return by_class


def _frequency(freq: int | Sequence[int]) -> int | tuple[int, ...]:
    if isinstance(freq, list | tuple | set | range) and freq:
        return tuple(positive("each epoch of validation_freq", epoch) for epoch in freq)
    return positive("validation_freq", freq)


def _validation_name(name: str) -> str:
    return name if name in ("num_samples", "profile") else f"validation_{name.removeprefix('val_')}"


def _statistics(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an epoch's lines as Keras' history, and the last values under the names of the older releases."""
    stats: dict[str, Any] = {}
    lines = [{name: value for name, value in line.items() if value is not None} for line in lines]
    for line in lines:
        for name, value in line.items():
            if name.startswith("train_"):
                stats.setdefault(name.removeprefix("train_"), []).append(value)
            elif name == "profile" or (name.startswith("val_") and name != "val_num_samples"):
                stats.setdefault(name, []).append(value)
    last = {name: value for line in lines for name, value in line.items()}
    stats |= {name: value for name, value in last.items() if name.startswith("train_")}
    stats |= {f"validation_{n.removeprefix('val_')}": v for n, v in last.items() if n in stats and n.startswith("val_")}
    stats["num_samples"] = last["num_samples"]
    return stats
