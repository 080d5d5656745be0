from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from core.callbacks.fitting import estimator, fit
from orca.callbacks import WandbLoggerCallback
from orca.errors import MissingDependency


@pytest.mark.skipif(find_spec("wandb") is not None, reason="wandb is installed")
def test_missing_package_is_told_with_the_line_that_installs_it() -> None:
    words = r"WandbLoggerCallback needs the package 'wandb', .* pip install 'orca-dl\[wandb\]'"
    with pytest.raises(MissingDependency, match=words):
        WandbLoggerCallback("digits")


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed: orca-dl[wandb]")
def test_fit_is_a_run_of_rank_0(tmp_path: Path) -> None:
    logger = WandbLoggerCallback("digits", log_config=True, watch_model=True, mode="offline", dir=str(tmp_path))
    stats = fit(estimator(2, config={"lr": 0.01}), logger, epochs=2)
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    (log,) = run.glob("run-*.wandb")
    data = log.read_bytes()
    assert len(stats) == 2 and b"train_loss" in data and b"digits" in data
