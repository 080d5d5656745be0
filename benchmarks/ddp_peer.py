"""The peers of training: the same plain loop under torchrun, TorchDistributor and Ray Train, and one of Lightning.

Rows are in memory, as tensors, indexed by a shuffled permutation; no DataLoader, but for Lightning, which needs one.

    python -m torch.distributed.run -m benchmarks.ddp_peer case NAME EPOCHS        prints the seconds of each epoch
    python -m torch.distributed.run -m benchmarks.ddp_peer files FOLDER EPOCHS BATCH
    python -m benchmarks.ddp_peer lightning FOLDER EPOCHS BATCH
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.models import CASES, mlp

WORKERS = 2


def torchrun(*arguments: Any) -> str:
    """Run this file on all workers; return what it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={WORKERS}", "--rdzv_backend=c10d"]
    return _run([*command, "--rdzv_endpoint=127.0.0.1:0", "-m", "benchmarks.ddp_peer", *map(str, arguments)])


def lightning(*arguments: Any) -> str:
    """Run Lightning in a program of its own, which starts the second worker."""
    return _run([sys.executable, "-m", "benchmarks.ddp_peer", "lightning", *map(str, arguments)])


def _run(command: list[str]) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def train_case(case: str, epochs: str) -> None:
    """Train a case of models.py; print the seconds of each epoch."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    make, data, batch = CASES[case]
    x, y = (torch.from_numpy(array[rank::size].copy()) for array in data())
    times = loop(x, y, make(), int(epochs), batch // size)
    if rank == 0:
        print(json.dumps(times), flush=True)
    dist.destroy_process_group()


def train_files(folder: str, epochs: str, batch: str) -> None:
    """Read this rank's files and train on them. TorchDistributor and Ray Train call this on their workers."""
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    loop(*read_files(folder, rank, size), mlp(), int(epochs), int(batch) // size)
    if ours:
        dist.destroy_process_group()


def read_files(folder: str, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    table = pq.read_table(sorted(Path(folder).glob("*.parquet"))[rank::size])
    x = torch.from_numpy(table["x"].combine_chunks().flatten().to_numpy().reshape(len(table), -1).copy())
    return x, torch.from_numpy(table["y"].to_numpy().copy())


def loop(x: torch.Tensor, y: torch.Tensor, net: torch.nn.Module, epochs: int, share: int) -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    times = []
    for _ in range(epochs):
        began = time.perf_counter()
        order, total = torch.randperm(len(x)), 0.0
        for start in range(0, len(x), share):
            index = order[start : start + share]
            optimizer.zero_grad()
            loss = criterion(model(x[index]), y[index])
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(index)
        float(total)
        times.append(time.perf_counter() - began)
    del model  # before its process group goes
    return times


def train_lightning(folder: str, epochs: str, batch: str) -> None:
    import lightning as L
    from torch.utils.data import DataLoader, TensorDataset

    class Classifier(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def training_step(self, pair: Any, index: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.net(pair[0]), pair[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    rows = TensorDataset(*read_files(folder, 0, 1))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(accelerator="cpu", devices=WORKERS, strategy="ddp", max_epochs=int(epochs), **quiet)
    trainer.fit(Classifier(), DataLoader(rows, int(batch) // WORKERS, shuffle=True))


KINDS = {"case": train_case, "files": train_files, "lightning": train_lightning}

if __name__ == "__main__":
    KINDS[sys.argv[1]](*sys.argv[2:])
