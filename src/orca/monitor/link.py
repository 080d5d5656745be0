"""Link: the connection of one rank to the hub. Owns beats, aborts, and that output never holds up a rank."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from orca.errors import ArgumentError, OrcaError, code_of, word_of
from orca.monitor import handshake, protocol
from orca.monitor.backlog import Backlog, ends_within
from orca.monitor.exits import memory_limit, resident_memory
from orca.monitor.failures import reason_of, trace_of
from orca.monitor.heartbeat import WAIT, Heartbeat
from orca.monitor.protocol import LINE_LIMIT, MESSAGE_LIMIT, Abort, Ack, Connection, Gathered, Log, Ticket, encode
from orca.monitor.stopping import StopOrder

EXIT_ABORTED = 70  # how a rank ends when the driver says so or is gone
PAUSE = 120.0  # seconds for which the driver may be suspended
TOGETHER = 30 * 86400.0  # seconds in which all ranks meet: the hub, which knows of stalls, gives up long before
ACK_WITHIN = 3.0  # seconds a failing rank waits until the hub knows
BYE_WITHIN = 2.0  # seconds a closing link waits until the hub knows
BEAT_SOON, BEAT_LATE = 0.5, 5.0  # seconds between beats: when something changed, and at least
MEMORY_STEP = 0.1  # change of the memory of a rank, as a part of it, of which the hub hears
_STDERR = 2
LOG_BACKLOG = 16 << 20  # bytes queued in a rank above which lines are dropped
FLUSH_WITHIN = 0.1  # seconds that a rank which flushes its output may wait
TEXT_LIMIT = 1 << 20  # characters of a traceback or stack; its end says most

logger = logging.getLogger(__name__)


class Parted(OrcaError, ConnectionError):
    """Ranks that cannot meet because one of them or the driver is gone: a consequence, never the cause."""


class Link:
    """The connection of one rank to the hub. Make it with `connect`.

    A daemon thread runs its event loop: it sends the beats of `heartbeat`, and ends the process when the driver says so
    or is gone. Methods but `log` and `flush` are for the thread that connected, whose stack the hub sees when this rank
    is stuck.
    """

    def __init__(self, ticket: Ticket, rank: int, patience: float, on_abort: Callable[[], None] | None) -> None:
        self.ticket, self.rank, self.patience = ticket, rank, patience
        self.on_abort = end_process if on_abort is None else on_abort
        self.heartbeat = Heartbeat()
        self._thread: threading.Thread | None = None
        self._owner = threading.get_ident()
        self._outbox: deque[bytes] = deque()
        self._backlog = Backlog(LOG_BACKLOG)
        self._post_lock = threading.RLock()  # a signal handler may print while its thread posts
        self._replies: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()  # None: the link is over
        self._round = 0
        self._welcome = self._reported = self._behind = self._closing = False
        self._over = ""

    @classmethod
    def connect(
        cls,
        ticket: Ticket,
        rank: int,
        timeout: float = 5.0,
        welcome: float = PAUSE,
        patience: float = TOGETHER,
        on_abort: Callable[[], None] | None = None,
    ) -> Link:
        """Return a link to the hub; a silent one, on which all but all_gather does nothing, when it is out of reach.

        Args:
            ticket: The hub's ticket.
            rank: The rank of this worker.
            timeout: Seconds to reach the hub's machine.
            welcome: Seconds for the hub, once reached, to answer: the driver may be suspended.
            patience: Seconds that all_gather waits for the other ranks, while the hub is there.
            on_abort: Called in the link's thread instead of ending the process with exit code 70.

        Raises:
            ArgumentError: The hub does not know the secret, or refuses the rank.
        """
        link = cls(ticket, rank, patience, on_abort)
        try:
            key = handshake.key_of(ticket.secret, protocol.HUB)
            link._open(handshake.connect(ticket.host, ticket.port, key, rank, timeout, welcome), welcome)
        except handshake.Unproven as error:
            raise ArgumentError(
                f"rank {rank} does not believe the driver at {ticket.host}:{ticket.port}: {error}. The ticket belongs "
                "to another run, or another program listens there. Connect with the ticket of its own run.",
                code="driver-not-trusted",
            ) from None
        except OSError as error:
            logger.warning(
                "rank %d continues without telemetry: the driver at %s:%d cannot be reached (%s)",
                *(rank, ticket.host, ticket.port, error),
            )
        return link

    def __enter__(self) -> Link:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(error)
        self.close()

    @property
    def connected(self) -> bool:
        """Say whether the hub hears this rank."""
        return self._thread is not None and self._thread.is_alive() and not (self._over or self._closing)

    @contextmanager
    def reporting_crashes(self) -> Iterator[None]:
        """Let Python's faulthandler write to the hub while the block runs: the stack of a process that crashes."""
        if not self.connected:
            yield
            return
        enabled = faulthandler.is_enabled()
        faulthandler.enable(self._connection.fileno())
        try:
            yield
        finally:
            faulthandler.disable()
            if enabled:
                faulthandler.enable(_STDERR)

    @contextmanager
    def leaving_in_order(self) -> Iterator[None]:
        """Let the hub end the run when this process gets SIGTERM, and ignore Ctrl-C, which is for the driver.

        Python calls a handler when its main thread is back from C, which may be too late: the signal's number is
        written to a socket at once, which the link's thread reads.
        """
        numbers = [
            number
            for number in (signal.SIGTERM, signal.SIGINT)
            if signal.getsignal(number) not in (None, signal.SIG_IGN)  # not set by Python, or ignored already
        ]
        if not self.connected or threading.current_thread() is not threading.main_thread():
            yield
            return
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)

        def hear() -> None:
            if signal.SIGTERM in ours.recv(64):
                self._connection.send(protocol.Leaving("SIGTERM"))

        def close() -> None:
            self._loop.remove_reader(ours)
            ours.close()

        self._order(lambda: self._loop.add_reader(ours, hear))
        former = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(former)
            theirs.close()
            self._order(close)

    def all_gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in rank order, once each gave its own."""
        if self._thread is None:
            return self._gather_alone(text)
        line = encode(protocol.Gather(self._round, text))
        if len(line) > MESSAGE_LIMIT:
            raise ArgumentError(
                f"all_gather takes up to {MESSAGE_LIMIT} bytes as JSON; got {len(line)}. Send a path.",
                code="item-too-long",
            )
        self._round += 1
        phase = self.heartbeat.phase
        self.heartbeat.at(WAIT)
        try:
            return self._meet(self._round - 1, line)
        finally:
            self.heartbeat.at(phase)

    def log(self, text: str, origin: str = "stdout", level: int = 0) -> None:
        """Give a line to the driver's on_log without ever waiting; for any thread.

        Lines are dropped where the driver cannot keep up, and one line says how many.

        Args:
            text: The line; cut where it is longer than 64 Ki characters.
            origin: "stdout" or "stderr" for printed lines, else the name of the logger.
            level: The level of a log record; 0 for printed lines.
        """
        more = len(text) - LINE_LIMIT
        line = Log(f"{text[:LINE_LIMIT]}... ({more} more characters)" if more > 0 else text, origin, level)
        with self._post_lock:
            if self.connected and self._backlog.has_room():
                self._post_gap()
                self._post(line)

    def flush(self) -> None:
        """Wait a moment until all log lines are on their way, unless the driver lags behind; for any thread."""
        goal, deadline = self._backlog.inflow, time.monotonic() + FLUSH_WITHIN
        while self.connected and self._backlog.outflow < goal and not self._behind:
            if time.monotonic() > deadline:
                self._behind = True  # until nothing is left to send
            time.sleep(0.0002)

    def fail(self, error: BaseException, secondary: bool = False) -> bool:
        """Report an error; return whether the hub knows it, at the latest after 3 s. Only the first report counts.

        Args:
            error: The exception; Parted, and those that it caused, are always secondary.
            secondary: Whether it is a consequence of another rank's failure.
        """
        if self._reported:
            return True
        self._reported = True
        trace = trace_of(error, TEXT_LIMIT)
        self._post_gap()
        secondary = secondary or from_parting(error)
        reason = reason_of(error)[:LINE_LIMIT]
        if not self._post(protocol.Fail(reason, trace, secondary, word_of(error), code_of(error))):
            return False
        acks: list[Any] = []

        def is_known(seconds: float) -> bool:
            acks.append(self._reply(seconds, Ack))
            return acks[-1] is not None or bool(self._over)

        self._backlog.outlast(is_known, ACK_WITHIN)  # the lines before it may take longer
        return acks[-1] is not None

    def close(self) -> None:
        """Say bye, so that the end of the process is no loss, and end the link's thread."""
        if self._thread is None or self._closing:
            return
        self._post_gap()
        for end in self.heartbeat.ended_epochs():
            self._post(end)
        self._post(self.heartbeat.beat(self.rank))
        self._post(protocol.Bye())
        self._closing = True
        self._order(self._hand_over)
        self._backlog.outlast(partial(ends_within, self._thread), BYE_WITHIN)
        self._order(self._end)
        ends_within(self._thread, BYE_WITHIN)

    def _gather_alone(self, text: str) -> list[str]:
        if self.ticket.size == 1:
            return [text]
        raise Parted(
            f"rank {self.rank} cannot meet the other {self.ticket.size - 1}: the driver at {self.ticket.host}:"
            f"{self.ticket.port} cannot be reached from here. Give the driver an address that its workers can reach."
        )

    def _meet(self, number: int, line: bytes) -> list[str]:
        deadline = time.monotonic() + self.patience
        if self._post(line):
            while (reply := self._reply(deadline - time.monotonic(), Gathered)) is not None:
                if reply.round == number and reply.obstacle:
                    raise Parted(f"rank {self.rank} {reply.obstacle}")
                if reply.round == number:
                    return list(reply.texts)
        if not self.connected:
            raise Parted(f"rank {self.rank} cannot meet the others: {self._over or 'its link is closed'}")
        raise Parted(f"rank {self.rank} waited {self.patience:g} s in all_gather and not all other ranks came")

    def _reply(self, seconds: float, *kinds: type) -> Any:
        """Return the hub's next reply of these kinds; None when there is none in time, or the link is over."""
        deadline = time.monotonic() + seconds
        with suppress(queue.Empty):
            while (reply := self._replies.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
                if isinstance(reply, kinds):
                    return reply
        return None

    def _post_gap(self) -> None:
        with self._post_lock:
            if gap := self._backlog.gap():
                self._post(Log(f"({gap} lines are missing here: the driver could not keep up)", "stderr"))

    def _post(self, message: tuple[Any, ...] | bytes) -> bool:
        if not self.connected:
            return False
        line = message if isinstance(message, bytes) else encode(message)
        with self._post_lock:
            self._backlog.inflow += len(line)
            self._outbox.append(line)
            first = len(self._outbox) == 1
        if first:  # else the thread was woken for the one before
            self._order(self._hand_over)
        return True

    def _order(self, order: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(order)

    def _open(self, sock: socket.socket, welcome: float) -> None:
        """Start the thread and name this host; OSError when there is no answer, ArgumentError when it is no."""
        sock.setblocking(False)
        self._loop = asyncio.SelectorEventLoop()
        self._end_of_run = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(sock,), name=f"orca-link-{self.rank}", daemon=True)
        self._thread.start()
        reply = self._reply(welcome, Ack, Abort)
        if isinstance(reply, Ack):
            return
        reason, self._closing = self._over or f"no answer within {welcome:g} s", True
        self._order(self._end)
        ends_within(self._thread, BYE_WITHIN)
        self._thread = None
        if isinstance(reply, Abort):
            raise ArgumentError(
                f"the driver at {self.ticket.host}:{self.ticket.port} refused rank {self.rank}: {reply.reason}. "
                "Connect each rank once, with the ticket of its own run.",
                code="rank-refused",
            )
        raise ConnectionError(reason)

    # The link's thread.

    def _run(self, sock: socket.socket) -> None:
        try:
            self._loop.run_until_complete(self._converse(sock))
        finally:
            self._end()
            self._loop.close()

    async def _converse(self, sock: socket.socket) -> None:
        limit = MESSAGE_LIMIT * (self.ticket.size + 1)  # a gathered answer holds the texts of all ranks
        self._connection = Connection(limit, self._hear, self._end, self._hand_over)
        await self._loop.create_connection(lambda: self._connection, sock=sock)
        self._connection.send(protocol.Hello(socket.gethostname()))
        last, when, resident = self.heartbeat.beat(self.rank), self._loop.time(), 0
        while not self._end_of_run.done():
            await asyncio.wait([self._end_of_run], timeout=BEAT_SOON)
            if self._welcome and not self._closing and not self._connection.busy:
                beat, now = self.heartbeat.beat(self.rank), self._loop.time()
                for end in self.heartbeat.ended_epochs():
                    self._connection.send(end)
                if beat != last or now - when >= BEAT_LATE:
                    last, when = beat, now
                    self._connection.send(beat)
                memory = resident_memory()
                if abs(memory - resident) > MEMORY_STEP * resident:
                    resident = memory
                    self._connection.send(protocol.Memory(memory, memory_limit()))
        if self._connection.fileno() >= 0:
            self._connection.transport.abort()
            await asyncio.sleep(0)  # until it is closed

    def _hand_over(self) -> None:
        while self._outbox and not self._connection.busy:
            line = self._outbox.popleft()
            self._connection.send(line)
            self._backlog.outflow += len(line)
        if not self._connection.busy:
            self._behind = False
            if self._closing:
                self._connection.transport.write_eof()  # the hub closes in turn, and then we know that it heard our bye

    def _hear(self, message: tuple[Any, ...]) -> None:
        match message:
            case Ack() | Gathered():
                if not self._welcome and not self._closing:
                    self._welcome = True
                    self._connection.send(self.heartbeat.beat(self.rank))  # now the hub may count on us
                self._replies.put(message)
            case protocol.AskLimit(interrupted):
                self._connection.send(protocol.Limit(self.heartbeat.stop_point.limit(interrupted)))
            case protocol.Stop():
                self.heartbeat.stop_point.give(StopOrder(*message))
            case protocol.Ask():
                self._connection.send(protocol.Stack(stack_of(self._owner)))
            case Abort(reason) if self._welcome:
                if not self._closing:
                    self._end(f"the driver ended the run: {reason}")
            case Abort():
                self._replies.put(message)
            case _:
                raise protocol.Malformed(f"a hub does not say {type(message).__name__}")

    def _end(self, reason: str = "") -> None:
        if self._end_of_run.done():
            return
        self._end_of_run.set_result(None)
        try:
            if self._welcome and not self._closing:
                self.on_abort()  # by default the process ends here
        finally:
            self._over = reason or "the connection to the driver is lost"
            self._replies.put(None)


def from_parting(error: BaseException | None) -> bool:
    """Say whether an error is Parted or was raised because of it."""
    for _ in range(20):
        if error is None or isinstance(error, Parted):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, Parted)


def stack_of(thread: int) -> str:
    """Return the stack of a thread as text."""
    frame = sys._current_frames().get(thread)
    return "the thread has ended" if frame is None else "".join(traceback.format_stack(frame))[-TEXT_LIMIT:]


def end_process() -> None:
    """End this process at once: its main thread may be stuck, so nothing is flushed, logged or waited for."""
    os._exit(EXIT_ABORTED)
