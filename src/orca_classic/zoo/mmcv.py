"""Mmcv: the runners of mmcv 1.x, as BigDL Orca took them. Owns saying why they are not served."""

from __future__ import annotations

from typing import Any

from orca.errors import NotSupported

__all__ = ["MMCVRayEstimator"]


class MMCVRayEstimator:
    """The Estimator of an mmcv runner, which is refused when it is made: mmcv 2 has no runners any more."""

    def __init__(self, **options: Any) -> None:
        raise NotSupported(
            "mmcv runners are not supported: mmcv has had none since 2.0, and mmcv 1.x is not built for this version "
            "of Python and torch. Train the runner's model with Estimator.from_torch(model=..., optimizer=..., "
            "loss=...); a train_step of its own goes into a TrainingOperator."
        )
