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

from orca.bigdl.criterion import ClassNLLCriterion  # noqa: E402
from orca.bigdl.layers import Linear, LogSoftMax, Sequential  # noqa: E402
from orca.errors import ArgumentError  # noqa: E402
from orca.feature.image import ImageMatToTensor, ImageResize, RowToImageFeature  # noqa: E402
from orca.feature.preprocessing import ChainedPreprocessing  # noqa: E402
from orca.nnframes import NNClassifier, NNClassifierModel, NNModel  # noqa: E402

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


def test_class_of_the_program_itself_is_refused_and_may_be_given(spark: Any, tmp_path: Path) -> None:
    stage = NNModel(Local())
    with pytest.raises(ArgumentError, match="needs Local, which is defined in the program itself or in a function"):
        stage.save(str(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()  # nothing is left half-written
    whole = NNModel(nn.Linear(4, 1))
    whole.save(str(tmp_path / "stage"))
    other = NNModel.load(str(tmp_path / "stage"), model=Local())
    np.testing.assert_array_equal(other.model.weight.detach(), whole.model.weight.detach())
