"""MxnetEstimator: the verbs of the MXNet Estimator. Owns their arguments and the number of its workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orca.core.arguments import checked
from orca.core.engine import Engine, Settings
from orca.core.metrics import Metric
from orca.core.source import DataSpec, Source
from orca.core.units import natural, positive
from orca.errors import ArgumentError
from orca.estimators.estimator import name_of
from orca.estimators.training import TrainingEstimator
from orca.registry import backend_of
from orca_classic.mxnet.data import MxnetCreator
from orca_classic.mxnet.learner import MxnetLearner
from orca_classic.mxnet.metrics import mxnet_metrics


class MxnetEstimator(TrainingEstimator):
    """A Gluon or Symbol model of MXNet that learns and answers on any engine. Made by `Estimator.from_mxnet`.

    Example:
        >>> from orca_classic import Estimator
        >>> from orca_classic.mxnet import create_config
        >>> from mxnet import gluon
        >>> import numpy as np
        >>> est = Estimator.from_mxnet(
        ...     config=create_config(optimizer_params={"learning_rate": 0.1}, log_interval=0),
        ...     model_creator=lambda config: gluon.nn.Dense(1),
        ...     loss_creator=lambda config: gluon.loss.L2Loss(),
        ...     backend="local")
        >>> x = np.random.rand(64, 2).astype("float32")
        >>> stats = est.fit((x, x.sum(axis=1)), epochs=2, batch_size=16)
        >>> [line["num_samples"] for line in stats]
        [64, 64]
        >>> est.predict(x).shape
        (64, 1)
    """

    learner: MxnetLearner
    asked_workers: int | None = None
    metrics_creator: Callable[..., Any] | None = None

    @classmethod
    def of(
        cls,
        *,
        config: dict[str, Any],
        model_creator: Callable[..., Any],
        loss_creator: Callable[..., Any] | None = None,
        eval_metrics_creator: Callable[..., Any] | None = None,
        validation_metrics_creator: Callable[..., Any] | None = None,
        num_workers: int | None = None,
        num_servers: int | None = None,
        runner_cores: int | None = None,
        backend: str | None = None,
        workers_per_node: int = 1,
        model_dir: str | None = None,
        log_to_driver: bool = True,
        stall_timeout: float = 300.0,
        start_timeout: float = 0.0,
    ) -> MxnetEstimator:
        """Make an Estimator of an MXNet model; see `Estimator.from_mxnet` for the arguments."""
        if not isinstance(config, dict):
            raise ArgumentError(f"config must be a dict, as create_config returns; got {type(config).__name__}.")
        _check_creators(
            model_creator=model_creator,
            loss_creator=loss_creator,
            eval_metrics_creator=eval_metrics_creator,
            validation_metrics_creator=validation_metrics_creator,
        )
        for name, value in (("num_workers", num_workers), ("num_servers", num_servers), ("runner_cores", runner_cores)):
            if value is not None:
                positive(name, value)
        entry = backend_of(backend, "mxnet") if backend else None
        if entry is not None and entry.sync != "replicated":
            raise ArgumentError(f"backend must be 'spark', 'ray' or 'local' for an MXNet model; got {backend!r}.")
        seed = natural("seed", config.get("seed") or 0)
        est = cls(
            MxnetLearner(model_creator, loss_creator, eval_metrics_creator, dict(config), seed),
            entry,
            config=config,
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=seed,
            settings=Settings(
                stall_timeout,
                threads=runner_cores or 0,
                log_to_driver=log_to_driver,
                start_timeout=start_timeout,
            ),
        )
        est.asked_workers = num_workers
        est.metrics_creator = validation_metrics_creator or eval_metrics_creator
        return est

    def _model_name(self) -> Any:
        return name_of(self.learner.model_creator)

    @property
    def engine(self) -> Engine:
        """Return the engine of the backend on the cluster that is up now, with the workers that were asked for."""
        engine = super().engine
        if self.asked_workers is not None:
            engine.workers = self.asked_workers
        return engine

    @checked
    def fit(  # type: ignore[override]
        self,
        data: Any,
        epochs: int = 1,
        batch_size: int = 32,
        validation_data: Any = None,
        train_resize_batch_num: int | None = None,
        feature_cols: Sequence[str] | str | None = None,
        label_cols: Sequence[str] | str | None = None,
        *,
        shuffle: bool = True,
        callbacks: Any = None,
        on_nan: str = "raise",
        profile: bool = False,
        sample_weight: str | bool | None = None,
        cache: bool = False,
        max_steps: int | None = None,
        end_trigger: Any = None,
        checkpoint_trigger: Any = None,
        keep_checkpoints: int | None = None,
        max_failures: int = 0,
        resume: bool = False,
    ) -> list[dict[str, Any]]:
        """Train, going on from the weights and the optimizer of the last fit (or load).

        Args:
            data: A creator `(config, kv)` that returns a DataIter or a gluon DataLoader, XShards of {"x", "y"}, a Spark
                DataFrame, arrays `(x, y)`, pandas, or a Ray Dataset. A creator that asks `kv` for its rank or for
                num_workers makes a worker's own share, with batches of `config["batch_size"]` rows; one that does not
                makes the whole data, which is split for you.
            epochs: How many times to see every row.
            batch_size: Rows of one step over all workers.
            validation_data: Data of the same kind, evaluated after every epoch.
            train_resize_batch_num: Steps of an epoch; the next one continues in the data where it ended. All of the
                data unless given.
            feature_cols: Columns that become the model's inputs, in this order.
            label_cols: Columns the outputs are compared with.
            shuffle: Whether each epoch reads in a new order; a DataIter or DataLoader decides for itself.
            callbacks: Callbacks (`orca.callbacks`), called on every worker.
            on_nan: "raise", "warn" or "ignore" when the loss is not finite.
            profile: Whether to add a `profile` with where time went.
            sample_weight: The column with the weight of each row; True where the data comes as (x, y, weights).
            cache: Ignored, with a warning; kept for compatibility. Use `df.persist()`.
            max_steps: Train this many steps, over as many epochs as it takes, instead of `epochs`.
            end_trigger: When to stop before the epochs are over, such as MinLoss(0.1).
            checkpoint_trigger: When to keep a checkpoint under model_dir, such as EveryEpoch().
            keep_checkpoints: How many of the newest checkpoints stay; all unless given.
            max_failures: How many times to resume by itself when a worker is lost or stuck.
            resume: Whether to resume the fit whose checkpoints are the newest under model_dir, if there is one: at
                its next unseen batch, until its epochs are complete.

        Returns:
            A dict an epoch, over all workers: num_samples, epoch, batch_count, train_loss, last_train_loss, epoch_time
            in seconds, `train_` and `val_` before the names of metrics.

        Raises:
            ArgumentError: An argument or the data is wrong.
            WorkerFailed: A worker failed, was lost or stalled; says which and why.
        """
        if train_resize_batch_num is not None:
            positive("train_resize_batch_num", train_resize_batch_num)
        histories = self._train(
            data,
            validation_data,
            self._spec(batch_size, feature_cols, label_cols, weight=sample_weight, cache=cache),
            metrics=self._own_metrics(),
            checkpoint_trigger=checkpoint_trigger,
            keep_checkpoints=keep_checkpoints,
            resume=resume,
            max_failures=max_failures,
            epochs=epochs,
            steps_per_epoch=train_resize_batch_num,
            shuffle=shuffle,
            on_nan=on_nan,
            profile=profile,
            max_steps=max_steps,
            end_trigger=end_trigger,
            callbacks=callbacks,
        )
        lines, traces = histories[0].epochs, histories[0].traces
        for line, trace in zip(lines[len(lines) - len(traces) :], traces, strict=True):
            line["epoch_time"] = trace.seconds
        return list(lines)

    @checked
    def evaluate(  # type: ignore[override]
        self,
        data: Any,
        batch_size: int = 32,
        num_steps: int | None = None,
        feature_cols: Sequence[str] | str | None = None,
        label_cols: Sequence[str] | str | None = None,
        *,
        callbacks: Any = None,
        profile: bool = False,
        sample_weight: str | bool | None = None,
        cache: bool = False,
    ) -> dict[str, Any]:
        """Evaluate the loss and all metrics, exactly, over all rows.

        Args:
            data: Labelled data of any kind `fit` takes.
            batch_size: Rows of one step over all workers.
            num_steps: Stop after this many steps; None sees every row.
            feature_cols: Columns that become the model's inputs.
            label_cols: Columns the outputs are compared with.
            callbacks: Callbacks (`orca.callbacks`), called on every worker.
            profile: Whether to add a `profile` with where time went.
            sample_weight: The column with the weight of each row in the loss; True for data (x, y, weights).
            cache: Ignored, with a warning; kept for compatibility. Use `df.persist()`.

        Returns:
            A dict with num_samples, val_loss and each metric under its name.
        """
        spec = self._spec(batch_size, feature_cols, label_cols, weight=sample_weight, cache=cache)
        ((statistics, _), *_) = self._evaluate(
            data, spec, num_steps, self._own_metrics(), profile=profile, callbacks=callbacks
        )
        return statistics

    def _source(self, data: Any, spec: DataSpec) -> Source:
        """Wrap data; a function is a creator that gets `(config, kv)`."""
        is_creator = callable(data) and not isinstance(data, type) and not hasattr(data, "shape")
        return super()._source(MxnetCreator(data) if is_creator else data, spec)

    def _own_metrics(self) -> tuple[Metric, ...]:
        metrics = None if self.metrics_creator is None else self.metrics_creator(dict(self.config))
        return tuple(mxnet_metrics(metrics))


def _check_creators(**creators: Any) -> None:
    for name, creator in creators.items():
        # A block and a loss can be called, too, but belong to the process that made them.
        wrong = not callable(creator) or hasattr(creator, "collect_params") or isinstance(creator, type)
        if wrong and (creator is not None or name == "model_creator"):
            raise ArgumentError(
                f"{name} must be a function (config), called on each worker; got {type(creator).__name__}. Write "
                f"{name}=lambda config: ..."
            )
