"""Heartbeat: the place where a rank is. Owns the phases of a step, and the marks for stalls, progress and profiles."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from threading import Event
from typing import NamedTuple, TypeVar

from orca.monitor.background import beside
from orca.monitor.stopping import StopPoint

# Phases of a step. Higher is further in the step: among stuck ranks the lowest holds up the others.
PHASES = ("start", "data", "forward", "backward", "optimizer", "evaluate", "checkpoint", "storage", "wait")
START, DATA, FORWARD, BACKWARD, OPTIMIZER, EVALUATE, CHECKPOINT, STORAGE, WAIT = range(len(PHASES))
# What a rank does without the others; a backward pass may contain their sums.
BUSY = {DATA, FORWARD, OPTIMIZER}
SIGN_EVERY, SAY_EVERY = 0.5, 60.0  # seconds between signs, and between log records, of a rank that waits for storage

logger = logging.getLogger(__name__)
T = TypeVar("T")
_current: ContextVar[Heartbeat | None] = ContextVar("heartbeat", default=None)


class Beat(NamedTuple):
    """The place where a rank is; `rows` are those of all ranks that this epoch has seen in so many `seconds`.

    `busy` are the seconds of training that it has worked itself.
    """

    rank: int
    epoch: int = 0
    step: int = 0
    steps: int = 0
    phase: int = START
    progress: int = -1
    loss: float | None = None
    rows: int = 0
    seconds: float = 0.0
    busy: float = 0.0

    @property
    def doing(self) -> str:
        """Return the name of its phase."""
        return PHASES[self.phase] if 0 <= self.phase < len(PHASES) else f"phase {self.phase}"


class EpochEnd(NamedTuple):
    """The results of an epoch over all ranks: `numbers` as "name=value", rows a second of training, and its seconds."""

    epoch: int
    numbers: list[str]
    rows_per_second: float
    seconds: float


class Heartbeat:
    """The place where the training loop is: written by its thread, read by the link's, without locks.

    `profile` holds the seconds spent in each phase while `profiling` is on, and those of communication, which may go
    on beside other phases.
    """

    __slots__ = (
        *("_ends", "_entered", "_epoch_start", "_since", "epoch", "loss", "phase", "position"),
        *("busy", "profile", "progress", "rows", "seconds", "steps", "stop_point"),
    )

    def __init__(self) -> None:
        self.epoch = self.position = self.steps = self.progress = self.rows = 0
        self.phase = START
        self.loss: float | None = None
        self.profile = dict.fromkeys((*PHASES, "communication"), 0.0)
        self.seconds = self.busy = self._since = self._epoch_start = 0.0
        self._entered = time.perf_counter()
        self.stop_point = StopPoint()
        self._ends: deque[EpochEnd] = deque(maxlen=1000)  # nobody may take them

    def at(self, phase: int) -> None:
        """Enter a phase, also the same one again: each call counts as progress."""
        now = time.perf_counter()
        if self.phase in BUSY:
            self.busy += now - self._entered
        self._entered = now
        if self._since:
            self.profile[PHASES[self.phase]] += now - self._since
            self._since = now
        self.phase = phase
        self.progress += 1

    def step(self, epoch: int, step: int, steps: int, loss: float | None = None, rows: int | None = None) -> None:
        """Begin training step `step` of `steps`.

        Args:
            epoch: The epoch, counted from 1.
            step: How many of its steps are done.
            steps: How many it has; 0 where nobody knows.
            loss: The last loss, read with float() only when a beat is sent; None keeps the one before.
            rows: Rows of all ranks that this epoch has seen; None keeps those before, none in a new epoch.
        """
        if rows is not None:
            self.rows = rows
        elif epoch != self.epoch:
            self.rows = 0
        now = time.perf_counter()
        if epoch != self.epoch:
            self._epoch_start = now
        self.seconds = now - self._epoch_start
        self.epoch, self.position, self.steps = epoch, step, steps
        if loss is not None:
            self.loss = loss
        self.progress += 1

    def end_epoch(self, end: EpochEnd) -> None:
        """Let the driver know the results of an epoch."""
        self._ends.append(end)

    def ended_epochs(self) -> Iterator[EpochEnd]:
        """Yield the results that the driver does not know yet."""
        with suppress(IndexError):
            while True:
                yield self._ends.popleft()

    @property
    def profiling(self) -> bool:
        """Say whether the time in each phase is added up in `profile`."""
        return self._since > 0.0

    @profiling.setter
    def profiling(self, on: bool) -> None:
        self._since = time.perf_counter() if on else 0.0

    @contextmanager
    def current(self) -> Iterator[None]:
        """Let the functions of this module mark this heartbeat, in this thread."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def beat(self, rank: int) -> Beat:
        """Return the beat to send to the driver now."""
        loss = None
        with suppress(TypeError, ValueError, RuntimeError):  # a loss that is no number must not end telemetry
            loss = None if self.loss is None else float(self.loss)
        place = (int(self.epoch), int(self.position), int(self.steps), int(self.phase))
        busy = self.busy + (time.perf_counter() - self._entered if self.phase in BUSY else 0.0)
        return Beat(rank, *place, self.progress, loss, rows=int(self.rows), seconds=self.seconds, busy=busy)


def counted(items: Iterable[T]) -> Iterator[T]:
    """Yield items that are read one by one; each is progress of this rank."""
    heartbeat = _current.get()
    for item in items:
        if heartbeat is not None:
            heartbeat.at(DATA)
        yield item


@contextmanager
def waiting_for_storage(what: str) -> Iterator[None]:
    """Show that this rank waits for storage while the block runs, and that this is no stall.

    How far a write is only the storage's client knows, which ends one that hangs by a timeout of its own: ending the
    rank would cut off an upload that is merely slow.
    """
    heartbeat = _current.get()
    if heartbeat is None:
        yield
        return
    phase = heartbeat.phase
    heartbeat.at(STORAGE)
    try:
        with beside(partial(_give_signs, heartbeat, what), "orca-storage"):
            yield
    finally:
        heartbeat.at(phase)


def _give_signs(heartbeat: Heartbeat, what: str, over: Event) -> None:
    start = last_word = time.monotonic()
    while not over.wait(SIGN_EVERY):
        heartbeat.progress += 1
        now = time.monotonic()
        if now - last_word >= SAY_EVERY:
            last_word = now
            logger.warning("waiting for storage for %.0f s: %s", now - start, what)
