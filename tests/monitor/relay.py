"""Relay: a listener on the way between a rank and its hub or rendezvous, that writes down what passes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """A port of loopback that leads to another one; `said` are the bytes that the caller sent through it."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.said = b""
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        self.sockets: list[socket.socket] = [self.server]
        self.threads: list[threading.Thread] = []

    def start(self, work: object, *arguments: object) -> None:
        """Run a function in a thread."""
        self.threads.append(threading.Thread(target=work, args=arguments))  # type: ignore[arg-type]
        self.threads[-1].start()

    def serve(self) -> None:
        """Relay each connection that comes."""
        with suppress(OSError):
            while True:
                caller, _ = self.server.accept()
                target = socket.create_connection(("127.0.0.1", self.target), 3.0)
                target.settimeout(None)
                self.sockets += [caller, target]
                self.start(self.pump, caller, target, True)
                self.start(self.pump, target, caller, False)

    def pump(self, source: socket.socket, sink: socket.socket, records: bool) -> None:
        """Pass on what one end says."""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if records:
                    self.said += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def relayed(port: int) -> Iterator[Relay]:
    """Yield a relay to a port."""
    relay = Relay(port)
    relay.start(relay.serve)
    try:
        yield relay
    finally:
        for sock in relay.sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in relay.threads:
            thread.join(3.0)


def replayed(port: int, said: bytes) -> bytes:
    """Say to a port what somebody else said; return all that it answers until it ends the connection."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 3.0) as sock, suppress(ConnectionResetError, BrokenPipeError):
        sock.sendall(said[:40])
        answer = sock.recv(1 << 16)
        sock.sendall(said[40:])
        while data := sock.recv(1 << 16):
            answer += data
    return answer
