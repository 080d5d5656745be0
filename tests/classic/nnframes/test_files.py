"""Stages on disk: JSON and safetensors, read in a fresh process; what cannot be written, in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyspark")

from torch import nn  # noqa: E402

from orca.errors import ArgumentError  # noqa: E402
from orca.frameworks.torch.architecture import describe  # noqa: E402
from orca.storage.state import State  # noqa: E402
from orca.storage.states import save_state  # noqa: E402
from orca.triggers import EveryEpoch, MaxIteration, SeveralIteration  # noqa: E402
from orca_classic.bigdl.criterion import ClassNLLCriterion  # noqa: E402
from orca_classic.bigdl.feature.image import ImageMatToTensor, ImageResize, RowToImageFeature  # noqa: E402
from orca_classic.bigdl.feature.preprocessing import ChainedPreprocessing, SeqToTensor  # noqa: E402
from orca_classic.bigdl.layers import Linear, LogSoftMax, Sequential  # noqa: E402
from orca_classic.bigdl.optimizers import SGD  # noqa: E402
from orca_classic.bigdl.optimizers.schedules import Step  # noqa: E402
from orca_classic.nnframes import (  # noqa: E402
    NNClassifier,
    NNClassifierModel,
    NNEstimator,
    NNModel,
    files,
)
from orca_classic.nnframes.dlframes import DLClassifier, DLEstimator  # noqa: E402
from orca_classic.nnframes.wrappers import TorchLoss, TorchModel, TorchOptim  # noqa: E402
from programs import run_program  # noqa: E402

X = np.random.default_rng(5).normal(size=(9, 4)).astype(np.float32)


def frame_of(spark: Any) -> Any:
    from pyspark.ml.functions import array_to_vector

    rows = [(i, X[i].tolist(), float(X[i].argmax() % 3 + 1)) for i in range(len(X))]
    frame = spark.createDataFrame(rows, "number int, array array<float>, label double")
    return frame.withColumn("vector", array_to_vector(frame.array))


class Local(nn.Linear):
    """A class that other programs do not find: tests are not imported by name there."""

    def __init__(self) -> None:
        super().__init__(4, 1)


Local.__module__ = "__main__"


@pytest.mark.full
@pytest.mark.timeout(300)
def test_pipeline_model_answers_alike_in_a_fresh_process(
    spark: Any, tmp_path: Path, run_program: Callable[..., Any]
) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import StandardScaler

    layer = Sequential().add(Linear(4, 3)).add(LogSoftMax())
    stages = [
        StandardScaler(inputCol="vector", outputCol="features", withMean=True),
        NNClassifier(layer, ClassNLLCriterion(), [4]).setBatchSize(9).setMaxEpoch(2),
    ]
    frame = frame_of(spark)
    model = Pipeline(stages=stages).fit(frame)
    expected = {row.number: row.prediction for row in model.transform(frame).collect()}
    path = str(tmp_path / "pipeline")
    model.save(path)
    frame.write.parquet(str(tmp_path / "rows"))
    files = [file for file in (tmp_path / "pipeline").rglob("*") if file.is_file()]
    assert not [file.name for file in files if file.suffix in (".pkl", ".pt", ".pickle")]
    assert {"state.json", "weights.safetensors"} <= {file.name for file in files}
    program = run_program(
        f"""
        import json
        from pyspark.ml import PipelineModel
        from zoo.common.nncontext import init_spark_on_local
        from pyspark.sql import SparkSession
        init_spark_on_local(2)
        spark = SparkSession.builder.getOrCreate()
        model = PipelineModel.load({path!r})
        rows = model.transform(spark.read.parquet({str(tmp_path / "rows")!r})).collect()
        print("ANSWER", json.dumps({{row.number: row.prediction for row in rows}}))
        print(type(model.stages[1].model).__name__, model.stages[1].getFeaturesCol())
        """,
        timeout=200,
    ).stdout
    (line,) = [line for line in program.splitlines() if line.startswith("ANSWER")]
    assert {int(key): value for key, value in json.loads(line.removeprefix("ANSWER")).items()} == expected
    assert "Layer features" in program


def test_saved_stage_keeps_params_preprocessing_and_threshold(spark: Any, tmp_path: Path) -> None:
    chain = ChainedPreprocessing([RowToImageFeature(), ImageResize(4, 4), ImageMatToTensor(format="NHWC")])
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 1), nn.Sigmoid())
    stage = NNClassifierModel(net, chain).setFeaturesCol("image").setPredictionCol("guess").setThreshold(0.3)
    stage.write().overwrite().save(str(tmp_path / "stage"))
    stage.write().overwrite().save(str(tmp_path / "stage"))
    other = NNClassifierModel.load(str(tmp_path / "stage"))
    assert (other.getFeaturesCol(), other.getPredictionCol(), other.getThreshold()) == ("image", "guess", 0.3)
    assert other.getSamplePreprocessing() == ChainedPreprocessing(list(chain.transformers))
    assert other.uid == stage.uid and other.one_based is False
    assert all(torch.equal(a, b) for a, b in zip(other.model.parameters(), net.parameters(), strict=True))


def test_class_that_is_found_nowhere_is_refused_and_may_be_given(spark: Any, tmp_path: Path) -> None:
    stage = NNModel(Local())
    with pytest.raises(ArgumentError, match="needs Local, which is defined in the program itself or in a function"):
        stage.save(str(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()  # nothing is left half-written
    whole = NNModel(nn.Linear(4, 1))
    whole.save(str(tmp_path / "stage"))
    other = NNModel.load(str(tmp_path / "stage"), model=Local())
    np.testing.assert_array_equal(other.model.weight.detach(), whole.model.weight.detach())


def rates_of(stage: Any, frame: Any) -> list[Any]:
    """Return the weights that a fit of a stage gives."""
    return [param.detach() for param in stage.fit(frame).model.to_pytorch().parameters()]


def test_unfitted_estimator_is_saved_with_all_that_was_set(spark: Any, tmp_path: Path) -> None:
    frame = frame_of(spark)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    optimizer = torch.optim.Adam([{"params": net[0].parameters(), "lr": 0.1}, {"params": net[1].parameters()}], lr=0.01)
    stage = NNEstimator(TorchModel.from_pytorch(net), TorchLoss.from_pytorch(nn.MSELoss()), [4], [1])
    stage.setOptimMethod(TorchOptim.from_pytorch(optimizer)).setLearningRate(0.05).setBatchSize(9)
    stage.setFeaturesCol("array").setValidation(EveryEpoch(), frame, ["mae"], 4).setEndWhen(MaxIteration(3))
    stage.setCheckpoint(str(tmp_path / "kept"), SeveralIteration(2), False).setConstantGradientClipping(-0.2, 0.2)
    stage.save(str(tmp_path / "stage"))
    files = {file.name for file in (tmp_path / "stage").rglob("*") if file.is_file() and not file.name.startswith(".")}
    assert not [name for name in files if name.endswith((".pkl", ".pt", ".pickle"))]
    other = NNEstimator.load(str(tmp_path / "stage"))
    assert type(other) is NNEstimator and other.uid == stage.uid
    assert {p.name for p in other._paramMap} == {p.name for p in stage._paramMap}
    for name in ("featuresCol", "batchSize", "learningRate", "endWhen", "clipping", "checkpoint"):
        assert other.getOrDefault(name) == stage.getOrDefault(name)
    trigger, rows, methods, size = other.getValidation()
    assert (
        (trigger, methods, size) == (EveryEpoch(), ["mae"], 4) and rows.count() == 9 and rows.columns == frame.columns
    )
    assert other.label_preprocessing == stage.label_preprocessing
    for one, two in zip(rates_of(stage, frame), rates_of(other, frame), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def unfitted() -> NNClassifier:
    layer = Sequential().add(Linear(4, 3)).add(LogSoftMax())
    stage = NNClassifier(layer, ClassNLLCriterion(), [4]).setFeaturesCol("vector").setBatchSize(9)
    return stage.setOptimMethod(SGD(0.1, momentum=0.5))


def test_pipelines_of_unfitted_stages_are_saved(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline

    frame, pipeline = frame_of(spark), Pipeline(stages=[unfitted()])
    pipeline.save(str(tmp_path / "pipeline"))
    answers = [
        [row.prediction for row in each.fit(frame).transform(frame).orderBy("number").collect()]
        for each in (pipeline, Pipeline.load(str(tmp_path / "pipeline")))
    ]
    assert answers[0] == answers[1]


@pytest.mark.full
def test_searches_of_unfitted_stages_are_saved(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.tuning import (
        CrossValidator,
        CrossValidatorModel,
        ParamGridBuilder,
        TrainValidationSplit,
        TrainValidationSplitModel,
    )

    frame, stage = frame_of(spark), unfitted()
    pipeline = Pipeline(stages=[stage])
    grid = ParamGridBuilder().addGrid(stage.maxEpoch, [1, 2]).addGrid(stage.learningRate, [0.1]).build()
    evaluator = MulticlassClassificationEvaluator()
    search = CrossValidator(estimator=pipeline, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=0)
    search.save(str(tmp_path / "search"))
    fitted = CrossValidator.load(str(tmp_path / "search")).fit(frame)
    fitted.save(str(tmp_path / "searched"))
    read = CrossValidatorModel.load(str(tmp_path / "searched"))
    assert read.avgMetrics == fitted.avgMetrics
    assert read.transform(frame).orderBy("number").collect() == fitted.transform(frame).orderBy("number").collect()
    assert [sorted((p.name, v) for p, v in each.items()) for each in read.getEstimatorParamMaps()] == [
        [("learningRate", 0.1), ("maxEpoch", 1)],
        [("learningRate", 0.1), ("maxEpoch", 2)],
    ]
    split = TrainValidationSplit(estimator=pipeline, estimatorParamMaps=grid, evaluator=evaluator, seed=0).fit(frame)
    split.save(str(tmp_path / "split"))
    assert TrainValidationSplitModel.load(str(tmp_path / "split")).validationMetrics == split.validationMetrics


@pytest.mark.full
def test_grids_of_optim_methods_and_preprocessing_are_saved(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit, TrainValidationSplitModel

    frame = frame_of(spark)
    net = nn.Sequential(nn.Linear(4, 3))
    stage = NNClassifier(net, nn.CrossEntropyLoss()).setFeaturesCol("vector").setBatchSize(9).setMaxEpoch(2)
    torch_optim = TorchOptim.from_pytorch(torch.optim.Adam(net.parameters(), lr=0.3))
    methods, sizes = [SGD(0.5, learningrate_schedule=Step(1, 0.5)), torch_optim], [SeqToTensor([4])]
    grid = ParamGridBuilder().addGrid(stage.optimMethod, methods).addGrid(stage.samplePreprocessing, sizes).build()
    labelled = frame.withColumn("label", frame.label - 1)
    search = TrainValidationSplit(
        estimator=Pipeline(stages=[stage]), estimatorParamMaps=grid, evaluator=MulticlassClassificationEvaluator(),
        seed=0, parallelism=1,
    )  # fmt: skip
    search.save(str(tmp_path / "search"))
    read = TrainValidationSplit.load(str(tmp_path / "search"))
    assert read.getEstimatorParamMaps()[0][stage.optimMethod].value == methods[0]
    fitted = read.fit(labelled)
    assert fitted.validationMetrics == search.fit(labelled).validationMetrics
    fitted.save(str(tmp_path / "searched"))
    assert TrainValidationSplitModel.load(str(tmp_path / "searched")).validationMetrics == fitted.validationMetrics
    assert not [file.name for file in tmp_path.rglob("*") if file.suffix in (".pkl", ".pt", ".pickle")]
    copied = stage.copy(grid[0])
    assert copied.getOptimMethod() is methods[0] and copied.extractParamMap()[copied.samplePreprocessing] is sizes[0]


def test_models_made_on_workers_and_older_stages_are_saved_by_name(spark: Any, tmp_path: Path) -> None:
    stage = NNEstimator(TorchModel.from_pytorch(nn.Identity), nn.MSELoss())
    stage.save(str(tmp_path / "stage"))
    assert NNEstimator.load(str(tmp_path / "stage")).model.source is nn.Identity
    given = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.1), 1, 0.5)
    stage.setOptimMethod(given).write().overwrite().save(str(tmp_path / "stage"))
    method = NNEstimator.load(str(tmp_path / "stage")).getOptimMethod()
    assert method.torch_scheduler.optimizer is method.optimizer and method.torch_scheduler.gamma == 0.5
    older = DLEstimator(Linear(4, 2), ClassNLLCriterion(), [4], [1])
    older.save(str(tmp_path / "older"))
    read = DLEstimator.load(str(tmp_path / "older"))
    assert (type(read), read.label_preprocessing) == (DLEstimator, older.label_preprocessing)
    np.testing.assert_array_equal(read.model.get_weights()[0], older.model.get_weights()[0])
    DLClassifier(Linear(4, 2), ClassNLLCriterion(), [4]).save(str(tmp_path / "classifier"))
    assert isinstance(DLClassifier.load(str(tmp_path / "classifier")).criterion, ClassNLLCriterion)


def test_estimator_with_code_of_the_program_itself_is_refused(spark: Any, tmp_path: Path) -> None:
    stage = NNEstimator(nn.Linear(4, 1), TorchLoss.from_pytorch(lambda output, label: output.sum()))
    with pytest.raises(ArgumentError, match="criterion needs .*<lambda>.*Put it into a module of its own"):
        stage.save(str(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()
    with pytest.raises(ArgumentError, match="the model needs .*<lambda>, which is defined in the program itself"):
        NNEstimator(TorchModel.from_pytorch(lambda: Local()), nn.MSELoss()).save(str(tmp_path / "refused"))
    NNEstimator(nn.Linear(4, 1), nn.MSELoss()).save(str(tmp_path / "stage"))
    other = NNEstimator.load(str(tmp_path / "stage"), criterion=stage.criterion)
    assert other.criterion is stage.criterion


def test_overwriting_loses_nothing(spark: Any, tmp_path: Path) -> None:
    path, frame = str(tmp_path / "stage"), frame_of(spark)
    NNEstimator(nn.Linear(4, 1), nn.MSELoss()).setValidation(EveryEpoch(), frame, "mae", 4).save(path)
    NNEstimator.load(path).setMaxEpoch(3).write().overwrite().save(path)  # its rows lie in what is replaced
    refused = NNEstimator(nn.Linear(4, 1), TorchLoss.from_pytorch(lambda output, label: output.sum()))
    with pytest.raises(ArgumentError, match="criterion needs"):
        refused.write().overwrite().save(path)
    read = NNEstimator.load(path)
    assert (read.getMaxEpoch(), read.getValidation()[1].count()) == (3, len(X))


@pytest.mark.parametrize("kind", [NNModel, NNClassifier])
def test_a_stage_of_another_class_is_told(kind: Any, spark: Any, tmp_path: Path) -> None:
    NNEstimator(nn.Linear(4, 1), nn.MSELoss()).save(str(tmp_path / "stage"))
    words = f"holds a NNEstimator, not a {kind.__name__}. Load it with NNEstimator.load"
    with pytest.raises(ArgumentError, match=words):
        kind.load(str(tmp_path / "stage"))


def test_a_stage_of_an_older_release_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.DefaultParamsReader, "loadMetadata", lambda *place: {"uid": "older"})
    module = nn.Linear(4, 1)
    payload = {"models": [module.state_dict()], "architecture": describe(module)}
    save_state(State(payload=payload), str(tmp_path / "module"), "torch")
    with pytest.raises(ArgumentError, match="without the settings of a stage: it was saved by an older release"):
        NNModel.read().session(object()).load(str(tmp_path))


def test_class_of_the_program_itself_is_found_where_it_is_defined(tmp_path: Path) -> None:
    program = """
        import sys, torch
        from zoo.pipeline.api.torch import TorchModel

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 1)

            def forward(self, x):
                return self.layer(x)

        if sys.argv[2] == "save":
            TorchModel.from_pytorch(Net()).saveModel(sys.argv[1])
        print(TorchModel.loadModel(sys.argv[1]).to_pytorch().layer.weight.tolist())
    """
    path = str(tmp_path / "model")
    saved, loaded = (run_program(program, args=[path, act]).stdout for act in ("save", "load"))
    assert saved == loaded != ""
    with pytest.raises(ArgumentError, match="needs __main__.Net, which cannot be imported here.*load.path, model=..."):
        TorchModel.loadModel(path)
