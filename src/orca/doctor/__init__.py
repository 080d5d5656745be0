"""Doctor: would training start here, and if not, which line must be set. Owns `examine`; `orca doctor` is its shell.

print(orca.doctor.examine(workers_per_node=2, model_dir="hdfs:///models"))
"""

from __future__ import annotations

from orca.doctor.examination import SURVEY_WITHIN, case_of, diagnose, engine_name
from orca.doctor.finding import Diagnosis, Finding, error, said
from orca.errors import OrcaError

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
        data: Where the data lies, at any fsspec path: its size is compared with disks and memory.
        model_dir: Where checkpoints would go: it is written to, and left as it was.
        limit: Seconds for the workers to start, look around and join.

    Returns:
        The findings, each with the line to set where something is wrong.

    Raises:
        ArgumentError: There is no such backend.
    """
    from orca.doctor import outlook

    engine = engine_name(backend)
    found, size = outlook.size_at(data) if data else ([], None)
    try:
        case = case_of(engine, workers_per_node, data=size, model_dir=model_dir, limit=limit)
    except OrcaError as problem:
        return Diagnosis((*found, no_cluster(engine, problem)))
    return diagnose(case, found)


def no_cluster(engine: str, problem: BaseException) -> Finding:
    """Return the finding that an engine has nothing to run on."""
    start = {"spark": 'init_orca_context(cluster_mode="local", cores=4)', "ray": 'init_orca_context(runtime="ray")'}
    return error("engine", f"there is no cluster for the engine {engine!r}", said(problem), start.get(engine, ""))
