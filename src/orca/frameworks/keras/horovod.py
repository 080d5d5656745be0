"""Horovod: a world whose sums are Horovod's for TensorFlow. Owns the names of its messages.

The gradients of replicas of a Keras model go through their world: with this one in its place, through Horovod. Items
stay with the world that it stands on, as Horovod would pickle them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from orca.core.horovod import join, leave
from orca.core.sums import SharedSums
from orca.core.world import World
from orca.monitor.link import Parted


class HorovodWorld:
    """The ranks of another world, meeting in Horovod; all of them make it together."""

    sums: SharedSums | None = None  # Horovod forms them

    def __init__(self, world: World) -> None:
        self.world = world
        self.rank, self.size, self.host = world.rank, world.size, world.host
        self.local_rank, self.local_size, self.resources = world.local_rank, world.local_size, world.resources
        self.horovod, _ = join(world, "tensorflow")

    def all_gather(self, item: Any) -> list[Any]:
        """Return every rank's item, in rank order, on every rank."""
        return self.world.all_gather(item)

    def gather(self, item: Any) -> list[Any] | None:
        """Return every rank's item on rank 0; None elsewhere."""
        return self.world.gather(item)

    def broadcast(self, item: Any) -> Any:
        """Return rank 0's item on every rank."""
        return self.world.broadcast(item)

    def all_reduce(self, arrays: Sequence[np.ndarray], how: str = "mean") -> list[np.ndarray]:
        """Return the element-wise mean or sum over all ranks."""
        op = self.horovod.Average if how == "mean" else self.horovod.Sum
        results = []
        for array in map(np.asarray, arrays):
            # Arrays of different shapes have different names: Horovod remembers its negotiation for a name.
            name = f"{how} of {array.dtype.name} {'x'.join(map(str, array.shape))}"
            with self._together():
                results.append(np.array(self.horovod.allreduce(tf.constant(array), op=op, name=name)))
        return results

    def close(self) -> None:
        """Leave Horovod; nothing can be sent after it."""
        leave("tensorflow")

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Report a collective that failed as a consequence: some other rank went away first."""
        try:
            with tf.device("CPU"):
                yield
        except tf.errors.OpError as error:
            raise Parted(f"rank {self.rank} lost the others in Horovod: {error.message}") from error
