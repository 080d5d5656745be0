"""Seed 002, section 2.2: its Keras program, on what it takes as given (a LeNet, images in place of a download)."""

from __future__ import annotations

import pytest

from programs import run_program
from seeds.blocks import IMAGES, code_blocks, document, substitute

DOCUMENT = "002_training_and_inference.txt"
ROWS = 2000

GIVEN = f"""
import gzip

import keras
import numpy as np
import tensorflow as tf

from zoo.orca import OrcaContext, init_orca_context, stop_orca_context
from zoo.orca.learn.tf2 import Estimator

def values(name, header):
    with gzip.open({str(IMAGES)!r} + "/" + name) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)

images = values("train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1)[:{ROWS}]
labels = values("train-labels-idx1-ubyte.gz", 8)[:{ROWS}].astype(np.int64)
max_epoch, total_size, batch_size = 3, {ROWS}, 32

class tfds:
    @staticmethod
    def load(name, split):
        assert (name, split) == ("mnist", "train")
        return tf.data.Dataset.from_tensor_slices({{"image": images, "label": labels}})

def preprocess(row):
    return tf.cast(row["image"], tf.float32) / 255, row["label"]

def create_keras_lenet_model():
    layers = keras.layers
    return keras.Sequential([
        keras.Input((28, 28, 1)),
        layers.Conv2D(20, 5, activation="tanh", padding="valid"),
        layers.MaxPooling2D(2),
        layers.Conv2D(50, 5, activation="tanh", padding="valid"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(100, activation="tanh"),
        layers.Dense(10, activation="softmax"),
    ])

init_orca_context(cluster_mode="local", cores=2)
rows = [(number, (image / 255).tolist()) for number, image in enumerate(images[:300])]
schema = "number int, image array<array<array<float>>>"
df = OrcaContext.get_spark_session().createDataFrame(rows, schema).repartition(3)
"""

ANSWERS = """
answers = {row.number: np.asarray(row.prediction) for row in predictions.collect()}
scores = np.stack([answers[number] for number in range(300)])
own = est.get_model().predict(images[:300].astype(np.float32) / 255, verbose=0)
assert np.abs(scores - own).max() < 1e-4, np.abs(scores - own).max()
assert predictions.columns == ["number", "image", "prediction"], predictions.columns
assert type(est.engine).__name__ == "SparkEngine", est.engine
steps = max_epoch * (total_size // batch_size)
assert int(est.get_model().optimizer.iterations) == steps, est.get_model().optimizer.iterations
assert len(stats["loss"]) == max_epoch and stats["loss"][-1] < stats["loss"][0], stats
accuracy = (scores.argmax(axis=1) == labels[:300]).mean()
assert accuracy >= 0.7, accuracy  # ten classes: chance gives 0.1
assert abs(stats["train_accuracy"] - accuracy) < 0.2, (stats, accuracy)
stop_orca_context()
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("root", ["zoo", "bigdl"])
def test_creators_train_on_spark_and_predict_a_dataframe(root: str) -> None:
    create, train = code_blocks(document(DOCUMENT, "#### **2.2 TensorFlow 2.x", "### **3. PyTorch Estimator**"))
    given = GIVEN.replace("from zoo.", f"from {root}.")
    if root == "bigdl":  # and with more than one worker, as the text promises
        create = substitute(
            create, "(model_creator=model_creator)", "(model_creator=model_creator, workers_per_node=2)"
        )
    run_program(given + create + train + ANSWERS, timeout=220)
