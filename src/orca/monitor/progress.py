"""Progress: one bar for all ranks, on the driver. Owns its numbers; silent when the output is not a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orca.monitor.heartbeat import Beat


class Progress:
    """A tqdm bar an epoch, from the beats of rank 0: steps, time left, loss and rows a second of all ranks.

    An epoch of unknown length is a counter. For one thread, and for leaving it when that thread has ended.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.bar: Any = None
        self.epoch = -1

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self.enabled = False

    def beat(self, beat: Beat) -> None:
        """Move the bar to where rank 0 is."""
        if not self.enabled or beat.rank != 0 or beat.epoch < 1:
            return
        if beat.epoch != self.epoch:
            self._end(full=True)
            self._begin(beat)
        if self.enabled:
            self._move(beat)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bar away while something else is written."""
        if self.bar is None:
            yield
        else:
            with type(self.bar).external_write_mode(file=sys.stderr):
                yield

    def _begin(self, beat: Beat) -> None:
        from tqdm.auto import tqdm

        self.epoch = beat.epoch
        # tqdm's disable=None is silent unless the output is a terminal; a notebook's is one for it.
        quiet = None if "ipykernel" not in sys.modules else False
        self.bar = tqdm(
            total=beat.steps or None,
            initial=beat.step,  # its clock starts now, so these steps tell nothing about how fast it goes
            desc=f"epoch {beat.epoch}",
            unit="step",
            disable=quiet,
            mininterval=0.0,
            miniters=1,  # beats are rare: each is shown
            **_shape(),
        )
        if self.bar.disable:
            self.bar, self.enabled = None, False

    def _move(self, beat: Beat) -> None:
        if beat.steps:
            self.bar.total = beat.steps
        self.bar.update(beat.step - self.bar.n)
        numbers = {} if beat.loss is None else {"loss": f"{beat.loss:.4f}"}
        if speed := self._rows_a_second(beat):
            numbers["rows/s"] = self.bar.format_sizeof(speed)
        self.bar.set_postfix(numbers)

    def _rows_a_second(self, beat: Beat) -> float:
        """Return tqdm's steps a second times the rows of a step."""
        state = self.bar.format_dict
        steps = beat.step - state["initial"]
        rate = state["rate"] or (steps / state["elapsed"] if state["elapsed"] else 0.0)
        return rate * beat.rows / beat.step if beat.step else 0.0

    def _end(self, full: bool = False) -> None:
        """Close the bar; one whose epoch was done in full has perhaps not heard of its last steps."""
        if self.bar is not None:
            if full and self.bar.total:
                self.bar.update(self.bar.total - self.bar.n)
            # The time after the last step, such as bringing the model home, is not time of the epoch.
            later = time.time() - self.bar.last_print_t
            self.bar.start_t += later
            self.bar.last_print_t += later
            self.bar.close()
            self.bar = None


def _shape() -> dict[str, Any]:
    """Return tqdm's options for the terminal's size: it shows nothing where that is unknown, as in a container."""
    try:
        columns, lines = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # no terminal
        return {}
    return {"dynamic_ncols": True} if columns and lines else {"ncols": 80, "nrows": 24}
