"""Runners of mmcv: refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from orca.errors import NotSupported
from orca_classic.zoo.bigdl import Estimator
from orca_classic.zoo.mmcv import MMCVRayEstimator


@pytest.mark.parametrize("make", [MMCVRayEstimator, Estimator.from_mmcv])
def test_runner_of_mmcv_is_refused_with_what_to_use_instead(make: Any) -> None:
    with pytest.raises(NotSupported, match=r"mmcv runners are not supported.*Estimator\.from_torch"):
        make(mmcv_runner_creator=print, workers_per_node=2)
