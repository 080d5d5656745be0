"""Progress: one bar for all ranks, on the driver. Silent when the output is not a terminal."""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import Any

from orca.core.pulse import Beat

logger = logging.getLogger(__name__)


class Progress:
    """Turn the beats of rank 0 into a tqdm bar an epoch."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.bar: Any = None
        self.epoch = -1
        self.lock = threading.Lock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self.lock:
            self._end(done=error is None)
            self.enabled = False

    def beat(self, beat: Beat) -> None:
        """Move the bar to where rank 0 is."""
        if not self.enabled or beat.rank != 0 or beat.steps < 1:
            return
        with self.lock:
            if beat.epoch != self.epoch:
                self._end(done=True)
                self._begin(beat)
            self.bar.n = min(beat.step, beat.steps)
            if beat.loss is not None:
                self.bar.set_postfix(loss=f"{beat.loss:.4f}", refresh=False)
            self.bar.refresh()

    def _begin(self, beat: Beat) -> None:
        from tqdm.auto import tqdm

        self.epoch = beat.epoch
        # tqdm's disable=None is silent unless the output is a terminal; a notebook's is one for it.
        quiet = None if "ipykernel" not in sys.modules else False
        self.bar = tqdm(total=beat.steps, desc=f"epoch {beat.epoch}", unit="step", disable=quiet)

    def _end(self, done: bool) -> None:
        if self.bar is not None:
            if done:
                self.bar.n = self.bar.total
                self.bar.refresh()
            self.bar.close()
            self.bar = None
