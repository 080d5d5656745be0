"""A program with a Keras model in a graph, as those of Keras 2.3 were."""

import sys

from zoo.tfpark import tf1 as tf  # isort: skip: before anything that imports tensorflow

import numpy as np

from orca_classic.bigdl.optimizers import SGD
from zoo.orca.learn.tf.estimator import Estimator

FOLDER = sys.argv[1]
X = np.random.default_rng(0).normal(size=(53, 5)).astype("float32")
Y = (X[:, 0] > 0).astype("int32") + (X[:, 1] > 0.5).astype("int32")


def model():
    start = [tf.keras.initializers.glorot_uniform(seed=seed) for seed in (1, 2)]
    made = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(8, activation="tanh", input_shape=(5,), kernel_initializer=start[0]),
            tf.keras.layers.Dense(3, activation="softmax", kernel_initializer=start[1]),
        ]
    )
    made.compile(tf.keras.optimizers.RMSprop(0.01), "sparse_categorical_crossentropy", metrics=["accuracy", "mae"])
    return made


def same(one, other):
    return all(np.allclose(a, b, atol=1e-5) for a, b in zip(one.get_weights(), other.get_weights(), strict=True))


print("graph mode", not tf.executing_eagerly())
plain, ours = model(), model()
plain.fit(X, Y, batch_size=53, epochs=3, verbose=0)
est = Estimator.from_keras(ours, backend="local", workers_per_node=2)
est.fit((X, Y), epochs=3, batch_size=53)
print("as Keras itself", same(plain, ours))
scores = est.evaluate((X, Y), batch_size=10)
truth = plain.evaluate(X, Y, verbose=0)
print("scores", np.allclose([scores["loss"], scores["accuracy"]], truth[:2], atol=1e-4), sorted(scores))
print("predictions", np.allclose(est.predict(X), plain.predict(X), atol=1e-5))
est.save_keras_weights(f"{FOLDER}/weights.h5")
other = model()
other.load_weights(f"{FOLDER}/weights.h5")
print("weights", same(other, ours))
inputs = tf.keras.Input((5,))
heads = [tf.keras.layers.Dense(1, activation="sigmoid", name=name)(inputs) for name in ("p", "q")]
both = tf.keras.Model(inputs, heads)
both.compile("sgd", "mse", metrics={"q": ["accuracy", "mae"]})
targets = [Y[:, None] > 0, X[:, :1]]
scores = Estimator.from_keras(both, backend="local").evaluate((X, tuple(targets)), batch_size=10)
truth = both.evaluate(X, targets, verbose=0)  # of each output the loss, too
values = sorted([truth[0], *truth[3:]])
print("metrics by output", sorted(scores), np.allclose(sorted(scores.values()), values, atol=1e-4))
est.save_tf_checkpoint(f"{FOLDER}/checkpoint/model")
before = ours.get_weights()
ours.set_weights([value * 0 for value in before])
est.load_tf_checkpoint(f"{FOLDER}/checkpoint/model")
print("checkpoint", all(map(np.array_equal, before, ours.get_weights())))
est.save_keras_model(f"{FOLDER}/model.h5")
ours.set_weights([value * 0 for value in before])
est.load(f"{FOLDER}/model.h5")
print("model", all(map(np.array_equal, before, ours.get_weights())))
third = Estimator.from_keras(model(), optimizer=SGD(learningrate=0.1), backend="local")
losses = [line["train_loss"] for line in third.fit((X, Y), epochs=3, batch_size=53).history.epochs]
print("optim method", losses[2] < losses[1] < losses[0])
