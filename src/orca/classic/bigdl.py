"""Bigdl: the Estimator as programs of BigDL Orca know it. Owns what differs from ours."""

from __future__ import annotations

import orca.estimator


class Estimator(orca.estimator.Estimator):
    """Be the Estimator whose predictions lose their dimensions of size 1 but the first."""

    squeezes = True
