"""Errors: every exception Orca raises. Each is picklable and names the problem, the value we got and the remedy."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import Any


class OrcaError(Exception):
    """The root of everything Orca raises by itself."""


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

    Args:
        rank: The rank that failed first.
        host: The host it ran on.
        reason: One line: the exception's type and text, or how the process ended.
        remote_traceback: The traceback (or the stack of a stalled worker) as text; "" when there is none.
    """

    verb = "failed"

    def __init__(self, rank: int, host: str, reason: str, remote_traceback: str = "") -> None:
        super().__init__(rank, host, reason, remote_traceback)
        self.rank, self.host, self.reason, self.remote_traceback = rank, host, reason, remote_traceback

    def __str__(self) -> str:
        text = f"rank {self.rank} on {self.host} {self.verb}: {self.reason}"
        return f"{text}\n\n{self.remote_traceback.rstrip()}" if self.remote_traceback else text


class WorkerLost(WorkerFailed):
    """A worker whose process ended without a word: killed, out of memory, or its node is gone."""

    verb = "was lost"


class WorkerStalled(WorkerFailed):
    """A worker that made no progress for longer than the stall limit; carries its stack."""

    verb = "stalled"


def near(word: Any, words: Iterable[Any]) -> str:
    """Return the known word that looks most like this one, as a question; "" where none does."""
    close = difflib.get_close_matches(str(word), [str(each) for each in words], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
