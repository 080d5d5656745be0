"""Places: where callbacks write. Owns that a relative path is one of the driver's, whoever uses it."""

from __future__ import annotations

import os

from orca.errors import ArgumentError


def absolute(name: str, path: str | os.PathLike[str]) -> str:
    """Return a path that means the same in every process of this machine; one with a protocol as it is.

    Args:
        name: The argument's name, for the message.
        path: Any path that fsspec knows.

    Raises:
        ArgumentError: It is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"{name} must be a path; got {type(path).__name__}.")
    text = os.fspath(path)
    if "://" in text or "::" in text:
        return text
    folder = text.endswith("/") or not text
    return os.path.abspath(os.path.expanduser(text)).rstrip("/") + "/" * folder
