"""Bigdl: the Estimator as programs of BigDL Orca know it. Owns the differences from ours."""

from __future__ import annotations

import orca.estimators
from orca.classic.mmcv import MMCVRayEstimator
from orca.classic.ray import RayHandles


class Estimator(RayHandles, orca.estimators.Estimator):
    """The Estimator whose predictions lose their dimensions of size 1 but the first.

    Those of a DataFrame are ML vectors where 1-D. Its `save` writes one torch file at any path, with backend="bigdl"
    the model's own state dict. Runners of mmcv are refused.
    """

    vectors = True
    defaults = {"torch": {"squeeze": True}}  # noqa: RUF012
    from_mmcv = MMCVRayEstimator
    one_file = True
