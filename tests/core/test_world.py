from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from orca.core.engine import Settings
from orca.core.source import Shards
from orca.core.world import World, _check_versions, _waiting
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError
from orca.monitor.heartbeat import DATA, PHASES, Heartbeat


def no_rows(items: Any, folder: Path) -> dict[str, Any]:
    return {}


def meet(world: World, rows: Any, heartbeat: Heartbeat) -> dict[str, Any]:
    """Use every collective once and return what came of it."""
    heartbeat.at(DATA)
    whole, half = np.array([[world.rank, 1]], np.int64), np.array([0.5 * world.rank], np.float32)
    results = {
        "place": (world.rank, world.size, world.local_rank, world.local_size, world.host),
        "all_gather": world.all_gather({"rank": world.rank, "text": "x" * 1000 * world.rank}),
        "gather": world.gather(("from", world.rank)),
        "broadcast": world.broadcast([world.rank + 10]),
        "sum": world.all_reduce([whole, half], "sum"),
        "mean": world.all_reduce([whole, half]),
        "none": world.all_reduce([]),
        "phase": PHASES[heartbeat.phase],
    }
    shared, world.sums = world.sums, None  # type: ignore[attr-defined]
    results["by gloo"] = world.all_reduce([whole, half, np.array(0.25 * world.rank), half * np.ones((2, 3))], "sum")
    world.sums = shared  # type: ignore[attr-defined]
    return results | {"mine": (whole, half)}


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Return what each of three real processes over gloo tells."""
    pytest.importorskip("torch")
    cloudpickle.register_pickle_by_value(request.module)
    return LocalEngine(3).run(meet, Shards(no_rows, list), Settings(stall_timeout=60, progress=False))


def test_every_rank_knows_its_place(ranks: list[dict[str, Any]]) -> None:
    size = len(ranks)
    assert [rank["place"] for rank in ranks] == [(r, size, r, size, "127.0.0.1") for r in range(size)]


def test_all_gather_gives_every_ranks_item_to_all(ranks: list[dict[str, Any]]) -> None:
    expected = [{"rank": r, "text": "x" * 1000 * r} for r in range(len(ranks))]
    assert all(rank["all_gather"] == expected for rank in ranks)


def test_gather_gives_them_to_rank_0_alone(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["gather"] == [("from", r) for r in range(len(ranks))]
    assert all(rank["gather"] is None for rank in ranks[1:])


def test_broadcast_gives_rank_0s_item_to_all(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["broadcast"] == [10] for rank in ranks)


def test_all_reduce_adds_up_or_takes_the_mean(ranks: list[dict[str, Any]]) -> None:
    size = len(ranks)
    total = sum(range(size))
    for rank in ranks:
        whole, half = rank["sum"]
        assert whole.tolist() == [[total, size]] and whole.dtype == np.int64
        assert half.tolist() == [0.5 * total] and half.dtype == np.float32
        whole, half = rank["mean"]
        assert whole.tolist() == [[total / size, 1.0]] and half.tolist() == [0.5 * total / size]
        assert rank["none"] == []


def test_gloo_adds_arrays_of_several_types_up(ranks: list[dict[str, Any]]) -> None:
    total = sum(range(len(ranks)))
    for rank in ranks:
        whole, half, scalar, wide = rank["by gloo"]
        assert whole.tolist() == [[total, len(ranks)]] and whole.dtype == np.int64
        assert half.tolist() == [0.5 * total] and half.dtype == np.float32
        assert scalar.shape == () and scalar == 0.25 * total
        assert wide.tolist() == [[0.5 * total] * 3] * 2


def test_all_reduce_leaves_its_arguments_alone(ranks: list[dict[str, Any]]) -> None:
    for r, rank in enumerate(ranks):
        assert rank["mine"][0].tolist() == [[r, 1]] and rank["mine"][1].tolist() == [0.5 * r]


def test_a_collective_comes_back_to_the_phase_it_left(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["phase"] == "data" for rank in ranks)


def leave_in_a_hurry(world: World, rows: Any, heartbeat: Heartbeat) -> int:
    """Return while the threads of the process group still hold tensors that nobody else holds."""
    import torch

    for _ in range(200):
        torch.distributed.all_reduce(torch.ones(3), async_op=True)
    return world.rank


def test_a_rank_can_leave_while_collectives_end() -> None:
    pytest.importorskip("torch")
    settings = Settings(stall_timeout=20, progress=False)
    assert LocalEngine(2).run(leave_in_a_hurry, Shards(no_rows, list), settings) == [0, 1]


def test_waiting_shows_in_the_heartbeat() -> None:
    heartbeat = Heartbeat()
    heartbeat.at(DATA)
    with _waiting(heartbeat):
        assert PHASES[heartbeat.phase] == "wait"
    assert PHASES[heartbeat.phase] == "data"


CARD = {"host": "10.0.0.1", "python": "3.11", "torch": "2.9.1"}


def test_equal_versions_are_welcome() -> None:
    _check_versions([CARD, {**CARD, "host": "10.0.0.2"}])


@pytest.mark.parametrize(("what", "other"), [("python", "3.12"), ("torch", "2.8.0")])
def test_differing_versions_are_refused_with_both_named(what: str, other: str) -> None:
    said = (
        rf"same {what}; rank 0 on 10.0.0.1 has {CARD[what]}, rank 1 on 10.0.0.2 has {other}. Give every node the same"
    )
    with pytest.raises(ArgumentError, match=said):
        _check_versions([CARD, {**CARD, "host": "10.0.0.2", what: other}])
