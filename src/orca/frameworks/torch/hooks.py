"""TorchHooks: the hooks of torch models beyond those of all models. Owns the MainCallback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orca.core.callbacks.callback import Callback
from orca.core.callbacks.hooks import Hooks
from orca.errors import ArgumentError


class MainCallback(Callback):
    """A callback that owns a part of each step: override that part. A run has one at most.

    `runner.batch` is the batch as a loader gives it, on the device. Forward passes leave `runner.output`,
    `runner.target` and `runner.loss`. Where the backward pass is overridden, gradients are weighed by each rank's rows
    while they are averaged, so that uneven shares stay exact.
    """

    owns_step = True

    def on_iter_forward(self, runner: Any) -> None:
        """Compute output and loss of a training or evaluation batch."""
        runner.forward()

    def on_train_forward(self, runner: Any) -> None:
        """Compute output and loss of a training batch."""
        self.on_iter_forward(runner)

    def on_val_forward(self, runner: Any) -> None:
        """Compute output and loss of an evaluation batch."""
        self.on_iter_forward(runner)

    def on_pred_forward(self, runner: Any) -> None:
        """Compute the output of a prediction batch."""
        runner.answer()

    def on_iter_backward(self, runner: Any) -> None:
        """Compute gradients of `runner.loss` and update the weights."""
        runner.optimizer.zero_grad()
        runner.loss.backward()
        runner.optimizer.step()

    def on_lr_adjust(self, runner: Any) -> None:
        """Step the learning rate schedulers at the end of an epoch."""
        runner.step_schedulers()


class TorchHooks(Hooks):
    """The hooks of callbacks, of which one may own the step."""

    def __init__(self, callbacks: Sequence[Any] = (), runner: Any = None, states: dict[str, Any] | None = None) -> None:
        super().__init__(callbacks, runner, states)
        self.main: Any = next((callback for callback in self.callbacks if isinstance(callback, MainCallback)), None)
        # The main callback comes first, as it owns the step.
        self.callbacks = tuple(sorted(self.callbacks, key=lambda callback: callback is not self.main))
        self._can_stop = self._can_stop or self.main is not None

    def main_has(self, *names: str) -> bool:
        """Return whether the main callback overrides one of these methods."""
        return self.main is not None and any(
            getattr(type(self.main), name) is not getattr(MainCallback, name) for name in names
        )

    def on_main(self, name: str) -> None:
        """Call a method of the main callback."""
        self._call(self.main, name, self.runner)

    @property
    def watches_steps(self) -> bool:
        """Whether there are hooks to call around each training step: steps of small models are short."""
        return self._can_stop

    def after_train_iter(self, step: int, loss: float | None) -> None:
        """Call the hooks after a training step, which has left its results with the runner."""
        self("after_train_iter", step)

    def _check_owners(self, owners: Sequence[str]) -> None:
        if len(owners) > 1:
            raise ArgumentError(
                f"a run has one MainCallback at most; got {', '.join(owners)}.", code="several-main-callbacks"
            )
