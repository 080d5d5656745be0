"""RayEngine on a real Ray: order, every kind of failure, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from orca.core.engine import Settings
from orca.core.resources import cores
from orca.core.source import DataSpec, Shards
from orca.errors import WorkerFailed, WorkerLost, WorkerStalled
from orca.sources.arrays import ArraySource
from raised import raises

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("ray_context")

CPUS = 3


@pytest.fixture(autouse=True)
def nothing_left(ray_context: Any) -> Iterator[None]:
    """Fail a test after which Ray does not get all back: processes that do not wait for a run, seats, CPUs, folders."""
    yield
    _end_spares()
    deadline = time.monotonic() + 10
    while left := _left():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_ray_must_be_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with raises("no-ray"):
        _engine().on_cluster(1)


def test_workers_are_nodes_times_workers_per_node() -> None:
    assert _engine().on_cluster(2).workers == 2


def test_results_come_in_rank_order_from_ranks_on_loopback_with_their_own_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    results = _engine()(2).run(Describe(), _data(2), Settings())
    assert results == [(0, 2, "127.0.0.1", 1, 5), (1, 2, "127.0.0.1", 1, 5)]
    assert _engine()(1).run(Describe(), _data(1), Settings()) == [(0, 1, "127.0.0.1", min(CPUS, cores()), 10)]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert _engine()(1).run(Describe(), _data(1), Settings()) == [(0, 1, "127.0.0.1", 7, 10)]


def test_rows_are_spooled_where_ray_spills_objects() -> None:
    shards = Shards(lambda items, folder: {"train": Folder(folder)}, lambda: [lambda: iter(())])
    [folder] = _engine()(1).run(lambda world, rows, heartbeat: str(rows["train"].folder), shards, Settings())
    assert Path(folder).is_relative_to(os.path.dirname(ray._private.worker._global_node.get_session_dir_path()))


@dataclass
class Folder:
    """The folder for the spools of a rank."""

    folder: Path

    def close(self) -> None:
        pass


def test_actors_wait_for_the_next_run_and_hold_no_cpus() -> None:
    first = _engine()(2).run(Pid(), _data(2), Settings())
    assert ray.available_resources()["CPU"] == CPUS
    alone = _engine()(1).run(Pid(), _data(1), Settings())
    again = _engine()(2).run(Pid(), _data(2), Settings())
    assert set(alone) < set(first) == set(again) and len(set(again)) == 2


def test_an_actor_that_died_while_it_waited_is_replaced() -> None:
    (pid,) = _engine()(1).run(Pid(), _data(1), Settings())
    psutil.Process(pid).kill()
    (other,) = _engine()(1).run(Pid(), _data(1), Settings())
    assert other != pid


def test_actors_do_not_wait_for_ever_nor_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orca.engines.ray._SPARE_FOR", 0.5)
    pids = _engine()(2).run(Pid(), _data(2), Settings())
    deadline = time.monotonic() + 10
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    monkeypatch.undo()
    _failure(lambda: 1 / 0, tmp_path)  # type: ignore[arg-type, return-value]
    assert not any(_spares().idle.values())


def test_an_actor_whose_process_a_job_changed_does_not_wait() -> None:
    _engine()(1).run(Do(lambda: os.environ.update(SOME_SETTING="1")), _data(1), Settings())
    assert not any(_spares().idle.values())


def test_map_answers_in_the_order_of_the_pieces() -> None:
    assert _engine()(2).map(lambda piece: piece * piece, list(range(5))) == [0, 1, 4, 9, 16]


def test_map_names_what_failed() -> None:
    def task(piece: int) -> float:
        return 1 / piece

    with raises("worker-failed") as caught:
        _engine()(2).map(task, [1, 0])
    assert "in task" in caught.value.remote_traceback


@pytest.mark.full
def test_an_exception_is_named_with_rank_host_and_traceback(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no such pixel")

    error = _failure(fail, tmp_path)
    assert type(error) is WorkerFailed
    assert (error.rank, error.host, error.reason) == (1, os.uname().nodename, "ValueError: no such pixel")
    assert "in fail" in error.remote_traceback


@pytest.mark.full
def test_exit_in_user_code_is_a_failure(tmp_path: Path) -> None:
    error = _failure(lambda: sys.exit(3), tmp_path)
    assert type(error) is WorkerFailed
    assert (error.rank, error.reason) == (1, "SystemExit: 3")


@pytest.mark.full
def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    error = _failure(lambda: os.kill(os.getpid(), signal.SIGKILL), tmp_path)
    assert type(error) is WorkerLost
    assert (error.rank, error.host) == (1, os.uname().nodename)
    assert "its process ended without a word" in error.reason


@pytest.mark.full
def test_a_stalled_rank_is_named_with_its_stack(tmp_path: Path) -> None:
    def sit_still() -> None:
        time.sleep(1000)

    error = _failure(sit_still, tmp_path, stall=5.0)
    assert type(error) is WorkerStalled
    assert error.rank == 1
    assert "in sit_still" in error.remote_traceback


def test_unpicklable_data_is_named() -> None:
    lock = threading.Lock()
    with raises("not-picklable"):
        _engine()(1).run(Describe(), Shards(_data(1).open, portable=lambda: [lambda: iter([lock])]), Settings())


def test_an_interrupt_ends_all_ranks(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def interrupt() -> None:
        while not mark.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        _engine()(2).run(OnRankOne(str(mark), lambda: time.sleep(1000)), _data(2), Settings())


def test_more_workers_than_cpus_are_refused_with_the_numbers() -> None:
    with raises("too-few-slots"):
        _engine()(4).run(Describe(), _data(4), Settings())


def test_cpus_that_others_hold_are_told_or_left_to_them() -> None:
    with _held(2):
        with raises("too-few-slots"):
            _engine()(2).run(Describe(), _data(2), Settings())
        assert _engine()(1).map(lambda piece: piece, [7]) == [7]


def test_a_rank_sees_the_gpu_that_ray_assigned_and_does_not_train_on_the_cpu_without(
    run_program: Callable[..., Any],
) -> None:
    said = run_program("""
        import os
        import numpy as np
        import torch
        from orca import Estimator, init_orca_context, stop_orca_context
        from orca.core.engine import Settings
        from orca.core.source import Shards
        from orca.engines.ray import RayEngine

        class Tell:
            def run_on_peer(self, peer, patience, heartbeat):
                return os.environ["CUDA_VISIBLE_DEVICES"], peer.grant.gpus, peer.grant.cpus

        init_orca_context(runtime="ray", cores=2, num_gpus=2)
        shards = Shards(lambda items, folder: {}, lambda: [lambda: iter(())] * 2)
        print("told", sorted(RayEngine(2).run(Tell(), shards, Settings(progress=False))))
        model = torch.nn.Linear(2, 1)
        est = Estimator.from_torch(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1),
                                   loss=torch.nn.MSELoss(), backend="ray", workers_per_node=2)
        try:
            est.fit((np.ones((4, 2), "f4"), np.ones((4, 1), "f4")), batch_size=2)
        except Exception as error:
            print("refused", error)
        stop_orca_context()
    """)
    assert "told [('0', ('0',), 1), ('1', ('0',), 1)]" in said.stdout
    assert "the cluster assigned GPU '0' to a worker on 127.0.0.1" in said.stdout


@pytest.mark.full
def test_seats_are_spread_over_nodes_and_ranks_of_a_node_are_neighbours(run_program: Callable[..., Any]) -> None:
    said = run_program("""
        import ray
        from ray.cluster_utils import Cluster
        from orca.engines.ray import RayEngine, _reserved

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False})
        cluster.add_node(num_cpus=3)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, logging_level="WARNING")
        workers = RayEngine.on_cluster(2).workers
        with _reserved(workers) as seats:
            nodes = [seat.node for seat in seats]
            print("told", workers, nodes == sorted(nodes), [nodes.count(node) for node in sorted(set(nodes))],
                  {seat.cpus for seat in seats})
        ray.shutdown()
        cluster.shutdown()
    """)
    assert "told 4 True [2, 2] {1}" in said.stdout


@dataclass(frozen=True)
class Describe:
    """Return who a rank is, its threads and its rows."""

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> tuple[int, int, str, int, int]:
        return world.rank, world.size, world.host, torch.get_num_threads(), rows["train"].count


@dataclass(frozen=True)
class Pid:
    """Return the process of a rank."""

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> int:
        world.all_gather(None)
        return os.getpid()


@dataclass(frozen=True)
class Do:
    """Call a function on every rank."""

    act: Callable[[], Any]

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> None:
        self.act()


@dataclass(frozen=True)
class OnRankOne:
    """Do something on rank 1 while the others wait for it; leaves a mark when it begins."""

    mark: str
    act: Callable[[], None]

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> None:
        if world.rank == 1:
            Path(self.mark).touch()
            self.act()
        world.all_gather(world.rank)


def _failure(act: Callable[[], None], folder: Path, stall: float = 300.0) -> WorkerFailed:
    """Return what is raised when rank 1 of 2 does something bad."""
    mark = folder / "mark"
    with pytest.raises(WorkerFailed) as caught:
        _engine()(2).run(OnRankOne(str(mark), act), _data(2), Settings(stall_timeout=stall))
    return caught.value


def _engine() -> Any:
    from orca.engines.ray import RayEngine

    return RayEngine


def _spares() -> Any:
    from orca.engines.ray import _spares

    return _spares


def _end_spares() -> None:
    for node, idle in _spares().idle.items():
        for actor in list(idle):
            _spares()._end(node, actor)


def _data(ranks: int) -> Shards:
    x = np.arange(10, dtype=np.float32)
    return ArraySource((x, x), DataSpec()).shards(ranks)


@contextlib.contextmanager
def _held(cpus: int) -> Iterator[None]:
    """Let another program's actor hold CPUs."""

    class Holder:
        def ready(self) -> None:
            pass

    actor = ray.remote(num_cpus=cpus)(Holder).remote()
    ray.get(actor.ready.remote())
    yield
    ray.kill(actor)


def _left() -> list[str]:
    groups = [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
    free = ray.available_resources().get("CPU", 0)
    ranks = [p for p in psutil.Process().children(recursive=True) if _name(p).startswith("ray::OrcaRank")]
    folders = list(Path(tempfile.gettempdir()).glob("orca-[0-9]*"))
    return [*map(str, [*groups, *ranks, *folders]), *([f"{free} CPUs free"] if free != CPUS else [])]


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return " ".join(process.cmdline())
    return ""
