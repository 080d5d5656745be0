"""TrainingEstimator: an Estimator whose model learns. Owns fit, evaluate, checkpoints and the history.

fit:  check the arguments  ->  source_of(data)  ->  engine.run(FitJob, shards)  ->  keep the state, return the history
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from orca.core.arguments import checked
from orca.core.engine import Settings
from orca.core.learner import FitPlan, Learner
from orca.core.loop import History
from orca.core.metrics import Metric, metrics_of
from orca.core.source import DEFAULT_BATCH, DataSpec, Source
from orca.core.state import STOPPED, STOPPING, OutputSpec, State
from orca.core.triggers import EveryEpoch, trigger_of, watches_score
from orca.core.units import natural, positive
from orca.errors import ArgumentError, DataError, OrcaError
from orca.estimators.estimator import Estimator
from orca.estimators.recovery import check_state, run_through
from orca.job import EvaluateJob, FitJob, PredictJob, outline_of
from orca.monitor.slowness import slow_ranks
from orca.monitor.stopping import FINISHING
from orca.registry import Backend, backend_of, load, source_of
from orca.report.history import RunHistory
from orca.report.tensorboard import Summaries, can_write
from orca.rows.tree import listed
from orca.storage.checkpoints import PREFIX, new_run, newest_run, newest_whole, path_of, read_version, versions
from orca.storage.files import filesystem, is_local

if TYPE_CHECKING:
    from orca.doctor.outlook import Explanation

logger = logging.getLogger(__name__)


class TrainingEstimator(Estimator):
    """A model that learns and answers on any engine, whatever its framework.

    Args:
        learner: The model, as its framework trains it.
        backend: The engine of the ranks, and how replicas agree; None for the cluster that is up.
        metrics: Metrics of evaluations.
        config: The dict that all creators get.
        workers_per_node: Workers (ranks) on each node of the cluster.
        model_dir: The folder of checkpoints.
        seed: Seed of initial weights, order and dropout.
        settings: How ranks are watched.
        sync_stats: Whether each worker tells losses and metrics over all, where it would tell its own
            (reduce_results=False).
    """

    learner: Learner

    def __init__(
        self,
        learner: Learner,
        backend: Backend | None,
        *,
        metrics: Any = None,
        config: dict[str, Any] | None = None,
        workers_per_node: int = 1,
        model_dir: str | None = None,
        seed: int = 0,
        settings: Settings | None = None,
        sync_stats: bool = False,
    ) -> None:
        super().__init__(
            learner, backend, config=config, workers_per_node=workers_per_node, seed=seed, settings=settings
        )
        self.sync_stats = sync_stats
        self.metrics = tuple(metrics_of(metrics))
        self.model_dir = model_dir
        self.run_folder: str | None = None  # where all fits keep their checkpoints, instead of a folder of each
        self.history = RunHistory()
        self._warned = False  # of metrics that no fit computes
        self._summaries: Summaries | None = None  # where all fits write them
        self._beside: Summaries | None = None  # beside the checkpoints of the last fit
        self._state: State | None = None
        # The last job of predict, with the outline of its model, and the model itself, which must live as long.
        self._answering: tuple[bytes | None, PredictJob, Any] | None = None
        self._specs: tuple[OutputSpec | None, OutputSpec | None] = None, None  # a row, and an answer, before any fit

    @checked
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
        cache: bool = False,
        validation_trigger: Any = None,
    ) -> list[Any]:
        """Train, continuing from where the last fit (or load) ended.

        Args:
            data: Arrays `(x, y)`, pandas, a torch Dataset or DataLoader, a creator `(config, batch_size)`, a Spark
                DataFrame, XShards of {"x", "y"}, or a Ray Dataset.
            epochs: How many times to see every row.
            batch_size: Rows of one step over all workers; 32 unless given or brought by a DataLoader.
            profile: Whether to add a `profile` with where time went, as a mean and by worker.
            reduce_results: Whether to return one line an epoch over all workers, or a line of each worker: over its own
                rows, unless the Estimator has sync_stats.
            info: Facts for your TrainingOperator, with each epoch and batch.
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
            max_failures: How many times to continue by itself when a worker is lost or stuck: from the last checkpoint
                under model_dir (one is kept every epoch unless checkpoint_trigger says otherwise), or from the start.
            resume: Whether to resume the fit whose checkpoints are the newest under model_dir, if there is one: at
                its next unseen batch, until its epochs are complete.
            keep_checkpoints: How many of the newest checkpoints stay; all unless given.
            cache: Ignored, with a warning; kept for compatibility. Use `df.persist()`.
            validation_trigger: When to validate, also mid-epoch; at the end of every epoch unless given. The line of an
                epoch has the val_... of its last validation, and all of them, with their steps, under `validations`.

        Returns:
            A dict an epoch: num_samples, epoch, batch_count, train_loss, last_train_loss and val_... ;
            with reduce_results=False a list of the workers' dicts an epoch.

        Raises:
            ArgumentError: An argument or the data is wrong.
            WorkerFailed: A worker failed, was lost or stalled; says which and why.
        """
        spec = self._spec(batch_size, feature_cols, label_cols, weight=sample_weight, cache=cache)
        shuffles = self.config.get("shuffle", True) if shuffle is None else shuffle
        histories = self._train(
            data,
            validation_data,
            spec,
            learner=self.learner.with_columns(spec.columns.features),
            metrics=self._metrics(validation_methods),
            checkpoint_trigger=checkpoint_trigger,
            keep_checkpoints=keep_checkpoints,
            resume=resume,
            max_failures=max_failures,
            epochs=epochs,
            shuffle=bool(shuffles),
            on_nan=on_nan,
            profile=profile,
            max_steps=max_steps,
            callbacks=callbacks,
            end_trigger=end_trigger,
            validation_trigger=None if validation_trigger is None else trigger_of(validation_trigger),
            info=dict(info or {}),
        )
        if reduce_results:
            return list(histories[0].epochs)
        workers = [history.mine for history in histories]
        if self.sync_stats:
            whole = histories[0].epochs[-len(workers[0]) or None :]  # a resumed fit also has lines from before
            workers = [list(map(_synced, whole, own)) for own in workers]
        return [list(lines) for lines in zip(*workers, strict=True)]

    def _facts(self) -> dict[str, Any]:
        epochs = 0 if self._state is None else self._state.epoch
        return {"framework": self.learner.framework, **super()._facts(), "epochs_trained": epochs}

    def _source(self, data: Any, spec: DataSpec) -> Source:
        """Wrap data; an Estimator of a framework may know kinds of its own."""
        return source_of(data, spec)

    def _metrics(self, instead: Any) -> tuple[Metric, ...]:
        return self.metrics if instead is None else tuple(metrics_of(instead))

    def _warn_of_metrics(self, metrics: Sequence[Metric]) -> None:
        """Warn, once, that a fit without validation data computes no metrics."""
        if metrics and not self._warned:
            self._warned = True
            names = ", ".join(metric.name for metric in metrics)
            logger.warning(
                "metrics (%s) are computed on validation data, and this fit has none. Pass validation_data= to fit, or "
                "call evaluate.",
                names,
            )

    def _checked_callbacks(self, callbacks: Any) -> tuple[Any, ...]:
        each = tuple(listed(callbacks))
        self.learner.check_callbacks(each)
        return each

    def _train(
        self,
        data: Any,
        validation_data: Any,
        spec: DataSpec,
        *,
        learner: Learner | None = None,
        settings: Settings | None = None,
        metrics: tuple[Metric, ...] = (),
        checkpoint_trigger: Any,
        keep_checkpoints: int | None,
        resume: bool,
        max_failures: int,
        end_trigger: Any,
        callbacks: Any,
        epochs: int,
        **more: Any,
    ) -> list[History]:
        """Check the arguments that all frameworks share, train, keep the state; return the history of each rank.

        `learner` and `settings` are those of this call, where it needs others than the Estimator's. `more` has the
        other fields of the FitPlan.
        """
        epochs = positive("epochs", epochs)
        natural("max_failures", max_failures)
        if keep_checkpoints is not None:
            positive("keep_checkpoints", keep_checkpoints)
        self.learner.check_trainable()
        callbacks = self._checked_callbacks(callbacks)
        source = self._source(data, spec)
        valid = None if validation_data is None else same_kind(source, self._source(validation_data, spec))
        learner = learner or self.learner
        learner.check_monitors(callbacks, metrics, valid is not None)
        names = learner.epoch_numbers(metrics, valid is not None)
        _check_scores((end_trigger, checkpoint_trigger), names, valid is not None)
        if valid is None:
            self._warn_of_metrics(metrics)
        plan = FitPlan(
            batch_size=source.batch_size,
            seed=self.seed,
            weighted=spec.weighted,
            end_trigger=None if end_trigger is None else trigger_of(end_trigger),
            callbacks=callbacks,
            epochs=epochs,
            storage_timeout=self.settings.storage_timeout,
            **more,
        )
        state, plan = self._checkpointed(plan, checkpoint_trigger, keep_checkpoints, resume, max_failures)
        job = FitJob(learner, plan, metrics, state and state.to_send())
        results = run_through(
            job,
            lambda ranks: source.shards(ranks, valid),
            lambda: self.engine,
            partial(self._newest, plan.checkpoint_folder) if plan.checkpoint_trigger else lambda: None,
            settings or self.settings,
            max_failures,
        )
        stop = results[0][0].stop
        if stop is not None and stop.interrupted and stop.step != FINISHING:
            self._take_interrupted(results[0][1])
            raise KeyboardInterrupt
        self._state = next(state for _, state in results if state is not None)
        if plan.stores:
            self._state = self._left_in(plan.checkpoint_folder, self._state.steps)
        histories = [history for history, _ in results]
        self._remember(histories[0], metrics, plan.checkpoint_folder)
        if slow := slow_ranks([history.busy for history in histories], sum(t.seconds for t in histories[0].traces)):
            self.history.about["slow ranks"] = ", ".join(f"{rank} ({times:.1f} times)" for rank, times in slow.items())
        if stop is not None and stop.interrupted:
            raise KeyboardInterrupt
        return histories

    def _take_interrupted(self, state: State | None) -> None:
        """Begin the next fit with the weights of the last epoch that an interrupted one has finished."""
        if state is None:
            logger.warning("interrupted before the end of an epoch: the weights stay as they were before this fit")
            return
        self._state = state.settled()
        logger.warning(
            "interrupted: the Estimator has the weights of the end of epoch %d (%d steps); the next fit begins there",
            *(state.epoch, state.steps),
        )

    @property
    def _dated(self) -> bool:
        """Say whether a fit leaves its files in a folder named by the time, as BigDL does."""
        return self.backend == backend_of("bigdl")

    def _checkpointed(
        self, plan: FitPlan, trigger: Any, keep: int | None, resume: bool, max_failures: int
    ) -> tuple[State | None, FitPlan]:
        """Return the state to begin with, and the plan with its checkpoints."""
        if trigger is None and (resume or (max_failures and self.model_dir)):
            trigger = EveryEpoch()
        stores = self.learner.spread and bool(self.model_dir)
        if trigger is None and not stores:
            return self._state, plan
        trigger = None if trigger is None else trigger_of(trigger)
        if not self.model_dir and not resume and self._dated:
            logger.warning("checkpoint_trigger keeps nothing: there is no model_dir. Pass model_dir= to keep some.")
            return self._state, plan
        if not self.model_dir:
            raise ArgumentError(
                "checkpoints need a place to go to. Pass model_dir= to the Estimator.", code="missing-model-dir"
            )
        state, folder = self._state, newest_run(self.model_dir, damaged=True) if resume else None
        resumed = self._resumed(folder) if folder else None
        if folder is None or resumed is None:
            folder = self.run_folder or new_run(self.model_dir, dated=self._dated)
        else:
            state = resumed
            plan = replace(plan, seed=state.position["seed"]) if state.position is not None else plan
        fs, place = filesystem(folder)
        return state, replace(
            plan,
            checkpoint_trigger=trigger,
            checkpoint_folder=folder,
            checkpoint_keep=keep,
            checkpoint_visible=is_local(fs) and fs.isdir(place),
            stores=stores,
        )

    def _newest(self, folder: str, prefix: str | None = PREFIX) -> tuple[int, State] | None:
        """Return the newest checkpoint of a fit that can be read and fits the model; None if there is none at all."""
        return newest_whole(folder, self._read_checked, prefix, self.settings.storage_timeout)

    def _read_checked(self, path: str) -> State:
        state = self._read(path)
        check_state(self.learner, state, path)
        return state

    def _resumed(self, folder: str) -> State | None:
        """Return the state of the fit whose checkpoints are in a folder."""
        newest = self._newest(folder)
        if newest is None:
            return None
        state = newest[1]
        logger.info("resuming the fit in %s after %d steps", folder, state.steps)
        if state.position is not None and state.position.get("ended") in (STOPPED, STOPPING):
            logger.info(
                "a callback stopped that fit, so nothing is left to train. To train on, load its checkpoint with "
                "load_orca_checkpoint and fit without resume."
            )
        return state

    def _left_in(self, folder: str, steps: int) -> State:
        """Return the state that a fit left under model_dir."""
        try:
            return self._read(path_of(folder, steps)).settled()
        except ArgumentError as error:
            raise OrcaError(
                f"the fit is done, but its state, which the first worker left in {folder}, cannot be read: {error} "
                "With shard_model=True, model_dir must be on storage that the driver and all workers see.",
                code="state-unreadable",
            ) from error

    def _read(self, path: str) -> State:
        """Return a saved state; one under model_dir that may be too large to travel tells its path."""
        from orca.storage.states import load_state

        in_place = self.learner.spread and self.model_dir and path.startswith(self.model_dir.rstrip("/") + "/")
        state = load_state(path, self.learner.framework, mapped=bool(in_place))
        return replace(state, path=path) if in_place else state

    def _remember(self, history: History, metrics: Sequence[Metric], folder: str) -> None:
        """Add a fit to the history, and to the summaries where they are wanted."""
        backend = self.backend.engine if self.backend else self._engine_name()
        self.history.about = {"backend": backend, "workers_per_node": self.workers_per_node, **self.config}
        self.history.add(history.epochs, history.traces)
        first = self._current().steps - history.steps + 1
        lines = self._summary_lines(history.epochs, first)
        course = (lines, history.traces, first, [metric.name for metric in metrics])
        if self._summaries is not None:
            self._summaries.write(*course)
        elif self._dated and self.model_dir and can_write():
            try:
                self._beside = Summaries(folder or self.run_folder or new_run(self.model_dir, dated=True), "summary")
                self._beside.write(*course)
            except Exception as error:  # nobody asked for it: the fit is good without
                logger.warning("no summary was written under %s: %s", self.model_dir, error)

    def _summary_lines(self, lines: Sequence[dict[str, Any]], first_step: int) -> Sequence[dict[str, Any]]:
        """Return the epochs of a fit as its summary shows them."""
        return lines

    @checked
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
        validation_metrics: Any = None,
        sample_weight: str | bool | None = None,
        cache: bool = False,
    ) -> Any:
        """Evaluate the loss and all metrics, exactly, over all rows.

        Args:
            data: Labelled data of any kind `fit` takes.
            batch_size: Rows of one step over all workers.
            num_steps: Stop after this many steps; None sees every row.
            profile: Whether to add a `profile` with where time went.
            reduce_results: Whether to return one dict over all workers, or a dict of each worker: over its own rows,
                unless the Estimator has sync_stats.
            info: Accepted.
            feature_cols: Columns that become the model's arguments.
            label_cols: Columns the outputs are compared with.
            callbacks: Callbacks (`orca.callbacks`), called on every worker.
            validation_methods: Metrics to use instead of the Estimator's.
            validation_metrics: The same, as later releases called it.
            sample_weight: The column with the weight of each row in the loss; True for data (x, y, weights).
            cache: Ignored, with a warning; kept for compatibility. Use `df.persist()`.

        Returns:
            A dict with num_samples, val_loss and each metric under its name; a list of dicts, one a worker, with
            reduce_results=False.
        """
        spec = self._spec(batch_size, feature_cols, label_cols, weight=sample_weight, cache=cache)
        metrics = self._metrics(validation_methods if validation_metrics is None else validation_metrics)
        learner = self.learner.with_columns(spec.columns.features)
        statistics = self._evaluate(
            data, spec, num_steps, metrics, learner=learner, profile=profile, callbacks=callbacks
        )
        if reduce_results:
            return statistics[0][0]
        return [_synced(whole, own) if self.sync_stats else own for whole, own in statistics]

    def _evaluate(
        self,
        data: Any,
        spec: DataSpec,
        num_steps: int | None,
        metrics: tuple[Metric, ...] = (),
        *,
        learner: Learner | None = None,
        settings: Settings | None = None,
        profile: bool = False,
        callbacks: Any = None,
    ) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Evaluate on every rank; return the statistics over all ranks, and its own, of each."""
        if num_steps is not None:
            positive("num_steps", num_steps)
        callbacks = self._checked_callbacks(callbacks)
        source = self._source(data, spec)
        job = EvaluateJob(
            learner or self.learner,
            source.batch_size,
            metrics,
            self._state and self._state.for_answers(),
            self.seed,
            num_steps,
            profile,
            spec.weighted,
            callbacks,
        )
        engine = self.engine
        results = engine.run(job, source.shards(engine.workers), settings or self.settings)
        self._learn_rows(*results[0][2])
        return [(overall, own) for overall, own, _ in results]

    @checked
    def predict(
        self,
        data: Any,
        batch_size: int | None = None,
        feature_cols: Sequence[str] | str | None = None,
        output_cols: Sequence[str] | str | None = None,
        *,
        cache: bool = False,
    ) -> Any:
        """Answer for every row, in the kind the data came in and in its order.

        Args:
            data: Data of any kind `fit` takes; labels are not needed.
            batch_size: Rows the model sees at a time.
            feature_cols: Columns that become the model's arguments.
            output_cols: Names of the prediction columns; `prediction` unless given.
            cache: Ignored, with a warning; kept for compatibility. Use `df.persist()`.

        Returns:
            Arrays for arrays, loaders and creators; the same XShards with "prediction"; a DataFrame or Ray Dataset
            with one more column an output, computed lazily.
        """
        spec = self._spec(batch_size, feature_cols, None, output_cols, labelled=False, cache=cache)
        learner = self.learner.with_columns(spec.columns.features)
        return self._source(data, spec).answer(self._answers(learner, spec), self.engine)

    @checked
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
        """Explain the fit of this data here, and the problems that would keep it from starting; nothing is trained.

        Args:
            data: Data of any kind `fit` takes; no row of it is read.
            batch_size: Rows of one step over all workers.
            feature_cols: Columns that become the model's arguments.
            label_cols: Columns the outputs are compared with.
            sample_weight: The column with the weight of each row; True for data (x, y, weights).
            look_around: Whether to start the workers, let them look around and join, which takes some seconds.
            limit: Seconds for that.

        Returns:
            A text to print: engine, ranks, data, batch of each rank, sync and devices, and the findings, each with the
            line to set where something is wrong; `ok` says whether training would start.
        """
        from orca.doctor.outlook import explain, weight_of

        return explain(
            lambda: self._source(data, self._spec(batch_size, feature_cols, label_cols, weight=sample_weight)),
            self._engine_name(),
            self.workers_per_node,
            self.backend.sync if self.backend else "replicated",
            look_around,
            model=weight_of(self.learner, self._state),
            model_dir=self.model_dir,
            limit=limit,
        )

    def get_model(self) -> Any:
        """Return the model with its trained weights."""
        return self.learner.build(self._current())

    def _framework_model(self) -> Any:
        """Return the trained model as its framework knows it, where the user holds something else."""
        return self.get_model()

    def get_state_dict(self) -> dict[str, Any]:
        """Return epoch, steps, models, optimizers and schedulers as state dicts."""
        state = self._current()
        return {"epoch": state.epoch, "steps": state.steps, **state.payload}

    def load_state_dict(self, state_dict: dict[str, Any], blocking: bool = True) -> None:
        """Load the result of get_state_dict, or the state dict of a model alone."""
        whole: dict[str, Any] = state_dict if "models" in state_dict else {"models": [state_dict]}
        payload = {"optimizers": [], "schedulers": []} | whole
        epoch, steps = (int(payload.pop(key, 0)) for key in ("epoch", "steps"))
        self._take(State(epoch=epoch, steps=steps, payload=payload), "the state dict")

    def save(self, path: str | None = None, **other_names: str) -> str:
        """Save weights and optimizer state as a folder of safetensors and JSON; returns the path, any of fsspec."""
        from orca.storage.states import save_state

        place = self._path("save", path, other_names)
        save_state(self._current(), place, self.learner.framework)
        return place

    def load(self, path: str | None = None, **other_names: str) -> Self:
        """Load a model that `save` wrote."""
        place = self._path("load", path, other_names)
        self._take(self._read(place), place)
        return self

    def load_orca_checkpoint(self, path: str, version: int | None = None, prefix: str | None = None) -> Self:
        """Load a checkpoint that a fit kept.

        Args:
            path: The model_dir, or the folder of one fit in it.
            version: The steps behind the checkpoint; unless given, the newest one that can be read.
            prefix: The first part of its name, where the folder has several such parts.

        Raises:
            ArgumentError: There is no such checkpoint, with a list of those that there are; or it cannot be read.
        """
        folder = path if versions(path, prefix) else newest_run(path, prefix, damaged=version is None) or path
        if version is None and (newest := self._newest(folder, prefix)) is not None:
            self._state = newest[1].settled()
            return self
        place = path_of(folder, version, prefix)
        state = read_version(place, self._read, self.settings.storage_timeout)
        self._take(state, place)
        return self

    def load_latest_orca_checkpoint(self, path: str) -> Self:
        """Load the newest checkpoint under a path; load_orca_checkpoint without a version does the same."""
        return self.load_orca_checkpoint(path)

    def set_tensorboard(self, log_dir: str, app_name: str) -> None:
        """Write the numbers of each fit from now on for TensorBoard, under log_dir/app_name."""
        self._summaries = Summaries(log_dir, app_name)

    def get_train_summary(self, tag: str | None = None) -> Any:
        """Return [step, value, time] of "Loss", "LearningRate" or "Throughput"; None without set_tensorboard.

        With the backend "bigdl" and a model_dir, the summary of the last fit is there anyway.
        """
        return self._summary("train", tag)

    def get_validation_summary(self, tag: str | None = None) -> Any:
        """Return [step, value, time] of a metric of the validation, by its name; see get_train_summary."""
        return self._summary("validation", tag)

    def _summary(self, part: str, tag: str | None) -> Any:
        summaries = self._summaries or self._beside
        return None if summaries is None else summaries.read(part, tag)

    def to_openvino(self, path: str, sample: Any = None) -> str:
        """Write the trained model as an OpenVINO model, to serve it faster with `Estimator.from_openvino`.

        Args:
            path: The .xml file to write (the .bin beside it), at any fsspec path.
            sample: A row of features (first dimension 1; a tuple for several inputs); not needed after a fit or an
                evaluation, which have seen rows.

        Returns:
            The path of the .xml file.

        Raises:
            ArgumentError: No row was seen yet, or OpenVINO cannot convert the model.
        """
        state = self._current()
        if sample is None and state.input is None:
            raise ArgumentError(
                "to_openvino must know what a row looks like. Fit or evaluate first, or pass sample=.",
                code="unknown-row",
            )
        row = sample if sample is not None or state.input is None else state.input.example()
        convert = load("orca.frameworks.openvino:convert", need="an openvino model")
        return str(convert(self._framework_model(), row, path))

    def _take(self, state: State, name: str) -> None:
        """Begin with this state from now on, where it fits the model: a new fit, not one that was interrupted."""
        check_state(self.learner, state, name)
        self._state = state.settled()

    def _learn_rows(self, row: OutputSpec | None, output: OutputSpec | None) -> None:
        """Remember the specs of rows and answers, where they were not known."""
        self._specs = row, output
        if self._state is not None:
            self._state.input = self._state.input or row
            self._state.output = self._state.output or output

    def _current(self) -> State:
        """Return the state to answer with: the trained one, or the weights training would begin with."""
        if self._state is None:
            self._state = self.learner.initial_state(self.seed)
            self._learn_rows(*self._specs)
        return self._state

    def _answers(self, learner: Learner, spec: DataSpec) -> PredictJob:
        """Return the job that answers for blocks of rows: that of the last call where the model is as it was."""
        state, size = self._current(), spec.batch_size or DEFAULT_BATCH
        outline = outline_of(learner, state)
        if self._answering is None or outline is None or self._answering[0] != outline:
            self._answering = outline, PredictJob.of(learner, state, size), (learner, state)
        return replace(self._answering[1], batch_size=size, output=state.output)


def _synced(whole: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the statistics over all workers as one of them tells them: the counts of rows stay its own."""
    return whole | {name: own[name] for name in ("num_samples", "val_num_samples") if name in own}


def _check_scores(triggers: Sequence[Any], names: set[str] | None, validates: bool) -> None:
    """Check that there will be a score for the triggers that watch one.

    Args:
        triggers: The triggers of a fit.
        names: The names of its epochs' numbers; None if unknown.
        validates: Whether it has validation data.
    """
    scores = names is None or any(name.startswith("val_") and name != "val_loss" for name in names)
    if validates and scores:
        return
    if any(map(watches_score, triggers)):
        need = "validation_data=" if scores else "metrics=" if validates else "validation_data= and metrics="
        raise ArgumentError(
            "MaxScore watches the first metric of the validation, and this fit has none: it would never fire. Pass "
            f"{need}.",
            code="score-never-known",
        )


def same_kind(source: Source, valid: Source) -> Source:
    """Return validation data that is of the kind of the training data.

    Raises:
        DataError: It is of another kind.
    """
    if type(source) is not type(valid):
        raise DataError(
            f"validation_data must be of the same kind as data; got {type(source).__name__.removesuffix('Source')} "
            f"and {type(valid).__name__.removesuffix('Source')}. Pass both in the same form.",
            code="validation-data-differs",
        )
    return valid
