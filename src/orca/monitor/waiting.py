"""Waiting: ranks that have not started yet. Owns the pace of lines about a wait, and how long the driver waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

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


class Waiting:
    """A watch over the start of a run: it says why the driver waits, and ends the wait at the limit.

    Args:
        hub: The hub of the run.
        limit: Seconds that ranks may take to report; <= 0 for no limit.
        room: Describes the free room of the cluster ("Spark shows 0 of 4 slots free"); "" where nothing is known.
    """

    def __init__(self, hub: Hub, limit: float, room: Callable[[], str]) -> None:
        self.hub, self.limit, self.room = hub, limit, room
        self._over = threading.Event()

    def __enter__(self) -> Waiting:
        self._thread = threading.Thread(target=self._watch, name="orca-waiting", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(1.0)  # it may be asking a cluster that does not answer

    def _watch(self) -> None:
        pace, limit = Pace(), self.limit if self.limit > 0 else float("inf")
        while self.hub.absent and not self.hub.failed.is_set():
            if self._over.wait(max(0.0, min(pace.next, limit - pace.waited, 1.0))):
                return
            if pace.waited >= limit and self.hub.absent:
                self.hub.give_up(f"{self._words(pace.waited)} The limit is start_timeout={self.limit:g}.")
                return
            if self.hub.absent and pace.is_due():
                more = "" if self.limit > 0 else " start_timeout= of the Estimator sets a limit."
                logger.warning("%s Waiting on.%s", self._words(pace.waited), more)

    def _words(self, seconds: float) -> str:
        try:
            room = self.room()
        except Exception as error:  # a cluster that does not answer must not end the watch
            room = f"the cluster does not say what is free ({type(error).__name__})"
        count = self.hub.size - len(self.hub.absent)
        words = f"{count} of {self.hub.size} ranks have started and reached the driver in {seconds:.0f} s"
        return f"{words}{'; ' + room if room else ''}."
