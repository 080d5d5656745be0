"""Ray as older programs know it: its context, and the handles of an Estimator's workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bigdl.orca.learn.pytorch
import zoo.orca.learn.pytorch
from orca.cluster.context import OrcaContext
from orca.cluster.ray import OrcaRayContext
from orca.errors import ArgumentError
from orca_classic.zoo.ray import RayContext

ray = pytest.importorskip("ray")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runtime": "sparks"}, r"runtime can only be spark or ray; got 'sparks'\. Did you mean 'spark'\?"),
        ({"num_ray_node": 2}, r"has no argument 'num_ray_node'\. Did you mean 'num_ray_nodes'\?"),
        ({"cores": 0}, r"cores must be a positive whole number or '\*'; got 0"),
        ({"env": ["A=1"]}, "env must be a dict; got list"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        OrcaRayContext(**arguments)


def test_a_context_that_is_not_up_says_so() -> None:
    context = RayContext(num_ray_nodes=2)
    assert not context.initialized and context.address_info == {} and context.redis_address == ""
    with pytest.raises(ArgumentError, match=r"this Ray context is not up\. Call its init\(\)"):
        context.num_ray_nodes  # noqa: B018
    context.stop()


def test_a_ray_that_is_up_is_reused_and_left_to_its_owner(ray_context: Any) -> None:
    assert OrcaRayContext.get() is RayContext.get() is OrcaContext.get_ray_context() is ray_context
    another = OrcaRayContext(runtime="ray", cores=1)
    assert OrcaRayContext.get() is ray_context  # the one that is up
    assert another.init(driver_cores=1)["address"] == ray_context.address_info["address"]
    assert another.reused and (another.num_ray_nodes, another.ray_node_cpu_cores) == (1, 3)
    another.stop()
    assert not another.initialized and ray_context.initialized and ray.is_initialized()


@pytest.mark.full
def test_workers_have_handles_that_tell_the_state(ray_context: Any) -> None:
    est = zoo.orca.learn.pytorch.Estimator.from_torch(
        model=lambda config: torch.nn.Linear(2, 1),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.MSELoss(),
        backend="torch_distributed",
        workers_per_node=2,
    )
    assert est.num_workers == len(est.remote_workers) == len(est.estimator.remote_workers) == 2
    est.fit((np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)), epochs=1, batch_size=4)
    first, second = ray.get([worker.get_state_dict.remote() for worker in est.remote_workers])
    trained = est.get_model().state_dict()
    for name, value in trained.items():
        torch.testing.assert_close(first["models"][0][name], value, rtol=0, atol=0)
        torch.testing.assert_close(second["models"][0][name], value, rtol=0, atol=0)
    assert first["epoch"] == ray.get(est.remote_workers[0].state_dict.remote())["epoch"] == 1
    est.shutdown()


def test_without_ray_there_are_no_handles() -> None:
    est = bigdl.orca.learn.pytorch.Estimator.from_torch(
        model=torch.nn.Linear(2, 1), loss=torch.nn.MSELoss(), backend="local", workers_per_node=3
    )
    assert est.num_workers == 3 and not hasattr(est, "remote_workers")
