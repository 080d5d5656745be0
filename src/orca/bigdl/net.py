"""Net: trained models that answer, and the low-level Estimator. Owns InferenceModel, Net, GraphNet and Estimator's verbs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from orca.bigdl.optimizer import SummaryPair, TrainSummary
from orca.classic.sample import EvaluatedResult, JTensor
from orca.errors import ArgumentError, MissingDependency, NotSupported

__all__ = ["Estimator", "GraphNet", "InferenceModel", "Net"]


class Net:
    """Models in files."""

    @staticmethod
    def load_bigdl(model_path: str, weight_path: str | None = None, bigdl_type: str = "float") -> Any:
        """Return the model that saveModel wrote."""
        from orca.bigdl.files import load_layer

        return load_layer(model_path, weight_path)

    load = load_bigdl

    @staticmethod
    def load_torch(path: Any, bigdl_type: str = "float") -> Any:
        """Return the layer of a TorchScript file."""
        from orca.bigdl.layer import Model

        return Model.load_torch(path)

    @staticmethod
    def load_tf(path: str, *args: Any, **kwargs: Any) -> Any:
        """Return the TFNet of an export folder."""
        from orca.tfpark import TFNet

        return TFNet.from_export_folder(path)

    @staticmethod
    def load_keras(json_path: str | None = None, hdf5_path: str | None = None, by_name: bool = False) -> Any:
        """Refuse: Keras models are trained as they are."""
        raise NotSupported(
            "load_keras is not supported: train a Keras model with Estimator.from_keras, or TFPark's KerasModel."
        )

    @staticmethod
    def load_caffe(def_path: str, model_path: str, bigdl_type: str = "float") -> Any:
        """Refuse: nothing reads Caffe's format today."""
        raise NotSupported(
            "Caffe models are not supported: convert the model to ONNX, and serve it with from_openvino."
        )


class GraphNet:
    """A graph of layers from inputs to outputs, with `new_graph` and `freeze_up_to`: a Model of `bigdl.nn.layer`."""

    def __new__(cls, input: Any, output: Any, jvalue: Any = None, **kwargs: Any) -> Any:
        """Return the Model."""
        from orca.bigdl.layer import Model

        return Model(input, output)


class InferenceModel:
    """A trained model of any kind that answers for arrays.

    Args:
        supported_concurrent_num: Accepted: calls from several threads take turns in the framework itself.
    """

    def __init__(self, supported_concurrent_num: int = 1, bigdl_type: str = "float") -> None:
        self.answer: Any = None
        self.source: tuple[str, tuple[Any, ...]] | None = None

    def _load(self, kind: str, *source: Any) -> None:
        self.answer, self.source = _LOADERS[kind](*source), (kind, source)

    def load_bigdl(self, model_path: str, weight_path: str | None = None) -> None:
        """Load a model that saveModel wrote."""
        self._load("bigdl", model_path, weight_path)

    load = load_bigdl

    def load_torch(self, model_path: Any) -> None:
        """Load a TorchScript file, or take a torch module."""
        self._load("torch", model_path)

    def load_openvino(self, model_path: str, weight_path: str | None = None, batch_size: int = 0) -> None:
        """Load an OpenVINO model (.xml, and .bin beside it)."""
        self._load("openvino", model_path, weight_path)

    load_openvino_ng = load_openvino

    def load_tensorflow(self, model_path: str, model_type: str = "frozenModel",
                        intra_op_parallelism_threads: int = 1, inter_op_parallelism_threads: int = 1,
                        use_per_session_threads: bool = True) -> None:  # fmt: skip
        """Load a SavedModel of TensorFlow ("savedModel"); of a frozen graph, TFNet is the layer."""
        if model_type != "savedModel":
            raise NotSupported("a frozen graph is read by TFNet(path); load_tensorflow takes model_type='savedModel'.")
        self._load("tensorflow", model_path)

    def load_tensorflow_graph(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: TFNet reads graphs."""
        raise NotSupported(
            "load_tensorflow_graph is not supported: use TFNet, which reads frozen graphs and SavedModels."
        )

    def load_caffe(self, model_path: str, weight_path: str) -> None:
        """Refuse: nothing reads Caffe's format today."""
        Net.load_caffe(model_path, weight_path)

    def predict(self, inputs: Any) -> Any:
        """Return the outputs for an array, a JTensor, or a list of them for several inputs, as arrays."""
        if self.answer is None:
            raise ArgumentError("there is no model yet. Call load_bigdl, load_torch, load_openvino or load_tensorflow.")
        return self.answer(_inputs(inputs))

    def distributed_predict(self, inputs: Any, sc: Any = None) -> Any:
        """Return the outputs of an RDD of inputs, as an RDD."""
        if self.source is None:
            raise ArgumentError("there is no model yet. Call load_bigdl, load_torch, load_openvino or load_tensorflow.")
        if self.source[0] == "torch" and not isinstance(self.source[1][0], str):
            raise NotSupported(
                "distributed_predict of a module in memory is not supported: save it with torch.jit.save first."
            )
        return inputs.mapPartitions(partial(_answers, *self.source))


def _inputs(inputs: Any) -> Any:
    if isinstance(inputs, JTensor):
        return inputs.to_ndarray()
    if isinstance(inputs, list | tuple):
        return [_inputs(each) for each in inputs]
    return np.asarray(inputs)


def _answers(kind: str, source: tuple[Any, ...], rows: Any) -> Any:
    answer = _LOADERS[kind](*source)
    return (answer(_inputs(row)) for row in rows)


def _bigdl(path: str, weight_path: str | None) -> Any:
    from orca.bigdl.training import predicted

    return partial(predicted, Net.load_bigdl(path, weight_path))  # arrays, also where Spark is up


def _torch(path: Any) -> Any:
    import torch

    from orca.bigdl.layer import _arrays

    given = isinstance(path, torch.nn.Module)
    module = copy.deepcopy(path).eval() if given else torch.jit.load(path).eval()  # the user's stays in its mode

    def answer(inputs: Any) -> Any:
        arrays = inputs if isinstance(inputs, list) else [inputs]
        tensors = [torch.from_numpy(np.array(array, _kept(array.dtype), order="C")) for array in arrays]
        with torch.no_grad():
            return _arrays(module(*tensors))

    return answer


def _kept(dtype: Any) -> Any:
    """Return the type that a torch module gets numbers in: whole numbers stay, all others are float32."""
    return dtype if np.issubdtype(dtype, np.integer) or dtype == np.bool_ else np.float32


def _openvino(path: str, weight_path: str | None) -> Any:
    try:
        import openvino
    except ImportError as error:
        raise MissingDependency.of("openvino", "openvino", "load_openvino") from error
    core = openvino.Core()
    model = core.compile_model(core.read_model(path, weight_path or ""), "CPU")

    def answer(inputs: Any) -> Any:
        outputs = list(model(inputs if isinstance(inputs, list) else [inputs]).values())
        return outputs[0] if len(outputs) == 1 else outputs

    return answer


def _tensorflow(path: str) -> Any:
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    signature = loaded.signatures["serving_default"]
    names = list(signature.structured_input_signature[1])

    def answer(inputs: Any) -> Any:
        given = inputs if isinstance(inputs, list) else [inputs]
        types = [signature.structured_input_signature[1][name].dtype for name in names]
        tensors = {name: tf.constant(array, dtype) for name, array, dtype in zip(names, given, types, strict=True)}
        outputs = [value.numpy() for value in signature(**tensors).values()]
        return outputs[0] if len(outputs) == 1 else outputs

    answer.loaded = loaded  # type: ignore[attr-defined]  # the signature does not keep it alive
    return answer


_LOADERS: dict[str, Any] = {"bigdl": _bigdl, "torch": _torch, "openvino": _openvino, "tensorflow": _tensorflow}


class Estimator:
    """The low-level Estimator: a model with its optim method, trained by triggers.

    Args:
        model: A layer.
        optim_methods: An optim method; SGD() unless given.
        model_dir: Where checkpoints go.
        backend: "bigdl" where Spark is up, else "local", unless given.
    """

    def __init__(self, model: Any, optim_methods: Any = None, model_dir: str | None = None, jvalue: Any = None,
                 bigdl_type: str = "float", backend: str | None = None) -> None:  # fmt: skip
        if isinstance(optim_methods, dict):
            raise NotSupported("an optim method for each layer is not supported: pass one, and freeze other layers.")
        self.model, self.method, self.model_dir, self.backend = model, optim_methods, model_dir, backend
        self.estimator: Any = None
        self.clipping: tuple[Any, Any] = (None, None)
        self.board: Any = None

    def clear_gradient_clipping(self) -> None:
        """Clip gradients no more."""
        self.clipping = None, None

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Clip each gradient into [min, max]."""
        self.clipping = (float(min), float(max)), None

    def set_l2_norm_gradient_clipping(self, clip_norm: float) -> None:
        """Clip the gradients of a step to a norm."""
        self.clipping = None, float(clip_norm)

    def set_tensorboard(self, log_dir: str, app_name: str) -> None:
        """Write what each training gives for TensorBoard."""
        self.board = TrainSummary(log_dir, app_name)

    def get_train_summary(self, tag: str | None = None) -> Any:
        """Return rows of step, value and time of "Loss", "LearningRate" or "Throughput"."""
        return None if self.board is None else self.board.summaries.read("train", tag)

    def get_validation_summary(self, tag: str | None = None) -> Any:
        """Return rows of step, value and time of a validation method."""
        return None if self.board is None else self.board.summaries.read("validation", tag)

    def train(self, train_set: Any, criterion: Any, end_trigger: Any = None, checkpoint_trigger: Any =
              None, validation_set: Any = None, validation_method: Any = None, batch_size: int | None =
              32) -> Estimator:  # fmt: skip
        """Train until a trigger fires (one epoch unless given).

        Args:
            train_set: A FeatureSet, an RDD of Samples, or other data of `from_bigdl`.
            criterion: A criterion.
            end_trigger: When to end, counted over all trainings of this Estimator.
            checkpoint_trigger: When to keep a checkpoint under model_dir.
            validation_set: Data of the same kind.
            validation_method: Validation methods.
            batch_size: Rows of one step over all workers.
        """
        from orca.bigdl.training import data_of, metrics_for
        from orca.core.triggers import MaxEpoch

        est = self._made(criterion)
        done = est._state.epoch if est._state is not None else 0
        est.fit(
            data_of(train_set), batch_size=batch_size, end_trigger=end_trigger or MaxEpoch(done + 1),
            checkpoint_trigger=checkpoint_trigger, shuffle=getattr(train_set, "shuffle", None),
            validation_data=None if validation_set is None else data_of(validation_set),
            validation_methods=metrics_for(validation_method),
        )  # fmt: skip
        est.get_model()
        return self

    train_imagefeature = train

    def train_minibatch(self, train_set: Any, criterion: Any, end_trigger: Any = None, checkpoint_trigger: Any = None,
                        validation_set: Any = None, validation_method: Any = None) -> Estimator:  # fmt: skip
        """Train on data that comes in batches, as a DataLoader's."""
        return self.train(
            train_set, criterion, end_trigger, checkpoint_trigger, validation_set, validation_method, None
        )

    def evaluate(
        self, validation_set: Any, validation_method: Any, batch_size: int | None = 32
    ) -> list[EvaluatedResult]:
        """Return an EvaluatedResult of each validation method."""
        from orca.bigdl.training import data_of, evaluated, is_rdd, samples_of

        rows = samples_of(validation_set)
        if is_rdd(rows) or isinstance(rows, list | tuple):
            return evaluated(self.model, rows, batch_size or -1, validation_method)
        methods = validation_method if isinstance(validation_method, Sequence) else [validation_method]
        found = self._made(None).evaluate(data_of(rows), batch_size=batch_size, validation_methods=methods)
        return [EvaluatedResult(found[method.name], found["num_samples"], method.name) for method in methods]

    evaluate_imagefeature = evaluate

    def evaluate_minibatch(self, validation_set: Any, validation_method: Any) -> list[EvaluatedResult]:
        """Return an EvaluatedResult of each validation method, of data that comes in batches."""
        return self.evaluate(validation_set, validation_method, None)

    def _made(self, criterion: Any) -> Any:
        from orca import estimators
        from orca.bigdl.training import backend_now

        if self.estimator is None or (criterion is not None and self.estimator.criterion is not criterion):
            state = None if self.estimator is None else self.estimator._state
            self.estimator = estimators.Estimator.from_bigdl(
                model=self.model, loss=criterion, optimizer=self.method, model_dir=self.model_dir,
                backend=self.backend or backend_now(),
            )  # fmt: skip
            self.estimator._state = state
        self.estimator._clip(*self.clipping)
        if self.board is not None:
            self.estimator._summaries = SummaryPair(self.board)
        return self.estimator
