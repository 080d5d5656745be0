"""OpenvinoEstimator: serve a trained OpenVINO model on any engine. Owns the arguments of its predict.

predict:  check the arguments  ->  source_of(data)  ->  source.answer(PredictJob)  ->  the answer in the data's kind
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from orca.cluster.context import OrcaContext
from orca.core.engine import Engine
from orca.core.source import Source
from orca.errors import ArgumentError, DataError
from orca.estimator import Estimator, natural
from orca.job import PredictJob
from orca.registry import backend_of, engine_class, learner_class, source_of
from orca.sources.arrays import ArraySource, PandasSource

DEFAULT_BATCH = 4
_PARTS = {"x", "y", "weights"}  # of data that is no dict of inputs
_WHOLE_BLOCKS = sys.maxsize  # the predictor cuts batches by itself, to have several of them under way


class OpenvinoEstimator(Estimator):
    """Answer with an OpenVINO model on Spark, on Ray or in this process. Make one with `Estimator.from_openvino`.

    Args:
        learner: The predictor of the model.
        state: The model itself.
        backend: A backend's name, or None for the cluster that is up when it is needed.
    """

    def __init__(self, learner: Any, state: Any, backend: str | None = None) -> None:
        super().__init__(learner, None if backend is None else backend_of(backend))
        self._state = state

    @classmethod
    def of(cls, *, model_path: str, batch_size: int = 0, backend: str | None = None) -> OpenvinoEstimator:
        """Make an Estimator of an OpenVINO model.

        Args:
            model_path: An .xml file of OpenVINO (its .bin beside it) or an .onnx file. Any fsspec path; the file is
                read here and travels to the workers.
            batch_size: Give the model this fixed batch; 0 keeps its own, fixed or free.
            backend: Where arrays are answered for: "spark", "ray" or "local" (in this process). Unless given, on the
                cluster that is up, Spark before Ray, else here. Distributed data is answered for where it is.

        Raises:
            ArgumentError: A file is missing or is no model.
        """
        if backend is not None:
            backend_of(backend)
        return cls(*_read(model_path, batch_size), backend)

    def load(self, model_path: str, batch_size: int = 0) -> OpenvinoEstimator:  # type: ignore[override]
        """Answer with the model of another file from now on; see `of` for the arguments."""
        self.learner, self._state = _read(model_path, batch_size)
        return self

    load_checkpoint = load  # type: ignore[assignment]

    def predict(  # type: ignore[override]
        self,
        data: Any,
        feature_cols: Sequence[str] | str | None = None,
        batch_size: int | None = DEFAULT_BATCH,
        input_cols: Sequence[str] | str | None = None,
        config: Mapping[str, Any] | None = None,
        output_cols: Sequence[str] | str | None = None,
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

        Returns:
            An array (a list of them for several outputs) for arrays; the same XShards with "prediction"; a DataFrame
            or Ray Dataset with one more column an output, computed lazily.

        Raises:
            ArgumentError: An argument is wrong, or the data does not fit the model's inputs.
        """
        spec = self._spec(batch_size, _columns(feature_cols, input_cols), None, output_cols, labelled=False)
        features = spec.columns.features
        predictor = self.learner.with_options(spec.batch_size or DEFAULT_BATCH, config, nested=not features)
        inputs = [port.name for port in predictor.signature.inputs]
        if features and len(features) != len(inputs):
            raise DataError(
                f"the model has {len(inputs)} input(s), {inputs}, but feature_cols names {len(features)}: "
                f"{list(features)}. Name one column for each input."
            )
        if isinstance(data, dict) and not features and (set(data) == set(inputs) or not set(data) <= _PARTS):
            predictor.signature.check_names(data)
            data = {"x": data}
        source = source_of(data, spec)
        _check_here(predictor, source)
        assert self._state is not None
        return source.answer(PredictJob.of(predictor, self._state, _WHOLE_BLOCKS), self.engine)

    @property
    def engine(self) -> Engine:
        """Return the engine that answers for arrays: a worker on each core of the cluster, or this process."""
        name = self._engine_name()
        engine: Engine = engine_class(name).on_cluster(_cores_of_a_node(name))
        return engine

    def fit(self, *args: Any, **options: Any) -> Any:
        """Refuse: an OpenVINO model only answers."""
        raise _refusal("fit", _TRAIN)

    def evaluate(self, *args: Any, **options: Any) -> Any:
        """Refuse: an OpenVINO model has no loss and no metrics."""
        raise _refusal("evaluate", "Compare what predict returns with the labels, or evaluate the original model")

    def explain(self, *args: Any, **options: Any) -> Any:
        """Refuse: explain says what fit would do."""
        raise _refusal("explain", "Explain the Estimator that trained the model")

    def get_model(self) -> Any:
        """Refuse: the model lives compiled, in the workers."""
        raise _refusal("get_model", "Read the model file with openvino.Core().read_model(model_path)")

    def get_state_dict(self) -> Any:
        """Refuse: an OpenVINO model has no state to go on from."""
        raise _refusal("get_state_dict", "Take it from the Estimator that trained the model")

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """Refuse: an OpenVINO model is loaded whole."""
        raise _refusal("load_state_dict", "Call load(model_path) to answer with another model")

    def save(self, *args: Any, **options: Any) -> Any:
        """Refuse: the model is in its files already."""
        raise _refusal("save", "Copy the .xml and the .bin file that it was read from")

    save_checkpoint = save

    def to_openvino(self, *args: Any, **options: Any) -> Any:
        """Refuse: the model is in its files already."""
        raise _refusal("to_openvino", "Copy the .xml and the .bin file that it was read from")

    def load_orca_checkpoint(self, *args: Any, **options: Any) -> Any:
        """Refuse: an OpenVINO model leaves no checkpoints."""
        raise _refusal("load_orca_checkpoint", "Call load(model_path) to answer with another model")

    @staticmethod
    def latest_checkpoint(*args: Any, **options: Any) -> Any:
        """Say that there is none."""
        raise _refusal("latest_checkpoint", "Call load(model_path) to answer with another model")

    def set_tensorboard(self, *args: Any, **options: Any) -> Any:
        """Refuse: nothing is trained."""
        raise _refusal("set_tensorboard", _TRAIN)

    def get_train_summary(self, *args: Any, **options: Any) -> Any:
        """Refuse: nothing is trained."""
        raise _refusal("get_train_summary", _TRAIN)

    def get_validation_summary(self, *args: Any, **options: Any) -> Any:
        """Refuse: nothing is trained."""
        raise _refusal("get_validation_summary", _TRAIN)

    def clear_gradient_clipping(self, *args: Any, **options: Any) -> Any:
        """Refuse: nothing is trained."""
        raise _refusal("clear_gradient_clipping", _TRAIN)

    def set_constant_gradient_clipping(self, *args: Any, **options: Any) -> Any:
        """Refuse: nothing is trained."""
        raise _refusal("set_constant_gradient_clipping", _TRAIN)

    def set_l2_norm_gradient_clipping(self, *args: Any, **options: Any) -> Any:
        """Refuse: nothing is trained."""
        raise _refusal("set_l2_norm_gradient_clipping", _TRAIN)


_TRAIN = "Train with Estimator.from_torch or Estimator.from_keras, and serve what that trained"


def _refusal(verb: str, instead: str) -> ArgumentError:
    return ArgumentError(f"{verb} is not supported: an OpenVINO model only answers (predict). {instead}.")


def _read(model_path: str, batch_size: int) -> tuple[Any, Any]:
    predictor, state = learner_class("openvino").of(str(model_path), natural("batch_size", batch_size))
    return predictor, state


def _columns(feature_cols: Sequence[str] | str | None, input_cols: Sequence[str] | str | None) -> Any:
    if feature_cols and input_cols and feature_cols != input_cols:
        raise ArgumentError(
            f"input_cols is another name of feature_cols: pass one of them; got {input_cols!r} and {feature_cols!r}."
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
