"""Errors: every exception Orca raises. Each is picklable and says what is wrong, what we got and what to do."""

from __future__ import annotations


class OrcaError(Exception):
    """Be the root of everything Orca raises by itself."""


class ArgumentError(OrcaError, ValueError, RuntimeError):
    """Say that an argument is wrong; caught as ValueError and as RuntimeError, as the two API families did."""


class DataError(ArgumentError):
    """Say that data does not fit: a missing column, unequal lengths, nulls, ragged rows."""


class TooFewSlots(ArgumentError):
    """Say that the cluster cannot run all workers at the same time."""


class NotSupported(ArgumentError, AttributeError):
    """Say that this kind of Estimator lacks a verb that others have, and what to do instead."""


class NotYet(ArgumentError, NotImplementedError):
    """Say that something is promised but not built yet, and what does the same today."""


class MissingDependency(OrcaError, ImportError):
    """Say which package is missing and the line that installs it."""

    @classmethod
    def of(cls, package: str, extra: str, need: str) -> MissingDependency:
        """Return the error for a missing package, with the install line of the extra that brings it."""
        return cls(f"{need} needs the package {package!r}, which is not installed. Run: pip install 'orca-dl[{extra}]'")


class LossNotFinite(OrcaError, ArithmeticError):
    """Say that the training loss became NaN or infinite, and at which step."""


class CallbackFailed(OrcaError, RuntimeError):
    """Say which callback raised, in which of its hooks."""


class WorkerFailed(OrcaError, RuntimeError):
    """Carry the failure of one worker to the caller: its rank, its host and what it said.

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
    """Say that a worker's process ended without a word: killed, out of memory, or its node is gone."""

    verb = "was lost"


class WorkerStalled(WorkerFailed):
    """Say that a worker made no progress for longer than the stall limit; carries its stack."""

    verb = "stalled"
