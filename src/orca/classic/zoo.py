"""Zoo: the Estimator as programs of Analytics Zoo know it. Owns the differences from ours."""

from __future__ import annotations

import orca.estimators
from orca.classic.ray import RayHandles


class Estimator(RayHandles, orca.estimators.Estimator):
    """The Estimator whose default backend is "bigdl", and whose `save` writes one torch file at any path.

    With that backend the file is the model's own state dict. Predictions of a DataFrame are ML vectors where 1-D.
    """

    vectors = True
    defaults = {"torch": {"backend": "bigdl"}}  # noqa: RUF012
    one_file = True
