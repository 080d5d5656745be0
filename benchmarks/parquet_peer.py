"""The peer of the frame benchmark: torchrun ranks that read the Parquet files into memory and train on them."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.models import mlp


def main(folder: str, epochs: int, batch: int) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    files = sorted(Path(folder).glob("*.parquet"))[rank::size]
    table = pq.read_table(files)
    x = torch.from_numpy(table["x"].combine_chunks().flatten().to_numpy().reshape(len(table), -1).copy())
    y = torch.from_numpy(table["y"].to_numpy().copy())
    torch.manual_seed(0)
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    share = batch // size
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x), share):
            index = order[start : start + share]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
