"""A program of the years of Keras 2, on XShards, as programs of Analytics Zoo are written."""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

from zoo.orca import init_orca_context, stop_orca_context
from zoo.orca.data import XShards
from zoo.orca.learn.tf2 import Estimator

FOLDER = sys.argv[1]
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 0).astype("float32")
BATCH, EPOCHS, STEPS = len(X), 3, 1


def model_creator(config):
    start = tf.keras.initializers.GlorotUniform(seed=3)
    return tf.keras.models.Sequential(
        [
            tf.keras.layers.Dense(config["width"], activation="tanh", input_dim=4, kernel_initializer=start),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dense(1, activation="sigmoid", kernel_initializer=start),
        ]
    )


def compile_args_creator(config):
    return {
        "optimizer": tf.keras.optimizers.legacy.Adam(learning_rate=config["lr"]),
        "loss": "binary_crossentropy",
        "metrics": ["accuracy", tf.keras.metrics.AUC(name="auc")],
    }


init_orca_context(cluster_mode="local", cores=2, memory="1g")
config = {"width": 6, "lr": 0.05}
options = {"compile_args_creator": compile_args_creator, "config": config, "workers_per_node": 2}
est = Estimator.from_keras(model_creator=model_creator, **options)
shards = XShards.partition({"x": X, "y": Y}, num_shards=2)
stats = est.fit(
    shards,
    epochs=EPOCHS,
    batch_size=BATCH,
    steps_per_epoch=STEPS,
    callbacks=[tf.keras.callbacks.ModelCheckpoint(f"{FOLDER}/best.h5", save_best_only=True, monitor="loss")],
    validation_data=shards,
    validation_steps=STEPS,
)
print("model of", type(est.get_model()).__module__.split(".")[0])
print("epochs", len(stats["loss"]), len(stats["val_auc"]))
scores = est.evaluate(shards, batch_size=BATCH, num_steps=STEPS)
print("scores", sorted(scores))
predictions = np.concatenate([shard["prediction"] for shard in est.predict(shards).collect()]).reshape(-1, 1)

plain = model_creator(config)
plain.compile(**compile_args_creator(config))
history = plain.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0).history
print("as in one process", np.allclose(history["loss"], stats["loss"], rtol=1e-4))
print("predictions", np.allclose(plain.predict(X, verbose=0), predictions, atol=1e-4))

for path in (f"{FOLDER}/model.h5", f"{FOLDER}/model"):
    est.save(path)
    loaded = tf.keras.models.load_model(path)
    print("loaded", np.allclose(loaded.predict(X, verbose=0), predictions, atol=1e-5), loaded.optimizer is not None)
est.save_weights(f"{FOLDER}/weights.ckpt")
est.shutdown()
again = Estimator.from_keras(model_creator=model_creator, **options)
again.load_weights(f"{FOLDER}/weights.ckpt")
print("weights", again.evaluate(shards, batch_size=BATCH) == scores)
again.load(f"{FOLDER}/model.h5")
print("trained on", again.fit(shards, epochs=1, batch_size=BATCH)["loss"][0] < stats["loss"][0])
print("best", os.path.exists(f"{FOLDER}/best.h5"))
stop_orca_context()
