"""The peer of the training benchmark: a plain DistributedDataParallel loop under torchrun; prints epoch seconds."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.models import CASES


def main(case: str, epochs: int) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    make, data, batch = CASES[case]
    torch.manual_seed(0)
    x, y = (torch.from_numpy(array) for array in data())
    x, y = x[rank::size].contiguous(), y[rank::size].contiguous()
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    share, times = batch // size, []
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
    if rank == 0:
        print(json.dumps(times), flush=True)
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
