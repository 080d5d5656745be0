"""Patches of Keras: its classes are as they were when no session is open."""

from __future__ import annotations

import threading

import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("tensorflow")

from orca.frameworks.keras.patches import keras_patches, renew_patches  # noqa: E402

METHODS = [
    (keras.losses.Loss, "__call__"),
    (keras.metrics.Mean, "update_state"),
    (keras.layers.Layer, "add_loss"),
    (keras.optimizers.Optimizer, "apply"),
]


def methods() -> list[object]:
    return [getattr(kind, name) for kind, name in METHODS]


def test_classes_are_identical_before_and_after() -> None:
    before = methods()
    with keras_patches():
        assert all(now is not then for now, then in zip(methods(), before, strict=True))
    assert all(now is then for now, then in zip(methods(), before, strict=True))


def test_the_last_of_several_threads_gives_the_classes_their_methods_back() -> None:
    before, opened, done = methods(), threading.Barrier(2), threading.Event()

    def other() -> None:
        with keras_patches():
            opened.wait(10)
            done.wait(10)

    thread = threading.Thread(target=other)
    with keras_patches():
        thread.start()
        opened.wait(10)
        patched = methods()
    assert methods() == patched  # the other one is still open
    done.set()
    thread.join(10)
    assert all(now is then for now, then in zip(methods(), before, strict=True))


def test_an_optimizer_whose_class_is_made_meanwhile_is_patched_and_given_back() -> None:
    with keras_patches():

        class Own(keras.optimizers.SGD):  # type: ignore[misc, name-defined]
            def apply(self, grads, trainable_variables=None):  # type: ignore[no-untyped-def]
                return super().apply(grads, trainable_variables)

        own = vars(Own)["apply"]
        renew_patches()
        assert vars(Own)["apply"] is not own
    assert vars(Own)["apply"] is own
    renew_patches()
    assert vars(Own)["apply"] is own  # no session is open


def test_a_failure_gives_the_methods_back() -> None:
    before = methods()
    with pytest.raises(ZeroDivisionError), keras_patches():
        1 / 0  # noqa: B018
    assert methods() == before
