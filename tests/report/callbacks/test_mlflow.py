from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from core.callbacks.fitting import estimator, fit
from orca.callbacks import Callback, MLflowLogger
from orca.errors import CallbackFailed, MissingDependency

needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed: orca-dl[mlflow]")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "runs").as_uri()


def client(store: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(store)


def runs(store: str, experiment: str) -> list[Any]:
    found = client(store).get_experiment_by_name(experiment)
    return list(client(store).search_runs([found.experiment_id]))


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is installed")
def test_missing_package_is_told_with_the_line_that_installs_it() -> None:
    words = r"MLflowLogger needs the package 'mlflow', .* pip install 'orca-dl\[mlflow\]'"
    with pytest.raises(MissingDependency, match=words):
        MLflowLogger()


@needs_mlflow
@pytest.mark.full
def test_fit_is_a_run_with_parameters_and_numbers(store: str) -> None:
    logger = MLflowLogger("digits", "first", store, {"who": "me"})
    stats = fit(estimator(2, config={"lr": 0.01}), logger, epochs=2, valid=True)
    (run,) = runs(store, "digits")
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.tags["who"] == "me"
    assert run.data.params == {
        "epochs": "2", "workers": "2", "optimizer": "Adam", "lr": "0.01", "config.lr": "0.01"
    }  # fmt: skip
    results = client(store).get_metric_history(run.info.run_id, "val_loss")
    assert {point.step: point.value for point in results} == {line["epoch"]: line["val_loss"] for line in stats}


@needs_mlflow
def test_run_that_is_active_here_gets_the_numbers_and_stays_open(store: str) -> None:
    import mlflow

    mlflow.set_tracking_uri(store)
    try:
        with mlflow.start_run() as active:
            for _ in range(2):
                fit(estimator(), MLflowLogger(tags={"who": "me"}))
            run = client(store).get_run(active.info.run_id)
            assert run.info.status == "RUNNING" and run.data.tags["who"] == "me"
            assert run.data.metrics["train_loss"] > 0
    finally:
        mlflow.set_tracking_uri(None)


@needs_mlflow
def test_fit_that_failed_is_a_failed_run(store: str) -> None:
    class Fail(Callback):
        def after_train_epoch(self, runner: Any) -> None:
            raise RuntimeError("the power is gone")

    with pytest.raises(CallbackFailed, match="the power is gone"):
        fit(estimator(), MLflowLogger("digits", tracking_uri=store), Fail())
    assert [run.info.status for run in runs(store, "digits")] == ["FAILED"]
