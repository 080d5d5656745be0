"""Steps: numbered batches, each with random numbers of its own. Owns seeding by step, and reading ahead for a GPU.

A resumed epoch draws the same numbers as without the interruption, as no step depends on the draws of another.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, count, islice, pairwise
from typing import Any

import numpy as np
import torch

from orca.core.draws import seed_plain
from orca.core.source import Batch
from orca.frameworks.torch.tensors import Place
from orca.rows.tree import cut_rows, flatten, unflatten

_AHEAD = 2  # batches, or groups of them: while one travels, the next is read
_GROUP, _GROUP_BYTES = 32, 4 << 20  # batches that travel together: so many, and no more once they have so many bytes
_STRIDE = 0x9E3779B97F4A7C15  # an odd number: seeds of neighbouring steps are far apart


Sent = tuple[list[tuple[Batch, Any, Any]], Any]  # batches with their features and targets, and when those arrive


@dataclass(frozen=True)
class Steps:
    """The steps of an epoch on one rank.

    Attributes:
        batches: The batches that follow the first steps.
        place: The device that they are trained on.
        seed: The seeds of the fit, the epoch and the rank.
        first: Steps of the epoch that were done before.
        count_rows: Adds the mass of each row to a batch; sees labels that are not on a GPU yet.
        resident: Whether the batches are in place, and reading them draws nothing.
    """

    batches: Iterable[Batch]
    place: Place
    seed: tuple[int, ...]
    first: int = 0
    count_rows: Callable[[Batch], Batch] = lambda batch: batch
    resident: bool = False

    def __iter__(self) -> Iterator[Batch]:
        base = int(np.random.SeedSequence(self.seed).generate_state(1, np.uint64)[0])
        device, batches = self.place.device, iter(self.batches)
        source = batches if self.resident else self._read(batches, base)
        on_gpu = device.type == "cuda" and not self.resident
        ready = self._on_gpu(source, batches) if on_gpu else map(self.count_rows, source)
        for step, batch in enumerate(ready, self.first):
            seed_step(base + (2 * step + 1) * _STRIDE, device)
            yield batch

    def _read(self, batches: Iterator[Batch], base: int) -> Iterator[Batch]:
        for step in count(self.first):
            seed_step(base + 2 * step * _STRIDE, torch.device("cpu"))
            batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _on_gpu(self, source: Iterator[Batch], batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield batches that were read, and sent on their way, while those before were trained on.

        Where reading runs code of the user's, it takes turns with training in one thread, as both draw from the same
        generators; the GPU works on meanwhile. Quiet batches are read by the thread that sends them, several at a
        time where they are small.
        """
        stream = torch.cuda.Stream(self.place.device)
        first = next(source, None)
        with ThreadPoolExecutor(1, "orca-sender") as sender:

            def send(group: list[Batch]) -> Future[Sent]:
                return sender.submit(self._sent, group, stream)

            def send_next() -> Future[Sent]:
                if first is not None and first.quiet:
                    return sender.submit(lambda: self._sent(_group(batches), stream))
                return send(list(islice(source, 1)))

            coming = deque([send([first] if first else []), *(send_next() for _ in range(_AHEAD - 1))])
            while True:
                group, event = coming.popleft().result()
                if not group:
                    return
                torch.cuda.current_stream(self.place.device).wait_event(event)
                for batch, x, y in group:
                    yield replace(self.count_rows(batch), x=x, y=y)
                coming.append(send_next())

    def _sent(self, group: list[Batch], stream: torch.cuda.Stream) -> Sent:
        """Return batches, each with its features and targets on the GPU or on their way there."""
        with torch.cuda.stream(stream):
            alike = len(group) > 1 and all(batch.rows for batch in group)  # a template row is another rank's
            pairs = self._together(group) if alike else [self._moved(batch.x, batch.y) for batch in group]
            return [(batch, *pair) for batch, pair in zip(group, pairs, strict=True)], stream.record_event()

    def _together(self, group: list[Batch]) -> list[tuple[Any, Any]]:
        """Move the rows of several batches at once."""
        x = _joined([batch.x for batch in group])
        y = None if group[0].y is None else _joined([batch.y for batch in group])
        whole = self._moved(x, y)
        ends = list(accumulate(len(flatten(batch.x)[0][0]) for batch in group))
        cuts = [slice(start, stop) for start, stop in pairwise([0, *ends])]
        return [(cut_rows(whole[0], cut), None if y is None else cut_rows(whole[1], cut)) for cut in cuts]

    def _moved(self, x: Any, y: Any) -> tuple[Any, Any]:
        pair = self.place.features(x), None if y is None else self.place.targets(y)
        for tensor in flatten((pair[0], () if y is None else pair[1]))[0]:
            tensor.record_stream(torch.cuda.default_stream(self.place.device))
        return pair


def _group(batches: Iterator[Batch]) -> list[Batch]:
    """Return the next batches: one, or several small ones."""
    group: list[Batch] = []
    size = 0
    for batch in islice(batches, _GROUP):
        group.append(batch)
        size += sum(leaf.nbytes for leaf in flatten((batch.x, () if batch.y is None else batch.y))[0])
        if size >= _GROUP_BYTES:
            break
    return group


def _joined(trees: list[Any]) -> Any:
    """Return the rows of several trees of arrays one after the other."""
    leaves = zip(*(flatten(tree)[0] for tree in trees), strict=True)
    return unflatten(flatten(trees[0])[1], list(map(np.concatenate, leaves)))


def seed_step(number: int, device: torch.device) -> None:
    """Seed the generators of the CPU (torch, numpy and Python) and of a GPU."""
    seed = number % 2**63
    torch.default_generator.manual_seed(seed)
    seed_plain(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def set_deterministic(on: bool) -> bool:
    """Allow deterministic algorithms alone, or all; return how it was."""
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it
    torch.use_deterministic_algorithms(on)
    return before
