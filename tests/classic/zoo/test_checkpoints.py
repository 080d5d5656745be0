"""find_latest_checkpoint: what load_orca_checkpoint takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orca import Estimator  # noqa: E402
from orca.errors import ArgumentError  # noqa: E402
from orca.triggers import SeveralIteration  # noqa: E402
from orca_classic.bigdl.optimizers import SGD  # noqa: E402
from zoo.orca.learn.utils import find_latest_checkpoint  # noqa: E402


def test_newest_checkpoint_is_found_and_loaded(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no checkpoint under"):
        find_latest_checkpoint(str(tmp_path))
    with pytest.raises(ArgumentError, match="must be one of bigdl, pytorch, tf; got 'onnx'"):
        find_latest_checkpoint(str(tmp_path), "onnx")
    est = Estimator.from_torch(
        model=torch.nn.Linear(2, 1),
        optimizer=SGD(0.1),
        loss=torch.nn.MSELoss(),
        backend="local",
        model_dir=str(tmp_path),
    )
    x = np.ones((8, 2), np.float32)
    est.fit((x, x[:, :1]), epochs=2, batch_size=2, checkpoint_trigger=SeveralIteration(3))
    path, prefix, version = find_latest_checkpoint(str(tmp_path), "pytorch")
    assert version == 6
    assert est.load_orca_checkpoint(path, version, prefix).get_state_dict()["steps"] == 6
    assert est.load_latest_orca_checkpoint(str(tmp_path)).get_state_dict()["steps"] == 6
