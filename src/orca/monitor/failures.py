"""Failures: how ranks fail, and which failure explains the others. Owns the order in which they count."""

from __future__ import annotations

from dataclasses import dataclass

from orca.errors import WorkerFailed, WorkerLost, WorkerStalled

LOST_GRACE = 0.5  # seconds after a loss in which a real error of another rank may still arrive
LAST_GRACE = 2.0  # seconds after the first sign of trouble in which a primary failure is named in any case


@dataclass(frozen=True)
class Failure:
    """The failure of one rank.

    Args:
        rank: The rank.
        host: The host it ran on.
        reason: The exception's type and text, or how the process ended.
        traceback: Its traceback, or the stack of a stalled rank; "" when there is none.
        secondary: Whether it is a consequence of another rank's failure, such as a closed connection.
        kind: "error" (it raised), "lost" (its process is gone) or "stalled" (it made no progress).
    """

    rank: int
    host: str
    reason: str
    traceback: str = ""
    secondary: bool = False
    kind: str = "error"

    def error(self) -> WorkerFailed:
        """Return the exception to raise for it."""
        kind = {"lost": WorkerLost, "stalled": WorkerStalled}.get(self.kind, WorkerFailed)
        return kind(self.rank, self.host, self.reason, self.traceback)


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
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
