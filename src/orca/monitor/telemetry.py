"""Telemetry: what ranks tell the driver while they run. Owns rendezvous, beats, aborts and which failure came first.

A Hub listens at the driver, a Link connects each rank to it (`monitor/protocol.py`), opened by the secret of the run.
Ranks mark where they are on a pulse (`monitor/heartbeat.py`), which the link sends in beats.
"""

from __future__ import annotations

import hmac
import logging
import os
import queue
import secrets
import selectors
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from orca.errors import ArgumentError, OrcaError, WorkerFailed, WorkerLost, WorkerStalled
from orca.monitor.heartbeat import PHASES, WAIT, Beat, Pulse
from orca.monitor.protocol import (
    LINE_LIMIT,
    PAUSE,
    Abort,
    Ack,
    Apart,
    Ask,
    Backlog,
    Bye,
    Fail,
    Gather,
    Gathered,
    Hello,
    Log,
    Malformed,
    Refused,
    Stack,
    Waker,
    Welcome,
    Wire,
    encode,
    listen,
)

if TYPE_CHECKING:
    from typing_extensions import Self  # Python < 3.11 has no typing.Self.

__all__ = ["PHASES", "Beat", "Failure", "Hub", "Link", "Parted", "Pulse", "Ticket"]

EXIT_ABORTED = 70  # how a rank ends when the driver says so or is gone
HELLO_WITHIN = 5.0  # seconds a new connection has to present the secret
LOST_GRACE = 0.5  # seconds after a loss in which a real error of another rank may still arrive
LAST_GRACE = 2.0  # seconds after the first sign of trouble in which a primary failure is named in any case
STACK_WITHIN = 2.0  # seconds a stalled rank has to answer with its stack
ACK_WITHIN = 3.0  # seconds a failing rank waits until the hub knows
BYE_WITHIN = 2.0  # seconds a closing link waits until the hub knows
BEAT_SOON, BEAT_LATE = 0.5, 5.0  # seconds between beats: when something changed, and at least
STACKS = 4  # suspects asked for their stack
MESSAGE_LIMIT = 8 << 20  # bytes of one message
HELLO_LIMIT = 64 << 10  # bytes of one message before the secret was seen
LOG_BACKLOG = 16 << 20  # bytes queued in a rank above which lines are dropped
FLUSH_WITHIN = 0.1  # seconds that a rank which flushes its output may wait
SILENT_END = "its process ended without a word: killed, out of memory, or its node is gone"

logger = logging.getLogger(__name__)


class Parted(OrcaError, ConnectionError):
    """Ranks that cannot meet because one of them or the driver is gone: a consequence, never the cause."""


@dataclass(frozen=True)
class Ticket:
    """The admission of a rank to the hub of one run."""

    host: str
    port: int
    secret: str = field(repr=False)
    size: int


@dataclass(frozen=True)
class Failure:
    """How one rank failed.

    Args:
        rank: The rank.
        host: The host it ran on.
        reason: The exception's type and text, or how the process ended.
        traceback: Its traceback, or the stack of a stalled rank; "" when there is none.
        secondary: Whether it is a consequence of another rank's failure, such as a closed connection.
        kind: "error" (it raised), "lost" (its process is gone) or "stalled" (it made no progress).
    """

    rank: int
    host: str
    reason: str
    traceback: str
    secondary: bool
    kind: str

    def error(self) -> WorkerFailed:
        """Return the exception to raise for it."""
        kind = {"lost": WorkerLost, "stalled": WorkerStalled}.get(self.kind, WorkerFailed)
        return kind(self.rank, self.host, self.reason, self.traceback)


class Hub:
    """The driver's end of all connections: it hears the ranks, lets them meet, and knows which failure came first.

    One daemon thread owns all state; what other threads ask for is queued as an order and carried out there. The
    callbacks are called in that thread and must not block. Leaving the hub ends every rank that is still connected.

    Args:
        size: The number of ranks.
        host: The address of the one interface to listen on, reachable from the ranks.
        stall: Seconds without progress of any rank after which the run counts as stalled; <= 0 for never.
        on_beat: Called with each beat.
        on_log: Called with each line a rank prints or logs, and its rank; in order for each rank.

    Example:
        >>> with Hub(1) as hub, Link.connect(hub.ticket, rank=0) as link:
        ...     link.all_gather("here")
        ['here']
    """

    def __init__(
        self,
        size: int,
        host: str = "127.0.0.1",
        *,
        stall: float = 300.0,
        on_beat: Callable[[Beat], None] | None = None,
        on_log: Callable[[int, Log], None] | None = None,
    ) -> None:
        if size < 1:
            raise ArgumentError(f"a hub needs at least one rank; got size {size}. Pass the number of workers.")
        self.size, self.host, self.stall = size, host, stall
        self.on_beat, self.on_log = on_beat, on_log
        self.failed = threading.Event()
        self._primary: Failure | None = None
        self._ticket: Ticket | None = None
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Below: only the hub's thread.
        self._strangers: set[Seat] = set()
        self._seats: dict[int, Seat] = {}
        self._ended: dict[int, str] = {}
        self._signs: list[Sign] = []
        self._rounds: dict[int, dict[int, str]] = {}
        self._suspicion: Suspicion | None = None
        self._aborted: str | None = None
        self._advanced = self._ticked = 0.0
        self._closing = False

    def __enter__(self) -> Self:
        self._door = listen(self.host, self.size)
        address = self._door.getsockname()
        self._ticket = Ticket(address[0], address[1], secrets.token_hex(32), self.size)
        self._bell = Waker()
        self._thread = threading.Thread(target=self._run, name="orca-hub", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._order(self._close)
        self._thread.join(10.0)
        if self._thread.is_alive():
            logger.error("the hub's thread does not end: a callback (on_beat, on_log) blocks")

    @property
    def ticket(self) -> Ticket:
        """Return what a rank needs to connect."""
        if self._ticket is None:
            raise OrcaError("the hub is not open yet, so it has no ticket. Enter it first: with Hub(size) as hub: ...")
        return self._ticket

    def failure(self, wait: float = 0.0) -> Failure | None:
        """Return the primary failure, waiting up to `wait` seconds for one to be known."""
        self.failed.wait(wait)
        return self._primary

    def error(self, wait: float = 0.0) -> WorkerFailed | None:
        """Return the primary failure as the exception to raise."""
        failure = self.failure(wait)
        return None if failure is None else failure.error()

    def abort(self, reason: str) -> None:
        """Tell every rank, also one that connects later, to end at once."""
        self._order(partial(self._abort, reason))

    @property
    def absent(self) -> list[int]:
        """Return the ranks that were neither heard of nor lost."""
        return [rank for rank in range(self.size) if rank not in self._seats and rank not in self._ended]

    def give_up(self, reason: str) -> None:
        """End the run because of the ranks that are absent, unless all came meanwhile."""
        self._order(partial(self._give_up, reason))

    def lost(self, rank: int, host: str, reason: str) -> None:
        """Say that a rank's process was seen to end by itself."""
        self._order(partial(self._lose, rank, host, reason))

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        if self._ticket is not None:
            self._bell.ring()

    # The hub's thread.

    def _run(self) -> None:
        self._advanced = self._ticked = time.monotonic()
        self._selector = selectors.DefaultSelector()
        try:
            self._selector.register(self._door, selectors.EVENT_READ, self._admit)
            self._selector.register(self._bell.sock, selectors.EVENT_READ, self._bell.hush)
            while not self._closing:
                self._turn()
        except Exception:
            logger.exception("the hub failed; the ranks of this run will end")
        finally:
            self._shut()

    def _turn(self) -> None:
        busy = self._strangers or self._signs or self._suspicion
        pause = 0.05 if busy else min(1.0, self.stall / 4 if self.stall > 0 else 1.0)
        for key, _ in self._selector.select(max(pause, 0.02)):
            key.data()
        while not self._orders.empty():
            self._orders.get()()
        now = time.monotonic()
        for seat in [seat for seat in self._strangers if now >= seat.deadline]:
            self._drop(seat, f"it did not present the secret within {HELLO_WITHIN:g} s")
        self._judge(now)
        self._watch(now)
        self._ticked = now

    def _shut(self) -> None:
        if self._primary is None and self._signs:
            self._judge(self._signs[0].when + LAST_GRACE)
        for seat in self._seats.values():
            self._hear_out(seat)
        for seat in [*self._strangers, *self._seats.values()]:
            self._dismiss(seat)
        self._selector.close()
        self._door.close()
        self._bell.close()

    def _hear_out(self, seat: Seat) -> None:
        """Read the lines that a rank said before the end and nobody heard yet."""
        if not seat.wire.closed:
            with suppress(Malformed):
                for message in seat.wire.read():
                    if isinstance(message, Log):
                        call(self.on_log, seat.rank, message)

    def _close(self) -> None:
        self._closing = True

    # Coming and going.

    def _admit(self) -> None:
        try:
            sock, address = self._door.accept()
        except OSError as error:  # out of file descriptors, or the caller hung up
            logger.warning("the hub could not accept a connection: %s", error)
            time.sleep(0.02)
            return
        seat = Seat(Wire(sock, HELLO_LIMIT), str(address[0]), time.monotonic() + HELLO_WITHIN)
        self._strangers.add(seat)
        self._selector.register(sock, selectors.EVENT_READ, partial(self._attend, seat))

    def _attend(self, seat: Seat) -> None:
        try:
            for message in seat.wire.read():
                self._hear(seat, message)
                if seat.wire.closed:
                    return
        except Malformed as error:
            self._drop(seat, str(error))
            return
        if seat.wire.ended:
            self._dismiss(seat)
            self._miss(seat, SILENT_END)
        else:
            self._settle(seat)

    def _greet(self, seat: Seat, message: object) -> None:
        if not isinstance(message, Hello):
            raise Malformed("its first message was not the secret")
        if not hmac.compare_digest(message.secret.encode("utf-8", "replace"), self.ticket.secret.encode()):
            return self._refuse(seat, "the secret is wrong: the ticket belongs to another run")
        if not 0 <= message.rank < self.size:
            return self._refuse(seat, f"this run has the ranks 0 to {self.size - 1}")
        if message.rank in self._seats:
            return self._refuse(seat, f"rank {message.rank} has connected before")
        seat.rank, seat.host, seat.beat = message.rank, message.host, Beat(message.rank)
        seat.wire.limit = MESSAGE_LIMIT
        self._strangers.discard(seat)
        self._seats[seat.rank] = seat
        self._advanced = time.monotonic()
        self._send(seat, Welcome())
        if self._aborted is not None:
            self._send(seat, Abort(self._aborted))

    def _refuse(self, seat: Seat, reason: str) -> None:
        self._send(seat, Refused(reason))
        self._drop(seat, reason)

    def _drop(self, seat: Seat, reason: str) -> None:
        who = f"rank {seat.rank} on {seat.host}" if seat.rank >= 0 else seat.host
        logger.warning("the hub dropped the connection of %s: %s", who, reason)
        self._dismiss(seat)
        self._miss(seat, f"its connection was dropped: {reason}")

    def _dismiss(self, seat: Seat) -> None:
        self._strangers.discard(seat)
        if not seat.wire.closed:
            seat.wire.flush()
            self._selector.unregister(seat.wire.sock)
            seat.wire.close()

    def _miss(self, seat: Seat, reason: str) -> None:
        if seat.rank < 0 or seat.rank in self._ended:
            return
        if seat.joined:
            self._lose(seat.rank, seat.host, reason)
        else:  # it gave up before it saw our welcome and works without us: not a loss
            del self._seats[seat.rank]

    # What ranks say.

    def _hear(self, seat: Seat, message: object) -> None:
        if seat.rank < 0:
            return self._greet(seat, message)
        seat.joined = True
        match message:
            case Beat():
                self._feel(seat, message)
            case Gather():
                self._gather(seat, message)
            case Log():
                call(self.on_log, seat.rank, message)
            case Fail():
                self._note(Failure(seat.rank, seat.host, message.reason, message.traceback, message.secondary, "error"))
                self._end(seat.rank, "failed")
                self._judge(time.monotonic())  # before the answer: acknowledged means known
                self._send(seat, Ack())
            case Stack():
                if self._suspicion is not None:
                    self._suspicion.stacks[seat.rank] = message.text
            case Bye():
                self._advanced = time.monotonic()
                if seat.rank not in self._ended:
                    self._end(seat.rank, "has ended")
            case _:
                raise Malformed(f"a rank may not say {type(message).__name__}")

    def _feel(self, seat: Seat, beat: Beat) -> None:
        if beat.rank != seat.rank:
            raise Malformed(f"it sent a beat of rank {beat.rank}")
        if beat.progress != seat.beat.progress:
            self._advanced, self._suspicion = time.monotonic(), None
        seat.beat = beat
        call(self.on_beat, beat)

    def _gather(self, seat: Seat, message: Gather) -> None:
        given = self._rounds.setdefault(message.round, {})
        given[seat.rank] = message.text
        for rank, how in self._ended.items():
            if rank not in given:
                return self._send(seat, Apart(message.round, rank, how))
        if len(given) == self.size:
            texts = Gathered(message.round, [given[rank] for rank in range(self.size)])
            line = encode(texts)
            del self._rounds[message.round]
            for rank in given:
                self._send(self._seats[rank], line)

    def _end(self, rank: int, how: str) -> None:
        self._ended[rank] = how
        for number, given in self._rounds.items():
            if rank not in given:
                for other in given:
                    self._send(self._seats[other], Apart(number, rank, how))

    def _send(self, seat: Seat, message: object) -> None:
        if not seat.wire.closed:
            seat.wire.send(message if isinstance(message, bytes) else encode(message))
            seat.wire.flush()
            self._settle(seat)

    def _settle(self, seat: Seat) -> None:
        seat.wire.flush()
        key = self._selector.get_key(seat.wire.sock)
        if key.events != seat.wire.events:
            self._selector.modify(seat.wire.sock, seat.wire.events, key.data)

    # What went wrong.

    def _abort(self, reason: str) -> None:
        if self._aborted is None:
            self._aborted = reason
            for rank, seat in self._seats.items():
                if self._ended.get(rank) != "has ended":
                    self._send(seat, Abort(reason))

    def _lose(self, rank: int, host: str, reason: str) -> None:
        if self._ended.get(rank) == "failed":  # it said why itself
            return
        host = host or (self._seats[rank].host if rank in self._seats else "an unknown host")
        self._note(Failure(rank, host, reason, "", False, "lost"))
        self._end(rank, "was lost")

    def _note(self, failure: Failure) -> None:
        if self._aborted is not None and (failure.secondary or failure.kind == "lost"):
            return  # what we asked for
        for index, sign in enumerate(self._signs):
            if sign.failure.kind == failure.kind == "lost" and sign.failure.rank == failure.rank:
                self._signs[index] = Sign(sign.when, failure)  # an engine's words are better than our EOF
                return
        self._signs.append(Sign(time.monotonic(), failure))

    def _judge(self, now: float) -> None:
        if self._primary is None:
            primary = primary_of(self._signs, now, complete=len(self._ended) == self.size)
            if primary is not None:
                self._publish(primary)

    def _publish(self, primary: Failure) -> None:
        self._primary = primary
        self.failed.set()

    # Stalls.

    def _watch(self, now: float) -> None:
        if now - self._ticked > BEAT_LATE:
            self._advanced = now  # the driver itself slept, and perhaps the ranks with it
        if self.stall <= 0 or self._primary or self._signs or self._aborted is not None:
            return
        live = [seat for rank, seat in sorted(self._seats.items()) if rank not in self._ended and seat.joined]
        if self._suspicion is None:
            if live and now - self._advanced >= self.stall:
                self._suspect(live, now)
        elif self._suspicion.settled(now):
            self._convict(live, self._suspicion, now - self._advanced)

    def _suspect(self, live: list[Seat], now: float) -> None:
        busy = [seat for seat in live if seat.beat.phase != WAIT]
        absent = self.absent
        suspects = [] if absent and not busy else slowest(busy or live)
        self._suspicion = Suspicion(now + STACK_WITHIN, absent, [seat.rank for seat in suspects])
        for seat in suspects[:STACKS]:
            self._send(seat, Ask())

    def _convict(self, live: list[Seat], suspicion: Suspicion, seconds: float) -> None:
        if suspicion.ranks:
            failure = self._stalled(live, suspicion, seconds)
        else:
            reason = (
                f"it never reported to the driver in {seconds:.0f} s, while {doings(live)}. Check that its worker "
                f"was started and reaches {self.ticket.host}:{self.ticket.port}; {self._setting()}"
            )
            failure = Failure(suspicion.absent[0], "an unknown host", reason, "", False, "stalled")
        self._end_stalled(failure)

    def _give_up(self, reason: str) -> None:
        if self.absent and self._primary is None:
            self._end_stalled(Failure(self.absent[0], "an unknown host", reason, "", False, "stalled"))

    def _end_stalled(self, failure: Failure) -> None:
        self._publish(failure)
        self._abort(f"rank {failure.rank} stalled")

    def _stalled(self, live: list[Seat], suspicion: Suspicion, seconds: float) -> Failure:
        culprit = self._seats[suspicion.ranks[0]]
        beat = culprit.beat
        alike = f", like {names(suspicion.ranks[1:])}" if len(suspicion.ranks) > 1 else ""
        others = doings(seat for seat in live if seat.rank not in suspicion.ranks)
        reason = (
            f"no progress for {seconds:.0f} s in epoch {beat.epoch}, step {beat.step} of {beat.steps}, "
            f"phase {beat.doing}{alike}{', while ' + others if others else ''}; {self._setting()}"
        )
        stacks = dict(suspicion.stacks)
        if culprit.rank not in stacks:
            reason += " It did not answer with its stack: native code holds its interpreter, or it is stopped."
        text = stacks.pop(culprit.rank, "")
        text += "".join(f"\nrank {rank} at the same time:\n{stack}" for rank, stack in sorted(stacks.items()))
        return Failure(culprit.rank, culprit.host, reason, text, False, "stalled")

    def _setting(self) -> str:
        return f"if such a pause is normal here, raise the setting stall_timeout (now {self.stall:g} s)."


class Link:
    """The connection of one rank to the hub. Make it with `connect`.

    Its daemon thread sends beats of the `pulse`, and ends the process when the driver says so or is gone. Methods but
    `log` and `flush` are for the thread that connected; its stack is what the hub is shown when this rank is stuck.
    """

    def __init__(self, ticket: Ticket, rank: int, patience: float, on_abort: Callable[[], None] | None) -> None:
        self.ticket, self.rank, self.patience = ticket, rank, patience
        self.on_abort = end_process if on_abort is None else on_abort
        self.pulse = Pulse()
        self._thread: threading.Thread | None = None
        self._bell: Waker
        self._owner = threading.get_ident()
        self._outbox: deque[bytes] = deque()
        self._backlog = Backlog(LOG_BACKLOG)
        self._posting = threading.RLock()  # a signal handler may print while its thread posts
        self._behind = False
        self._round = 0
        self._news = threading.Condition()
        self._answers: dict[int, Gathered | Apart] = {}
        self._reported = self._acked = self._closing = self._giving_up = False
        self._over = ""

    @classmethod
    def connect(
        cls,
        ticket: Ticket,
        rank: int,
        timeout: float = 5.0,
        welcome: float = PAUSE,
        patience: float = 600.0,
        on_abort: Callable[[], None] | None = None,
    ) -> Link:
        """Return a link to the hub; a silent one, on which all but all_gather does nothing, when it is out of reach.

        Args:
            ticket: The hub's ticket.
            rank: The rank of this worker.
            timeout: Seconds to reach the hub's machine.
            welcome: Seconds for the hub, once reached, to answer: the driver may be suspended.
            patience: Seconds that all_gather waits for the other ranks.
            on_abort: Called in the link's thread instead of ending the process with exit code 70.

        Raises:
            ArgumentError: The hub refuses the secret or the rank.
        """
        link = cls(ticket, rank, patience, on_abort)
        try:
            wire = shake_hands(ticket, rank, timeout, welcome)
        except OSError as error:
            logger.warning(
                "rank %d goes on without telemetry: the driver at %s:%d cannot be reached (%s)",
                *(rank, ticket.host, ticket.port, error),
            )
            return link
        link._bell = Waker()
        link._thread = threading.Thread(target=link._run, args=(wire,), name=f"orca-link-{rank}", daemon=True)
        link._thread.start()
        return link

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)
        self.close()

    @property
    def connected(self) -> bool:
        """Tell whether the hub hears this rank."""
        return self._thread is not None and self._thread.is_alive() and not (self._over or self._closing)

    def all_gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in rank order, once each gave its own.

        Raises:
            Parted: Another rank or the driver is gone, or the patience is at its end.
            ArgumentError: The text is too long for one message.
        """
        if self._thread is None:
            return self._gather_alone(text)
        line = encode(Gather(self._round, text))
        if len(line) > MESSAGE_LIMIT:
            raise ArgumentError(f"all_gather takes up to {MESSAGE_LIMIT} bytes as JSON; got {len(line)}. Send a path.")
        number, self._round = self._round, self._round + 1
        before = self.pulse.phase
        self.pulse.at(WAIT)
        try:
            return self._meet(number, line)
        finally:
            self.pulse.at(before)

    def log(self, text: str, origin: str = "stdout", level: int = 0) -> None:
        """Give a line to the driver's on_log without ever waiting; for any thread.

        What the driver cannot keep up with is dropped, and one line says how much.

        Args:
            text: The line; cut where it is longer than 64 Ki characters.
            origin: "stdout" or "stderr" for what was printed, else the name of the logger.
            level: The level of a log record; 0 for what was printed.
        """
        more = len(text) - LINE_LIMIT
        line = Log(f"{text[:LINE_LIMIT]}... ({more} more characters)" if more > 0 else text, origin, level)
        with self._posting:
            if self.connected and self._backlog.has_room():
                self._tell_gap()
                self._post(line)

    def flush(self) -> None:
        """Wait a moment until what was logged is on its way, unless the driver lags behind; for any thread."""
        goal, deadline = self._backlog.added, time.monotonic() + FLUSH_WITHIN
        while self.connected and self._backlog.taken < goal and not self._behind:
            if time.monotonic() > deadline:
                self._behind = True  # until its thread has nothing left to send
            time.sleep(0.0002)

    def fail(self, error: BaseException, secondary: bool = False) -> None:
        """Report an error, and return when the hub knows it or after 3 seconds; only the first report counts.

        Args:
            error: What was raised; Parted, and what was raised because of it, is always secondary.
            secondary: Whether it is a consequence of another rank's failure.
        """
        if self._reported:
            return
        self._reported = True
        # JSON may need six bytes for a character; the end of a traceback says most.
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-(1 << 20) :]
        self._tell_gap()
        if self._post(Fail(reason_of(error)[: 64 << 10], trace, secondary or from_parting(error))):
            with self._news:
                moved = -1
                while moved != self._backlog.taken:  # the lines before it may take longer
                    moved = self._backlog.taken
                    if self._news.wait_for(lambda: self._acked or self._over, ACK_WITHIN):
                        break

    def close(self) -> None:
        """Say bye, so that the end of the process is no loss, and end the link's thread."""
        if self._thread is None or self._closing:
            return
        self._tell_gap()
        self._post(self.pulse.beat(self.rank))
        self._post(Bye())
        self._closing = True
        self._bell.ring()
        moved = -1
        while moved != self._backlog.taken and self._thread.is_alive():
            moved = self._backlog.taken
            self._thread.join(BYE_WITHIN)
        self._giving_up = True
        self._bell.ring()
        self._thread.join(BYE_WITHIN)

    def _gather_alone(self, text: str) -> list[str]:
        if self.ticket.size == 1:
            return [text]
        raise Parted(
            f"rank {self.rank} cannot meet the other {self.ticket.size - 1}: the driver at {self.ticket.host}:"
            f"{self.ticket.port} cannot be reached from here. Give the driver an address that its workers can reach."
        )

    def _meet(self, number: int, line: bytes) -> list[str]:
        self._post(line)
        with self._news:
            self._news.wait_for(lambda: number in self._answers or self._over or not self.connected, self.patience)
            answer = self._answers.pop(number, None)
        if isinstance(answer, Gathered):
            return answer.texts
        if isinstance(answer, Apart):
            raise Parted(f"rank {self.rank} waits for rank {answer.rank} in all_gather in vain: it {answer.how}")
        if not self.connected:
            raise Parted(f"rank {self.rank} cannot meet the others: {self._over or 'its link is closed'}")
        raise Parted(f"rank {self.rank} waited {self.patience:g} s in all_gather and not all other ranks came")

    def _tell_gap(self) -> None:
        with self._posting:
            if gap := self._backlog.gap():
                self._post(Log(f"({gap} lines are missing here: the driver could not keep up)", "stderr"))

    def _post(self, message: object) -> bool:
        if not self.connected:
            return False
        line = message if isinstance(message, bytes) else encode(message)
        with self._posting:
            self._backlog.added += len(line)
            self._outbox.append(line)
            alone = len(self._outbox) == 1
        if alone:  # else the bell rang for the one before
            self._bell.ring()
        return True

    # The link's thread.

    def _run(self, wire: Wire) -> None:
        over = "the connection to the driver is lost"
        try:
            over = self._converse(wire) or over
        except Malformed as error:
            over = f"the driver could not be understood: {error}"
        finally:
            with self._news:
                self._over = over
                self._news.notify_all()
            try:
                if not self._closing:
                    self.on_abort()  # by default the process ends here
            finally:
                wire.close()
                self._bell.close()

    def _converse(self, wire: Wire) -> str:
        shown, when = Beat(self.rank), float("-inf")
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell.sock, selectors.EVENT_READ)
            selector.register(wire.sock, selectors.EVENT_READ)
            while not wire.ended and not self._giving_up:
                for message in wire.read():
                    if isinstance(message, Abort):
                        if not self._closing:
                            return f"the driver ended the run: {message.reason}"
                    else:
                        self._hear(wire, message)
                now, closing = time.monotonic(), self._closing
                if now - when >= BEAT_SOON and not closing and not wire.pending:
                    beat = self.pulse.beat(self.rank)  # not with every line that is logged: it reads the loss
                    if beat != shown or now - when >= BEAT_LATE:
                        shown, when = beat, now
                        wire.send(encode(beat))
                self._hand_over(wire, closing)
                selector.modify(wire.sock, wire.events)
                selector.select(BEAT_SOON)
                self._bell.hush()
        return ""

    def _hand_over(self, wire: Wire, closing: bool) -> None:
        wire.flush()
        while self._outbox and not wire.pending:
            line = self._outbox.popleft()
            wire.send(line)
            wire.flush()
            self._backlog.taken += len(line)
        if not wire.pending:
            self._behind = False
        if closing and not self._outbox and not wire.pending:
            wire.hush()  # the hub closes in turn, and then we know that it heard our bye

    def _hear(self, wire: Wire, message: object) -> None:
        match message:
            case Gathered() | Apart():
                with self._news:
                    self._answers[message.round] = message
                    self._news.notify_all()
            case Ack():
                with self._news:
                    self._acked = True
                    self._news.notify_all()
            case Ask():
                wire.send(encode(Stack(stack_of(self._owner))))
                wire.flush()
            case _:
                raise Malformed(f"a hub does not say {type(message).__name__}")


# Which failure is the primary one.


@dataclass(frozen=True)
class Sign:
    """A failure, and when the hub learned of it."""

    when: float
    failure: Failure


def primary_of(signs: list[Sign], now: float, complete: bool) -> Failure | None:
    """Return the failure that explains the others, or None while it is too early to tell.

    The first error that is no consequence wins at once; then the first loss, after a grace in which such an error may
    come; then the first secondary error, when the last grace is over or all ranks have ended.
    """
    if not signs:
        return None
    overdue = now >= signs[0].when + LAST_GRACE
    for sign in signs:
        if sign.failure.kind != "lost" and not sign.failure.secondary:
            return sign.failure
    for sign in signs:
        if sign.failure.kind == "lost":
            return sign.failure if overdue or now >= sign.when + LOST_GRACE else None
    return signs[0].failure if overdue or complete else None


def reason_of(error: BaseException) -> str:
    """Return an exception's type and text."""
    try:
        text = str(error)
    except Exception:  # a broken __str__ must not hide the error
        text = "(its text cannot be shown)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def from_parting(error: BaseException | None) -> bool:
    """Tell whether an error is Parted or was raised because of it."""
    for _ in range(20):
        if error is None or isinstance(error, Parted):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, Parted)


# Who holds up the others.


@dataclass
class Suspicion:
    """Ranks that may be stuck, until their stacks are here."""

    deadline: float
    absent: list[int]
    ranks: list[int]
    stacks: dict[int, str] = field(default_factory=dict)

    def settled(self, now: float) -> bool:
        """Tell whether there is nothing more to wait for."""
        return now >= self.deadline or len(self.stacks) == len(self.ranks[:STACKS])


def slowest(seats: list[Seat]) -> list[Seat]:
    """Return those that are least far."""
    place = {seat.rank: (seat.beat.epoch, seat.beat.step, seat.beat.phase) for seat in seats}
    least = min(place.values())
    return [seat for seat in seats if place[seat.rank] == least]


def doings(seats: Iterable[Seat]) -> str:
    """Return what ranks do, in words: "ranks 1, 2 were in backward, rank 3 was in wait"."""
    by: dict[str, list[int]] = {}
    for seat in seats:
        by.setdefault(seat.beat.doing, []).append(seat.rank)
    return ", ".join(f"{names(ranks)} {'was' if len(ranks) == 1 else 'were'} in {doing}" for doing, ranks in by.items())


def names(ranks: list[int]) -> str:
    """Return ranks in words, the first eight by number."""
    more = f", ... ({len(ranks)} in all)" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{more}"


def stack_of(thread: int) -> str:
    """Return the stack of a thread as text."""
    frame = sys._current_frames().get(thread)
    return "the thread has ended" if frame is None else "".join(traceback.format_stack(frame))[-(1 << 20) :]


def call(callback: Callable[..., None] | None, *args: object) -> None:
    """Call a callback whose errors must not end the hub."""
    if callback is not None:
        try:
            callback(*args)
        except Exception:
            logger.exception("a callback of the hub failed")


def end_process() -> None:
    """End this process at once: its main thread may be stuck, so nothing is flushed, logged or waited for."""
    os._exit(EXIT_ABORTED)


# The wire.


@dataclass(eq=False)
class Seat:
    """One connection of the hub; rank -1 until it presented the secret, joined once it saw our welcome."""

    wire: Wire
    host: str
    deadline: float
    rank: int = -1
    joined: bool = False
    beat: Beat = field(default_factory=lambda: Beat(-1))


def shake_hands(ticket: Ticket, rank: int, timeout: float, welcome: float) -> Wire:
    """Return a wire to the hub that welcomed us; OSError when there is none, ArgumentError when it refuses."""
    sock = socket.create_connection((ticket.host, ticket.port), timeout)
    deadline = time.monotonic() + welcome
    wire = Wire(sock, MESSAGE_LIMIT * (ticket.size + 1))  # a gathered answer holds the texts of all ranks
    try:
        wire.send(encode(Hello(ticket.secret, rank, socket.gethostname())))
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0 and not wire.ended:
                wire.flush()
                selector.select(left)
                for answer in wire.read():
                    if isinstance(answer, Refused):
                        raise ArgumentError(
                            f"the driver at {ticket.host}:{ticket.port} refused rank {rank}: {answer.reason}. "
                            "Connect each rank once, with the ticket of its own run."
                        )
                    wire.send(encode(Beat(rank)))  # now the hub may count on us
                    wire.flush()
                    return wire
        raise ConnectionError("it hung up" if wire.ended else f"no answer within {welcome:g} s")
    except Malformed as error:
        wire.close()
        raise ConnectionError(f"no hub of ours is there: {error}") from None
    except BaseException:
        wire.close()
        raise
