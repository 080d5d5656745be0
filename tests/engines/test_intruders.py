"""Intruders: who knows host and port, and not the run's secret, changes no fit, runs nothing and fills no log."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from engines.intruder import LatePiece, Stage, X, Y, attack, eventually, held, joins_as_a_rank, listening, sgd
from frameworks.torch.pair import All, Recording, recorded
from orca.core.engine import Engine, Settings
from orca.core.source import Shards
from orca.core.world import World
from orca.engines.local import LocalEngine
from orca.monitor.heartbeat import Heartbeat
from orca.testing import shards_of

STRANGERS = ("dropped the connection", "which are not shown")


def fit(engine: Engine, folder: Path) -> Any:
    """Fit a small model on two ranks, which wait for an intruder before they meet, and before they train."""
    early, formed = Stage(folder, "early"), Stage(folder, "formed")

    def net(config: dict[str, Any]) -> nn.Module:
        formed.wait()  # ranks make models when the world is there
        torch.manual_seed(0)
        return nn.Linear(4, 1)

    est = Recording.from_torch(
        model=net, optimizer=sgd, loss=nn.MSELoss(), backend="local", seed=1, metrics=["mae"], use_tqdm=False
    )
    case = recorded(lambda: est.fit((X, Y), epochs=2, batch_size=8, validation_data=(X, Y)))
    pieces = [LatePiece(piece, early) if number == 1 else piece for number, piece in enumerate(case.pieces)]
    shards = Shards(case.open, lambda: pieces)
    history, state = engine.run(case.job, shards, Settings(progress=False, stall_timeout=60))[0]
    return history.epochs, state.payload["models"][0]


def undisturbed_and_disturbed(engine: Engine, tmp_path: Path) -> tuple[Any, Any]:
    """Return the results of a fit without and with an intruder."""
    result = fit(engine, tmp_path / "nobody")
    before = listening()  # Spark's daemon, say
    folder, exploit = tmp_path / "intruder", tmp_path / "executed"
    folder.mkdir()
    early, formed = Stage(folder, "early"), Stage(folder, "formed")
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(fit, engine, folder)
        try:
            early.reached(1)
            hub_and_rank_0 = eventually(lambda: len(ports := listening() - before) >= 2 and ports)
            for port in hub_and_rank_0:
                attack(port, exploit)
            assert not any(joins_as_a_rank(port, exploit) for port in hub_and_rank_0)
            with held(hub_and_rank_0):
                early.over()
                formed.reached(2)
                for port in listening() - before - hub_and_rank_0:  # those of gloo
                    attack(port, exploit)
                formed.over()
                disturbed = run.result(60)
        finally:
            early.over()
            formed.over()
    assert not exploit.exists()
    return result, disturbed


def assert_same(one: Any, other: Any) -> None:
    (lines, weights), (other_lines, other_weights) = one, other
    assert lines == other_lines
    assert all(torch.equal(torch.as_tensor(weights[name]), torch.as_tensor(other_weights[name])) for name in weights)


def test_fit_on_this_machine_is_not_disturbed(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    caplog.set_level(logging.INFO)
    assert_same(*undisturbed_and_disturbed(LocalEngine(2), tmp_path))
    said = caplog.text + "".join(capfd.readouterr())
    assert 0 < sum(said.count(words) for words in STRANGERS) <= 50
    assert "Traceback" not in said


def test_fit_on_spark_is_not_disturbed(spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from orca.engines.spark import SparkEngine

    assert_same(*undisturbed_and_disturbed(SparkEngine(spark, 2), tmp_path))
    assert 0 < sum(caplog.text.count(words) for words in STRANGERS) <= 50


@dataclass(frozen=True)
class NoPickles:
    """A job that fails where torch unpickles what another rank sent, whoever asked it to."""

    job: Any

    def __call__(self, world: World, rows: Any, heartbeat: Heartbeat) -> Any:
        """Run on one rank."""
        import torch.distributed.distributed_c10d as c10d

        def refuse(*arguments: Any) -> None:
            raise AssertionError("torch unpickled something")

        original, c10d._tensor_to_object = c10d._tensor_to_object, refuse
        try:
            return self.job(world, rows, heartbeat)
        finally:
            c10d._tensor_to_object = original


def test_no_way_to_sync_replicas_unpickles() -> None:
    calls = {
        name: lambda options=options: Recording.from_torch(
            model=lambda config: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)),
            optimizer=lambda model, config: torch.optim.Adam(model.parameters()),
            loss=nn.MSELoss(), seed=1, metrics=["mae", "auc"], **options,
        ).fit((X, Y > 2), epochs=1, batch_size=8, validation_data=(X, Y > 2))
        for name, options in {
            "replicated": {"backend": "local"},
            "batch norm": {"backend": "local", "sync_batchnorm": True},
            "fully sharded": {"backend": "local", "shard_model": True},
        }.items()
    }  # fmt: skip
    cases = {
        name: replace(case, job=NoPickles(case.job)) for name, case in ((n, recorded(c)) for n, c in calls.items())
    }
    ranks = LocalEngine(2).run(All(cases), shards_of([(np.zeros((1, 1)), np.zeros(1))] * 2), Settings(progress=False))
    assert [list(rank) for rank in ranks] == [list(cases)] * 2
