"""Patches: Keras' own classes, watched while ranks train or evaluate. Owns when they are patched, and by what.

Keras calls losses, metrics and optimizers where it likes, so an agreement of ranks (agree.py) can only see them at
their classes. The patches do nothing on threads without a step of ours.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


class _Thread(threading.local):
    """The agreement whose step runs on this thread, if any."""

    agreement: Any = None


_now = _Thread()


def current() -> Any:
    """Return the agreement whose step runs on this thread, if any."""
    return _now.agreement


@contextmanager
def at_work(agreement: Any) -> Iterator[Any]:
    """Apply an agreement to Keras' classes on this thread; None for no agreement."""
    before = _now.agreement
    _now.agreement = agreement
    try:
        yield agreement
    finally:
        _now.agreement = before


class _Patches:
    """The methods that are patched now, for so many sessions; sessions may be on several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions = 0
        self._methods: list[tuple[type, str, Any, Any]] = []  # class, name, Keras' own method, and ours

    def open(self) -> None:
        """Patch the classes for one more session."""
        with self._lock:
            self._sessions += 1
            self._patch()

    def renew(self) -> None:
        """Patch classes that are new."""
        with self._lock:
            if self._sessions:
                self._patch()

    def close(self) -> None:
        """Give the classes their own methods back when no session needs the patches."""
        with self._lock:
            self._sessions -= 1
            while not self._sessions and self._methods:
                kind, name, original, patched = self._methods.pop()
                if vars(kind).get(name) is patched:  # other code has patched it since
                    setattr(kind, name, original)

    def _patch(self) -> None:
        for family_name in ("keras", "tf_keras"):
            family = sys.modules.get(family_name)
            if family is None or not hasattr(family, "optimizers"):  # not there, or about to be imported
                continue
            self._wrap(family.losses.Loss, "__call__", _watched_loss)
            self._wrap(family.metrics.Mean, "update_state", _watched_mean)
            self._wrap(family.layers.Layer, "add_loss", _watched_layer)
            method = "apply" if family_name == "keras" else "apply_gradients"
            bases = [family.optimizers.Optimizer]
            bases += [family.optimizers.legacy.Optimizer] if family_name == "tf_keras" else []
            for kind in [kind for base in bases for kind in (base, *_kinds_of(base))]:
                self._wrap(kind, method, _watched_apply)

    def _wrap(self, kind: type, name: str, wrapper: Callable[..., Any]) -> None:
        """Patch a method of a class, or of the class that it inherits it from."""
        owner = next(base for base in kind.__mro__ if name in vars(base))
        original = vars(owner)[name]
        if any(patched is original for *_, patched in self._methods):
            return
        patched = functools.wraps(original)(wrapper(original))
        setattr(owner, name, patched)
        self._methods.append((owner, name, original, patched))


_patches = _Patches()


@contextmanager
def keras_patches() -> Iterator[None]:
    """Patch the classes of every Keras that this process has loaded, and those that the user made of them."""
    _patches.open()
    try:
        yield
    finally:
        _patches.close()


def renew_patches() -> None:
    """Patch classes that were made since, if a session is open."""
    _patches.renew()


def _kinds_of(kind: Any) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from _kinds_of(child)


def _watched_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        agreement = current()
        if agreement is None:
            return original(self, y_true, y_pred, sample_weight)
        return agreement.part_of(self, original, y_true, y_pred, sample_weight)

    return call


def _watched_mean(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        agreement = current()
        if agreement is not None and sample_weight is None and _is_number(values) and hasattr(self, "count"):
            sample_weight = agreement.share(self.total.dtype)  # one number of a step counts once, not once a rank
        return original(self, values, sample_weight)

    return update_state


def _watched_layer(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_loss(self: Any, loss: Any = None, **kwargs: Any) -> Any:
        agreement = current()
        loss = kwargs.pop("losses", loss)
        return original(self, loss if agreement is None else agreement.added(self, loss), **kwargs)

    return add_loss


def _watched_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let an optimizer see the gradients of all ranks in place of this rank's own."""
    pairs = original.__name__ == "apply_gradients"

    def apply(self: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        agreement = current()
        if agreement is None:
            return original(self, grads, *args, **kwargs)
        gradients, variables = zip(*grads, strict=True) if pairs else (grads, ())
        gradients = agreement.agreed(gradients)
        weights = variables or (args[0] if args else kwargs.get("trainable_variables")) or self._trainable_variables
        agreement.stepped(self, weights)
        with at_work(None):  # an optimizer inside of this one gets its gradients
            return original(self, zip(gradients, variables, strict=True) if pairs else gradients, *args, **kwargs)

    return apply


def _is_number(values: Any) -> bool:
    return bool((values if hasattr(values, "shape") else tf.convert_to_tensor(values)).shape == ())
