"""MaxstepsCallback: the end of a fit after so many steps."""

from __future__ import annotations

from typing import Any

from orca.core.callbacks.callback import Callback
from orca.core.units import positive


class MaxstepsCallback(Callback):
    """A callback that stops a fit after exactly this many training steps, on all ranks, mid-epoch if need be.

    Args:
        max_step: Steps of this fit, over its interruptions; those of earlier fits do not count.

    Raises:
        ArgumentError: It is no positive whole number.
    """

    def __init__(self, max_step: int) -> None:
        self.max_step = positive("max_step", max_step)
        self._first = 0

    def before_run(self, runner: Any) -> None:
        """Remember the steps that were done before."""
        self._first = runner.global_step

    def after_train_iter(self, runner: Any) -> None:
        """Stop when the steps are done."""
        if runner.global_step - self._first >= self.max_step:
            runner.stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the steps that were done before this fit."""
        return {"first": self._first}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Count from where the interrupted fit began."""
        self._first = state_dict["first"]
