"""Doors: BigDL's names by the module they are imported from, loaded on first use. Owns the lists of names.

A shim has `from orca_classic.bigdl.doors import LAYERS, layer as __getattr__` and `__all__ = LAYERS`. A name that is
left out
is a class that raises an error with the alternative.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from orca.errors import NotSupported

_DETECTION = (
    "torchvision has it: torchvision.ops and torchvision.models.detection; Layer.of(module) wraps a torch module"
)
_PENALTY = "its gradient depends on how rows are distributed to workers: add the penalty to the loss (CustomLoss)"
_JVM = "no layer lives in a JVM here: use the layer itself"
LEFT_OUT_LAYERS = {
    "BinaryTreeLSTM": "its input is a tree: write it as a torch module, and wrap it with Layer.of",
    "Transformer": "use Layer.of(torch.nn.Transformer(...)), or Attention and FeedForwardNetwork",
    "SequenceBeamSearch": "it is no layer but a search: write it as a function of the model's outputs",
    "L1Penalty": _PENALTY, "NegativeEntropyPenalty": _PENALTY, "ActivityRegularization": _PENALTY,
    "SharedStaticUtils": _JVM,
    **dict.fromkeys(("RoiAlign", "PriorBox", "Proposal", "DetectionOutputSSD", "DetectionOutputFrcnn",
                     "Pooler", "FPN"), _DETECTION),
}  # fmt: skip
LEFT_OUT_KERAS = {
    **dict.fromkeys(("BERT", "TransformerLayer"), "use a torch module, in KerasLayerWrapper(module)"),
    **dict.fromkeys(("InferShape", "KerasCreator"), _JVM),
}
LEFT_OUT_OPTIMIZER = {
    "ActivityRegularization": _PENALTY,
    "MeanAveragePrecisionObjectDetection": "use torchmetrics.detection.MeanAveragePrecision, as every Estimator does",
}
_KERAS1 = "Keras 1 is not installable today: train Keras 3 models with Estimator.from_keras"
LEFT_OUT_CONVERTER = dict.fromkeys(("DefinitionLoader", "WeightLoader", "WeightsConverter"), _KERAS1)
LEFT_OUT_BACKEND = dict.fromkeys(("KerasModelWrapper", "use_bigdl_backend", "with_bigdl_backend"), _KERAS1)
CAFFE = "convert the model to ONNX, and serve it with from_openvino"
_ROI = "boxes are not carried along with images: use torchvision.transforms.v2"
LEFT_OUT_VISION = dict.fromkeys(
    ("DetectionCrop", "RandomSampler", "RoiProject", "RoiHFlip", "RoiResize", "RoiNormalize"), _ROI
) | {
    "FixExpand": "use Filler, or torchvision.transforms.v2",
    "RandomAlterAspect": "use RandomAspectScale and RandomCrop",
    "RandomCropper": "use RandomCrop and HFlip", "RandomResize": "use RandomAspectScale",
    "SeqFileFolder": "read images with ImageSet.read, or a Parquet dataset of orca_classic.data.image",
}  # fmt: skip


def refused(name: str, words: str) -> type:
    """Return the class of a name that is left out: making one raises an error with the alternative."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotSupported(f"{name} is not supported: {words}.")

    return type(name, (), {"__init__": __init__, "__doc__": f"Left out: {words}.", "__module__": __name__})


def refusal(name: str, words: str) -> Any:
    """Return a method that raises an error with the alternative."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotSupported(f"{name} is not supported: {words}.")

    refuse.__doc__ = f"Refuse: {words}."
    return staticmethod(refuse)


class Names(Sequence[str]):
    """Names of some modules, which are loaded on first use.

    Args:
        homes: {module: names in it}; the name of a table stands for all of its keys.
        left_out: {name: alternative}.
    """

    def __init__(self, homes: Mapping[str, str], left_out: Mapping[str, str] | None = None) -> None:
        self.homes, self.left_out = homes, left_out or {}

    @cached_property
    def things(self) -> dict[str, Any]:
        """The objects by name."""
        things: dict[str, Any] = {name: refused(name, words) for name, words in self.left_out.items()}
        for module, names in self.homes.items():
            home = importlib.import_module(module)
            for name in names.split():
                thing = getattr(home, name)
                things |= thing if isinstance(thing, dict) else {name: thing}
        return things

    def load(self, name: str) -> Any:
        """Return the object of a name: the `__getattr__` of a shim."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self.things:
            raise AttributeError(f"there is no name {name!r} here; there are {', '.join(sorted(self.things))}.")
        return self.things[name]

    def __getitem__(self, place: Any) -> Any:
        return list(self.things)[place]

    def __len__(self) -> int:
        return len(self.things)


_NETS = "orca_classic.bigdl.keras.engine"
_LAYERS = {
    "orca_classic.bigdl.layer": "Container Layer Node",
    "orca_classic.bigdl.layers": "Input",
    "orca_classic.bigdl.recurrent": "LAYERS",
}
LAYERS = Names(_LAYERS, LEFT_OUT_LAYERS)
CRITERIONS = Names({"orca_classic.bigdl.criterion": "Criterion CRITERIONS"})
KERAS_LAYERS = Names({"orca_classic.bigdl.keras.layers": "KERAS merge", _NETS: "Input KerasLayer"}, LEFT_OUT_KERAS)
KERAS2_LAYERS = Names({"orca_classic.bigdl.keras.layers": "KERAS2 average maximum minimum", _NETS: "Input"})
KERAS_MODELS = Names({_NETS: "KerasNet Model Sequential", "orca_classic.bigdl.files": "load_model"})
AUTOGRAD = Names({
    "orca_classic.bigdl.keras.autograd": "FUNCTIONS Constant CustomLoss Lambda Parameter Variable epsilon",
})  # fmt: skip
OBJECTIVES = Names({"orca_classic.bigdl.keras.objectives": "OBJECTIVES"})
CONVERTER, BACKEND = Names({}, LEFT_OUT_CONVERTER), Names({}, LEFT_OUT_BACKEND)
OPTIMIZER = Names({
    "orca_classic.bigdl.optimizer":
        "BaseOptimizer DistriOptimizer LocalOptimizer Optimizer TrainSummary ValidationSummary",
    "orca_classic.bigdl.validation": "METHODS", "orca_classic.bigdl.initial": "REGULARIZERS",
    "orca.core.triggers": "EveryEpoch MaxEpoch MaxIteration MaxScore MinLoss SeveralIteration TriggerAnd TriggerOr",
    "orca_classic.bigdl.optimizers": "Adadelta Adagrad Adam Adamax Ftrl LBFGS OptimMethod ParallelAdam RMSprop SGD",
    "orca_classic.bigdl.optimizers.schedules":
        "Default Exponential MultiStep Plateau Poly SequentialSchedule Step Warmup",
}, LEFT_OUT_OPTIMIZER)  # fmt: skip
COMMON = Names({
    "orca_classic.zoo.nncontext": """RNG EvaluatedResult JTensor JavaValue Sample callBigDlFunc create_spark_conf
        create_tmp_path get_dtype get_local_file get_node_and_core_number get_optimizer_version get_spark_context
        get_spark_sql_context init_engine is_distributed set_optimizer_version text_from_path to_list""",
    "orca_classic.bigdl.datasets": "to_sample_rdd",
})  # fmt: skip
layer, criterion, optimizer, common = LAYERS.load, CRITERIONS.load, OPTIMIZER.load, COMMON.load
keras_layer, keras2_layer, keras_model = KERAS_LAYERS.load, KERAS2_LAYERS.load, KERAS_MODELS.load
autograd, objective, converter, backend = AUTOGRAD.load, OBJECTIVES.load, CONVERTER.load, BACKEND.load
