"""Progress: one bar for all ranks, or a line for each epoch, on the driver. Owns their numbers and their form.

One tqdm bar: rich would be one more dependency and show nothing in the log of a cluster.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orca.monitor.heartbeat import Beat, EpochEnd
from orca.monitor.verbosity import announce, is_informative

# The postfix, with rows a second, stands in the place of tqdm's steps a second: 80 columns do not hold both.
_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_COUNTER = "{desc}: {n_fmt}{unit} [{elapsed}{postfix}]"

logger = logging.getLogger("orca.progress")


class Progress:
    """A tqdm bar an epoch, from the beats of rank 0: steps, time left, loss and rows a second of all ranks.

    An epoch of unknown length is a counter. The results of an epoch take the place of its bar. Without a terminal there
    are just these, logged at INFO. For one thread, and for leaving it when that thread has ended.

    Args:
        enabled: Whether to show anything.
        bar: Whether to show bars in a terminal or notebook.
    """

    def __init__(self, enabled: bool = True, bar: bool = True) -> None:
        self.enabled = enabled and is_informative()
        self.has_bars = bar and self.enabled and (_is_notebook() or _is_terminal())
        self.bar: Any = None
        self.epoch = -1
        self.validation: list[str] = []  # of the last epoch

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self.enabled = self.has_bars = False

    def beat(self, beat: Beat) -> None:
        """Move the bar to where rank 0 is."""
        if not self.has_bars or beat.rank != 0 or beat.epoch < 1:
            return
        if beat.epoch > self.epoch:
            self._end(full=True)
            self._begin(beat)
        if self.bar is not None:
            self._move(beat)

    def end_epoch(self, end: EpochEnd) -> None:
        """Show the results of an epoch, in the place of its bar."""
        if not self.enabled:
            return
        self.epoch = end.epoch
        self.validation = [number for number in end.numbers if number.startswith("val_")]
        speed = f"{_short(end.rows_per_second)} rows/s"
        text = f"epoch {end.epoch}: {', '.join([*end.numbers, speed])}, {end.seconds:.1f} s"
        if self.bar is not None and _is_notebook():
            self.bar.set_postfix_str(", ".join([*end.numbers, speed]))
            self._end(full=True)
        elif self.has_bars:
            self._end(leave=False)
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        else:
            announce(logger, text)

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
        self.bar = tqdm(
            total=beat.steps or None,
            initial=beat.step,  # its clock starts now, so these steps tell nothing about how fast it goes
            desc=f"epoch {beat.epoch}",
            unit="step",
            bar_format=_FORMAT if beat.steps else _COUNTER,
            mininterval=0.0,
            miniters=1,  # beats are rare: each is shown
            **_shape(),
        )

    def _move(self, beat: Beat) -> None:
        if beat.steps:
            self.bar.total, self.bar.bar_format = beat.steps, _FORMAT
        self.bar.update(beat.step - self.bar.n)
        numbers = [] if beat.loss is None else [f"loss={beat.loss:.4f}"]
        if speed := self._rows_a_second(beat):
            numbers.append(f"rows/s={_short(speed)}")
        self.bar.set_postfix_str(", ".join([*numbers, *self.validation]))

    def _rows_a_second(self, beat: Beat) -> float:
        """Return tqdm's steps a second times the rows of a step; the mean of the epoch before it knows them."""
        state = self.bar.format_dict
        if state["rate"] and beat.step:
            return float(state["rate"] * beat.rows / beat.step)
        return beat.rows / beat.seconds if beat.seconds else 0.0

    def _end(self, full: bool = False, leave: bool = True) -> None:
        """Close the bar; one whose epoch was done in full has perhaps not heard of its last steps."""
        if self.bar is not None:
            self.bar.leave = leave
            if full and self.bar.total:
                self.bar.update(self.bar.total - self.bar.n)
            # The time after the last step, such as bringing the model home, is not time of the epoch.
            later = time.time() - self.bar.last_print_t
            self.bar.start_t += later
            self.bar.last_print_t += later
            self.bar.close()
            self.bar = None


def _is_notebook() -> bool:
    return "ipykernel" in sys.modules


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # none, or closed
        return False


def _short(number: float) -> str:
    """Return a number in a few digits: 880, 12.3k."""
    from tqdm import tqdm

    return f"{number:.0f}" if number < 1000 else str(tqdm.format_sizeof(number))


def _shape() -> dict[str, Any]:
    """Return tqdm's options for the terminal's size: it shows nothing where that is unknown, as in a container."""
    try:
        columns, lines = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # no terminal
        return {}
    return {"dynamic_ncols": True} if columns and lines else {"ncols": 80, "nrows": 24}
