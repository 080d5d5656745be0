from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import orca.doctor
from orca.core.engine import HubPeer
from orca.core.resources import Inventory
from orca.doctor import Diagnosis, Finding, driver, examination, examine, ranks
from orca.doctor.examination import Case, SurveyOutcome, TimeOver, checked, limited
from orca.doctor.finding import ERROR, OK, WARN, advice, summary, without_secrets
from orca.doctor.outlook import Explanation, weight_of
from orca.doctor.survey import Report, knock_at_all, probe_file
from orca.errors import ArgumentError, OrcaError, TooFewSlots, WorkerFailed, WorkerStalled
from orca.estimators import Estimator
from orca.monitor.hub import Hub
from orca.monitor.link import Link

GB = 1 << 30


@pytest.fixture
def linear() -> Iterator[Callable[..., Estimator]]:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)

    def make(**options: Any) -> Estimator:
        rate = torch.optim.SGD(model.parameters(), lr=0.1)
        return Estimator.from_torch(model=model, optimizer=rate, loss=torch.nn.MSELoss(), **options)

    yield make


def only(diagnosis: Diagnosis, topic: str, level: str) -> Finding:
    """Return the one finding of a topic at a level."""
    items = [finding for finding in diagnosis.about(topic) if finding.level == level]
    assert len(items) == 1, diagnosis.text()
    return items[0]


# Findings


FINDINGS = (
    Finding(ERROR, "slots", "4 workers must run at the same time", "3 slots", "init_orca_context(cores=4)"),
    Finding(OK, "java", "Java 17 runs Spark"),
    Finding(WARN, "clock", "the clock is 60 s behind", "rank 1", "timedatectl set-ntp true"),
)


def test_findings_are_aligned_lines_with_the_errors_last() -> None:
    assert str(Diagnosis(FINDINGS)).splitlines() == [
        "ok       java   Java 17 runs Spark",
        "warning  clock  the clock is 60 s behind (rank 1)",
        "                set: timedatectl set-ntp true",
        "error    slots  4 workers must run at the same time (3 slots)",
        "                set: init_orca_context(cores=4)",
        "",
        "training would not start: 1 error, 1 warning",
    ]


def test_a_line_to_set_is_never_broken() -> None:
    line = "init_orca_context(" + "x" * 200 + ", y)"
    assert f"set: {line}" in Diagnosis((Finding(WARN, "slots", "word " * 60, fix=line),)).text()


def test_colours_are_for_terminals_alone() -> None:
    assert "\x1b[31m" in Diagnosis(FINDINGS).text(coloured=True)
    assert "\x1b" not in str(Diagnosis(FINDINGS))


def test_only_errors_keep_training_from_starting() -> None:
    assert not Diagnosis(FINDINGS).ok
    assert Diagnosis(FINDINGS[1:]).ok
    assert Diagnosis(FINDINGS[1:]).verdict() == "training would start: 1 warning"


def test_machines_get_every_field() -> None:
    record = json.loads(Diagnosis(FINDINGS).json())
    assert record["ok"] is False
    assert record["findings"][0] == {
        "level": "error",
        "topic": "slots",
        "what": "4 workers must run at the same time",
        "got": "3 slots",
        "fix": "init_orca_context(cores=4)",
    }


def test_a_notebook_gets_a_table_without_foreign_markup() -> None:
    shown = Diagnosis((Finding(ERROR, "data", "<script>", fix="a & b"),))._repr_html_()
    assert "&lt;script&gt;" in shown and "a &amp; b" in shown and "<script>" not in shown


def test_secrets_of_settings_and_environment_are_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "hunter22")
    text = "at s3://me:pw123456@bucket with abcdef99 and hunter22, fs.token=xyz987 as true"
    finding = Finding(ERROR, "context", text, text, text)
    [clean] = without_secrets([finding], {"spark.authenticate.secret": "abcdef99", "a.secret.flag": "true"})
    expected = "at s3://***@bucket with *** and ***, fs.token=*** as true"
    assert (clean.what, clean.got, clean.fix) == (expected, expected, expected)


def test_an_error_of_a_worker_is_told_by_the_last_line_of_its_trace() -> None:
    text = """Job aborted: [PYTHON_EXCEPTION] An exception was thrown:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    import orca
ModuleNotFoundError: No module named 'orca'

\tat org.apache.spark.api.python.PythonRunner
Caused by: java.lang.Error: other"""
    assert summary(RuntimeError(text)) == "ModuleNotFoundError: No module named 'orca'"
    assert summary(ValueError("plain.\nOf two lines.\n\nAnd a trace")) == "ValueError: plain. Of two lines."
    assert summary(KeyboardInterrupt()) == "KeyboardInterrupt"
    failed = WorkerFailed(1, "node", "OSError: no room", "Traceback (most recent call last):\nOSError: no room")
    assert summary(failed) == "WorkerFailed: rank 1 on node failed: OSError: no room"
    assert advice(OrcaError("this is wrong; got 2.5. Set it right.\nMore.")) == "Set it right."


# Limits


def test_a_check_that_takes_too_long_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "CHECK_WITHIN", 0.1)
    release = threading.Event()

    def slow_check() -> list[Finding]:
        release.wait(100)
        return []

    assert checked("slow_check", slow_check) == [Finding(WARN, "slow check", "could not be checked within 0.1 s")]
    assert not release.is_set()  # the check still runs
    release.set()


def test_a_check_that_fails_is_a_finding() -> None:
    def odd() -> list[Finding]:
        raise KeyError("nothing")

    assert checked("odd", odd) == [Finding(WARN, "odd", "could not be checked", "KeyError: 'nothing'")]


def test_limited_raises_what_its_call_raises_and_gives_up_in_time() -> None:
    assert limited(lambda: 3, 5) == 3
    with pytest.raises(ZeroDivisionError):
        limited(lambda: 1 // 0, 5)
    with pytest.raises(TimeOver, match="longer than 0.05 s"):
        limited(lambda: time.sleep(0.5), 0.05)


# Reports of ranks: what they mean


def report(rank: int, **facts: Any) -> Report:
    facts.setdefault("resources", Inventory(facts.get("node", "a"), [], []))
    return replace(
        Report(rank, "10.0.0.1", "a", free=100 * GB, memory=50 * GB, interface="eth0", join_seconds=0.1), **facts
    )


GPU = Inventory("a", [], [(0, "GPU-1")])


def outcome(*reports: Report, **more: Any) -> SurveyOutcome:
    return SurveyOutcome(len(reports), reports, **more)


@pytest.mark.parametrize(
    ("check", "facts", "level", "words"),
    [
        (ranks.link, {"linked": False}, WARN, ["rank(s) 1 on a cannot reach the driver", "spark.driver.host"]),
        (ranks.disk, {"free": GB // 2}, WARN, ["little room", "537 MB", "TMPDIR"]),
        (ranks.network, {"obstacles": ((0, "timed out"),)}, ERROR, ["rank 1 on a (10.0.0.1) cannot reach rank 0 on a"]),
        (ranks.gpus, {"gpus": ("H100",), "devices": 1, "resources": GPU}, ERROR, ["see 1: worker 0 on a has", "H100"]),
        (ranks.processor, {"amx": "fails", "onednn": "AVX2"}, WARN, ["die", "the ranks have ONEDNN_MAX_CPU_ISA=AVX2"]),
        (ranks.gpus, {"devices": 2, "node": "b"}, WARN, ["b has 2 GPU(s) that torch cannot use"]),
        (ranks.versions, {"different": ("CPython 3.9.1 there",)}, WARN, ["rank(s) 1 on a", "3.9.1", "pip freeze"]),
        (ranks.shared_storage, {"sees_driver": False}, WARN, ["rank(s) 1 on a see another folder", "hdfs://"]),
    ],
)  # fmt: skip
def test_a_finding_about_a_rank_names_it_and_the_line_to_set(
    check: Any, facts: dict[str, Any], level: str, words: list[str]
) -> None:
    case = Case("spark", 2, model_dir="d")
    findings = [one for one in check(case, outcome(report(0), report(1, **facts))) if one.level == level]
    assert len(findings) == 1 and findings[0].fix
    text = f"{findings[0].what} {findings[0].got} {findings[0].fix}"
    assert all(word in text for word in words), text


@pytest.mark.parametrize("check", ranks.CHECKS)
def test_ranks_without_trouble_give_no_warning(check: Any) -> None:
    case = Case("spark", 2, data=GB, model=GB, model_dir="d")
    assert {finding.level for finding in check(case, outcome(report(0), report(1), marked=True))} == {OK}


def test_a_loopback_address_that_others_cannot_reach_is_told_with_its_own_line() -> None:
    looped = report(1, host="127.0.1.1", node="b", join_seconds=None)
    [missed] = ranks.network(
        Case("spark", 2), outcome(report(0, obstacles=((1, "refused"),), join_seconds=None), looped)
    )
    assert missed.level == ERROR and "cannot reach rank 1 on b" in missed.what and "/etc/hosts" in missed.fix


def test_data_is_compared_with_the_disk_and_memory_of_the_node_that_has_least() -> None:
    surveyed = outcome(report(0), report(1, node="b", free=3 * GB, memory=2 * GB))
    [fits] = ranks.disk(Case("spark", 2, data=4 * GB), surveyed)
    [full] = ranks.disk(Case("spark", 2, data=8 * GB), surveyed)
    assert fits.level == OK and "2.1 GB needed" in fits.got
    assert full.level == ERROR and "spool 4.3 GB of data" in full.what and "3.2 GB free" in full.got
    [slow] = ranks.memory(Case("spark", 2, data=8 * GB), surveyed)
    assert slow.level == WARN and "do not fit into memory" in slow.what
    [big] = ranks.memory(Case("spark", 2, model=GB), surveyed)
    assert big.level == WARN and "need about 4.3 GB more" in big.what and "2.1 GB free on b" in big.got


def test_ranks_that_share_a_gpu_are_refused_as_fit_would() -> None:
    seen = {"gpus": ("H100",), "resources": GPU}
    [shared] = ranks.gpus(Case("ray", 2), outcome(report(0, **seen), report(1, **seen)))
    assert shared.level == ERROR and "Lower workers_per_node" in shared.fix
    other = {**seen, "resources": Inventory("b", [], [(0, "GPU-2")])}
    [own] = ranks.gpus(Case("ray", 2), outcome(report(0, **seen), report(1, **other)))
    assert own.level == OK and "H100" in own.got


@pytest.mark.parametrize(
    ("problem", "topic", "words"),
    [
        (WorkerStalled(1, "?", "1 of 3 ranks have started"), "ranks", ["within 60 s", "1 of 3 ranks", "--limit 300"]),
        (TimeOver("late."), "ranks", ["within 60 s", "--limit 300"]),
        (TooFewSlots("3 workers, 2 CPUs. Ask for fewer."), "slots", ["3 workers, 2 CPUs", "Ask for fewer."]),
        (WorkerFailed(0, "a", "ModuleNotFoundError: No module named 'orca'"), "ranks", ["pip install orca-dl"]),
        (WorkerFailed(0, "a", "MissingDependency: torch"), "ranks", ["pip install 'orca-dl[torch]'"]),
        (WorkerFailed(0, "a", "all workers must run the same torch"), "ranks", ["rank 0 on a", "pip freeze"]),
        (OSError("odd"), "ranks", ["OSError: odd", "the workers' logs"]),
    ],
)
def test_a_failure_of_the_ranks_is_told_with_the_line_that_helps(
    problem: Exception, topic: str, words: list[str]
) -> None:
    [failure] = ranks.joining(Case("spark", 3), SurveyOutcome(3, problem=problem))
    text = f"{failure.what} {failure.got} {failure.fix}"
    assert (failure.level, failure.topic) == (ERROR, topic) and all(word in text for word in words), text


@pytest.mark.parametrize(
    ("check", "settings", "level", "words"),
    [
        (driver.settings, {"spark.python.worker.reuse": "false"}, WARN, '{"spark.python.worker.reuse": "true"}'),
        (driver.settings, {"spark.driver.maxResultSize": "1m"}, WARN, '{"spark.driver.maxResultSize": "0"}'),
        (driver.settings, {"spark.driver.maxResultSize": "0"}, OK, ""),
        (
            driver.settings,
            {"spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "15s"},
            WARN,
            '{"spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s"}',
        ),
        (driver.overhead, {"spark.master": "yarn", "spark.executor.memory": "2g"}, WARN, "1400m"),
        (driver.overhead, {"spark.master": "yarn", "spark.executor.memoryOverhead": "1024"}, WARN, "1400m"),
        (driver.allocation, {"spark.dynamicAllocation.enabled": "TRUE"}, ERROR, "enabled"),
        (driver.allocation, {"spark.dynamicAllocation.enabled": "true", "spark.master": "local[2]"}, OK, ""),
    ],
)  # fmt: skip
def test_settings_are_told_with_the_line_to_set(check: Any, settings: dict[str, str], level: str, words: str) -> None:
    case = Case("spark", workers=2, nodes=1, session=SimpleNamespace(conf=settings))
    [items] = check(case)
    assert items.level == level and words in items.fix


def test_enough_overhead_is_not_told() -> None:
    settings = {"spark.master": "yarn", "spark.executor.memoryOverhead": "2g"}
    assert list(driver.overhead(Case("spark", workers=2, session=SimpleNamespace(conf=settings)))) == []


# Doors and storage


def test_ranks_that_cannot_be_reached_are_named_on_every_rank() -> None:
    """Rank 1 has an address that no interface here has (it is for documents alone)."""
    hosts = ["127.0.0.1", "203.0.113.77", "127.0.0.1"]

    def knock(rank: int) -> Any:
        with Link.connect(hub.ticket, rank, patience=20) as link:
            return knock_at_all(HubPeer(link, rank, 3, hosts[rank]))

    with Hub(3) as hub, ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(knock, range(3)))
    assert [[rank for rank, _ in unreached] for unreached, _ in answers] == [[1], [], [1]]
    assert "cannot listen at 203.0.113.77" in answers[0][0][0][1]
    assert all(apart for _, apart in answers)


def test_storage_is_left_as_it_was(tmp_path: Path) -> None:
    with probe_file(str(tmp_path / "new" / "model")) as name:
        assert (tmp_path / "new" / "model" / name).read_bytes() == b"orca"
    assert not (tmp_path / "new" / "model").exists()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine").touch()
    with probe_file(str(tmp_path / "old")):
        pass
    assert os.listdir(tmp_path / "old") == ["mine"]


# Real clusters


def test_processes_of_this_machine_are_examined(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 2048)
    items = examine("local", workers_per_node=2, data=str(tmp_path / "data"), model_dir=str(tmp_path / "model"))
    assert items.ok, items.text()
    assert "2 rank(s) started and joined" in only(items, "ranks", OK).what
    assert "127.0.0.1 (lo" in only(items, "network", OK).got
    assert only(items, "versions", OK).what == "driver and rank(s) 0, 1 run the same Python and packages"
    assert only(items, "data", OK).what.startswith("2 kB at ")
    assert [finding.what for finding in items.about("storage")][1] == "driver and ranks share model_dir"
    assert os.listdir(tmp_path) == ["data"]


def test_a_model_dir_that_cannot_be_written_is_an_error_of_driver_and_rank(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    items = examine("local", model_dir=str(tmp_path / "file" / "model"), data=str(tmp_path / "missing"))
    assert [finding.topic for finding in items.errors] == ["data", "storage", "storage"], items.text()
    _, here, there = items.errors
    assert here.what.startswith("the driver cannot write to model_dir ") and "NotADirectoryError" in here.got
    assert there.what.startswith("rank 0 on ") and "NotADirectoryError" in there.got
    assert here.fix.startswith("model_dir='…'")


def test_a_local_spark_is_examined(spark: Any, tmp_path: Path) -> None:
    items = examine("spark", workers_per_node=2, model_dir=str(tmp_path))
    assert items.ok, items.text()
    assert only(items, "slots", OK).got == "Spark runs 3 task(s) at once"
    assert "Java " in only(items, "java", OK).what
    assert "2 rank(s) started and joined" in only(items, "ranks", OK).what
    assert os.listdir(tmp_path) == []


def test_too_few_slots_are_an_error_with_the_line_that_makes_room(spark: Any) -> None:
    items = examine("bigdl", workers_per_node=4)
    assert [finding.topic for finding in items.errors] == ["slots"], items.text()
    assert items.errors[0].what == "4 workers must run at the same time, and Spark runs 3 task(s) at once"
    assert items.errors[0].fix == "init_orca_context(cores=4, ...), or workers_per_node=3 in the Estimator"
    assert "3 rank(s) started and joined" in only(items, "ranks", OK).what


def test_a_setting_of_spark_that_hurts_is_told_with_a_better_one(spark: Any) -> None:
    name = "spark.sql.execution.arrow.pyspark.enabled"
    spark.conf.set(name, "false")
    try:
        [items] = driver.settings(Case("spark", session=spark))
    finally:
        spark.conf.set(name, "true")
    assert items.level == WARN and items.got == f"{name}=false"
    assert items.fix == f'init_orca_context(..., conf={{"{name}": "true"}})'


def test_ranks_that_do_not_come_in_time_are_ended(spark: Any, tmp_path: Path) -> None:
    context = spark.sparkContext
    tracker, released = context.statusTracker(), tmp_path / "released"

    def wait(number: int) -> None:
        while not released.exists():
            time.sleep(0.1)

    others = threading.Thread(target=lambda: context.parallelize(range(3), 3).foreach(wait))
    others.start()
    try:
        assert soon(lambda: sum(tracker.getStageInfo(s).numActiveTasks for s in tracker.getActiveStageIds()) == 3)
        items = examine("spark", limit=0.5)
    finally:
        released.touch()
        others.join()
    late = only(items, "ranks", ERROR)
    assert "within 0.5 s" in late.what and late.fix.startswith("orca doctor --limit")
    assert spark.range(3).count() == 3
    assert soon(lambda: tracker.getActiveStageIds() == [])


def soon(happens: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.1)
    return happens()


def test_a_ray_is_examined(ray_context: Any) -> None:
    items = examine("ray", workers_per_node=2)
    assert items.ok, items.text()
    assert only(items, "slots", OK).got == "Ray has 3 CPU(s)"
    assert "2 rank(s) started and joined" in only(items, "ranks", OK).what


def test_too_few_cpus_of_ray_are_an_error(ray_context: Any) -> None:
    [failure] = driver.slots(Case("ray", 5))
    assert failure.level == ERROR and failure.what == "5 workers must run at the same time, and Ray has 3 CPU(s)"
    assert failure.fix == 'init_orca_context(runtime="ray", cores=5, ...), or workers_per_node=3 in the Estimator'


def test_no_cluster_is_an_error_with_the_line_that_starts_one(run_program: Callable[..., Any]) -> None:
    program = run_program(
        """
        import orca.doctor

        print(orca.doctor.examine("spark"))
        print(orca.doctor.examine("ray"))
        """
    )
    assert 'set: init_orca_context(cluster_mode="local", cores=4)' in program.stdout
    assert 'set: init_orca_context(runtime="ray")' in program.stdout


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ArgumentError, match="backend must be one of"):
        examine("sparc")


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nsenter"), reason="needs root, ip and nsenter"
)
def test_nodes_that_reach_the_driver_but_not_each_other_are_named(run_program: Callable[..., Any]) -> None:
    """Two workers in networks of their own, with the driver between them, which forwards nothing."""
    program = run_program(APART, timeout=240)
    lines = re.findall(r"rank (\d) on \S+ \(10\.77\.\d\.2\) cannot reach rank (\d)", program.stdout)
    assert sorted(lines) == [("0", "1"), ("1", "0")]
    assert program.stdout.count("timed out") == 2
    assert "ok       driver      every rank reaches the driver" in program.stdout
    assert "training would not start: 2 errors" in program.stdout


APART = """
import apart
from orca import init_orca_context, stop_orca_context
from orca.doctor import examine

with apart.two_nodes(forward=False):
    where = {"master": apart.MASTER, "cores": 1, "num_nodes": 2, "memory": "512m"}
    init_orca_context("standalone", conf=apart.CONF, **where)
    print(examine())
    stop_orca_context()
"""


# What fit would do


def test_explain_tells_what_fit_would_do(linear: Callable[..., Estimator]) -> None:
    x = np.ones((70, 2), np.float32)
    est = linear(backend="local", workers_per_node=2)
    results = est.explain((x, x[:, 0]), batch_size=32)
    assert isinstance(results, Explanation) and results.ok, str(results)
    lines = dict(results.outlook.lines)
    assert lines["engine"] == "local"
    assert lines["ranks"] == "2 (2 on each of 1 node(s))"
    assert lines["data"] == "Array: 70 rows, about 840 B"
    assert lines["batch"] == "32 rows a step, about 16 of them on each rank"
    assert lines["steps"] == "3 an epoch"
    assert lines["sync"].startswith("replicated: ")
    assert lines["model"] == "12 B of weights"
    assert lines["checkpoints"] == "none: no model_dir"
    assert str(results).splitlines()[0] == "engine       local"
    assert "70 rows" in results._repr_html_() and "<table>" in results._repr_html_()
    assert {"ranks", "network", "gpu"} <= {finding.topic for finding in results.findings}


def test_explain_tells_what_fit_of_a_keras_model_would_do() -> None:
    pytest.importorskip("keras")

    def creator(config: dict[str, Any]) -> Any:
        raise AssertionError("nothing is built to explain")

    x = np.ones((70, 2), np.float32)
    est = Estimator.from_keras(model_creator=creator, backend="local", workers_per_node=2)
    results = est.explain((x, x[:, 0]), batch_size=32, look_around=False)
    lines = dict(results.outlook.lines)
    assert (lines["engine"], lines["ranks"]) == ("local", "2 (2 on each of 1 node(s))")
    assert (lines["data"], lines["steps"]) == ("Array: 70 rows, about 840 B", "3 an epoch")


def test_explain_reads_no_row_of_a_frame_and_asks_the_planner(
    spark: Any, linear: Callable[..., Estimator], tmp_path: Path
) -> None:
    spark.range(1000).selectExpr("array(float(id), 1f) f", "float(id) y").write.parquet(str(tmp_path / "rows"))
    frame = spark.read.parquet(str(tmp_path / "rows"))
    est = linear(backend="bigdl", workers_per_node=2)
    results = est.explain(frame, feature_cols=["f"], label_cols=["y"], look_around=False)
    assert results.ok, str(results)
    assert results.outlook["engine"] == "spark at local[3]"
    assert results.outlook["data"].startswith("Frame: rows are known after the first epoch, about ")
    assert results.outlook["sync"].startswith("sharded: ")
    assert results.outlook["devices"] == "known when the ranks are looked at"
    assert results.diagnosis.about("ranks") == ()


def test_explain_tells_what_is_wrong_with_data(spark: Any, linear: Callable[..., Estimator]) -> None:
    frame = spark.createDataFrame([([1.0, 2.0], 1.0)], "f array<float>, y float")
    results = linear().explain(frame, feature_cols=["f"], look_around=False)
    assert [finding.topic for finding in results.diagnosis.errors] == ["data"]
    assert results.diagnosis.errors[0].fix == "Pass label_cols=['…']."


def test_explain_works_before_there_is_a_cluster(run_program: Callable[..., Any]) -> None:
    program = run_program(
        """
        import numpy as np
        import torch
        from orca import Estimator

        model = torch.nn.Linear(2, 1)
        est = Estimator.from_torch(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                                   loss=torch.nn.MSELoss(), backend="spark")
        x = np.ones((70, 2), np.float32)
        told = est.explain((x, x[:, 0]))
        print(told)
        print(told.ok)
        """
    )
    assert 'set: init_orca_context(cluster_mode="local", cores=4)' in program.stdout
    assert program.stdout.endswith("False\n")


def test_the_size_of_a_model_is_known_without_building_it(linear: Callable[..., Estimator]) -> None:
    torch = pytest.importorskip("torch")
    assert weight_of(linear(backend="local").learner, None) == 12
    creator = Estimator.from_torch(
        model=lambda config: torch.nn.Linear(2, 1),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.MSELoss(),
        backend="local",
    )
    assert weight_of(creator.learner, None) is None


def test_the_module_is_found_as_the_documents_name_it() -> None:
    assert orca.doctor.examine is examine
