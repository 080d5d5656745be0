"""Few rows: fewer partitions than workers, and more workers than rows, equal one process on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from bigdl.orca.learn.pytorch import Estimator

WORKERS = 3
X = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def make_model(config: dict[str, Any]) -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Linear(3, 1)


def make_optimizer(model: torch.nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)


def plain(rows: int) -> torch.nn.Module:
    """Return the model after two steps over all rows."""
    model = make_model({})
    optimizer = make_optimizer(model, {"lr": 0.1})
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(torch.from_numpy(X[:rows])), torch.from_numpy(Y[:rows])).backward()
        optimizer.step()
    return model


def of_config(config: dict[str, Any]) -> Any:
    """Return a loader; this creator takes no batch size."""
    rows = config["rows"]
    return DataLoader(TensorDataset(torch.from_numpy(X[:rows]), torch.from_numpy(Y[:rows])), batch_size=rows)


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("spark", "DataFrame"),
        ("bigdl", "DataFrame"),
        pytest.param("ray", "DataFrame", marks=pytest.mark.full),  # needs both clusters
        ("spark", "creator of config"),
        pytest.param("ray", "creator of config", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.full), 2])
def test_few_rows_equal_one_process(backend: str, kind: str, rows: int, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("ray" if backend == "ray" else "pyspark")
    spark = None if (backend, kind) == ("ray", "creator of config") else request.getfixturevalue("spark")
    if backend == "ray":
        request.getfixturevalue("ray_context")
    est = Estimator.from_torch(
        model=make_model,
        optimizer=make_optimizer,
        loss=torch.nn.MSELoss(),
        config={"lr": 0.1, "rows": rows},
        backend=backend,
        workers_per_node=WORKERS,
    )
    assert est.num_workers == WORKERS
    if kind == "creator of config":
        stats = est.fit(of_config, epochs=2, batch_size=2, validation_data=of_config)
    else:
        cells = [(x.tolist(), y.tolist()) for x, y in zip(X[:rows], Y[:rows], strict=True)]
        frame = spark.createDataFrame(cells, "x array<float>, y array<float>").coalesce(1)
        columns = {"feature_cols": ["x"], "label_cols": ["y"]}
        stats = est.fit(frame, epochs=2, batch_size=2, validation_data=frame, **columns)

    expected = plain(rows)
    assert [(line["num_samples"], line["val_num_samples"]) for line in stats] == [(rows, rows)] * 2
    for name, value in est.get_model().state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=1e-5, atol=1e-6)
    loss = torch.nn.functional.mse_loss(expected(torch.from_numpy(X[:rows])), torch.from_numpy(Y[:rows]))
    assert stats[-1]["val_loss"] == pytest.approx(loss.item(), rel=1e-4)
