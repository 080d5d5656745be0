"""Telemetry: ranks meet, beat, fail, stall and end under the eyes of the driver."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from orca.errors import ArgumentError, WorkerFailed, WorkerLost, WorkerStalled
from orca.monitor import heartbeat as pulse
from orca.monitor import telemetry
from orca.monitor.heartbeat import BACKWARD, DATA, FORWARD, OPTIMIZER, WAIT, Beat
from orca.monitor.protocol import Log
from orca.monitor.telemetry import Failure, Hub, Link, Parted, Sign, Ticket

RANK = """
import json, os, sys, time
from orca.monitor.heartbeat import *
from orca.monitor.telemetry import *
from orca.monitor import telemetry
ticket = Ticket(**json.loads(sys.argv[1]))
rank = int(sys.argv[2])
link = Link.connect(ticket, rank)
assert link.connected
"""


@contextmanager
def spawned(ticket: Ticket, *bodies: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Run each body as the rank of its position in a process of its own, and leave none behind."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with ExitStack() as stack:
        processes = []
        for rank, body in enumerate(bodies):
            command = [sys.executable, "-c", RANK + textwrap.dedent(body)]
            arguments = [json.dumps(dataclasses.asdict(ticket)), str(rank)]
            process = subprocess.Popen(command + arguments, env=env, text=True, stdout=subprocess.PIPE)
            stack.callback(stop, process)
            processes.append(process)
        yield processes


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@contextmanager
def linked(hub: Hub, **options: object) -> Iterator[list[Link]]:
    """Connect all ranks of a hub inside this process; an abort must not end it."""
    options.setdefault("on_abort", lambda: None)
    with ExitStack() as stack:
        links = [Link.connect(hub.ticket, rank, **options) for rank in range(hub.size)]  # type: ignore[arg-type]
        for link in links:
            stack.callback(link.close)
        yield links


def eventually(true: Callable[[], object], seconds: float = 3.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.01)
    return bool(true())


def raised(error: BaseException) -> BaseException:
    """Return the error with a traceback that shows this function."""
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Hold every test to leave no thread and no open file behind."""
    files, threads = len(os.listdir("/dev/fd")), set(threading.enumerate())
    yield
    assert eventually(lambda: set(threading.enumerate()) <= threads, 1.0), threading.enumerate()
    assert eventually(lambda: len(os.listdir("/dev/fd")) <= files, 1.0), os.listdir("/dev/fd")


# Meeting.


def test_gather_gives_all_texts_in_rank_order_again_and_again() -> None:
    with Hub(3) as hub, linked(hub) as links, ThreadPoolExecutor(3) as pool:

        def meet(link: Link) -> list[list[str]]:
            time.sleep(0.05 * (3 - link.rank))  # the last rank comes first
            return [link.all_gather(f"{link.rank}:{turn}") for turn in range(20)]

        expected = [[f"{rank}:{turn}" for rank in range(3)] for turn in range(20)]
        assert list(pool.map(meet, links)) == [expected] * 3
        assert [link.pulse.phase for link in links] == [pulse.START] * 3


def test_gather_carries_any_text_of_megabytes() -> None:
    text = 'ä\n"\\\ud800' * 100_000
    with Hub(2) as hub, linked(hub) as links, ThreadPoolExecutor(2) as pool:
        assert (
            list(pool.map(lambda link: link.all_gather(text + str(link.rank)), links)) == [[text + "0", text + "1"]] * 2
        )


def test_gather_waits_in_phase_wait_for_a_rank_that_connects_late() -> None:
    with Hub(2) as hub, ThreadPoolExecutor(1) as pool, Link.connect(hub.ticket, 0) as early:
        early.pulse.at(DATA)
        met = pool.submit(early.all_gather, "early")
        assert eventually(lambda: early.pulse.phase == WAIT)
        assert not met.done()
        with Link.connect(hub.ticket, 1) as late:
            assert late.all_gather("late") == met.result(3) == ["early", "late"]
        assert early.pulse.phase == DATA


def test_gather_gives_up_on_a_rank_that_never_connects() -> None:
    words = r"rank 0 waited 0\.2 s in all_gather and not all other ranks came"
    with Hub(2) as hub, Link.connect(hub.ticket, 0, patience=0.2) as link, pytest.raises(Parted, match=words):
        link.all_gather("alone")


def test_gather_ends_when_another_rank_has_left_and_this_is_secondary() -> None:
    with Hub(2) as hub, linked(hub) as (one, other), ThreadPoolExecutor(1) as pool:
        met = pool.submit(one.all_gather, "here")
        assert eventually(lambda: one.pulse.phase == WAIT)
        other.fail(KeyError("cause"), secondary=True)
        with pytest.raises(Parted, match="rank 0 waits for rank 1 in all_gather in vain: it failed") as caught:
            met.result(3)
        one.fail(raised(caught.value))
        failure = hub.failure(3)
        assert failure is not None and failure.rank == 1  # Parted counts as secondary although not said so


def test_gather_refuses_a_text_too_long_for_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MESSAGE_LIMIT", 1000)
    with Hub(1) as hub, linked(hub) as (link,):
        with pytest.raises(ArgumentError, match="all_gather takes up to 1000 bytes"):
            link.all_gather("x" * 1000)
        assert link.all_gather("short") == ["short"]


# Admission.


def test_wrong_secret_is_refused_and_the_hub_goes_on() -> None:
    with Hub(1) as hub:
        for secret in ("", "wrong", "ä\ud800", hub.ticket.secret[:-1]):
            with pytest.raises(ArgumentError, match="refused rank 0: the secret is wrong"):
                Link.connect(dataclasses.replace(hub.ticket, secret=secret), 0)
        with linked(hub) as (link,):
            assert link.all_gather("in") == ["in"]


def test_rank_out_of_range_and_a_second_one_are_refused() -> None:
    with Hub(1) as hub, linked(hub):
        with pytest.raises(ArgumentError, match="rank 0 has connected before"):
            Link.connect(hub.ticket, 0)
        with pytest.raises(ArgumentError, match="this run has the ranks 0 to 0"):
            Link.connect(hub.ticket, 1)


def test_connection_without_the_secret_is_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "HELLO_WITHIN", 0.2)
    with Hub(1) as hub, socket.create_connection((hub.ticket.host, hub.ticket.port), 3) as stranger:
        assert stranger.recv(1) == b""


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"[" * 60_000 + b"\n",
        b'["Bye", {}]\n',
        b'["Hello", {"secret": 1, "rank": 0, "host": ""}]\n',
        b'["Exploit", {}]\n',
        b"\xff\n",
        b"x" * 200_000,
    ],
)
def test_malformed_connection_is_dropped_with_a_log_line(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with Hub(1) as hub, linked(hub) as (link,):
        with socket.create_connection((hub.ticket.host, hub.ticket.port), 3) as stranger:
            stranger.sendall(line)
            assert eventually(lambda: "the hub dropped the connection of 127.0.0.1" in caplog.text)
        assert link.all_gather("still here") == ["still here"]


def test_rank_whose_message_is_too_long_is_dropped_and_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub(2) as hub, linked(hub) as (bad, good):
        monkeypatch.setattr(telemetry, "LINE_LIMIT", 32 << 20)  # what log() cuts to
        bad.log("x" * (9 << 20))
        failure = hub.failure(4)
        assert failure is not None and (failure.rank, failure.kind) == (0, "lost")
        assert f"a message is longer than {8 << 20} bytes" in failure.reason
        assert eventually(lambda: not bad.connected) and good.connected


def test_hub_listens_on_one_interface_only() -> None:
    for host in ("0.0.0.0", "::", "", "*"):
        with pytest.raises(ArgumentError, match="Pass the address of one interface"), Hub(1, host):
            pass
    with Hub(1) as hub:
        assert hub.ticket.host == "127.0.0.1"


def test_ticket_hides_its_secret_and_travels() -> None:
    with Hub(2) as hub:
        assert hub.ticket.secret not in repr(hub.ticket)
        assert len(hub.ticket.secret) == 64
        assert pickle.loads(pickle.dumps(hub.ticket)) == hub.ticket
        with Hub(2) as other:
            assert other.ticket.secret != hub.ticket.secret


def test_unreachable_hub_gives_a_silent_link() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()  # takes the connection and never answers
        port = deaf.getsockname()[1]
        link = Link.connect(Ticket("127.0.0.1", port, "s", 2), 0, welcome=0.3)
    nobody = Link.connect(Ticket("127.0.0.1", port, "s", 1), 0, timeout=3)
    for silent in (link, nobody):
        assert not silent.connected
        silent.pulse.at(DATA)
        silent.log("unheard")
        silent.fail(ValueError())
        silent.close()
    assert nobody.all_gather("me") == ["me"]
    with pytest.raises(Parted, match="cannot be reached from here"):
        link.all_gather("me")


def test_message_that_came_with_the_welcome_is_not_overlooked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(telemetry.encode(telemetry.Welcome()) + telemetry.encode(telemetry.Abort("at once")))
                assert told.wait(3)

        told = threading.Event()
        served = pool.submit(answer)
        link = Link.connect(Ticket("127.0.0.1", server.getsockname()[1], "s", 1), 0, on_abort=told.set)
        served.result(5)
        link.close()


def test_rank_that_gave_up_before_the_welcome_is_not_lost() -> None:
    with Hub(1) as hub:
        with socket.create_connection((hub.ticket.host, hub.ticket.port), 3) as hasty:
            hasty.sendall(telemetry.encode(telemetry.Hello(hub.ticket.secret, 0, "here")))
            assert hasty.recv(1000) == telemetry.encode(telemetry.Welcome())
        assert hub.failure(0.8) is None
        with linked(hub) as (link,):
            assert link.connected


# Beats.


def test_beats_tell_where_a_rank_is_and_logs_arrive() -> None:
    beats: list[Beat] = []
    logs: list[tuple[int, Log]] = []
    with Hub(2, on_beat=beats.append, on_log=lambda *line: logs.append(line)) as hub, linked(hub) as links:
        links[1].pulse.step(2, 30, 100, loss=0.25, rows=960)
        links[1].pulse.at(BACKWARD)
        links[1].log("hello", "a.logger", 20)
        assert eventually(lambda: Beat(1, 2, 30, 100, BACKWARD, 2, 0.25, 960) in beats)
        assert eventually(lambda: logs == [(1, Log("hello", "a.logger", 20))])
        assert beats[-1].doing == "backward"
        count = len(beats)
        time.sleep(1.2)
        assert len(beats) <= count + 1  # nothing changed, nothing sent
    assert {beat.rank for beat in beats} == {0, 1}


def test_rows_begin_anew_with_an_epoch() -> None:
    mine = pulse.Pulse()
    mine.step(1, 5, 10, rows=320)
    mine.step(1, 6, 10)
    assert mine.beat(0).rows == 320
    mine.step(2, 0, 10)
    assert mine.beat(0).rows == 0


def test_loss_is_read_for_a_beat_and_not_for_every_line() -> None:
    class Loss:
        read = 0

        def __float__(self) -> float:
            Loss.read += 1
            return 1.0

    with Hub(1) as hub, linked(hub) as (link,):
        link.pulse.step(1, 1, 1, loss=Loss())  # type: ignore[arg-type]
        for _ in range(200):
            link.log("line")
            link.flush()
        assert Loss.read <= 3


@pytest.mark.parametrize("how", ["close", "fail"])
def test_lines_before_the_end_arrive_although_they_take_longer_than_the_end_may(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "BYE_WITHIN", 0.8)
    monkeypatch.setattr(telemetry, "ACK_WITHIN", 0.8)
    logs: list[str] = []

    def slow(_: int, line: Log) -> None:
        time.sleep(0.006)
        logs.append(line.text[:5])

    with Hub(1, on_log=slow) as hub, linked(hub) as (link,):
        for number in range(250):  # far more than the buffers of a connection hold
            link.log(f"{number:05d}" + "x" * 60_000)
        if how == "fail":
            link.fail(ValueError("bad"))
            assert hub.failure() is not None
        else:
            link.close()
        assert logs == [f"{number:05d}" for number in range(250)]
    assert (hub.failure() is None) == (how == "close")


def test_lines_of_a_rank_that_nobody_heard_yet_are_read_when_the_hub_is_left() -> None:
    logs: list[str] = []
    entered = threading.Event()

    def busy(_: int, line: Log) -> None:
        entered.set()
        time.sleep(0.3)  # meanwhile the others' lines arrive, and the order to close
        logs.append(line.text)

    with Hub(2, on_log=busy) as hub, linked(hub) as (one, other):
        one.log("first")
        assert entered.wait(3)
        other.log("second")
        other.flush()
        hub.__exit__(None, None, None)
        assert logs == ["first", "second"]


def test_callback_that_fails_does_not_end_the_hub(caplog: pytest.LogCaptureFixture) -> None:
    def broken(beat: Beat) -> None:
        raise ValueError(beat)

    with Hub(1, on_beat=broken) as hub, linked(hub) as (link,):
        assert link.all_gather("ok") == ["ok"]
        assert eventually(lambda: "a callback of the hub failed" in caplog.text)


def test_profile_adds_the_time_to_the_phase_that_was_left() -> None:
    mine = pulse.Pulse()
    mine.at(FORWARD)
    time.sleep(0.02)
    mine.at(BACKWARD)
    assert not any(mine.profile.values())
    mine.profiling = True
    mine.at(DATA)
    time.sleep(0.05)
    mine.at(FORWARD)
    mine.profiling = False
    mine.at(DATA)
    assert 0.05 <= mine.profile["data"] < 0.5
    assert mine.profile["forward"] == 0.0 and mine.profile["backward"] < 0.02


def test_time_in_collectives_is_profiled_as_wait() -> None:
    with Hub(2) as hub, linked(hub) as (one, other), ThreadPoolExecutor(1) as pool:
        one.pulse.profiling = True
        one.pulse.at(FORWARD)
        met = pool.submit(one.all_gather, "x")
        time.sleep(0.2)
        other.all_gather("y")
        met.result(3)
        assert one.pulse.phase == FORWARD and one.pulse.profile["wait"] >= 0.2 > one.pulse.profile["forward"]


def test_mark_costs_less_than_half_a_microsecond() -> None:
    mine = pulse.Pulse()
    assert min(timeit.repeat(lambda: mine.at(DATA), number=10_000, repeat=20)) / 10_000 < 0.5e-6


# Failures.


def test_error_comes_with_its_traceback_and_wins_over_a_secondary_one_that_came_first() -> None:
    with Hub(2) as hub, linked(hub) as (victim, culprit):
        victim.fail(raised(RuntimeError("connection closed by peer")), secondary=True)
        assert hub.failure() is None
        culprit.fail(raised(ValueError("bad batch")))
        error = hub.error()  # acknowledged means known
        assert type(error) is WorkerFailed and error.rank == 1 and error.host == socket.gethostname()
        assert error.reason == "ValueError: bad batch"
        assert "in raised" in error.remote_traceback and "raise error" in error.remote_traceback


def test_secondary_error_alone_is_named_when_the_grace_is_over() -> None:
    with Hub(2) as hub, linked(hub) as (victim, _):
        victim.fail(RuntimeError("peer gone"), secondary=True)
        assert hub.failure() is None  # the one that explains it may still come
        failure = hub.failure(60)
        assert failure is not None and failure.rank == 0 and failure.secondary


def test_first_report_of_a_rank_counts() -> None:
    with Hub(2) as hub, pytest.raises(RuntimeError), Link.connect(hub.ticket, 0) as link:
        try:
            raise RuntimeError("peer gone")
        except RuntimeError as error:
            link.fail(error, secondary=True)
            raise
    failure = hub.failure()
    assert failure is not None and failure.secondary


def test_clean_end_is_no_failure() -> None:
    with Hub(2) as hub:
        with linked(hub):
            pass
        assert hub.failure(0.8) is None
    assert hub.failure() is None and not hub.failed.is_set()


def sign(when: float, rank: int, kind: str = "error", secondary: bool = False) -> Sign:
    return Sign(when, Failure(rank, "host", "reason", "", secondary, kind))


@pytest.mark.parametrize(
    ("signs", "now", "complete", "primary"),
    [
        ([], 9.0, True, None),
        ([sign(0, 0, secondary=True), sign(1, 1, "lost"), sign(1.1, 2)], 1.1, False, 2),
        ([sign(0, 0, "lost"), sign(0.1, 1, "stalled")], 0.1, False, 1),
        ([sign(0, 0, "lost")], 0.4, True, None),
        ([sign(0, 0, "lost"), sign(0.1, 1, secondary=True)], 0.5, False, 0),
        ([sign(0, 0, secondary=True), sign(0.1, 1, "lost")], 0.55, False, None),
        ([sign(0, 0, secondary=True), sign(0.1, 1, "lost"), sign(0.2, 2, "lost")], 0.65, False, 1),
        ([sign(0, 0, secondary=True), sign(1.9, 1, "lost")], 2.0, False, 1),
        ([sign(0, 0, secondary=True)], 1.9, False, None),
        ([sign(0, 0, secondary=True)], 0.1, True, 0),
        ([sign(0, 0, secondary=True), sign(1, 1, secondary=True)], 2.0, False, 0),
    ],
)
def test_primary_failure_is_the_one_that_explains_the_others(
    signs: list[Sign], now: float, complete: bool, primary: int | None
) -> None:
    chosen = telemetry.primary_of(signs, now, complete)
    assert (None if chosen is None else chosen.rank) == primary


def test_killed_rank_is_named_as_lost() -> None:
    with Hub(2) as hub, spawned(hub.ticket, *["link.all_gather('up'); time.sleep(30)"] * 2) as processes:
        assert eventually(lambda: [seat.joined for seat in hub._seats.values()] == [True, True], 5)
        processes[1].kill()
        error = hub.error(60)
        assert type(error) is WorkerLost and error.rank == 1
        assert "its process ended without a word: killed, out of memory" in str(error)


def test_killed_rank_is_lost_although_its_forked_child_lives_on() -> None:
    body = "child = os.fork()\nif child: print(child, flush=True)\ntime.sleep(20)"
    with Hub(1) as hub, spawned(hub.ticket, body) as (process,):
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            process.kill()
            assert isinstance(hub.error(3), WorkerLost)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_words_of_the_engine_replace_the_silent_end() -> None:
    with Hub(2) as hub, spawned(hub.ticket, "os._exit(3)", "time.sleep(30)") as processes:
        assert processes[0].wait(10) == 3
        hub.lost(0, "", "exit code 3")
        failure = hub.failure(3)
        assert failure == Failure(0, socket.gethostname(), "exit code 3", "", False, "lost")


def test_rank_that_never_connected_can_be_lost() -> None:
    with Hub(2) as hub:
        hub.lost(1, "node7", "exit code -9")
        error = hub.error(3)
        assert type(error) is WorkerLost and (error.rank, error.host, error.reason) == (1, "node7", "exit code -9")


def test_end_after_a_reported_error_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "LAST_GRACE", 1.0)
    with Hub(2) as hub, spawned(hub.ticket, "link.fail(RuntimeError('x'), secondary=True); os._exit(1)") as processes:
        assert processes[0].wait(10) == 1
        hub.lost(0, "", "exit code 1")
        failure = hub.failure(4)
        assert failure is not None and failure.kind == "error" and failure.reason == "RuntimeError: x"


# Stalls.


def test_stalled_rank_is_named_with_its_stack_while_the_other_waits() -> None:
    waiting = "link.pulse.step(3, 7, 9); link.pulse.at(BACKWARD); time.sleep(30)"
    stuck = """
    def read_forever():
        time.sleep(30)
    link.pulse.step(3, 7, 9)
    link.pulse.at(DATA)
    read_forever()
    """
    with Hub(2, stall=1.0) as hub, spawned(hub.ticket, waiting, stuck) as processes:
        error = hub.error(10)
        assert type(error) is WorkerStalled and error.rank == 1
        assert "no progress for 1 s in epoch 3, step 7 of 9, phase data, while rank 0 was in backward" in error.reason
        assert "stall_timeout (now 1 s)" in error.reason
        assert "in read_forever" in error.remote_traceback
        assert [process.wait(3) for process in processes] == [70, 70]


def test_waiting_rank_is_not_the_culprit_although_it_is_behind() -> None:
    with Hub(2, stall=0.6) as hub, linked(hub) as (waiting, stuck):
        waiting.pulse.step(1, 1, 9)
        waiting.pulse.at(WAIT)
        stuck.pulse.step(1, 2, 9)
        stuck.pulse.at(OPTIMIZER)
        failure = hub.failure(5)
        assert failure is not None and (failure.rank, failure.kind) == (1, "stalled")
        assert "rank 0 was in wait" in failure.reason


def test_rank_that_never_came_is_the_culprit_when_all_others_wait() -> None:
    with Hub(3, stall=0.6) as hub, linked_some(hub, 2) as links:
        for link in links:
            link.pulse.at(WAIT)
        failure = hub.failure(5)
        assert failure is not None and (failure.rank, failure.kind) == (2, "stalled")
        assert "it never reported to the driver" in failure.reason and "ranks 0, 1 were in wait" in failure.reason


@contextmanager
def linked_some(hub: Hub, count: int) -> Iterator[list[Link]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Link.connect(hub.ticket, rank, on_abort=lambda: None)) for rank in range(count)]


def test_stopped_rank_that_cannot_show_its_stack_is_named_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "STACK_WITHIN", 0.5)
    with Hub(1, stall=0.6) as hub, spawned(hub.ticket, "print(1, flush=True); time.sleep(30)") as (process,):
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        failure = hub.failure(6)
        assert failure is not None and failure.kind == "stalled" and failure.traceback == ""
        assert "did not answer with its stack" in failure.reason


@pytest.mark.parametrize("stall", [1.2, 0.0])
def test_progress_of_one_rank_or_no_limit_is_no_stall(stall: float) -> None:
    with Hub(2, stall=stall) as hub, linked(hub) as links:
        for _ in range(20):
            links[0].pulse.at(DATA)
            assert hub.failure(0.1 if stall else 0.01) is None


# Ends.


def test_abort_ends_all_ranks_at_once_also_a_late_one_and_is_no_failure() -> None:
    with Hub(3) as hub, spawned(hub.ticket, "time.sleep(30)", "link.all_gather('x')") as processes:
        assert eventually(lambda: len(hub._seats) == 2, 5)
        hub.abort("enough")
        assert [process.wait(3) for process in processes] == [70, 70]
        told = threading.Event()
        late = Link.connect(hub.ticket, 2, on_abort=told.set)
        assert told.wait(3)
        with pytest.raises(Parted, match="the driver ended the run: enough"):
            late.all_gather("x")
        late.close()
        assert hub.failure(0.8) is None


def test_ranks_end_when_the_driver_is_killed_although_its_forked_child_lives_on() -> None:
    driver = """
    hub = Hub(2).__enter__()
    print(hub.ticket.host, hub.ticket.port, hub.ticket.secret, flush=True)
    while len(hub._seats) < 2:
        time.sleep(0.01)
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(20)
    """
    with Hub(1) as outer, spawned(outer.ticket, driver) as (process,):
        assert process.stdout is not None
        host, port, secret = process.stdout.readline().split()
        with spawned(Ticket(host, int(port), secret, 2), *["time.sleep(30)"] * 2) as ranks:
            child = int(process.stdout.readline())
            try:
                process.kill()
                assert [rank.wait(3) for rank in ranks] == [70, 70]
                os.kill(child, 0)
            finally:
                os.kill(child, signal.SIGKILL)


def test_connections_outlive_a_pause_of_two_minutes_and_not_a_machine_that_is_gone() -> None:
    with Hub(1) as hub, linked(hub):
        sock = hub._seats[0].wire.sock
        asked = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in OPTIONS]
        idle, interval, count, unread = asked
        assert 120 < idle + interval * count <= 180
        assert 120_000 < unread <= 180_000


OPTIONS = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)


@pytest.mark.full
def test_ranks_outlive_a_suspended_driver_however_much_they_say() -> None:
    driver = """
    hub = Hub(2).__enter__()
    print(hub.ticket.host, hub.ticket.port, hub.ticket.secret, flush=True)
    time.sleep(60)
    """
    chatty = """
    print(1, flush=True)
    until = time.monotonic() + 18  # the system alone would end an unread connection after 15 s
    while time.monotonic() < until:
        link.log("x" * 1000)
        time.sleep(0.001)
    print(link.connected, flush=True)
    os._exit(0)
    """
    with Hub(1) as outer, spawned(outer.ticket, driver) as (process,):
        assert process.stdout is not None
        host, port, secret = process.stdout.readline().split()
        with spawned(Ticket(host, int(port), secret, 2), chatty) as (rank,):
            assert rank.stdout and rank.stdout.readline() == "1\n"
            process.send_signal(signal.SIGSTOP)
            with ThreadPoolExecutor(1) as pool:
                starting = pool.submit(Link.connect, Ticket(host, int(port), secret, 2), 1)
                assert rank.stdout.readline() == "True\n"
                process.send_signal(signal.SIGCONT)
                with starting.result(10) as link:  # it began while the driver was suspended
                    assert link.connected


def test_ranks_end_when_the_hub_is_left() -> None:
    with ExitStack() as stack:
        with Hub(2) as hub:
            ranks = stack.enter_context(spawned(hub.ticket, *["print(1, flush=True); time.sleep(30)"] * 2))
            assert [rank.stdout and rank.stdout.readline() for rank in ranks] == ["1\n"] * 2
        assert [rank.wait(3) for rank in ranks] == [70, 70]


def test_rank_that_said_bye_survives_the_end_of_the_hub() -> None:
    with ExitStack() as stack:
        with Hub(1) as hub:
            body = "link.close(); print(1, flush=True); time.sleep(30)"
            (rank,) = stack.enter_context(spawned(hub.ticket, body))
            assert rank.stdout and rank.stdout.readline() == "1\n"
        with pytest.raises(subprocess.TimeoutExpired):
            rank.wait(0.5)


def test_failure_known_only_in_part_is_decided_when_the_hub_is_left() -> None:
    with Hub(2) as hub, linked(hub) as links:
        links[0].fail(ValueError("late"), secondary=True)
        assert hub.failure() is None
    failure = hub.failure()
    assert failure is not None and failure.reason == "ValueError: late"


def test_thread_and_sockets_end_with_hub_and_link() -> None:
    before = set(threading.enumerate())
    files = set(os.listdir("/dev/fd"))
    with Hub(2) as hub, linked(hub), socket.create_connection((hub.ticket.host, hub.ticket.port)):
        names = {thread.name for thread in set(threading.enumerate()) - before}
        assert {"orca-hub", "orca-link-0", "orca-link-1"} <= names
        assert len(os.listdir("/dev/fd")) > len(files) + 6
    assert not any(thread.name.startswith("orca-") for thread in set(threading.enumerate()) - before)
    assert set(os.listdir("/dev/fd")) <= files
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((hub.ticket.host, hub.ticket.port), 1)
