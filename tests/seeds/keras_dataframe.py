"""A recommender on a Spark DataFrame, as programs of Analytics Zoo are written."""

import math
import sys

import numpy as np
import tensorflow as tf

from zoo.orca import OrcaContext, init_orca_context, stop_orca_context
from zoo.orca.learn.tf2 import Estimator

FOLDER = sys.argv[1]
USERS, ITEMS, ROWS, EPOCHS = 7, 5, 101, 3
BATCH = ROWS  # in a step of all rows their order does not matter
STEPS = math.ceil(ROWS / BATCH)


def model_creator(config):
    inputs, parts = [], []
    for name, size in (("user", USERS), ("item", ITEMS)):
        start = tf.keras.initializers.RandomNormal(seed=size)
        inputs.append(tf.keras.layers.Input(shape=(1,), dtype="int32", name=name))
        embedded = tf.keras.layers.Embedding(size, config["width"], embeddings_initializer=start)(inputs[-1])
        parts.append(tf.keras.layers.Flatten()(embedded))
    joined = tf.keras.layers.concatenate(parts)
    start = tf.keras.initializers.GlorotUniform(seed=1)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(2, activation="softmax", kernel_initializer=start)(joined))
    model.compile(
        optimizer=tf.keras.optimizers.Adam(config["lr"]), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


init_orca_context(cluster_mode="local", cores=4, memory="1g")
spark = OrcaContext.get_spark_session()
df = spark.range(ROWS).selectExpr(
    "cast(id as int) as number",
    f"cast(id % {USERS} as int) as user",
    f"cast(id % {ITEMS} as int) as item",
    f"cast(id % {USERS} > id % {ITEMS} as int) as label",
)
config = {"width": 3, "lr": 0.05, "inter_op_parallelism": 1, "intra_op_parallelism": 1}
est = Estimator.from_keras(model_creator=model_creator, config=config, workers_per_node=2)
columns = {"feature_cols": ["user", "item"], "label_cols": ["label"]}
stats = est.fit(
    data=df,
    epochs=EPOCHS,
    batch_size=BATCH,
    steps_per_epoch=STEPS,
    validation_data=df,
    validation_steps=STEPS,
    **columns,
)
print("epochs", [len(stats[name]) for name in ("loss", "accuracy", "val_loss", "val_accuracy")])
scores = est.evaluate(data=df, batch_size=BATCH, num_steps=STEPS, **columns)
print("scores", sorted(scores), scores["validation_loss"] == stats["val_loss"][-1])
predicted = est.predict(data=df, batch_size=BATCH, steps=STEPS, feature_cols=["user", "item"])
predictions = np.array([list(row.prediction) for row in predicted.orderBy("number").collect()])
rows = np.array([[row.user, row.item, row.label] for row in df.orderBy("number").collect()])
est.save(f"{FOLDER}/recommender.h5")
est.shutdown()
stop_orca_context()

inputs = [rows[:, 0], rows[:, 1]]
plain = model_creator(config)
history = plain.fit(inputs, rows[:, 2], batch_size=BATCH, epochs=EPOCHS, verbose=0).history
print("as in one process", np.allclose(history["loss"], stats["loss"], rtol=1e-4))
loaded = tf.keras.models.load_model(f"{FOLDER}/recommender.h5")
for model in (plain, loaded):
    print("predictions", np.allclose(model.predict(inputs, verbose=0), predictions, atol=1e-4))
