"""Ranks: the checks of what the ranks told. Owns what their reports mean, one function each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from orca.doctor.driver import WORKER_BYTES, caught, size
from orca.doctor.examination import Case, Surveyed
from orca.doctor.finding import Finding, error, ok, said, warn
from orca.doctor.survey import Report
from orca.errors import MissingDependency, TooFewSlots

_SKEW = 5.0  # seconds by which clocks may differ
_FILES = {"ray": 4096}  # files a process needs; Ray's hold a connection to every other
_FEWEST_FILES = 1024
_SMALLEST_SHARED = 1 << 30
_SHOWN = 6  # pairs or ranks named one by one
_OWN_ADDRESS = "export SPARK_LOCAL_IP=…   (the node's own address, on each node; or correct its line in /etc/hosts)"
_SAME = "pip freeze > requirements.txt here, and pip install -r requirements.txt on every node"
_TRAINING = 4  # times its weights that a model needs in training: weights, gradients and two moments of Adam


def joining(case: Case, told: Surveyed) -> Iterator[Finding]:
    """Tell whether the ranks started and joined, as training needs it."""
    if told.ranks == 0:
        yield warn("ranks", "the workers were not looked at: the errors come first")
        return
    problem = told.problem
    if problem is None:
        seconds = max((report.joined or 0.0) for report in told.reports.values())
        yield ok("ranks", f"{told.ranks} rank(s) started and joined", f"{told.seconds:.1f} s, joining {seconds:.1f} s")
        return
    text = str(problem)
    if any(report.unreached for report in told.reports.values()):
        return  # told by `network`, pair by pair
    if "SPARK-24942" in text or isinstance(problem, TooFewSlots):
        return  # told by the checks of allocation and slots
    missing = sorted(set(range(told.ranks)) - set(told.reports))
    silent = f"; nothing was heard of rank(s) {_listed(missing)}" if missing else ""
    if told.timed_out:
        yield error(
            "ranks",
            f"the workers did not start and join within {case.limit:g} s{silent}",
            "the cluster is busy with other work, or its nodes do not answer",
            "orca doctor --limit 300   (after a look at what else runs there)",
        )
    elif "No module named 'orca'" in text:
        yield error("ranks", "the workers cannot import orca", said(problem), _python(case))
    elif isinstance(problem, MissingDependency) or "MissingDependency" in text:
        yield error(
            "ranks", "the workers lack a package", said(problem), "pip install 'orca-dl[torch]'   (on every node)"
        )
    else:
        yield error("ranks", f"the workers did not join{silent}", said(problem), _remedy(case, text))


def versions(case: Case, told: Surveyed) -> Iterator[Finding]:
    """Compare Python and packages of driver and workers."""
    if not told.reports:
        return
    from orca.cluster.proof import describe, differences

    level = warn if told.problem is None else error
    mine = describe()
    different: dict[tuple[str, ...], list[int]] = {}
    for rank, report in sorted(told.reports.items()):
        if isinstance(report.environment, str):
            yield warn("versions", f"rank {rank} could not tell its packages", report.environment)
            continue
        different.setdefault(tuple(differences(mine, report.environment)), []).append(rank)
    for words, ranks in different.items():
        if not words:
            yield ok("versions", f"driver and rank(s) {_listed(ranks)} run the same Python and packages")
            continue
        yield level(
            "versions",
            f"rank(s) {_listed(ranks)} on {_nodes(told, ranks)} run other versions than the driver",
            "; ".join(words[:_SHOWN]) + (f"; and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""),
            _SAME,
        )


def network(case: Case, told: Surveyed) -> Iterator[Finding]:
    """Name the pairs of ranks that cannot reach each other, and the interfaces that gloo takes."""
    reports = told.reports
    pairs = [(report, *miss) for _, report in sorted(reports.items()) for miss in report.unreached]
    for report, other, why in pairs[:_SHOWN]:
        there = f" on {reports[other].node}" if other in reports else ""
        yield error(
            "network",
            f"rank {report.rank} on {report.node} ({report.host}) cannot reach rank {other}{there}",
            why,
            "export SPARK_LOCAL_IP=…   (on each node: an address the others reach; and open TCP ports between nodes)",
        )
    if len(pairs) > _SHOWN:
        yield error("network", f"{len(pairs) - _SHOWN} more pairs of ranks cannot reach each other")
    nodes = {report.node for report in reports.values()}
    looped = sorted(report.rank for report in reports.values() if report.host.startswith("127."))
    if looped and len(nodes) > 1:
        yield error(
            "network",
            f"rank(s) {_listed(looped)} have a loopback address, at which other machines cannot reach them",
            f"{reports[looped[0]].node} is {reports[looped[0]].host}",
            _OWN_ADDRESS,
        )
    elif reports and not pairs:
        places = sorted({f"{r.host}{f' ({r.interface})' if r.interface else ''}" for r in reports.values()})
        yield ok("network", "every rank reaches every other", f"gloo binds {', '.join(places[:_SHOWN])}")


def hub(case: Case, told: Surveyed) -> Iterator[Finding]:
    """Tell whether the workers reach the driver, which hears of failures and progress from them."""
    lost = sorted(rank for rank, report in told.reports.items() if not report.linked)
    if lost:
        yield warn(
            "driver",
            f"rank(s) {_listed(lost)} on {_nodes(told, lost)} cannot reach the driver: training goes on without "
            "progress, logs and quick news of failures",
            f"spark.driver.host={case.setting('spark.driver.host')}",
            'init_orca_context(..., conf={"spark.driver.host": "…"})   (an address of the driver that workers reach)',
        )
    elif told.reports:
        yield ok("driver", "every rank reaches the driver")


def clocks(case: Case, told: Surveyed) -> Iterator[Finding]:
    """Compare the clocks of driver and workers."""
    off = {rank: late for rank, late in told.late.items() if abs(late) > _SKEW}
    if off:
        rank = max(off, key=lambda number: abs(off[number]))
        way = "behind" if off[rank] > 0 else "ahead of"
        yield warn(
            "clock",
            f"the clock of {told.reports[rank].node} is {abs(off[rank]):.0f} s {way} the driver's",
            f"rank(s) {_listed(sorted(off))}: Kerberos refuses 5 minutes, and checkpoints are named by time",
            "timedatectl set-ntp true   (on every node)",
        )
    elif told.late:
        yield ok("clock", "the clocks agree", f"within {max(abs(late) for late in told.late.values()):.1f} s")


def disk(case: Case, told: Surveyed) -> Iterator[Finding]:
    """Compare the room for temporary files with the data, which each rank spools there."""
    for rank, report in sorted(told.reports.items()):
        if report.unwritable:
            yield error(
                "disk",
                f"rank {rank} on {report.node} cannot write to its temporary folder",
                f"{report.temporary}: {report.unwritable}",
                _temporary(case),
            )
    tightest = _tightest(told, lambda report: report.free)
    if tightest is None:
        return
    report, sharing = tightest
    need = None if case.data is None else case.data * sharing // max(1, told.ranks)
    free = f"{size(report.free)} free in {report.temporary} of {report.node}"
    if need is not None and report.free < need:
        yield error(
            "disk", f"the ranks of a node spool {size(need)} of data, and there is no room", free, _temporary(case)
        )
    elif report.free < 1 << 30:
        yield warn("disk", "there is little room for temporary files", free, _temporary(case))
    else:
        yield ok("disk", "there is room for temporary files", free + (f", {size(need)} needed" if need else ""))


def memory(case: Case, told: Surveyed) -> Iterator[Finding]:
    """Compare the memory that is free on each node with what its ranks need."""
    tightest = _tightest(told, lambda report: report.memory)
    if tightest is None:
        return
    report, sharing = tightest
    model = _TRAINING * (case.model or 0)
    # The ranks are up: they hold torch already, and need the model.
    need = sharing * (model or WORKER_BYTES // 4)
    free = f"{size(report.memory)} free on {report.node}, {sharing} rank(s) there"
    data = None if case.data is None else case.data * sharing // max(1, told.ranks)
    if report.memory < need:
        yield warn(
            "memory",
            f"the ranks of a node need about {size(need)} more",
            free,
            f"workers_per_node={max(1, sharing // 2)}" if sharing > 1 else "shard_model=True, or larger nodes",
        )
    elif data is not None and report.memory < data:
        yield warn(
            "memory",
            f"the {size(data)} of data on a node do not fit into memory: each epoch reads them from disk again",
            free,
            "init_orca_context(num_nodes=…) with more nodes, or nodes with more memory",
        )
    else:
        yield ok("memory", "the ranks fit into memory", free)


def gpus(case: Case, told: Surveyed) -> Iterator[Finding]:
    """Tell which GPUs the ranks see, and where some are missed."""
    if not told.reports:
        return
    reports = told.reports.values()
    seen = sorted({len(report.gpus.seen) for report in reports})
    for report in _one_a_node(reports):
        if report.gpus.known and not report.gpus.seen:
            yield warn(
                "gpu",
                f"{report.node} has {report.gpus.known} GPU(s) that torch cannot use: training runs on CPUs",
                "nvidia-smi lists them; torch.cuda.is_available() is False",
                "a torch built for CUDA (pip install torch), and CUDA_VISIBLE_DEVICES not empty",
            )
    sharing = [r for r in _one_a_node(reports) if 0 < len(r.gpus.seen) < _on_node(told, r)]
    if len(seen) > 1:
        yield warn(
            "gpu",
            "some ranks see GPUs and others do not: all of them talk over gloo, and wait for the slowest",
            ", ".join(f"rank {report.rank}: {len(report.gpus.seen)}" for report in list(reports)[:_SHOWN]),
            "nodes that are alike; or hide the GPUs: export CUDA_VISIBLE_DEVICES=",
        )
    elif sharing:
        count = len(sharing[0].gpus.seen)
        yield warn(
            "gpu", f"{_on_node(told, sharing[0])} ranks share {count} GPU(s) of a node: they talk over gloo, not NCCL",
            ", ".join(sharing[0].gpus.seen[:_SHOWN]), f"workers_per_node={count}",
        )  # fmt: skip
    elif seen == [0]:
        yield ok("gpu", "the ranks train on CPUs", "no GPU is seen")
    else:
        yield ok("gpu", "every rank has a GPU", f"{seen[0]} a node: {next(iter(reports)).gpus.seen[0]}")


def limits(case: Case, told: Surveyed) -> Iterator[Finding]:
    """Look for limits of the workers' processes that are too low, and proxies that catch their connections."""
    fewest = _FILES.get(case.engine, _FEWEST_FILES)
    for report in _one_a_node(told.reports.values()):
        if report.open_files is not None and report.open_files < fewest:
            yield warn(
                "limits",
                f"processes of {report.node} may open {report.open_files} files only",
                f"ulimit -n is below {fewest}",
                "ulimit -n 65536   (before Spark or Ray is started there)",
            )
        if case.engine == "ray" and report.shared_memory is not None and report.shared_memory < _SMALLEST_SHARED:
            yield warn(
                "limits",
                f"/dev/shm of {report.node} is small: Ray keeps its objects on disk instead",
                size(report.shared_memory),
                "docker run --shm-size=4g ...   (or: mount -o remount,size=4g /dev/shm)",
            )
        if case.engine == "ray" or case.connect:
            yield from caught(report.proxies, report.node)


def shared_storage(case: Case, told: Surveyed) -> Iterator[Finding]:
    """Tell whether the rank that writes checkpoints can, and whether all see the same folder."""
    if not case.model_dir or not told.reports:
        return
    first = told.reports.get(0)
    if first is not None and first.storage:
        yield error(
            "storage",
            f"rank 0 on {first.node}, which writes the checkpoints, cannot write to model_dir {case.model_dir!r}",
            first.storage,
            "model_dir='…', a folder that rank 0 may write to, on storage that all nodes share",
        )
    blind = sorted(rank for rank, report in told.reports.items() if not report.sees_driver)
    if blind and not (first is not None and first.storage):
        yield warn(
            "storage",
            f"rank(s) {_listed(blind)} on {_nodes(told, blind)} see another folder than the driver, which "
            "cannot go on from their checkpoints",
            f"model_dir={case.model_dir!r}",
            "model_dir='hdfs://…', or another path that all nodes share",
        )
    elif not blind and told.marked:
        yield ok("storage", "driver and ranks share model_dir")


CHECKS: tuple[Callable[[Case, Surveyed], Iterable[Finding]], ...] = (
    joining, versions, network, hub, clocks, disk, memory, gpus, limits, shared_storage,
)  # fmt: skip


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    return f"{shown} and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else shown


def _nodes(told: Surveyed, ranks: list[int]) -> str:
    return ", ".join(sorted({told.reports[rank].node for rank in ranks})[:_SHOWN])


def _one_a_node(reports: Iterable[Report]) -> list[Report]:
    return list({report.node: report for report in sorted(reports, key=lambda report: -report.rank)}.values())


def _on_node(told: Surveyed, report: Report) -> int:
    return sum(other.node == report.node for other in told.reports.values())


def _tightest(told: Surveyed, room: Callable[[Report], int]) -> tuple[Report, int] | None:
    """Return a report from the node with the least room for each of its ranks, and how many ranks are there."""
    if not told.reports:
        return None
    report = min(told.reports.values(), key=lambda report: room(report) / _on_node(told, report))
    return report, _on_node(told, report)


def _temporary(case: Case) -> str:
    if case.engine == "spark" and not case.alone:
        return 'init_orca_context(..., conf={"spark.executorEnv.TMPDIR": "/a/large/disk"})'
    return "export TMPDIR=/a/large/disk"


def _python(case: Case) -> str:
    """Return the line that gives the workers a Python with Orca in it."""
    if case.engine == "spark" and case.alone:
        return f"export PYSPARK_PYTHON={sys.executable}   (before Spark is started)"
    return "pip install orca-dl   (on every node, into the Python that its workers run)"


def _remedy(case: Case, text: str) -> str:
    """Return the line that most likely helps against what ended the ranks."""
    if "no network interface" in text:
        return _OWN_ADDRESS
    if "must run the same" in text:
        return _SAME
    if "cannot be reached from here" in text:
        return "ray start --node-ip-address=…   (on the driver's node: an address that the others reach)"
    return "orca.doctor.examine() again after a look at the workers' logs"
