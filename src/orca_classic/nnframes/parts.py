"""Parts: small things that programs take from the torch wrappers' modules. Owns a pickle module and a sampler."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Sized
from typing import Any

import cloudpickle
from torch import nn
from torch.utils.data import Sampler


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that also takes classes and functions of the program itself: `torch.save(..., pickle_module=...)`."""


class Unpickler(pickle.Unpickler):
    """The unpickler that goes with it. It runs code in the file: only for files that you trust."""


def dump(thing: Any, file: Any, protocol: int | None = None, **options: Any) -> None:
    """Pickle to a file."""
    cloudpickle.dump(thing, file, protocol)


def dumps(thing: Any, protocol: int | None = None, **options: Any) -> bytes:
    """Pickle to bytes."""
    return bytes(cloudpickle.dumps(thing, protocol))


def load(file: Any, **options: Any) -> Any:
    """Unpickle from a file that you trust."""
    return pickle.load(file, **options)


def loads(data: bytes, **options: Any) -> Any:
    """Unpickle from bytes that you trust."""
    return pickle.loads(data, **options)


class DistributedSequentialSampler(Sampler[int]):
    """The sampler of one of several workers, each of which reads a stretch of a dataset, in order.

    Args:
        dataset: The dataset.
        num_replicas: How many workers there are.
        rank: Which of them this is.

    Example:
        >>> [list(DistributedSequentialSampler(range(5), 2, rank)) for rank in range(2)]
        [[0, 1, 2], [3, 4]]
    """

    def __init__(self, dataset: Sized, num_replicas: int, rank: int) -> None:
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._stretch())

    def __len__(self) -> int:
        return len(self._stretch())

    def set_epoch(self, epoch: int) -> None:
        """Remember the epoch; the order is the same in all of them."""
        self.epoch = epoch

    def _stretch(self) -> range:
        rows, each = len(self.dataset), math.ceil(len(self.dataset) / self.num_replicas)
        return range(min(self.rank * each, rows), min((self.rank + 1) * each, rows))


def trainable_param(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model that are trained."""
    return [param for param in model.parameters() if param.requires_grad]
