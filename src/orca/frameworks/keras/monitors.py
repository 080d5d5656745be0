"""Monitors: the numbers that Keras' callbacks watch. Owns when it is certain that no epoch will have one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from orca.core.callbacks.numbers import missing_number
from orca.errors import ArgumentError

_OWN = ("keras.", "tf_keras.")
_RATES = {"learning_rate", "lr"}  # callbacks of Keras add it
_STEPS = ("train_step", "test_step", "compute_metrics", "get_metrics_result")


def has_own_logs(model: Any) -> bool:
    """Return whether a step of the user's own may give other numbers than the loss and the compiled metrics."""
    return any(not getattr(type(model), name).__module__.startswith(_OWN) for name in _STEPS if hasattr(model, name))


def check_kinds(callbacks: Sequence[Any]) -> None:
    """Check that these are callbacks of Keras.

    Raises:
        ArgumentError: One is not.
    """
    for each in callbacks:
        if "on_epoch_end" not in dir(each) or isinstance(each, type):
            raise ArgumentError(
                f"callbacks must be Keras callbacks; got {each!r}. Pass instances such as [EarlyStopping(patience=2)].",
                code="not-a-callback",
            )


def check_validated(callbacks: Sequence[Any], validates: bool) -> None:
    """Check on the driver, for a model without logs of its own, that no callback watches a validation if there is none.

    Raises:
        ArgumentError: One does.
    """
    for whose, monitor in _watched(callbacks):
        if monitor.startswith("val_") and not validates:
            raise missing_number(whose, monitor, "an epoch of this fit will give", ["loss", "the metrics of compile"])


def check_names(callbacks: Sequence[Any], logs: Iterable[str], validates: bool) -> None:
    """Check that epochs will have the numbers that callbacks watch, given the names that a step of training logs.

    Raises:
        ArgumentError: They will not.
    """
    names = set(logs)
    if validates:
        names |= {f"val_{name}" for name in names}
    for whose, monitor in _watched(callbacks):
        if monitor not in names | _RATES:
            raise missing_number(whose, monitor, "an epoch of this fit will give", names)


def _watched(callbacks: Sequence[Any]) -> list[tuple[str, str]]:
    """Return the names of callbacks and of the numbers they watch, up to the first that may add numbers of its own."""
    watched = []
    for callback in callbacks:
        if not type(callback).__module__.startswith(_OWN) or type(callback).__name__ == "LambdaCallback":
            break
        monitor = getattr(callback, "monitor", None)
        if isinstance(monitor, str) and getattr(callback, "save_best_only", True):
            watched.append((type(callback).__name__, monitor))
    return watched
