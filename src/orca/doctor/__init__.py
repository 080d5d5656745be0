"""Doctor: would training start here, and if not, which line must be set. Owns `examine`; `orca doctor` is its shell.

print(orca.doctor.examine(workers_per_node=2, model_dir="hdfs:///models"))
"""

from __future__ import annotations

from orca.cluster.context import running_engine
from orca.doctor.examination import SURVEY_WITHIN, examined
from orca.doctor.finding import Diagnosis, Finding
from orca.doctor.outlook import size_at
from orca.registry import backend_of

__all__ = ["Diagnosis", "Finding", "examine"]


def examine(
    backend: str | None = None,
    workers_per_node: int = 1,
    data: str | None = None,
    model_dir: str | None = None,
    limit: float = SURVEY_WITHIN,
) -> Diagnosis:
    """Look at the cluster that is up as training would use it; nothing is changed, and nothing stays behind.

    Args:
        backend: The backend of the Estimator; unless given, the cluster that is up.
        workers_per_node: Workers on each node.
        data: The path of the data, of any fsspec kind: its size is compared with disks and memory.
        model_dir: The folder of checkpoints: it is written to, and left as it was.
        limit: Seconds for the workers to start, look around and join.

    Returns:
        The findings, each with the line to set where something is wrong.

    Raises:
        ArgumentError: There is no such backend.
    """
    engine = running_engine(None if backend is None else backend_of(backend).present_engine())
    findings, size = size_at(data) if data else ([], None)
    return examined(engine, workers_per_node, findings, data=size, model_dir=model_dir, limit=limit)[1]
