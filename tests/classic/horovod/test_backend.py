"""backend="horovod" on an install without Horovod: Orca's own training, one warning, the same numbers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator
from orca.errors import MissingDependency
from orca.registry import Backend, backend_of
from orca_classic.horovod.ranks import binding

X = np.random.default_rng(0).normal(size=(53, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Forget a Horovod that is loaded, until the end of the test; then forget what the test has put in its place."""
    loaded = forget_horovod()
    yield monkeypatch
    forget_horovod()
    sys.modules.update(loaded)


def forget_horovod() -> dict[str, Any]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "horovod"}


@pytest.fixture
def without_horovod(unloaded: pytest.MonkeyPatch) -> None:
    unloaded.setitem(sys.modules, "horovod", None)  # as if it were not installed


def torch_estimator(backend: str) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Estimator.from_torch(
        model=model, optimizer=optimizer, loss=nn.MSELoss(), backend=backend, workers_per_node=2, seed=0
    )


def keras_estimator(backend: str) -> Any:
    def model_creator(config: dict[str, Any]) -> Any:
        import keras

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    pytest.importorskip("tensorflow")
    return Estimator.from_keras(model_creator=model_creator, backend=backend, workers_per_node=2)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [torch_estimator, keras_estimator])
def test_it_trains_with_one_warning_and_gives_the_numbers_of_spark(
    estimator: Callable[[str], Any], spark: Any, without_horovod: None, caplog: pytest.LogCaptureFixture
) -> None:
    losses = {}
    for backend in ("horovod", "spark"):
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            est = estimator(backend)
            est.fit((X, Y), epochs=2, batch_size=16)
        warned = [record for record in caplog.records if record.name.startswith("orca_classic.horovod")]
        assert len(warned) == (1 if backend == "horovod" else 0)
        (losses[backend],) = [value for name, value in est.evaluate((X, Y)).items() if name.endswith("loss")]
    assert losses["horovod"] == losses["spark"]


def test_the_warning_tells_how_to_get_it(without_horovod: None, caplog: pytest.LogCaptureFixture) -> None:
    assert backend_of("horovod") == Backend("ray", "replicated", otherwise="spark")
    assert "Horovod is not installed. `make horovod`" in caplog.text
    assert "trains as backend='ray' does, with the same results" in caplog.text


def test_a_horovod_that_does_not_load_tells_why(unloaded: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "horovod" / "torch").mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    (tmp_path / "horovod" / "torch" / "__init__.py").write_text("raise ImportError('undefined symbol: _ZN2at4_ops')")
    unloaded.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependency, match=r"does not load \(undefined symbol.* `make horovod`"):
        binding()
    assert backend_of("horovod").sync == "replicated"
