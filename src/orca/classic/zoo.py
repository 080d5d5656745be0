"""Zoo: the Estimator as programs of Analytics Zoo know it. Owns the defaults that differ from ours."""

from __future__ import annotations

import orca.estimators
from orca.classic.ray import RayHandles


class Estimator(RayHandles, orca.estimators.Estimator):
    """The Estimator whose default backend is "bigdl", and whose `save` writes one torch file at any path.

    With that backend the file is the model's own state dict.
    """

    defaults = {"torch": {"backend": "bigdl"}}  # noqa: RUF012
    one_file = True
