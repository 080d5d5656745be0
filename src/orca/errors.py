"""Errors: every exception Orca raises. Each is picklable and names the problem, the value we got and the remedy."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import Any


class OrcaError(Exception):
    """The root of everything Orca raises by itself.

    Attributes:
        rank: The rank of the worker that raised it; None if it was raised on the driver.
        host: The host of that worker; None on the driver.
    """

    rank: int | None = None
    host: str | None = None


class ArgumentError(OrcaError, ValueError, RuntimeError):
    """An argument that is wrong; caught as ValueError and as RuntimeError, as the two API families did."""


class SignatureError(ArgumentError, TypeError):
    """A call with an argument that it does not have, or without one that it needs; also caught as TypeError."""


class DataError(ArgumentError):
    """Data that does not fit: a missing column, unequal lengths, nulls, ragged rows."""


class KnownArguments:
    """A class whose unknown keyword arguments are refused with the names of those that there are."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the object, if it knows all its keyword arguments."""
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        names = [each.name for each in parameters]
        unknown = [name for name in kwargs if name not in names]
        if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters):
            raise ArgumentError(
                f"{cls.__name__} has no argument {', '.join(map(repr, unknown))}; it has {', '.join(names) or 'none'}."
            )
        return super().__new__(cls)


class TooFewSlots(ArgumentError):
    """A cluster that cannot run all workers at the same time."""


class NotSupported(ArgumentError, AttributeError):
    """A verb that this kind of Estimator lacks and others have; names the way to go instead."""


class NotYet(ArgumentError, NotImplementedError):
    """A feature that is promised but not built yet; names the way to do the same today."""


class MissingDependency(OrcaError, ImportError):
    """A package that is missing, with the line that installs it."""

    @classmethod
    def of(cls, package: str, extra: str, need: str) -> MissingDependency:
        """Return the error for a missing package, with the install line of the extra that brings it."""
        return cls(f"{need} needs the package {package!r}, which is not installed. Run: pip install 'orca-dl[{extra}]'")


class LossNotFinite(OrcaError, ArithmeticError):
    """A training loss that became NaN or infinite; says at which step."""


class CallbackFailed(OrcaError, RuntimeError):
    """A callback that raised; says which, in which of its hooks."""


class WorkerFailed(OrcaError, RuntimeError):
    """The failure of one worker, brought to the caller: its rank, its host and its words.

    An error of Orca's own that a worker raised, such as a DataError, is raised as WorkerFailed and as that class, so
    that `except DataError` catches it here as well.

    Args:
        rank: The rank that failed first.
        host: The host it ran on.
        reason: The exception's type and text, or how the process ended.
        remote_traceback: The traceback (or the stack of a stalled worker) as text; "" when there is none.
        shown: What the error shows: reason and traceback in short; both in full unless given.
    """

    verb = "failed"
    word = ""

    rank: int
    host: str

    def __init__(
        self, rank: int, host: str, reason: str, remote_traceback: str = "", shown: tuple[str, str] | None = None
    ) -> None:
        super().__init__(rank, host, reason, remote_traceback, shown)
        self.rank, self.host, self.reason, self.remote_traceback = rank, host, reason, remote_traceback
        self.shown = (reason, remote_traceback) if shown is None else shown

    def __str__(self) -> str:
        reason, details = self.shown
        reason = reason.removeprefix(f"{self.word}: ")  # the traceback begins with it
        text = f"rank {self.rank} on {self.host} {self.verb}: {reason}"
        return f"{text}\n\n{details.rstrip()}" if details else text

    def __reduce__(self) -> tuple[Any, ...]:
        return (worker_failed, (self.word, *self.args)) if self.word else (type(self), self.args)


class WorkerLost(WorkerFailed):
    """A worker whose process ended without a word: killed, out of memory, or its node is gone."""

    verb = "was lost"


class WorkerPreempted(WorkerLost):
    """A worker that had to end: it got SIGTERM, or its cluster takes its machine away."""

    verb = "was preempted"


class WorkerStalled(WorkerFailed):
    """A worker that made no progress for longer than the stall limit; carries its stack."""

    verb = "stalled"


_OWN = {
    kind.__name__: type(kind.__name__, (WorkerFailed, kind), {"__doc__": kind.__doc__, "word": kind.__name__})
    for kind in (
        *(ArgumentError, DataError, TooFewSlots, NotSupported, NotYet),
        *(MissingDependency, LossNotFinite, CallbackFailed),
    )
}


def word_of(error: BaseException) -> str:
    """Return the name of the class of ours that an error is of; "" for any other, and for one of a worker."""
    return next((kind.__name__ for kind in type(error).__mro__ if globals().get(kind.__name__) is kind
                 and kind.__name__ in _OWN), "")  # fmt: skip


def worker_failed(word: str, *args: Any) -> WorkerFailed:
    """Return the failure of a worker, also as the error of ours that a word names."""
    return _OWN.get(word, WorkerFailed)(*args)


def near(word: Any, words: Iterable[Any]) -> str:
    """Return the known word that looks most like this one, as a question; "" where none does."""
    close = difflib.get_close_matches(str(word), [str(each) for each in words], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
