"""YARN and HDFS for real: what needs them is marked yarn and run by make test-yarn, on two nodes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import programs
from cluster.losing import losing
from cluster.test_ray_on_spark import PRELUDE, QUIET
from orca.cluster import yarn
from orca.cluster.hadoop import Application
from orca.cluster.spark import Request, SessionOptions
from orca.cluster.yarn import BESIDE_HEAP_MB, needs
from orca.errors import ArgumentError
from orca.monitor import waiting

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "fashion_mnist.py"
HIDDEN = ROOT / "build" / "hidden"  # what the nodes of make test-yarn do not see
SMALL = {"cores": 1, "memory": "512m", "num_nodes": 2, "driver_memory": "512m", "ship_environment": False}
# The nodes have the environment of this machine; what is on our PYTHONPATH is in it.
BARE = {"PYTHONPATH": None, "PYSPARK_PYTHON": None, "SPARK_LOCAL_IP": None}
pytestmark = pytest.mark.timeout(400)


def run(code: str, **options: Any) -> Any:
    return programs.run_program(code, env={**BARE, **options.pop("env", {})}, timeout=300, **options)


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    """Give a folder of HDFS that is gone afterwards."""
    from orca.data.file import makedirs, rmdir

    folder = f"hdfs:///tmp/orca-{uuid.uuid4().hex[:8]}"
    makedirs(folder)
    yield folder
    rmdir(folder)


@pytest.fixture(scope="module")
def images(remote: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Put 600 and 200 images of Fashion-MNIST into HDFS."""
    from orca.data.file import put_local_dir_tree_to_remote

    folder = tmp_path_factory.mktemp("images")
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for split, rows in (("train", 600), ("t10k", 200)):
        for kind, width in (("images-idx3", 784), ("labels-idx1", 1)):
            cut(f"{split}-{kind}-ubyte", rows, width, raw)
    put_local_dir_tree_to_remote(str(folder), f"{remote}/data")
    return f"{remote}/data"


def cut(name: str, rows: int, width: int, raw: Path) -> None:
    import gzip

    content = gzip.decompress((ROOT / "examples" / "data" / "FashionMNIST" / "raw" / f"{name}.gz").read_bytes())
    size = 16 if width > 1 else 8
    header = content[:4] + struct.pack(">I", rows) + content[8:size]
    (raw / f"{name}.gz").write_bytes(gzip.compress(header + content[size : size + rows * width]))


def applications() -> list[dict[str, Any]]:
    from orca.cluster.hadoop import settings_of

    address = settings_of(Path(os.environ["HADOOP_CONF_DIR"]))["yarn.resourcemanager.webapp.address"]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/ws/v1/cluster/apps", timeout=10) as answer:
        return list((json.load(answer)["apps"] or {}).get("app", []))


# Programs.


@pytest.mark.yarn
@pytest.mark.parametrize("mode", ["yarn-client", "yarn-cluster"])
def test_example_trains_on_yarn_with_data_and_model_in_hdfs(mode: str, remote: str, images: str) -> None:
    output = f"{remote}/{mode}"
    sizes = "--num_nodes 2 --cores 1 --memory 512m --workers_per_node 1 --epochs 1 --no_ship_environment".split()
    command = [sys.executable, str(EXAMPLE), "--cluster_mode", mode, "--data_dir", images, "--output", output, *sizes]
    env = {name: value for name, value in os.environ.items() if name not in BARE}
    said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=350, stdin=subprocess.DEVNULL)
    print(said.stdout, said.stderr)
    assert said.returncode == 0
    assert re.search(r"epoch 1: 600 images, loss .*, on 200 others", said.stdout)
    assert "Accuracy of the loaded model on a DataFrame: 0." in said.stdout
    if mode == "yarn-cluster":
        assert "is RUNNING" in said.stderr and said.stderr.rstrip().endswith("ended SUCCEEDED")
    # A second program has nothing of the first but what lies in HDFS.
    second = f"""
        import sys
        sys.path.insert(0, {str(EXAMPLE.parent)!r})
        from fashion_mnist import *

        init_orca_context(cluster_mode="yarn-client", **{SMALL!r})
        frame = OrcaContext.get_spark_session().read.parquet("{output}/t10k.parquet")
        made = Estimator.from_torch(model=make_model({{}}), loss=nn.CrossEntropyLoss(), metrics=[Accuracy()])
        made.load("{output}/model")
        rows = made.predict(frame, feature_cols=["image"], batch_size=64).select("prediction", "label").collect()
        print(len(rows), sum(int(np.argmax(row.prediction) == row.label) for row in rows))
        stop_orca_context()
        """
    if mode == "yarn-client":
        rows, right = map(int, run(second).stdout.split()[-2:])
        assert rows == 200
        assert f"on a DataFrame: {right / 200:.4f}" in said.stdout


@pytest.mark.yarn
def test_an_executor_that_is_killed_costs_no_run_and_nothing_of_the_result(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    said = run(losing(f"cluster_mode='yarn-client', **{SMALL!r}", mark))
    assert said.stdout.split()[-3:] == ["False", "True", "True"]
    assert re.search(r"Failure 1 of the 1 that max_failures allows: going on after step \d+", said.stderr)


@pytest.mark.yarn
def test_status_of_a_program_in_the_cluster_is_that_of_the_command() -> None:
    said = run(
        f"""
        import sys
        from orca import init_orca_context, stop_orca_context
        init_orca_context(cluster_mode="yarn-cluster", **{SMALL!r} | {{"num_nodes": 1}})
        print("arguments", sys.argv[1:])
        stop_orca_context()
        sys.exit(3)
        """,
        args=["--word", "two words"],
        check=False,
    )
    assert said.returncode == 3
    assert "arguments ['--word', 'two words']" in said.stdout
    assert "ended FAILED: User application exited with status 3" in said.stderr


@pytest.mark.yarn
def test_an_interrupted_command_ends_its_application(tmp_path: Path) -> None:
    program = tmp_path / "sleeping_program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import time
            from orca import init_orca_context
            init_orca_context(cluster_mode="yarn-cluster", **{SMALL!r} | {{"num_nodes": 1}})
            print("sleeping", flush=True)
            time.sleep(600)
            """
        )
    )
    env = {name: value for name, value in os.environ.items() if name not in BARE}
    with (tmp_path / "said").open("w+") as said:
        command = [sys.executable, str(program)]
        process = subprocess.Popen(command, env=env, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 150
        while "sleeping" not in (tmp_path / "said").read_text() and time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        status = process.wait(60)
    text = (tmp_path / "said").read_text()
    assert status not in (0, None) and "was ended: this program was interrupted" in text
    [application] = [each for each in applications() if each["name"] == "sleeping_program"]
    assert application["state"] == "KILLED"


@pytest.mark.full
@pytest.mark.yarn
def test_environment_goes_to_nodes_that_do_not_have_it() -> None:
    made = small_environment()
    said = subprocess.run(
        [str(made / "bin" / "python"), "-c", SHIPPED, str(made)],
        env={name: value for name, value in os.environ.items() if name not in BARE},
        capture_output=True,
        text=True,
        timeout=380,
        stdin=subprocess.DEVNULL,
    )
    print(said.stdout, said.stderr)
    assert said.returncode == 0
    report = json.loads(said.stdout.splitlines()[-1])
    assert report["seen"] == [False, False], "the nodes see the environment; start Hadoop with --hide build/hidden"
    assert all("/environment/bin/python" in path for path in report["python"])
    assert report["predictions"] == [[2.0 * number] for number in range(40)]


def small_environment() -> Path:
    """Make an environment with OpenVINO and without torch, where the nodes do not see it."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from install import find_uv
    finally:
        sys.path.pop(0)
    import pyspark

    made = HIDDEN / "small"
    uv = find_uv()
    quiet = {"stdin": subprocess.DEVNULL, "check": True}
    subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(made)], **quiet)
    wanted = [f"{ROOT}[openvino,spark,yarn]", f"pyspark=={pyspark.__version__}"]
    install = [*uv, "pip", "install", "--quiet", "--python", str(made / "bin" / "python")]
    subprocess.run([*install, *wanted], **quiet)
    return made


SHIPPED = """
import json, logging, os, sys, tempfile, time
import numpy as np, openvino as ov
from openvino import opset13 as ops
from orca import Estimator, OrcaContext, init_orca_context, stop_orca_context

logging.basicConfig(level=logging.INFO)
logging.getLogger("py4j").setLevel(logging.WARNING)
x = ops.parameter([-1, 1], np.float32, name="x")
folder = tempfile.mkdtemp()
ov.save_model(ov.Model([ops.multiply(x, np.float32(2))], [x], "double"), folder + "/double.xml")
for _ in range(2):
    init_orca_context(cluster_mode="yarn-client", cores=1, memory="512m", num_nodes=2, driver_memory="1g")
    context, session = OrcaContext.get_spark_context(), OrcaContext.get_spark_session()
    here = sys.argv[1]
    nodes = context.parallelize(range(2), 2).map(lambda _: (sys.executable, os.path.exists(here + "/bin"))).collect()
    frame = session.createDataFrame([(n, [float(n)]) for n in range(40)], "id long, x array<float>").repartition(4)
    made = Estimator.from_openvino(model_path=folder + "/double.xml")
    rows = made.predict(frame, feature_cols=["x"]).sort("id").collect()
    stop_orca_context()
print(json.dumps({
    "python": [python for python, _ in nodes], "seen": [seen for _, seen in nodes],
    "predictions": [list(map(float, np.ravel(row.prediction))) for row in rows],
}))
"""


@pytest.mark.yarn
@pytest.mark.parametrize("mode", ["yarn-client", "yarn-cluster"])
def test_orca_submit_takes_a_program_to_the_cluster(mode: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def word(_):\n    return 'beside'\n")
    program = tmp_path / "submitted_program.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys
            import beside
            from orca import OrcaContext, init_orca_context, stop_orca_context
            context = init_orca_context(cluster_mode="spark-submit")
            print("words", context.parallelize(range(2), 2).map(beside.word).collect(), sys.argv[1:])
            stop_orca_context()
            """
        )
    )
    sizes = "--cores 1 --memory 512m --num_nodes 1 --driver_memory 512m --no_ship_environment".split()
    env = {name: value for name, value in os.environ.items() if name not in BARE}
    said = subprocess.run(
        [
            sys.executable,
            "-m",
            "orca",
            "submit",
            "--cluster_mode",
            mode,
            *sizes,
            str(program),
            "--cores",
            "9",
        ],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    print(said.stdout, said.stderr)
    assert said.returncode == 0
    assert "words ['beside', 'beside'] ['--cores', '9']" in said.stdout


@pytest.mark.yarn
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_ray_trains_on_the_executors_of_yarn_beside_spark() -> None:
    sizes = {**SMALL, "cores": 3, "conf": {"spark.executor.memoryOverhead": "2500m"}}  # all that a node of ours has
    code = f"""
init_orca_context("yarn-client", init_ray_on_spark=True, ray_node_cpu_cores=2, object_store_memory="100m", **{sizes!r})
import ray
up = OrcaContext.get_ray_context()
assert (up.num_nodes, up.total_cores) == (2, 4)
train("ray", 1)
train("spark", 1)
stop_orca_context()
assert not ray.is_initialized() and OrcaContext.cluster() is None
print("both ended")
"""
    said = run(PRELUDE + code, env=QUIET)
    assert said.stdout.split() == ["both", "ended"]


# Errors.


@pytest.mark.yarn
def test_too_small_a_queue_is_told_and_its_application_ended_after_the_limit_that_was_given() -> None:
    said = run(
        f"""
        from orca import init_orca_context
        from orca.errors import OrcaError
        for queue in ("small", "smal"):
            try:
                init_orca_context(cluster_mode="yarn-client", queue=queue, start_timeout=60, **{SMALL!r})
            except OrcaError as error:
                print(error)
        """
    )
    first, second = said.stdout.splitlines()[-2:]
    assert "YARN gave no container to application_" in first and "Queue's Absolute capacity = 10.0 %" in first
    assert "of 4096 MB" in first and "start_timeout=" in first
    assert "YARN has no queue 'smal'; it has default, small." in second
    assert re.search(r"\[orca\] YARN gave no container to application_\S+ within \d+ s.*Waiting on", said.stderr)

    def states() -> set[str]:
        return {each["state"] for each in applications() if each["queue"].endswith("small")}

    deadline = time.monotonic() + 60
    while states() != {"KILLED"} and time.monotonic() < deadline:
        time.sleep(1)
    assert states() == {"KILLED"}


def refusals(*calls: str) -> list[str]:
    """Return what a program is told that makes these calls of init_orca_context, before any JVM has started."""
    said = run(
        f"""
        import os
        from pyspark import SparkContext
        from orca import init_orca_context
        from orca.errors import OrcaError
        for call in {calls!r}:
            try:
                eval(call)
            except OrcaError as error:
                print(type(error).__name__, error)
                assert SparkContext._gateway is None
        """,
        env={"HADOOP_CONF_DIR": None, "YARN_CONF_DIR": None},
    )
    return list(said.stdout.splitlines())


def test_missing_settings_of_the_cluster_are_told_at_once(tmp_path: Path) -> None:
    call = "init_orca_context(cluster_mode='yarn-client', cores=1{})"
    none, empty, missing = refusals(
        call.format(""),
        call.format(f", hadoop_conf={str(tmp_path)!r}"),
        f"os.environ.update(HADOOP_CONF_DIR={str(tmp_path / 'none')!r}) or " + call.format(""),
    )
    assert "ArgumentError" in none and "neither hadoop_conf nor HADOOP_CONF_DIR is given" in none
    assert f"hadoop_conf is {tmp_path}, which has no yarn-site.xml" in empty
    assert f"HADOOP_CONF_DIR is {tmp_path / 'none'}, which is not a folder" in missing


def test_a_dead_resource_manager_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))  # taken, and nobody listens
        address = f"127.0.0.1:{door.getsockname()[1]}"
        (tmp_path / "yarn-site.xml").write_text(
            "<configuration><property><name>yarn.resourcemanager.address</name>"
            f"<value>{address}</value></property></configuration>"
        )
        call = f"init_orca_context(cluster_mode='yarn-client', cores=1, hadoop_conf={str(tmp_path)!r})"
        [results] = refusals(call)
    assert f"OrcaError no ResourceManager of YARN answers at {address}" in results


def test_a_program_without_a_file_cannot_go_to_the_cluster() -> None:
    code = "from orca import init_orca_context\ninit_orca_context(cluster_mode='yarn-cluster', cores=1)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert said.returncode == 1
    assert "this program has none (a notebook, a shell or `python -c`)" in said.stderr


class Queue:
    """A YARN that gives no container."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    def free(self) -> str:
        return "n: 4096 of 4096 MB are taken"

    def kill(self, number: str) -> None:
        self.killed.append(number)


def test_an_application_in_a_busy_queue_waits_and_says_what_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = Application("application_1_2", "ACCEPTED", "", "the queue is full", "")
    monkeypatch.setattr(waiting, "FIRST_WORD", 0.0)
    queue: Any = Queue()
    assert yarn.Wait(queue, None).go_on(app) == "" and queue.killed == []
    words = "YARN gave no container to application_1_2 within 0 s. It says: the queue is full. The nodes: n: 4096 of"
    assert words in capsys.readouterr().err
    why = yarn.Wait(queue, 1e-9).go_on(app)
    assert why.startswith(words) and "The application was ended." in why and queue.killed == ["application_1_2"]


def test_every_argument_reaches_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "192.0.2.1")
    options = SessionOptions(driver_cores=3, queue="research", env={"WORD": "value"})
    settings = needs(Request(4, "3g", 5, options))
    assert settings["spark.executor.instances"] == "5" and settings["spark.executor.cores"] == "4"
    assert settings["spark.executor.memory"] == "3g" and settings["spark.driver.cores"] == "3"
    assert settings["spark.executor.memoryOverhead"] == f"{307 + BESIDE_HEAP_MB}m"
    beside = needs(Request(4, "3g", 5, options, for_ray=1 << 30))["spark.executor.memoryOverhead"]
    assert beside == f"{307 + 1024 + BESIDE_HEAP_MB}m"
    assert settings["spark.yarn.queue"] == "research" and settings["spark.authenticate"] == "true"
    assert settings["spark.executorEnv.WORD"] == settings["spark.yarn.appMasterEnv.WORD"] == "value"
    assert not any("SPARK_LOCAL_IP" in name for name in settings)  # an address of the driver's machine
    with pytest.raises(ArgumentError, match="cores must be a positive whole number on YARN; got '\\*'"):
        needs(Request("*", "3g", 5, options))
