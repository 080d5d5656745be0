"""Hub: ranks connect, fail, stall and end under the eyes of the driver."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from monitor.ranks import eventually, linked, linked_some, raised, spawned
from orca.errors import ArgumentError, DataError, WorkerFailed, WorkerLost, WorkerStalled
from orca.monitor import failures, handshake
from orca.monitor import hub as hubs
from orca.monitor import link as links
from orca.monitor.failures import Failure
from orca.monitor.handshake import key_of
from orca.monitor.heartbeat import DATA, OPTIMIZER, WAIT, Beat, EpochEnd
from orca.monitor.hub import Hub
from orca.monitor.link import Link, Parted
from orca.monitor.protocol import HUB, Ack, Hello, Log, Ticket, encode

# Admission.


def test_wrong_secret_is_refused_and_the_hub_goes_on() -> None:
    with Hub(1) as hub:
        for secret in ("", "wrong", "ä\ud800", hub.ticket.secret[:-1]):
            with pytest.raises(ArgumentError, match="rank 0 does not believe the driver at"):
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
    monkeypatch.setattr(handshake, "PROOF_WITHIN", 0.2)
    with Hub(1) as hub, socket.create_connection((hub.ticket.host, hub.ticket.port), 3) as stranger:
        assert stranger.recv(1) == b""


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"[" * 60_000 + b"\n",
        b'["Bye"]\n',
        b'["Hello", ""]\n',
        b'["Exploit"]\n',
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
        monkeypatch.setattr(links, "LINE_LIMIT", 32 << 20)  # what log() cuts to
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


def test_rank_that_gave_up_before_the_welcome_is_not_lost() -> None:
    with Hub(1) as hub:
        with socket.create_connection((hub.ticket.host, hub.ticket.port), 3) as hasty:
            handshake.prove(hasty, key_of(hub.ticket.secret, HUB), 0, 3.0)
            hasty.sendall(encode(Hello("here")))
            assert hasty.recv(1000) == encode(Ack())
        assert hub.failure(0.8) is None
        with linked(hub) as (link,):
            assert link.connected


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


def test_error_of_ours_is_raised_as_its_own_class_by_a_word_that_is_looked_up() -> None:
    with Hub(2) as hub, linked(hub) as (_, culprit):
        assert culprit.fail(raised(DataError("column 'y' holds nulls. Drop them.", code="null-values")))
        error = hub.error()
    assert isinstance(error, DataError) and isinstance(error, WorkerFailed) and type(error).__name__ == "DataError"
    assert (error.rank, error.host) == (1, socket.gethostname())
    assert "failed: column 'y' holds nulls. Drop them.\n" in str(error)
    assert "Traceback" not in str(error)
    assert "in raised" in error.remote_traceback
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.rank == 1
    assert error.code == again.code == "null-values"


@pytest.mark.parametrize("word", ["os.system", "WorkerLost", "OrcaError", "builtins.SystemExit", "Any"])
def test_any_other_word_is_a_failed_worker(word: str) -> None:
    assert type(Failure(0, "host", "reason", word=word).error()) is WorkerFailed


def test_epochs_are_told_once_and_in_order() -> None:
    ends: list[tuple[int, EpochEnd]] = []
    expected = [EpochEnd(number, [f"loss={number}"], 10.0, 0.5) for number in range(5)]
    with Hub(1, on_epoch=lambda rank, end: ends.append((rank, end))) as hub:
        with Link.connect(hub.ticket, rank=0) as link:
            for end in expected:
                link.heartbeat.end_epoch(end)
                time.sleep(0.15)
        assert eventually(lambda: len(ends) == 5, 5)
    assert ends == [(0, end) for end in expected]


def test_secondary_error_alone_is_named_when_the_grace_is_over() -> None:
    with Hub(2) as hub, linked(hub) as (victim, _):
        victim.fail(RuntimeError("peer gone"), secondary=True)
        assert hub.failure() is None  # the one that explains it may still come
        failure = hub.failure(60)
        assert failure is not None and failure.rank == 0 and failure.secondary


def test_clean_end_is_no_failure() -> None:
    with Hub(2) as hub:
        with linked(hub):
            pass
        assert hub.failure(0.8) is None
    assert hub.failure() is None and not hub.failed.is_set()


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
    monkeypatch.setattr(failures, "LAST_GRACE", 1.0)
    with Hub(2) as hub, spawned(hub.ticket, "link.fail(RuntimeError('x'), secondary=True); os._exit(1)") as processes:
        assert processes[0].wait(10) == 1
        hub.lost(0, "", "exit code 1")
        failure = hub.failure(4)
        assert failure is not None and failure.kind == "error" and failure.reason == "RuntimeError: x"


# Stalls.


def test_stalled_rank_is_named_with_its_stack_while_the_other_waits() -> None:
    waiting = "link.heartbeat.step(3, 7, 9); link.heartbeat.at(BACKWARD); time.sleep(30)"
    stuck = """
    def read_forever():
        time.sleep(30)
    link.heartbeat.step(3, 7, 9)
    link.heartbeat.at(DATA)
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
        waiting.heartbeat.step(1, 1, 9)
        waiting.heartbeat.at(WAIT)
        stuck.heartbeat.step(1, 2, 9)
        stuck.heartbeat.at(OPTIMIZER)
        failure = hub.failure(5)
        assert failure is not None and (failure.rank, failure.kind) == (1, "stalled")
        assert "rank 0 was in wait" in failure.reason


def test_rank_that_never_came_is_the_culprit_when_all_others_wait() -> None:
    with Hub(3, stall=0.6) as hub, linked_some(hub, 2) as links:
        for link in links:
            link.heartbeat.at(WAIT)
        failure = hub.failure(5)
        assert failure is not None and (failure.rank, failure.kind) == (2, "stalled")
        assert "it never reported to the driver" in failure.reason and "ranks 0, 1 were in wait" in failure.reason


def test_stopped_rank_that_cannot_show_its_stack_is_named_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "STACK_WITHIN", 0.5)
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
            links[0].heartbeat.at(DATA)
            assert hub.failure(0.1 if stall else 0.01) is None


# Ends.


def test_abort_ends_all_ranks_at_once_also_a_late_one_and_is_no_failure() -> None:
    with Hub(3) as hub, spawned(hub.ticket, "time.sleep(30)", "link.all_gather('x')") as processes:
        assert eventually(lambda: len(hub._seats) == 2, 5)
        hub.abort("enough")
        assert [process.wait(3) for process in processes] == [70, 70]
        abort = threading.Event()
        late = Link.connect(hub.ticket, 2, on_abort=abort.set)
        assert abort.wait(3)
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
        sock = hub._seats[0].connection.sock
        settings = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in OPTIONS]
        idle, interval, count, unread = settings
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
