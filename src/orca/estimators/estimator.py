"""Estimator: the object that the user holds. Owns the door to every framework, the engine, and answering for rows.

predict:  check the arguments  ->  source_of(data)  ->  source.answer(PredictJob)  ->  the answer in the data's kind
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, wraps
from inspect import isfunction
from typing import TYPE_CHECKING, Any, ClassVar

from orca.core.engine import Engine, Settings
from orca.core.learner import Learner, Predictor
from orca.core.source import Columns, DataSpec
from orca.core.units import positive
from orca.errors import ArgumentError, NotSupported, OrcaError
from orca.monitor.tracebacks import cut_below
from orca.registry import Backend, backend_of, engine_class, estimator_class
from orca.storage.checkpoints import latest_checkpoint, newest_run, path_of

if TYPE_CHECKING:
    from orca.estimators.training import TrainingEstimator

_VERBS = {"fit", "evaluate", "predict"}  # those that have workers do something
_PATH_NAMES = ("model_path", "checkpoint", "filepath", "path")


class Door:
    """A `from_...` method of Estimator: the method `of` of a framework's Estimator, loaded when it is asked for.

    A class that is derived from Estimator gets the verbs of the framework besides its own.
    """

    def __init__(self, framework: str) -> None:
        self.framework = framework

    def __get__(self, instance: Any, owner: Any) -> Callable[..., Any]:
        kind: Any = estimator_class(self.framework)
        if owner is not Estimator and not hasattr(owner, "of"):  # no framework's own
            kind = _derived(owner, kind)
        make: Callable[..., Any] = (owner if issubclass(owner, kind) else kind).of
        defaults = owner.defaults.get(self.framework)
        return wraps(make)(partial(_make_with, make, defaults)) if defaults else make


@cache
def _derived(owner: Any, kind: Any) -> Any:
    return type(owner.__name__, (owner, kind), {"__module__": owner.__module__, "__doc__": owner.__doc__})


def _make_with(make: Callable[..., Any], defaults: Mapping[str, Any], **options: Any) -> Any:
    """Make an Estimator with other defaults, also for options that are given as None."""
    return make(**options | {name: value for name, value in defaults.items() if options.get(name) is None})


def _with_short_errors(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a public verb whose errors of ours show its call, and not the frames below it."""

    @wraps(verb)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return verb(*args, **options)
        except (OrcaError, KeyboardInterrupt) as error:
            cut_below(error, verb.__code__)
            raise

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

    from_torch = Door("torch")
    from_keras = Door("keras")
    from_graph = Door("tfgraph")
    from_openvino = Door("openvino")
    from_mxnet = Door("mxnet")
    from_bigdl = Door("bigdl")

    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # framework -> arguments, where they differ from ours
    vectors: ClassVar[bool] = False  # whether a Spark DataFrame gets 1-D predictions as ML vectors
    refusals: ClassVar[Mapping[str, str]] = {}  # a verb of other Estimators -> why this one has none, and the remedy

    def __init__(
        self,
        learner: Predictor,
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

    @staticmethod
    def from_learner(learner: Learner, *, backend: str | None = None, **options: Any) -> TrainingEstimator:
        """Make an Estimator of a framework that Orca does not know: of a learner of your own.

        Args:
            learner: The learner; `orca.core.array_learner.ArrayLearner` is the shortest way to one.
            backend: "spark", "ray" or "local"; unless given, the cluster that is up.
            options: The arguments of `orca.estimators.training.TrainingEstimator`: metrics, workers_per_node, ...
        """
        from orca.estimators.training import TrainingEstimator

        return TrainingEstimator(learner, None if backend is None else backend_of(backend), **options)

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
            raise NotSupported(f"{name} is not supported: {self.refusals[name]}.")
        return self.__getattribute__(name)  # which names the problem, also within a property

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
                f"{verb} takes one path (also as {', '.join(_PATH_NAMES)}); got {paths} and {other_names}."
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
                f"{type(weight).__name__}. Put the weights beside x and y: fit((x, y, weights), sample_weight=True)."
            )
        column = weight if isinstance(weight, str) else None
        columns = Columns(
            _names("feature_cols", features), _names("label_cols", labels), _names("output_cols", outputs), column
        )
        options: dict[str, Any] = {"weighted": bool(weight), "cache": cache}
        options |= {"numbers": self.learner.numbers, "vectors": self.vectors}
        serialize = bool(OrcaContext.serialize_data_creator)
        return DataSpec(columns, labelled, batch_size, dict(self.config), serialize, seed=self.seed, **options)


def _names(argument: str, columns: Sequence[str] | str | None) -> tuple[str, ...]:
    names = () if columns is None else tuple(columns) if isinstance(columns, list | tuple) else (columns,)
    wrong = [name for name in names if not isinstance(name, str | int | tuple)]  # pandas has numbers and tuples, too
    if wrong:
        raise ArgumentError(
            f"{argument} must be names of columns; got {type(wrong[0]).__name__} {wrong[0]!r}. Pass its name, as 'x'."
        )
    return names  # type: ignore[return-value]
