from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Barrier

import numpy as np
import pytest

from orca.core.engine import is_secondary
from orca.core.sums import Meeting, SharedSums, shared_sums
from orca.errors import OrcaError
from orca.monitor.heartbeat import Heartbeat

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is shared so on Linux alone")


def joined(size: int, wrong: str | None = None) -> list[SharedSums | None]:
    """Return the sums of ranks that are threads here; `wrong` is told for the name of the first one's meeting."""
    meetings, ready, wishes = [Meeting(size, rank, "secret") for rank in range(size)], Barrier(size), dict[int, bool]()
    first, *names = [meeting.name for meeting in meetings]

    def join(rank: int) -> SharedSums | None:
        def agree(mine: bool) -> bool:
            wishes[rank] = mine
            ready.wait(10)
            return all(wishes.values())

        return shared_sums(meetings[rank], [wrong or first, *names], agree, 10.0, Heartbeat())

    try:
        with ThreadPoolExecutor(size) as threads:
            return list(threads.map(join, range(size)))
    finally:
        for meeting in meetings:
            meeting.close()


@pytest.fixture(params=[1, 2, 3, 6])
def ranks(request: pytest.FixtureRequest) -> Iterator[list[SharedSums]]:
    ranks = [rank for rank in joined(request.param) if rank is not None]
    assert len(ranks) == request.param
    yield ranks
    for rank in ranks:
        rank.close()


SHAPES = [((), "float64"), ((0, 3), "float32"), ((1,), "int64"), ((5, 7), "float16"), ((3, 400_001), "float32")]


@pytest.mark.parametrize("order", [1, -1])
def test_arrays_of_any_size_and_type_are_added_up_at_once(ranks: list[SharedSums], order: int) -> None:
    draw = np.random.default_rng(0)
    arrays = [[np.asarray(draw.integers(0, 9, shape), kind) for shape, kind in SHAPES[::order]] for _ in ranks]
    with ThreadPoolExecutor(len(ranks)) as threads:
        results = list(threads.map(lambda rank, mine: rank.add(mine), ranks, arrays))
    for result in results:
        for total, parts, (shape, kind) in zip(result, zip(*arrays, strict=True), SHAPES[::order], strict=True):
            assert total.dtype == kind and total.shape == shape
            np.testing.assert_array_equal(total, sum(parts))


def test_a_slow_rank_reads_what_the_others_have_not_overwritten(ranks: list[SharedSums]) -> None:
    """Each rank in turn is late to read; the others are as far ahead of it as they can be."""
    steps = 60

    def add(rank: SharedSums) -> list[float]:
        totals = []
        meet = rank._meet

        def late(size: int) -> None:
            meet(size)
            if len(totals) % rank.size == rank.rank:
                time.sleep(0.002)

        rank._meet = late  # type: ignore[method-assign]
        for step in range(steps):
            totals += rank.add([np.full(9, (step + 1) * 10.0**rank.rank)])[0][:1].tolist()
        return totals

    with ThreadPoolExecutor(len(ranks)) as threads:
        results = list(threads.map(add, ranks))
    ones = sum(10.0**rank.rank for rank in ranks)
    assert results == [[(step + 1) * ones for step in range(steps)]] * len(ranks)


def test_arrays_may_lie_in_memory_in_any_way_and_stay_as_they_are(ranks: list[SharedSums]) -> None:
    arrays = [np.arange(12.0).reshape(3, 4)[:, ::-2].T + number for number in range(len(ranks))]
    copies = [array.copy() for array in arrays]
    with ThreadPoolExecutor(len(ranks)) as threads:
        results = list(threads.map(lambda rank, array: [rank.add([array])[0] for _ in range(50)], ranks, arrays))
    for result in results:
        np.testing.assert_array_equal(result, [sum(copies)] * 50)
    np.testing.assert_array_equal(arrays, copies)


@pytest.mark.filterwarnings("error")
def test_sums_too_large_for_their_type_are_infinite_without_a_warning() -> None:
    ranks = [rank for rank in joined(2) if rank is not None]
    with ThreadPoolExecutor(2) as threads:
        totals = list(threads.map(lambda rank: rank.add([np.full(3, 60_000, np.float16)])[0], ranks))
    assert np.isinf(totals).all()
    for rank in ranks:
        rank.close()


def test_an_array_is_replaced_by_its_sum(ranks: list[SharedSums]) -> None:
    arrays = [np.arange(400_001, dtype=np.float32) + number for number in range(len(ranks))]  # two pieces
    total = np.sum(arrays, axis=0)
    with ThreadPoolExecutor(len(ranks)) as threads:
        list(threads.map(lambda rank, array: rank.add_in_place(array), ranks, arrays))
    for array in arrays:
        np.testing.assert_array_equal(array, total)


def test_ranks_that_add_up_different_arrays_are_told() -> None:
    ranks = [rank for rank in joined(2) if rank is not None]

    def add(rank: SharedSums) -> None:
        with pytest.raises(OrcaError, match="different arrays: this one has (24|32) bytes, another (32|24)"):
            rank.add([np.ones(3 + rank.rank)])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(add, ranks))
    for rank in ranks:
        rank.close()


def test_a_rank_that_ends_is_told_to_the_others() -> None:
    first, second = joined(2)
    assert first is not None and second is not None
    second.close()
    with pytest.raises(RuntimeError, match="Connection closed by peer: a worker of this machine is gone"):
        first.add([np.ones(3)])
    first.close()


def test_no_rank_shares_where_one_cannot_reach_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert joined(3, "\0orca-nobody-listens-here") == [None] * 3
    monkeypatch.delattr(os, "memfd_create")
    assert joined(2) == [None] * 2


@pytest.mark.parametrize("timeout", [None, 10.0])
def test_strangers_who_fill_the_queue_of_a_rank_hold_up_nobody(timeout: float | None) -> None:
    meeting, caller = Meeting(2, 0, "secret"), Meeting(2, 1, "secret")
    with ExitStack() as stack:
        with suppress(BlockingIOError):  # the queue is full
            while True:
                stranger = stack.enter_context(socket.socket(socket.AF_UNIX))
                stranger.setblocking(False)
                stranger.connect(meeting.name)
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(caller.call, meeting.name, timeout)
            try:
                assert call.result(5.0) is None
            finally:
                meeting.close()  # ends a call that waits
    caller.close()


def test_rank_0_that_ends_before_it_shared_its_memory_is_lost_to_the_others() -> None:
    first, second = Meeting(2, 0, "secret"), Meeting(2, 1, "secret")

    def agree(mine: bool) -> bool:
        for link in first.admit({1}, 5.0):
            link.close()
        return mine

    with pytest.raises(RuntimeError, match="rank 0 ended before it shared its memory") as caught:
        shared_sums(second, [first.name, second.name], agree, 5.0, Heartbeat())
    assert is_secondary(caught.value)
    first.close()
    second.close()


def test_another_user_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, me = Meeting(2, 0, "secret"), os.getuid()
    caller = Meeting(2, 1, "secret")
    stranger, friend = (caller.call(meeting.name, 5.0) for _ in range(2))
    assert stranger is not None and friend is not None
    users = iter([me + 1, me])  # for the first that comes, this process is another user's
    monkeypatch.setattr(os, "getuid", lambda: next(users))
    (admitted,) = meeting.admit({1}, 5.0)
    with stranger, friend, admitted:
        admitted.sendall(b"x")
        assert friend.recv(1) == b"x"
        with pytest.raises(ConnectionResetError):  # what it said was not even read
            stranger.recv(1)
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert caller.call(meeting.name, 5.0) is None
    for each in (meeting, caller):
        each.close()


def test_strangers_of_this_user_neither_get_in_nor_hold_up_a_rank() -> None:
    """Some say nothing, some too little, one what another rank said at another meeting, one knows another secret."""
    meeting, other = Meeting(8, 0, "ours"), Meeting(8, 0, "ours")
    caller, false = Meeting(8, 1, "ours"), Meeting(8, 1, "theirs")
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for stranger, words in zip(strangers, (b"", b"garbage", caller._proof(1, other.name)), strict=True):
        stranger.connect(meeting.name)
        stranger.sendall(words)
    lies, friend = false.call(meeting.name, 5.0), caller.call(meeting.name, 5.0)
    assert lies is not None and friend is not None
    started = time.monotonic()
    (rank,) = meeting.admit({1}, 10.0)
    assert time.monotonic() - started < 3.0
    rank.sendall(b"x")
    assert friend.recv(1) == b"x"
    for thing in (meeting, other, caller, false, rank, lies, friend, *strangers):
        thing.close()


def test_strangers_who_fill_a_meeting_only_cost_the_shared_memory() -> None:
    meeting, caller = Meeting(2, 0, "secret"), Meeting(2, 1, "secret")
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(9)]
    for stranger in strangers:
        stranger.setblocking(False)
        stranger.connect_ex(meeting.name)
    started = time.monotonic()
    assert caller.call(meeting.name, 0.5) is None and time.monotonic() - started < 3.0
    for thing in (meeting, caller, *strangers):
        thing.close()
