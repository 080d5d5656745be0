"""OpenvinoEstimator: serve a trained OpenVINO model on any engine. Owns the arguments of its predict.

predict:  check the arguments  ->  source_of(data)  ->  source.answer(PredictJob)  ->  the answer in the data's kind
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from orca.cluster.context import OrcaContext
from orca.core.arguments import checked
from orca.core.engine import Engine
from orca.core.source import Source
from orca.core.state import State
from orca.core.units import natural
from orca.errors import ArgumentError, DataError
from orca.estimators.estimator import Estimator
from orca.job import PredictJob
from orca.registry import backend_of, engine_class, source_of
from orca.sources.arrays import ArraySource, PandasSource

if TYPE_CHECKING:  # the shims import this file, and must not load OpenVINO
    from orca.frameworks.openvino import OpenvinoSpec

DEFAULT_BATCH = 4
_PARTS = {"x", "y", "weights"}  # of data that is no dict of inputs
_WHOLE_BLOCKS = sys.maxsize  # the predictor cuts batches by itself, to have several of them under way


_TRAIN = "Train with Estimator.from_torch or Estimator.from_keras, and serve what that trained"
_COPY = "Copy the .xml and the .bin file that it was read from"
_LOAD = "Call load(model_path) to answer with another model"
_INSTEAD = {
    "fit": _TRAIN,
    "evaluate": "Compare what predict returns with the labels, or evaluate the original model",
    "explain": "Explain the Estimator that trained the model",
    "get_model": "Read the model file with openvino.Core().read_model(model_path)",
    "get_state_dict": "Take it from the Estimator that trained the model",
    "load_state_dict": _LOAD,
    "save": _COPY,
    "save_checkpoint": _COPY,
    "to_openvino": _COPY,
    "load_latest_orca_checkpoint": _LOAD,
    "load_orca_checkpoint": _LOAD,
    "set_tensorboard": _TRAIN,
    "get_train_summary": _TRAIN,
    "get_validation_summary": _TRAIN,
    "clear_gradient_clipping": _TRAIN,
    "set_constant_gradient_clipping": _TRAIN,
    "set_l2_norm_gradient_clipping": _TRAIN,
}


class OpenvinoEstimator(Estimator):
    """An OpenVINO model that answers on Spark, on Ray or in this process. Made by `Estimator.from_openvino`.

    Args:
        learner: The predictor of the model.
        state: The model itself.
        backend: A backend's name, or None for the cluster that is up when it is needed.
    """

    learner: OpenvinoSpec
    refusals: ClassVar = {verb: f"an OpenVINO model only answers (predict). {do}" for verb, do in _INSTEAD.items()}

    def __init__(self, learner: OpenvinoSpec, state: State, backend: str | None = None) -> None:
        super().__init__(learner, None if backend is None else backend_of(backend))
        self._state = state

    def _facts(self) -> dict[str, Any]:
        inputs = [port.name for port in self.learner.signature.inputs]
        return {"framework": "openvino", **super()._facts(), "inputs": inputs}

    @checked
    def load(self, model_path: str, batch_size: int = 0) -> OpenvinoEstimator:
        """Answer with the model of another file from now on; see `of` for the arguments."""
        self.learner, self._state = _read(model_path, batch_size)
        return self

    load_checkpoint = load

    @checked
    def predict(
        self,
        data: Any,
        feature_cols: Sequence[str] | str | None = None,
        batch_size: int | None = DEFAULT_BATCH,
        input_cols: Sequence[str] | str | None = None,
        config: Mapping[str, Any] | None = None,
        output_cols: Sequence[str] | str | None = None,
        *,
        cache: bool = False,
    ) -> Any:
        """Answer for every row, in the kind the data came in and in its order.

        Args:
            data: An array of rows `[n, ...]`, or of batches of rows `[batches, rows, ...]`; a list or tuple of arrays
                for several inputs; XShards of {"x": ...}; a Spark or pandas DataFrame; a Ray Dataset.
            feature_cols: Columns for the model's inputs, in their order. Flat arrays get the shape of the input.
            batch_size: Rows of one request; a model with a fixed batch keeps that.
            input_cols: Another name of feature_cols.
            config: OpenVINO's compile configuration, as {"INFERENCE_PRECISION_HINT": "bf16"}.
            output_cols: Names of the prediction columns; `prediction` (or `prediction_0`, ...) unless given.
            cache: Ignored, with a warning; kept for compatibility. Use `df.persist()`.

        Returns:
            An array (a list of them for several outputs) for arrays; the same XShards with "prediction"; a DataFrame
            or Ray Dataset with one more column an output, computed lazily.

        Raises:
            ArgumentError: An argument is wrong, or the data does not fit the model's inputs.
        """
        spec = self._spec(
            batch_size, _columns(feature_cols, input_cols), None, output_cols, labelled=False, cache=cache
        )
        features = spec.columns.features
        predictor = self.learner.with_options(spec.batch_size or DEFAULT_BATCH, config, nested=not features)
        inputs = [port.name for port in predictor.signature.inputs]
        if features and len(features) != len(inputs):
            raise DataError(
                f"the model has {len(inputs)} input(s), {inputs}, but feature_cols names {len(features)}: "
                f"{list(features)}. Name one column for each input.",
                code="input-count",
            )
        if isinstance(data, dict) and not features and (set(data) == set(inputs) or not set(data) <= _PARTS):
            predictor.signature.check_names(data)
            data = {"x": data}
        source = source_of(data, spec)
        _check_here(predictor, source)
        return source.answer(PredictJob.of(predictor, self._state, _WHOLE_BLOCKS), self.engine)

    @property
    def engine(self) -> Engine:
        """Return the engine that answers for arrays: a worker on each core of the cluster, or this process."""
        name = self._engine_name()
        engine: Engine = engine_class(name).on_cluster(_cores_of_a_node(name))
        return engine


def _read(model_path: str, batch_size: int) -> tuple[OpenvinoSpec, State]:
    from orca.frameworks.openvino import OpenvinoSpec

    return OpenvinoSpec.of(str(model_path), natural("batch_size", batch_size))


def _columns(feature_cols: Sequence[str] | str | None, input_cols: Sequence[str] | str | None) -> Any:
    if feature_cols and input_cols and feature_cols != input_cols:
        raise ArgumentError(
            f"input_cols is another name of feature_cols: pass one of them; got {input_cols!r} and {feature_cols!r}.",
            code="argument-given-twice",
        )
    return feature_cols or input_cols


def _check_here(predictor: Any, source: Source) -> None:
    """Raise at once where data that is here does not fit: a cluster's workers would say it in the end only."""
    arrays = source.arrays if isinstance(source, PandasSource) else source
    if isinstance(arrays, ArraySource):
        predictor.signature.arrange(arrays.x, predictor.nested)


def _cores_of_a_node(engine: str) -> int:
    """Return the workers of a node; one in this process, where the model itself uses all cores."""
    cluster = OrcaContext.cluster()
    if cluster is not None and cluster.runtime == engine:
        return cluster.cores or 1
    try:
        ray = OrcaContext.get_ray_context() if engine == "ray" else None
    except ArgumentError:  # the program's own Ray
        ray = None
    return ray.total_cores // ray.num_nodes if ray else 1
