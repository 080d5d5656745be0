"""Keras training: our loop on two local processes of one thread, seconds an epoch, against three ways without it.

* two plain `model.fit` at the same time, each on half of the data and of the batch: what is possible without agreeing;
* tf_keras under MultiWorkerMirroredStrategy on two processes, against ours with the same tf_keras model;
* one plain `model.fit` with two threads, for information.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.measure import Result, interleaved, medians
from benchmarks.mwms_peer import CASES
from orca import Estimator

WORKERS, EPOCHS = 2, 6


def run(repeats: int) -> list[Result]:
    results = []
    for case in CASES:
        contenders = {
            "keras": partial(ours, case, "keras"),
            "alone": partial(alone, case),
            "tf_keras": partial(ours, case, "tf_keras"),
            "mwms": partial(mirrored, case),
            "threads": partial(threads, case),
        }
        times = interleaved(contenders, repeats)
        middle = medians(times)
        rows = len(CASES[case][1]()[0])
        for mine, peer, name, target in (
            # Steps of a few milliseconds are for information: there, waiting for each other takes as long as they do.
            ("keras", "alone", "one model.fit a core", 0.95 if case == "convnet" else None),
            ("tf_keras", "mwms", "MultiWorkerMirrored", 1.0),
            ("keras", "threads", "model.fit, 2 threads", None),
        ):
            notes = {"rows_per_s": rows / middle[mine], "peer_rows_per_s": rows / middle[peer]}
            notes |= {"times": times[mine], "peer_times": times[peer]}
            title = f"{mine} epoch, {case}, 2 processes"
            results.append(Result(title, middle[mine], middle[peer], name, "s", target, notes))
    return results


def ours(case: str, family: str) -> float:
    make, data, batch = CASES[case]
    estimator = Estimator.from_keras(
        model_creator=make,
        config={"family": family},
        backend="local",
        workers_per_node=WORKERS,
        threads_per_worker=1,
        verbose=False,
    )
    stats = estimator.fit(data(), epochs=EPOCHS + 1, batch_size=batch, profile=True)
    return statistics.median(line["mean_train_epoch_s"] for line in stats["profile"][1:])


def alone(case: str) -> float:
    return peers([["plain", "keras", case, f"--part={part}", f"--parts={WORKERS}"] for part in range(WORKERS)])


def mirrored(case: str) -> float:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(WORKERS)]
    tasks = [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": part}})
        for part in range(WORKERS)
    ]
    commands = [["mwms", "tf_keras", case, f"--part={part}", f"--parts={WORKERS}"] for part in range(WORKERS)]
    return peers(commands, [{"TF_CONFIG": task, "TF_USE_LEGACY_KERAS": "1"} for task in tasks])


def threads(case: str) -> float:
    return peers([["plain", "keras", case, f"--threads={WORKERS}"]], threads=WORKERS)


def peers(commands: Sequence[list[str]], variables: Sequence[dict[str, str]] = (), threads: int = 1) -> float:
    """Run peers at the same time; return the median epoch, the mean of theirs."""
    usual = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(Path(__file__).parent.parent)}
    with ExitStack() as stack:
        running = []
        for number, command in enumerate(commands):
            whole = [sys.executable, "-m", "benchmarks.mwms_peer", *command, f"--epochs={EPOCHS}"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
            process = subprocess.Popen(whole, env=usual | dict(*variables[number : number + 1]), **pipes)
            running.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in running:
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError(f"a peer ended before its first epoch did: {process.args}")
        for process in running:
            process.stdin.write("go\n")
            process.stdin.flush()
        times = [statistics.median(json.loads(process.stdout.readline())) for process in running]
        for process in running:
            process.wait()
    return statistics.mean(times)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
