"""HorovodRayRunner on a real Ray."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from orca.errors import MissingDependency, NotSupported
from orca_classic.horovod.runner import HorovodRayRunner

pytest.importorskip("ray")


def test_a_class_of_workers_is_refused(ray_context: Any) -> None:
    with pytest.raises(NotSupported, match=r"worker_cls is not supported; got .*Give run\(\) a function"):
        HorovodRayRunner(ray_context, worker_cls=dict)


def test_a_function_meets_the_others_in_horovod(ray_context: Any) -> None:
    def add() -> tuple[int, int, float]:
        import horovod.torch as hvd
        import torch

        hvd.init()
        return hvd.rank(), hvd.size(), float(hvd.allreduce(torch.tensor(float(hvd.rank() + 1)), op=hvd.Sum))

    runner = HorovodRayRunner(ray_context, workers_per_node=2)
    assert runner.num_workers == 2
    if importlib.util.find_spec("horovod") is None:
        with pytest.raises(MissingDependency, match="Horovod is not installed. `make horovod`"):
            runner.run(add)
        return
    assert runner.run(add) == [(0, 2, 3.0), (1, 2, 3.0)]
