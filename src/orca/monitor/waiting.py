"""Waiting: ranks that have not started yet. Owns the pace of lines about a wait, and how long the driver waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from threading import Event

from orca.monitor.background import beside
from orca.monitor.hub import Hub

FIRST_WORD = 30.0  # seconds until the driver says why it waits; the next line comes after twice the time

logger = logging.getLogger(__name__)


class Pace:
    """The pace of lines about a wait: one after 30 s, and then each time that the wait has doubled."""

    def __init__(self) -> None:
        self._began, self._word = time.monotonic(), FIRST_WORD

    @property
    def waited(self) -> float:
        """Return the seconds since the wait began."""
        return time.monotonic() - self._began

    @property
    def next(self) -> float:
        """Return the seconds until it is time for words."""
        return self._word - self.waited

    def is_due(self) -> bool:
        """Say whether it is time for words, and count them as said."""
        due = self.waited >= self._word
        if due:
            self._word *= 2
        return due


def waiting(hub: Hub, limit: float, room: Callable[[], str]) -> AbstractContextManager[None]:
    """Watch over the start of a run: say why the driver waits, and end the wait at the limit.

    Args:
        hub: The hub of the run.
        limit: Seconds that ranks may take to report; <= 0 for no limit.
        room: Describes the free room of the cluster ("Spark shows 0 of 4 slots free"); "" where nothing is known.
    """
    # At its end the watch may be asking a cluster that does not answer.
    return beside(partial(_watch, hub, limit, room), "orca-waiting", patience=1.0)


def _watch(hub: Hub, limit: float, room: Callable[[], str], over: Event) -> None:
    pace, end = Pace(), limit if limit > 0 else float("inf")
    while hub.absent and not hub.failed.is_set():
        if over.wait(max(0.0, min(pace.next, end - pace.waited, 1.0))):
            return
        if pace.waited >= end and hub.absent:
            hub.give_up(f"{_words(hub, room, pace.waited)} The limit is start_timeout={limit:g}.")
            return
        if hub.absent and pace.is_due():
            more = "" if limit > 0 else " start_timeout= of the Estimator sets a limit."
            logger.warning("%s Waiting on.%s", _words(hub, room, pace.waited), more)


def _words(hub: Hub, room: Callable[[], str], seconds: float) -> str:
    try:
        free = room()
    except Exception as error:  # a cluster that does not answer must not end the watch
        free = f"the cluster does not say what is free ({type(error).__name__})"
    words = f"{hub.size - len(hub.absent)} of {hub.size} ranks have started and reached the driver in {seconds:.0f} s"
    return f"{words}{'; ' + free if free else ''}."
