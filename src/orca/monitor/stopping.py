"""Stopping: a fit that ends early, at the same step on all ranks. Owns how that step is chosen, and who asks for it.

A signal may reach one rank, or the driver, at any time, and ranks wait for each other within steps. So each rank names
a step that it will not pass (the one that it is in), at once and from the thread of its link; the hub orders the latest
of them. A rank that reaches its own step before the order is there waits for it, and then trains on to the common step.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Condition, Event
from types import FrameType
from typing import TYPE_CHECKING, Any

from orca.monitor.background import beside

if TYPE_CHECKING:
    from orca.monitor.hub import Hub

NOT_STOPPABLE, FINISHING = 0, -1  # what a rank names instead of a step: it has nothing to save; its steps are done
INTERRUPT_WITHIN = 10.0  # seconds for ranks to stop after a Ctrl-C
TERMINATED = 128 + signal.SIGTERM  # the exit status of a program that was asked to end


@dataclass(frozen=True)
class StopOrder:
    """The order to stop after a step: why, and because of which rank; -1 for the driver.

    Attributes:
        step: The steps behind it, over all fits; FINISHING if the fit may end by itself.
        rank: The rank that has to end.
        host: Its host.
        reason: Why.
        interrupted: Whether the user interrupts the fit, and gets the weights of its last epoch.
    """

    step: int
    rank: int
    host: str
    reason: str
    interrupted: bool


class StopPoint:
    """The step after which a rank stops; between its training thread and that of its link."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._is_open = self._is_over = self._saves = False
        self._steps = 0
        self._limit: int | None = None
        self.order: StopOrder | None = None

    @contextmanager
    def open(self, steps: int, pausable: bool, saves: bool) -> Iterator[None]:
        """Take requests while the steps of a fit run.

        Args:
            steps: The steps before, over all fits.
            pausable: Whether the fit can stop between any two steps.
            saves: Whether it keeps checkpoints.
        """
        with self._changed:
            self._is_open, self._saves, self._steps = pausable, saves, steps
            self._is_over, self._limit, self.order = False, None, None
        try:
            yield
        finally:
            with self._changed:
                self._is_open, self._is_over = False, pausable

    def limit(self, interrupted: bool) -> int:
        """Return the step that this rank will not pass without an order; for the link's thread."""
        with self._changed:
            if not self._is_open:
                return FINISHING if self._is_over else NOT_STOPPABLE
            if not (self._saves or interrupted):
                return NOT_STOPPABLE
            self._limit = self._steps + 1
            return self._limit

    def give(self, order: StopOrder) -> None:
        """Take the order; for the link's thread."""
        with self._changed:
            self.order = order
            self._changed.notify_all()

    def reached(self, steps: int) -> bool:
        """Return whether the rank stops after so many steps; called before it begins the next one."""
        with self._changed:
            self._steps = steps
            if self._limit is None or steps < self._limit:
                return False
            self._changed.wait_for(lambda: self.order is not None)
            return self.is_reached

    @property
    def outlived(self) -> StopOrder | None:
        """The order, if there is one, of a fit that has ended by itself."""
        return None if self.order is None else replace(self.order, step=FINISHING)

    @property
    def is_reached(self) -> bool:
        """Whether the rank is at the step of the order."""
        return self.order is not None and self.order.step == self._steps


class Halted(Exception):
    """The end of a loop of training at its stop point."""


@dataclass
class StopRound:
    """The hub's side: the steps that ranks have named."""

    reason: str
    rank: int
    host: str
    interrupted: bool
    limits: dict[int, int] = field(default_factory=dict)

    def order(self, size: int) -> StopOrder | None:
        """Return the order once all ranks have named a step; None before."""
        if len(self.limits) < size:
            return None
        finishing = FINISHING in self.limits.values()
        step = FINISHING if finishing else max(self.limits.values())
        return StopOrder(step, self.rank, self.host, self.reason, self.interrupted)

    @property
    def is_refused(self) -> bool:
        """Whether a rank has nothing that it could save."""
        return NOT_STOPPABLE in self.limits.values()


@contextmanager
def stopping_on_signals(hub: Hub) -> Iterator[None]:
    """Let a run end in order when the driver gets SIGTERM or Ctrl-C.

    SIGTERM: the ranks keep a checkpoint of the running step, and the program ends with status 143. Ctrl-C: the ranks
    stop after the running step, and KeyboardInterrupt is raised in any case, at once after a second Ctrl-C.

    Raises:
        SystemExit: The driver got SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminated, interrupted = Event(), Event()
    replaced: dict[int, Any] = {}

    def terminate(number: int, frame: FrameType | None) -> None:
        terminated.set()
        hub.stop("the driver got SIGTERM")

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, replaced[number])  # of the next one
        hub.stop("Ctrl-C", interrupted=True)
        interrupted.set()

    def watch(over: Event) -> None:
        deadline = float("inf")
        while not over.wait(0.05):
            if interrupted.is_set() and (hub.stop_refused.is_set() or time.monotonic() > deadline):
                _thread.interrupt_main()
                return
            if interrupted.is_set():
                deadline = min(deadline, time.monotonic() + INTERRUPT_WITHIN)

    for number, handler in ((signal.SIGTERM, terminate), (signal.SIGINT, interrupt)):
        if _may_replace(signal.getsignal(number)):
            replaced[number] = signal.signal(number, handler)
    try:
        with beside(watch, "orca-signals", patience=1.0):
            yield
    finally:
        for each, former in replaced.items():
            signal.signal(each, former)
        if terminated.is_set():
            raise SystemExit(TERMINATED)


def _may_replace(handler: Any) -> bool:
    """Return whether a handler is the system's, Python's or one that Spark or Ray has set, and not the user's."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    return callable(handler) and handler.__module__.partition(".")[0] in ("pyspark", "ray")
