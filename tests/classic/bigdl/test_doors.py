"""Names of BigDL's API against the lists of its releases: nothing is missing, and nothing is there by chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from orca.errors import NotSupported

pytest.importorskip("torch")

from orca_classic.bigdl import doors

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
OPTIMIZER = tuple(
    """
    Top1Accuracy TreeNNAccuracy Top5Accuracy MeanAveragePrecision MeanAveragePrecisionObjectDetection Loss HitRatio NDCG
    MAE MaxIteration MaxEpoch EveryEpoch SeveralIteration MaxScore MinLoss TriggerAnd TriggerOr Poly Exponential Step
    Default Plateau Warmup SequentialSchedule OptimMethod SGD Adagrad LBFGS Adadelta Adam ParallelAdam Ftrl Adamax
    RMSprop MultiStep BaseOptimizer Optimizer DistriOptimizer LocalOptimizer TrainSummary ValidationSummary
    L1L2Regularizer ActivityRegularization L1Regularizer L2Regularizer
    """.split()
)
DOORS = [
    (doors.LAYERS, LAYERS, doors.LEFT_OUT_LAYERS, 174), (doors.CRITERIONS, CRITERIONS, {}, 38),
    (doors.KERAS_LAYERS, KERAS_LAYERS, doors.LEFT_OUT_KERAS, 103), (doors.KERAS2_LAYERS, KERAS2_LAYERS, {}, 23),
    (doors.AUTOGRAD, AUTOGRAD, {}, 33), (doors.OBJECTIVES, OBJECTIVES, {}, 14),
    (doors.OPTIMIZER, OPTIMIZER, doors.LEFT_OUT_OPTIMIZER, 45),
]  # fmt: skip


@pytest.mark.parametrize(("door", "promised", "left_out", "count"), DOORS)
def test_names_are_those_that_are_promised(
    door: doors.Names, promised: set[str], left_out: dict[str, str], count: int
) -> None:
    assert set(door) == {*promised, *left_out} and len(door) == count
    for name in left_out:
        with pytest.raises(NotSupported, match=f"{name} is not supported: .{{12}}"):
            door.load(name)()


def test_every_name_that_is_left_out_is_in_the_docs() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "classic" / "bigdl.md").read_text()
    page = text.partition("## What is left out")[2]
    tables = [table for name, table in vars(doors).items() if name.startswith("LEFT_OUT")]
    assert len(tables) == 6 and [name for table in tables for name in table if f"`{name}`" not in page] == []


def test_unknown_name_is_told_with_those_there_are() -> None:
    with pytest.raises(AttributeError, match="there is no name 'Convolve' here; there are Abs, "):
        doors.layer("Convolve")
