"""Keras resume: a Keras fit that is interrupted, in the middle of an epoch too, ends as if it had not been."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import keras
import tensorflow as tf
import tf_keras

from orca import Estimator
from orca.core.checkpoints import newest_run, versions
from orca.errors import ArgumentError, WorkerFailed
from orca.faces.keras import KerasEstimator
from orca.testing import ThreadEngine
from orca.triggers import EveryEpoch, MaxIteration, SeveralIteration

# Ranks that are threads wait for each other inside TensorFlow's pool: it needs a thread for each, from the start on.
with suppress(RuntimeError):
    tf.config.threading.set_inter_op_parallelism_threads(8)
tf.constant(0)

pytestmark = pytest.mark.timeout(240)
ROWS, BATCH, STEPS = 43, 6, 8  # the last step has one row
DRAW = np.random.default_rng(5)
X = DRAW.normal(size=(ROWS, 4)).astype(np.float32)
Y = (X.sum(axis=1, keepdims=True) > 0).astype(np.float32)
WEIGHTS = DRAW.uniform(0.2, 2.0, ROWS).astype(np.float32)


def creator(config: dict[str, Any]) -> Any:
    """Return a model that draws, normalizes, and has metrics that are sums over an epoch."""
    family = tf_keras if config.get("legacy") else keras
    layers = family.layers
    middle = [layers.Dense(8, "tanh"), layers.BatchNormalization(momentum=0.8), layers.Dropout(0.4)]
    noise = [layers.GaussianNoise(0.1), layers.Dropout(0.3, seed=4)]
    model = family.Sequential([family.Input((4,)), *middle, *noise, layers.Dense(1, "sigmoid")])
    model.compile(
        family.optimizers.Adam(0.05),
        loss="binary_crossentropy",
        metrics=["accuracy", family.metrics.AUC(name="auc")],
        weighted_metrics=["mae"] if config.get("weighted") else None,
    )
    return model


def pipeline(config: dict[str, Any], batch_size: int) -> Any:
    """Shuffle in another way in each pass; of unknown length where it is asked for."""
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(ROWS).batch(batch_size)
    return dataset.filter(lambda x, y: True) if config.get("unknown") else dataset


class Trouble(keras.callbacks.Callback):
    """Fail on the last rank after so many steps in all, as long as the mark is there; count them in an attribute."""

    def __init__(self, step: int, mark: str, kill: bool = False) -> None:
        super().__init__()
        self.step, self.mark, self.kill, self.seen = step, mark, kill, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        last = self.params["rank"] == self.params["size"] - 1
        if last and self.seen == self.step and os.path.exists(self.mark):
            time.sleep(0.3)  # the checkpoint before it is written in the background
            if self.kill:
                os.remove(self.mark)
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("no more")


class LegacyTrouble(tf_keras.callbacks.Callback):
    __init__, on_train_batch_end = Trouble.__init__, Trouble.on_train_batch_end


def estimator(ranks: int = 2, **options: Any) -> KerasEstimator:
    """Return an Estimator on so many threads."""
    made = type("InThreads", (KerasEstimator,), {"engine": property(lambda self: ThreadEngine(ranks))})
    return made.of(**{"model_creator": creator, "seed": 3, **options})


def interrupted(folder: Path, step: int, ranks: int = 2, options: Any = None, **arguments: Any) -> Any:
    """Run a program that fails after a step, and then the same program again; return (Estimator, statistics)."""
    mark = folder / "mark"
    mark.touch()
    arguments = {"data": (X, Y), "epochs": 3, "batch_size": BATCH, "resume": True, **arguments}
    callbacks = arguments.pop("callbacks", list)
    options = {"model_dir": str(folder / "models"), **(options or {})}
    legacy = options.get("config", {}).get("legacy")
    first = estimator(ranks, **options)
    with pytest.raises(WorkerFailed, match="no more"):
        first.fit(callbacks=[*callbacks(), (LegacyTrouble if legacy else Trouble)(step, str(mark))], **arguments)
    mark.unlink()
    again = estimator(ranks, **options)
    return again, again.fit(callbacks=callbacks(), **arguments)


def unbroken(ranks: int = 2, options: Any = None, **arguments: Any) -> Any:
    arguments = {"data": (X, Y), "epochs": 3, "batch_size": BATCH, **arguments}
    callbacks = arguments.pop("callbacks", list)
    made = estimator(ranks, **(options or {}))
    return made, made.fit(callbacks=callbacks(), **arguments)


def check_alike(one: Any, other: Any) -> None:
    """Check that weights, the optimizer's variables and all numbers of the history are equal."""
    (left, stats), (right, expected) = one, other
    assert stats.keys() == expected.keys()
    for name, value in expected.items():
        assert stats[name] == pytest.approx(value, rel=1e-6), name
    for name in ("models", "optimizers"):
        for mine, theirs in zip(left._state.payload[name][0], right._state.payload[name][0], strict=True):
            np.testing.assert_allclose(mine, theirs, 1e-6, 1e-7)
    assert (left._state.epoch, left._state.steps) == (right._state.epoch, right._state.steps)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("legacy", [False, True], ids=["keras", "tf_keras"])
def test_interrupted_program_goes_on_in_mid_epoch(tmp_path: Path, ranks: int, legacy: bool) -> None:
    options = {"config": {"legacy": legacy}}
    arguments = {"validation_data": (X, Y)}
    resumed = interrupted(tmp_path, 13, ranks, options, checkpoint_trigger=SeveralIteration(5), **arguments)
    assert versions(newest_run(str(tmp_path / "models")) or "") == [5, 10, 15, 20]
    check_alike(resumed, unbroken(ranks, options, **arguments))
