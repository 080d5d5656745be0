"""Creators of a model and of tf.data pipelines, with callbacks and files, as programs of BigDL Orca are written."""

import os
import sys

import numpy as np
import tensorflow as tf

from bigdl.orca import init_orca_context, stop_orca_context
from bigdl.orca.learn.tf2 import Estimator

FOLDER = sys.argv[1]
DRAW = np.random.default_rng(0)
IMAGES = DRAW.random((96, 8, 8, 1), np.float32)
LABELS = (IMAGES[:, :4].mean(axis=(1, 2, 3)) > IMAGES[:, 4:].mean(axis=(1, 2, 3))).astype("int64")
BATCH, EPOCHS = 32, 3
STEPS = len(IMAGES) // BATCH


def model_creator(config):
    start = tf.keras.initializers.GlorotUniform(seed=3)
    layers = [
        tf.keras.layers.Flatten(input_shape=(8, 8, 1)),
        tf.keras.layers.Dense(8, activation="tanh", kernel_initializer=start),
        tf.keras.layers.Dense(2, activation="softmax", kernel_initializer=start),
    ]
    model = tf.keras.Sequential(layers)
    model.compile(
        optimizer=tf.keras.optimizers.RMSprop(config["lr"]),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def trained_creator(config):
    model = model_creator(config)
    model.load_weights(config["weights"])
    return model


def train_data_creator(config, batch_size):
    dataset = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).repeat().batch(batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)


def val_data_creator(config, batch_size):
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(batch_size)


def schedule(epoch):
    return 0.02 / (epoch + 1)


init_orca_context(cluster_mode="local", cores=2, memory="1g")
config = {"lr": 0.02, "weights": f"{FOLDER}/last.weights.h5"}
est = Estimator.from_keras(
    model_creator=model_creator, config=config, workers_per_node=2, backend="spark", verbose=True, log_to_driver=True
)
callbacks = [
    tf.keras.callbacks.LearningRateScheduler(schedule),
    tf.keras.callbacks.ModelCheckpoint(f"{FOLDER}/epoch-{{epoch}}.weights.h5", save_weights_only=True),
    tf.keras.callbacks.TensorBoard(log_dir=f"{FOLDER}/logs"),
    tf.keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True),
]
stats = est.fit(
    train_data_creator,
    epochs=EPOCHS,
    batch_size=BATCH,
    steps_per_epoch=STEPS,
    callbacks=callbacks,
    validation_data=val_data_creator,
    validation_steps=STEPS,
)
print("epochs", len(stats["loss"]), stats["train_loss"] == stats["loss"][-1])
print(
    "files",
    sorted(name for name in os.listdir(FOLDER) if name.startswith("epoch")),
    sorted(os.listdir(f"{FOLDER}/logs")),
)
scores = est.evaluate(val_data_creator, batch_size=BATCH, num_steps=STEPS)
print("scores", sorted(scores))
predictions = est.predict(train_data_creator, batch_size=BATCH, steps=STEPS)

plain = model_creator(config)
plain.fit(
    train_data_creator(config, BATCH),
    epochs=EPOCHS,
    steps_per_epoch=STEPS,
    callbacks=[tf.keras.callbacks.LearningRateScheduler(schedule)],
    verbose=0,
)
print("as in one process", np.allclose(plain.predict(IMAGES, verbose=0), predictions, atol=1e-4))
print("fresh", np.allclose(est.get_model(set_weights=False).get_weights()[0], model_creator(config).get_weights()[0]))

est.save_weights(config["weights"])
est.save(f"{FOLDER}/saved")
est.shutdown()
again = Estimator.from_keras(model_creator=trained_creator, config=config, backend="spark")
print("weights in a creator", np.allclose(again.predict(IMAGES), predictions, atol=1e-5))
again = Estimator.from_keras(model_creator=model_creator, config=config, workers_per_node=2, backend="spark")
again.load_weights(config["weights"])
print("weights", np.allclose(again.predict(IMAGES), predictions, atol=1e-5))
again.load(f"{FOLDER}/saved")
print("saved", again.evaluate(val_data_creator, batch_size=BATCH) == scores)
served = tf.saved_model.load(f"{FOLDER}/saved")
print("served", np.allclose(served.serve(tf.constant(IMAGES)), predictions, atol=1e-5))
stop_orca_context()
