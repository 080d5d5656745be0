"""Net: trained models for inference, and the low-level Estimator. Owns InferenceModel, Net, GraphNet and Estimator."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from orca.errors import ArgumentError, MissingDependency
from orca_classic.bigdl.optimizer import Trainer, one_method, trained
from orca_classic.bigdl.refusals import CAFFE, refusal
from orca_classic.zoo.sample import EvaluatedResult, JTensor

__all__ = ["Estimator", "GraphNet", "InferenceModel", "Net"]


class Net:
    """Models in files."""

    @staticmethod
    def load_bigdl(model_path: str, weight_path: str | None = None, bigdl_type: str = "float") -> Any:
        """Return the model that saveModel wrote; a graph as a GraphNet."""
        from orca_classic.bigdl.files import load_layer
        from orca_classic.bigdl.keras.engine import graph_net

        return graph_net(load_layer(model_path, weight_path))

    load = load_bigdl

    @staticmethod
    def load_torch(path: Any, bigdl_type: str = "float", weights_only: bool = True) -> Any:
        """Return the layer of a TorchScript file; with weights_only=False, of one that torch.save(model) wrote.

        The latter runs the code in it: only for files that you trust.
        """
        from orca_classic.bigdl.layer import Layer

        return Layer.of(_script(path, weights_only))

    @staticmethod
    def load_tf(path: str, *args: Any, **kwargs: Any) -> Any:
        """Return the TFNet of an export folder."""
        from orca_classic.tf1.tfpark import TFNet

        return TFNet.from_export_folder(path)

    load_keras = refusal("load_keras", "train a Keras model with Estimator.from_keras, or TFPark's KerasModel")
    load_caffe = refusal("Caffe's format", CAFFE)


class GraphNet:
    """A graph of layers from inputs to outputs, with `new_graph`, `freeze_up_to` and `to_keras`."""

    def __new__(cls, input: Any, output: Any, jvalue: Any = None, **kwargs: Any) -> Any:
        """Return the graph."""
        from orca_classic.bigdl.keras.engine import GraphNet as Graph

        return Graph(input, output)


class InferenceModel:
    """A trained model of any kind that predicts for arrays, in any number of threads at a time."""

    def __init__(self, supported_concurrent_num: int = 1, bigdl_type: str = "float") -> None:
        self.answer: Callable[[Any], Any] | None = None
        self.source: Callable[[], Callable[[Any], Any]] | None = None

    def _load(self, loader: Callable[..., Any], *arguments: Any) -> None:
        self.source = partial(loader, *arguments)
        self.answer = self.source()

    def load_bigdl(self, model_path: str, weight_path: str | None = None) -> None:
        """Load a model that saveModel wrote."""
        self._load(_bigdl, model_path, weight_path)

    load = load_bigdl

    def load_torch(self, model_path: Any, weights_only: bool = True) -> None:
        """Load a TorchScript file, or take a torch module.

        Args:
            model_path: The path, or the module.
            weights_only: False also loads a file that torch.save(model) wrote, which runs the code in it: only for
                files that you trust.
        """
        self._load(_torch, model_path, weights_only)

    def load_openvino(self, model_path: str, weight_path: str | None = None, batch_size: int = 0) -> None:
        """Load an OpenVINO model: .xml, with the .bin beside it unless its path is given; or .onnx."""
        self._load(_openvino, model_path, weight_path, batch_size)

    load_openvino_ng = load_openvino

    def load_tensorflow(self, model_path: str, model_type: str = "frozenModel",
                        intra_op_parallelism_threads: int = 1, inter_op_parallelism_threads: int = 1,
                        use_per_session_threads: bool = True) -> None:  # fmt: skip
        """Load a folder that `export_tf` wrote ("frozenModel"), or a SavedModel of TensorFlow ("savedModel")."""
        self._load(_tensorflow, model_path, model_type)

    def load_tensorflow_graph(self, model_path: str, model_type: str, inputs: Any, outputs: Any, *threads: Any,
                              **more: Any) -> None:  # fmt: skip
        """Load a frozen graph or a SavedModel, to predict some of its tensors from others, by their names."""
        self._load(_tensorflow, model_path, model_type, inputs, outputs)

    load_caffe = refusal("Caffe's format", CAFFE)

    def predict(self, inputs: Any) -> Any:
        """Return the outputs for an array, a JTensor, or a list of them for several inputs, as arrays."""
        return self._loaded(self.answer)(_inputs(inputs))

    def distributed_predict(self, inputs: Any, sc: Any = None) -> Any:
        """Return the outputs of an RDD of inputs, as an RDD; the workers load the model from the same path."""
        return inputs.mapPartitions(partial(_answers, self._loaded(self.source)))

    @staticmethod
    def _loaded(part: Callable[..., Any] | None) -> Callable[..., Any]:
        if part is None:
            raise ArgumentError("there is no model yet. Call load_bigdl, load_torch, load_openvino or load_tensorflow.")
        return part


def _inputs(inputs: Any) -> Any:
    if isinstance(inputs, JTensor):
        return inputs.to_ndarray()
    if isinstance(inputs, list | tuple):
        return [_inputs(each) for each in inputs]
    return np.asarray(inputs)


def _answers(source: Callable[[], Callable[[Any], Any]], rows: Any) -> Any:
    answer = source()
    return (answer(_inputs(row)) for row in rows)


def _bigdl(path: str, weight_path: str | None) -> Any:
    from orca_classic.bigdl.training import predicted

    # In evaluation mode for good: threads would otherwise switch the mode under each other.
    return partial(predicted, Net.load_bigdl(path, weight_path).training(False))


def _torch(model: Any, weights_only: bool) -> Any:
    import torch

    from orca_classic.bigdl.layer import _arrays

    is_module = isinstance(model, torch.nn.Module)
    module = (
        copy.deepcopy(model) if is_module else _script(model, weights_only)
    ).eval()  # the user's own keeps its mode

    def answer(inputs: Any) -> Any:
        arrays = inputs if isinstance(inputs, list) else [inputs]
        tensors = [torch.from_numpy(np.array(array, _kept(array.dtype), order="C")) for array in arrays]
        with torch.no_grad():
            return _arrays(module(*tensors))

    return answer


def _script(path: Any, weights_only: bool) -> Any:
    import torch

    from orca.storage.files import filesystem

    fs, place = filesystem(path)
    if not fs.isfile(place):
        raise ArgumentError(f"there is no model at {path}. Check the path given to torch.jit.save().")
    with fs.open(place, "rb") as file:
        try:
            return torch.jit.load(file)
        except RuntimeError as error:
            if weights_only:
                raise ArgumentError(
                    f"{path} is no TorchScript file. Write one with torch.jit.save(torch.jit.trace(module, example), "
                    "path). If torch.save(model, path) wrote it, it runs code when it is loaded: pass "
                    "weights_only=False if you trust it."
                ) from error
        file.seek(0)
        module = torch.load(file, map_location="cpu", weights_only=False)
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(
            f"{path} holds a {type(module).__name__}, no module. Write one with torch.save(model, path)."
        )
    return module


def _kept(dtype: Any) -> Any:
    """Return the type in which a torch module gets numbers: integers keep theirs, all others are float32."""
    return dtype if np.issubdtype(dtype, np.integer) or dtype == np.bool_ else np.float32


def _openvino(path: str, weight_path: str | None, batch: int) -> Any:
    try:
        from orca.frameworks.openvino import OpenvinoSpec
    except ModuleNotFoundError as error:
        raise MissingDependency.of("openvino", "openvino", "load_openvino") from error
    if weight_path is not None and weight_path != path.removesuffix(".xml") + ".bin":
        raise ArgumentError(
            f"the weights must lie beside {path}, with the same name and the ending .bin; got {weight_path}."
        )
    spec, state = OpenvinoSpec.of(path, batch)
    predictor = spec.open_predictor(state)
    turn = threading.Lock()  # it has one queue of requests, which use all cores

    def answer(inputs: Any) -> Any:
        with turn:
            return predictor.predict(inputs)

    return answer


def _tensorflow(path: str, model_type: str, inputs: Any = None, outputs: Any = None) -> Any:
    from orca_classic.tf1.tfpark import TFNet

    if model_type not in ("frozenModel", "savedModel"):
        raise ArgumentError(f"model_type must be 'frozenModel' or 'savedModel'; got {model_type!r}.")
    if model_type == "savedModel":
        return TFNet.from_saved_model(path, inputs=inputs, outputs=outputs).forward
    return TFNet(path, inputs, outputs).forward


class Estimator(Trainer):
    """The low-level Estimator: a model with its optim method, trained by triggers.

    Args:
        model: A layer.
        optim_methods: An optim method; SGD() unless given.
        model_dir: Where checkpoints go.
        backend: The cluster that is up, else "local", unless given.
    """

    def __init__(self, model: Any, optim_methods: Any = None, model_dir: str | None = None, jvalue: Any = None,
                 bigdl_type: str = "float", backend: str | None = None) -> None:  # fmt: skip
        self.model, self.method, self.model_dir, self.backend = model, one_method(optim_methods), model_dir, backend

    def _estimator(self, criterion: Any) -> Any:
        return self.estimator_of(self.model, criterion, self.method, self.backend, model_dir=self.model_dir)

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
        est = self._estimator(criterion)
        est.fit(
            train_set, None if end_trigger else 1, batch_size, end_trigger=end_trigger, validation_data=validation_set,
            checkpoint_trigger=checkpoint_trigger, validation_methods=validation_method,
        )  # fmt: skip
        trained(est, self.model)
        return self

    train_imagefeature = train

    def train_minibatch(self, train_set: Any, criterion: Any, end_trigger: Any = None, checkpoint_trigger: Any = None,
                        validation_set: Any = None, validation_method: Any = None) -> Estimator:  # fmt: skip
        """Train on data in batches, such as a DataLoader's."""
        rows = train_set, criterion, end_trigger, checkpoint_trigger, validation_set, validation_method
        return self.train(*rows, batch_size=None)

    def evaluate(self, validation_set: Any, validation_method: Any, batch_size: int | None = 32) -> list[EvaluatedResult]:  # fmt: skip
        """Return an EvaluatedResult of each validation method."""
        from orca_classic.bigdl.training import evaluated, is_rdd, samples_of

        rows = samples_of(validation_set)
        if is_rdd(rows) or isinstance(rows, list | tuple):
            return evaluated(self.model, rows, batch_size or -1, validation_method)
        methods = validation_method if isinstance(validation_method, list | tuple) else [validation_method]
        statistics = self._estimator(None).evaluate(rows, batch_size, validation_methods=methods)
        return [EvaluatedResult(statistics[method.name], statistics["num_samples"], method.name) for method in methods]

    evaluate_imagefeature = evaluate

    def evaluate_minibatch(self, validation_set: Any, validation_method: Any) -> list[EvaluatedResult]:
        """Return an EvaluatedResult of each validation method, for data in batches."""
        return self.evaluate(validation_set, validation_method, None)
