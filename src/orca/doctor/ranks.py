"""Ranks: the checks of the ranks' reports. Owns the meaning of a report, one function each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from orca.cluster.news import human
from orca.core.processor import FAILS, VARIABLE, WITHOUT_AMX
from orca.core.resources import own_gpu
from orca.doctor.driver import TRAINING, WORKER_BYTES
from orca.doctor.examination import Case, SurveyOutcome, TimeOver
from orca.doctor.finding import Finding, advice, error, ok, summary, warn
from orca.doctor.survey import Report
from orca.errors import ArgumentError, TooFewSlots, WorkerStalled

_SHOWN = 6  # pairs or ranks named one by one
_OWN_ADDRESS = "export SPARK_LOCAL_IP=…   (the node's own address, on each node; or correct its line in /etc/hosts)"
_REACHABLE = "export SPARK_LOCAL_IP=…   (on each node: an address the others reach; and open TCP ports between nodes)"
_SAME = "pip freeze > requirements.txt here, and pip install -r requirements.txt on every node"

# Words of a failure, and the line that most likely helps.
_REMEDIES = {
    "No module named 'orca'": "pip install orca-dl   (on every node, into the Python of PYSPARK_PYTHON)",
    "MissingDependency": "pip install 'orca-dl[torch]'   (on every node)",
    "must run the same": _SAME,
    "no network interface": _OWN_ADDRESS,
    "No usable temporary directory": "export TMPDIR=/a/large/disk",
    "cannot be reached from here": "ray start --node-ip-address=…   (on the driver's node: one that the others reach)",
}


def joining(case: Case, outcome: SurveyOutcome) -> Iterator[Finding]:
    """Tell whether the ranks started and joined, as training needs it."""
    problem = outcome.problem
    if outcome.ranks == 0:
        yield warn("ranks", "the workers were not looked at: the errors come first")
    elif all(report.join_seconds is not None for report in outcome.reports) and problem is None:
        seconds = max(report.join_seconds or 0.0 for report in outcome.reports)
        times = f"{outcome.seconds:.1f} s, joining {seconds:.1f} s"
        yield ok("ranks", f"{outcome.ranks} rank(s) started and joined", times)
    elif isinstance(problem, WorkerStalled | TimeOver):
        yield error(
            "ranks",
            f"the workers did not start and join within {case.limit:g} s",
            problem.reason if isinstance(problem, WorkerStalled) else summary(problem),
            "orca doctor --limit 300   (after a look at what else runs there)",
        )
    elif isinstance(problem, TooFewSlots):
        yield error("slots", "the workers did not get their places", summary(problem), advice(problem))
    elif problem is not None:
        again = "orca.doctor.examine() again after a look at the workers' logs"
        fixes = [line for words, line in _REMEDIES.items() if words in str(problem)]
        yield error("ranks", "the workers did not join", summary(problem), [*fixes, again][0])


def versions(case: Case, outcome: SurveyOutcome) -> Iterator[Finding]:
    """Compare Python and packages of driver and workers."""
    for words in dict.fromkeys(report.different for report in outcome.reports):
        alike = [report for report in outcome.reports if report.different == words]
        if not words:
            yield ok("versions", f"driver and {_ranks(alike)} run the same Python and packages")
            continue
        more = f"; and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
        what = f"{_ranks(alike)} on {_nodes(alike)} run other versions than the driver"
        yield warn("versions", what, "; ".join(words[:_SHOWN]) + more, _SAME)


def network(case: Case, outcome: SurveyOutcome) -> Iterator[Finding]:
    """Name the pairs of ranks that cannot reach each other, and the interfaces that gloo takes."""
    reports = outcome.reports
    pairs = [(report, reports[other], reason) for report in reports for other, reason in report.obstacles]
    for report, other, reason in pairs[:_SHOWN]:
        what = f"rank {report.rank} on {report.node} ({report.host}) cannot reach rank {other.rank} on {other.node}"
        yield error("network", what, reason, _OWN_ADDRESS if other.host.startswith("127.") else _REACHABLE)
    if len(pairs) > _SHOWN:
        yield error("network", f"{len(pairs) - _SHOWN} more pairs of ranks cannot reach each other", "", _OWN_ADDRESS)
    if reports and not pairs:
        places = sorted({f"{report.host} ({report.interface})" for report in reports})
        yield ok("network", "every rank reaches every other", f"gloo binds {', '.join(places[:_SHOWN])}")


def link(case: Case, outcome: SurveyOutcome) -> Iterator[Finding]:
    """Tell whether the workers reach the driver, which hears of failures and progress from them."""
    apart = [report for report in outcome.reports if not report.linked]
    if apart:
        yield warn(
            "driver",
            f"{_ranks(apart)} on {_nodes(apart)} cannot reach the driver: training continues without progress, logs "
            "and quick news of failures",
            f"spark.driver.host={case.setting('spark.driver.host')}",
            'init_orca_context(..., conf={"spark.driver.host": "…"})   (an address of the driver that workers reach)',
        )
    elif outcome.reports:
        yield ok("driver", "every rank reaches the driver")


def disk(case: Case, outcome: SurveyOutcome) -> Iterator[Finding]:
    """Compare the room for temporary files with the data, which each rank spools there."""
    for report, count in _tightest(outcome, lambda report: report.free):
        need = (case.data or 0) * count // outcome.ranks
        free = f"{human(report.free)} free in {report.temporary} of {report.node}"
        away = case.engine == "spark" and not case.master.startswith("local")
        setting = 'init_orca_context(..., conf={"spark.executorEnv.TMPDIR": "/a/large/disk"})'
        fix = setting if away else "export TMPDIR=/a/large/disk"
        if report.free < need:
            yield error("disk", f"the ranks of a node spool {human(need)} of data, and there is no room", free, fix)
        elif report.free < 1 << 30:
            yield warn("disk", "there is little room for temporary files", free, fix)
        else:
            yield ok("disk", "there is room for temporary files", free + (f", {human(need)} needed" if need else ""))


def memory(case: Case, outcome: SurveyOutcome) -> Iterator[Finding]:
    """Compare the memory that is free on each node with the need of its ranks."""
    for report, count in _tightest(outcome, lambda report: report.memory):
        # The ranks are up: they hold torch already, and need the model.
        need = count * (TRAINING * (case.model or 0) or WORKER_BYTES // 4)
        data = (case.data or 0) * count // outcome.ranks
        free = f"{human(report.memory)} free on {report.node}, {count} rank(s) there"
        if report.memory < need:
            fewer = f"workers_per_node={count // 2}" if count > 1 else "shard_model=True, or larger nodes"
            yield warn("memory", f"the ranks of a node need about {human(need)} more", free, fewer)
        elif report.memory < data:
            yield warn(
                "memory",
                f"the {human(data)} of data on a node do not fit into memory: each epoch reads them from disk again",
                free,
                "init_orca_context(num_nodes=…) with more nodes, or nodes with more memory",
            )
        else:
            yield ok("memory", "the ranks fit into memory", free)


def processor(case: Case, outcome: SurveyOutcome) -> Iterator[Finding]:
    """Tell where processors report AMX, and whether it works."""
    reports = [report for report in outcome.reports if report.amx]
    failing = [report for report in reports if report.amx == FAILS]
    if failing:
        seen = sorted({report.onednn for report in failing})
        yield warn(
            "processor",
            f"the processors of {_nodes(failing)} report AMX, and processes that multiply bfloat16 with it die",
            f"the ranks have {VARIABLE}={', '.join(seen)}",
            f"export {VARIABLE}={WITHOUT_AMX}   (also for programs that use torch or TensorFlow alone)",
        )
    elif outcome.reports:
        yield ok("processor", f"AMX works on {_nodes(reports)}" if reports else "no processor reports AMX")


def gpus(case: Case, outcome: SurveyOutcome) -> Iterator[Finding]:
    """Tell which GPUs the ranks see, and where some are missed."""
    yield from _idle_gpus(outcome)
    names = [", ".join(report.gpus) for report in outcome.reports if report.gpus]
    try:
        if outcome.reports:
            own_gpu(0, [report.resources for report in outcome.reports])
    except ArgumentError as refused:
        what, _, remedy = str(refused).partition(". ")
        yield error("gpu", what, names[0] if names else "no GPU is seen", remedy)
    else:
        if names:
            yield ok("gpu", "every rank has a GPU", f"rank 0 sees {names[0]}")
        elif outcome.reports:
            yield ok("gpu", "the ranks train on CPUs", "no GPU is seen")


def _idle_gpus(outcome: SurveyOutcome) -> Iterator[Finding]:
    for report in {report.node: report for report in reversed(outcome.reports)}.values():
        if report.devices and not report.gpus:
            yield warn(
                "gpu",
                f"{report.node} has {report.devices} GPU(s) that torch cannot use: training runs on CPUs",
                "torch.cuda.is_available() is False",
                "a torch built for CUDA (pip install torch), and CUDA_VISIBLE_DEVICES not empty",
            )


def shared_storage(case: Case, outcome: SurveyOutcome) -> Iterator[Finding]:
    """Tell whether the rank that writes checkpoints can, and whether all see the same folder."""
    if not case.model_dir or not outcome.reports:
        return
    first, blind = outcome.reports[0], [report for report in outcome.reports if not report.sees_driver]
    if first.storage:
        yield error(
            "storage",
            f"rank 0 on {first.node}, which writes the checkpoints, cannot write to model_dir {case.model_dir!r}",
            first.storage,
            "model_dir='…', a folder that rank 0 may write to, on storage that all nodes share",
        )
    elif blind:
        yield warn(
            "storage",
            f"{_ranks(blind)} on {_nodes(blind)} see another folder than the driver, which cannot resume from their "
            "checkpoints",
            f"model_dir={case.model_dir!r}",
            "model_dir='hdfs://…', or another path that all nodes share",
        )
    elif outcome.marked:
        yield ok("storage", "driver and ranks share model_dir")


CHECKS: tuple[Callable[[Case, SurveyOutcome], Iterable[Finding]], ...] = (
    joining, versions, network, link, disk, memory, processor, gpus, shared_storage,
)  # fmt: skip


def _ranks(reports: list[Report]) -> str:
    numbers = ", ".join(str(report.rank) for report in reports[:_SHOWN])
    return f"rank(s) {numbers}" + (f" and {len(reports) - _SHOWN} more" if len(reports) > _SHOWN else "")


def _nodes(reports: list[Report]) -> str:
    return ", ".join(sorted({report.node for report in reports})[:_SHOWN])


def _sharing(outcome: SurveyOutcome, report: Report) -> int:
    """Return how many ranks are on the node of a report."""
    return sum(other.node == report.node for other in outcome.reports)


def _tightest(outcome: SurveyOutcome, room: Callable[[Report], int]) -> list[tuple[Report, int]]:
    """Return a report from the node with the least room for each of its ranks, and how many ranks are there."""
    pairs = [(report, _sharing(outcome, report)) for report in outcome.reports]
    return sorted(pairs, key=lambda pair: room(pair[0]) / pair[1])[:1]
