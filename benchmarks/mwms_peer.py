"""The peers of the Keras benchmark: plain `model.fit`, or under MultiWorkerMirroredStrategy; prints epoch seconds.

Owns the models and data of all Keras contenders. A peer trains one epoch, says that it is ready and goes on when it is
told to, so that peers which are to run at the same time do.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any

import numpy as np

from benchmarks.models import images, numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("plain", "mwms"))
    parser.add_argument("family", choices=("keras", "tf_keras"))
    parser.add_argument("case", choices=tuple(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--part", type=int, default=0, help="which of the parts of the data this process trains on")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    make, data, batch = CASES[args.case]
    x, y = (array[args.part :: args.parts] for array in data())
    train = plain if args.kind == "plain" else mwms
    times = train(args.family, make, np.ascontiguousarray(x), y, batch // args.parts, args.epochs)
    print(json.dumps(times), flush=True)


def cnn(config: dict[str, Any]) -> Any:
    """Return a network of LeNet-5's size."""
    keras = importlib.import_module(config["family"])
    layers = keras.layers
    return compiled(
        keras,
        [
            layers.Conv2D(6, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(120, activation="relu"),
            layers.Dense(84, activation="relu"),
            layers.Dense(10),
        ],
        (28, 28, 1),
    )


def convnet(config: dict[str, Any]) -> Any:
    """Return a network of the size that introductions to Keras train on such images."""
    keras = importlib.import_module(config["family"])
    layers = keras.layers
    return compiled(
        keras,
        [
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10),
        ],
        (28, 28, 1),
    )


def mlp(config: dict[str, Any]) -> Any:
    keras = importlib.import_module(config["family"])
    return compiled(keras, [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)], (32,))


def compiled(keras: Any, layers: list[Any], shape: tuple[int, ...]) -> Any:
    model = keras.Sequential([keras.Input(shape), *layers])
    model.compile(
        optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Return as many Fashion-MNIST images, channels last, as make whole batches."""
    x, y = images()
    kept = len(x) - len(x) % 320
    return x[:kept].reshape(-1, 28, 28, 1), y[:kept]


CASES: dict[str, tuple[Any, Any, int]] = {  # name: model, data, global batch
    "convnet": (convnet, pictures, 128),
    "cnn": (cnn, pictures, 320),
    "mlp": (mlp, lambda: numbers(61_440), 256),
}


def plain(family: str, make: Any, x: np.ndarray, y: np.ndarray, batch: int, epochs: int) -> list[float]:
    model = make({"family": family})
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0)
    wait_for_the_word()
    clock = clock_of(family)
    model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0, callbacks=[clock])
    return list(clock.times)


def mwms(family: str, make: Any, x: np.ndarray, y: np.ndarray, batch: int, epochs: int) -> list[float]:
    """Train on this worker's part alone: nothing is read that another worker trains on."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    steps = len(x) // batch
    features, labels = tf.constant(x), tf.constant(y)

    def dataset(_: Any) -> Any:
        orders = tf.data.Dataset.range(1).repeat().map(lambda _: tf.random.shuffle(tf.range(steps * batch)))
        cuts = orders.flat_map(lambda order: tf.data.Dataset.from_tensor_slices(tf.reshape(order, [steps, batch])))
        return cuts.map(lambda index: (tf.gather(features, index), tf.gather(labels, index))).prefetch(2)

    with strategy.scope():
        model = make({"family": family})
    data = strategy.distribute_datasets_from_function(dataset)
    model.fit(data, steps_per_epoch=steps, epochs=1, verbose=0)
    wait_for_the_word()
    clock = clock_of(family)
    model.fit(data, steps_per_epoch=steps, epochs=epochs, verbose=0, callbacks=[clock])
    return list(clock.times)


def wait_for_the_word() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def clock_of(family: str) -> Any:
    """Return a callback of this Keras that takes down the seconds of each epoch."""
    callbacks = importlib.import_module(family).callbacks

    class Clock(callbacks.Callback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.times.append(time.perf_counter() - self.began)

    return Clock()


if __name__ == "__main__":
    main()
