from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from orca.core import sums
from orca.core.sums import Meeting, SharedSums, shared_sums

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is shared so on Linux alone")


def joined(size: int, name: str | None = None) -> list[SharedSums | None]:
    """Return the sums of ranks that are threads here."""
    meeting, ready, wishes = Meeting(size), Barrier(size), dict[int, bool]()

    def join(rank: int) -> SharedSums | None:
        def agree(mine: bool) -> bool:
            wishes[rank] = mine
            ready.wait(10)
            return all(wishes.values())

        return shared_sums(None if rank else meeting, name or meeting.name, rank, size, agree, 10.0)

    try:
        with ThreadPoolExecutor(size) as threads:
            return list(threads.map(join, range(size)))
    finally:
        meeting.close()


@pytest.fixture(params=[1, 2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[list[SharedSums]]:
    ranks = [rank for rank in joined(request.param) if rank is not None]
    assert len(ranks) == request.param
    yield ranks
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize(
    "shape, kind",
    [((), "float64"), ((0, 3), "float32"), ((1,), "int64"), ((5, 7), "float16"), ((3, 400_001), "float32")],
)
def test_arrays_of_any_size_and_type_are_added_up(ranks: list[SharedSums], shape: tuple[int, ...], kind: str) -> None:
    draw = np.random.default_rng(0)
    arrays = [np.asarray(draw.integers(0, 9, shape), kind) for _ in ranks]
    with ThreadPoolExecutor(len(ranks)) as threads:
        results = list(threads.map(lambda rank, array: rank.add(array), ranks, arrays))
    for result in results:
        assert result.dtype == kind and result.shape == shape
        np.testing.assert_array_equal(result, sum(arrays))


def test_arrays_may_lie_in_memory_in_any_way_and_stay_as_they_are(ranks: list[SharedSums]) -> None:
    arrays = [np.arange(12.0).reshape(3, 4)[:, ::-2].T + number for number in range(len(ranks))]
    copies = [array.copy() for array in arrays]
    with ThreadPoolExecutor(len(ranks)) as threads:
        results = list(threads.map(lambda rank, array: [rank.add(array) for _ in range(50)], ranks, arrays))
    for result in results:
        np.testing.assert_array_equal(result, [sum(copies)] * 50)
    np.testing.assert_array_equal(arrays, copies)


def test_a_rank_that_ends_is_told_to_the_others() -> None:
    first, second = joined(2)
    assert first is not None and second is not None
    second.close()
    with pytest.raises(RuntimeError, match="Connection closed by peer: a worker of this machine is gone"):
        first.add(np.ones(3))
    first.close()


def test_no_rank_shares_where_one_cannot_reach_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert joined(3, "\0orca-nobody-listens-here") == [None] * 3
    monkeypatch.delattr(os, "memfd_create")
    assert joined(2) == [None] * 2


def test_another_user_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, me = Meeting(2), os.getuid()
    stranger, friend = sums._connection(meeting.name), sums._connection(meeting.name)
    assert stranger is not None and friend is not None
    users = iter([me + 1, me])  # for the first that comes, this process is another user's
    monkeypatch.setattr(os, "getuid", lambda: next(users))
    with stranger, friend, meeting.admit(5.0) as admitted:
        admitted.sendall(b"x")
        assert friend.recv(1) == b"x" and stranger.recv(1) == b""
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert sums._connection(meeting.name) is None
    meeting.close()
