"""Bigdl: the Estimator as programs of BigDL Orca know it. Owns the differences from ours."""

from __future__ import annotations

from functools import wraps
from typing import Any

import orca.estimators
from orca_classic.zoo.mmcv import MMCVRayEstimator
from orca_classic.zoo.ray import RayHandles


class Estimator(RayHandles, orca.estimators.Estimator):
    """The Estimator whose predictions lose their dimensions of size 1 but the first.

    Those of a DataFrame are ML vectors where 1-D. Its `save` writes one torch file at any path, with backend="bigdl"
    the model's own state dict. Runners of mmcv are refused.
    """

    vectors = True
    from_mmcv = MMCVRayEstimator
    one_file = True

    @classmethod
    @wraps(vars(orca.estimators.Estimator)["from_torch"].__func__)  # its signature and docstring
    def from_torch(cls, *, squeeze: bool | None = None, **options: Any) -> Any:  # type: ignore[override]
        """Make an Estimator of a PyTorch model, with squeeze=True unless False is given."""
        return super().from_torch(squeeze=True if squeeze is None else squeeze, **options)
