"""Errors: every exception Orca raises. Each is picklable and names the problem, the value we got and the remedy.

Programs and tests recognise an error by its class and its `code`, never by its text: docs/errors.md lists the codes.
"""

from __future__ import annotations

import difflib
import inspect
import json
import sys
from collections.abc import Iterable
from typing import Any

RECORD = "orca error: "  # before the JSON of an error that travels in a text


class OrcaError(Exception):
    """The root of everything Orca raises by itself.

    Args:
        args: The text.
        code: The name of the problem; that of the class unless given.

    Attributes:
        code: The name of the problem, which stays the same when the text changes, such as "missing-label-cols".
        rank: The rank of the worker that raised it; None if it was raised on the driver.
        host: The host of that worker; None on the driver.

    Example:
        >>> try:
        ...     raise DataError("fit needs label_cols", code="missing-label-cols")
        ... except OrcaError as error:
        ...     print(error.code)
        missing-label-cols
    """

    default_code = "orca-error"
    rank: int | None = None
    host: str | None = None

    def __init__(self, *args: Any, code: str = "") -> None:
        super().__init__(*args)
        self.code = code or self.default_code
        if "pyspark.worker" in sys.modules:  # Spark brings the errors of its Python workers to the driver as text
            self.add_note(RECORD + json.dumps([type(self).__name__, self.code, *map(str, args[:1])]))


class ArgumentError(OrcaError, ValueError, RuntimeError):
    """An argument that is wrong; caught as ValueError and as RuntimeError, as the two API families did."""

    default_code = "bad-argument"


class SignatureError(ArgumentError, TypeError):
    """A call with an argument that it does not have, or without one that it needs; also caught as TypeError."""

    default_code = "bad-call"


class DataError(ArgumentError):
    """Data that does not fit: a missing column, unequal lengths, nulls, ragged rows."""

    default_code = "bad-data"


class KnownArguments:
    """A class whose unknown keyword arguments are refused with the names of those that there are."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the object, if it knows all its keyword arguments."""
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        names = [each.name for each in parameters]
        unknown = [name for name in kwargs if name not in names]
        if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters):
            raise ArgumentError(
                f"{cls.__name__} has no argument {', '.join(map(repr, unknown))}; it has {', '.join(names) or 'none'}.",
                code="unknown-option",
            )
        return super().__new__(cls)


class TooFewSlots(ArgumentError):
    """A cluster that cannot run all workers at the same time."""

    default_code = "too-few-slots"


class NotSupported(ArgumentError, AttributeError):
    """A verb that this kind of Estimator lacks and others have; names the way to go instead."""

    default_code = "not-supported"


class NotYet(ArgumentError, NotImplementedError):
    """A feature that is promised but not built yet; names the way to do the same today."""

    default_code = "not-built-yet"


class MissingDependency(OrcaError, ImportError):
    """A package that is missing, with the line that installs it."""

    default_code = "missing-package"

    @classmethod
    def of(cls, package: str, extra: str, need: str) -> MissingDependency:
        """Return the error for a missing package, with the install line of the extra that brings it."""
        return cls(f"{need} needs the package {package!r}, which is not installed. Run: pip install 'orca-dl[{extra}]'")


class LossNotFinite(OrcaError, ArithmeticError):
    """A training loss that became NaN or infinite; says at which step."""

    default_code = "loss-not-finite"


class CallbackFailed(OrcaError, RuntimeError):
    """A callback that raised; says which, in which of its hooks."""

    default_code = "callback-failed"


class WorkerFailed(OrcaError, RuntimeError):
    """The failure of one worker, brought to the caller: its rank, its host and its words.

    An error of Orca's own that a worker raised, such as a DataError, is raised as WorkerFailed and as that class, so
    that `except DataError` catches it here as well; it has the code of that error.

    Args:
        rank: The rank that failed first.
        host: The host it ran on.
        reason: The exception's type and text, or how the process ended.
        remote_traceback: The traceback (or the stack of a stalled worker) as text; "" when there is none.
        shown: What the error shows: reason and traceback in short; both in full unless given.
        code: The code of the error of Orca's own that the worker raised.
    """

    default_code = "worker-failed"
    verb = "failed"
    word = ""

    rank: int
    host: str

    def __init__(
        self,
        rank: int,
        host: str,
        reason: str,
        remote_traceback: str = "",
        shown: tuple[str, str] | None = None,
        code: str = "",
    ) -> None:
        super().__init__(rank, host, reason, remote_traceback, shown, code=code)
        self.rank, self.host, self.reason, self.remote_traceback = rank, host, reason, remote_traceback
        self.shown = (reason, remote_traceback) if shown is None else shown

    def __str__(self) -> str:
        reason, details = self.shown
        reason = reason.removeprefix(f"{self.word}: ")  # the traceback begins with it
        text = f"rank {self.rank} on {self.host} {self.verb}: {reason}"
        return f"{text}\n\n{details.rstrip()}" if details else text

    def __reduce__(self) -> tuple[Any, ...]:
        make, args = (worker_failed, (self.word, *self.args)) if self.word else (type(self), self.args)
        return make, args, vars(self)


class WorkerLost(WorkerFailed):
    """A worker whose process ended without a word: killed, out of memory, or its node is gone."""

    default_code = "worker-lost"
    verb = "was lost"


class WorkerPreempted(WorkerLost):
    """A worker that had to end: it got SIGTERM, or its cluster takes its machine away."""

    default_code = "worker-preempted"
    verb = "was preempted"


class WorkerStalled(WorkerFailed):
    """A worker that made no progress for longer than the stall limit; carries its stack."""

    default_code = "worker-stalled"
    verb = "stalled"


_KINDS: dict[str, type[OrcaError]] = {
    kind.__name__: kind
    for kind in (
        *(ArgumentError, DataError, TooFewSlots, NotSupported, NotYet),
        *(MissingDependency, LossNotFinite, CallbackFailed),
    )
}
_OWN = {
    name: type(name, (WorkerFailed, kind), {"__doc__": kind.__doc__, "word": name}) for name, kind in _KINDS.items()
}


def word_of(error: BaseException) -> str:
    """Return the name of the class of ours that an error is of; "" for any other, and for one of a worker."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind in _KINDS.values()), "")


def worker_failed(word: str, *args: Any, code: str = "") -> WorkerFailed:
    """Return the failure of a worker, also as the error of ours that a word names, with its code."""
    return _OWN.get(word, WorkerFailed)(*args, code=code)


def recorded_in(text: str) -> OrcaError | None:
    """Return the error of ours that a task of Spark raised, from the text of Spark's error; None if it has none."""
    try:
        (word, code, *message), _ = json.JSONDecoder().raw_decode(text.partition(RECORD)[2])
    except ValueError:
        return None
    return _KINDS.get(word, OrcaError)(*message, code=code)


def code_of(error: BaseException) -> str:
    """Return the code of an error of ours; "" for any other."""
    return error.code if isinstance(error, OrcaError) else ""


def near(word: Any, words: Iterable[Any]) -> str:
    """Return the known word that looks most like this one, as a question; "" where none does."""
    close = difflib.get_close_matches(str(word), [str(each) for each in words], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
