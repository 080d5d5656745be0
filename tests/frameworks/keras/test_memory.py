from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import keras

from orca.core.state import State
from orca.frameworks.keras.memory import Memory, continue_logs
from orca.storage.states import load_state, save_state


def began(callback: Any) -> Any:
    callback.on_train_begin()
    return callback


def test_plain_attributes_come_back_from_a_checkpoint_as_they_were(tmp_path: Path) -> None:
    callback = SimpleNamespace()
    memory = Memory([callback])
    plain = {"a": [1, 2.5, None, "x", True], "b": (np.float32(2), {4}), "c": np.arange(6).reshape(2, 3), "d": {3: {}}}
    others = {"e": print, "f": object(), "g": np.array(["a"]), "h": {"a": [object()]}}
    vars(callback).update(plain | others)
    payload = {"models": [[np.ones(3)]], "optimizers": [], "callbacks": memory.kept()}
    save_state(State(payload=payload), str(tmp_path / "kept"), "keras")
    again = SimpleNamespace(e=1)
    Memory([again]).restore(load_state(str(tmp_path / "kept"), "keras").payload["callbacks"])
    assert vars(again).keys() == {*"abcde"} and again.a == plain["a"] and again.d == {3: {}} and again.e == 1
    assert again.b == plain["b"] and type(again.b[0]) is np.float32 and np.array_equal(again.c, plain["c"])


def test_callbacks_remember_what_they_have_changed_and_take_new_arguments() -> None:
    first = began(keras.callbacks.EarlyStopping("val_loss", min_delta=0.1, patience=3, restore_best_weights=True))
    first.set_model(SimpleNamespace(get_weights=lambda: [np.ones(2)], metrics=[]))
    memory = Memory([first])
    for epoch, loss in enumerate((5.0, 4.0, 4.0)):
        first.on_epoch_end(epoch, {"val_loss": loss})
    kept = memory.kept()
    assert kept["EarlyStopping-0"].keys() >= {"best", "wait", "best_weights", "best_epoch", "monitor_op()"}
    assert "patience" not in kept["EarlyStopping-0"] and "monitor" not in kept["EarlyStopping-0"]
    first.best_weights[0][:] = 7  # after it was kept

    again = began(keras.callbacks.EarlyStopping("val_loss", min_delta=0.1, patience=9, restore_best_weights=True))
    Memory([keras.callbacks.TerminateOnNaN(), again]).restore(kept)
    assert (again.best, again.wait, again.best_epoch, again.patience) == (4.0, 1, 1, 9)
    assert again.best_weights[0].tolist() == [1, 1]
    again.set_model(first.model)
    again.on_epoch_end(3, {"val_loss": 3.95})  # not better by min_delta, which Keras must not turn around again
    assert again.wait == 2


def test_callbacks_of_one_class_are_told_apart_by_their_number() -> None:
    pair = [began(keras.callbacks.ReduceLROnPlateau()) for _ in range(2)]
    memory = Memory(pair)
    pair[0].wait, pair[1].wait = 4, 5
    others = [began(keras.callbacks.ReduceLROnPlateau()) for _ in range(3)]
    Memory(others).restore(memory.kept())
    assert [other.wait for other in others] == [4, 5, 0]


def test_logger_goes_on_without_the_lines_of_epochs_that_are_trained_again(tmp_path: Path) -> None:
    path = tmp_path / "lines.csv"
    lines = ["epoch,loss", "0,3.0", "1,2.0", "2,1.0"]
    path.write_text("\n".join(lines) + "\n")
    logger = keras.callbacks.CSVLogger(str(path))
    continue_logs([logger, keras.callbacks.TerminateOnNaN()], 2)
    began(logger).on_epoch_end(2, {"loss": 1.5})
    assert path.read_text().split() == [*lines[:3], "2,1.5,NA"]
