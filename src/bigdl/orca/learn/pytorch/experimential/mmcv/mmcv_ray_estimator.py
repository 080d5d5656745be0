"""Runners of mmcv, as bigdl.orca.learn.pytorch.experimential.mmcv.mmcv_ray_estimator names them."""

from orca_classic.zoo.mmcv import MMCVRayEstimator

__all__ = ["MMCVRayEstimator"]
