"""Zoo: the Estimator as programs of Analytics Zoo know it. Owns the defaults that differ from ours."""

from __future__ import annotations

import orca.estimators


class Estimator(orca.estimators.Estimator):
    """The Estimator whose default backend is "bigdl"."""

    defaults = {"torch": {"backend": "bigdl"}}  # noqa: RUF012
