from __future__ import annotations

import importlib.util

import pytest

from programs import run_program

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

QUIET: dict[str, str | None] = dict.fromkeys(("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"))
PRELUDE = """
import os, sys, warnings
import psutil
from orca.cluster.context import OrcaContext, init_orca_context, stop_orca_context

def children():
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
"""


@pytest.mark.full
def test_local_ray_starts_and_stops_twice_and_leaves_nothing() -> None:
    code = """
context = init_orca_context(runtime="ray", cores=2)
import ray
assert context.initialized and context is OrcaContext.get_ray_context()
assert ray.cluster_resources()["CPU"] == 2
assert context.address_info["address"] and context.address_info["node_ip_address"]
cluster = OrcaContext.cluster()
assert (cluster.runtime, cluster.num_nodes, cluster.cores) == ("ray", 1, 2), cluster
assert os.environ["RAY_AUTH_MODE"] == "token" and len(os.environ["RAY_AUTH_TOKEN"]) == 64
assert not any(os.environ["RAY_AUTH_TOKEN"] in a for p in children() for a in p.cmdline())
assert "working_dir" not in ray.get_runtime_context().runtime_env
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    assert init_orca_context(runtime="ray", cores=1) is context
assert any("Ray is already up and is reused" in str(w.message) for w in seen)
assert ray.get(ray.remote(lambda: 42).remote()) == 42
assert children()
stop_orca_context()
stop_orca_context()
assert not context.initialized and OrcaContext.cluster() is None
assert not children(), children()  # those of Ray that would not end by themselves included

context = init_orca_context(runtime="ray", cores=1, _system_config={}, log_to_driver=False)
assert ray.get(ray.remote(lambda: 43).remote()) == 43
"""
    said = run_program(PRELUDE + code, env=QUIET)  # At its end atexit stops the second; run_program looks.
    assert said.stdout == ""
    assert "dashboard" not in said.stderr.lower() and "INFO" not in said.stderr, said.stderr


@pytest.mark.timeout(200)
def test_a_ray_of_ours_is_on_loopback_and_asks_for_its_token_also_where_ray_was_imported_before() -> None:
    code = """
import subprocess
import ray
import psutil
context = init_orca_context(runtime="ray", cores=1)
assert ray.get(ray.remote(lambda: os.environ["RAY_AUTH_TOKEN"]).remote()) == os.environ["RAY_AUTH_TOKEN"]
places = {
    connection.laddr.ip
    for process in psutil.Process().children(recursive=True)
    for connection in process.net_connections("tcp")
    if connection.status == psutil.CONN_LISTEN
}
assert places and places <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, places
join = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR'); print('joined')"
stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
stranger |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "another" * 8}
joining = subprocess.Popen([sys.executable, "-c", join, context.address_info["address"]], env=stranger,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
try:
    joining.wait(15)  # Ray tries for minutes
except subprocess.TimeoutExpired:
    joining.kill()
assert "joined" not in joining.communicate()[0] and joining.returncode
stop_orca_context()
print("all is well")
"""
    assert "all is well" in run_program(PRELUDE + code, env=QUIET, timeout=200).stdout


def test_what_does_not_end_with_ray_is_ended() -> None:
    code = """
import subprocess, time, ray
from orca.cluster import ray as ours
ours.LEFT_PATIENCE = 0.2
agent = os.path.join(os.path.dirname(ray.__file__), "dashboard/agent.py")
sleep = [sys.executable, "-c", "import time; time.sleep(60)", agent]
stubborn, another = (subprocess.Popen([*sleep, f"--session-dir={folder}/session_1"]) for folder in ("/ours", "/mine"))
time.sleep(1)
with ours._none_left("/ours"):
    pass
assert stubborn.wait(10) == -9 and another.poll() is None  # which is of a Ray that the program started
another.kill()
another.wait()
"""
    run_program(PRELUDE + code, env=QUIET)


@pytest.mark.full
def test_a_running_ray_is_joined_by_address_and_left_running() -> None:
    code = """
import json, secrets, subprocess
os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
import ray
node = ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="WARNING")
joined = '''
import os
from orca.cluster.context import OrcaContext, init_orca_context, stop_orca_context
context = init_orca_context(runtime="ray", address=os.environ["AT"])
assert OrcaContext.cluster().cores == 1
stop_orca_context()
'''
subprocess.run([sys.executable, "-c", joined], check=True, env={**os.environ, "AT": node.address_info["gcs_address"]})
assert ray.get(ray.remote(lambda: 42).remote()) == 42

context = init_orca_context(runtime="ray")
assert context.reused and context.address_info["address"] == node.address_info["gcs_address"]
stop_orca_context()
assert not context.initialized and OrcaContext.cluster() is None
assert ray.get(ray.remote(lambda: 42).remote()) == 42  # it is the program's
ray.shutdown()

context = init_orca_context(runtime="ray", cores=1)
ray.shutdown()
ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="WARNING")
stop_orca_context()
assert not context.initialized and ray.is_initialized()  # another one, the program's
ray.shutdown()
"""
    run_program(PRELUDE + code, env=QUIET)


def test_an_unknown_argument_and_a_dead_address_are_named() -> None:
    code = """
try:
    init_orca_context(runtime="ray", object_store_memry=1)
except ValueError as error:
    print(error)
try:
    init_orca_context(runtime="ray", address="ray://127.0.0.1:9")
except Exception as error:
    print(type(error).__name__, error)
"""
    said = run_program(PRELUDE + code, env=QUIET).stdout
    assert "has no argument 'object_store_memry'. Did you mean 'object_store_memory'?" in said
    assert "OrcaError could not reach Ray at 'ray://127.0.0.1:9'" in said


JOIN = """
from orca import init_orca_context, stop_orca_context
print(init_orca_context(runtime="ray", address="127.0.0.1:PORT").num_nodes)
stop_orca_context()
"""


@pytest.mark.full
@pytest.mark.timeout(240)  # Ray tries for 20 s to join with no token, or with a wrong one
def test_a_ray_that_asks_for_a_token_is_joined_with_it_and_named_without() -> None:
    code = """
        import os, socket, subprocess, sys, tempfile, time
        from pathlib import Path

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]

        def join(**variables):
            command = [sys.executable, "-c", sys.argv[1].replace("PORT", str(port))]
            return subprocess.run(command, env=without | variables, capture_output=True, text=True)

        with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as home:
            token = Path(home, ".ray", "auth_token")
            token.parent.mkdir()
            token.write_text("0123456789abcdef" * 4)
            token.chmod(0o600)
            without = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
            without |= {"HOME": home, "RAY_USAGE_STATS_ENABLED": "0"}
            options = ["--port", str(port), "--node-ip-address", "127.0.0.1", "--num-cpus", "1", "--temp-dir", home]
            options += ["--include-dashboard", "false", "--dashboard-agent-listen-port", "0", "--block"]
            head = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", *options],
                env=without | {"RAY_AUTH_MODE": "token"},
            )
            try:
                deadline = time.monotonic() + 60
                while (joined := join(RAY_AUTH_MODE="token")).returncode:
                    assert time.monotonic() < deadline, joined.stderr
                assert joined.stdout.strip() == "1"
                other = token.rename(Path(home, "elsewhere"))
                assert join(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(other)).stdout.strip() == "1"
                assert "set RAY_AUTH_MODE=token before this program starts" in join().stderr
                wrong = join(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="f" * 64)
                assert "check that the token is the one of that Ray" in wrong.stderr
            finally:
                head.terminate()
                head.wait()
        """
    run_program(code, args=[JOIN], timeout=200)
