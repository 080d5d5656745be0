"""Hooks: the callbacks of a run, as the loop calls them. Owns what each hook is given, and whose error it is."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from orca.core.callbacks.callback import Callback
from orca.core.callbacks.runner import Runner
from orca.errors import ArgumentError, CallbackFailed

logger = logging.getLogger(__name__)

_NAMES = [name for name in dir(Callback) if not name.startswith("_") and not name.endswith("state_dict")]
_OLDER = {
    "before_run": "on_train_begin",
    "after_run": "on_train_end",
    "before_train_epoch": "on_epoch_begin",
    "after_train_epoch": "on_epoch_end",
    "before_train_iter": "on_batch_begin",
    "after_train_iter": "on_batch_end",
}


class Hooks:
    """The hooks of callbacks; one that raises is named. As a context, it releases the callbacks at its end.

    Args:
        callbacks: Instances of Callback, or objects that have some of its methods.
        runner: Their view of the run.
        states: The states that callbacks of these names had when the fit was interrupted.

    Raises:
        ArgumentError: Something is no callback, or one that this kind of model cannot have.
    """

    def __init__(self, callbacks: Sequence[Any] = (), runner: Any = None, states: dict[str, Any] | None = None) -> None:
        for callback in callbacks:
            if isinstance(callback, type) or not any(callable(getattr(callback, name, None)) for name in _NAMES):
                raise ArgumentError(
                    f"callbacks must be instances of Callback; got {callback!r}. "
                    "Import it from orca.callbacks, or give your class one of its hooks.",
                    code="not-a-callback",
                )
        self._check_owners([type(each).__name__ for each in callbacks if getattr(each, "owns_step", False)])
        self.callbacks = tuple(callbacks)
        self.runner = Runner(None) if runner is None else runner
        self.earlier_states = states or {}
        self._can_stop = self.has("before_train_iter", "after_train_iter")

    def __bool__(self) -> bool:
        return bool(self.callbacks)

    def __enter__(self) -> Hooks:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def has(self, *names: str) -> bool:
        """Return whether any callback overrides one of these hooks."""
        return any(_overrides(callback, name) for callback in self.callbacks for name in names)

    # A run, in order.

    def begin(
        self,
        epochs: int = 0,
        steps: int | None = None,
        line: dict[str, Any] | None = None,
        skips_validations: bool = False,
    ) -> None:
        """Introduce model and runner, and call before_run.

        Args:
            epochs: Epochs of the fit; 0 if nothing is trained.
            steps: Steps of an epoch, if known.
            line: The statistics of the last epoch before.
            skips_validations: Whether the fit validates, but perhaps not in every epoch.
        """
        runner = self.runner
        runner.begin_run(epochs, steps, dict(line or {}), skips_validations)
        params = ({"epochs": epochs, "steps": steps} if epochs else {}) | {"config": runner.config}
        for callback in self.callbacks:
            for name, value in (("set_model", runner.given_models[0]), ("set_param", params), ("set_trainer", runner)):
                self._call(callback, name, value)
        self("before_run")

    def restore(self) -> None:
        """Give callbacks of a resumed fit their states back."""
        for name, callback in self._named():
            if name in self.earlier_states:
                self._call(callback, "load_state_dict", self.earlier_states[name])

    def begin_epoch(self, epoch: int) -> None:
        """Tell that an epoch of training begins, or continues in a resumed fit."""
        self.runner.begin_epoch(epoch)
        self("before_train_epoch", epoch)

    @property
    def watches_steps(self) -> bool:
        """Whether there are hooks to call around each training step."""
        return bool(self.callbacks)

    @property
    def wants_stop(self) -> bool | None:
        """Whether a callback of this rank wants to stop; None if no callback can after a step, on any rank."""
        return bool(self.runner.stop) if self._can_stop else None

    def before_train_iter(self, step: int, batch: Any) -> None:
        """Show a batch, and call the hooks before a training step."""
        self.runner.begin_step(step)
        self.runner.show_batch(batch)
        self("before_train_iter", step)

    def after_train_iter(self, step: int, loss: float | None) -> None:
        """Show the loss of a training step, and call the hooks after it."""
        self.runner.show_loss(loss)
        self("after_train_iter", step)

    def stop(self) -> None:
        """Stop, as all ranks agreed after a step."""
        if self.callbacks:
            self.runner.stop_run()

    def before_val_iter(self, step: int, batch: Any) -> None:
        """Show a batch, and call the hooks before a step of an evaluation."""
        self.runner.begin_step(step)
        self.runner.show_batch(batch)
        self("before_val_iter")

    def end_epoch(self, line: dict[str, Any]) -> bool:
        """Tell the statistics of an epoch, to which callbacks may add; return whether one of them wants to stop."""
        self.runner.end_epoch(line)
        self("after_train_epoch", line["epoch"], logs=line)
        return bool(self.runner.stop)

    def finish(self) -> None:
        """Tell that the epochs of a fit are done."""
        self("after_train")
        self("after_run", logs=self.runner.epoch_stats)

    def states(self) -> dict[str, Any]:
        """Return the state of every callback that has one, by its name; rank 0 copies it, as it may change later."""
        states = {name: self._call(callback, "state_dict") for name, callback in self._named()}
        states = {name: state for name, state in states.items() if state}
        return states if self.runner.rank else self.runner.copied(states)

    def release(self) -> None:
        """Release every callback. Errors are only logged: the run is over."""
        for callback in self.callbacks:
            try:
                self._call(callback, "release")
            except CallbackFailed as error:
                logger.warning("%s", error)

    def __call__(self, name: str, *older: Any, **options: Any) -> None:
        """Call a hook of every callback, under its name of either generation."""
        for callback in self.callbacks:
            self._call(callback, name, self.runner)
            if name in _OLDER and self.runner.training:  # the older ones know of fits alone
                self._call(callback, _OLDER[name], *older, **options)

    def _check_owners(self, owners: Sequence[str]) -> None:
        if owners:
            raise ArgumentError(
                f"a MainCallback owns a part of each step, which models of torch alone have; got {', '.join(owners)}. "
                "Leave it out.",
                code="main-callback-needs-torch",
            )

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Yield each callback with its name: its class, and a number from the second of the class on."""
        counts: Counter[str] = Counter()
        for callback in self.callbacks:
            kind = type(callback).__name__
            counts[kind] += 1
            yield (f"{kind}-{counts[kind]}" if counts[kind] > 1 else kind), callback

    def _call(self, callback: Any, name: str, *arguments: Any, **options: Any) -> Any:
        method = getattr(callback, name, None)
        if method is None:
            return None
        try:
            return method(*arguments, **options)
        except CallbackFailed:
            raise
        except Exception as error:
            raise CallbackFailed(
                f"the callback {type(callback).__name__} failed in {name}: {type(error).__name__}: {error}"
            ) from error


def _overrides(callback: Any, name: str) -> bool:
    """Return whether a callback has a hook of its own under this name or an equivalent one."""
    names = {name, name.replace("_train_", "_").replace("_val_", "_").replace("_pred_", "_"), _OLDER.get(name, name)}
    return any(
        getattr(type(callback), one, None) is not getattr(Callback, one, None) and hasattr(callback, one)
        for one in names
    )
