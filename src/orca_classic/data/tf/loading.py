"""Loading TensorFlow when it is needed. Owns the words for its absence."""

from __future__ import annotations

from typing import Any

from orca.errors import MissingDependency


def tensorflow() -> Any:
    """Return the module.

    Raises:
        MissingDependency: It is not installed.
    """
    try:
        import tensorflow as module
    except ImportError as error:
        raise MissingDependency.of("tensorflow", "keras", "a tf.data.Dataset") from error
    return module
