"""Handshake: who does not know the secret gets nothing, learns nothing and keeps nobody out."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.ranks import eventually
from orca.monitor import handshake
from orca.monitor.handshake import CutOff, Listener, Reception, Unproven, connect, key_of, mac_of, prove

KEY = key_of("secret", "test")
OPENING, ANSWER, PROOF = 40, 64, 36


def answered(listener: Listener, sock: socket.socket) -> None:
    """Answer the caller at the other end of a socket."""
    while listener.rank is None and (data := sock.recv(1 << 16)):
        sock.sendall(listener.receive(data))


@contextmanager
def caller(key: bytes = KEY, rank: int = 3) -> Iterator[tuple[socket.socket, threading.Thread, list[Exception]]]:
    """Yield the listening end of a connection whose calling end proves itself in a thread, and its errors."""
    listening, calling = socket.socketpair()
    errors: list[Exception] = []

    def call() -> None:
        try:
            prove(calling, key, rank, 5.0)
        except Exception as error:
            errors.append(error)
            calling.close()

    thread = threading.Thread(target=call)
    thread.start()
    with listening, calling:
        yield listening, thread, errors
        thread.join(5.0)


def test_both_ends_know_each_other_and_the_rank() -> None:
    listener = Listener(KEY)
    with caller() as (listening, thread, errors):
        answered(listener, listening)
        thread.join(5.0)
        assert listener.rank == 3 and listener.rest == b"" and errors == []


def test_bytes_may_come_one_by_one_and_more_may_follow() -> None:
    listener, nonce = Listener(KEY), bytes(32)
    answer = b"".join(listener.receive(bytes([byte])) for byte in b"orca-hs1" + nonce)
    assert len(answer) == ANSWER
    claim = (7).to_bytes(4, "little")
    proof = claim + mac_of(KEY, b"caller", claim, nonce + answer[:32])
    assert b"".join(listener.receive(bytes([byte])) for byte in proof[:-1]) == b"" and listener.rank is None
    assert listener.receive(proof[-1:] + b"first message") == mac_of(KEY, b"admitted", nonce + answer[:32])
    assert (listener.rank, listener.rest) == (7, b"first message")


def test_other_secret_or_purpose_is_not_believed_by_either_end() -> None:
    for key in (key_of("other", "test"), key_of("secret", "another purpose"), b""):
        with caller(key) as (listening, thread, errors):
            with pytest.raises((Unproven, ConnectionError)):
                answered(Listener(KEY), listening)
                raise ConnectionError("the caller went away, as the listener was not believed")
            thread.join(5.0)
            assert [type(error) for error in errors] == [Unproven]


def test_neither_the_secret_nor_a_rank_is_heard_before_the_listener_proved_itself() -> None:
    with caller() as (listening, thread, errors):
        heard = listening.recv(1 << 16)
        assert len(heard) == OPENING and b"secret" not in heard
        listening.sendall(bytes(ANSWER))  # no proof
        assert listening.recv(1 << 16) == b""  # the caller says no more
        thread.join(5.0)
        assert [type(error) for error in errors] == [Unproven]


def test_what_was_heard_admits_nobody() -> None:
    """Each end's words, said again to the same kind of end, or sent back to the other, are not believed."""
    listener = Listener(KEY)
    with caller() as (listening, _, _):
        opening = listening.recv(OPENING)
        answer = listener.receive(opening)
        listening.sendall(answer)
        proof = listening.recv(PROOF)
        admission = listener.receive(proof)
        assert listener.rank == 3
        listening.sendall(admission)
    again = Listener(KEY)
    assert again.receive(opening) != answer  # other numbers
    with pytest.raises(Unproven):
        again.receive(proof)
    mirror = Listener(KEY)
    back = mirror.receive(b"orca-hs1" + answer[:32])
    with pytest.raises(Unproven):
        mirror.receive(proof[:4] + back[32:])  # a listener's proof is no caller's
    with caller() as (listening, _, errors):
        listening.recv(OPENING)
        listening.sendall(answer)  # a false listener's recording
        assert listening.recv(1 << 16) == b""
    assert [type(error) for error in errors] == [Unproven]
    other = Listener(KEY)
    answer = other.receive(opening)
    claim = (4).to_bytes(4, "little")
    right = mac_of(KEY, b"caller", proof[:4], opening[8:] + answer[:32])
    with pytest.raises(Unproven):
        other.receive(claim + right)  # a proof of rank 3 is none of rank 4


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_any_other_bytes_are_refused_or_waited_for(pieces: list[bytes]) -> None:
    listener = Listener(KEY)
    try:
        for piece in pieces:
            listener.receive(piece)
    except Unproven:
        pass
    assert listener.rank is None and len(listener._inbox) <= OPENING + 500


def test_caller_tries_again_where_it_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "RETRY_FOR", 0.3)
    attempts = 0
    with socket.create_server(("127.0.0.1", 0)) as server:

        def cut_off() -> None:
            nonlocal attempts
            server.settimeout(0.6)
            try:
                while True:
                    connection, _ = server.accept()
                    attempts += 1
                    connection.close()
            except TimeoutError:
                pass

        thread = threading.Thread(target=cut_off)
        thread.start()
        with pytest.raises(CutOff, match="ended before both ends knew each other"):
            connect(*server.getsockname()[:2], KEY, 0, 3.0, 3.0)
        thread.join(5.0)
    assert attempts > 1


def test_caller_that_was_dropped_after_its_proof_tries_again() -> None:
    """The listener had to make room just then: the caller must not take itself for admitted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ranks = []

        def answer() -> None:
            for drops in (True, False):
                connection, _ = server.accept()
                with connection:
                    listener = Listener(KEY)
                    while listener.rank is None:
                        reply = listener.receive(connection.recv(100))
                        if not (drops and listener.rank is not None):
                            connection.sendall(reply)
                    ranks.append(listener.rank)

        thread = threading.Thread(target=answer)
        thread.start()
        connect(*server.getsockname()[:2], KEY, 2, 3.0, 3.0).close()
        thread.join(5.0)
    assert ranks == [2, 2]


class Kept(asyncio.Protocol):
    """The protocol of a rank that was admitted; it echoes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


@contextmanager
def listening(lines: int = 5) -> Iterator[tuple[int, Reception]]:
    """Yield the port of an event loop that echoes to those who know the secret, and its reception."""
    loop, server = asyncio.SelectorEventLoop(), socket.create_server(("127.0.0.1", 0))
    reception = Reception(loop, KEY, "the test", lines, lambda rank: Kept())
    closing = loop.create_future()

    async def serve() -> None:
        listener = await reception.serve(server, 2)
        await closing
        listener.close()
        reception.close()
        await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield server.getsockname()[1], reception
    finally:
        loop.call_soon_threadsafe(closing.set_result, None)
        thread.join(5.0)
        loop.close()


def test_strangers_who_hold_hundreds_of_connections_keep_no_rank_out(caplog: pytest.LogCaptureFixture) -> None:
    with listening() as (port, reception), ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 3.0)) for _ in range(300)]
        assert eventually(lambda: reception.refused == 300 - handshake.STRANGERS)
        assert len(reception.waiting) == handshake.STRANGERS
        assert strangers[0].recv(1) == b""  # the oldest had to go
        with connect("127.0.0.1", port, KEY, 0, 3.0, 3.0) as rank:
            rank.sendall(b"in")
            assert rank.recv(2) == b"in"
    assert len(caplog.records) == 6 and "which are not shown" in caplog.records[-1].getMessage()


def test_strangers_who_come_at_once_take_no_more_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    """They have come while the event loop had something else to do."""
    strangers, busy = 700, threading.Event()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with listening() as (port, reception), ExitStack() as stack:
        connect("127.0.0.1", port, KEY, 0, 3.0, 3.0).close()  # it serves
        reception.loop.call_soon_threadsafe(busy.wait, 10.0)
        try:
            for _ in range(strangers):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 3.0))
            highest = max(map(int, os.listdir("/proc/self/fd")))
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, highest + 260), hard))
            busy.set()
            assert eventually(lambda: reception.refused == strangers - handshake.STRANGERS)
        finally:
            busy.set()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not any(record.name == "asyncio" for record in caplog.records)  # it had nothing to complain about


def test_half_messages_and_garbage_are_dropped_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROOF_WITHIN", 0.2)
    logging.getLogger("asyncio").setLevel(logging.DEBUG)
    for words in (b"", b"orca-hs1 half", b"GET / HTTP/1.1\r\n\r\n", b"orca-hs1" + bytes(32 + 36), bytes(100_000)):
        with listening() as (port, _), socket.create_connection(("127.0.0.1", port), 3.0) as stranger:
            stranger.sendall(words)
            with suppress(ConnectionResetError):
                while said := stranger.recv(100):
                    assert len(said) == ANSWER  # numbers and a proof, and then the end
