"""Section 4 of seed 002 as one program: creators, a Gluon LeNet, an Estimator; images as IDX files in gzip."""

import argparse
import gzip
import json
import os

import numpy as np

from zoo.orca.learn.mxnet import Estimator, create_config  # isort: skip
import mxnet as mx
from mxnet import gluon

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()


class LeNet(gluon.HybridBlock):
    """Two convolutions and two dense layers."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.layers = gluon.nn.HybridSequential()
            self.layers.add(gluon.nn.Conv2D(16, 5, activation="relu"), gluon.nn.MaxPool2D(2))
            self.layers.add(gluon.nn.Conv2D(32, 3, activation="relu"), gluon.nn.MaxPool2D(2))
            self.layers.add(gluon.nn.Flatten(), gluon.nn.Dense(96, activation="relu"), gluon.nn.Dense(10))

    def hybrid_forward(self, F, x):
        return self.layers(x)


def get_model(config):
    net = LeNet()
    net.hybridize()
    return net


def get_loss(config):
    return gluon.loss.SoftmaxCrossEntropyLoss()


def get_metrics(config):
    return mx.metric.Accuracy()


def read(name, offset):
    with gzip.open(os.path.join(config["folder"], f"{name}-ubyte.gz")) as file:
        return np.frombuffer(file.read(), np.uint8, offset=offset)


def images(part, batch_size, shuffle):
    pixels = read(f"{part}-images-idx3", 16).reshape(-1, 1, 28, 28).astype("float32") / 255
    labels = read(f"{part}-labels-idx1", 8).astype("float32")
    return mx.io.NDArrayIter(pixels, labels, batch_size=batch_size, shuffle=shuffle)


def get_train_data_iter(config, kv):
    return images("train", config["batch_size"], True)


def get_test_data_iter(config, kv):
    return images("t10k", config["batch_size"], False)


config = create_config(
    log_interval=50,
    optimizer="adam",
    optimizer_params={"learning_rate": 0.002},
    seed=3,
    extra_config={"folder": args.folder},
)
est = Estimator.from_mxnet(
    config=config,
    model_creator=get_model,
    loss_creator=get_loss,
    eval_metrics_creator=get_metrics,
    num_workers=args.workers,
    backend="local",
)
lines = est.fit(get_train_data_iter, epochs=args.epochs, batch_size=128, validation_data=get_test_data_iter)
print(json.dumps({"lines": lines, "test": est.evaluate(get_test_data_iter, batch_size=512)}))
est.shutdown()
