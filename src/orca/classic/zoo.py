"""Zoo: the Estimator as programs of Analytics Zoo know it. Owns the defaults that differ from ours."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import orca.estimator


class Estimator(orca.estimator.Estimator):
    """Be the Estimator whose default backend is "bigdl"."""

    @staticmethod
    def from_torch(*, backend: str = "bigdl", **arguments: Any) -> orca.estimator.Estimator:
        """Make an Estimator of a PyTorch model: orca.Estimator.from_torch with "bigdl" as the default backend."""
        made = orca.estimator.Estimator.from_torch(backend=backend, **arguments)
        made.__class__ = Estimator  # as isinstance of what the program imported expects
        return made


# What help() and an editor show: every argument, with the default that holds here.
vars(Estimator.from_torch)["__signature__"] = inspect.signature(
    partial(orca.estimator.Estimator.from_torch, backend="bigdl")
)
