"""Callback: the user's hooks into a run. Owns their names, of both generations.

The newer generation has hooks that get a runner (`after_train_epoch(runner)`), the older one hooks in the manner of
Keras (`on_epoch_end(epoch, logs)`). A callback may use either, or both. Hooks are called on every rank.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Callback:
    """The hooks into training, evaluation and prediction: override those you need; `runner` tells where the run is.

    Example:
        >>> class Notes(Callback):
        ...     def after_train_epoch(self, runner):
        ...         if runner.rank == 0:
        ...             runner.put("best", min(runner.get("best") or 1e9, runner.epoch_stats["train_loss"]))
    """

    owns_step: ClassVar[bool] = False  # whether it does a part of each step itself, which torch alone lets it do

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
        """Run in each process that predicts, before its first batch."""
        self.before_epoch(runner)

    def after_train_epoch(self, runner: Any) -> None:
        """Run after an epoch of training and its validation; `runner.epoch_stats` has the numbers."""
        self.after_epoch(runner)

    def after_val_epoch(self, runner: Any) -> None:
        """Run after an evaluation."""
        self.after_epoch(runner)

    def after_pred_epoch(self, runner: Any) -> None:
        """Run after predictions. Never called: a process cannot know which batch is its last."""
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
        """Return the state for a resumed fit: numbers, texts, tensors, and lists and dicts of them.

        It is kept with each checkpoint of a fit. All ranks are asked, and rank 0's answer is kept.
        """
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back: called on all ranks of a resumed fit, after before_run.

        Where the fit was interrupted mid-epoch, before_train_epoch is called again before it. Changes of these two
        hooks to weights, optimizers and schedulers are undone in a resumed fit: it begins with the state alone.
        """

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
