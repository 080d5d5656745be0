"""Training of a TensorFlow 1 graph: two local processes of one thread, seconds an epoch, against plain sessions.

* as many session loops as we have processes, side by side, each with a feed_dict, on one thread, of as many rows a step
  as each of our processes takes; they never meet, so that no training on these cores could be faster;
* the same loops fed by tf.data;
* one such loop that has the machine for itself, where the other core has time for all else: twice its speed.

Seconds of the clock, and of all processors: the latter say something on a busy machine, too.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Result, interleaved, medians

ROWS, BATCH, EPOCHS, WORKERS = 8_192, 256, 4, 2
SHARE = BATCH // WORKERS


def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(ROWS, 28, 28, 1)).astype("float32"), draw.integers(0, 10, ROWS).astype("int32")


def network(tf: Any, x: Any, y: Any) -> Any:
    """Build a small convolutional network; return its loss."""
    draw = np.random.default_rng(1)

    def weight(name: str, *shape: int) -> Any:
        start = (draw.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype("float32")
        return tf.get_variable(name, initializer=start)

    for number, (given, made) in enumerate(((1, 16), (16, 32))):
        x = tf.nn.relu(tf.nn.conv2d(x, weight(f"conv{number}", 5, 5, given, made), 1, "SAME"))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.nn.relu(tf.reshape(x, [-1, 7 * 7 * 32]) @ weight("dense", 7 * 7 * 32, 128))
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=x @ weight("top", 128, 10), labels=y))


def run(repeats: int) -> list[Result]:
    epochs = {"ours": ours}
    epochs |= {feeding: partial(sessions, feeding, WORKERS) for feeding in ("feed_dict", "tf.data")}
    epochs |= {"feed_dict, alone": partial(sessions, "feed_dict", 1)}
    processor: dict[str, list[float]] = {name: [] for name in epochs}

    def clock(name: str, epoch: Callable[[], tuple[float, float]]) -> float:
        elapsed, spent = epoch()
        processor[name].append(spent)
        return elapsed

    elapsed = interleaved({name: partial(clock, name, epoch) for name, epoch in epochs.items()}, repeats)
    spent = {name: seconds[1:] for name, seconds in processor.items()}  # the first turn warms up
    return [
        Result(
            f"graph epoch, convnet, 2 processes{kind}",
            medians(times)["ours"],
            medians(times)[peer] / share,
            f"a session a core, {peer}",
            "s",
            None if peer == "feed_dict, alone" else 0.95,
            {"times": times["ours"], "peer_times": times[peer]},
        )
        for kind, times, share in (("", elapsed, WORKERS), (", processor time", spent, 1))
        for peer in epochs
        if peer != "ours"
    ]


def ours() -> tuple[float, float]:
    """Return the seconds of an epoch, without starting up: those of the later epochs; and those of all processors."""
    import tensorflow.compat.v1 as tf

    from orca.callbacks import Callback
    from orca_classic import Estimator

    class Spent(Callback):
        """Note the processor time of this process after every epoch."""

        def after_train_epoch(self, runner: Any) -> None:
            with (folder / str(runner.rank)).open("a") as file:
                print(time.process_time(), file=file)

    folder = Path(tempfile.mkdtemp())
    with tf.Graph().as_default():
        x, y = tf.placeholder(tf.float32, [None, 28, 28, 1]), tf.placeholder(tf.int32, [None])
        est = Estimator.from_graph(
            inputs=x,
            labels=y,
            loss=network(tf, x, y),
            optimizer=tf.train.AdamOptimizer(),
            backend="local",
            workers_per_node=WORKERS,
            threads_per_worker=1,
        )
        est.fit(data(), epochs=EPOCHS, batch_size=BATCH, callbacks=[Spent()])
    ranks = [np.diff([float(line) for line in file.read_text().split()]) for file in folder.iterdir()]
    shutil.rmtree(folder)
    return statistics.median(trace.seconds for trace in est.history.traces[1:]), float(np.median(sum(ranks)))


def sessions(feeding: str, number: int) -> tuple[float, float]:
    """Return the seconds of an epoch of plain sessions side by side, each on one thread in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tfgraph_training", feeding]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(number)]
    lines = [process.communicate()[0].splitlines()[-1] for process in processes]
    elapsed, spent = np.mean([json.loads(line) for line in lines], axis=0).tolist()
    return elapsed, spent


def plain(feeding: str) -> tuple[float, float]:
    import tensorflow.compat.v1 as tf

    images, labels = data()
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        if feeding == "feed_dict":
            x, y = tf.placeholder(tf.float32, [None, 28, 28, 1]), tf.placeholder(tf.int32, [None])
        else:
            given = tf.placeholder(tf.float32, images.shape), tf.placeholder(tf.int32, labels.shape)
            rows = tf.data.Dataset.from_tensor_slices(given).shuffle(ROWS).batch(SHARE).prefetch(2)
            iterator = tf.data.make_initializable_iterator(rows)
            x, y = iterator.get_next()
        op = tf.train.AdamOptimizer().minimize(network(tf, x, y))
        session.run(tf.global_variables_initializer())
        seconds = []
        for _ in range(EPOCHS):
            began, spent = time.perf_counter(), time.process_time()
            if feeding == "feed_dict":
                order = np.random.permutation(ROWS)
                for start in range(0, ROWS, SHARE):
                    rows = order[start : start + SHARE]
                    session.run(op, {x: images[rows], y: labels[rows]})
            else:
                session.run(iterator.initializer, dict(zip(given, (images, labels), strict=True)))
                for _ in range(ROWS // SHARE):
                    session.run(op)
            seconds.append((time.perf_counter() - began, time.process_time() - spent))
    elapsed, spent = np.median(seconds[1:], axis=0).tolist()
    return elapsed, spent


if __name__ == "__main__":
    print(json.dumps(plain(sys.argv[1])))
