"""The programs of the TFPark document on MNIST, each in a graph of its own, with a Spark of this machine.

Arguments: the folder with the IDX files, and a folder to write to.
"""

import gzip
import sys
from pathlib import Path

from zoo.tfpark import tf1 as tf  # isort: skip: the one line that differs

import numpy as np

from bigdl.optim.optimizer import Adam, MaxEpoch, TrainSummary
from zoo.orca import OrcaContext, init_orca_context, stop_orca_context
from zoo.orca.learn.tf.estimator import Estimator
from zoo.pipeline.api.net import TFDataset
from zoo.tfpark import KerasModel, TFOptimizer, TFPredictor
from zoo.tfpark.estimator import TFEstimator, TFEstimatorSpec

RAW, FOLDER = Path(sys.argv[1]), sys.argv[2]


def read(name, start, count):
    return np.frombuffer(gzip.open(RAW / name).read(), np.uint8, offset=start)[:count]


TRAIN, TEST = 6000, 1000
X = (read("train-images-idx3-ubyte.gz", 16, TRAIN * 784).reshape(-1, 28, 28, 1) / 255).astype("float32")
Y = read("train-labels-idx1-ubyte.gz", 8, TRAIN).astype("int32")
TX = (read("t10k-images-idx3-ubyte.gz", 16, TEST * 784).reshape(-1, 28, 28, 1) / 255).astype("float32")
TY = read("t10k-labels-idx1-ubyte.gz", 8, TEST).astype("int32")

init_orca_context(cluster_mode="local", cores=2, memory="1g")
sc = OrcaContext.get_spark_context()
train_rdd = sc.parallelize(list(zip(X, Y, strict=True)), 3)
test_rdd = sc.parallelize(list(zip(TX, TY, strict=True)), 2)


def lenet(images, is_training):
    slim = tf.contrib.slim
    with slim.arg_scope([slim.conv2d, slim.fully_connected], weights_regularizer=slim.l2_regularizer(0.0)):
        net = slim.max_pool2d(slim.conv2d(images, 16, [5, 5], scope="conv1"), [2, 2], 2)
        net = slim.max_pool2d(slim.conv2d(net, 32, [5, 5], scope="conv2"), [2, 2], 2)
        net = slim.fully_connected(slim.flatten(net), 128, scope="fc3")
        net = slim.dropout(net, 0.5, is_training=is_training)
        return slim.fully_connected(net, 10, activation_fn=None, scope="fc4")


def share_right(scores, labels):
    return float((np.array(scores).argmax(1) == labels).mean())


# The low-level API: a loss on the tensors of a dataset, and LeNet by slim.
dataset = TFDataset.from_rdd(
    train_rdd, features=(tf.float32, [28, 28, 1]), labels=(tf.int32, []), batch_size=321, val_rdd=test_rdd
)
images, labels = dataset.tensors
loss = tf.reduce_mean(tf.losses.sparse_softmax_cross_entropy(logits=lenet(images, True), labels=tf.squeeze(labels)))
optimizer = TFOptimizer.from_loss(loss, Adam(1e-3), workers_per_node=2)
optimizer.set_train_summary(TrainSummary(FOLDER + "/logs", "lenet"))
optimizer.optimize(end_trigger=MaxEpoch(3))
losses = [value for _, value, _ in optimizer.estimator.get_train_summary("Loss")]
print("lenet learns", losses[-1] < 0.5 * losses[0], len(losses))
saver = tf.train.Saver()
saver.save(optimizer.sess, FOLDER + "/lenet/model")

tf.reset_default_graph()
testing = TFDataset.from_rdd(
    test_rdd.map(lambda pair: (pair[0],)), features=(tf.float32, [28, 28, 1]), batch_per_thread=40
)
(images,) = testing.tensors
logits = lenet(images, False)
sess = tf.Session()
tf.train.Saver().restore(sess, FOLDER + "/lenet/model")
predictions = TFPredictor.from_outputs(sess, [logits]).predict().collect()
print("lenet predicts", len(predictions), share_right(predictions, TY) > 0.85)

# A graph in the Orca Estimator, on XShards-like rows of a tf.data.Dataset and a DataFrame.
tf.reset_default_graph()
images = tf.placeholder(dtype=tf.float32, shape=(None, 28, 28, 1))
labels = tf.placeholder(dtype=tf.int32, shape=(None,))
logits = lenet(images, False)
loss = tf.reduce_mean(tf.losses.sparse_softmax_cross_entropy(logits=logits, labels=labels))
acc = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels), tf.float32))
est = Estimator.from_graph(
    inputs=images, outputs=logits, labels=labels, loss=loss, optimizer=tf.train.AdamOptimizer(), metrics={"acc": acc}
)
mnist_train = tf.data.Dataset.from_tensor_slices({"image": X, "label": Y})
est.fit(data=mnist_train.map(lambda row: (row["image"], row["label"])), batch_size=320, epochs=2)
print("graph", est.evaluate((TX, TY))["acc"] > 0.85)
spark = OrcaContext.get_spark_session()
df = spark.createDataFrame([(image.reshape(-1).tolist(),) for image in TX[:50]], "image array<float>")
answers = [row.prediction for row in est.predict(data=df, feature_cols=["image"]).collect()]
answers = [answer.toArray() if hasattr(answer, "toArray") else answer for answer in answers]
print("dataframe", np.allclose(np.array(answers), est.predict(TX[:50]), atol=1e-4))

# Keras.
tf.keras.backend.clear_session()
tf.reset_default_graph()
model = tf.keras.Sequential(
    [
        tf.keras.layers.Flatten(input_shape=(28, 28, 1)),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(tf.keras.optimizers.RMSprop(), "sparse_categorical_crossentropy", metrics=["accuracy"])
keras_model = KerasModel(model, workers_per_node=2)
keras_model.fit(dataset, epochs=2)
model.save_weights(FOLDER + "/model.h5")
evaluation = TFDataset.from_rdd(
    test_rdd, features=(tf.float32, [28, 28, 1]), labels=(tf.int32, []), batch_per_thread=80
)
scores = keras_model.evaluate(evaluation)
print("keras", scores["accuracy"] > 0.8, abs(scores["loss"] - model.evaluate(TX, TY, verbose=0)[0]) < 1e-3)
print("keras predicts", share_right(keras_model.predict(testing).collect(), TY) == round(scores["accuracy"], 6))


# Keras in the low-level API: trained here, and rebuilt for the predictions.
def dense_net():
    tf.keras.backend.clear_session()
    tf.reset_default_graph()
    data = tf.keras.layers.Input(shape=[28, 28, 1])
    x = tf.keras.layers.Dense(64, activation="relu")(tf.keras.layers.Flatten()(data))
    return tf.keras.models.Model(inputs=data, outputs=tf.keras.layers.Dense(10, activation="softmax")(x))


model = dense_net()
model.compile(optimizer="rmsprop", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
optimizer = TFOptimizer.from_keras(keras_model=model, dataset=dataset, workers_per_node=2)
optimizer.set_train_summary(TrainSummary(FOLDER + "/logs", "keras"))
optimizer.optimize(end_trigger=MaxEpoch(2))
model.save_weights(FOLDER + "/low.h5")
model = dense_net()
model.load_weights(FOLDER + "/low.h5")
answers = TFPredictor.from_keras(model, testing).predict().collect()
losses = TrainSummary(FOLDER + "/logs", "keras").read_scalar("Loss")[:, 1]
print("keras optimizer", share_right(answers, TY) > 0.8, losses[-1] < 0.5 * losses[0])


# A model function.
def classify(features, labels, mode):
    scores = tf.layers.dense(tf.layers.dense(tf.layers.flatten(features), 32, activation=tf.nn.relu), 10)
    known = mode != tf.estimator.ModeKeys.PREDICT
    error = tf.losses.sparse_softmax_cross_entropy(labels, scores) if known else None
    return TFEstimatorSpec(mode, predictions=scores, loss=error)


def digits(mode):
    modes, shape = tf.estimator.ModeKeys, {"features": (tf.float32, [28, 28, 1])}
    if mode == modes.PREDICT:
        return TFDataset.from_rdd(test_rdd.map(lambda pair: (pair[0],)), batch_per_thread=80, **shape)
    rows = {modes.TRAIN: train_rdd, modes.EVAL: test_rdd}[mode]
    return TFDataset.from_rdd(rows, labels=(tf.int32, []), batch_size=320, **shape)


estimator = TFEstimator(classify, tf.train.AdamOptimizer(), model_dir=FOLDER + "/estimator")
estimator.train(digits, steps=60)
result = estimator.evaluate(digits, ["acc"])
print("model function", sorted(result), result["Top1Accuracy"] > 0.8)
print(
    "model function predicts",
    share_right(estimator.predict(digits).collect(), TY) == round(result["Top1Accuracy"], 6),
)
stop_orca_context()
