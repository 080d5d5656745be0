"""NNFrames on Spark: fit and transform against a plain loop, params and pipelines, what is refused and how."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyspark")

from torch import nn  # noqa: E402

from orca.errors import ArgumentError, DataError, WorkerFailed  # noqa: E402
from orca.triggers import EveryEpoch, MaxIteration, MinLoss, SeveralIteration  # noqa: E402
from orca_classic.bigdl.criterion import ClassNLLCriterion  # noqa: E402
from orca_classic.bigdl.feature.preprocessing import ChainedPreprocessing, FeatureLabelPreprocessing, SeqToTensor  # noqa: E402
from orca_classic.bigdl.layers import Linear, LogSoftMax, ReLU, Sequential  # noqa: E402
from orca_classic.bigdl.optimizer import TrainSummary, ValidationSummary  # noqa: E402
from orca_classic.bigdl.optimizers import SGD, Adam, OptimMethod  # noqa: E402
from orca_classic.bigdl.validation import MAE, Top1Accuracy  # noqa: E402
from orca_classic.nnframes import NNClassifier, NNClassifierModel, NNEstimator, NNModel  # noqa: E402
from orca_classic.nnframes.wrappers import TorchLoss, TorchModel, TorchOptim  # noqa: E402
from zoo.orca.learn.utils import find_latest_checkpoint  # noqa: E402

DRAW = np.random.default_rng(7)
X = DRAW.normal(size=(23, 4)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5, 0.0], np.float32) + 0.3).astype(np.float32)
KIND = X[:, :3].argmax(1)


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    """Yield a DataFrame: features as an array and as a vector, a number, a class from 0 and from 1."""
    from pyspark.ml.functions import array_to_vector

    data = [(i, X[i].tolist(), float(Y[i]), float(KIND[i]), float(KIND[i] + 1)) for i in range(len(X))]
    schema = "number int, features array<float>, label double, kind double, kind1 double"
    frame = spark.createDataFrame(data, schema).repartition(5)  # uneven partitions
    frame = frame.withColumn("vector", array_to_vector(frame.features)).cache()
    yield frame
    frame.unpersist()


def seeded(make: Callable[[], nn.Module], seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def plain(net: nn.Module, optimizer: Any, loss: Any, x: Any, y: Any, steps: int) -> nn.Module:
    """Train on all rows a step, which no order of the rows changes."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    return net


def predictions(frame: Any, column: str = "prediction") -> np.ndarray:
    return np.array([row[column] for row in sorted(frame.collect(), key=lambda row: row.number)])


def answers(net: nn.Module, x: np.ndarray = X) -> np.ndarray:
    with torch.no_grad():
        return net(torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("column", ["features", "vector"])
def test_estimator_learns_what_a_plain_loop_learns(rows: Any, column: str) -> None:
    net = seeded(lambda: nn.Linear(4, 1))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    estimator = NNEstimator(net, nn.MSELoss()).setFeaturesCol(column).setBatchSize(23).setMaxEpoch(4)
    estimator.setOptimMethod(Adam(0.1))
    model = estimator.fit(rows)
    alone = seeded(lambda: nn.Linear(4, 1))
    plain(alone, Adam(0.1)(alone), nn.MSELoss(), X, Y[:, None], 4)
    got = model.transform(rows)
    assert got.columns == [*rows.columns, "prediction"]
    assert got.schema["prediction"].dataType.simpleString() == "array<float>"
    np.testing.assert_allclose(predictions(got), answers(alone), rtol=1e-4, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())  # fit leaves it alone
    np.testing.assert_allclose(answers(model.model), answers(alone), rtol=1e-4, atol=1e-6)


def test_params_set_by_spark_s_own_verb_are_the_objects_themselves() -> None:
    stage = NNEstimator(nn.Linear(4, 1), nn.MSELoss())
    method = Adam(0.1)
    stage.set(stage.optimMethod, method)
    assert stage.getOptimMethod() is method and stage.extractParamMap()[stage.optimMethod] is method


def test_rate_that_was_set_reaches_every_kind_of_optimizer(rows: Any) -> None:
    net = seeded(lambda: nn.Linear(4, 1))
    given = torch.optim.SGD([{"params": [net.weight], "momentum": 0.5}, {"params": [net.bias], "lr": 0.01}], lr=1e-9)
    for optimizer in (TorchOptim.from_pytorch(given), given):
        estimator = NNEstimator(TorchModel.from_pytorch(net), TorchLoss.from_pytorch(nn.MSELoss))
        estimator.setBatchSize(23).setMaxEpoch(3).setOptimMethod(optimizer).setLearningRate(0.1)
        alone = seeded(lambda: nn.Linear(4, 1))
        groups = [{"params": [alone.weight], "lr": 0.1, "momentum": 0.5}, {"params": [alone.bias], "lr": 0.01}]
        plain(alone, torch.optim.SGD(groups, lr=0.1), nn.MSELoss(), X, Y[:, None], 3)
        trained = estimator.fit(rows).model.to_pytorch()
        np.testing.assert_allclose(trained.weight.detach(), alone.weight.detach(), rtol=1e-5)
        np.testing.assert_allclose(trained.bias.detach(), alone.bias.detach(), rtol=1e-5)
    assert given.param_groups[0]["lr"] == 1e-9  # the user's own stays as it was


def test_classes_count_from_0_for_losses_of_torch_and_from_1_for_criterions(rows: Any) -> None:
    net = seeded(lambda: nn.Linear(4, 3))
    torchs = NNClassifier(net, nn.CrossEntropyLoss()).setLabelCol("kind").setBatchSize(23).setMaxEpoch(30)
    zero = torchs.setOptimMethod(Adam(0.1)).fit(rows)
    layer = Sequential().add(Linear(4, 3)).add(LogSoftMax())
    layer.set_weights([net.weight.detach().numpy(), net.bias.detach().numpy()])
    bigdls = NNClassifier(layer, ClassNLLCriterion(), [4]).setLabelCol("kind1").setBatchSize(23).setMaxEpoch(30)
    one = bigdls.setOptimMethod(Adam(0.1)).fit(rows)
    from_zero, from_one = predictions(zero.transform(rows)), predictions(one.transform(rows))
    assert (from_zero == KIND).mean() > 0.8
    np.testing.assert_array_equal(from_zero + 1, from_one)
    assert zero.transform(rows).schema["prediction"].dataType.simpleString() == "double"


def test_threshold_decides_between_the_classes_of_one_output(rows: Any) -> None:
    net = nn.Sequential(seeded(lambda: nn.Linear(4, 1)), nn.Sigmoid())
    model = NNClassifierModel(net)
    scores = answers(net)[:, 0]
    assert model.getThreshold() == 0.5
    for threshold in (0.5, 0.3):
        got = predictions(model.setThreshold(threshold).transform(rows))
        np.testing.assert_array_equal(got, (scores > threshold).astype(float))
    with pytest.raises(Exception, match="a threshold is for a model with one output, and this one has several"):
        NNClassifierModel(nn.Linear(4, 3)).setThreshold(0.1).transform(rows).collect()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(1, 2), nn.Linear(3, 2)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.left(one), self.right(other)


def both(outputs: Any, labels: Any) -> torch.Tensor:
    first, second = (nn.functional.mse_loss(output, label) for output, label in zip(outputs, labels, strict=True))
    return first + 0.4 * second


def test_sizes_make_several_inputs_and_several_labels(rows: Any) -> None:
    net = seeded(TwoInputs)
    estimator = NNEstimator(net, TorchLoss.from_pytorch(both), [[1], [3]], [[2], [2]]).setLabelCol("features")
    model = estimator.setBatchSize(23).setMaxEpoch(3).setOptimMethod(SGD(0.1)).fit(rows)
    alone = seeded(TwoInputs)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    x, y = torch.from_numpy(X), torch.from_numpy(X)
    for _ in range(3):
        optimizer.zero_grad()
        both(alone(x[:, :1], x[:, 1:]), (y[:, :2], y[:, 2:])).backward()
        optimizer.step()
    got = model.transform(rows)
    assert got.schema["prediction"].dataType.simpleString() == "array<array<float>>"
    with torch.no_grad():
        expected = np.stack([part.numpy() for part in alone(x[:, :1], x[:, 1:])], axis=1)
    np.testing.assert_allclose(predictions(got), expected, rtol=1e-4, atol=1e-6)


def test_numbers_are_tensors_of_one_and_chains_reshape(rows: Any) -> None:
    net = seeded(lambda: nn.Linear(1, 1))
    model = NNModel(net).setFeaturesCol("number").setPredictionCol("guess")
    expected = answers(net, np.arange(23, dtype=np.float32)[:, None])
    np.testing.assert_allclose(predictions(model.transform(rows), "guess"), expected, rtol=1e-5)
    square = nn.Sequential(nn.Conv1d(2, 1, 2), nn.Flatten())
    chain = ChainedPreprocessing([SeqToTensor([2, 2])])
    for stage in (NNModel(square, chain), NNModel(square).setSamplePreprocessing([2, 2])):
        expected = answers(square, X.reshape(-1, 2, 2))
        np.testing.assert_allclose(predictions(stage.transform(rows)), expected, rtol=1e-5, atol=1e-6)


def test_labels_are_preprocessed_too(rows: Any) -> None:
    pair = FeatureLabelPreprocessing(SeqToTensor([4]), SeqToTensor([2, 2]))
    net = nn.Sequential(seeded(lambda: nn.Linear(4, 4)), nn.Unflatten(1, (2, 2)))
    estimator = NNEstimator(net, nn.MSELoss()).setLabelCol("vector").setSamplePreprocessing(pair).setBatchSize(23)
    model = estimator.setMaxEpoch(2).setOptimMethod(SGD(0.5)).fit(rows)
    alone = nn.Sequential(seeded(lambda: nn.Linear(4, 4)), nn.Unflatten(1, (2, 2)))
    plain(alone, torch.optim.SGD(alone.parameters(), 0.5), nn.MSELoss(), X, X.reshape(-1, 2, 2), 2)
    np.testing.assert_allclose(predictions(model.transform(rows)), answers(alone).reshape(-1, 4), rtol=1e-4, atol=1e-6)


def test_models_may_be_made_on_the_workers(rows: Any) -> None:
    made = TorchModel.from_pytorch(lambda: nn.Linear(4, 1))
    model = NNEstimator(made, nn.MSELoss()).setBatchSize(23).setMaxEpoch(1).fit(rows)
    assert isinstance(model.model, TorchModel)
    np.testing.assert_allclose(predictions(model.transform(rows)), answers(model.model.to_pytorch()), rtol=1e-5)


def test_validation_summaries_checkpoints_and_triggers(rows: Any, tmp_path: Path) -> None:
    from orca import Estimator

    train, valid = TrainSummary(str(tmp_path), "run"), ValidationSummary(str(tmp_path), "run")
    estimator = NNEstimator(seeded(lambda: nn.Linear(4, 1)), nn.MSELoss()).setBatchSize(8).setOptimMethod(SGD(0.05))
    estimator.setValidation(SeveralIteration(5), rows, ["mae"], 8).setTrainSummary(train).setValidationSummary(valid)
    estimator.setCheckpoint(str(tmp_path / "kept"), EveryEpoch()).setEndWhen(MaxIteration(11))
    estimator.setGradientClippingByL2Norm(0.5).setLearningRateDecay(0.5)
    model = estimator.fit(rows)
    assert estimator.getValidation()[1] is rows and estimator.getCheckpoint()[2] is True
    assert len(train.read_scalar("Loss")) == 11  # 3 steps an epoch
    rates = train.read_scalar("LearningRate")[:, 1]
    np.testing.assert_allclose(rates, [0.05 / (1 + 0.5 * step) for step in range(11)], rtol=1e-5)
    assert valid.read_scalar("mae")[:, 0].tolist() == [5, 10]  # mid-epoch
    assert model.state.steps == 11
    kept = Estimator.latest_checkpoint(str(tmp_path / "kept"))
    assert kept is not None and re.search(r"kept/\d{4}(-\d\d){2}_\d\d(-\d\d){2}/model.11$", kept)
    folder, prefix, version = find_latest_checkpoint(str(tmp_path / "kept"), "bigdl")
    assert (f"{folder}/{prefix}.{version}", sorted(os.listdir(folder))) == (kept, ["model.11", "optimMethod-SGD.11"])
    assert OptimMethod.load(f"{folder}/optimMethod-SGD.11") == SGD(0.05, 0.5)
    again = Estimator.from_torch(model=nn.Linear(4, 1), optimizer=SGD(0.05), loss=nn.MSELoss(), backend="bigdl")
    for where in ((folder, version, prefix), (folder, version, "optimMethod-SGD"), (str(tmp_path / "kept"),)):
        assert again.load_orca_checkpoint(*where).get_state_dict()["steps"] == 11
    weights = again.get_model().state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in model.model.state_dict().items())
    assert estimator.clearGradientClipping().getOrDefault("clipping") is None


def test_end_by_loss_and_validation_methods_of_bigdl(rows: Any, tmp_path: Path) -> None:
    layer = Sequential().add(Linear(4, 8)).add(ReLU()).add(Linear(8, 3)).add(LogSoftMax())
    summary = ValidationSummary(str(tmp_path), "run")
    classifier = NNClassifier(layer, ClassNLLCriterion()).setLabelCol("kind1").setBatchSize(23)
    classifier.setOptimMethod(Adam(0.05)).setEndWhen(MinLoss(0.4)).setValidationSummary(summary)
    classifier.setValidation(EveryEpoch(), rows, [Top1Accuracy()], 23).fit(rows)
    scores = summary.read_scalar("Top1Accuracy")
    assert 3 < len(scores) < 400 and scores[-1, 1] > 0.8
    assert summary.read_scalar("Loss")[-1, 1] < 0.4 <= summary.read_scalar("Loss")[-2, 1]


def test_stage_has_params_and_copies_of_its_own(rows: Any) -> None:
    estimator = NNEstimator(seeded(lambda: nn.Linear(4, 1)), nn.MSELoss()).setBatchSize(23).setOptimMethod(SGD(0.1))
    other = estimator.copy({estimator.maxEpoch: 2})
    assert (estimator.getMaxEpoch(), other.getMaxEpoch(), other.uid) == (50, 2, estimator.uid)
    assert {param.name for param in estimator.extractParamMap()} >= {"batchSize", "learningRate", "featuresCol"}
    assert "batchSize" in estimator.explainParams()
    models = estimator.fit(rows, [{estimator.maxEpoch: 1}, {estimator.maxEpoch: 3}])
    assert [model.state.epoch for model in models] == [1, 3]
    assert models[0].copy().getPredictionCol() == "prediction"


@pytest.mark.full
def test_stages_work_in_pipelines_and_searches(rows: Any) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.feature import SQLTransformer, StandardScaler
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit

    scaler = StandardScaler(inputCol="vector", outputCol="scaled", withMean=True)
    estimator = NNEstimator(seeded(lambda: nn.Linear(4, 1)), nn.MSELoss()).setFeaturesCol("scaled").setBatchSize(23)
    estimator.setOptimMethod(SGD(0.1)).setPredictionCol("out")
    pipeline = Pipeline(
        stages=[scaler, estimator, SQLTransformer(statement="SELECT *, out[0] AS prediction FROM __THIS__")]
    )
    grid = ParamGridBuilder().addGrid(estimator.maxEpoch, [1, 25]).build()
    evaluator = RegressionEvaluator(labelCol="label")
    frame = rows.select("number", "vector", "label")
    crossed = CrossValidator(estimator=pipeline, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=1)
    crossed = crossed.fit(frame)
    assert crossed.avgMetrics[1] < crossed.avgMetrics[0]
    assert crossed.bestModel.stages[1].state.epoch == 25
    split = TrainValidationSplit(estimator=pipeline, estimatorParamMaps=grid, evaluator=evaluator, seed=1).fit(frame)
    assert split.validationMetrics[1] < split.validationMetrics[0]


def test_transform_is_lazy_and_leaves_columns_as_they_are(rows: Any, spark: Any) -> None:
    odd = rows.select("number", "features", rows.label.alias("a.b"), rows.label.alias("A B"))
    net = seeded(lambda: nn.Linear(4, 1))
    model = NNEstimator(net, nn.MSELoss()).setBatchSize(23).setMaxEpoch(1).setLabelCol("a.b").fit(odd)
    got = model.transform(odd.where("1 = 0"))
    assert got.columns == ["number", "features", "a.b", "A B", "prediction"] and got.collect() == []
    wrong = odd.selectExpr("number", "array(1.0f) as features")
    lazily = model.transform(wrong)  # rows of another size are found when they are read
    with pytest.raises(Exception, match="mat1 and mat2 shapes cannot be multiplied"):
        lazily.collect()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["if(number % 2 = 0, null, features) as features", "label"], "'features'"),
        (["features", "if(number % 3 = 0, null, label) as label"], "'label'"),
        (["if(number % 2 = 0, null, vector) as features", "label"], "'features'"),
    ],
)
def test_nulls_are_named_with_their_column(rows: Any, change: list[str], words: str) -> None:
    holes = rows.selectExpr("number", *change)
    with pytest.raises(WorkerFailed, match=rf"column {words} holds \d+ null\(s\) in .* a model"):
        NNEstimator(nn.Linear(4, 1), nn.MSELoss()).setMaxEpoch(1).fit(holes)
    if words == "'features'":
        # It looks at rows at once.
        with pytest.raises(DataError, match=rf"column {words} holds \d+ null\(s\) in .* a model"):
            NNModel(nn.Linear(4, 1)).transform(holes.orderBy("number"))
        fitted = NNEstimator(nn.Linear(4, 1), nn.MSELoss()).setMaxEpoch(1).fit(rows)
        with pytest.raises(Exception, match=rf"column {words} holds \d+ null\(s\) in the rows"):
            fitted.transform(holes.coalesce(1)).collect()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda df: NNEstimator("net", nn.MSELoss()), "TorchModel wraps a torch.nn.Module, a class"),
        (lambda df: NNEstimator(nn.Linear(4, 1), nn.MSELoss()).fit([1, 2]), "fit takes a Spark DataFrame; got list"),
        (
            lambda df: NNModel(nn.Linear(4, 1)).transform({"features": [1]}),
            "transform takes a Spark DataFrame; got dict",
        ),
        (
            lambda df: NNClassifier(nn.Linear(4, 3), nn.CrossEntropyLoss()).setLabelCol("features").fit(df),
            "labels of a classifier are numbers; the column 'features' is array<float>. Use NNEstimator",
        ),
        (
            lambda df: NNEstimator(nn.Linear(4, 1), nn.MSELoss()).setOptimMethod(torch.optim.Adam).fit(df),
            r"got the class Adam. Pass Adam\(model.parameters\(\)\)",
        ),
        (lambda df: NNModel(nn.Linear(4, 1), jvalue=object()), "no stage lives in a JVM here: leave jvalue out"),
        (lambda df: NNEstimator(nn.Linear(4, 1), nn.MSELoss(), "4"), "feature_preprocessing must be a Preprocessing"),
        (lambda df: NNModel(nn.Linear(4, 1)).transform(df.withColumn("prediction", df.label)), "setPredictionCol"),
        (lambda df: NNModel(nn.Linear(4, 1)).setFeaturesCol("feature").transform(df), "Did you mean 'features'"),
        (lambda df: NNEstimator(nn.Linear(4, 1), nn.MSELoss()).setDataCacheLevel("TAPE"), "DRAM, PMEM, DISK_AND_DRAM"),
        (lambda df: NNEstimator(nn.Linear(4, 1), nn.MSELoss()).setEndWhen(5), "a trigger must come from orca.triggers"),
        (
            lambda df: NNEstimator(nn.Linear(4, 1), nn.MSELoss()).setOptimMethod(len).setLearningRate(0.1).fit(df),
            "setLearningRate cannot reach the optimizer",
        ),
        (
            lambda df: NNModel(nn.Linear(4, 1), [3]).transform(df),
            "makes tensors of 3 numbers; got rows of 4",
        ),
    ],
)
def test_wrong_settings_are_refused_in_words(rows: Any, act: Callable[[Any], Any], words: str) -> None:
    with pytest.raises((ArgumentError, DataError, Exception), match=words) as caught:
        act(rows)
    assert not isinstance(caught.value, AttributeError | NameError)


def test_function_of_two_arguments_gets_several_outputs_as_a_list(rows: Any) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 1)

        def forward(self, x: Any) -> Any:
            return self.one(x), self.one(x) * 2

    def loss(outputs: Any, label: Any) -> Any:
        first, second = outputs
        return ((first - label) ** 2 + (second - label) ** 2).mean()

    weights = []
    for criterion in (loss, TorchLoss.from_pytorch(loss)):
        estimator = NNEstimator(seeded(Two), criterion).setBatchSize(23).setMaxEpoch(2).setOptimMethod(SGD(0.05))
        weights.append(estimator.fit(rows).model.one.weight)
    net = seeded(Two)
    plain(net, torch.optim.SGD(net.parameters(), lr=0.05), loss, X, Y[:, None], 2)
    for weight in weights:
        np.testing.assert_allclose(weight.detach().numpy(), net.one.weight.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_model_predicts_four_rows_for_each_core_at_a_time(spark: Any) -> None:
    assert NNModel(nn.Linear(4, 1)).getBatchSize() == 4 * spark.sparkContext.defaultParallelism


def test_loss_that_is_not_finite_names_no_argument_of_a_stage(rows: Any) -> None:
    estimator = NNEstimator(nn.Linear(4, 1), nn.MSELoss()).setMaxEpoch(30).setOptimMethod(SGD(1e9))
    with pytest.raises(WorkerFailed, match="the loss became .*or clip gradients. A fit that takes on_nan= goes on"):
        estimator.fit(rows)


def test_first_epoch_of_one_step_has_no_validation_in_the_summary(rows: Any, tmp_path: Path) -> None:
    train, valid = TrainSummary(str(tmp_path), "run"), ValidationSummary(str(tmp_path), "run")
    estimator = NNEstimator(nn.Linear(4, 1), nn.MSELoss()).setBatchSize(23).setMaxEpoch(5)
    estimator.setTrainSummary(train).setValidationSummary(valid)
    estimator.setValidation(EveryEpoch(), rows, [MAE()], 23).fit(rows)
    assert len(train.read_scalar("LearningRate")) == 5 and len(valid.read_scalar("MAE")) == 4
    estimator.setBatchSize(12).fit(rows)
    assert len(valid.read_scalar("MAE")) == 5
