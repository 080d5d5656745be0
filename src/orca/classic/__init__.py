"""Classic: what older programs need beyond a name, written on the core."""

from __future__ import annotations

from typing import Any

from orca.estimators import Estimator


class OlderEstimator(type):
    """The class of Estimators that only have other defaults than ours: what they make is ours, and theirs."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Estimator)
