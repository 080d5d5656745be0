"""Doors: BigDL's names by the module they are imported from, loaded on first use. Owns which there are and which not.

A shim has `from orca.bigdl.doors import LAYERS, layer as __getattr__` and `__all__ = LAYERS`. A name that is left out
is a class that says, when it is called, what to use instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orca.errors import NotSupported

LAYERS = tuple(
    """
    Abs Add AddConstant Attention BatchNormalization BiRecurrent BifurcateSplitTable Bilinear BinaryThreshold
    Bottle CAdd CAddTable CAveTable CDivTable CMaxTable CMinTable CMul CMulTable CSubTable Clamp Concat
    ConcatTable Container Contiguous ConvLSTMPeephole ConvLSTMPeephole3D Cosine CosineDistance Cropping2D
    Cropping3D CrossProduct DotProduct Dropout ELU Echo Euclidean Exp ExpandSize FeedForwardNetwork FlattenTable
    GRU GaussianDropout GaussianNoise GaussianSampler Gemm GradientReversal HardShrink HardSigmoid HardTanh
    Highway Identity Index InferReshape Input JoinTable LSTM LSTMPeephole Layer LayerNormalization LeakyReLU
    Linear LocallyConnected1D LocallyConnected2D Log LogSigmoid LogSoftMax LookupTable MM MV MapTable
    MaskedSelect Masking Max Maxout Mean Min MixtureTable Model Mul MulConstant MultiRNNCell Narrow NarrowTable
    Negative Node Normalize NormalizeScale PReLU Pack Padding PairwiseDistance ParallelTable Power RReLU ReLU
    ReLU6 Recurrent RecurrentDecoder Replicate Reshape ResizeBilinear Reverse RnnCell SReLU Scale Select
    SelectTable Sequential Sigmoid SoftMax SoftMin SoftPlus SoftShrink SoftSign SpatialAveragePooling
    SpatialBatchNormalization SpatialContrastiveNormalization SpatialConvolution SpatialCrossMapLRN
    SpatialDilatedConvolution SpatialDivisiveNormalization SpatialDropout1D SpatialDropout2D SpatialDropout3D
    SpatialFullConvolution SpatialMaxPooling SpatialSeparableConvolution SpatialShareConvolution
    SpatialSubtractiveNormalization SpatialWithinChannelLRN SpatialZeroPadding SplitTable Sqrt Square Squeeze
    Sum TableOperation Tanh TanhShrink TemporalConvolution TemporalMaxPooling Threshold Tile TimeDistributed
    Transpose Unsqueeze UpSampling1D UpSampling2D UpSampling3D View VolumetricAveragePooling
    VolumetricConvolution VolumetricFullConvolution VolumetricMaxPooling SparseLinear DenseToSparse SparseJoinTable
    LookupTableSparse SpatialConvolutionMap RoiPooling
    """.split()
)
CRITERIONS = tuple(
    """
    AbsCriterion BCECriterion CategoricalCrossEntropy ClassNLLCriterion ClassSimplexCriterion
    CosineDistanceCriterion CosineEmbeddingCriterion CosineProximityCriterion Criterion CrossEntropyCriterion
    DiceCoefficientCriterion DistKLDivCriterion DotProductCriterion GaussianCriterion HingeEmbeddingCriterion
    KLDCriterion KullbackLeiblerDivergenceCriterion L1Cost L1HingeEmbeddingCriterion MSECriterion
    MarginCriterion MarginRankingCriterion MeanAbsolutePercentageCriterion MeanSquaredLogarithmicCriterion
    MultiCriterion MultiLabelMarginCriterion MultiLabelSoftMarginCriterion MultiMarginCriterion PGCriterion
    ParallelCriterion PoissonCriterion SmoothL1Criterion SmoothL1CriterionWithWeights SoftMarginCriterion
    SoftmaxWithCriterion TimeDistributedCriterion TimeDistributedMaskCriterion TransformerCriterion
    """.split()
)
KERAS_LAYERS = tuple(
    """
    Activation AddConstant AtrousConvolution1D AtrousConvolution2D AveragePooling1D AveragePooling2D
    AveragePooling3D BatchNormalization Bidirectional BinaryThreshold CAdd CMul ConvLSTM2D ConvLSTM3D
    Convolution1D Convolution2D Convolution3D Cropping1D Cropping2D Cropping3D Deconvolution2D Dense Dropout ELU
    Embedding Exp ExpandDim Flatten GRU GaussianDropout GaussianNoise GaussianSampler GetShape
    GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D
    GlobalMaxPooling3D HardShrink HardTanh Highway Identity Input InputLayer KerasLayer KerasLayerWrapper LRN2D
    LSTM LeakyReLU LocallyConnected1D LocallyConnected2D Log Masking Max MaxPooling1D MaxPooling2D MaxPooling3D
    MaxoutDense Merge Mul MulConstant Narrow Negative PReLU Permute Power RReLU RepeatVector Reshape
    ResizeBilinear SReLU Scale Select SelectTable SeparableConvolution2D ShareConvolution2D SimpleRNN SoftShrink
    SparseDense SparseEmbedding SpatialDropout1D SpatialDropout2D SpatialDropout3D Sqrt Square Squeeze Threshold
    ThresholdedReLU TimeDistributed UpSampling1D UpSampling2D UpSampling3D WithinChannelLRN2D WordEmbedding
    ZeroPadding1D ZeroPadding2D ZeroPadding3D merge
    """.split()
)
KERAS2_LAYERS = tuple(
    """
    Activation Average AveragePooling1D Conv1D Conv2D Cropping1D Dense Dropout Flatten GlobalAveragePooling1D
    GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D Input LocallyConnected1D
    MaxPooling1D Maximum Minimum Softmax average maximum minimum
    """.split()
)
AUTOGRAD = tuple(
    """
    Constant CustomLoss Lambda Parameter Variable abs add batch_dot clip contiguous div dot epsilon erf exp
    expand_dims l2_normalize log maximum mean minimum mm mul neg pow softplus softsign sqrt square squeeze stack
    sub sum
    """.split()
)
OBJECTIVES = tuple(
    """
    BinaryCrossEntropy CategoricalCrossEntropy CosineProximity Hinge KullbackLeiblerDivergence LossFunction
    MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson RankHinge
    SparseCategoricalCrossEntropy SquaredHinge
    """.split()
)

_DETECTION = (
    "torchvision has it: torchvision.ops and torchvision.models.detection; Layer.of(module) wraps a torch module"
)
_PENALTY = "what it adds to a gradient depends on how rows are dealt out: add the penalty to the loss (CustomLoss)"
LEFT_OUT_LAYERS = {
    "BinaryTreeLSTM": "its input is a tree: write it as a torch module, and wrap it with Layer.of",
    "Transformer": "use Layer.of(torch.nn.Transformer(...)), or Attention and FeedForwardNetwork",
    "SequenceBeamSearch": "it is no layer but a search: write it as a function of the model's outputs",
    "L1Penalty": _PENALTY, "NegativeEntropyPenalty": _PENALTY, "ActivityRegularization": _PENALTY,
    "SharedStaticUtils": "no layer lives in a JVM here: use the layer itself",
    **dict.fromkeys(("RoiAlign", "PriorBox", "Proposal", "DetectionOutputSSD", "DetectionOutputFrcnn",
                     "Pooler", "FPN"), _DETECTION),
}  # fmt: skip
LEFT_OUT_KERAS = dict.fromkeys(
    ("BERT", "TransformerLayer"), "use a torch module of your own or of a library, in KerasLayerWrapper(module)"
)
_KERAS1 = "Keras 1 is not installable today: train Keras 3 models with Estimator.from_keras"
LEFT_OUT_CONVERTER = dict.fromkeys(("DefinitionLoader", "WeightLoader", "WeightsConverter"), _KERAS1)
LEFT_OUT_BACKEND = dict.fromkeys(("KerasModelWrapper", "use_bigdl_backend", "with_bigdl_backend"), _KERAS1)
_ROI = "boxes are not carried along with images: use torchvision.transforms.v2"
LEFT_OUT_VISION = dict.fromkeys(
    ("DetectionCrop", "RandomSampler", "RoiProject", "RoiHFlip", "RoiResize", "RoiNormalize"), _ROI
) | {
    "FixExpand": "use Filler, or torchvision.transforms.v2",
    "RandomAlterAspect": "use RandomAspectScale and RandomCrop",
    "RandomCropper": "use RandomCrop and HFlip", "RandomResize": "use RandomAspectScale",
    "SeqFileFolder": "read images with ImageSet.read, or a Parquet dataset of orca.data.image",
}  # fmt: skip

LAYERS += tuple(LEFT_OUT_LAYERS)
KERAS_LAYERS += tuple(LEFT_OUT_KERAS)
KERAS_MODELS = ("KerasNet", "Model", "Sequential", "load_model")
CONVERTER, BACKEND = tuple(LEFT_OUT_CONVERTER), tuple(LEFT_OUT_BACKEND)


def refused(name: str, words: str) -> type:
    """Return the class of a name that is left out: it says what to use instead."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotSupported(f"{name} is not supported: {words}.")

    return type(name, (), {"__init__": __init__, "__doc__": f"Left out: {words}.", "__module__": __name__})


def _door(
    names: Sequence[str], places: Mapping[str, Sequence[str]], left_out: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return what a module's `__getattr__` is: modules (or tables in them) are asked for a name in this order."""

    def load(name: str) -> Any:
        if name not in names:
            if name.startswith("__"):
                raise AttributeError(name)
            raise AttributeError(f"there is no name {name!r} here; there are {', '.join(sorted(names))}.")
        if left_out and name in left_out:
            return refused(name, left_out[name])
        for module, tables in places.items():
            home = importlib.import_module(module)
            for table in tables:
                if name in getattr(home, table):
                    return getattr(home, table)[name]
            if name in vars(home):
                return vars(home)[name]
        raise AttributeError(f"{name!r} is promised, but nowhere to be found.")

    return load


_LAYERS = {"orca.bigdl.recurrent": ["LAYERS"], "orca.bigdl.layer": [], "orca.bigdl.layers": []}
layer = _door(LAYERS, _LAYERS, LEFT_OUT_LAYERS)
criterion = _door(CRITERIONS, {"orca.bigdl.criterion": ["CRITERIONS"]})
keras_layer = _door(KERAS_LAYERS, {"orca.bigdl.keras.layers": ["KERAS"], "orca.bigdl.keras.engine": []}, LEFT_OUT_KERAS)
keras2_layer = _door(KERAS2_LAYERS, {"orca.bigdl.keras.layers": ["KERAS2"], "orca.bigdl.keras.engine": []})
keras_model = _door(KERAS_MODELS, {"orca.bigdl.keras.engine": [], "orca.bigdl.files": []})
autograd = _door(AUTOGRAD, {"orca.bigdl.keras.autograd": ["FUNCTIONS"]})
objective = _door(OBJECTIVES, {"orca.bigdl.keras.objectives": ["OBJECTIVES"]})
converter = _door(CONVERTER, {}, LEFT_OUT_CONVERTER)
backend = _door(BACKEND, {}, LEFT_OUT_BACKEND)
