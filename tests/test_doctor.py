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
from orca.cluster.proof import describe
from orca.core.engine import HubPeer
from orca.core.telemetry import Hub, Link
from orca.doctor import Diagnosis, Finding, driver, examination, examine, ranks
from orca.doctor.examination import Case, Surveyed, TimeOver, checked, limited
from orca.doctor.finding import ERROR, OK, WARN, said, without_secrets
from orca.doctor.outlook import Explanation, weight_of
from orca.doctor.survey import Gpus, Report, _knock_at_all, catching_proxies, packed, unpacked, written
from orca.errors import ArgumentError
from orca.estimators import Estimator

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
    found = [finding for finding in diagnosis.about(topic) if finding.level == level]
    assert len(found) == 1, diagnosis.text()
    return found[0]


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
    told = json.loads(Diagnosis(FINDINGS).json())
    assert told["ok"] is False
    assert told["findings"][0] == {
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
    assert said(RuntimeError(text)) == "ModuleNotFoundError: No module named 'orca'"
    assert said(ValueError("plain.\nOf two lines.\n\nAnd a trace")) == "ValueError: plain. Of two lines."
    assert said(KeyboardInterrupt()) == "KeyboardInterrupt"


# Limits


def test_a_check_that_takes_too_long_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "CHECK_WITHIN", 0.1)
    release = threading.Event()

    def slow_check(case: Case) -> list[Finding]:
        release.wait(100)
        return []

    assert checked(slow_check, Case("local")) == [Finding(WARN, "slow check", "could not be checked within 0.1 s")]
    assert not release.is_set()  # the check still runs
    release.set()


def test_a_check_that_fails_is_a_finding() -> None:
    def odd(case: Case) -> list[Finding]:
        raise KeyError("nothing")

    assert checked(odd, Case("local")) == [Finding(WARN, "odd", "could not be checked", "KeyError: 'nothing'")]


def test_limited_raises_what_its_call_raises_and_gives_up_in_time() -> None:
    assert limited(lambda: 3, 5) == 3
    with pytest.raises(ZeroDivisionError):
        limited(lambda: 1 // 0, 5)
    assert limited(lambda: 1 // 0, 5, "otherwise") == "otherwise"
    with pytest.raises(TimeOver, match="longer than 0.05 s"):
        limited(lambda: time.sleep(0.5), 0.05)


# Reports of ranks: what they mean


def report(rank: int, **facts: Any) -> Report:
    plain = Report(
        rank, "10.0.0.1", "a", linked=True, environment=describe(), free=100 * GB, memory=50 * GB, joined=0.1
    )
    return replace(plain, **facts)


def told(*reports: Report, **more: Any) -> Surveyed:
    return Surveyed(len(reports), {one.rank: one for one in reports}, **more)


def test_a_report_travels_as_one_line_that_a_hub_takes() -> None:
    one = report(1)
    line = packed(one)
    assert unpacked(line) == one
    assert len(line) < 64 << 10 and "\n" not in line
    full = report(1, gpus=Gpus(("a",), 2), proxies=("http_proxy",), unreached=((0, "no"),), open_files=None)
    assert unpacked(packed(full)) == full and json.loads(packed(full))["rank"] == 1
    many = replace(describe(), packages={f"package-{number}": "1.0" for number in range(10_000)})
    assert unpacked(packed(report(1, environment=many))).environment == "there are too many packages to tell"


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"rank": 1}', "gASVBQAAAAAAAABLAS4="])
def test_a_line_that_is_no_report_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        unpacked(line)


@pytest.mark.parametrize(
    ("check", "facts", "level", "words"),
    [
        (ranks.hub, {"linked": False}, WARN, ["rank(s) 1 on a cannot reach the driver", "spark.driver.host"]),
        (ranks.disk, {"unwritable": "Read-only", "temporary": "/t"}, ERROR, ["/t: Read-only", "TMPDIR"]),
        (ranks.disk, {"free": GB // 2}, WARN, ["little room", "512.0 MB", "TMPDIR"]),
        (ranks.network, {"unreached": ((0, "timed out"),)}, ERROR, ["rank 1 on a (10.0.0.1) cannot reach rank 0 on a"]),
        (ranks.network, {"host": "127.0.1.1", "node": "b"}, ERROR, ["loopback", "b is 127.0.1.1", "SPARK_LOCAL_IP"]),
        (ranks.gpus, {"gpus": Gpus(("H100",), 1)}, WARN, ["some ranks see GPUs", "rank 1: 1"]),
        (ranks.gpus, {"gpus": Gpus((), 2), "node": "b"}, WARN, ["b has 2 GPU(s) that torch cannot use"]),
        (ranks.limits, {"open_files": 256, "node": "b"}, WARN, ["b may open 256 files", "ulimit -n 65536"]),
        (ranks.versions, {"environment": replace(describe(), python="3.9.1")}, WARN, ["rank(s) 1 on a", "3.9.1"]),
        (ranks.versions, {"environment": "OSError: no"}, WARN, ["rank 1 could not tell its packages", "OSError: no"]),
    ],
)  # fmt: skip
def test_what_a_rank_told_is_named_with_its_rank_and_its_fix(
    check: Any, facts: dict[str, Any], level: str, words: list[str]
) -> None:
    found = [
        finding for finding in check(Case("spark", 2), told(report(0), report(1, **facts))) if finding.level == level
    ]
    assert len(found) == 1
    text = f"{found[0].what} {found[0].got} {found[0].fix}"
    assert all(word in text for word in words), text
    assert found[0].fix or "could not tell" in text


@pytest.mark.parametrize("check", ranks.CHECKS)
def test_ranks_without_trouble_give_no_warning(check: Any) -> None:
    case = Case("spark", 2, data=GB, model=GB, model_dir="d")
    assert {finding.level for finding in check(case, told(report(0), report(1), marked=True))} <= {OK}


def test_another_clock_is_told_with_its_direction() -> None:
    [behind] = ranks.clocks(Case("spark", 2), told(report(0), report(1), late={0: 0.1, 1: 61.0}))
    [ahead] = ranks.clocks(Case("spark", 2), told(report(0), report(1), late={0: -9.0, 1: 0.0}))
    assert behind.what == "the clock of a is 61 s behind the driver's" and "rank(s) 1" in behind.got
    assert ahead.what == "the clock of a is 9 s ahead of the driver's" and ahead.fix.startswith("timedatectl")


def test_data_is_compared_with_the_disk_and_memory_of_the_node_that_has_least() -> None:
    surveyed = told(report(0), report(1, node="b", free=3 * GB, memory=2 * GB))
    [fits] = ranks.disk(Case("spark", 2, data=4 * GB), surveyed)
    [full] = ranks.disk(Case("spark", 2, data=8 * GB), surveyed)
    assert fits.level == OK and "2.0 GB needed" in fits.got
    assert full.level == ERROR and "spool 4.0 GB of data" in full.what and "3.0 GB free" in full.got
    [slow] = ranks.memory(Case("spark", 2, data=8 * GB), surveyed)
    assert slow.level == WARN and "do not fit into memory" in slow.what
    [big] = ranks.memory(Case("spark", 2, model=GB), surveyed)
    assert big.level == WARN and "need about 4.0 GB more" in big.what and "2.0 GB free on b" in big.got


def test_ranks_that_share_a_gpu_are_told_how_many_fit() -> None:
    one = Gpus(("H100",), 1)
    [shared] = ranks.gpus(Case("ray", 2), told(report(0, gpus=one), report(1, gpus=one)))
    assert shared.level == WARN and shared.fix == "workers_per_node=1"
    [own] = ranks.gpus(Case("ray", 2), told(report(0, gpus=one), report(1, gpus=one, node="b")))
    assert own.level == OK and "H100" in own.got


def test_silent_ranks_are_named_when_time_is_over() -> None:
    surveyed = replace(told(report(0)), ranks=3, problem=TimeOver("late"), timed_out=True)
    [late] = ranks.joining(Case("spark", 3, limit=60), surveyed)
    assert late.level == ERROR and "within 60 s; nothing was heard of rank(s) 1, 2" in late.what


def test_a_small_shared_memory_is_told_to_ray_alone() -> None:
    small = told(report(0, shared_memory=64 << 20, open_files=1 << 20))
    [found] = ranks.limits(Case("ray"), small)
    assert "/dev/shm of a is small" in found.what and "--shm-size" in found.fix
    assert list(ranks.limits(Case("spark"), small)) == []


@pytest.mark.parametrize(
    ("variables", "caught"),
    [
        ({"http_proxy": "http://me:pw@proxy:1"}, ("http_proxy",)),
        ({"HTTPS_PROXY": "http://proxy:1", "no_proxy": "localhost"}, ("HTTPS_PROXY",)),
        ({"http_proxy": "http://proxy:1", "NO_PROXY": "localhost, 127.0.0.1"}, ()),
        ({"http_proxy": "http://proxy:1", "no_proxy": "*"}, ()),
        ({"http_proxy": ""}, ()),
    ],
)
def test_proxies_that_catch_loopback_are_found(
    variables: dict[str, str], caught: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert catching_proxies() == caught
    found = list(driver.proxies(Case("ray")))
    assert [finding.fix for finding in found] == ["export no_proxy=localhost,127.0.0.1,$no_proxy"] * bool(caught)
    assert "pw" not in str(found)


@pytest.mark.parametrize(
    ("check", "settings", "level", "words"),
    [
        (driver.settings, {"spark.python.worker.reuse": "false"}, WARN, '{"spark.python.worker.reuse": "true"}'),
        (driver.settings, {"spark.driver.maxResultSize": "1m"}, WARN, '{"spark.driver.maxResultSize": "0"}'),
        (driver.settings, {"spark.driver.maxResultSize": "2g"}, OK, ""),
        (driver.settings, {"spark.executor.pyspark.memory": "512"}, WARN, '{"spark.executor.pyspark.memory": "8g"}'),
        (
            driver.settings,
            {"spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "15s"},
            WARN,
            '{"spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s"}',
        ),
        (driver.overhead, {"spark.master": "yarn", "spark.executor.memory": "2g"}, WARN, "1400m"),
        (driver.overhead, {"spark.master": "yarn", "spark.executor.memoryOverhead": "1024"}, WARN, "1400m"),
        (driver.dynamic_allocation, {"spark.dynamicAllocation.enabled": "TRUE"}, ERROR, "enabled"),
        (driver.dynamic_allocation, {"spark.dynamicAllocation.enabled": "true", "spark.master": "local[2]"}, OK, ""),
    ],
)  # fmt: skip
def test_settings_are_told_with_the_line_to_set(check: Any, settings: dict[str, str], level: str, words: str) -> None:
    case = Case("spark", workers=2, nodes=1, session=SimpleNamespace(conf=settings))
    [found] = check(case)
    assert found.level == level and words in found.fix


def test_enough_overhead_is_not_told() -> None:
    settings = {"spark.master": "yarn", "spark.executor.memoryOverhead": "2g"}
    assert list(driver.overhead(Case("spark", workers=2, session=SimpleNamespace(conf=settings)))) == []


def test_hadoop_configuration_is_looked_into(tmp_path: Path) -> None:
    [none] = driver.hadoop_configuration(None)
    assert none.level == ERROR and none.fix.startswith("export HADOOP_CONF_DIR=")
    Path(tmp_path, "core-site.xml").touch()
    [half] = driver.hadoop_configuration(str(tmp_path))
    assert half.level == ERROR and "lacks yarn-site.xml" in half.what
    Path(tmp_path, "yarn-site.xml").touch()
    [whole] = driver.hadoop_configuration(str(tmp_path))
    assert whole.level == OK


# Doors and storage


def test_ranks_that_cannot_be_reached_are_named_on_every_rank() -> None:
    """Rank 1 has an address that no interface here has (it is for documents alone)."""
    hosts = ["127.0.0.1", "203.0.113.77", "127.0.0.1"]

    def knock(rank: int) -> Any:
        with Link.connect(hub.ticket, rank, patience=20) as link:
            return _knock_at_all(HubPeer(link, rank, 3, hosts[rank]))

    with Hub(3) as hub, ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(knock, range(3)))
    assert [[rank for rank, _ in unreached] for unreached, _ in answers] == [[1], [], [1]]
    assert "cannot listen at 203.0.113.77" in answers[0][0][0][1]
    assert all(pairs == [(0, 1), (2, 1)] for _, pairs in answers)


def test_storage_is_left_as_it_was(tmp_path: Path) -> None:
    with written(str(tmp_path / "new" / "model")) as name:
        assert (tmp_path / "new" / "model" / name).read_bytes() == b"orca"
    assert not (tmp_path / "new" / "model").exists()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine").touch()
    with written(str(tmp_path / "old")):
        pass
    assert os.listdir(tmp_path / "old") == ["mine"]


# Real clusters


def test_processes_of_this_machine_are_examined(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 2048)
    found = examine("local", workers_per_node=2, data=str(tmp_path / "data"), model_dir=str(tmp_path / "model"))
    assert found.ok, found.text()
    assert "2 rank(s) started and joined" in only(found, "ranks", OK).what
    assert "127.0.0.1 (lo" in only(found, "network", OK).got
    assert only(found, "versions", OK).what == "driver and rank(s) 0, 1 run the same Python and packages"
    assert only(found, "data", OK).what.startswith("2 kB at ")
    assert [finding.what for finding in found.about("storage")][1] == "driver and ranks share model_dir"
    assert os.listdir(tmp_path) == ["data"]


def test_a_model_dir_that_cannot_be_written_is_an_error_of_driver_and_rank(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = examine("local", model_dir=str(tmp_path / "file" / "model"), data=str(tmp_path / "missing"))
    assert [finding.topic for finding in found.errors] == ["data", "storage", "storage"], found.text()
    _, here, there = found.errors
    assert here.what.startswith("the driver cannot write to model_dir ") and "NotADirectoryError" in here.got
    assert there.what.startswith("rank 0 on ") and "NotADirectoryError" in there.got
    assert here.fix.startswith("model_dir='…'")


def test_a_local_spark_is_examined(spark: Any, tmp_path: Path) -> None:
    found = examine("spark", workers_per_node=2, model_dir=str(tmp_path))
    assert found.ok, found.text()
    assert "3 slot(s)" in only(found, "slots", OK).got
    assert "Java " in only(found, "java", OK).what
    assert "2 rank(s) started and joined" in only(found, "ranks", OK).what
    assert os.listdir(tmp_path) == []


def test_too_few_slots_are_an_error_with_the_line_that_makes_room(spark: Any) -> None:
    found = examine("bigdl", workers_per_node=4)
    assert [finding.topic for finding in found.errors] == ["slots"], found.text()
    assert found.errors[0].what == "4 workers must run at the same time, and Spark runs 3 task(s) at once"
    assert found.errors[0].fix == "init_orca_context(cores=4, ...), or workers_per_node=3 in the Estimator"
    assert "3 rank(s) started and joined" in only(found, "ranks", OK).what


def test_a_setting_of_spark_that_hurts_is_told_with_a_better_one(spark: Any) -> None:
    name = "spark.sql.execution.arrow.pyspark.enabled"
    spark.conf.set(name, "false")
    try:
        [found] = driver.settings(Case("spark", session=spark))
    finally:
        spark.conf.set(name, "true")
    assert found.level == WARN and found.got == f"{name}=false"
    assert found.fix == f'init_orca_context(..., conf={{"{name}": "true"}})'


def test_ranks_that_do_not_come_in_time_are_ended(spark: Any) -> None:
    found = examine("spark", limit=0.3)
    late = only(found, "ranks", ERROR)
    assert "within 0.3 s" in late.what and late.fix.startswith("orca doctor --limit")
    assert spark.range(3).count() == 3
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 10
    while tracker.getActiveStageIds() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert tracker.getActiveStageIds() == []


def test_a_ray_is_examined(ray_context: Any) -> None:
    found = examine("ray", workers_per_node=2)
    assert found.ok, found.text()
    assert "3 CPU(s) on 1 node(s)" in only(found, "slots", OK).got
    assert "2 rank(s) started and joined" in only(found, "ranks", OK).what


def test_too_few_cpus_of_ray_are_an_error(ray_context: Any) -> None:
    case = examination.case_of("ray", 5)
    [found] = driver.ray_slots(case)
    assert found.level == ERROR and found.what == "5 workers need a CPU each at the same time"
    assert found.fix == 'init_orca_context(runtime="ray", cores=5), or workers_per_node=3'


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
    told = est.explain((x, x[:, 0]), batch_size=32)
    assert isinstance(told, Explanation) and told.ok, str(told)
    lines = dict(told.outlook.lines)
    assert lines["engine"] == "local"
    assert lines["ranks"] == "2 (2 on each of 1 node(s))"
    assert lines["data"] == "Array: 70 rows, about 840 B"
    assert lines["batch"] == "32 rows a step, about 16 of them on each rank"
    assert lines["steps"] == "3 an epoch"
    assert lines["sync"].startswith("replicated: ")
    assert lines["model"] == "12 B of weights"
    assert lines["checkpoints"] == "none: no model_dir"
    assert str(told).splitlines()[0] == "engine       local"
    assert "70 rows" in told._repr_html_() and "<table>" in told._repr_html_()
    assert {"ranks", "network", "gpu"} <= {finding.topic for finding in told.findings}


def test_explain_tells_what_fit_of_a_keras_model_would_do() -> None:
    pytest.importorskip("keras")

    def creator(config: dict[str, Any]) -> Any:
        raise AssertionError("nothing is built to explain")

    x = np.ones((70, 2), np.float32)
    est = Estimator.from_keras(model_creator=creator, backend="local", workers_per_node=2)
    told = est.explain((x, x[:, 0]), batch_size=32, look_around=False)
    lines = dict(told.outlook.lines)
    assert (lines["engine"], lines["ranks"]) == ("local", "2 (2 on each of 1 node(s))")
    assert (lines["data"], lines["steps"]) == ("Array: 70 rows, about 840 B", "3 an epoch")


def test_explain_reads_no_row_of_a_frame_and_asks_the_planner(
    spark: Any, linear: Callable[..., Estimator], tmp_path: Path
) -> None:
    spark.range(1000).selectExpr("array(float(id), 1f) f", "float(id) y").write.parquet(str(tmp_path / "rows"))
    frame = spark.read.parquet(str(tmp_path / "rows"))
    est = linear(backend="bigdl", workers_per_node=2)
    told = est.explain(frame, feature_cols=["f"], label_cols=["y"], look_around=False)
    assert told.ok, str(told)
    assert told.outlook["engine"] == "spark at local[3]"
    assert told.outlook["data"].startswith("Frame: rows are known after the first epoch, about ")
    assert told.outlook["sync"].startswith("sharded: ")
    assert told.outlook["devices"] == "known when the ranks are looked at"
    assert told.diagnosis.about("ranks") == ()


def test_explain_tells_what_is_wrong_with_data(spark: Any, linear: Callable[..., Estimator]) -> None:
    frame = spark.createDataFrame([([1.0, 2.0], 1.0)], "f array<float>, y float")
    told = linear().explain(frame, feature_cols=["f"], look_around=False)
    assert [finding.topic for finding in told.diagnosis.errors] == ["data"]
    assert told.diagnosis.errors[0].fix == "Pass label_cols=['…']."


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
