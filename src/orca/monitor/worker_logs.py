"""Worker logs: the output and log records of ranks, shown on the driver. Owns how lines are captured, tagged and shown.

On a rank, `speaking` takes over Python's sys.stdout and sys.stderr and hears the root logger while a job runs. Each
line goes to the driver over the link and nowhere else: an engine that forwards its workers' output would show it twice.
Output of C code, to the file descriptors 1 and 2, is left alone and stays on the worker.

On the driver, an `Echo` shows the lines and moves the progress bar, in a thread of its own: a terminal may be stopped
and a log handler slow, and the hub must wait for neither.
"""

from __future__ import annotations

import io
import logging
import queue
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import BinaryIO, TextIO, cast

from orca.monitor.backlog import Backlog, ends_within
from orca.monitor.heartbeat import Beat, EpochEnd
from orca.monitor.link import Link
from orca.monitor.progress import Progress
from orca.monitor.protocol import LINE_LIMIT, Log

HELD = 20  # lines of progress bars that the cursor may go back to
ECHO_BACKLOG = 64 << 20  # characters that wait on the driver above which lines are dropped
ECHO_WITHIN = 10.0  # seconds in which at least one more line must be shown at the end of a run
BATCH = 500  # lines shown before the bar is drawn again
_MOVES = re.compile(r"(\n|\r|\x1b\[A)")

logger = logging.getLogger(__name__)
worker_logger = logging.getLogger("orca.worker")


# On a rank.


@contextmanager
def speaking(link: Link, level: int, to_driver: bool) -> Iterator[None]:
    """Send this process's output, and its log records at the level or above, to the driver while the block runs.

    The level of the root logger is set in any case and put back afterwards. Streams are left alone where the driver
    does not want them or cannot be reached, and on a thread: there they belong to all of the process.
    """
    root = logging.getLogger()
    level_before = root.level
    root.setLevel(level)
    try:
        if to_driver and link.connected and threading.current_thread() is threading.main_thread():
            with _captured(link, level):
                yield
        else:
            yield
    finally:
        root.setLevel(level_before)


@contextmanager
def _captured(link: Link, level: int) -> Iterator[None]:
    handler, streams = RecordHandler(link, level), (sys.stdout, sys.stderr)
    logging.getLogger().addHandler(handler)
    for tap, stream in zip(_taps, streams, strict=True):
        tap.own, tap.link, tap.lines = stream, link, Lines()
    sys.stdout, sys.stderr = (cast(TextIO, tap) for tap in _taps)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        logging.getLogger().removeHandler(handler)
        for tap in _taps:
            tap.finish()


class Lines:
    """Pieces of text that become lines; of a progress bar only the last state is left.

    A carriage return begins a line anew, and a cursor that goes up continues in the line before. The line of a bar is
    held back until something else is written, as the cursor may return to it.
    """

    def __init__(self) -> None:
        self._waiting_lines: list[str] = []
        self._begin("")

    def feed(self, text: str) -> list[str]:
        """Take a piece of text; return the lines that are complete now."""
        lines: list[str] = []
        for piece in _MOVES.split(text):
            if piece == "\n":
                lines += self._end()
            elif piece == "\r":
                self._returned = True
            elif piece == "\x1b[A":
                self._begin(self._waiting_lines.pop() if self._waiting_lines else "", is_bar=True)
            elif piece:
                if self._returned:
                    self._begin("", is_bar=self._is_bar or bool(self._line.strip()))
                self._line += piece[: LINE_LIMIT - len(self._line)]
                self._length += len(piece)
        return lines

    def rest(self) -> list[str]:
        """Return the lines that were held back, and the last one without an end."""
        return [*self._waiting_lines, *([self._cut()] if self._line.strip() else [])]

    def _begin(self, line: str, is_bar: bool = False) -> None:
        self._line, self._length, self._returned, self._is_bar = line, len(line), False, is_bar

    def _end(self) -> list[str]:
        keep = HELD if self._is_bar or (self._waiting_lines and not self._line) else 0
        self._waiting_lines.append(self._cut())
        self._begin("")
        ready = max(0, len(self._waiting_lines) - keep)
        lines, self._waiting_lines = self._waiting_lines[:ready], self._waiting_lines[ready:]
        return lines

    def _cut(self) -> str:
        more = self._length - len(self._line)
        return f"{self._line}... ({more} more characters)" if more else self._line


class Tap(io.TextIOBase):
    """A stand-in for a standard stream: its lines go to the driver while a job runs, else to the stream itself.

    There is one for each stream in a process, whatever the number of jobs: a log handler that was made in one job
    keeps it and speaks in the next. In a forked child the link is not connected.
    """

    encoding = "utf-8"  # any text can be written in it

    def __init__(self, name: str, own: TextIO | None) -> None:
        self.name, self.own, self.lines = name, own, Lines()
        self.link: Link | None = None
        self._lock = threading.RLock()  # a signal handler may print while its thread does

    def write(self, text: str) -> int:
        """Write to the driver, or to the worker's own stream."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if (link := self.link) is not None and link.connected:
            with self._lock:
                for line in self.lines.feed(text):
                    link.log(line, self.name)
        elif self.own is not None:
            self.own.write(text)
        return len(text)

    def flush(self) -> None:
        """Wait a moment until the text is on its way."""
        if (link := self.link) is not None and link.connected:
            link.flush()
        elif self.own is not None:
            self.own.flush()

    def finish(self) -> None:
        """Send the line that was begun and never ended, and let go of the link."""
        link, self.link = self.link, None
        if link is not None:
            with self._lock:
                for line in self.lines.rest():
                    link.log(line, self.name)

    def close(self) -> None:
        """Do nothing: the stream belongs to the process."""

    def writable(self) -> bool:
        """Say yes."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the stream itself, for child processes."""
        if self.own is None:
            raise OSError("this process has no such stream")
        return self.own.fileno()

    @property
    def buffer(self) -> BinaryIO:
        """Return the bytes of the stream itself, which stay on the worker."""
        return cast(TextIO, self.own).buffer


_taps = (Tap("stdout", sys.__stdout__), Tap("stderr", sys.__stderr__))


class RecordHandler(logging.Handler):
    """A log handler that sends records to the driver."""

    def __init__(self, link: Link, level: int) -> None:
        super().__init__(level)
        self.link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Send one, with its traceback where it has one."""
        try:
            if self.link.connected:
                self.link.log(self.format(record), str(record.name), max(int(record.levelno), 1))
            elif logging.lastResort and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)  # as in a process that nobody configured
        except Exception:
            self.handleError(record)


# On the driver.


class Echo:
    """The output and the progress of ranks, shown on the driver.

    Printed lines appear on sys.stdout and sys.stderr as "[rank 1] text". Log records go through the logger
    "orca.worker", with the rank and the name of the worker's logger as attributes `rank` and `origin` of the record, so
    that the program's own logging configuration decides. Leaving waits until all is shown.

    Args:
        progress: The bar, which beats move and lines must not tear.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._items: queue.SimpleQueue[tuple[int, Log | Beat | EpochEnd] | None] = queue.SimpleQueue()
        self._backlog = Backlog(ECHO_BACKLOG)
        self._failed = False

    def __enter__(self) -> Echo:
        self._thread = threading.Thread(target=self._run, name="orca-echo", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._put_gap()
        self._items.put(None)
        self._backlog.outlast(partial(ends_within, self._thread), ECHO_WITHIN)

    def beat(self, beat: Beat) -> None:
        """Take a beat, without waiting."""
        self._items.put((beat.rank, beat))

    def epoch(self, rank: int, end: EpochEnd) -> None:
        """Take the results of an epoch, without waiting."""
        self._items.put((rank, end))

    def line(self, rank: int, line: Log) -> None:
        """Take a line, without waiting; drop it where too many wait to be shown."""
        if self._backlog.has_room():
            self._put_gap()
            self._put(rank, line)

    def _put(self, rank: int, line: Log) -> None:
        self._backlog.inflow += len(line.text) + 1
        self._items.put((rank, line))

    def _put_gap(self) -> None:
        if gap := self._backlog.gap():
            self._put(-1, Log(f"({gap} lines of the workers are missing here: the output could not keep up)", "stderr"))

    def _run(self) -> None:
        is_last = False
        while not is_last:
            items = [self._items.get()]
            while len(items) < BATCH and not self._items.empty():
                items.append(self._items.get())
            is_last = items[-1] is None
            lines = [(item[0], item[1]) for item in items if item and isinstance(item[1], Log)]
            try:
                self._show(lines)
                for item in items:
                    if item and isinstance(item[1], Beat):
                        self.progress.beat(item[1])
                    elif item and isinstance(item[1], EpochEnd) and item[0] == 0:
                        self.progress.end_epoch(item[1])
            except Exception:  # a closed stream must not end the run
                if not self._failed:
                    self._failed = True
                    logger.exception("what the workers say cannot be shown")
            self._backlog.outflow += sum(len(line.text) + 1 for _, line in lines)

    def _show(self, lines: list[tuple[int, Log]]) -> None:
        if not lines:
            return
        with self.progress.aside():
            for rank, line in lines:
                if line.level:
                    _record(rank, line)
                else:
                    text = f"[rank {rank}] {line.text}".rstrip() if rank >= 0 else line.text
                    _write(sys.stderr if line.origin == "stderr" else sys.stdout, text + "\n")
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, ValueError):  # none, or closed
                    stream.flush()


def _record(rank: int, line: Log) -> None:
    text, extra = f"[rank {rank}] {line.origin}: {line.text}", {"rank": rank, "origin": line.origin}
    if worker_logger.isEnabledFor(line.level):
        worker_logger.handle(
            worker_logger.makeRecord(worker_logger.name, line.level, "", 0, text, (), None, extra=extra)
        )


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:  # a terminal that does not know every character
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
