"""A standalone cluster loses an executor, or a whole node; the run goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

import apart
from cluster.losing import losing

pytestmark = pytest.mark.timeout(400)


@pytest.mark.full
def test_an_executor_that_is_killed_costs_no_run_and_nothing_of_the_result(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    context = "cluster_mode='standalone', cores=1, num_nodes=2, memory='512m', driver_memory='1g'"
    said = run_program(losing(context, mark), timeout=240)
    assert said.stdout.split()[-3:] == ["False", "True", "True"]
    assert re.search(r"Failure 1 of the 1 that max_failures allows: going on after step \d+", said.stderr)


def test_the_only_executor_is_waited_for(run_program: Callable[..., Any], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    context = "cluster_mode='standalone', cores=2, num_nodes=1, memory='512m', driver_memory='1g'"
    said = run_program(losing(context, mark, per_node=2), timeout=240)
    assert said.stdout.split()[-3:] == ["False", "True", "True"]
    assert re.search(r"rank \d on \S+ was lost: its executor was lost \(Spark: .*137.*SIGKILL", said.stderr)
    assert re.search(r"Failure 1 of the 1 that max_failures allows: going on after step \d+", said.stderr)


@pytest.mark.full
def test_an_executor_that_is_taken_away_costs_no_step(run_program: Callable[..., Any], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    conf = "conf={'spark.decommission.enabled': 'true'}"
    context = f"cluster_mode='standalone', cores=1, num_nodes=2, memory='512m', driver_memory='1g', {conf}"
    said = run_program(losing(context, mark, how="SIGPWR"), timeout=240)
    assert said.stdout.split()[-3:] == ["False", "True", "True"]
    assert re.search(r"rank \d on \S+ was preempted: Spark takes its executor \d on \S+ away", said.stderr), said.stderr
    assert re.search(r"going on after step (7|8|9)\.", said.stderr)  # and not after the sixth, by the trigger


@pytest.mark.full
def test_training_says_the_one_setting_it_needs_with_dynamic_allocation(run_program: Callable[..., Any]) -> None:
    said = run_program(
        """
        import numpy as np, torch
        from orca import Estimator, init_orca_context, stop_orca_context
        from orca.errors import ArgumentError

        conf = {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true"}
        init_orca_context("standalone", cores=1, memory="512m", driver_memory="1g", conf=conf)
        model = torch.nn.Linear(1, 1)
        made = Estimator.from_torch(
            model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), loss=torch.nn.MSELoss())
        try:
            made.fit((np.ones((4, 1), "float32"), np.ones((4, 1), "float32")), batch_size=2)
        except ArgumentError as error:
            print(error)
        stop_orca_context()
        """
    )
    assert "conf={'spark.dynamicAllocation.enabled': 'false'} and num_nodes= to init_orca_context" in said.stdout


# Two nodes train; `pull` runs beside them from the eighth step on.
TRAINING = """
import threading, time, numpy as np, torch
import apart
from orca.monitor import protocol
from torch import nn
from orca import Estimator, init_orca_context, stop_orca_context
from orca.callbacks import Callback
from orca.triggers import SeveralIteration
from pathlib import Path

steps = Path({folder!r}) / "steps"

class Slow(Callback):
    def after_train_iter(self, runner):
        time.sleep(0.3)
        if runner.rank == 0:
            steps.write_text(str(runner.global_step))

def fit(**more):
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    made = Estimator.from_torch(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.MSELoss(), seed=1,
        backend="spark", use_tqdm=False, model_dir={folder!r} + "/models")
    x = np.random.default_rng(0).random((160, 3))
    return made.fit((x, x.sum(1, keepdims=True)), 1, 4, callbacks=[Slow()], **more)

def later():
    while not steps.exists() or int(steps.read_text() or 0) < 8:
        time.sleep(0.05)
    pull()

def run(conf, **more):
    with apart.two_nodes(forward=True):
        where = dict(master=apart.MASTER, cores=1, num_nodes=2, memory="512m", driver_memory="1g")
        init_orca_context("standalone", conf={{**apart.CONF, **conf}}, **where)
        threading.Thread(target=later, daemon=True).start()
        [line] = fit(**more)
        print("went on", line["batch_count"], line["train_loss"] < 1)
        stop_orca_context()
"""
needs_networks = pytest.mark.skipif(not apart.possible(), reason="needs root, ip and nsenter for networks of its own")


@pytest.mark.full
@needs_networks
def test_a_node_that_is_cut_off_is_named_and_the_run_goes_on_with_the_other(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    code = """
def pull():
    apart.cut(2)

protocol.GONE_AFTER = 20.0  # the real ones, of some minutes, with less patience
run({"spark.network.timeout": "30s"}, max_failures=1, checkpoint_trigger=SeveralIteration(3))
"""
    said = run_program(TRAINING.format(folder=str(tmp_path)) + code, timeout=300)
    assert re.search(r"rank \d on \S+ was lost", said.stderr), said.stderr
    assert "went on 40 True" in said.stdout
    assert "going on with 1 of 2 workers" in said.stderr


@pytest.mark.full
@needs_networks
def test_a_pause_of_the_network_costs_no_run(run_program: Callable[..., Any], tmp_path: Path) -> None:
    code = """
def pull():
    apart.cut(2)
    time.sleep(45)  # of the two minutes; Spark's master, which is not ours to set, gives a worker up after one
    apart.mend(2)

run({})
"""
    said = run_program(TRAINING.format(folder=str(tmp_path)) + code, timeout=300)
    assert "went on 40 True" in said.stdout
