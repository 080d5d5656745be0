"""Estimator: the object that the user holds. Owns the calls that make one, the engine, and answering for rows.

predict:  check the arguments  ->  source_of(data)  ->  source.answer(PredictJob)  ->  the answer in the data's kind
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from inspect import isfunction
from typing import TYPE_CHECKING, Any, ClassVar, Self

from orca.core.arguments import checked
from orca.core.engine import Engine, Settings
from orca.core.learner import Learner, PredictorSpec
from orca.core.source import Columns, DataSpec
from orca.core.units import natural, positive
from orca.errors import ArgumentError, NotSupported, OrcaError, SignatureError
from orca.monitor.tracebacks import cut_below, cut_between, shows_cause
from orca.registry import BACKENDS, Backend, backend_of, engine_class, load, preload_plugins
from orca.storage.checkpoints import latest_checkpoint, newest_run, path_of
from orca.storage.retries import STORAGE_TIMEOUT

if TYPE_CHECKING:
    from orca.estimators.keras import KerasEstimator
    from orca.estimators.openvino import OpenvinoEstimator
    from orca.estimators.torch import TorchEstimator
    from orca.estimators.training import TrainingEstimator

# Public verbs whose errors are shown in short.
_VERBS = {"fit", "evaluate", "predict", "save", "load", "save_checkpoint", "load_checkpoint", "load_orca_checkpoint"}
_PATH_NAMES = ("model_path", "checkpoint", "filepath", "path")
logger = logging.getLogger(__name__)


def _with_short_errors(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a public verb whose errors show its call, and of the frames below it only the user's own."""

    @wraps(verb)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return verb(*args, **options)
        except (OrcaError, KeyboardInterrupt) as error:
            cut_below(error, verb.__code__)
            if shows_cause(error):
                raise
            failure = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        except Exception as error:  # of the user's code in this process
            cut_between(error, verb.__code__)
            raise
        raise failure from None

    return call


class Estimator:
    """A model that answers, and mostly also learns, on any engine. Make one with a `from_...` method.

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

    vectors: ClassVar[bool] = False  # whether a Spark DataFrame gets 1-D predictions as ML vectors
    refusals: ClassVar[Mapping[str, str]] = {}  # a verb of other Estimators -> why this one has none, and the remedy

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse what scikit-learn and Keras have: this class itself is never instantiated."""
        if cls.__name__ == "Estimator":
            raise SignatureError("Estimator() makes none: call Estimator.from_torch(...) or Estimator.from_keras(...).")
        return super().__new__(cls)

    def __init__(
        self,
        learner: PredictorSpec,
        backend: Backend | None,
        *,
        config: dict[str, Any] | None = None,
        workers_per_node: int = 1,
        seed: int = 0,
        settings: Settings | None = None,
    ) -> None:
        self.learner = learner
        self.backend, self.settings = backend, settings or Settings()
        self.config = dict(config or {})
        self.workers_per_node = positive("workers_per_node", workers_per_node)
        self.seed = seed

    @classmethod
    @checked
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
        storage_timeout: float = STORAGE_TIMEOUT,
        return_timeout: float = 60.0,
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
        squeeze: bool = False,
        device_cache: bool = False,
    ) -> TorchEstimator:
        """Make an Estimator of a PyTorch model.

        Args:
            model: A `torch.nn.Module`, or a creator `(config)` that returns one on each worker; or a list of them.
            optimizer: A `torch.optim.Optimizer` of that module, a creator `(model, config)`, or an optim method of
                BigDL.
            loss: A torch loss (instance or class), a function `(output, target)`, or a creator `(config)`.
            metrics: One metric or several: Orca metrics or their plain names ("accuracy"), metrics of torchmetrics, or
                functions `(output, target)` of all rows.
            backend: "spark" (the default), "bigdl", "ray" ("torch_distributed"), "local", or that of a plug-in.
            config: The argument of all creators.
            workers_per_node: Workers (ranks) on each node of the cluster.
            scheduler_creator: A function `(optimizer, config)` that returns a learning rate scheduler.
            training_operator_cls: A subclass of TrainingOperator: training in your own words.
            initialization_hook: Called without arguments on each worker before anything else.
            scheduler_step_freq: When the scheduler steps: "batch", "epoch" or "manual".
            use_tqdm: Whether to show progress: a bar in a terminal, and a line for each epoch.
            model_dir: The folder of checkpoints.
            sync_stats: Whether, with reduce_results=False, each worker tells losses and metrics over all rows, not over
                its own.
            log_level: The level from which log records of workers appear on the driver.
            log_to_driver: Whether the output and logs of workers appear on the driver, with their rank.
            seed: Seed of initial weights, order and dropout; torch's own initial seed unless given.
            stall_timeout: Seconds without progress after which the stuck worker is named; 0 waits forever.
            start_timeout: Seconds that workers may take to start where the cluster is busy; 0 waits forever, and logs
                what for.
            storage_timeout: Seconds for which a checkpoint that cannot be written is tried again, beside the training.
            return_timeout: Seconds that lost workers may take to come back, where `max_failures` lets a fit go on.
            threads_per_worker: Threads of a worker's arithmetic. By default OMP_NUM_THREADS, as `spark.executorEnv` or
                this program has it, else the worker's share of the CPUs that its process, cgroup and executor may use.
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
            loss_reduction: The kind of a loss of your own: "mean" (over rows), "sum", or a function `(target)` that
                returns the weight of each row in its mean. Found out unless given.
            squeeze: Whether predictions lose their dimensions of size 1 but the first.
            device_cache: Whether a worker keeps its rows on its GPU while it trains, or in memory where it has none,
                if they fill no more than half of the free memory there. For arrays, DataFrames and shards.

        Raises:
            ArgumentError: An argument has the wrong kind, or two do not go together.
        """
        kind = _estimator_class(cls, "orca.estimators.torch:TorchEstimator", "a torch model")
        from orca.frameworks.torch.learner import TorchLearner

        entry = backend_of(backend or "spark")
        entry = replace(entry, sync="fully sharded") if shard_model else entry
        options = TorchLearner.options_of(
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
            squeeze=squeeze,
            device_cache=device_cache,
        )
        return kind(
            TorchLearner.of(model, optimizer, loss, dict(config or {}), entry.sync, initialization_hook, options),
            entry,
            metrics=metrics,
            config=config,
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=TorchLearner.default_seed() if seed is None else natural("seed", seed),
            settings=Settings(
                stall_timeout,
                use_tqdm,
                threads_per_worker or 0,
                log_level,
                log_to_driver,
                start_timeout,
                storage_timeout=storage_timeout,
                return_timeout=return_timeout,
            ),
            sync_stats=sync_stats,
        )

    @classmethod
    @checked
    def from_keras(
        cls,
        *,
        model_creator: Callable[..., Any] | None = None,
        keras_model: Any = None,
        config: dict[str, Any] | None = None,
        verbose: bool | int = True,
        workers_per_node: int = 1,
        compile_args_creator: Callable[..., Any] | None = None,
        backend: str | None = None,
        cpu_binding: bool = False,
        log_to_driver: bool = True,
        model_dir: str | None = None,
        sync_batch_norm: bool = True,
        seed: int = 0,
        stall_timeout: float = 300.0,
        start_timeout: float = 0.0,
        storage_timeout: float = STORAGE_TIMEOUT,
        return_timeout: float = 60.0,
        threads_per_worker: int | None = None,
    ) -> KerasEstimator:
        """Make an Estimator of a Keras model, version 3 (on TensorFlow) or 2 (tf_keras).

        Args:
            model_creator: A function `(config)` that returns a compiled model on each worker.
            keras_model: A compiled model, in place of a creator.
            config: The argument of all creators; inter_op_parallelism and intra_op_parallelism set TensorFlow's
                threads.
            verbose: Whether to show a progress bar in a terminal.
            workers_per_node: Workers (ranks) on each node of the cluster.
            compile_args_creator: A function `(config)` that returns arguments for `model.compile`.
            backend: "spark", "ray" ("tf2"), "local", or that of a plug-in; unless given, the cluster that is up.
            cpu_binding: Accepted; a worker gets its share of the node's cores.
            log_to_driver: Whether the output and logs of workers appear on the driver, with their rank.
            model_dir: The folder for a checkpoint after every fit, and for those of checkpoint_trigger.
            sync_batch_norm: Whether batch normalization sees the rows of all workers, as in one process; False lets
                each worker use its own rows and averages the running statistics.
            seed: Seed of initial weights, order and dropout.
            stall_timeout: Seconds without progress after which the stuck worker is named; 0 waits forever.
            start_timeout: Seconds that workers may take to start where the cluster is busy; 0 waits forever, and logs
                what for.
            storage_timeout: Seconds for which a checkpoint that cannot be written is tried again, beside the training.
            return_timeout: Seconds that lost workers may take to come back, where `max_failures` lets a fit go on.
            threads_per_worker: Threads of a worker's arithmetic. By default OMP_NUM_THREADS, as `spark.executorEnv` or
                this program has it, else the worker's share of the CPUs that its process, cgroup and executor may use.

        Raises:
            ArgumentError: An argument has the wrong kind.
        """
        kind = _estimator_class(cls, "orca.estimators.keras:KerasEstimator", "a Keras model")
        from orca.frameworks.keras.learner import KerasLearner

        if (model_creator is None) == (keras_model is None):
            raise ArgumentError(
                "from_keras takes either model_creator (a function (config) that returns a compiled model) or "
                f"keras_model (a compiled model); got {'neither' if model_creator is None else 'both'}.",
                code="model-given-twice",
            )
        if config is not None and not isinstance(config, dict):
            raise ArgumentError(
                f"config must be a dict, which all creators get; got {type(config).__name__}.", code="bad-config"
            )
        options = dict(config or {})
        entry = backend_of(backend, "keras") if backend else None
        learner = KerasLearner.of(
            model_creator if keras_model is None else keras_model,
            compile_args_creator,
            options,
            sync_batch_norm,
        )
        return kind(
            learner,
            entry,
            config=options,
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=natural("seed", seed),
            settings=Settings(
                stall_timeout,
                bool(verbose),
                threads_per_worker or 0,
                log_to_driver=log_to_driver,
                start_timeout=start_timeout,
                storage_timeout=storage_timeout,
                return_timeout=return_timeout,
            ),
        )

    @classmethod
    @checked
    def from_openvino(cls, *, model_path: str, batch_size: int = 0, backend: str | None = None) -> OpenvinoEstimator:
        """Make an Estimator of an OpenVINO model.

        Args:
            model_path: An .xml file of OpenVINO (its .bin beside it) or an .onnx file. Any fsspec path; the file is
                read here and travels to the workers.
            batch_size: Give the model this fixed batch; 0 keeps its own, fixed or free.
            backend: The engine that answers for arrays: "spark", "ray" or "local" (in this process). Unless given, on
                the cluster that is up, Spark before Ray, else here. Distributed data is answered for where it is.

        Raises:
            ArgumentError: A file is missing or is no model.
        """
        if backend is not None:
            backend_of(backend)
        kind = _estimator_class(cls, "orca.estimators.openvino:OpenvinoEstimator", "an openvino model")
        from orca.frameworks.openvino import OpenvinoSpec

        predictor, state = OpenvinoSpec.of(str(model_path), natural("batch_size", batch_size))
        return kind(predictor, state, backend)

    @staticmethod
    def from_learner(learner: Learner, *, backend: str | None = None, **options: Any) -> TrainingEstimator:
        """Make an Estimator of a framework that Orca does not know: of a learner of your own.

        Args:
            learner: The learner; `orca.core.array_learner.ArrayLearner` is the shortest way to one.
            backend: "spark", "ray" or "local"; unless given, the cluster that is up.
            options: The arguments of `orca.estimators.training.TrainingEstimator`: metrics, workers_per_node, ...
        """
        from orca.estimators.training import TrainingEstimator

        preload_plugins()
        entry = None if backend is None else backend_of(backend, learner.framework)
        return TrainingEstimator(learner, entry, **options)

    @staticmethod
    def latest_checkpoint(checkpoint_dir: str) -> str | None:
        """Return the path of the newest checkpoint in a folder: one that a fit kept, or one of a ModelCheckpoint.

        Raises:
            ArgumentError: There is none.
        """
        if (run := newest_run(checkpoint_dir, None)) is not None:
            return path_of(run, prefix=None)
        from orca.callbacks import ModelCheckpoint

        try:
            return str(ModelCheckpoint.get_latest_checkpoint(checkpoint_dir))
        except ArgumentError:
            if (model := latest_checkpoint(checkpoint_dir)) is None:  # of Keras
                raise
            return model

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in _VERBS & vars(cls).keys():
            if isfunction(vars(cls)[name]):
                setattr(cls, name, _with_short_errors(vars(cls)[name]))

    def __getattr__(self, name: str) -> Any:
        if name in self.refusals:
            raise NotSupported(f"{name} is not supported: {self.refusals[name]}.", code="not-supported")
        return self.__getattribute__(name)  # which names the problem, also within a property

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self._facts().items())
        return f"{type(self).__name__}({facts})"

    def _facts(self) -> dict[str, Any]:
        """Return what repr shows; nothing is started for it."""
        words = [word for word, backend in BACKENDS.items() if backend == self.backend]
        backend = words[0] if words else self.backend and self.backend.engine
        return {"model": self._model_name(), "backend": backend, "workers_per_node": self.workers_per_node}

    def _model_name(self) -> Any:
        """Return the name of the model's class, or of the function that makes it; a list for several models."""
        return name_of(self.learner)

    def shutdown(self, force: bool = False) -> None:
        """Do nothing: workers end with each call, and the cluster's own context is the user's to stop."""

    @property
    def num_workers(self) -> int:
        """Return the workers (ranks) of the cluster that is up now."""
        return self.engine.workers

    @property
    def engine(self) -> Engine:
        """Return the engine of the backend on the cluster that is up now; without a backend, of that cluster."""
        engine: Engine = engine_class(self._engine_name()).on_cluster(self.workers_per_node)
        return engine

    def _engine_name(self) -> str:
        from orca.cluster.context import running_engine

        return running_engine(None if self.backend is None else self.backend.present_engine())

    @staticmethod
    def _path(verb: str, path: str | None, other_names: dict[str, str]) -> str:
        """Return the path given by position or under one of the names that releases gave it."""
        paths = [path] if path is not None else [other_names.pop(n) for n in _PATH_NAMES if n in other_names]
        if len(paths) != 1 or other_names:
            raise ArgumentError(
                f"{verb} takes one path (also as {', '.join(_PATH_NAMES)}); got {paths} and {other_names}.",
                code="bad-path",
            )
        return str(paths[0])

    def _spec(
        self,
        batch_size: int | None,
        features: Sequence[str] | str | None,
        labels: Sequence[str] | str | None,
        outputs: Sequence[str] | str | None = None,
        labelled: bool = True,
        weight: str | bool | None = None,
        cache: bool = False,
    ) -> DataSpec:
        from orca.cluster.context import OrcaContext

        if batch_size is not None:
            batch_size = positive("batch_size", batch_size)
        if weight is not None and not isinstance(weight, str | bool):
            raise ArgumentError(
                f"sample_weight must be the name of a column, or True for data (x, y, weights); got "
                f"{type(weight).__name__}. Put the weights beside x and y: fit((x, y, weights), sample_weight=True).",
                code="bad-sample-weight",
            )
        column = weight if isinstance(weight, str) else None
        columns = Columns(
            _names("feature_cols", features), _names("label_cols", labels), _names("output_cols", outputs), column
        )
        if cache:
            logger.warning("cache=True does nothing. Call df.persist() to keep the rows of a DataFrame between calls.")
        options: dict[str, Any] = {"weighted": bool(weight), "numbers": self.learner.numbers, "vectors": self.vectors}
        lock = f"orca-{secrets.token_hex(16)}.lock" if OrcaContext.serialize_data_creator else ""
        return DataSpec(columns, labelled, batch_size, dict(self.config), lock, seed=self.seed, **options)


def name_of(model: Any) -> Any:
    """Return the name of a function or class, or that of an object's class; a list for several."""
    if isinstance(model, list | tuple):
        return [name_of(each) for each in model]
    return getattr(model, "__name__", type(model).__name__)


def _estimator_class(owner: type[Estimator], target: str, need: str) -> Any:
    """Import the class of a framework's Estimators; one that is derived from it makes Estimators of its own."""
    kind: type[Estimator] = load(target, need)
    return owner if issubclass(owner, kind) else kind


def _names(argument: str, columns: Sequence[str] | str | None) -> tuple[str, ...]:
    names = () if columns is None else tuple(columns) if isinstance(columns, list | tuple) else (columns,)
    wrong = [name for name in names if not isinstance(name, str | int | tuple)]  # pandas has numbers and tuples, too
    if wrong:
        raise ArgumentError(
            f"{argument} must be names of columns; got {type(wrong[0]).__name__} {wrong[0]!r}. Pass its name, as 'x'.",
            code="bad-column-names",
        )
    return names  # type: ignore[return-value]
