"""Apart: a standalone Spark whose two workers live in networks of their own, for programs that may use namespaces.

Owns the namespaces and the addresses. The program itself goes into a network of its own first: nothing of it is seen
outside, and all of it is gone when the program ends.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MASTER = "spark://10.77.1.1:7077"
CONF = {
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "90s",
    "spark.driver.bindAddress": "10.77.1.1",
    "spark.ui.enabled": "false",
}
_NETWORK = 0x40000000  # CLONE_NEWNET
_libc = ctypes.CDLL(None, use_errno=True)


def possible() -> bool:
    """Tell whether this user may make networks."""
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "nsenter")))


@contextmanager
def two_nodes(forward: bool) -> Iterator[None]:
    """Run a master here and a worker in each of two networks; `forward` says whether they reach each other."""
    _leave()
    with open("/proc/sys/net/ipv4/ip_forward", "w") as switch:
        switch.write("1" if forward else "0")
    _shell("ip link set lo up")
    started: list[subprocess.Popen[bytes]] = []
    try:
        for n in (1, 2):
            options = f"--cores 1 --memory 1g --webui-port 0 --work-dir {os.getcwd()}/node-{n} {MASTER}"
            started.append(_start("worker.Worker", options, f"10.77.{n}.2", preexec_fn=_leave))
            pid = started[-1].pid
            _shell(f"ip link add out{n} type veth peer name in{n} netns {pid}")
            _shell(f"ip addr add 10.77.{n}.1/30 dev out{n} && ip link set out{n} up")
            inside = f"ip link set lo up && ip addr add 10.77.{n}.2/30 dev in{n} && ip link set in{n} up"
            _shell(f"nsenter -t {pid} -n sh -c '{inside} && ip route add default via 10.77.{n}.1'")
        started.append(_start("master.Master", "--port 7077 --webui-port 0", "10.77.1.1"))
        _go(started[-1])
        _wait()
        for worker in started[:2]:
            _go(worker)
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def cut(node: int) -> None:
    """Cut a node off, as a pulled cable does."""
    _shell(f"ip link set out{node} down")


def mend(node: int) -> None:
    """Bring back a node that was cut off."""
    _shell(f"ip link set out{node} up")


def _leave() -> None:
    if _libc.unshare(_NETWORK):
        raise OSError(ctypes.get_errno(), "unshare")


def _shell(line: str) -> None:
    subprocess.run(line, shell=True, check=True)


def _start(main: str, options: str, address: str, **how: Any) -> subprocess.Popen[bytes]:
    from pyspark.find_spark_home import _find_spark_home

    # It waits for a line, so that its network can be made before.
    script = os.path.join(_find_spark_home(), "bin", "spark-class")
    command = ["bash", "-c", f"read go; exec {script} org.apache.spark.deploy.{main} --host {address} {options}"]
    env = {**os.environ, "SPARK_DAEMON_MEMORY": "512m", "SPARK_LOCAL_IP": address, "PYSPARK_PYTHON": sys.executable}
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=env, **how)


def _go(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()


def _wait() -> None:
    while True:
        try:
            socket.create_connection(("10.77.1.1", 7077), 1).close()
            return
        except OSError:
            time.sleep(0.2)
