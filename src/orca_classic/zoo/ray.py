"""Ray: its context and workers as in Analytics Zoo and BigDL Orca. Owns the differences from ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orca.cluster.ray import OrcaRayContext

__all__ = ["RayContext", "RayOnSparkContext"]


class RayContext(OrcaRayContext):
    """The context of a Ray on Spark, which takes the SparkContext first."""

    def __init__(
        self,
        sc: Any = None,
        redis_port: int | None = None,
        redis_password: str | None = None,
        object_store_memory: str | int | None = None,
        verbose: bool = False,
        env: dict[str, str] | None = None,
        extra_params: dict[str, Any] | None = None,
        include_webui: bool = False,
        num_ray_nodes: int | None = None,
        ray_node_cpu_cores: int | None = None,
        system_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            "spark",
            redis_port=redis_port,
            redis_password=redis_password,
            object_store_memory=object_store_memory,
            verbose=verbose,
            env=env,
            extra_params=extra_params,
            include_webui=include_webui,
            num_ray_nodes=num_ray_nodes,
            ray_node_cpu_cores=ray_node_cpu_cores,
            system_config=system_config,
        )

    def purge(self) -> None:
        """Stop this Ray, as `stop` does: nothing of it is left afterwards."""
        self.stop()


RayOnSparkContext = RayContext


class RayHandles:
    """The handles of the workers, for an Estimator on Ray.

    Our workers end with each call and are all alike: the Estimator answers for each of them.
    """

    engine: Any
    get_state_dict: Callable[[], dict[str, Any]]

    @property
    def estimator(self) -> Any:
        """Return this Estimator, which was inside of another one in Analytics Zoo."""
        return self

    @property
    def remote_workers(self) -> list[WorkerHandle]:
        """Return a handle for each worker; an AttributeError on another engine than Ray's."""
        engine = self.engine
        if engine.name != "ray":
            raise AttributeError(f"remote_workers are Ray's, and this Estimator runs on the engine {engine.name!r}.")
        return [WorkerHandle(self.get_state_dict) for _ in range(engine.workers)]


@dataclass(frozen=True)
class WorkerHandle:
    """A worker as an actor's handle: `ray.get(worker.get_state_dict.remote())`."""

    state: Callable[[], dict[str, Any]]

    @property
    def get_state_dict(self) -> RemoteCall:
        """Return the call that gives the state of the training."""
        return RemoteCall(self.state)

    @property
    def state_dict(self) -> RemoteCall:
        """Return get_state_dict, as Analytics Zoo named it."""
        return RemoteCall(self.state)


@dataclass(frozen=True)
class RemoteCall:
    """A call whose result is an object in Ray."""

    call: Callable[[], Any]

    def remote(self) -> Any:
        """Call; return the reference to the result."""
        import ray

        return ray.put(self.call())
