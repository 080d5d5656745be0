"""Failures: how ranks fail, and which failure explains the others. Owns the order in which they count."""

from __future__ import annotations

import json
import re
import traceback
from dataclasses import dataclass

from orca.errors import (
    RECORD,
    DataError,
    OrcaError,
    WorkerFailed,
    WorkerLost,
    WorkerPreempted,
    WorkerStalled,
    code_of,
    word_of,
    worker_failed,
)
from orca.monitor.tracebacks import digest, shortened
from orca.monitor.verbosity import is_debug

LOST_GRACE = 0.5  # seconds after a loss in which a real error of another rank may still arrive
LAST_GRACE = 2.0  # seconds after the first sign of trouble in which a primary failure is named in any case
TRACE_LIMIT = 64 << 10  # characters of a traceback that travels in another error's text


@dataclass(frozen=True)
class Failure:
    """The failure of one rank.

    Args:
        rank: The rank.
        host: The host it ran on.
        reason: The exception's type and text, or how the process ended.
        traceback: Its traceback, or the stack of a stalled rank; "" when there is none.
        secondary: Whether it is a consequence of another rank's failure, such as a closed connection.
        kind: "error" (it raised), "lost" (its process is gone), "preempted" (it had to end) or "stalled" (it made no
            progress).
        word: The class of an error of Orca's own, such as "DataError"; "" for any other.
        code: Its code, such as "null-values"; "" for any other.
    """

    rank: int
    host: str
    reason: str
    traceback: str = ""
    secondary: bool = False
    kind: str = "error"
    word: str = ""
    code: str = ""

    def error(self) -> WorkerFailed:
        """Return the exception to raise for it."""
        shown = shortened(self.reason), digest(self.traceback, own=bool(self.word))
        args = self.rank, self.host, self.reason, self.traceback, shown
        if self.kind == "error":
            word, code = ("", "") if self.secondary else (self.word, self.code)
            return worker_failed(word, *args, code=code)
        return {"lost": WorkerLost, "preempted": WorkerPreempted, "stalled": WorkerStalled}[self.kind](*args)


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
    if isinstance(error, BaseExceptionGroup):
        text += ": " + "; ".join(map(reason_of, error.exceptions))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def trace_of(error: BaseException, limit: int) -> str:
    """Return an exception's traceback, without its middle where it is longer: frames come before a long text."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    text = "".join(line for line in lines if not line.startswith(RECORD))
    return text if len(text) <= limit else f"{text[: limit // 2]}\n...\n{text[-limit // 2 :]}"


# Failures that reach the driver in the text of an exception of Spark's: those of workers without a link to it.

_REPORT = "orca report: "  # before the JSON


def carrier_of(rank: int, host: str, error: BaseException, secondary: bool = False) -> OrcaError:
    """Return the exception whose text brings an error of a worker to the driver."""
    trace = trace_of(error, TRACE_LIMIT)
    report = json.dumps([rank, host, reason_of(error), trace, secondary, word_of(error), code_of(error)])
    return OrcaError(f"orca rank {rank} on {host} failed: {reason_of(error)}\n{_REPORT}{report}", code="worker-failed")


def carried_by(text: str) -> Failure | None:
    """Return the failure that such an exception tells of, in a text around it; None if it tells of none."""
    match = re.search(r"orca rank (\d+) on (\S+) failed: (.*)", text)
    if match is None:
        return None
    try:
        rank, host, *texts, secondary, word, code = json.JSONDecoder().raw_decode(text.partition(_REPORT)[2])[0]
        reason, trace = texts
        return Failure(int(rank), str(host), str(reason), str(trace), bool(secondary), word=str(word), code=str(code))
    except ValueError:  # a worker that its driver heard, or a text that was cut off
        return Failure(int(match[1]), match[2], match[3], text)


def made_by_user(text: str) -> DataError | None:
    """Return, in short, the error of Python code of the user's that Spark ran to compute rows; None for any other."""
    mark, head = "An exception was thrown from the Python worker", "Traceback (most recent call last):"
    trace = text.partition(mark)[2].partition(head)[2]
    if not trace:
        return None
    reason = re.split(r"^ .*\n", trace, flags=re.MULTILINE)[-1].strip()  # what comes after the last frame
    return DataError(
        f"Spark cannot compute the rows of this data: {shortened(reason)}\n\n{digest(head + trace)}",
        code="data-unreadable",
    )


def in_short(error: Exception) -> Exception:
    """Return an error of a task of Spark's, which shows its traceback several times, as one without a traceback."""
    if is_debug():
        return error
    if isinstance(error, OrcaError):
        return error.with_traceback(None)
    return OrcaError(f"{shortened(reason_of(error))}\n\n{digest(trace_of(error, TRACE_LIMIT))}", code="worker-failed")
