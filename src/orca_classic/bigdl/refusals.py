"""Refusals: names of BigDL's API that are left out. Owns what each is replaced by.

A name that is left out imports, so that a program reaches the place that needs it; there it raises an error with the
alternative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orca.errors import NotSupported


def refused(name: str, remedy: str) -> type:
    """Return the class of a name that is left out: making one raises an error with the alternative."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotSupported(f"{name} is not supported: {remedy}.")

    return type(name, (), {"__init__": __init__, "__doc__": f"Left out: {remedy}.", "__module__": __name__})


def refusal(name: str, remedy: str) -> Any:
    """Return a method that raises an error with the alternative."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotSupported(f"{name} is not supported: {remedy}.")

    refuse.__doc__ = f"Refuse: {remedy}."
    return staticmethod(refuse)


def _refused(remedies: Mapping[str, str]) -> dict[str, type]:
    return {name: refused(name, remedy) for name, remedy in remedies.items()}


_DETECTION = (
    "torchvision has it: torchvision.ops and torchvision.models.detection; Layer.of(module) wraps a torch module"
)
_PENALTY = "its gradient depends on how rows are distributed to workers: add the penalty to the loss (CustomLoss)"
_JVM = "no layer lives in a JVM here: use the layer itself"
_KERAS1 = "Keras 1 is not installable today: train Keras 3 models with Estimator.from_keras"
_ROI = "boxes are not carried along with images: use torchvision.transforms.v2"
CAFFE = "convert the model to ONNX, and serve it with from_openvino"

LAYERS = _refused({
    "BinaryTreeLSTM": "its input is a tree: write it as a torch module, and wrap it with Layer.of",
    "Transformer": "use Layer.of(torch.nn.Transformer(...)), or Attention and FeedForwardNetwork",
    "SequenceBeamSearch": "it is no layer but a search: write it as a function of the model's outputs",
    "L1Penalty": _PENALTY, "NegativeEntropyPenalty": _PENALTY, "ActivityRegularization": _PENALTY,
    "SharedStaticUtils": _JVM,
    **dict.fromkeys(("RoiAlign", "PriorBox", "Proposal", "DetectionOutputSSD", "DetectionOutputFrcnn",
                     "Pooler", "FPN"), _DETECTION),
})  # fmt: skip
KERAS = _refused({
    **dict.fromkeys(("BERT", "TransformerLayer"), "use a torch module, in KerasLayerWrapper(module)"),
    **dict.fromkeys(("InferShape", "KerasCreator"), _JVM),
})  # fmt: skip
OPTIMIZER = _refused({
    "ActivityRegularization": _PENALTY,
    "MeanAveragePrecisionObjectDetection": "use torchmetrics.detection.MeanAveragePrecision, as every Estimator does",
})  # fmt: skip
CONVERTER = _refused(dict.fromkeys(("DefinitionLoader", "WeightLoader", "WeightsConverter"), _KERAS1))
BACKEND = _refused(dict.fromkeys(("KerasModelWrapper", "use_bigdl_backend", "with_bigdl_backend"), _KERAS1))
VISION = _refused({
    **dict.fromkeys(("DetectionCrop", "RandomSampler", "RoiProject", "RoiHFlip", "RoiResize", "RoiNormalize"), _ROI),
    "SeqFileFolder": "read images with ImageSet.read, or a Parquet dataset of orca_classic.data.image",
})  # fmt: skip
