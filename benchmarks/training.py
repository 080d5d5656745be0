"""Training: our loop on two local processes against bare DistributedDataParallel under torchrun, seconds an epoch."""

from __future__ import annotations

import json
import statistics

import torch

from benchmarks.ddp_peer import WORKERS, torchrun
from benchmarks.measure import Result, compared, interleaved
from benchmarks.models import CASES
from orca import Estimator

EPOCHS = 4
TARGETS = {"cnn": 0.95, "tiny_mlp": 0.85}


def run(repeats: int) -> list[Result]:
    results = []
    for case, target in TARGETS.items():
        times = interleaved({"orca": lambda c=case: ours(c), "torchrun DDP": lambda c=case: bare(c)}, repeats)
        results += compared(f"training epoch, {case}, 2 processes", times, {"torchrun DDP": target})
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
    return statistics.median(json.loads(torchrun("case", case, EPOCHS).strip().splitlines()[-1])[1:])
