"""The Estimators of older programs: their arguments, and files at the very path that was given."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from frameworks.torch.alone import AloneEngine
from orca.errors import ArgumentError
from orca.triggers import EveryEpoch
from orca_classic.zoo import bigdl, zoo
from orca_classic.zoo.estimators.torch import OlderTorchEstimator
from orca_classic.zoo.metrics import MSE


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OlderTorchEstimator, "engine", AloneEngine())


X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = X.sum(1, keepdims=True)


# The arguments of all releases of both systems.
ARGUMENTS = {
    "from_torch": "model optimizer loss metrics scheduler_creator training_operator_cls initialization_hook config "
    "scheduler_step_freq use_tqdm workers_per_node model_dir backend sync_stats log_level log_to_driver",
    "fit": "data epochs max_steps batch_size profile reduce_results info feature_cols label_cols validation_data "
    "callbacks validation_methods checkpoint_trigger",
    "evaluate": "data batch_size num_steps profile reduce_results info feature_cols label_cols callbacks "
    "validation_methods validation_metrics",
    "predict": "data batch_size feature_cols output_cols profile callbacks",
    "save": "entire other_names",
    "load": "loss other_names",
    "load_state_dict": "state_dict blocking",
    "load_orca_checkpoint": "path version prefix",
    "set_tensorboard": "log_dir app_name",
    "get_train_summary": "tag",
    "get_validation_summary": "tag",
    "set_constant_gradient_clipping": "min max",
    "set_l2_norm_gradient_clipping": "clip_norm",
    "shutdown": "force",
}


@pytest.mark.parametrize("verb", ARGUMENTS)
def test_verbs_take_the_arguments_of_all_releases(verb: str) -> None:
    for kind in (zoo.Estimator, bigdl.Estimator):
        made = estimator(kind, "bigdl")
        assert set(ARGUMENTS[verb].split()) <= set(inspect.signature(getattr(made, verb)).parameters)


def test_evaluation_may_be_told_other_metrics_under_either_name() -> None:
    made = estimator(zoo.Estimator, "bigdl")
    first, second = (made.evaluate((X, Y), **{name: [MSE()]}) for name in ("validation_methods", "validation_metrics"))
    assert first == second and first["MSE"] == pytest.approx(first["val_loss"])


def estimator(kind: Any, backend: str, layers: int = 1) -> Any:
    def net(config: dict[str, Any]) -> Any:
        nets = [nn.Linear(3, 1) for _ in range(layers)]
        return nets[0] if layers == 1 else nets

    return kind.from_torch(
        model=net,
        optimizer=lambda model, config: torch.optim.Adam(model.parameters(), lr=0.1),
        loss=nn.MSELoss(),
        backend=backend,
    )


@pytest.mark.parametrize("kind", [zoo.Estimator, bigdl.Estimator], ids=["zoo", "bigdl"])
@pytest.mark.parametrize("backend", ["spark", "torch_distributed", "bigdl"])
@pytest.mark.parametrize("name", ["model", "model.v2", "model.pt"])
def test_model_is_saved_as_one_torch_file_at_that_path(tmp_path: Path, kind: Any, backend: str, name: str) -> None:
    made, path = estimator(kind, backend), str(tmp_path / name)
    made.fit((X, Y), epochs=2, batch_size=4)
    made.save(path)
    assert os.listdir(tmp_path) == [name]
    content = torch.load(path)
    weights = content if backend == "bigdl" else content["models"][0]
    plain = nn.Linear(3, 1)
    plain.load_state_dict(weights)
    assert torch.equal(plain.weight, made.get_model().weight)
    again = estimator(kind, backend).load(path)
    os.remove(path)
    assert again.get_state_dict()["epoch"] == 2
    assert again.fit((X, Y), batch_size=4) == made.fit((X, Y), batch_size=4)  # with the optimizer's state


def test_checkpoint_trigger_of_bigdl_without_a_place_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    made = estimator(zoo.Estimator, "bigdl")
    (line,) = made.fit((X, Y), batch_size=4, checkpoint_trigger=EveryEpoch())
    assert line == estimator(zoo.Estimator, "bigdl").fit((X, Y), batch_size=4)[0]
    assert os.listdir(tmp_path) == []
    assert caplog.text.count("checkpoint_trigger keeps nothing: there is no model_dir. Pass model_dir=") == 1
    with pytest.raises(ArgumentError, match="trigger"):
        made.fit((X, Y), checkpoint_trigger="epoch")
    for backend, options in (("bigdl", {"resume": True}), ("spark", {"checkpoint_trigger": EveryEpoch()})):
        with pytest.raises(ArgumentError, match="checkpoints need a place to go to"):
            estimator(zoo.Estimator, backend).fit((X, Y), **options)


@pytest.mark.parametrize("layers", [1, 2])
def test_whole_module_is_saved_and_loaded_where_it_is_trusted(tmp_path: Path, layers: int) -> None:
    made, path = estimator(bigdl.Estimator, "spark", layers), str(tmp_path / "whole")
    made.save(path, entire=True)
    content = torch.load(path, weights_only=False)
    nets = content if layers > 1 else [content]
    assert [type(net) for net in nets] == [nn.Linear] * layers
    bare = bigdl.Estimator.from_torch(backend="local")
    with pytest.raises(ArgumentError, match="would run code"):
        bare.load(path)
    models = bare.load(path, weights_only=False).get_model()
    for net, model in zip(nets, models if layers > 1 else [models], strict=True):
        assert torch.equal(net.weight, model.weight)


def test_numbers_of_a_fit_and_an_evaluation_are_read_as_tensors() -> None:
    made = estimator(bigdl.Estimator, "spark")
    (line,) = made.fit((X, Y), batch_size=4, validation_data=(X, Y), validation_methods=[MSE()])
    found = made.evaluate((X, Y), validation_methods=[MSE()])
    assert found["MSE"].data.item() == pytest.approx(found["val_loss"]) == line["val_mse"].item()
    assert isinstance(found["num_samples"], int)


def test_a_model_may_return_arrays_when_it_predicts() -> None:
    class Arrays(nn.Module):
        def forward(self, x: Any) -> Any:
            return {"sum": x.sum(1).numpy(), "rows": x * 2}

    made = bigdl.Estimator.from_torch(model=Arrays(), backend="local")
    predicted = made.predict(X)
    np.testing.assert_allclose(predicted["sum"], X.sum(1), rtol=1e-6)
    np.testing.assert_array_equal(predicted["rows"], X * 2)
