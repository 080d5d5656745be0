"""Seed 001, the PyTorch Estimator: a program for each of its sections, with every argument that it names."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyspark")

import torch
from torch import nn

from orca.estimators.torch import TorchEstimator
from orca.registry import BACKENDS
from seeds.quarters import BATCH, ROWS, assert_same_weights, classifier, loader, quarters, trained
from zoo.orca.data import XShards
from zoo.orca.learn.metrics import Accuracy
from zoo.orca.learn.pytorch import Estimator, TrainingOperator
from zoo.orca.learn.trigger import EveryEpoch

# The arguments each call is described with, by the Estimator it is described for.
FROM_TORCH = {
    "model": ..., "optimizer": ..., "loss": None, "scheduler_creator": None, "training_operator_cls": ...,
    "initialization_hook": None, "config": None, "scheduler_step_freq": "batch", "use_tqdm": ..., "workers_per_node": 1,
    "model_dir": None, "backend": ...,
}  # fmt: skip
METHODS = {
    "horovod": {
        "fit": {"data": ..., "epochs": 1, "profile": False, "reduce_results": True, "info": None},
        "evaluate": {"data": ..., "num_steps": None, "profile": False, "info": None},
        "get_model": {},
        "save": {"checkpoint": ...},
        "load": {"checkpoint": ...},
        "shutdown": {"force": False},
    },
    "bigdl": {
        "fit": {
            "data": ..., "epochs": 1, "batch_size": 32, "validation_data": None, "validation_methods": None,
            "checkpoint_trigger": None,
        },
        "evaluate": {"data": ..., "validation_methods": None, "batch_size": 32},
        "get_model": {},
        "load": {"checkpoint": ..., "loss": None},
        "clear_gradient_clipping": {},
        "set_constant_gradient_clipping": {"min": ..., "max": ...},
        "set_l2_norm_gradient_clipping": {"clip_norm": ...},
    },
}  # fmt: skip


def test_create_estimator_from_pytorch_model() -> None:
    parameters = inspect.signature(Estimator.from_torch).parameters
    for name, default in FROM_TORCH.items():
        assert name in parameters
        assert default is ... or parameters[name].default == default
    model = classifier()
    est = Estimator.from_torch(
        model=model,
        optimizer=torch.optim.Adam(model.parameters()),
        loss=nn.NLLLoss(),
        scheduler_creator=None,
        training_operator_cls=TrainingOperator,
        initialization_hook=None,
        config=None,
        scheduler_step_freq="batch",
        use_tqdm=False,
        workers_per_node=1,
        model_dir=None,
    )
    assert est.backend == BACKENDS["bigdl"]


@pytest.mark.parametrize(("estimator", "name"), [(kind, name) for kind, calls in METHODS.items() for name in calls])
def test_methods_take_the_arguments_they_are_described_with(estimator: str, name: str) -> None:
    inspect.signature(getattr(TorchEstimator, name)).bind("self", **METHODS[estimator][name])


class Listening(TrainingOperator):
    """A step of the Estimator's own that reports the `info` of its fit."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        return {**super().train_batch(batch, batch_info), "stage": torch.tensor(float(batch_info["stage"]))}


@pytest.mark.full
def test_use_horovod_estimator(spark: Any, tmp_path: Path) -> None:
    def make_optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def make_scheduler(optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, config["decay"])

    est = Estimator.from_torch(
        model=lambda config: classifier(),
        optimizer=make_optimizer,
        loss=lambda config: nn.NLLLoss(),
        scheduler_creator=make_scheduler,
        training_operator_cls=Listening,
        initialization_hook=lambda: torch.set_num_threads(1),
        config={"lr": 0.5, "decay": 0.5},
        scheduler_step_freq="epoch",
        use_tqdm=True,
        workers_per_node=2,
        backend="horovod",
    )
    # A loader's own batches are what each of the two workers takes: half of a step.
    stats = est.fit(lambda config: loader(BATCH // 2), epochs=2, profile=True, reduce_results=True, info={"stage": 3})
    assert [(line["num_samples"], line["train_stage"]) for line in stats] == [(ROWS, 3.0)] * 2
    assert stats[1]["train_loss"] < stats[0]["train_loss"] and stats[0]["profile"]
    expected = trained(classifier(), lambda model: make_optimizer(model, {"lr": 0.5}), epochs=2, decay=0.5)
    assert_same_weights(est.get_model(), expected)

    scores = est.evaluate(lambda config: loader(BATCH // 2), num_steps=2, profile=True, info={"stage": 4})
    assert scores["num_samples"] == 2 * BATCH and scores["val_loss"] > 0 and scores["profile"]

    est.save(checkpoint=str(tmp_path / "model.pt"))
    other = Estimator.from_torch(model=classifier(), loss=nn.NLLLoss(), backend="horovod")
    other.load(checkpoint=str(tmp_path / "model.pt"))
    assert_same_weights(other.get_model(), expected)
    est.shutdown(force=False)


@pytest.mark.parametrize("kind", ["SparkXShard", "DataLoader", "DataLoader creator"])
def test_use_bigdl_estimator(kind: str, spark: Any, tmp_path: Path) -> None:
    images, labels = quarters()
    data = {
        "SparkXShard": lambda: XShards.partition({"x": images, "y": labels}, num_shards=1),
        "DataLoader": lambda: loader(BATCH),
        "DataLoader creator": lambda: lambda config, batch_size: loader(batch_size),
    }[kind]()
    model = classifier()
    est = Estimator.from_torch(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
        loss=nn.NLLLoss(),
        config={"shuffle": False},
        model_dir=str(tmp_path / "run"),
        backend="bigdl",
    )
    est.set_constant_gradient_clipping(min=-0.001, max=0.001)
    est.clear_gradient_clipping()
    est.set_l2_norm_gradient_clipping(clip_norm=0.05)
    stats = est.fit(
        data,
        epochs=2,
        batch_size=BATCH,
        validation_data=data,
        validation_methods=[Accuracy()],
        checkpoint_trigger=EveryEpoch(),
    )
    expected = trained(classifier(), lambda model: torch.optim.Adam(model.parameters(), 0.01), epochs=2, clip_norm=0.05)
    assert_same_weights(est.get_model(), expected)
    assert stats[-1]["val_loss"] < stats[0]["val_loss"]
    (run,) = (tmp_path / "run").iterdir()  # named by the time
    assert {path.name for path in (run / "summary").iterdir()} == {"train", "validation"}
    assert len(est.get_train_summary("Loss")) == 2 * stats[-1]["batch_count"]
    assert [score for _, score, _ in est.get_validation_summary("Accuracy")] == pytest.approx(
        [line["val_accuracy"] for line in stats]
    )

    scores = est.evaluate(data, validation_methods=[Accuracy()], batch_size=BATCH)
    assert scores["num_samples"] == ROWS
    assert scores["val_loss"] == pytest.approx(stats[-1]["val_loss"])
    assert scores["Accuracy"] == stats[-1]["val_accuracy"]

    other = Estimator.from_torch(model=classifier())
    other.load(checkpoint=est.latest_checkpoint(str(tmp_path / "run")), loss=nn.NLLLoss())
    assert other.evaluate(data, batch_size=BATCH)["val_loss"] == pytest.approx(scores["val_loss"], rel=1e-6)
