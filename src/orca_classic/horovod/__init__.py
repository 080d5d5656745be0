"""backend="horovod": Horovod for torch models if it is installed, else Orca's own training with replicas.

Horovod has no wheels and its last release does not build with a current torch (`make horovod` patches it), so that a
program that asks for it trains without it too: both average the same gradients, and the results are equal.
"""

from __future__ import annotations

import logging

from orca.errors import MissingDependency
from orca.registry import Backend

logger = logging.getLogger(__name__)


def backend(framework: str) -> Backend:
    """Return the engine and the sync of backend="horovod", for the framework of an Estimator; warn without Horovod."""
    reason = ""
    if framework != "torch":
        reason = "it trains torch models only"
    else:
        from orca_classic.horovod.ranks import binding

        try:
            binding()
        except MissingDependency as error:
            reason = str(error)
    if reason:
        logger.warning("backend='horovod' trains as backend='ray' does, with the same results: %s", reason)
    return Backend("ray", "replicated" if reason else "orca_classic.horovod.sync:HorovodSync", otherwise="spark")
