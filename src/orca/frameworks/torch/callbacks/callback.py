"""Callback: the user's hooks into a run of torch. Owns their names, of both generations, and how they are called.

The newer generation has hooks that get a runner (`after_train_epoch(runner)`), the older one hooks in the manner of
Keras (`on_epoch_end(epoch, logs)`). A callback may use either, or both. Hooks are called on every rank.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from orca.errors import ArgumentError, CallbackFailed

logger = logging.getLogger(__name__)


class Callback:
    """Hook into training, evaluation and prediction: override what you need; `runner` tells where the run is.

    Example:
        >>> class Notes(Callback):
        ...     def after_train_epoch(self, runner):
        ...         if runner.rank == 0:
        ...             runner.put("best", min(runner.get("best") or 1e9, runner.epoch_stats["train_loss"]))
    """

    def before_run(self, runner: Any) -> None:
        """Run before a fit, an evaluation or a prediction."""

    def after_train(self, runner: Any) -> None:
        """Act after the last epoch of a fit, before any callback's after_run: change the final weights here."""

    def after_run(self, runner: Any) -> None:
        """Run after it."""

    def before_epoch(self, runner: Any) -> None:
        """Run before every epoch of any kind."""

    def after_epoch(self, runner: Any) -> None:
        """Run after every epoch of any kind."""

    def before_iter(self, runner: Any) -> None:
        """Run before every batch of any kind."""

    def after_iter(self, runner: Any) -> None:
        """Run after every batch of any kind."""

    def before_train_epoch(self, runner: Any) -> None:
        """Run before an epoch of training."""
        self.before_epoch(runner)

    def before_val_epoch(self, runner: Any) -> None:
        """Run before an evaluation."""
        self.before_epoch(runner)

    def before_pred_epoch(self, runner: Any) -> None:
        """Run before a block of predictions."""
        self.before_epoch(runner)

    def after_train_epoch(self, runner: Any) -> None:
        """Run after an epoch of training and its validation; `runner.epoch_stats` has the numbers."""
        self.after_epoch(runner)

    def after_val_epoch(self, runner: Any) -> None:
        """Run after an evaluation."""
        self.after_epoch(runner)

    def after_pred_epoch(self, runner: Any) -> None:
        """Run after a block of predictions."""
        self.after_epoch(runner)

    def before_train_iter(self, runner: Any) -> None:
        """Run before a training step."""
        self.before_iter(runner)

    def before_val_iter(self, runner: Any) -> None:
        """Run before a batch of an evaluation."""
        self.before_iter(runner)

    def before_pred_iter(self, runner: Any) -> None:
        """Run before a batch of predictions."""
        self.before_iter(runner)

    def after_train_iter(self, runner: Any) -> None:
        """Run after a training step."""
        self.after_iter(runner)

    def after_val_iter(self, runner: Any) -> None:
        """Run after a batch of an evaluation."""
        self.after_iter(runner)

    def after_pred_iter(self, runner: Any) -> None:
        """Run after a batch of predictions."""
        self.after_iter(runner)

    def release(self) -> None:
        """Let go of files and connections: called last of all, also after a failure."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed fit needs to know of this one: numbers, texts, tensors, and lists and dicts of them.

        It is kept with each checkpoint of a fit. All ranks are asked, and rank 0's answer is kept.
        """
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what state_dict returned: called on all ranks of a resumed fit, after before_run."""

    def every_n_iter(self, runner: Any, n: int) -> bool:
        """Say whether this is every n-th training step."""
        return n > 0 and runner.global_step % n == 0

    def every_n_epoch(self, runner: Any, n: int) -> bool:
        """Say whether this is every n-th epoch."""
        return n > 0 and runner.epochs % n == 0

    # The older generation.

    def on_train_begin(self) -> None:
        """Run before a fit."""

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Run after a fit."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Run before an epoch, with its number."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Run after an epoch with its statistics: train_loss, val_loss and so on."""

    def on_batch_begin(self, batch: int) -> None:
        """Run before a training step, with its number in the epoch."""

    def on_batch_end(self, batch: int) -> None:
        """Run after a training step."""

    def set_model(self, model: Any) -> None:
        """Take the model."""
        self.model = model

    def set_param(self, param: dict[str, Any]) -> None:
        """Take epochs, steps and the config."""
        self.params = param

    def set_trainer(self, trainer: Any) -> None:
        """Take the runner."""
        self.trainer = trainer


class MainCallback(Callback):
    """Own what a step does: override a part of it. A run has one at most.

    `runner.batch` is the batch as a loader gives it, on the device. Forward passes leave `runner.output`,
    `runner.target` and `runner.loss`. Where the backward pass is overridden, gradients are weighed by each rank's rows
    while they are averaged, so that uneven shares stay exact.
    """

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


_OLDER = {
    "before_run": "on_train_begin",
    "after_run": "on_train_end",
    "before_train_epoch": "on_epoch_begin",
    "after_train_epoch": "on_epoch_end",
    "before_train_iter": "on_batch_begin",
    "after_train_iter": "on_batch_end",
}


class Hooks:
    """The hooks of callbacks; one that raises is named.

    Args:
        callbacks: Instances of Callback, or objects that have some of its methods.

    Raises:
        ArgumentError: There are two main callbacks, or something is no callback.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self.callbacks = tuple(callbacks)
        mains = [callback for callback in self.callbacks if isinstance(callback, MainCallback)]
        if len(mains) > 1:
            raise ArgumentError(
                f"a run has one MainCallback at most; got {', '.join(type(main).__name__ for main in mains)}."
            )
        for callback in self.callbacks:
            known = [name for name in dir(Callback) if not name.startswith("_") and not name.endswith("state_dict")]
            if isinstance(callback, type) or not any(callable(getattr(callback, name, None)) for name in known):
                raise ArgumentError(
                    f"callbacks must be instances of Callback; got {callback!r}. "
                    "Import it from orca.callbacks, or give your class one of its hooks."
                )
        self.main: Any = mains[0] if mains else None
        # The main callback comes first, as it owns the step.
        self.callbacks = tuple(sorted(self.callbacks, key=lambda callback: callback is not self.main))

    def __bool__(self) -> bool:
        return bool(self.callbacks)

    def has(self, *names: str) -> bool:
        """Say whether any callback overrides one of these hooks."""
        return any(_overrides(callback, name) for callback in self.callbacks for name in names)

    def main_has(self, *names: str) -> bool:
        """Say whether the main callback overrides one of these methods."""
        return self.main is not None and any(
            getattr(type(self.main), name) is not getattr(MainCallback, name) for name in names
        )

    def begin(self, runner: Any, model: Any, params: dict[str, Any]) -> None:
        """Introduce runner and model, and call before_run."""
        for callback in self.callbacks:
            for name, thing in (("set_model", model), ("set_param", params), ("set_trainer", runner)):
                self._call(callback, name, thing)
        self("before_run", runner)

    def __call__(self, name: str, runner: Any, *older: Any, **named: Any) -> None:
        """Call a hook of every callback, under its name of either generation."""
        for callback in self.callbacks:
            self._call(callback, name, runner)
            if name in _OLDER and runner.training:  # the older ones know of fits alone
                self._call(callback, _OLDER[name], *older, **named)

    def states(self) -> dict[str, Any]:
        """Return the state of every callback that has one, by its name."""
        states = {name: self._call(callback, "state_dict") for name, callback in self._named()}
        return {name: state for name, state in states.items() if state}

    def load(self, states: dict[str, Any]) -> None:
        """Give callbacks the states that those of the same names returned."""
        for name, callback in self._named():
            if name in states:
                self._call(callback, "load_state_dict", states[name])

    def on_main(self, name: str, runner: Any) -> None:
        """Call a method of the main callback."""
        self._call(self.main, name, runner)

    def release(self) -> None:
        """Let every callback let go of what it holds. What goes wrong is logged: the run has had its say."""
        for callback in self.callbacks:
            try:
                self._call(callback, "release")
            except CallbackFailed as error:
                logger.warning("%s", error)

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Yield each callback with its name: its class, and a number from the second of the class on."""
        counts: Counter[str] = Counter()
        for callback in self.callbacks:
            kind = type(callback).__name__
            counts[kind] += 1
            yield (f"{kind}-{counts[kind]}" if counts[kind] > 1 else kind), callback

    def _call(self, callback: Any, name: str, *arguments: Any, **named: Any) -> Any:
        method = getattr(callback, name, None)
        if method is None:
            return None
        try:
            return method(*arguments, **named)
        except CallbackFailed:
            raise
        except Exception as error:
            raise CallbackFailed(
                f"the callback {type(callback).__name__} failed in {name}: {type(error).__name__}: {error}"
            ) from error


def _overrides(callback: Any, name: str) -> bool:
    """Say whether a callback has a hook of its own under this name, or what it stands for."""
    names = {name, name.replace("_train_", "_").replace("_val_", "_").replace("_pred_", "_"), _OLDER.get(name, name)}
    return any(
        getattr(type(callback), one, None) is not getattr(Callback, one, None) and hasattr(callback, one)
        for one in names
    )
