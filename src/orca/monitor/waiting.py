"""Waiting: ranks that have not started yet. Owns when the driver says what it waits for, and how long it waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from orca.monitor.hub import Hub

if TYPE_CHECKING:
    from typing_extensions import Self  # Python < 3.11 has no typing.Self.

FIRST_WORD = 30.0  # seconds until the driver says what it waits for; the next words come after twice the time

logger = logging.getLogger(__name__)


class Waiting:
    """A watch over the start of a run: it says what is waited for, and ends the wait where there is a limit.

    Args:
        hub: The hub of the run.
        limit: Seconds that ranks may take to report; <= 0 for no limit.
        room: Says in words what room the cluster shows ("Spark shows 0 of 4 slots free"); "" where nothing is known.
    """

    def __init__(self, hub: Hub, limit: float, room: Callable[[], str]) -> None:
        self.hub, self.limit, self.room = hub, limit, room
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, name="orca-waiting", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(1.0)  # it may be asking a cluster that does not answer

    def _watch(self) -> None:
        began, word = time.monotonic(), FIRST_WORD
        last = began + self.limit if self.limit > 0 else float("inf")
        while self.hub.absent and not self.hub.failed.is_set():
            if self._over.wait(max(0.0, min(began + word, last, time.monotonic() + 1.0) - time.monotonic())):
                return
            now = time.monotonic()
            if now >= last and self.hub.absent:
                self.hub.give_up(f"{self._words(now - began)} The limit is start_timeout={self.limit:g}.")
                return
            if now >= began + word and self.hub.absent:
                word *= 2
                more = "" if self.limit > 0 else " start_timeout= of the Estimator sets a limit."
                logger.warning("%s Waiting on.%s", self._words(now - began), more)

    def _words(self, seconds: float) -> str:
        size, here = self.hub.size, self.hub.size - len(self.hub.absent)
        try:
            room = self.room()
        except Exception as error:  # a cluster that does not answer must not end the watch
            room = f"the cluster does not say what is free ({type(error).__name__})"
        started = f"{here} of {size} ranks have started and reached the driver in {seconds:.0f} s"
        return f"{started}{'; ' + room if room else ''}."
