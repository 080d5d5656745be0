"""The Hadoop on loopback that `make yarn-up` starts: it stores, it schedules, it goes away."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "hadoop.py"
DAEMONS = ["namenode", "datanode", "resourcemanager", "nodemanager-node1", "nodemanager-node2"]

needs_java = pytest.mark.skipif(
    not (os.environ.get("JAVA_HOME") or shutil.which("java")), reason="no Java: JAVA_HOME is unset, no java on the PATH"
)
needs_maven = pytest.mark.skipif(not shutil.which("mvn"), reason="no Maven (mvn), which fetches Hadoop's jars")


def hadoop(action: str, run: Path, *args: str) -> subprocess.CompletedProcess[str]:
    said = subprocess.run([sys.executable, str(TOOL), action, "--run", str(run), *args], capture_output=True, text=True)
    print(said.stdout, said.stderr)
    return said


def settings(run: Path) -> dict[str, str]:
    items = {}
    for file in (run / "conf").glob("*-site.xml"):
        for each in ElementTree.parse(file).iter("property"):
            items[each.findtext("name", "")] = each.findtext("value", "")
    return items


def processes(run: Path) -> dict[str, psutil.Process]:
    """Return what runs for a run folder, found without the tool: daemons by their name, containers by number."""
    items = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get("ORCA_HADOOP_RUN") == str(run) and process.status() != psutil.STATUS_ZOMBIE:
                named = re.search(rf"-Dorca.hadoop={re.escape(str(run))}:(\S+)", " ".join(process.cmdline()))
                items[named[1] if named else str(process.pid)] = process
        except (psutil.Error, OSError):
            continue
    return items


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the run folder of a Hadoop that is up."""
    run = tmp_path_factory.mktemp("hadoop")
    said = hadoop("up", run)
    assert said.returncode == 0, said.stderr
    assert f"export HADOOP_CONF_DIR={run / 'conf'}" in said.stdout
    yield run
    hadoop("down", run)
    assert not processes(run)


@needs_java
@pytest.mark.slow
def test_failed_start_names_the_daemon_and_the_end_of_its_log(tmp_path: Path) -> None:
    jars = tmp_path / "no jars"
    jars.mkdir()
    said = hadoop("up", tmp_path / "run", "--jars", str(jars))
    assert said.returncode == 1
    assert "Could not find or load main class org.apache.hadoop." in said.stderr
    named = r"the (name|resourcem|nodem)\S+ ended with status 1 \D+; the end of \S+\.log is above"
    assert re.search(named, said.stderr)  # whichever is the first to be seen
    assert not processes(tmp_path / "run")


def test_missing_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    said = hadoop("up", tmp_path / "run")
    assert said.returncode == 1
    assert said.stderr == f"JAVA_HOME is {tmp_path}, which has no bin/java. Set it to a Java 17, or unset it.\n"


def test_down_and_status_of_nothing_say_so(tmp_path: Path) -> None:
    assert hadoop("down", tmp_path).stdout == "nothing was running\n"
    said = hadoop("status", tmp_path)
    assert said.returncode == 1 and said.stdout.count("not running") == len(DAEMONS)


@needs_java
@needs_maven
@pytest.mark.full
@pytest.mark.timeout(600)
def test_up_again_leaves_the_daemons_as_they_are(cluster: Path) -> None:
    before = processes(cluster)
    assert sorted(before) == sorted(DAEMONS)
    said = hadoop("up", cluster)
    assert said.returncode == 0 and said.stdout.startswith("up already")
    assert processes(cluster) == before
    assert hadoop("status", cluster).returncode == 0


@needs_java
@needs_maven
@pytest.mark.full
@pytest.mark.timeout(600)
def test_everything_listens_on_loopback_alone(cluster: Path) -> None:
    listening = [
        connection.laddr.ip
        for process in processes(cluster).values()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 15 and set(listening) == {"127.0.0.1"}


@needs_java
@needs_maven
@pytest.mark.full
@pytest.mark.timeout(600)
def test_hdfs_keeps_files_over_webhdfs(cluster: Path, tmp_path: Path) -> None:
    pytest.importorskip("requests")  # fsspec's webhdfs speaks through it
    host, port = settings(cluster)["dfs.namenode.http-address"].split(":")
    user = pwd.getpwuid(os.geteuid()).pw_name
    for name in (user, "somebody-else"):
        files = fsspec.filesystem("webhdfs", host=host, port=int(port), user=name)
        content = os.urandom(3_000_000)
        (tmp_path / "here").write_bytes(content)
        files.makedirs(f"/user/{name}")
        files.put(str(tmp_path / "here"), f"/user/{name}/there")
        files.get(f"/user/{name}/there", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == content
        assert files.info(f"/user/{name}/there")["owner"] == name


@needs_java
@needs_maven
@pytest.mark.full
@pytest.mark.timeout(600)
def test_executors_of_an_application_sit_on_both_nodes(cluster: Path, run_program: Callable[..., Any]) -> None:
    pytest.importorskip("pyspark")
    said = run_program(
        """
        import os, pyspark
        from pyspark.sql import SparkSession

        jars = os.path.join(os.path.dirname(pyspark.__file__), "jars")
        settings = {
            "spark.yarn.jars": f"local:{jars}/*",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.ui.enabled": "false",
        }
        spark = SparkSession.builder.master("yarn").config(map=settings).getOrCreate()

        def where(batches):
            import os, sys, time
            import pyarrow
            rows = sum(batch.num_rows for batch in batches)
            time.sleep(3)  # so that one executor does not do it all
            node = os.environ["NM_PORT"]
            yield pyarrow.RecordBatch.from_pydict({"rows": [rows], "node": [node], "python": [sys.executable]})

        found = spark.range(1000, numPartitions=4).mapInArrow(where, "rows long, node string, python string").collect()
        print("application", spark.sparkContext.applicationId)
        print("rows", sum(row.rows for row in found))
        print("nodes", *sorted({row.node for row in found}))
        print("python", *{row.python for row in found})
        spark.stop()
        """,
        env={
            "HADOOP_CONF_DIR": str(cluster / "conf"),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        timeout=300,
    )
    results = dict(line.split(" ", 1) for line in said.stdout.splitlines() if " " in line)
    address = settings(cluster)["yarn.resourcemanager.webapp.address"]
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    nodes = json.load(direct.open(f"http://{address}/ws/v1/cluster/nodes"))["nodes"]["node"]
    assert results["nodes"].split() == sorted(node["id"].split(":")[1] for node in nodes)
    assert results["rows"] == "1000" and results["python"] == sys.executable
    application = json.load(direct.open(f"http://{address}/ws/v1/cluster/apps/{results['application']}"))["app"]
    assert application["finalStatus"] == "SUCCEEDED"


@needs_java
@needs_maven
@pytest.mark.full
@pytest.mark.timeout(600)
def test_daemon_that_fails_takes_the_others_with_it(tmp_path: Path) -> None:
    said = hadoop("up", tmp_path, "--set", "dfs.datanode.data.dir=file:///dev/null/nowhere")
    assert said.returncode == 1
    assert "the datanode ended with status 1 while starting; the end of" in said.stderr
    assert "/dev/null/nowhere" in said.stderr
    assert not processes(tmp_path)


@needs_java
@needs_maven
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_start_that_is_interrupted_leaves_nothing(tmp_path: Path, kind: signal.Signals) -> None:
    starting = subprocess.Popen(
        [sys.executable, str(TOOL), "up", "--run", str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    while len(processes(tmp_path)) < 3 and starting.poll() is None:  # its own timeout bounds this
        time.sleep(0.1)
    starting.send_signal(kind)
    assert "and all that was started" in starting.communicate()[1]
    assert starting.returncode and not processes(tmp_path)


@needs_java
@needs_maven
@pytest.mark.full
@pytest.mark.timeout(600)
def test_killed_node_is_told_and_up_starts_anew_and_down_ends_all(tmp_path: Path) -> None:
    try:
        assert hadoop("up", tmp_path).returncode == 0
        first = processes(tmp_path)
        first["nodemanager-node1"].send_signal(signal.SIGKILL)
        first["nodemanager-node1"].wait(10)
        said = hadoop("status", tmp_path)
        assert said.returncode == 1 and re.search(r"nodemanager-node1 +not running", said.stdout)

        said = hadoop("up", tmp_path, "--hosts", "127.0.0.1,127.0.0.1")
        assert said.returncode == 0 and said.stdout.startswith("not running: nodemanager-node1.")
        assert sorted(processes(tmp_path)) == sorted(DAEMONS)
        assert not set(first.values()) & set(processes(tmp_path).values())

        shutil.rmtree(tmp_path / "pids")  # as `make clean` does
    finally:
        said = hadoop("down", tmp_path)
    assert said.returncode == 0 and not processes(tmp_path)
