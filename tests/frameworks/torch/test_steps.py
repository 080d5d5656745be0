from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from orca.core.source import Batch
from orca.frameworks.torch.steps import Steps
from orca.frameworks.torch.tensors import Place

PLACE = Place(torch.device("cpu"), torch.float32)


def drawn() -> tuple[float, float, float]:
    return np.random.rand(), random.random(), float(torch.rand(()))


def batches(first: int, size: int = 5) -> Iterator[Batch]:
    """Yield batches that hold what is drawn when they are read."""
    for _ in range(first, size):
        yield Batch(drawn(), None, 1, 1)


def steps(first: int = 0) -> list[Any]:
    """Return what is drawn by each step, when it is read and when it is trained on."""
    return [
        (step, batch.x, drawn()) for step, batch in enumerate(Steps(batches(first), PLACE, (1, 2, 3), first), first)
    ]


def test_every_generator_draws_the_same_in_a_step_wherever_the_epoch_begins() -> None:
    whole = steps()
    random.seed(9)
    np.random.seed(9)
    torch.manual_seed(9)
    assert steps(first=2) == whole[2:]
    assert len({draws for _, read, trained in whole for draws in (*read, *trained)}) == 30


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("width", [3, 1 << 20])  # small batches travel together, large ones alone
def test_batches_arrive_on_a_gpu_in_their_order_with_random_numbers_of_their_own(quiet: bool, width: int) -> None:
    sizes = [4, 4, 1, 4, 3]
    place = Place(torch.device("cuda", 0), torch.float32)

    def read() -> Iterator[Batch]:
        for number, rows in enumerate(sizes):
            yield Batch(np.full((rows, width), number, np.float64), np.arange(rows), rows, rows, quiet=quiet)

    counted: list[int] = []

    def count(batch: Batch) -> Batch:
        assert isinstance(batch.y, np.ndarray)  # not on the GPU yet
        counted.append(batch.rows)
        return batch

    draws = []
    for step, batch in enumerate(Steps(read(), place, (1, 2, 3), count_rows=count)):
        assert batch.x.is_cuda and batch.x.dtype == torch.float32 and batch.x.shape == (sizes[step], width)
        assert bool((batch.x == step).all()) and batch.y.tolist() == list(range(sizes[step]))
        draws.append((float(torch.rand((), device="cuda")), np.random.rand()))
    assert counted == sizes and len({*map(str, draws)}) == len(sizes)
