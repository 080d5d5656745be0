"""Hub: the driver's end of all connections. Owns admission, rendezvous, stalls, and when a failure is known."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from orca.errors import ArgumentError, OrcaError, WorkerFailed
from orca.monitor import exits, failures, protocol
from orca.monitor.exits import SILENT_END
from orca.monitor.failures import Failure, Sign, primary_of
from orca.monitor.handshake import Reception, key_of
from orca.monitor.heartbeat import Beat, EpochEnd
from orca.monitor.protocol import (
    HUB,
    MESSAGE_LIMIT,
    Abort,
    AskLimit,
    Connection,
    Gather,
    Gathered,
    Log,
    Malformed,
    Stop,
    Ticket,
)
from orca.monitor.slowness import Slowness
from orca.monitor.stalls import Suspicion
from orca.monitor.stopping import StopRound

STRANGERS_LINES = 40  # of the log about connections without the secret
LIMITS_WITHIN = 10.0  # seconds that ranks may take to name the step that they are in
STACK_WITHIN = 2.0  # seconds a stalled rank has to answer with its stack
DRIVER_SLEPT = 5.0  # seconds between two looks at the ranks after which the driver itself was asleep
LAST_TURNS = 16  # turns of the event loop at the end, for lines that arrived and are not read yet
NOWHERE = "an unknown host"

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Seat:
    """The connection of a rank that knows the secret; welcome once it named its host, joined once it saw that."""

    rank: int
    host: str = NOWHERE
    welcome: bool = False
    joined: bool = False
    beat: Beat = field(default_factory=lambda: Beat(-1))
    memory: tuple[int, int] = (0, 0)  # protocol.Memory
    connection: Connection = field(init=False)


class Hub:
    """The driver's end of all connections: it hears the ranks, lets them meet, and knows which failure came first.

    One daemon thread runs an event loop that owns all state; other threads' requests are carried out there. The
    callbacks are called in that thread and must not block. Leaving the hub ends every rank that is still connected.

    Args:
        size: The number of ranks.
        host: The address of the one interface to listen on, reachable from the ranks.
        stall: Seconds without progress of any rank after which the run counts as stalled; <= 0 for never.
        on_beat: Called with each beat.
        on_log: Called with each line a rank prints or logs, and its rank; in order for each rank.
        on_epoch: Called with the results of each epoch, and the rank that sent them.
        bind: The address to listen on, if ranks reach it at another; it may mean every interface.
        ports: The ports to try; port 0 lets the system pick.

    Example:
        >>> from orca.monitor.link import Link
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
        on_epoch: Callable[[int, EpochEnd], None] | None = None,
        bind: str = "",
        ports: range = range(1),
    ) -> None:
        if size < 1:
            raise ArgumentError(
                f"a hub needs at least one rank; got size {size}. Pass the number of workers.", code="bad-count"
            )
        self.size, self.host, self.stall = size, host, stall
        self.on_beat, self.on_log, self.on_epoch = on_beat, on_log, on_epoch
        self._bind, self._ports = bind, ports
        self.failed = threading.Event()
        self.stop_refused = threading.Event()  # ranks cannot stop in order
        self._primary: Failure | None = None
        self._ticket: Ticket | None = None
        # Below: only the hub's thread.
        self._open: set[Seat] = set()
        self._seats: dict[int, Seat] = {}
        self._endings: dict[int, str] = {}  # rank -> how
        self._signs: dict[tuple[int, str], Sign] = {}  # by rank and kind
        self._rounds: dict[int, dict[int, str]] = {}  # round -> the texts of ranks
        self._suspicion: Suspicion | None = None
        self._slowness = Slowness()
        self._stop_round: StopRound | None = None
        self._oom_kills = exits.oom_kills()  # on this machine, before the run
        self._leaving: dict[int, str] = {}  # ranks that have to end, and why
        self._abort_reason: str | None = None
        self._last_progress = 0.0

    def __enter__(self) -> Hub:
        self._door = protocol.listen(self._bind or self.host, self._ports, any_interface=bool(self._bind))
        host, port, *_ = self._door.getsockname()
        self._ticket = Ticket(self.host if self._bind else host, port, secrets.token_hex(32), self.size)
        self._loop = asyncio.SelectorEventLoop()
        self._closing = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="orca-hub", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._order(self._closing.set_result, None)
        self._thread.join(10.0)
        if self._thread.is_alive():
            logger.error("the hub's thread does not end: a callback (on_beat, on_log) blocks")

    @property
    def ticket(self) -> Ticket:
        """Return the ticket with which ranks connect."""
        if self._ticket is None:
            raise OrcaError(
                "the hub is not open yet, so it has no ticket. Enter it first: with Hub(size) as hub: ...",
                code="hub-not-open",
            )
        return self._ticket

    def failure(self, wait: float = 0.0) -> Failure | None:
        """Return the primary failure, waiting up to `wait` seconds for one to be known."""
        self.failed.wait(wait)
        return self._primary

    def error(self, wait: float = 0.0) -> WorkerFailed | None:
        """Return the primary failure as the exception to raise."""
        failure = self.failure(wait)
        return None if failure is None else failure.error()

    @property
    def absent(self) -> list[int]:
        """Return the ranks that have not reported and are not known to be lost."""
        return [rank for rank in range(self.size) if rank not in self._seats and rank not in self._endings]

    def abort(self, reason: str) -> None:
        """Tell every rank, also one that connects later, to end at once."""
        self._order(self._abort, reason)

    def give_up(self, reason: str) -> None:
        """End the run because of the ranks that are absent, unless all came meanwhile."""
        self._order(self._give_up, reason)

    def stop(self, reason: str, rank: int = -1, host: str = "", interrupted: bool = False) -> None:
        """End the run in order: after the running step, with a checkpoint; at once if there is nothing to save.

        Args:
            reason: Why.
            rank: The rank that has to end; -1 for the driver.
            host: Its host.
            interrupted: Whether the user interrupts it, who gets the weights of the last epoch.
        """
        self._order(self._stop, StopRound(reason, rank, host, interrupted))

    def stop_host(self, names: set[str], reason: str) -> None:
        """End the run in order, because of a host that is taken away; by any of its names."""
        self._order(self._stop_host, names, reason)

    def lost(self, rank: int, host: str, reason: str) -> None:
        """Say that a rank's process was seen to end by itself."""
        self._order(self._lose, rank, host, reason)

    def _order(self, order: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the hub is closed
            self._loop.call_soon_threadsafe(order, *args)

    # The hub's thread.

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            logger.exception("the hub failed; the ranks of this run will end")
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        key = key_of(self.ticket.secret, HUB)
        reception = Reception(self._loop, key, "the hub", STRANGERS_LINES, self._admit)
        server = await reception.serve(self._door, self.size)
        pause = max(0.02, min(1.0, self.stall / 4 if self.stall > 0 else 1.0))
        glance = self._last_progress = time.monotonic()
        try:
            while not self._closing.done():
                await asyncio.wait([self._closing], timeout=pause)
                if time.monotonic() - glance > DRIVER_SLEPT:
                    self._last_progress = time.monotonic()  # perhaps the ranks slept as well
                glance = time.monotonic()
                self._watch(glance)
        finally:
            server.close()
            reception.close()
            self._judge(float("inf"))
            self._abort_reason = self._abort_reason or "the run is over"  # no end of a rank is a loss any more
            for _ in range(LAST_TURNS):
                await asyncio.sleep(0)
            for seat in self._open:
                seat.connection.transport.abort()
            await asyncio.sleep(0)

    # Coming and going.

    def _admit(self, rank: int) -> Connection:
        seat = Seat(rank)
        seat.connection = Connection(MESSAGE_LIMIT, partial(self._hear, seat), partial(self._miss, seat), lambda: None)
        self._open.add(seat)
        return seat.connection

    def _greet(self, seat: Seat, message: tuple[Any, ...]) -> None:
        if not isinstance(message, protocol.Hello):
            raise Malformed("its first message did not name its host")
        refusal = ""
        if seat.rank >= self.size:
            refusal = f"this run has the ranks 0 to {self.size - 1}"
        elif seat.rank in self._seats:
            refusal = f"rank {seat.rank} has connected before"
        if refusal:
            seat.connection.send(Abort(refusal))
            raise Malformed(refusal)
        seat.host, seat.beat, seat.welcome = message.host, Beat(seat.rank), True
        self._seats[seat.rank] = seat
        self._last_progress = time.monotonic()
        seat.connection.send(protocol.Ack())
        if self._abort_reason is not None:
            seat.connection.send(Abort(self._abort_reason))

    def _miss(self, seat: Seat, reason: str) -> None:
        self._open.discard(seat)
        if reason:
            logger.warning("the hub dropped the connection of rank %d on %s: %s", seat.rank, seat.host, reason)
        if not seat.welcome or seat.rank in self._endings:
            return
        if seat.joined:
            self._lose(seat.rank, seat.host, f"its connection was dropped: {reason}" if reason else SILENT_END)
        else:  # it gave up before it saw our welcome and works without us: not a loss
            del self._seats[seat.rank]

    # Messages of ranks.

    def _hear(self, seat: Seat, message: tuple[Any, ...]) -> None:
        if not seat.welcome:
            return self._greet(seat, message)
        seat.joined = True
        match message:
            case Beat():
                self._feel(seat, message)
            case Gather():
                self._gather(seat, message)
            case Log():
                call(self.on_log, seat.rank, message)
            case EpochEnd():
                call(self.on_epoch, seat.rank, message)
            case protocol.Fail(reason, traceback, secondary, word, code):
                self._note(Failure(seat.rank, seat.host, reason, traceback, secondary, word=word, code=code))
                self._end(seat.rank, "failed")
                seat.connection.send(protocol.Ack())  # acknowledged means known
            case protocol.Stack():
                if self._suspicion is not None:
                    self._suspicion.stacks[seat.rank] = message.text
                    if len(self._suspicion.stacks) == len(self._suspicion.asked):
                        self._convict(self._suspicion)
            case protocol.Memory():
                seat.memory = message
            case protocol.Leaving(reason):
                self._leaving.setdefault(seat.rank, reason)
                self._stop(StopRound(f"its process got {reason}", seat.rank, seat.host, interrupted=False))
            case protocol.Limit(step):
                self._take_limit(seat.rank, step)
            case protocol.Bye():
                self._last_progress = time.monotonic()
                if seat.rank not in self._endings:
                    self._end(seat.rank, "has ended")
            case _:
                raise Malformed(f"a rank may not say {type(message).__name__}")

    def _feel(self, seat: Seat, beat: Beat) -> None:
        if beat.rank != seat.rank:
            raise Malformed(f"it sent a beat of rank {beat.rank}")
        if beat.progress != seat.beat.progress:
            self._last_progress, self._suspicion = time.monotonic(), None
        seat.beat = beat
        call(self.on_beat, beat)

    def _gather(self, seat: Seat, message: Gather) -> None:
        texts = self._rounds.setdefault(message.round, {})
        texts[seat.rank] = message.text
        for rank, how in self._endings.items():
            if rank not in texts:
                return seat.connection.send(_parting(message.round, rank, how))
        if len(texts) == self.size:
            line = protocol.encode(Gathered(message.round, [texts[rank] for rank in range(self.size)], ""))
            del self._rounds[message.round]
            for rank in texts:
                self._seats[rank].connection.send(line)

    def _end(self, rank: int, how: str) -> None:
        self._endings[rank] = how
        for number, texts in self._rounds.items():
            for other in texts if rank not in texts else ():
                self._seats[other].connection.send(_parting(number, rank, how))
        self._judge(time.monotonic())

    # Failures.

    def _abort(self, reason: str) -> None:
        if self._abort_reason is None:
            self._abort_reason = reason
            for rank, seat in self._seats.items():
                if self._endings.get(rank) != "has ended":
                    seat.connection.send(Abort(reason))

    def _lose(self, rank: int, host: str, reason: str) -> None:
        if self._endings.get(rank) == "failed":  # it said why itself
            return
        seat = self._seats.get(rank)
        host = host or (seat.host if seat else NOWHERE)
        is_killed = reason == SILENT_END or reason.startswith(exits.KILLED)
        if seat and is_killed and seat.host == socket.gethostname() and exits.oom_kills() > self._oom_kills:
            reason = exits.out_of_memory(*seat.memory)
        elif seat and reason == SILENT_END:
            reason = exits.silent_end(seat.connection.fault, *seat.memory)
        kind = "lost"
        if rank in self._leaving:
            kind = "preempted"
            reason = f"it got {self._leaving[rank]}, and ended before it could stop in order: {reason}"
        self._note(Failure(rank, host, reason, kind=kind))
        self._end(rank, "was lost")

    def _note(self, failure: Failure) -> None:
        if self._abort_reason is not None and (failure.secondary or failure.kind in ("lost", "preempted")):
            return  # a consequence of our abort
        key, now = (failure.rank, failure.kind), time.monotonic()
        when = self._signs[key].when if key in self._signs else now
        self._signs[key] = Sign(when, failure)  # an engine's words about a loss are better than our EOF
        for grace in (failures.LOST_GRACE, failures.LAST_GRACE):
            self._loop.call_later(grace + 0.01, lambda: self._judge(time.monotonic()))

    def _judge(self, now: float) -> None:
        if self._primary is None:
            primary = primary_of(list(self._signs.values()), now, complete=len(self._endings) == self.size)
            if primary is not None:
                self._publish(primary)

    def _publish(self, primary: Failure) -> None:
        seat = self._seats.get(primary.rank)
        if seat and primary.kind == "lost":
            fault = seat.connection.fault
            primary = replace(primary, traceback=exits.stack_in(fault))
            if fault and primary.reason.startswith(exits.CODE_END):  # MXNet's own handler hides the signal
                primary = replace(primary, reason=exits.silent_end(fault))
        self._primary = primary
        self.failed.set()

    # Ends in order; see stopping.py.

    def _stop_host(self, names: set[str], reason: str) -> None:
        rank = next((rank for rank, seat in sorted(self._seats.items()) if seat.host in names), -1)
        host = self._seats[rank].host if rank in self._seats else NOWHERE
        self._stop(StopRound(reason, rank, host, interrupted=False))

    def _stop(self, stop_round: StopRound) -> None:
        if self._stop_round is not None or self._troubled:
            return
        self._stop_round = stop_round
        if len(self._seats) < self.size or self._endings:
            if not self._endings:  # else the work is done
                self._refuse_stop(stop_round)
            return
        for seat in self._seats.values():
            seat.connection.send(AskLimit(stop_round.interrupted))
        self._loop.call_later(LIMITS_WITHIN, self._check_limits, stop_round)

    def _take_limit(self, rank: int, step: int) -> None:
        stop_round = self._stop_round
        if stop_round is None or self._troubled:
            return
        stop_round.limits[rank] = step
        order = stop_round.order(self.size)
        if stop_round.is_refused:
            self._refuse_stop(stop_round)
        elif order is not None:
            for seat in self._seats.values():
                seat.connection.send(Stop(order.step, order.rank, order.host, order.reason, order.interrupted))

    def _check_limits(self, stop_round: StopRound) -> None:
        if len(stop_round.limits) < self.size and not self._troubled:
            self._refuse_stop(stop_round)

    def _refuse_stop(self, stop_round: StopRound) -> None:
        """End the run now: no step that all ranks can stop after is known, or nothing would be kept there."""
        self.stop_refused.set()
        if not stop_round.interrupted:
            rank, host = max(0, stop_round.rank), stop_round.host or NOWHERE
            self._publish(Failure(rank, host, f"{stop_round.reason}. {exits.NO_CHECKPOINT}", kind="preempted"))
            self._abort(stop_round.reason)

    # Stalls.

    @property
    def _troubled(self) -> bool:
        return bool(self._primary or self._signs or self._abort_reason is not None)

    def _watch(self, now: float) -> None:
        ranks = [rank for rank, seat in sorted(self._seats.items()) if rank not in self._endings and seat.joined]
        if len(ranks) == self.size and not self._troubled:
            self._look_for_slow(now)
        overdue = ranks and self.stall > 0 and now - self._last_progress >= self.stall
        if not overdue or self._suspicion is not None or self._troubled:
            return
        suspicion = self._suspicion = Suspicion([self._seats[rank].beat for rank in ranks], self.absent)
        for rank in suspicion.asked:
            self._seats[rank].connection.send(protocol.Ask())
        self._loop.call_later(STACK_WITHIN if suspicion.asked else 0.0, self._convict, suspicion)

    def _look_for_slow(self, now: float) -> None:
        for rank, times in self._slowness.look(now, [self._seats[rank].beat for rank in range(self.size)]).items():
            logger.warning(
                "rank %d on %s is slow: it needs %.1f times as long as the others, which wait for it. Look for other "
                "work on that machine, and for uneven data",
                *(rank, self._seats[rank].host, times),
            )

    def _convict(self, suspicion: Suspicion) -> None:
        if self._suspicion is not suspicion or self._troubled:  # a rank has moved, or failed
            return
        seconds, address = time.monotonic() - self._last_progress, f"{self.ticket.host}:{self.ticket.port}"
        host = self._seats[suspicion.culprit].host if suspicion.suspects else NOWHERE
        self._end_stalled(suspicion.failure(host, seconds, self.stall, address))

    def _give_up(self, reason: str) -> None:
        if self.absent and self._primary is None:
            self._end_stalled(Failure(self.absent[0], NOWHERE, reason, kind="stalled"))

    def _end_stalled(self, failure: Failure) -> None:
        self._publish(failure)
        self._abort(f"rank {failure.rank} stalled")


def _parting(number: int, rank: int, how: str) -> Gathered:
    return Gathered(number, [], f"cannot complete all_gather: rank {rank} {how}")


def call(callback: Callable[..., None] | None, *args: object) -> None:
    """Call a callback whose errors must not end the hub."""
    if callback is not None:
        try:
            callback(*args)
        except Exception:
            logger.exception("a callback of the hub failed")
