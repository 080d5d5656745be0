"""Link: ranks meet, beat and speak, and never wait for the driver."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from monitor.ranks import eventually, linked, raised
from monitor.relay import relayed, replayed
from orca.errors import ArgumentError
from orca.monitor import link as links
from orca.monitor.handshake import Listener, key_of
from orca.monitor.heartbeat import BACKWARD, DATA, FORWARD, START, WAIT, Beat
from orca.monitor.hub import Hub
from orca.monitor.link import Link, Parted
from orca.monitor.protocol import HUB, Abort, Ack, Log, Ticket, encode


def test_gather_gives_all_texts_in_rank_order_again_and_again() -> None:
    with Hub(3) as hub, linked(hub) as links, ThreadPoolExecutor(3) as pool:

        def meet(link: Link) -> list[list[str]]:
            time.sleep(0.05 * (3 - link.rank))  # the last rank comes first
            return [link.all_gather(f"{link.rank}:{turn}") for turn in range(20)]

        expected = [[f"{rank}:{turn}" for rank in range(3)] for turn in range(20)]
        assert list(pool.map(meet, links)) == [expected] * 3
        assert [link.heartbeat.phase for link in links] == [START] * 3


def test_gather_carries_any_text_of_megabytes() -> None:
    text = 'ä\n"\\\ud800' * 100_000
    with Hub(2) as hub, linked(hub) as links, ThreadPoolExecutor(2) as pool:
        assert (
            list(pool.map(lambda link: link.all_gather(text + str(link.rank)), links)) == [[text + "0", text + "1"]] * 2
        )


def test_gather_waits_in_phase_wait_for_a_rank_that_connects_late() -> None:
    with Hub(2) as hub, ThreadPoolExecutor(1) as pool, Link.connect(hub.ticket, 0) as early:
        early.heartbeat.at(DATA)
        meeting = pool.submit(early.all_gather, "early")
        assert eventually(lambda: early.heartbeat.phase == WAIT)
        assert not meeting.done()
        with Link.connect(hub.ticket, 1) as late:
            assert late.all_gather("late") == meeting.result(3) == ["early", "late"]
        assert early.heartbeat.phase == DATA


def test_gather_gives_up_on_a_rank_that_never_connects() -> None:
    words = r"rank 0 waited 0\.2 s in all_gather and not all other ranks came"
    with Hub(2) as hub, Link.connect(hub.ticket, 0, patience=0.2) as link, pytest.raises(Parted, match=words):
        link.all_gather("alone")


def test_ranks_wait_for_those_that_read_for_hours() -> None:
    with Hub(1) as hub, Link.connect(hub.ticket, 0) as link:
        assert link.patience > 86400


def test_gather_ends_when_another_rank_has_left_and_this_is_secondary() -> None:
    with Hub(2) as hub, linked(hub) as (one, other), ThreadPoolExecutor(1) as pool:
        meeting = pool.submit(one.all_gather, "here")
        assert eventually(lambda: one.heartbeat.phase == WAIT)
        other.fail(KeyError("cause"), secondary=True)
        with pytest.raises(Parted, match="rank 0 cannot complete all_gather: rank 1 failed") as failure_info:
            meeting.result(3)
        one.fail(raised(failure_info.value))
        failure = hub.failure(3)
        assert failure is not None and failure.rank == 1  # Parted counts as secondary although not said so


def test_gather_refuses_a_text_too_long_for_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MESSAGE_LIMIT", 1000)
    with Hub(1) as hub, linked(hub) as (link,):
        with pytest.raises(ArgumentError, match="all_gather takes up to 1000 bytes"):
            link.all_gather("x" * 1000)
        assert link.all_gather("short") == ["short"]


def test_unreachable_hub_gives_a_silent_link() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()  # takes the connection and never answers
        port = deaf.getsockname()[1]
        link = Link.connect(Ticket("127.0.0.1", port, "s", 2), 0, welcome=0.3)
    nobody = Link.connect(Ticket("127.0.0.1", port, "s", 1), 0, timeout=3)
    for silent in (link, nobody):
        assert not silent.connected
        silent.heartbeat.at(DATA)
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
                listener = Listener(key_of("s", HUB))
                while listener.rank is None:
                    sock.sendall(listener.receive(sock.recv(1000)))
                sock.sendall(encode(Ack()) + encode(Abort("at once")))
                assert abort.wait(3)

        abort = threading.Event()
        connection = pool.submit(answer)
        link = Link.connect(Ticket("127.0.0.1", server.getsockname()[1], "s", 1), 0, on_abort=abort.set)
        connection.result(5)
        link.close()


def test_beats_tell_where_a_rank_is_and_logs_arrive() -> None:
    beats: list[Beat] = []
    logs: list[tuple[int, Log]] = []
    with Hub(2, on_beat=beats.append, on_log=lambda *line: logs.append(line)) as hub, linked(hub) as links:
        links[1].heartbeat.step(2, 30, 100, loss=0.25, rows=960)
        links[1].heartbeat.at(BACKWARD)
        links[1].log("hello", "a.logger", 20)
        assert eventually(
            lambda: Beat(1, 2, 30, 100, BACKWARD, 2, 0.25, 960) in [beat._replace(seconds=0.0) for beat in beats]
        )
        assert eventually(lambda: logs == [(1, Log("hello", "a.logger", 20))])
        assert beats[-1].doing == "backward"
        count = len(beats)
        time.sleep(1.2)
        assert len(beats) <= count + 1  # nothing changed, nothing sent
    assert {beat.rank for beat in beats} == {0, 1}


def test_loss_is_read_for_a_beat_and_not_for_every_line() -> None:
    class Loss:
        read = 0

        def __float__(self) -> float:
            Loss.read += 1
            return 1.0

    with Hub(1) as hub, linked(hub) as (link,):
        link.heartbeat.step(1, 1, 1, loss=Loss())  # type: ignore[arg-type]
        for _ in range(200):
            link.log("line")
            link.flush()
        assert Loss.read <= 3


@pytest.mark.parametrize("how", ["close", "fail"])
def test_lines_before_the_end_arrive_although_they_take_longer_than_the_end_may(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "BYE_WITHIN", 0.8)
    monkeypatch.setattr(links, "ACK_WITHIN", 0.8)
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


def test_time_in_collectives_is_profiled_as_wait() -> None:
    with Hub(2) as hub, linked(hub) as (one, other), ThreadPoolExecutor(1) as pool:
        one.heartbeat.profiling = True
        one.heartbeat.at(FORWARD)
        meeting = pool.submit(one.all_gather, "x")
        time.sleep(0.2)
        other.all_gather("y")
        meeting.result(3)
        assert (
            one.heartbeat.phase == FORWARD and one.heartbeat.profile["wait"] >= 0.2 > one.heartbeat.profile["forward"]
        )


def test_first_report_of_a_rank_counts() -> None:
    with Hub(2) as hub, pytest.raises(RuntimeError), Link.connect(hub.ticket, 0) as link:
        try:
            raise RuntimeError("peer gone")
        except RuntimeError as error:
            link.fail(error, secondary=True)
            raise
    failure = hub.failure()
    assert failure is not None and failure.secondary


# Strangers.


def test_false_hub_gets_neither_rank_nor_host_nor_lines_and_is_refused_in_words() -> None:
    heard = b""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            nonlocal heard
            connection, _ = server.accept()
            with connection, suppress(ConnectionResetError):
                heard += connection.recv(1 << 16)
                connection.sendall(bytes(64) + encode(Ack()))
                while data := connection.recv(1 << 16):
                    heard += data

        thread = threading.Thread(target=listen)
        thread.start()
        ticket = Ticket("127.0.0.1", server.getsockname()[1], "secret", 2)
        with pytest.raises(
            ArgumentError, match="rank 1 does not believe the driver at .*another program listens there"
        ):
            Link.connect(ticket, 1)
        thread.join(3.0)
    assert len(heard) == 40  # the greeting: numbers alone


def test_recorded_greeting_of_one_rank_admits_nobody() -> None:
    """Neither while the rank is there, nor in a run of the same ticket where it has not come yet."""
    with Hub(2) as hub:
        with relayed(hub.ticket.port) as relay:
            ticket = dataclasses.replace(hub.ticket, port=relay.port)
            with Link.connect(ticket, 1, on_abort=lambda: None) as rank:
                assert rank.connected
                rank.log("a line")
                rank.flush()
                assert eventually(lambda: b"a line" in relay.said)
            assert hub.ticket.secret.encode() not in relay.said
            assert eventually(lambda: hub._endings.get(1) == "has ended")
        assert len(replayed(hub.ticket.port, relay.said)) == 64
        assert hub.absent == [0] and hub.failure(0.1) is None
        later = Hub(2)
        with later:
            assert len(replayed(later.ticket.port, relay.said)) == 64
            assert later.absent == [0, 1]


def test_rank_connects_although_strangers_hold_hundreds_of_connections(caplog: pytest.LogCaptureFixture) -> None:
    with Hub(1) as hub, ExitStack() as stack:
        address = (hub.ticket.host, hub.ticket.port)
        for _ in range(300):
            stack.enter_context(socket.create_connection(address, 3.0))
        with linked(hub) as (link,):
            assert link.all_gather("in") == ["in"]
    assert len([record for record in caplog.records if "the hub" in record.getMessage()]) <= 41
