"""Zoo: the Estimator as programs of Analytics Zoo know it. Owns the defaults that differ from ours."""

from __future__ import annotations

import orca.estimator


class Estimator(orca.estimator.Estimator):
    """Be the Estimator whose default backend is "bigdl"."""

    default_backend = "bigdl"
