"""Horovod: a function of the user's on every worker, as programs of Analytics Zoo and BigDL Orca run it on Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orca.cluster.ray import OrcaRayContext
from orca.core.engine import Settings
from orca.core.source import Shards
from orca.core.world import World
from orca.errors import NotSupported
from orca.registry import engine_class
from orca_classic.horovod.ranks import meeting

__all__ = ["HorovodRayRunner"]


class HorovodRayRunner:
    """Workers on Ray that join a Horovod world. They end with each `run`; classes of the user's own are refused.

    Args:
        ray_ctx: The context of the Ray, which is started where it is not up.
        worker_cls: Refused: give `run` a function.
        worker_param: Accepted; the arguments of worker_cls.
        workers_per_node: Workers on each node of Ray.
    """

    def __init__(
        self, ray_ctx: OrcaRayContext, worker_cls: Any = None, worker_param: Any = None, workers_per_node: int = 1
    ) -> None:
        if worker_cls is not None:
            raise NotSupported(
                f"worker_cls is not supported; got {worker_cls!r}: workers live for one call. Give run() a function."
            )
        self.ray_ctx, self.workers_per_node = ray_ctx, workers_per_node

    @property
    def num_workers(self) -> int:
        """Return the workers of all nodes."""
        self.ray_ctx.init()
        return self.ray_ctx.num_ray_nodes * self.workers_per_node

    def run(self, func: Callable[[], Any]) -> list[Any]:
        """Call a function on every worker, where `hvd.init()` finds the others; return the results in rank order."""
        self.ray_ctx.init()
        engine = engine_class("ray").on_cluster(self.workers_per_node)
        # The user's function sends no heartbeats: it may take any time.
        results: list[Any] = engine.run(HorovodJob(func), Shards(_no_rows, list), Settings(stall_timeout=0))
        return results


@dataclass(frozen=True)
class HorovodJob:
    """A function on a rank, among the ranks of Horovod."""

    func: Callable[[], Any]

    def __call__(self, world: World, rows: Any, heartbeat: Any) -> Any:
        """Call the function."""
        with meeting(world):
            return self.func()


def _no_rows(items: Iterator[Any], folder: Path) -> dict[str, Any]:
    return {}
