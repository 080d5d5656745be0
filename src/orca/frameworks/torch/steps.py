"""Steps: numbered batches, each with random numbers of its own. Owns seeding by step, and reading ahead for a GPU.

An epoch that is resumed mid-way draws what it would have drawn, as no step depends on the draws of another.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np
import torch

from orca.core.source import Batch
from orca.frameworks.torch.tensors import Place
from orca.rows.tree import flatten

_AHEAD = 2  # batches: while one travels, the next is read
_STRIDE = 0x9E3779B97F4A7C15  # an odd number: seeds of neighbouring steps are far apart


@dataclass(frozen=True)
class Steps:
    """The steps of an epoch on one rank.

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
        """Yield batches that were read, and sent on their way, while those before were trained on.

        Reading and training take turns in one thread, as the user's code draws from the same generators in both; the
        GPU works on while the next batch is read.
        """
        stream = torch.cuda.Stream(self.place.device)
        read = self._read(base)
        with ThreadPoolExecutor(1, "orca-sender") as sender:

            def ahead(batches: int) -> Iterator[tuple[int, Future[tuple[Batch, torch.cuda.Event]]]]:
                return ((step, sender.submit(self._sent, batch, stream)) for step, batch in islice(read, batches))

            coming = deque(ahead(_AHEAD))
            while coming:
                step, sent = coming.popleft()
                batch, arrived = sent.result()
                torch.cuda.current_stream(self.place.device).wait_event(arrived)
                yield step, batch
                coming.extend(ahead(1))

    def _sent(self, batch: Batch, stream: torch.cuda.Stream) -> tuple[Batch, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            x = self.place.features(batch.x)
            y = None if batch.y is None else self.place.targets(batch.y)
        for tensor in flatten((x, () if y is None else y))[0]:
            tensor.record_stream(torch.cuda.current_stream(self.place.device))
        return replace(batch, x=x, y=y), stream.record_event()


def seed_draws(number: int, device: torch.device) -> None:
    """Seed what is drawn on the CPU, by torch, numpy and Python, and what is drawn on a GPU."""
    seed = number % 2**63
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


@contextmanager
def kept_draws() -> Iterator[None]:
    """Put the generators back afterwards: this process may be the user's own."""
    put_back = draws()
    try:
        yield
    finally:
        put_back()


def draws() -> Callable[[], None]:
    """Return what puts the generators of torch, numpy and Python back to where they are now."""
    ours, numpys, pythons = torch.get_rng_state(), np.random.get_state(), random.getstate()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def put_back() -> None:
        torch.set_rng_state(ours)
        np.random.set_state(numpys)
        random.setstate(pythons)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)

    return put_back


def set_deterministic(on: bool) -> bool:
    """Allow deterministic algorithms alone, or all; return how it was."""
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for it
    torch.use_deterministic_algorithms(on)
    return before
