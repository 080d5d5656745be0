"""Steps: numbered batches, each with random numbers of its own. Owns seeding by step, and reading ahead for a GPU.

An epoch that goes on in its midst draws what it would have drawn, as no step depends on the draws of another.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import torch

from orca.core.source import Batch
from orca.core.tree import flatten
from orca.frameworks.torch.tensors import Place

_AHEAD = 2  # batches: while one travels, the next is read, however uneven the reader's and the trainer's pace
_STRIDE = 0x9E3779B97F4A7C15  # an odd number: seeds of neighbouring steps are far apart


@dataclass(frozen=True)
class Steps:
    """Be the steps of an epoch on one rank.

    Attributes:
        batches: The batches that follow the first steps.
        place: Where they are trained on.
        seed: The seeds of the fit, the epoch and the rank.
        first: Steps of the epoch that were done before.
    """

    batches: Iterable[Batch]
    place: Place
    seed: tuple[int, ...]
    first: int = 0

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        base = int(np.random.SeedSequence(self.seed).generate_state(1, np.uint64)[0])
        device = self.place.device
        for step, batch in self._on_gpu(base) if device.type == "cuda" else self._read(base):
            seed_draws(base + (2 * step + 1) * _STRIDE, device)
            yield step, batch

    def _read(self, base: int) -> Iterator[tuple[int, Batch]]:
        batches = iter(self.batches)
        for step in count(self.first):
            seed_draws(base + 2 * step * _STRIDE, torch.device("cpu"))
            batch = next(batches, None)
            if batch is None:
                return
            yield step, batch

    def _on_gpu(self, base: int) -> Iterator[tuple[int, Batch]]:
        """Yield batches that were read, and sent on their way, while those before were trained on."""
        stream = torch.cuda.Stream(self.place.device)
        read = self._read(base)

        def ahead() -> tuple[int, Batch, torch.cuda.Event] | None:
            step, batch = next(read, (0, None))
            return None if batch is None else (step, self._sent(batch, stream), stream.record_event())

        with ThreadPoolExecutor(1, "orca-reader") as reader:
            coming = deque(reader.submit(ahead) for _ in range(_AHEAD))
            while (ready := coming.popleft().result()) is not None:
                step, batch, arrived = ready
                torch.cuda.current_stream(self.place.device).wait_event(arrived)
                coming.append(reader.submit(ahead))
                yield step, batch

    def _sent(self, batch: Batch, stream: torch.cuda.Stream) -> Batch:
        with torch.cuda.stream(stream):
            x = self.place.features(batch.x)
            y = None if batch.y is None else self.place.targets(batch.y)
        for tensor in flatten((x, () if y is None else y))[0]:
            tensor.record_stream(torch.cuda.current_stream(self.place.device))
        return replace(batch, x=x, y=y)


def seed_draws(number: int, device: torch.device) -> None:
    """Seed what is drawn on the CPU; for a GPU, what is drawn there: the CPU's numbers are its reader's."""
    seed = number % 2**63
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def set_deterministic(on: bool) -> bool:
    """Allow deterministic algorithms alone, or all; return how it was."""
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for it
    torch.use_deterministic_algorithms(on)
    return before
