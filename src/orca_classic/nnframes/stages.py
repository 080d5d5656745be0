"""Stages: deep learning as Spark ML knows learning. Owns NNEstimator, NNClassifier, their models, and their params.

A stage calls `fit` and `predict` of an Estimator on a DataFrame, whose cells the workers read by the preprocessing.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, LongType, NumericType
from torch import nn

from orca.cluster.context import OrcaContext
from orca.core.source import DataSpec
from orca.core.triggers import Moment, trigger_of
from orca.errors import ArgumentError, DataError
from orca.estimators.torch import TorchEstimator
from orca.registry import source_of
from orca.storage.checkpoints import new_run
from orca.storage.state import State
from orca_classic.bigdl.feature.preprocessing import (
    FeatureLabelPreprocessing,
    Preprocessing,
    SeqToTensor,
    preprocessing_of,
)
from orca_classic.bigdl.layer import Layer
from orca_classic.bigdl.optimizer import SummaryPair
from orca_classic.bigdl.optimizers import SGD, OptimMethod, TorchOptim
from orca_classic.bigdl.training import BigdlValidations, metrics_for, syncs_batchnorm
from orca_classic.nnframes.files import Setting, StageReader, StageWriter
from orca_classic.nnframes.wrappers import TorchLoss, TorchModel

FOREVER = 2**31  # epochs, where a trigger says when to end
CACHE_LEVELS = ("DRAM", "PMEM", "DISK_AND_DRAM")


def _param(name: str, doc: str, convert: Callable[[Any], Any] = Setting.of) -> Any:
    return Param(Params._dummy(), name, doc, typeConverter=convert)  # type: ignore[no-untyped-call]


def _accessors(name: str, get: str = "get") -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the setter, which returns the stage, and the getter of a param."""

    def setter(self: Any, val: Any) -> Any:
        return self._set(**{name: val})

    def getter(self: Any) -> Any:
        return self.getOrDefault(name)

    word = name[0].upper() + name[1:]
    setter.__name__, getter.__name__ = f"set{word}", f"{get}{word}"
    setter.__doc__, getter.__doc__ = f"Set {name}; returns the stage.", f"Return {name}."
    return setter, getter


def _bare(values: dict[Any, Any]) -> dict[Any, Any]:
    """Return the values of params without the Setting that the grid of a search has around objects."""
    return {param: value.value if isinstance(value, Setting) else value for param, value in values.items()}


class HasColumns(HasFeaturesCol, HasPredictionCol):  # type: ignore[misc]
    """A stage that reads a column of features and makes one of predictions."""

    def setFeaturesCol(self, value: str) -> Any:
        """Set featuresCol; returns the stage."""
        return self._set(featuresCol=value)

    def setPredictionCol(self, value: str) -> Any:
        """Set predictionCol; returns the stage."""
        return self._set(predictionCol=value)


class HasBatchSize(Params):
    """A stage with batchSize: rows of a step over all workers, or of one forward pass of a prediction."""

    batchSize = _param("batchSize", "rows of a step over all workers, or of a prediction", TypeConverters.toInt)
    setBatchSize, getBatchSize = _accessors("batchSize")


class HasSamplePreprocessing(Params):
    """A stage with samplePreprocessing: the steps from the cells of a column to the model's tensors."""

    samplePreprocessing = _param("samplePreprocessing", "preprocessing of features, or of features and labels")
    setSamplePreprocessing, getSamplePreprocessing = _accessors("samplePreprocessing")


class HasOptimMethod(Params):
    """A stage with optimMethod: how weights are updated."""

    optimMethod = _param("optimMethod", "an optim method, a TorchOptim, or an optimizer of torch")
    setOptimMethod, getOptimMethod = _accessors("optimMethod")


class HasThreshold(Params):
    """A stage with threshold: above it, the answer of a model with one output is the class 1."""

    threshold = _param("threshold", "above it, one output is the class 1", TypeConverters.toFloat)
    setThreshold, getThreshold = _accessors("threshold")


class Writable(Params, MLWritable, MLReadable[Any]):
    """A stage that is saved as JSON and safetensors, without pickles.

    Attributes:
        saved_names: The attributes that are saved besides the model and the params.
    """

    saved_names: ClassVar[tuple[str, ...]] = ()

    def set(self, param: Any, value: Any) -> None:
        """Set a param."""
        super().set(param, value)
        self._paramMap = _bare(self._paramMap)

    def _set(self, **values: Any) -> Any:
        super()._set(**values)
        self._paramMap = _bare(self._paramMap)
        return self

    def _setDefault(self, **values: Any) -> Any:
        super()._setDefault(**values)
        self._defaultParamMap = _bare(self._defaultParamMap)
        return self

    def write(self) -> StageWriter:
        """Return the writer: JSON and safetensors, no pickles."""
        return StageWriter(self)

    def save(self, path: str) -> None:
        """Save the stage; `write().overwrite().save(path)` replaces one."""
        self.write().save(path)

    @classmethod
    def read(cls) -> StageReader:
        """Return the reader of such stages."""
        return StageReader(cls)


class FrameEstimator(BigdlValidations, TorchEstimator):
    """The Estimator behind a stage: it reads the columns of a DataFrame by preprocessing."""

    readers: Mapping[str, Callable[[Any, str], Any]] = {}

    def _spec(self, *arguments: Any, **options: Any) -> DataSpec:
        return replace(super()._spec(*arguments, **options), readers=self.readers)

    def answers(self, frame: Any, column: str, batch_size: int, names: Callable[[int], list[str]]) -> Any:
        """Return a DataFrame with a column for each output of the model, lazily.

        Args:
            frame: The DataFrame.
            column: The column of features.
            batch_size: Rows of one forward pass.
            names: A function that returns names for a number of outputs.
        """
        spec = self._spec(batch_size, [column], None, labelled=False)
        task = self._answers(self.learner, spec)
        source: Any = source_of(frame, spec)
        output = task.output or source.look(task)  # without training or a file: from the first rows
        self._learn_rows(None, output)
        spec = self._spec(batch_size, [column], None, names(len(output.heads)), labelled=False)
        return source_of(frame, spec).answer(replace(task, output=output), None)


class NNEstimator(
    Estimator, Writable, HasColumns, HasLabelCol, HasBatchSize, HasOptimMethod, HasSamplePreprocessing
):  # type: ignore[misc]  # fmt: skip
    """A stage of Spark ML that trains a model on a DataFrame; `fit` returns an NNModel.

    A fit starts from the model's weights and does not change them: the NNModel has the trained ones.

    Args:
        model: A torch module, a TorchModel, or a layer of BigDL.
        criterion: A loss of torch or a function of output and label, a TorchLoss, or a criterion of BigDL.
        feature_preprocessing: A Preprocessing, the size of the model's input as [2], or those of several inputs as
            [[2], [3]]. Unless given, numbers, arrays and vectors keep their sizes.
        label_preprocessing: The same, for labels.
        jvalue: Only None is accepted: stages have no object in a JVM.

    Example:
        ::

            estimator = NNEstimator(nn.Linear(2, 1), nn.MSELoss()).setBatchSize(32).setMaxEpoch(5)
            estimator.fit(df).transform(df).show()
    """

    maxEpoch = _param("maxEpoch", "epochs to train, unless endWhen says when to end", TypeConverters.toInt)
    learningRate = _param("learningRate", "the learning rate of the optim method", TypeConverters.toFloat)
    learningRateDecay = _param("learningRateDecay", "rate / (1 + steps * decay)", TypeConverters.toFloat)
    cachingSample = _param("cachingSample", "whether rows are preprocessed once, not in each epoch",
                           TypeConverters.toBoolean)  # fmt: skip
    endWhen = _param("endWhen", "a trigger that ends training, instead of maxEpoch")
    trainSummary = _param("trainSummary", "a TrainSummary: where to write the course of training")
    validationSummary = _param("validationSummary", "a ValidationSummary")
    validation = _param("validation", "trigger, DataFrame, metrics and batch size of a validation")
    checkpoint = _param("checkpoint", "path and trigger of checkpoints, and whether only the newest stays")
    dataCacheLevel = _param("dataCacheLevel", "where training rows are kept, and in how many slices")
    clipping = _param("clipping", "how gradients are clipped")

    setMaxEpoch, getMaxEpoch = _accessors("maxEpoch")
    setLearningRate, getLearningRate = _accessors("learningRate")
    setLearningRateDecay, getLearningRateDecay = _accessors("learningRateDecay")
    setCachingSample, isCachingSample = _accessors("cachingSample", "is")
    setTrainSummary, getTrainSummary = _accessors("trainSummary")
    setValidationSummary, getValidationSummary = _accessors("validationSummary")
    getValidation, getCheckpoint = _accessors("validation")[1], _accessors("checkpoint")[1]
    getEndWhen, getDataCacheLevel = _accessors("endWhen")[1], _accessors("dataCacheLevel")[1]
    saved_names: ClassVar[tuple[str, ...]] = ("criterion", "label_preprocessing")
    makes: ClassVar[Any]  # the class of the fitted model

    def __init__(
        self, model: Any, criterion: Any, feature_preprocessing: Any = None, label_preprocessing: Any = None,
        jvalue: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _refuse(jvalue)
        self.model, self.criterion = model_of(model), criterion
        features = preprocessing_of(feature_preprocessing, "feature_preprocessing")
        labels = preprocessing_of(label_preprocessing, "label_preprocessing")
        self.label_preprocessing = labels
        self._setDefault(
            batchSize=1,
            maxEpoch=50,
            learningRate=1e-3,
            learningRateDecay=0.0,
            cachingSample=True,
            samplePreprocessing=features,
            dataCacheLevel=["DRAM", None],
            **dict.fromkeys(
                ("optimMethod", "endWhen", "trainSummary", "validationSummary", "validation", "checkpoint", "clipping")
            ),
        )

    def setLabelCol(self, value: str) -> NNEstimator:
        """Set labelCol; returns the stage."""
        return self._set(labelCol=value)

    def setEndWhen(self, trigger: Any) -> NNEstimator:
        """End training when a trigger fires, instead of after maxEpoch epochs."""
        return self._set(endWhen=trigger_of(trigger))

    def setDataCacheLevel(self, level: str, numSlice: int | None = None) -> NNEstimator:
        """Set the cache of training rows. Workers keep rows in memory-mapped files at any level."""
        if str(level).upper() not in CACHE_LEVELS:
            raise ArgumentError(f"the level of a data cache must be one of {', '.join(CACHE_LEVELS)}; got {level!r}.")
        return self._set(dataCacheLevel=[str(level).upper(), numSlice])

    def setValidation(self, trigger: Any, val_df: Any, val_method: Any, batch_size: int) -> NNEstimator:
        """Validate while training.

        Args:
            trigger: When: EveryEpoch(), SeveralIteration(100), ...; mid-epoch too.
            val_df: A DataFrame with the same columns.
            val_method: Metrics, or their names.
            batch_size: Accepted: results do not depend on it.
        """
        methods = val_method if isinstance(val_method, list | tuple) else [val_method]
        return self._set(validation=[trigger_of(trigger), val_df, list(methods), batch_size])

    def setCheckpoint(self, path: str, trigger: Any, isOverWrite: bool = True) -> NNEstimator:
        """Keep checkpoints when a trigger fires; only the newest with isOverWrite.

        Args:
            path: A folder at any fsspec path. Each fit has a folder named by its time in it, with `model.<steps>` and
                `optimMethod-<name>.<steps>`; find_latest_checkpoint and Estimator.load_orca_checkpoint read them.
            trigger: When.
            isOverWrite: Whether only the newest stays.
        """
        return self._set(checkpoint=[path, trigger_of(trigger), isOverWrite])

    def setConstantGradientClipping(self, min: float, max: float) -> NNEstimator:
        """Clip each gradient into [min, max]."""
        return self._set(clipping={"clip_value": (min, max)})

    def setGradientClippingByL2Norm(self, clip_norm: float) -> NNEstimator:
        """Clip the gradients of a step to a norm."""
        return self._set(clipping={"clip_norm": clip_norm})

    def clearGradientClipping(self) -> NNEstimator:
        """Turn clipping off."""
        self.clear(self.clipping)
        return self

    @classmethod
    def load(cls, path: str, model: nn.Module | None = None, criterion: Any = None) -> Any:
        """Load a stage that `save` wrote.

        Args:
            path: The path.
            model: A module of that kind, where the saved one cannot be built by the name of its class.
            criterion: A criterion to use instead of the saved one.
        """
        return cls.read().load(path, model, **({} if criterion is None else {"criterion": criterion}))

    def parts(self) -> tuple[Any, nn.Module | None, State]:
        """Return the model as given, its module (None if it is not made yet), and a state, for a writer."""
        is_ready = not isinstance(self.model, TorchModel) or isinstance(self.model.source, nn.Module)
        return self.model, torch_of(self.model) if is_ready else None, State()

    def restore(self, model: Any, preprocessing: Any, state: State, attributes: dict[str, Any]) -> None:
        """Initialize as the saved stage, for a reader."""
        NNEstimator.__init__(self, model, attributes["criterion"], preprocessing, attributes["label_preprocessing"])

    def _fit(self, dataset: Any) -> NNModel:
        _check_frame(dataset, "fit")
        estimator: Any = FrameEstimator.from_torch(
            model=self.model.source if isinstance(self.model, TorchModel) else torch_of(self.model),
            optimizer=self._method(),
            loss=loss_of(self.criterion),
            loss_reduction=getattr(self.criterion, "reduction", None) if hasattr(self.criterion, "to_torch") else None,
            backend="bigdl",
            sync_batchnorm=syncs_batchnorm(self.model, {}),
            model_dir=self._checkpoint()[0],
            **(self.getOrDefault("clipping") or {}),
        )
        estimator._summaries = SummaryPair(self.getTrainSummary(), self.getValidationSummary())
        self._train(estimator, dataset)
        model = self.makes(self.model, self._preprocessing()[0])
        model._estimator = estimator
        if isinstance(model, NNClassifierModel):
            model.one_based = bool(getattr(self.criterion, "one_based", False))
        return self._named(model)

    def _train(self, estimator: FrameEstimator, dataset: Any) -> None:
        label, end = self.getLabelCol(), self.getEndWhen()
        if label == self.getFeaturesCol():  # features and labels have readers of their own
            label = f"{label} as a label"
        options = self._options(label)
        dataset = self._with_label(dataset, label)
        features, labels = self._preprocessing()
        epochs = self.getMaxEpoch() if end is None else FOREVER
        if self.isCachingSample() or not features.draws:
            estimator.readers = self._readers(features, labels, label)
            estimator.fit(dataset, epochs, **options)
            return
        if options["checkpoint_trigger"] is not None:  # all epochs are one fit to the user
            estimator.run_folder = new_run(self._checkpoint()[0] or "", dated=True)
        for epoch in range(epochs):  # draws differ from epoch to epoch
            estimator.readers = self._readers(features.seeded(estimator.seed + epoch), labels, label)
            line = estimator.fit(dataset, 1, **options)[-1]
            state = estimator._current()
            loss = line.get("val_loss", line["train_loss"])
            moment = Moment(state.epoch, state.steps, True, loss, _score(line))
            if end is not None and (end(moment) or end(Moment(state.epoch - 1, state.steps))):  # perhaps mid-epoch
                return

    def _options(self, label: str) -> dict[str, Any]:
        """Return the arguments of the Estimator's fit, for a label column of this name."""
        _, checkpoint_trigger, keeps_one = self._checkpoint()
        options = {
            "batch_size": self.getBatchSize(),
            "feature_cols": [self.getFeaturesCol()],
            "label_cols": [label],
            "checkpoint_trigger": checkpoint_trigger,
            "keep_checkpoints": 1 if keeps_one else None,
            "end_trigger": self.getEndWhen(),
        }
        if (validation := self.getValidation()) is not None:
            trigger, frame, methods, _ = validation
            options |= {"validation_data": self._with_label(frame, label), "validation_trigger": trigger}
            options["validation_methods"] = metrics_for(methods)
        return options

    def _with_label(self, frame: Any, label: str) -> Any:
        """Return a frame with the labels also under this name."""
        own = self.getLabelCol()
        return frame if label == own else frame.withColumn(label, F.col(f"`{own}`"))

    def _method(self) -> Any:
        """Return the optim method, with the learning rate that was set."""
        method = self.getOptimMethod()
        rate = self.getLearningRate() if method is None or self.isSet("learningRate") else None
        decay = self.getLearningRateDecay() if method is None or self.isSet("learningRateDecay") else None
        if isinstance(method, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
            method = TorchOptim.from_pytorch(method)
        method = SGD() if method is None else method
        if isinstance(method, OptimMethod):
            return method.with_rate(rate, decay)
        if rate is not None or decay:
            raise ArgumentError(
                f"setLearningRate cannot reach the optimizer {method!r}. Pass an optim method, a TorchOptim or an "
                "optimizer of torch, or leave setLearningRate out."
            )
        return method

    def _preprocessing(self) -> tuple[Preprocessing, Preprocessing | None]:
        chain = self.getSamplePreprocessing()
        if isinstance(chain, FeatureLabelPreprocessing):
            return chain.feature_transformer, chain.label_transformer
        return preprocessing_of(chain, "samplePreprocessing") or SeqToTensor(), self.label_preprocessing

    def _readers(self, features: Preprocessing, labels: Preprocessing | None, label: str) -> dict[str, Any]:
        reads = {self.getFeaturesCol(): features.read, label: labels and labels.read}
        return {name: reader for name, reader in reads.items() if reader is not None}

    def _checkpoint(self) -> tuple[str | None, Any, bool]:
        return self.getCheckpoint() or (None, None, True)

    def _named(self, model: Any) -> Any:
        """Give the model the names of the columns, but not the batch size, which means another thing there."""
        for name in ("featuresCol", "predictionCol"):
            model._set(**{name: self.getOrDefault(name)})
        return model._resetUid(self.uid.replace(type(self).__name__, type(model).__name__))


class NNModel(Model, Writable, HasColumns, HasBatchSize, HasSamplePreprocessing):  # type: ignore[misc,type-arg]
    """A stage of Spark ML that predicts for the rows of a DataFrame.

    `transform` adds the column of predictions, arrays of floats, lazily. Several outputs are an array of arrays.

    Args:
        model: A torch module, a TorchModel, or a layer of BigDL.
        feature_preprocessing: As in NNEstimator.
        jvalue: As in NNEstimator.
    """

    def __init__(self, model: Any, feature_preprocessing: Any = None, jvalue: Any = None) -> None:
        super().__init__()
        _refuse(jvalue)
        self._original = model_of(model)
        self._estimator: FrameEstimator | None = None
        self._setDefault(
            batchSize=4 * _cores(),
            samplePreprocessing=preprocessing_of(feature_preprocessing, "feature_preprocessing"),
        )

    @property
    def model(self) -> Any:
        """Return the model with its weights, as the kind of object that was passed."""
        if self._estimator is None:
            return self._original
        net = self._estimator.get_model()
        return trained(self._original, net)

    def getModel(self) -> Any:
        """Return the model with its weights, as the kind of object that was passed."""
        return self.model

    @property
    def estimator(self) -> FrameEstimator:
        """Return the Estimator that predicts."""
        if self._estimator is None:
            inner: Any = FrameEstimator.from_torch(model=torch_of(self._original), backend="bigdl")
            self._estimator = inner
        return self._estimator  # type: ignore[return-value]

    @property
    def state(self) -> State:
        """Return the weights, and the form of rows and predictions."""
        return self.estimator._current()

    def _transform(self, dataset: Any) -> Any:
        _check_frame(dataset, "transform")
        column, name, estimator = self.getFeaturesCol(), self.getPredictionCol(), self.estimator
        if name in dataset.columns:
            raise DataError(f"the DataFrame has the column {name!r} already. Choose another: setPredictionCol('…').")
        preprocessing = preprocessing_of(self.getSamplePreprocessing(), "samplePreprocessing") or SeqToTensor()
        estimator.readers = {column: preprocessing.read}
        heads: list[str] = []

        def names(count: int) -> list[str]:
            heads[:] = [name] if count == 1 else [f"{name} of {self.uid} {number}" for number in range(count)]
            return heads

        answers = estimator.answers(dataset, column, self.getBatchSize(), names)
        columns = [_flat(answers.schema[head].dataType, F.col(f"`{head}`")) for head in heads]
        prediction = self._prediction(columns)
        return answers.withColumn(name, prediction).drop(*(head for head in heads if head != name))

    def _prediction(self, heads: Sequence[Any]) -> Any:
        """Return the column of predictions, from the columns of the model's outputs."""
        return heads[0] if len(heads) == 1 else F.array(*heads)

    def parts(self) -> tuple[Any, nn.Module | None, State]:
        """Return the model as given, its module, and its state, for a writer."""
        return self._original, self.estimator.get_model(), self.state.for_answers()

    def restore(self, model: Any, preprocessing: Any, state: State, attributes: dict[str, Any]) -> None:
        """Initialize as the saved stage, for a reader."""
        type(self).__init__(self, model, preprocessing)
        for name, value in attributes.items():
            setattr(self, name, value)
        self.estimator._state = replace(state, payload={"models": state.payload["models"]})

    @classmethod
    def load(cls, path: str, model: nn.Module | None = None) -> Any:
        """Load a stage.

        Args:
            path: The path.
            model: A module of that kind, where the saved one cannot be built by the name of its class.
        """
        return cls.read().load(path, model)


class NNClassifier(NNEstimator):
    """An NNEstimator for classes: its labels are numbers, and its model predicts the number of a class.

    Classes count from 1 for criterions of BigDL, and from 0 for losses of torch.
    """

    def __init__(self, model: Any, criterion: Any, feature_preprocessing: Any = None, jvalue: Any = None) -> None:
        super().__init__(model, criterion, feature_preprocessing, jvalue=jvalue)

    def _fit(self, dataset: Any) -> NNModel:
        _check_frame(dataset, "fit")
        label = self.getLabelCol()
        kinds = {field.name: field.dataType for field in dataset.schema.fields}
        if not isinstance(kinds.get(label, LongType()), NumericType | BooleanType):
            raise DataError(
                f"the labels of a classifier are numbers; the column {label!r} is {kinds[label].simpleString()}. "
                "Use NNEstimator for labels of other kinds, or StringIndexer for texts."
            )
        return super()._fit(dataset)


class NNClassifierModel(NNModel, HasThreshold):
    """An NNModel that predicts the number of a class, as a double.

    One output gives 1 if it is above the threshold, else 0; several give the place of the largest: from 1 on for
    layers and criterions of BigDL, from 0 on for torch's.
    """

    saved_names = ("one_based",)

    def __init__(self, model: Any, feature_preprocessing: Any = None, jvalue: Any = None) -> None:
        super().__init__(model, feature_preprocessing, jvalue)
        self.one_based = isinstance(self._original, Layer) and not isinstance(self._original, TorchModel)
        self._setDefault(threshold=0.5)

    def _prediction(self, heads: Sequence[Any]) -> Any:
        if len(heads) > 1:
            raise DataError(f"a classifier has one output; got {len(heads)}. Use NNEstimator and NNModel.")
        (scores,) = heads
        one = F.when(F.isnan(scores[0]), F.lit(float("nan"))).when(scores[0] > self.getThreshold(), 1.0).otherwise(0.0)
        if self.isSet("threshold"):
            several = F.raise_error(F.lit("a threshold is for a model with one output, and this one has several."))
            return F.when(F.size(scores) == 1, one).otherwise(several.cast("double"))
        place = F.array_position(scores, F.array_max(scores)).cast("double") - (0.0 if self.one_based else 1.0)
        return F.when(F.size(scores) == 1, one).otherwise(place)


NNEstimator.makes, NNClassifier.makes = NNModel, NNClassifierModel


def model_of(model: Any) -> Any:
    """Return a model as given; a class or function that makes modules as a TorchModel.

    Raises:
        ArgumentError: It is no model.
    """
    if isinstance(model, nn.Module) or hasattr(model, "to_torch"):
        return model
    return TorchModel.from_pytorch(model)


def _check_frame(dataset: Any, verb: str) -> None:
    if not hasattr(dataset, "withColumn"):
        raise DataError(
            f"{verb} takes a Spark DataFrame; got {type(dataset).__name__}. Make one: spark.createDataFrame(...)."
        )


def _cores() -> int:
    """Return the cores of the cluster that is up, 1 if there is none."""
    cluster = OrcaContext.cluster()
    return 1 if cluster is None else cluster.num_nodes * (cluster.cores or 1)


def _refuse(jvalue: Any) -> None:
    if jvalue is not None:
        raise ArgumentError("no stage lives in a JVM here: leave jvalue out, and pass the model itself.")


def torch_of(thing: Any) -> Any:
    """Return a model or a criterion as torch knows it."""
    return thing.to_torch() if hasattr(thing, "to_torch") else thing


def loss_of(criterion: Any) -> Any:
    """Return a criterion as torch calls losses: a function gets several outputs, and several labels, as lists."""
    is_function = inspect.isfunction(criterion) and len(inspect.signature(criterion).parameters) == 2
    return torch_of(TorchLoss.from_pytorch(criterion) if is_function else criterion)


def trained(model: Any, net: nn.Module) -> Any:
    """Return a trained module as the kind of object that the model is."""
    if isinstance(model, TorchModel):
        return TorchModel(net)
    if isinstance(model, nn.Module):
        return net
    answer = copy.deepcopy(model)
    answer.to_torch().load_state_dict(net.state_dict())
    return answer


def _score(line: Mapping[str, Any]) -> float | None:
    """Return the first metric of an epoch's validation that is a number."""
    metrics = {name: value for name, value in line.items() if name.startswith("val_")}
    scores = [metrics[name] for name in metrics if name not in ("val_loss", "val_num_samples")]
    return next((score for score in scores if isinstance(score, float | int)), None)


def _flat(kind: Any, column: Any) -> Any:
    """Return an output of any shape as an array of floats."""
    if not isinstance(kind, ArrayType):
        return F.array(column.cast("float"))
    while isinstance(kind.elementType, ArrayType):
        column, kind = F.flatten(column), kind.elementType
    return column.cast("array<float>")
