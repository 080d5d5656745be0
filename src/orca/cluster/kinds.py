"""Kinds: every word that cluster_mode takes. Owns the table, and the default."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass

from orca.cluster.spark import Kind, Local, Request, Submitted
from orca.cluster.standalone import Standalone
from orca.cluster.yarn import INSIDE, SUBMITTED, YarnClient, YarnCluster, YarnSubmitted
from orca.errors import NotYet


@dataclass(frozen=True)
class Later(Kind):
    """A kind that is promised and not built yet."""

    word: str

    def settings(self, request: Request, life: ExitStack) -> dict[str, str]:
        """Refuse, naming the kinds that work today."""
        raise NotYet(
            f"cluster_mode={self.word!r} is not built yet. Start the program with spark-submit and use "
            "cluster_mode='spark-submit', or use 'local', 'standalone', 'yarn-client' or 'yarn-cluster'.",
            code="cluster-mode-not-built",
        )


KINDS: dict[str, Kind] = {
    "local": Local(),
    "standalone": Standalone(),
    "yarn-client": YarnClient(),
    "yarn": YarnClient(),
    "yarn-cluster": YarnCluster(),
    "spark-submit": Submitted(),
    "bigdl-submit": Submitted(),
    **{word: Later(word) for word in ("k8s", "k8s-client", "k8s-cluster")},
}


def kind_of(word: str) -> Kind:
    """Return the kind of cluster that a word means here; a program of `orca submit` on YARN has its own."""
    if SUBMITTED in os.environ:
        return YarnSubmitted()
    return KINDS["yarn-cluster"] if INSIDE in os.environ else KINDS[word]


def launcher_kind() -> str:
    """Return the word that cluster_mode=None stands for here: the launcher's cluster, or local."""
    return "spark-submit" if "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ else "local"
