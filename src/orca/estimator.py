"""Estimator: what the user holds. Owns the public verbs and the checks of their arguments; the rest is elsewhere.

fit:  check the arguments  ->  source_of(data)  ->  engine.run(FitJob, shards)  ->  keep the state, return the history
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from numbers import Integral
from typing import TYPE_CHECKING, Any

from orca.core.checkpoints import new_run, newest_run, path_of, versions
from orca.core.engine import Engine, Settings
from orca.core.learner import STOPPED, FitPlan, OutputSpec, State
from orca.core.loop import History
from orca.core.metrics import Metric, metrics_of
from orca.core.source import DEFAULT_BATCH, Columns, DataSpec, Shards, Source
from orca.core.triggers import EveryEpoch, trigger_of
from orca.errors import ArgumentError, DataError, OrcaError, WorkerLost, WorkerStalled
from orca.history import RunHistory
from orca.job import EvaluateJob, FitJob, PredictJob, outline_of
from orca.registry import Backend, backend_of, engine_class, face_class, learner_class, source_of
from orca.summary import Summaries

if TYPE_CHECKING:
    from orca.doctor.outlook import Explanation

logger = logging.getLogger(__name__)

BACK_WITHIN = 30.0  # seconds in which a cluster may replace a worker that was lost
_PATH_NAMES = ("model_path", "checkpoint", "filepath", "path")


class Estimator:
    """Train, evaluate and serve a model on any engine. Make one with a `from_...` method.

    Example:
        >>> import numpy as np, torch
        >>> model = torch.nn.Linear(2, 1)
        >>> est = Estimator.from_torch(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...                            loss=torch.nn.MSELoss(), backend="local")
        >>> x = np.random.rand(64, 2).astype("float32")
        >>> stats = est.fit((x, x.sum(axis=1)), epochs=2, batch_size=16)
        >>> [line["num_samples"] for line in stats]
        [64, 64]
        >>> est.predict(x).shape
        (64, 1)
    """

    def __init__(
        self,
        learner: Any,
        backend: Backend | None,
        *,
        metrics: Any = None,
        config: dict[str, Any] | None = None,
        workers_per_node: int = 1,
        model_dir: str | None = None,
        seed: int = 0,
        settings: Settings | None = None,
    ) -> None:
        self.learner, self.backend, self.settings = learner, backend, settings or Settings()
        self.metrics = tuple(metrics_of(metrics))
        self.config = dict(config or {})
        self.workers_per_node = positive("workers_per_node", workers_per_node)
        self.model_dir, self.seed = model_dir, seed
        self.history = RunHistory()
        self._summaries: Summaries | None = None
        self._state: State | None = None
        # The last job of predict, with the outline of its model, and the model itself, which must live as long.
        self._answering: tuple[bytes | None, PredictJob, Any] | None = None
        self._seen: tuple[OutputSpec | None, OutputSpec | None] = None, None  # a row, and an answer, before any fit

    default_backend = "spark"
    squeezes = False  # whether answers lose their dimensions of size 1, as those of older releases did

    @classmethod
    def from_torch(
        cls,
        *,
        model: Any = None,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        backend: str | None = None,
        config: dict[str, Any] | None = None,
        workers_per_node: int = 1,
        scheduler_creator: Callable[..., Any] | None = None,
        training_operator_cls: type | None = None,
        initialization_hook: Callable[[], None] | None = None,
        scheduler_step_freq: str = "batch",
        use_tqdm: bool = True,
        model_dir: str | None = None,
        sync_stats: bool = False,
        log_level: int = logging.INFO,
        log_to_driver: bool = True,
        seed: int | None = None,
        stall_timeout: float = 300.0,
        start_timeout: float = 0.0,
        threads_per_worker: int | None = None,
        precision: str | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | tuple[float, float] | None = None,
        compile: bool | dict[str, Any] = False,
        ema: float | None = None,
        deterministic: bool = False,
        sync_batchnorm: bool = False,
        shard_model: bool = False,
        find_unused_parameters: bool = False,
        loss_reduction: str | Callable[..., Any] | None = None,
    ) -> Estimator:
        """Make an Estimator of a PyTorch model.

        Args:
            model: A `torch.nn.Module`, or a creator `(config)` that returns one on each worker; or a list of them.
            optimizer: A `torch.optim.Optimizer` of that module, or a creator `(model, config)`.
            loss: A torch loss (instance or class), a function `(output, target)`, or a creator `(config)`.
            metrics: One metric or several: Orca metrics or their plain names ("accuracy"), metrics of torchmetrics, or
                functions `(output, target)` of all rows.
            backend: "spark" (the default), "bigdl", "ray" ("torch_distributed"), "horovod" or "local".
            config: What all creators get.
            workers_per_node: Workers (ranks) on each node of the cluster.
            scheduler_creator: A function `(optimizer, config)` that returns a learning rate scheduler.
            training_operator_cls: A subclass of TrainingOperator: training in your own words.
            initialization_hook: Called without arguments on each worker before anything else.
            scheduler_step_freq: When the scheduler steps: "batch", "epoch" or "manual".
            use_tqdm: Whether to show a progress bar in a terminal.
            model_dir: Where checkpoints go.
            sync_stats: Accepted; statistics are always exact over all workers.
            log_level: The level from which log records of workers appear on the driver.
            log_to_driver: Whether what workers print and log appears on the driver, with their rank.
            seed: Seed of initial weights, order and dropout; torch's own initial seed unless given.
            stall_timeout: Seconds without progress after which the stuck worker is named; 0 waits for ever.
            start_timeout: Seconds that workers may take to start where the cluster is busy; 0 waits on, and says every
                while what for.
            threads_per_worker: Threads of a worker's arithmetic; unless given, OMP_NUM_THREADS where it is set here,
                else a node's cores shared among its workers.
            precision: "bf16" or "fp16" (with a loss scaler) for forward passes in mixed precision.
            accumulate: Pieces into which each worker cuts its part of a step, to need less memory.
            clip_norm: The norm to which the gradients of a step are clipped.
            clip_value: The bounds into which each gradient is clipped: (low, high), or one number for both.
            compile: Whether to compile the model with torch.compile; a dict holds its arguments.
            ema: The decay of a moving average of the weights, with which to evaluate and predict.
            deterministic: Whether torch may use deterministic algorithms alone.
            sync_batchnorm: Whether batch normalization sees the rows of all workers.
            shard_model: Whether to cut weights, gradients and optimizer state among the workers (FSDP2), for a model
                that is larger than a worker; with model_dir on shared storage its state stays there.
            find_unused_parameters: Whether some parameters may take no part in a step.
            loss_reduction: What a loss of your own is: "mean" (over rows), "sum", or a function `(target)` that returns
                what each row counts in its mean. Found out unless given.

        Raises:
            ArgumentError: An argument has the wrong kind, or two do not go together.
        """
        chosen = backend_of(backend or cls.default_backend)
        chosen = replace(chosen, sync="fully sharded") if shard_model else chosen
        learner = learner_class("torch")
        options = learner.options_of(
            clip_norm=clip_norm,
            clip_value=clip_value,
            scheduler=scheduler_creator,
            step_freq=scheduler_step_freq,
            operator=training_operator_cls,
            precision=precision,
            accumulate=accumulate,
            compiled=compile,
            ema=ema,
            deterministic=deterministic,
            sync_batchnorm=sync_batchnorm,
            unused=find_unused_parameters,
            reduction=loss_reduction,
            squeeze=cls.squeezes,
        )
        threads = threads_per_worker or threads_asked_for()
        return cls(
            learner.of(model, optimizer, loss, dict(config or {}), chosen.sync, initialization_hook, options),
            chosen,
            metrics=metrics,
            config=config,
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=learner.default_seed() if seed is None else natural("seed", seed),
            settings=Settings(stall_timeout, use_tqdm, threads, log_level, log_to_driver, start_timeout),
        )

    @classmethod
    def from_keras(cls, **options: Any) -> Any:
        """Make an Estimator of a Keras model: see `orca.faces.keras.KerasEstimator.of` for its arguments."""
        return face_class("keras").of(**options)

    @classmethod
    def from_openvino(cls, **options: Any) -> Any:
        """Make an Estimator of an OpenVINO model: see `orca.faces.openvino.OpenvinoEstimator.of` for its arguments."""
        return face_class("openvino").of(**options)

    def fit(
        self,
        data: Any,
        epochs: int = 1,
        batch_size: int | None = None,
        profile: bool = False,
        reduce_results: bool = True,
        info: dict[str, Any] | None = None,
        feature_cols: Sequence[str] | str | None = None,
        label_cols: Sequence[str] | str | None = None,
        validation_data: Any = None,
        callbacks: Any = None,
        max_steps: int | None = None,
        validation_methods: Any = None,
        checkpoint_trigger: Any = None,
        *,
        shuffle: bool | None = None,
        on_nan: str = "raise",
        sample_weight: str | bool | None = None,
        end_trigger: Any = None,
        max_failures: int = 0,
        resume: bool = False,
        keep_checkpoints: int | None = None,
    ) -> list[Any]:
        """Train, going on from where the last fit (or load) ended.

        Args:
            data: Arrays `(x, y)`, pandas, a torch Dataset or DataLoader, a creator `(config, batch_size)`, a Spark
                DataFrame, XShards of {"x", "y"}, or a Ray Dataset.
            epochs: How many times to see every row.
            batch_size: Rows of one step over all workers; 32 unless given or brought by a DataLoader.
            profile: Whether to add a `profile` with where time went, as a mean and by worker.
            reduce_results: Whether to return one line an epoch over all workers, or each worker's own.
            info: What your TrainingOperator is told with each epoch and batch.
            feature_cols: Columns that become the model's arguments, in this order.
            label_cols: Columns the outputs are compared with.
            validation_data: Data of the same kind, evaluated after every epoch.
            callbacks: Callbacks (`orca.callbacks`), called on every worker.
            max_steps: Train this many steps, over as many epochs as it takes, instead of `epochs`.
            validation_methods: Metrics of the validation, instead of the Estimator's.
            checkpoint_trigger: When to keep a checkpoint under model_dir, such as EveryEpoch().
            shuffle: Whether each epoch reads in a new order; a DataLoader's own sampler decides for it.
            on_nan: "raise", "warn" or "ignore" when the loss is not finite.
            sample_weight: The column with the weight of each row; True where the data comes as (x, y, weights).
            end_trigger: When to stop before the epochs are over, such as MinLoss(0.1).
            max_failures: How many times to go on by itself when a worker is lost or stuck: from the last checkpoint
                under model_dir (one is kept every epoch unless checkpoint_trigger says otherwise), or from the start.
            resume: Whether to go on with the fit whose checkpoints are the newest under model_dir, if there is one: at
                its next unseen batch, until its epochs are complete.
            keep_checkpoints: How many of the newest checkpoints stay; all unless given.

        Returns:
            A dict an epoch: num_samples, epoch, batch_count, train_loss, last_train_loss and val_... ;
            with reduce_results=False a list of the workers' dicts an epoch.

        Raises:
            ArgumentError: An argument or the data is wrong.
            WorkerFailed: A worker failed, was lost or stalled; says which and why.
        """
        positive("epochs", epochs)
        natural("max_failures", max_failures)
        for name, value in (("max_steps", max_steps), ("keep_checkpoints", keep_checkpoints)):
            if value is not None:
                positive(name, value)
        if on_nan not in ("raise", "warn", "ignore"):
            raise ArgumentError(f"on_nan must be 'raise', 'warn' or 'ignore'; got {on_nan!r}.")
        callbacks = listed(callbacks)
        self.learner.check_trainable()
        self.learner.check_callbacks(callbacks)
        spec = self._spec(batch_size, feature_cols, label_cols, weight=sample_weight)
        source = source_of(data, spec)
        valid = None if validation_data is None else same_kind(source, source_of(validation_data, spec))
        mixed = self.config.get("shuffle", True) if shuffle is None else shuffle
        plan = FitPlan(
            epochs=epochs,
            batch_size=source.batch_size,
            shuffle=bool(mixed),
            seed=self.seed,
            on_nan=on_nan,
            profile=profile,
            max_steps=max_steps,
            callbacks=tuple(callbacks),
            weighted=spec.weighted,
            end_trigger=None if end_trigger is None else trigger_of(end_trigger),
            info=dict(info or {}),
        )
        metrics = self.metrics if validation_methods is None else tuple(metrics_of(validation_methods))
        state, plan = self._checkpointed(plan, checkpoint_trigger, keep_checkpoints, resume, max_failures)
        job = FitJob(self.learner, plan, metrics, state and state.to_send())
        results = self._run_through(job, lambda ranks: source.shards(ranks, valid), max_failures)
        self._state = next(state for _, state in results if state is not None)
        if plan.stores:
            self._state = self._left_in(plan.checkpoint_folder, self._state.steps)
        histories = [history for history, _ in results]
        self._remember(histories[0], metrics)
        if reduce_results:
            return list(histories[0].epochs)
        return [list(lines) for lines in zip(*(history.mine for history in histories), strict=True)]

    def _checkpointed(
        self, plan: FitPlan, trigger: Any, keep: int | None, resume: bool, max_failures: int
    ) -> tuple[State | None, FitPlan]:
        """Return the state to begin with, and the plan with its checkpoints."""
        if trigger is None and (resume or (max_failures and self.model_dir)):
            trigger = EveryEpoch()
        stores = self.learner.spread and bool(self.model_dir)
        if trigger is None and not stores:
            return self._state, plan
        if not self.model_dir:
            raise ArgumentError("checkpoints need a place to go to. Pass model_dir= to the Estimator.")
        folder = newest_run(self.model_dir) if resume else None
        if folder is None:
            state, folder = self._state, new_run(self.model_dir)
        else:
            state = self._read(path_of(folder))[0]
            logger.info("resuming the fit in %s after %d steps", folder, state.steps)
            if state.position is not None:
                plan = replace(plan, seed=state.position["seed"])
                if state.position.get("ended") == STOPPED:
                    logger.info(
                        "a callback stopped that fit, so nothing is left to train. To train on, load its checkpoint "
                        "with load_orca_checkpoint and fit without resume."
                    )
        trigger = None if trigger is None else trigger_of(trigger)
        return state, replace(
            plan, checkpoint_trigger=trigger, checkpoint_folder=folder, checkpoint_keep=keep, stores=stores
        )

    def _left_in(self, folder: str, steps: int) -> State:
        """Return the state that a fit left under model_dir."""
        try:
            return self._read(path_of(folder, steps))[0].settled()
        except ArgumentError as error:
            raise OrcaError(
                f"the fit is done, but its state, which the first worker left in {folder}, cannot be read: {error} "
                "With shard_model=True, model_dir must be on storage that the driver and all workers see."
            ) from error

    def _read(self, path: str, weights_only: bool = True) -> tuple[State, Any]:
        """Return what load_state reads; a state under model_dir that may be too large to travel tells its path."""
        if not (self.learner.spread and self.model_dir and path.startswith(self.model_dir.rstrip("/") + "/")):
            found: tuple[State, Any] = self.learner.load_state(path, weights_only)
            return found
        state, model = self.learner.load_state(path, weights_only, mapped=True)
        return replace(state, stored=path), model

    def _run_through(
        self, job: FitJob, shards: Callable[[int], Shards], max_failures: int, settings: Settings | None = None
    ) -> list[Any]:
        """Run a fit; where a worker is lost or stuck, go on from the last checkpoint, so many times."""
        engine = self.engine
        for failure in count(1):
            try:
                return engine.run(job, shards(engine.workers), settings or self.settings)
            except (WorkerLost, WorkerStalled) as error:
                if failure > max_failures:
                    raise
                kept = versions(job.plan.checkpoint_folder) if job.plan.checkpoint_trigger else []
                if kept:
                    job = replace(job, state=self._read(path_of(job.plan.checkpoint_folder))[0].to_send())
                logger.warning(
                    "%s\nFailure %d of the %d that max_failures allows: going on %s.",
                    *(error, failure, max_failures, f"after step {kept[-1]}" if kept else "from where this fit began"),
                )
                engine = self._engine_after(engine)
        raise AssertionError("unreachable")

    def _engine_after(self, lost: Engine) -> Engine:
        """Return the engine to go on with: as many workers as before where they come back in time, else who is left."""
        lost.settle()
        deadline = time.monotonic() + BACK_WITHIN
        while (engine := self.engine).workers < lost.workers and time.monotonic() < deadline:
            time.sleep(0.2)
        if engine.workers < lost.workers:
            logger.warning("going on with %d of %d workers: no more came back.", engine.workers, lost.workers)
        return engine

    def _remember(self, history: History, metrics: Sequence[Metric]) -> None:
        """Add a fit to the history, and to the summaries where they are wanted."""
        backend = self.backend.engine if self.backend else self._engine_name()
        self.history.about = {"backend": backend, "workers_per_node": self.workers_per_node, **self.config}
        self.history.add(history.epochs, history.traces)
        if self._summaries is not None:
            first = self._current().steps - history.steps + 1
            self._summaries.write(history.epochs, history.traces, first, [metric.name for metric in metrics])

    def evaluate(
        self,
        data: Any,
        batch_size: int | None = None,
        num_steps: int | None = None,
        profile: bool = False,
        reduce_results: bool = True,
        info: dict[str, Any] | None = None,
        feature_cols: Sequence[str] | str | None = None,
        label_cols: Sequence[str] | str | None = None,
        callbacks: Any = None,
        validation_methods: Any = None,
        *,
        sample_weight: str | bool | None = None,
    ) -> Any:
        """Evaluate the loss and all metrics, exactly, over all rows.

        Args:
            data: Labelled data of any kind `fit` takes.
            batch_size: Rows of one step over all workers.
            num_steps: Stop after this many steps; None sees every row.
            profile: Whether to add a `profile` with where time went.
            reduce_results: Whether to return one dict over all workers, or each worker's own.
            info: Accepted.
            feature_cols: Columns that become the model's arguments.
            label_cols: Columns the outputs are compared with.
            callbacks: Callbacks (`orca.callbacks`), called on every worker.
            validation_methods: Metrics to use instead of the Estimator's.
            sample_weight: The column with the weight of each row in the loss; True for data (x, y, weights).

        Returns:
            A dict with num_samples, val_loss and each metric under its name; a list of dicts, one a worker, with
            reduce_results=False.
        """
        if num_steps is not None:
            positive("num_steps", num_steps)
        callbacks = listed(callbacks)
        self.learner.check_callbacks(callbacks)
        spec = self._spec(batch_size, feature_cols, label_cols, weight=sample_weight)
        source = source_of(data, spec)
        metrics = self.metrics if validation_methods is None else tuple(metrics_of(validation_methods))
        job = EvaluateJob(
            self.learner,
            source.batch_size,
            metrics,
            self._state and self._state.for_answers(),
            self.seed,
            num_steps,
            profile,
            spec.weighted,
            tuple(callbacks),
        )
        engine = self.engine
        results = engine.run(job, source.shards(engine.workers), self.settings)
        self._learn_rows(*results[0][2])
        return results[0][0] if reduce_results else [own for _, own, _ in results]

    def predict(
        self,
        data: Any,
        batch_size: int | None = None,
        feature_cols: Sequence[str] | str | None = None,
        output_cols: Sequence[str] | str | None = None,
        profile: bool = False,
        callbacks: Any = None,
        *,
        precision: str | None = None,
    ) -> Any:
        """Answer for every row, in the kind the data came in and in its order.

        Args:
            data: Data of any kind `fit` takes; labels are not needed.
            batch_size: Rows the model sees at a time.
            feature_cols: Columns that become the model's arguments.
            output_cols: Names of the prediction columns; `prediction` unless given.
            profile: Accepted.
            callbacks: Callbacks (`orca.callbacks`): their hooks of predictions are called for each batch.
            precision: "bf16" or "fp16" to compute in half precision; answers are in single precision.

        Returns:
            Arrays for arrays, loaders and creators; the same XShards with "prediction"; a DataFrame or Ray Dataset
            with one more column an output, computed lazily.
        """
        spec = self._spec(batch_size, feature_cols, None, output_cols, labelled=False)
        source = source_of(data, spec)
        given = listed(callbacks)
        learner = self.learner.for_answers(given, precision)
        task = self._answers(learner, spec)
        # What callbacks make of an answer is seen only when one is given.
        return source.answer(replace(task, output=None) if given else task, self.engine)

    def explain(
        self,
        data: Any,
        batch_size: int | None = None,
        feature_cols: Sequence[str] | str | None = None,
        label_cols: Sequence[str] | str | None = None,
        *,
        sample_weight: str | bool | None = None,
        look_around: bool = True,
        limit: float = 60.0,
    ) -> Explanation:
        """Say what fit would do with this data here, and what would keep it from starting; nothing is trained.

        Args:
            data: Data of any kind `fit` takes; no row of it is read.
            batch_size: Rows of one step over all workers.
            feature_cols: Columns that become the model's arguments.
            label_cols: Columns the outputs are compared with.
            sample_weight: The column with the weight of each row; True for data (x, y, weights).
            look_around: Whether to start the workers, let them look around and join, which takes some seconds.
            limit: Seconds for that.

        Returns:
            What to print: engine, ranks, data, batch of each rank, sync and devices, and the findings, each with the
            line to set where something is wrong; `ok` says whether training would start.
        """
        from orca.doctor.outlook import Plan, explain, weight_of

        plan = Plan(
            engine=self._engine_name(),
            workers_per_node=self.workers_per_node,
            sync=self.backend.sync if self.backend else "replicated",
            model_dir=self.model_dir,
            model=weight_of(self.learner, self._state),
            limit=limit,
        )
        return explain(
            plan,
            lambda: source_of(data, self._spec(batch_size, feature_cols, label_cols, weight=sample_weight)),
            look_around,
        )

    def get_model(self) -> Any:
        """Return the model with its trained weights."""
        return self.learner.build(self._current())

    def get_state_dict(self) -> dict[str, Any]:
        """Return epoch, steps, models, optimizers and schedulers as state dicts."""
        state = self._current()
        return {"epoch": state.epoch, "steps": state.steps, **state.payload}

    def load_state_dict(self, state_dict: dict[str, Any], blocking: bool = True) -> None:
        """Take over what get_state_dict returned, or the state dict of a model alone."""
        whole: dict[str, Any] = state_dict if "models" in state_dict else {"models": [state_dict]}
        payload = {"optimizers": [], "schedulers": []} | whole
        epoch, steps = (int(payload.pop(key, 0)) for key in ("epoch", "steps"))
        self._state = State(epoch=epoch, steps=steps, payload=payload)

    def save(self, path: str | None = None, entire: bool = False, **other_names: str) -> str:
        """Save weights and optimizer state; returns the path.

        Args:
            path: A folder (safetensors and JSON), or a file: `.pt`-style for a torch state dict, `.safetensors` for
                weights alone. Any fsspec path.
            entire: Whether to pickle the whole module instead; loading it needs weights_only=False.
            other_names: The path under the names it had: model_path, checkpoint, filepath.
        """
        place = self._path("save", path, other_names)
        if entire:
            self.learner.save_model(self.get_model(), place)
        else:
            self.learner.save_state(self._current(), place)
        return place

    def load(
        self, path: str | None = None, loss: Any = None, *, weights_only: bool = True, **other_names: str
    ) -> Estimator:
        """Load what save wrote, a torch state dict, or a pickled module where weights_only=False says so.

        Args:
            path: The path.
            loss: A loss to use from now on.
            weights_only: False lets a pickled file run its code: only for files you trust.
            other_names: The path under the names it had: model_path, checkpoint, filepath.
        """
        state, model = self._read(self._path("load", path, other_names), weights_only)
        self._state = state.settled()  # a new fit begins here; resume=True goes on with an interrupted one
        if model is not None or loss is not None:
            self.learner = self.learner.with_parts(model, loss)
        return self

    save_checkpoint = save
    load_checkpoint = load

    def load_orca_checkpoint(self, path: str, version: int | None = None, prefix: str | None = None) -> Estimator:
        """Load a checkpoint that a fit kept.

        Args:
            path: The model_dir, or the folder of one fit in it.
            version: The steps behind the checkpoint; the newest unless given.
            prefix: What its name begins with, where there are several.

        Raises:
            ArgumentError: There is no such checkpoint; lists those that there are.
        """
        folder = path if versions(path, prefix) else newest_run(path, prefix) or path
        self._state = self._read(path_of(folder, version, prefix))[0].settled()
        return self

    @staticmethod
    def latest_checkpoint(checkpoint_dir: str) -> str | None:
        """Return the path of the newest checkpoint in a folder: one that a fit kept, or one of ModelCheckpoint.

        Raises:
            ArgumentError: There is none.
        """
        if (found := newest_run(checkpoint_dir, None)) is not None:
            return path_of(found, prefix=None)
        from orca.callbacks import ModelCheckpoint

        return str(ModelCheckpoint.get_latest_checkpoint(checkpoint_dir))

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Clip each gradient into [min, max] from now on."""
        self._clip((min, max), None)

    def set_l2_norm_gradient_clipping(self, clip_norm: float) -> None:
        """Clip the gradients of a step to this norm from now on."""
        self._clip(None, clip_norm)

    def clear_gradient_clipping(self) -> None:
        """Clip gradients no more."""
        self._clip(None, None)

    def _clip(self, bounds: tuple[float, float] | None, norm: float | None) -> None:
        if not hasattr(self.learner, "with_clipping"):
            raise ArgumentError("the optimizer of a Keras model clips gradients itself. Give it clipnorm or clipvalue.")
        self.learner = self.learner.with_clipping(bounds, norm)

    def set_tensorboard(self, log_dir: str, app_name: str) -> None:
        """Write what each fit from now on gives for TensorBoard, under log_dir/app_name."""
        self._summaries = Summaries(log_dir, app_name)

    def get_train_summary(self, tag: str | None = None) -> Any:
        """Return [step, value, time] of "Loss", "LearningRate" or "Throughput"; None without set_tensorboard."""
        return None if self._summaries is None else self._summaries.read("train", tag)

    def get_validation_summary(self, tag: str | None = None) -> Any:
        """Return [step, value, time] of a metric of the validation, by its name; None without set_tensorboard."""
        return None if self._summaries is None else self._summaries.read("validation", tag)

    def to_openvino(self, path: str, sample: Any = None) -> str:
        """Write the trained model as an OpenVINO model, to serve it faster with `Estimator.from_openvino`.

        Args:
            path: Where the .xml file goes (the .bin beside it), at any fsspec path.
            sample: A row of features (first dimension 1; a tuple for several inputs); not needed after a fit or an
                evaluation, which have seen rows.

        Returns:
            The path of the .xml file.

        Raises:
            ArgumentError: No row was seen yet, or OpenVINO cannot convert the model.
        """
        state = self._current()
        if sample is None and state.input is None:
            raise ArgumentError("to_openvino must know what a row looks like. Fit or evaluate first, or pass sample=.")
        row = sample if sample is not None or state.input is None else state.input.example()
        written: str = learner_class("openvino").convert(self.get_model(), row, path)
        return written

    def shutdown(self, force: bool = False) -> None:
        """Do nothing: workers end with each call, and the cluster's own context is the user's to stop."""

    @property
    def engine(self) -> Engine:
        """Return the engine of the backend on the cluster that is up now; without a backend, of that cluster."""
        engine: Engine = engine_class(self._engine_name()).on_cluster(self.workers_per_node)
        return engine

    def _engine_name(self) -> str:
        from orca.cluster.context import OrcaContext

        if self.backend is None:
            up = OrcaContext.cluster()
            return up.runtime if up else "local"
        ray = sys.modules.get("ray")
        if self.backend.otherwise and (ray is None or not ray.is_initialized()):
            return self.backend.otherwise
        return self.backend.engine

    def _learn_rows(self, given: OutputSpec | None, output: OutputSpec | None) -> None:
        """Remember what rows and answers look like, as far as it was not known."""
        self._seen = given, output
        if self._state is not None:
            self._state.input = self._state.input or given
            self._state.output = self._state.output or output

    def _current(self) -> State:
        """Return the state to answer with: the trained one, or the weights training would begin with."""
        if self._state is None:
            self._state = self.learner.initial_state(self.seed)
            self._learn_rows(*self._seen)
        return self._state

    @staticmethod
    def _path(verb: str, path: str | None, other_names: dict[str, str]) -> str:
        """Return the path given by position or under one of the names that releases gave it."""
        given = [path] if path is not None else [other_names.pop(n) for n in _PATH_NAMES if n in other_names]
        if len(given) != 1 or other_names:
            raise ArgumentError(
                f"{verb} takes one path (also as {', '.join(_PATH_NAMES)}); got {given} and {other_names}."
            )
        return str(given[0])

    def _answers(self, learner: Any, spec: DataSpec) -> PredictJob:
        """Return the job that answers for blocks of rows: that of the last call where the model is as it was."""
        state, size = self._current(), spec.batch_size or DEFAULT_BATCH
        outline = outline_of(learner, state)
        if self._answering is None or outline is None or self._answering[0] != outline:
            self._answering = outline, PredictJob.of(learner, state, size), (learner, state)
        return replace(self._answering[1], batch_size=size, output=state.output)

    def _spec(
        self,
        batch_size: int | None,
        features: Sequence[str] | str | None,
        labels: Sequence[str] | str | None,
        outputs: Sequence[str] | str | None = None,
        labelled: bool = True,
        weight: str | bool | None = None,
    ) -> DataSpec:
        from orca.cluster.context import OrcaContext

        if batch_size is not None:
            batch_size = positive("batch_size", batch_size)
        if weight is not None and not isinstance(weight, str | bool):
            raise ArgumentError(
                f"sample_weight must be the name of a column, or True for data (x, y, weights); got "
                f"{type(weight).__name__}. Put the weights beside x and y: fit((x, y, weights), sample_weight=True)."
            )
        named = weight if isinstance(weight, str) else None
        columns = Columns(
            _names("feature_cols", features), _names("label_cols", labels), _names("output_cols", outputs), named
        )
        serialize = bool(OrcaContext.serialize_data_creator)
        config = dict(self.config)
        return DataSpec(
            columns,
            labelled,
            batch_size,
            config,
            serialize,
            seed=self.seed,
            weighted=bool(weight),
            numbers=getattr(self.learner, "numbers", False),
        )


def same_kind(source: Source, valid: Source) -> Source:
    """Return validation data that is of the kind of the training data.

    Raises:
        DataError: It is of another kind.
    """
    if type(source) is not type(valid):
        raise DataError(
            f"validation_data must be of the same kind as data; got {type(source).__name__.removesuffix('Source')} "
            f"and {type(valid).__name__.removesuffix('Source')}. Pass both in the same form."
        )
    return valid


def _names(argument: str, columns: Sequence[str] | str | None) -> tuple[str, ...]:
    names = () if columns is None else tuple(columns) if isinstance(columns, list | tuple) else (columns,)
    wrong = [name for name in names if not isinstance(name, str | int | tuple)]  # pandas has numbers and tuples, too
    if wrong:
        raise ArgumentError(
            f"{argument} must be names of columns; got {type(wrong[0]).__name__} {wrong[0]!r}. Pass its name, as 'x'."
        )
    return names  # type: ignore[return-value]


def listed(things: Any) -> list[Any]:
    """Return what may be nothing, one thing or several as a list."""
    return [] if things is None else list(things) if isinstance(things, list | tuple) else [things]


def threads_asked_for() -> int:
    """Return the threads that OMP_NUM_THREADS asks for on the driver, 0 where it does not."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() else 0


def natural(name: str, value: Any) -> int:
    """Return a number that must be 0, 1, 2, ..."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentError(f"{name} must be a whole number, 0 or more; got {value!r}.")
    return value


def positive(name: str, value: Any) -> int:
    """Return a number that must be 1, 2, 3, ..."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ArgumentError(f"{name} must be a positive whole number; got {value!r}.")
    return int(value)
