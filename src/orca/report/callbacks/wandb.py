"""WandbLoggerCallback: a fit as a run of Weights & Biases."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from orca.core.callbacks.callback import Callback
from orca.core.callbacks.numbers import numbers_in
from orca.errors import MissingDependency


class WandbLoggerCallback(Callback):
    """A callback that logs the numbers of each epoch to Weights & Biases, on rank 0.

    Args:
        project: Name of the project.
        log_config: Whether to log the Estimator's config as well.
        watch_model: Whether to log gradients and weights of the model too, which costs time.
        kwargs: More arguments of `wandb.init`: mode="offline", dir=, name=, group=, tags=, ...

    Raises:
        MissingDependency: wandb is not installed.
    """

    def __init__(self, project: str, log_config: bool = False, watch_model: bool = False, **kwargs: Any) -> None:
        if find_spec("wandb") is None:
            raise MissingDependency.of("wandb", "wandb", "WandbLoggerCallback")
        self.project, self.log_config, self.watch_model, self.options = project, log_config, watch_model, kwargs
        self._run: Any = None
        self._code = 1

    def before_run(self, runner: Any) -> None:
        """Begin the run."""
        if not runner.training or runner.rank:
            return
        import wandb

        options = dict(self.options)
        if self.log_config:
            options["config"] = {**runner.config, **options.get("config", {})}
        self._run, self._code = wandb.init(project=self.project, **options), 1
        if self.watch_model:
            self._run.watch(runner.given_models, log="all")

    def after_train_epoch(self, runner: Any) -> None:
        """Log the numbers of the epoch."""
        if self._run is not None:
            self._run.log({**numbers_in(runner.epoch_stats), "epoch": runner.epochs}, step=runner.global_step)

    def after_run(self, runner: Any) -> None:
        """End the run well."""
        self._code = 0
        self.release()

    def release(self) -> None:
        """End the run."""
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=self._code)
