"""Stages elsewhere: two executors of a standalone cluster, local-cluster, Spark Connect; each as a plain loop."""

from __future__ import annotations

import pytest

from programs import run_program

pytest.importorskip("torch")
pytest.importorskip("pyspark")

# What pytest's process has set would reach another Spark.
CLEAN = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"))
STARTS = {
    "standalone": """
        from zoo.common.nncontext import init_spark_standalone
        init_spark_standalone(num_executors=2, executor_cores=1, executor_memory="1g")
        spark = SparkSession.builder.getOrCreate()
        """,
    "local-cluster": """
        from orca.cluster.java import ensure_java
        ensure_java()
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false").getOrCreate()
        """,
    "connect": """
        from orca.cluster.java import ensure_java
        ensure_java()
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = SparkSession.builder.remote("local[2]").getOrCreate()
        """,
}
PROGRAM = """
        import os, sys, tempfile
        import numpy as np, torch
        from pyspark.ml import Pipeline, PipelineModel
        from pyspark.sql import SparkSession
        from torch import nn
        from zoo.orca.learn.optimizers import Adam
        from zoo.pipeline.nnframes import NNEstimator, NNModel
        {start}
        x = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
        y = x.sum(1)
        rows = [(i, x[i].tolist(), float(y[i])) for i in range(11)]
        frame = spark.createDataFrame(rows, "number int, features array<float>, label double").repartition(4)
        torch.manual_seed(0)
        net, alone = nn.Linear(3, 1), nn.Linear(3, 1)
        alone.load_state_dict(net.state_dict())
        stage = NNEstimator(net, nn.MSELoss()).setBatchSize(11).setMaxEpoch(3).setOptimMethod(Adam(0.1))
        model = Pipeline(stages=[stage]).fit(frame)
        optimizer = Adam(0.1)(alone)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(alone(torch.from_numpy(x)), torch.from_numpy(y[:, None])).backward()
            optimizer.step()
        expected = alone(torch.from_numpy(x)).detach().numpy()
        folder = tempfile.mkdtemp()
        model.save(folder + "/model")
        for each in (model, PipelineModel.load(folder + "/model")):
            got = each.transform(frame).orderBy("number").collect()
            np.testing.assert_allclose([row.prediction for row in got], expected, rtol=1e-4, atol=1e-6)
        print("workers", model.stages[0].estimator.num_workers)
        spark.stop()
"""


@pytest.mark.full
@pytest.mark.timeout(200)
@pytest.mark.parametrize("where", STARTS)
def test_stages_give_the_answers_of_a_plain_loop(where: str) -> None:
    if where == "connect":
        pytest.importorskip("grpc")
    output = run_program(PROGRAM.format(start=STARTS[where]), env=CLEAN, timeout=180).stdout
    assert f"workers {1 if where == 'connect' else 2}" in output
