"""Ray on Spark: what it takes and leaves, that both train, that its secret stays one, and that both end."""

from __future__ import annotations

import importlib.util
import re

import pytest

from orca.cluster.ray import RayNode, memory_of, room, seats
from orca.cluster.spark import SessionOptions
from orca.errors import ArgumentError
from programs import run_program

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

QUIET: dict[str, str | None] = dict.fromkeys(("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"))
PRELUDE = """
import os, sys, time, warnings
import numpy as np
import psutil
import torch
from orca import Estimator
from orca.cluster.context import OrcaContext, init_orca_context, stop_orca_context

def model():
    torch.manual_seed(3)
    return torch.nn.Linear(2, 1)

def rows():
    return [([float(i % 5) / 5, float(i % 7) / 7], float(i % 3)) for i in range(31)]

def frame():
    spark = OrcaContext.get_spark_session()
    return spark.createDataFrame(rows(), "x array<float>, y float").repartition(5)

def plain_loop():
    x, y = torch.tensor([r[0] for r in rows()]), torch.tensor([[r[1]] for r in rows()])
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(trained(x), y).backward()
        optimizer.step()
    return trained.state_dict()

def train(backend, workers, data=None):
    est = Estimator.from_torch(model=model(), optimizer=lambda m, c: torch.optim.SGD(m.parameters(), lr=0.1),
                               loss=torch.nn.MSELoss(), backend=backend, workers_per_node=workers)
    columns = {} if data else {"feature_cols": ["x"], "label_cols": ["y"]}
    est.fit(data or frame(), epochs=2, batch_size=31, **columns)
    wanted = plain_loop()
    for name, value in est.get_model().state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-6)
"""


@pytest.mark.parametrize(
    ("executors", "width", "share", "wanted"),
    [
        (2, 2, SessionOptions(), (2, 2, 1)),
        (3, 8, SessionOptions(), (3, 8, 7)),
        (2, 4, SessionOptions(num_ray_nodes=1), (1, 4, 3)),
        (2, 4, SessionOptions(ray_node_cpu_cores=1), (2, 1, 1)),
        (2, 4, SessionOptions(ray_node_cpu_cores=4), (2, 4, 3)),
        (1, 8, SessionOptions(num_ray_nodes=3, ray_node_cpu_cores=2), (3, 2, 2)),
    ],
)
def test_ray_has_all_cores_of_each_executor_unless_told_and_leaves_spark_one(
    executors: int, width: int, share: SessionOptions, wanted: tuple[int, int, int]
) -> None:
    assert seats(executors, width, share) == wanted


@pytest.mark.parametrize(
    ("executors", "width", "share", "message"),
    [
        (
            2,
            1,
            SessionOptions(),
            "a Ray on Spark needs executors of 2 cores or more, .*; got cores=1",
        ),
        (2, 2, SessionOptions(ray_node_cpu_cores=3), "ray_node_cpu_cores must not be more than the 2 core.* got 3"),
        (
            2,
            4,
            SessionOptions(num_ray_nodes=3),
            r"num_ray_nodes=3 with ray_node_cpu_cores=4 does not fit on 2 executor.*: 2 node",
        ),
        (
            2,
            4,
            SessionOptions(num_ray_nodes=4, ray_node_cpu_cores=2),
            r"4 Ray node\(s\) of 2 core\(s\) take all 8 core\(s\) of Spark",
        ),
    ],
)
def test_what_does_not_fit_or_leaves_spark_nothing_is_refused(
    executors: int, width: int, share: SessionOptions, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        seats(executors, width, share)


def test_ray_takes_memory_beside_the_executor_for_its_store_its_nodes_and_their_workers() -> None:
    assert memory_of(SessionOptions(object_store_memory="1g"), 1, 3, "4g") == (1024 + 512 + 3 * 768) << 20
    assert memory_of(SessionOptions(), 2, 1, "10g") == 2 * (3072 + 512 + 768) << 20


def test_executors_get_room_for_a_ray_that_starts_at_once_or_for_what_the_user_says() -> None:
    assert room(SessionOptions(), 2, 4, "4g", at_once=False) == 0
    assert room(SessionOptions(), 2, 4, "4g", at_once=True) == memory_of(SessionOptions(), 1, 4, "4g")
    for at_once in (True, False):
        assert room(SessionOptions(extra_executor_memory_for_ray="3g"), 2, 4, "4g", at_once) == 3 << 30
    with pytest.raises(ArgumentError, match="extra_executor_memory_for_ray must be .* 'much'"):
        room(SessionOptions(extra_executor_memory_for_ray="much"), 2, 4, "4g", at_once=False)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="num_ray_nodes must be a positive whole number; got 0"):
        SessionOptions(num_ray_nodes=0)
    with pytest.raises(ArgumentError, match="env must be a dict; got list"):
        SessionOptions(env=["A=1"])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="object_store_memory must be bytes, or a number with a unit .* 'much'"):
        SessionOptions(object_store_memory="much")


def test_executors_with_another_ray_are_told() -> None:
    reason = RayNode((), "", 0, "1.0")(0)
    assert re.match(
        r"Spark's executors must have the Ray of this program, 1\.0; they have \d+\.\d+\.\d+\. Install", reason
    )


@pytest.mark.full
def test_narrow_executors_are_refused_before_anything_starts() -> None:
    code = """
try:
    init_orca_context("standalone", cores=1, num_nodes=2, init_ray_on_spark=True)
except ValueError as error:
    print(error)
assert not psutil.Process().children() and "ray" not in sys.modules and "pyspark" not in sys.modules
"""
    assert "needs executors of 2 cores or more" in run_program(PRELUDE + code, env=QUIET).stdout


@pytest.mark.full
@pytest.mark.timeout(200)
def test_a_ray_starts_by_itself_with_all_cores_of_the_context_and_stops_with_it() -> None:
    code = """
from orca.cluster.ray import OrcaRayContext
from zoo.ray import RayContext

cores = 2 * os.cpu_count() + 1  # more than there are
sc = init_orca_context(cluster_mode="local", cores=cores, object_store_memory="120m")
assert "ray" not in sys.modules
train("torch_distributed", 2, data=tuple(map(np.float32, zip(*rows()))))
import ray
context = OrcaContext.get_ray_context()
assert context is OrcaRayContext.get() is RayContext.get() and context.initialized
assert (context.num_ray_nodes, context.ray_node_cpu_cores, context.total_cores) == (1, cores, cores)
assert ray.cluster_resources()["object_store_memory"] == 120 << 20
assert context.address_info["address"] == context.redis_address
stop_orca_context()
assert not context.initialized and not ray.is_initialized() and OrcaContext.cluster() is None

sc = init_orca_context(cluster_mode="local", cores=2)
context = RayContext(sc, redis_port=6379, object_store_memory="100m", include_webui=False, ray_node_cpu_cores=1)
assert OrcaRayContext.get(initialize=False) is context and not context.initialized
assert context.init()["address"] and context is OrcaContext.get_ray_context()
assert (context.num_ray_nodes, context.ray_node_cpu_cores) == (1, 1)
context.stop()
context.stop()
assert not ray.is_initialized() and OrcaContext.get_spark_session().range(3).count() == 3
"""
    run_program(PRELUDE + code, env=QUIET, timeout=180)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_local_spark_gets_a_ray_beside_it() -> None:
    code = """
init_orca_context("local", cores=2, init_ray_on_spark=True, env={"GREETING": "hello"}, object_store_memory="120m")
import ray
context = OrcaContext.get_ray_context()
assert (context.num_nodes, context.total_cores) == (1, 2)
assert ray.cluster_resources()["object_store_memory"] == 120 << 20
assert ray.get(ray.remote(lambda: os.environ["GREETING"]).remote()) == "hello"
assert (OrcaContext.cluster().runtime, OrcaContext.cluster().cores) == ("spark", 2)
train("ray", 2)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    init_orca_context("local", init_ray_on_spark=True)
assert any("Ray is already up and is reused" in str(w.message) for w in seen)
assert OrcaContext.get_ray_context() is context
stop_orca_context()
assert not context.initialized and OrcaContext.cluster() is None
"""
    run_program(PRELUDE + code, env=QUIET, timeout=280)


@pytest.mark.full
@pytest.mark.timeout(400)
def test_ray_on_a_standalone_cluster_trains_beside_spark_and_both_end() -> None:
    code = """
context = init_orca_context("standalone", num_nodes=2, cores=2, memory="1g",
                            env={"GREETING": "hello"}, object_store_memory="100m")
assert OrcaContext.cluster().cores == 2
train("ray", 2)  # which starts Ray
import ray
up = OrcaContext.get_ray_context()
assert (up.num_ray_nodes, up.ray_node_cpu_cores, up.total_cores) == (2, 2, 4)
assert OrcaContext.get_spark_context() is context
cluster = OrcaContext.cluster()
assert (cluster.runtime, cluster.num_nodes, cluster.cores) == ("spark", 2, 1), cluster

token = os.environ["RAY_AUTH_TOKEN"]
assert os.environ["RAY_AUTH_MODE"] == "token" and len(token) == 64
told = ray.get(ray.remote(lambda: [os.environ[n] for n in ("GREETING", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")]).remote())
assert told == ["hello", "token", token]
assert not [p for p in psutil.process_iter(["cmdline"]) if any(token in word for word in p.info["cmdline"] or ())]
assert token not in str(context.getConf().getAll())

# Spark computes while all CPUs of Ray are taken.
hold = ray.remote(num_cpus=1)(type("Hold", (), {"pid": lambda self: os.getpid()}))
held = [hold.remote() for _ in range(4)]
ray.get([actor.pid.remote() for actor in held])
assert OrcaContext.get_spark_session().range(100).repartition(6).count() == 100
for actor in held:
    ray.kill(actor)
del held

train("spark", 1)
stop_orca_context()
assert not up.initialized and OrcaContext.cluster() is None and not ray.is_initialized()
assert "RAY_ADDRESS" not in os.environ
"""
    said = run_program(PRELUDE + code, env=QUIET, timeout=380)
    assert said.stdout == "" and "inadequate" not in said.stderr, said.stdout


@pytest.mark.full
@pytest.mark.timeout(400)
def test_ray_comes_to_a_spark_that_is_up_failures_are_told_and_a_killed_driver_leaves_nothing() -> None:
    code = """
init_orca_context("standalone", num_nodes=1, cores=3, memory="1g")
import ray  # before any token is set
warnings.simplefilter("ignore")
try:
    init_orca_context(init_ray_on_spark=True, extra_params={"no-such-option": 1})
except Exception as error:
    print(type(error).__name__, error)
assert not ray.is_initialized() and OrcaContext.get_spark_session().range(3).count() == 3
init_orca_context(init_ray_on_spark=True, ray_node_cpu_cores=1, num_ray_nodes=2, object_store_memory="100m")
assert (OrcaContext.get_ray_context().num_nodes, OrcaContext.cluster().cores) == (2, 1)
assert os.environ["RAY_AUTH_MODE"] == "token"
up = OrcaContext.get_ray_context()
ray.shutdown()
ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="WARNING")  # the program's own
up.stop()
assert OrcaContext.cluster().cores == 3
assert ray.get(ray.remote(lambda: 42).remote()) == 42
ray.shutdown()
init_orca_context(init_ray_on_spark=True, object_store_memory="100m")
assert (OrcaContext.get_ray_context().total_cores, OrcaContext.cluster().cores) == (3, 1)
print("up", flush=True)
os.kill(os.getpid(), 9)
"""
    said = run_program(PRELUDE + code, env=QUIET, timeout=380, check=False)
    assert said.returncode == -9 and said.stdout.splitlines()[-1] == "up"
    assert "OrcaError could not start Ray on Spark: its head node ended: " in said.stdout
    assert "no-such-option" in said.stdout.splitlines()[0]
