"""MLflowLogger: a fit as a run of MLflow. Owns its parameters and numbers, and the choice of the run."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

from orca.core.callbacks.callback import Callback
from orca.core.callbacks.numbers import numbers_in
from orca.errors import MissingDependency


class MLflowLogger(Callback):
    """A callback that logs parameters and the numbers of each epoch to MLflow, on rank 0.

    Where the program has an active run (`mlflow.start_run()`), they go into that one, which stays open. Otherwise a run
    is made for each fit; it ends as FINISHED, or as FAILED.

    Args:
        experiment: Name of the experiment, made where it is not there; MLflow's default one unless given.
        run_name: Name of the run.
        tracking_uri: MLflow's store of runs; as set in this program unless given.
        tags: Tags of the run.

    Raises:
        MissingDependency: mlflow is not installed.
    """

    def __init__(
        self,
        experiment: str | None = None,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: dict[str, Any] | None = None,
    ) -> None:
        if find_spec("mlflow") is None:
            raise MissingDependency.of("mlflow", "mlflow", "MLflowLogger")
        import mlflow

        active = mlflow.active_run() if tracking_uri is None and experiment is None else None
        self.run_id: str | None = active.info.run_id if active else None
        # Workers do not know this program's settings.
        self.tracking_uri = tracking_uri or mlflow.get_tracking_uri()
        self.experiment, self.run_name = experiment or "Default", run_name
        self.tags = {str(key): str(value) for key, value in (tags or {}).items()}
        self._client: Any = None
        self._run, self._status = "", "FAILED"

    def before_run(self, runner: Any) -> None:
        """Begin or join the run, and log the parameters."""
        if not runner.training or runner.rank:
            return
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client, self._status = MlflowClient(self.tracking_uri), "FAILED"
        self._run = self.run_id or self._new_run()
        for key, value in self.tags.items() if self.run_id else ():
            self._client.set_tag(self._run, key, value)
        config = {f"config.{key}": value for key, value in runner.config.items()}
        values = {"epochs": runner.num_epochs, "workers": runner.size} | runner.description | config
        earlier = self._client.get_run(self._run).data.params if self.run_id else {}
        params = [Param(key, str(value)[:500]) for key, value in values.items() if key not in earlier]
        self._client.log_batch(self._run, params=params)

    def after_train_epoch(self, runner: Any) -> None:
        """Log the numbers of the epoch."""
        if self._client is None:
            return
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        numbers = numbers_in(runner.epoch_stats).items()
        self._client.log_batch(self._run, metrics=[Metric(key, value, now, runner.epochs) for key, value in numbers])

    def after_run(self, runner: Any) -> None:
        """End the run well."""
        self._status = "FINISHED"
        self.release()

    def release(self) -> None:
        """End the run."""
        client, self._client = self._client, None
        if client is not None and self.run_id is None:
            client.set_terminated(self._run, self._status)

    def _new_run(self) -> str:
        experiment = self._client.get_experiment_by_name(self.experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self.experiment)
        run = self._client.create_run(number, tags=self.tags, run_name=self.run_name)
        return str(run.info.run_id)
