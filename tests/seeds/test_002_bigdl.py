"""Seed 002, section 5: a BigDL model on a DataFrame and on XShards; LeNet on MNIST itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seeds.mnist import FOLDER, needed

pytest.importorskip("torch")


@pytest.mark.slow
def test_linear_model_learns_from_a_dataframe_and_answers(spark: Any, tmp_path: Path) -> None:
    from bigdl.nn.criterion import MSECriterion
    from bigdl.nn.layer import Linear, Sequential
    from bigdl.optim.optimizer import Adam
    from zoo.orca.learn.bigdl import Estimator

    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 2))
    rows = [([float(n) for n in row], [float(row.sum()), float(row[0])]) for row in x]
    spark.createDataFrame(rows, "features array<double>, label array<double>").write.parquet(str(tmp_path / "data"))
    df = spark.read.parquet(str(tmp_path / "data"))

    linear_model = Sequential().add(Linear(2, 2))
    est = Estimator.from_bigdl(model=linear_model, loss=MSECriterion(), optimizer=Adam(learningrate=0.1))
    assert est.fit(df, 20, batch_size=30) is est
    answers = est.predict(df).select("features", "prediction").collect()
    for row in answers:
        np.testing.assert_allclose(row["prediction"], [sum(row["features"]), row["features"][0]], atol=0.3)

    from bigdl.util.common import Sample

    rdd = spark.sparkContext.parallelize([Sample.from_ndarray(row, np.array([row.sum(), row[0]])) for row in x], 3)
    trained = est.get_model()
    from bigdl.optim.optimizer import MAE

    (error,) = trained.evaluate(rdd, 10, [MAE()])
    assert error.total_num == 90 and error.result < 0.3
    answers = np.stack(trained.predict(rdd).collect())
    np.testing.assert_allclose(answers, trained.predict(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_pipeline_of_a_keras_style_model_and_a_criterion_tells_classes_from_1(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import StringIndexer, VectorAssembler

    from bigdl.dllib.keras.layers import Dense, Input
    from bigdl.dllib.keras.models import Model
    from bigdl.nn.criterion import ClassNLLCriterion
    from bigdl.optim.optimizer import Adam, EveryEpoch, Top1Accuracy
    from zoo.pipeline.nnframes import NNClassifier, NNClassifierModel

    draw = np.random.default_rng(4)
    rows = [(float(a), float(b), "tall" if a > b else "wide") for a, b in draw.normal(size=(80, 2))]
    frame = spark.createDataFrame(rows, "height double, width double, kind string")
    indexer = StringIndexer(inputCol="kind", outputCol="index").fit(frame)
    frame = indexer.transform(frame).selectExpr("*", "index + 1 as label")
    start = Input(shape=(2,))
    model = Model(start, Dense(2, activation="softmax")(Dense(8, activation="relu")(start)))
    classifier = NNClassifier(model, ClassNLLCriterion(logProbAsInput=False), [2]).setBatchSize(20).setMaxEpoch(15)
    classifier.setOptimMethod(Adam(learningrate=0.05))
    assembler = VectorAssembler(inputCols=["height", "width"], outputCol="features")
    classifier.setValidation(EveryEpoch(), assembler.transform(frame), [Top1Accuracy()], 20)
    fitted = Pipeline(stages=[assembler, classifier]).fit(frame)
    answers = fitted.transform(frame).select("label", "prediction").collect()
    assert {row.prediction for row in answers} == {1.0, 2.0}
    assert np.mean([row.label == row.prediction for row in answers]) > 0.9
    fitted.stages[-1].save(str(tmp_path / "model"))
    again = NNClassifierModel.load(str(tmp_path / "model")).transform(assembler.transform(frame))
    assert [row.prediction for row in again.collect()] == [row.prediction for row in answers]


@pytest.mark.full
@pytest.mark.timeout(1200)
@needed
def test_lenet_reads_the_digits_of_mnist() -> None:
    from bigdl.dataset import mnist
    from bigdl.dataset.transformer import normalizer
    from bigdl.nn.criterion import ClassNLLCriterion
    from bigdl.optim.optimizer import Adam, LocalOptimizer, MaxEpoch, Top1Accuracy

    (images, labels), (others, truths) = mnist.load_data(str(FOLDER))
    images, others = (normalizer(each.reshape(-1, 28 * 28).astype("float32"), 33.3, 78.6) for each in (images, others))
    optimizer = LocalOptimizer(
        images, labels + 1.0, lenet(), ClassNLLCriterion(), MaxEpoch(2), 128, Adam(learningrate=0.002)
    )
    model = optimizer.optimize()
    (accuracy,) = model.evaluate(others, truths + 1.0, 500, [Top1Accuracy()])
    assert accuracy.total_num == 10000 and accuracy.result >= 0.97


def lenet() -> Any:
    from bigdl.nn.layer import Linear, LogSoftMax, Reshape, Sequential, SpatialConvolution, SpatialMaxPooling, Tanh

    model = Sequential()
    model.add(Reshape([1, 28, 28])).add(SpatialConvolution(1, 6, 5, 5)).add(Tanh()).add(SpatialMaxPooling(2, 2, 2, 2))
    model.add(Tanh()).add(SpatialConvolution(6, 12, 5, 5)).add(SpatialMaxPooling(2, 2, 2, 2)).add(Reshape([12 * 4 * 4]))
    return model.add(Linear(12 * 4 * 4, 100)).add(Tanh()).add(Linear(100, 10)).add(LogSoftMax())
