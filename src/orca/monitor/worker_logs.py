"""Worker logs: what ranks print and log, shown on the driver. Owns how lines are captured, tagged and shown.

On a rank, `speaking` takes over Python's sys.stdout and sys.stderr and hears the root logger while a job runs. Each
line goes to the driver over the link and nowhere else: an engine that forwards its workers' output would show it twice.
What C code writes to the file descriptors 1 and 2 is left alone and stays on the worker.

On the driver, an `Echo` shows the lines and moves the progress bar, in a thread of its own: a terminal may be stopped
and a log handler slow, and the hub must wait for neither.
"""

from __future__ import annotations

import io
import logging
import os
import queue
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import BinaryIO, TextIO, cast

from orca.monitor.heartbeat import Beat
from orca.monitor.link import Link
from orca.monitor.progress import Progress
from orca.monitor.protocol import LINE_LIMIT, Backlog, Log

HELD = 20  # lines of progress bars that the cursor may go back to
ECHO_BACKLOG = 64 << 20  # characters that wait on the driver above which lines are dropped
ECHO_WITHIN = 10.0  # seconds in which at least one more line must be shown at the end of a run
BATCH = 500  # lines shown before the bar is drawn again

logger = logging.getLogger(__name__)
worker_logger = logging.getLogger("orca.worker")


# On a rank.


@contextmanager
def speaking(link: Link, level: int, to_driver: bool) -> Iterator[None]:
    """Send what this process prints, and logs at the level or above, to the driver while the block runs.

    The level of the root logger is set in any case and put back afterwards. Streams are left alone where the driver
    does not want them or cannot be reached, and on a thread: there they belong to all of the process.
    """
    root = logging.getLogger()
    before = root.level
    root.setLevel(level)
    try:
        if to_driver and link.connected and threading.current_thread() is threading.main_thread():
            with _captured(Voice(link), level):
                yield
        else:
            yield
    finally:
        root.setLevel(before)


@contextmanager
def _captured(voice: Voice, level: int) -> Iterator[None]:
    handler, own = RecordHandler(voice, level), (sys.stdout, sys.stderr)
    logging.getLogger().addHandler(handler)
    for tap, stream in zip(_taps, own, strict=True):
        tap.own, tap.voice = stream, voice
    sys.stdout, sys.stderr = (cast(TextIO, tap) for tap in _taps)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = own
        for tap in _taps:
            tap.voice = None
        logging.getLogger().removeHandler(handler)
        voice.finish()


class Voice:
    """The text written to the streams, put together to lines and sent."""

    def __init__(self, link: Link) -> None:
        self.link, self.process = link, os.getpid()
        self._lines = {"stdout": Lines(), "stderr": Lines()}
        self._lock = threading.RLock()  # a signal handler may print while its thread does

    @property
    def here(self) -> bool:
        """Tell whether this is the process that speaks: the link does not live on in a forked child."""
        return self.process == os.getpid()

    def write(self, stream: str, text: str) -> None:
        """Take a piece of text."""
        with self._lock:
            for line in self._lines[stream].feed(text):
                self.link.log(line, stream)

    def finish(self) -> None:
        """Send the lines that were begun and never ended."""
        with self._lock:
            for stream, lines in self._lines.items():
                for line in lines.rest():
                    self.link.log(line, stream)


class Lines:
    """Pieces of text that become lines, as a terminal would show them in the end.

    A carriage return begins a line anew, and a cursor that goes up goes on in the line before: of a progress bar only
    the last state is left. Its line is held back until something else is written, as the cursor may return to it.
    """

    def __init__(self) -> None:
        self._line, self._length = "", 0
        self._returned = self._rewritten = False
        self._held: list[str] = []

    def feed(self, text: str) -> list[str]:
        """Take a piece of text; return the lines that are complete now."""
        done: list[str] = []
        for piece in _MOVES.split(text):
            if piece == "\n":
                done += self._end()
            elif piece == "\r":
                self._returned = True
            elif piece == _UP:
                self._begin(self._held.pop() if self._held else "", rewritten=True)
            elif piece:
                if self._returned:
                    self._begin("", rewritten=self._rewritten or bool(self._line.strip()))
                self._line += piece[: LINE_LIMIT - len(self._line)]
                self._length += len(piece)
        return done

    def rest(self) -> list[str]:
        """Return what is left at the end."""
        left = [*self._held, *([self._cut()] if self._line.strip() else [])]
        self._held = []
        self._begin("")
        return left

    def _begin(self, line: str, rewritten: bool = False) -> None:
        self._line, self._length, self._returned, self._rewritten = line, len(line), False, rewritten

    def _end(self) -> list[str]:
        line, held = self._cut(), self._rewritten or bool(self._held and not self._line)
        self._begin("")
        self._held.append(line)
        ready = len(self._held) - HELD if held else len(self._held)
        done, self._held = self._held[: max(ready, 0)], self._held[max(ready, 0) :]
        return done

    def _cut(self) -> str:
        more = self._length - len(self._line)
        return f"{self._line}... ({more} more characters)" if more else self._line


_UP = "\x1b[A"
_MOVES = re.compile(r"(\n|\r|\x1b\[A)")


class Tap(io.TextIOBase):
    """Stand in for a standard stream: written to a voice while there is one, else to the stream itself.

    There is one for each stream in a process, whatever the number of jobs: a log handler that was made in one job
    keeps it and speaks in the next.
    """

    def __init__(self, name: str, own: TextIO | None) -> None:
        self.name, self.own = name, own
        self.voice: Voice | None = None

    def write(self, text: str) -> int:
        """Write to the driver, or to the worker's own stream."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        voice = self.voice
        if voice is not None and voice.here:
            voice.write(self.name, text)
        elif self.own is not None:
            self.own.write(text)
        return len(text)

    def flush(self) -> None:
        """See that what was written is on its way."""
        voice = self.voice
        if voice is not None and voice.here:
            voice.link.flush()
        elif self.own is not None:
            self.own.flush()

    def close(self) -> None:
        """Stay open: the stream is the process's."""

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

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return what any text can be written in."""
        return "utf-8"


_taps = (Tap("stdout", sys.__stdout__), Tap("stderr", sys.__stderr__))


class RecordHandler(logging.Handler):
    """A log handler that sends records to the driver."""

    def __init__(self, voice: Voice, level: int) -> None:
        super().__init__(level)
        self.voice = voice

    def emit(self, record: logging.LogRecord) -> None:
        """Send one, with its traceback where it has one."""
        try:
            if self.voice.here:
                self.voice.link.log(self.format(record), str(record.name), max(int(record.levelno), 1))
            elif logging.lastResort and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)  # as in a process that nobody configured
        except Exception:
            self.handleError(record)


# On the driver.


class Echo:
    """What ranks say and where they are, shown on the driver.

    What they print appears on sys.stdout and sys.stderr as "[rank 1] text"; what they log goes through the logger
    "orca.worker", with the rank and the name of the worker's logger as attributes `rank` and `origin` of the record,
    so that the program's own logging configuration decides. Leaving waits until all is shown.

    Args:
        progress: Where beats go, and what must not be torn by lines.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._heard: queue.SimpleQueue[tuple[int, Log] | Beat | None] = queue.SimpleQueue()
        self._backlog = Backlog(ECHO_BACKLOG)
        self._failed = False

    def __enter__(self) -> Echo:
        self._thread = threading.Thread(target=self._run, name="orca-echo", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._tell_gap()
        self._heard.put(None)
        moved = -1
        while moved != self._backlog.taken and self._thread.is_alive():
            moved = self._backlog.taken
            self._thread.join(ECHO_WITHIN)

    def beat(self, beat: Beat) -> None:
        """Take a beat, without waiting."""
        self._heard.put(beat)

    def line(self, rank: int, line: Log) -> None:
        """Take a line, without waiting; drop it where too many wait to be shown."""
        if self._backlog.has_room():
            self._tell_gap()
            self._put(rank, line)

    def _put(self, rank: int, line: Log) -> None:
        self._backlog.added += len(line.text) + 1
        self._heard.put((rank, line))

    def _tell_gap(self) -> None:
        if gap := self._backlog.gap():
            self._put(-1, Log(f"({gap} lines of the workers are missing here: the output could not keep up)", "stderr"))

    def _run(self) -> None:
        ended = False
        while not ended:
            heard = [self._heard.get()]
            while len(heard) < BATCH and not self._heard.empty():
                heard.append(self._heard.get())
            ended = heard[-1] is None
            lines = [item for item in heard if isinstance(item, tuple)]
            try:
                self._show(lines)
                for item in heard:
                    if isinstance(item, Beat):
                        self.progress.beat(item)
            except Exception:  # a closed stream must not end the run
                if not self._failed:
                    self._failed = True
                    logger.exception("what the workers say cannot be shown")
            self._backlog.taken += sum(len(line.text) + 1 for _, line in lines)

    def _show(self, lines: list[tuple[int, Log]]) -> None:
        if not lines:
            return
        with self.progress.aside():
            for rank, line in lines:
                tagged = f"[rank {rank}] {line.text}".rstrip() if rank >= 0 else line.text
                if line.level:
                    _record(rank, line)
                else:
                    _write(sys.stderr if line.origin == "stderr" else sys.stdout, tagged + "\n")
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, ValueError):  # none, or closed
                    stream.flush()


def _record(rank: int, line: Log) -> None:
    if worker_logger.isEnabledFor(line.level):
        text, about = f"[rank {rank}] {line.origin}: {line.text}", {"rank": rank, "origin": line.origin}
        worker_logger.handle(
            worker_logger.makeRecord(worker_logger.name, line.level, "", 0, text, (), None, extra=about)
        )


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:  # a terminal that does not know every character
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
