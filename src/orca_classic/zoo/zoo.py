"""Zoo: the Estimator as programs of Analytics Zoo know it. Owns the differences from ours."""

from __future__ import annotations

from functools import wraps
from typing import Any

import orca.estimators
from orca_classic.zoo.ray import RayHandles


class Estimator(RayHandles, orca.estimators.Estimator):
    """The Estimator whose default backend is "bigdl", and whose `save` writes one torch file at any path.

    With that backend the file is the model's own state dict. Predictions of a DataFrame are ML vectors where 1-D.
    """

    vectors = True
    one_file = True

    @classmethod
    @wraps(vars(orca.estimators.Estimator)["from_torch"].__func__)  # its signature and docstring
    def from_torch(cls, *, backend: str | None = None, **options: Any) -> Any:  # type: ignore[override]
        """Make an Estimator of a PyTorch model, with backend="bigdl" unless another is given."""
        return super().from_torch(backend=backend or "bigdl", **options)
