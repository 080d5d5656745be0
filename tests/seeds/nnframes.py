"""A program of NNFrames: a small torch classifier as a stage of Spark ML; its seed and epochs are its arguments."""

# ruff: noqa: F403, F405

import sys

import torch
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession
from torch import nn

from zoo.common.nncontext import *
from zoo.pipeline.api.torch import TorchLoss, TorchModel, TorchOptim
from zoo.pipeline.nnframes import *


class Scale(nn.Module):
    """Weighs two numbers against each other."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(2, 4)
        self.score = nn.Linear(4, 1)

    def forward(self, pair):
        return torch.sigmoid(self.score(self.hidden(pair)))


if __name__ == "__main__":
    epochs, *seeds = map(int, sys.argv[1:])
    context = init_spark_on_local(cores=1)
    spark = SparkSession.builder.getOrCreate()
    pairs = [(Vectors.dense([5.0, 3.0]), 1.0), (Vectors.dense([3.0, 5.0]), 0.0)] * 2
    frame = spark.createDataFrame(pairs, ["features", "label"])
    for seed in seeds:
        torch.manual_seed(seed)
        net = Scale()
        model, criterion = TorchModel.from_pytorch(net), TorchLoss.from_pytorch(nn.MSELoss())
        optimizer = TorchOptim.from_pytorch(torch.optim.Adam(net.parameters()))
        classifier = (
            NNClassifier(model, criterion)
            .setBatchSize(4)
            .setOptimMethod(optimizer)
            .setLearningRate(0.01)
            .setMaxEpoch(epochs)
        )
        fitted = classifier.fit(frame)
        print("seed", seed, context.version == spark.version)
        fitted.transform(frame).show(10, False)
