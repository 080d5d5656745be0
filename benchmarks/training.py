"""Training: our loop on two local processes against bare DistributedDataParallel under torchrun, seconds an epoch.

The peer is as good as a hand-written loop gets: tensors in memory, indexed by a shuffled permutation, no DataLoader.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.measure import Result, interleaved, medians
from benchmarks.models import CASES
from orca import Estimator

WORKERS, EPOCHS = 2, 4
TARGETS = {"cnn": 0.95, "tiny_mlp": 0.85}


def run(repeats: int) -> list[Result]:
    results = []
    for case, target in TARGETS.items():
        times = medians(interleaved({"orca": lambda c=case: ours(c), "torchrun": lambda c=case: bare(c)}, repeats))
        results.append(
            Result(
                f"training epoch, {case}, 2 processes", times["orca"], times["torchrun"], "torchrun DDP", "s", target
            )
        )
    return results


def ours(case: str) -> float:
    make, data, batch = CASES[case]
    torch.manual_seed(0)
    model = make()
    estimator = Estimator.from_torch(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        loss=torch.nn.CrossEntropyLoss(),
        backend="local",
        workers_per_node=WORKERS,
        threads_per_worker=1,
    )
    stats = estimator.fit(data(), epochs=EPOCHS, batch_size=batch, profile=True)
    return statistics.median(line["profile"]["mean_train_epoch_s"] for line in stats[1:])


def bare(case: str) -> float:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={WORKERS}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    command += [
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=127.0.0.1:0",
        "-m",
        "benchmarks.torchrun_peer",
        case,
        str(EPOCHS),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return statistics.median(json.loads(done.stdout.strip().splitlines()[-1])[1:])
