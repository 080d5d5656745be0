"""Zoo: the Estimator as programs of Analytics Zoo know it. Owns the defaults that differ from ours."""

from __future__ import annotations

import orca.estimators
from orca.classic import OlderEstimator


class Estimator(orca.estimators.Estimator, metaclass=OlderEstimator):
    """The Estimator whose default backend is "bigdl"."""

    defaults = {"torch": {"backend": "bigdl"}}  # noqa: RUF012
