"""A program with a tagger of Keras in a graph, on two workers; its argument is a folder to write to."""

import sys

from zoo.tfpark import tf1 as tf  # isort: skip: before anything that imports tensorflow

import numpy as np

from zoo.tfpark import TFDataset
from zoo.tfpark.text.keras import SequenceTagger

DRAW = np.random.default_rng(0)
TEXTS = DRAW.integers(0, 9, (41, 4)).astype("int32")
TAGS = (TEXTS % 3).astype("int32")


def tagger(workers):
    tf.keras.backend.clear_session()
    tf.set_random_seed(3)
    return SequenceTagger(
        3, 3, 9, feature_size=6, dropout=0.0, classifier="crf", optimizer=tf.keras.optimizers.Adam(0.03),
        backend="local", workers_per_node=workers,
    )  # fmt: skip


weights = []
for workers in (1, 2):
    model = tagger(workers)
    start = [np.full_like(value, 0.1) * np.sign(np.arange(value.size) % 3 - 1).reshape(value.shape)
             for value in model.get_weights()]  # fmt: skip
    model.set_weights(start)
    model.fit(TFDataset.from_ndarrays((TEXTS, [TAGS, TAGS]), batch_size=41), epochs=12)
    weights.append(model.get_weights())
losses = [line["train_loss"] for line in model.estimator.history.epochs]
print("learns", losses[-1] < 0.9 * losses[0])
print("as in one session", all(np.allclose(*pair, atol=1e-3) for pair in zip(*weights, strict=True)))
answers = model.predict(TEXTS, distributed=True)
here = model.predict(TEXTS)
print("predicts", *(np.allclose(one, other, atol=1e-4) for one, other in zip(answers, here, strict=True)))
model.save_model(sys.argv[1] + "/tagger.h5")
again = SequenceTagger.load_model(sys.argv[1] + "/tagger.h5").predict(TEXTS)
print("kept", *(np.allclose(one, other, atol=1e-4) for one, other in zip(again, here, strict=True)))
