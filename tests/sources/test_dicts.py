"""Models whose forward takes a dict are trained and answered with every kind of data that can give one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from frameworks.torch.alone import AloneEngine
from orca import Estimator, XShards
from orca.estimators.torch import TorchEstimator

N = 14
A = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
B = np.arange(N, dtype=np.float32) / N
Y = A[:, 0] + B


class Named(nn.Module):
    """Read its inputs by name from a dict of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.linear(torch.cat([inputs["a"], inputs["b"][:, None]], dim=1))


class Samples(Dataset):  # type: ignore[type-arg]
    """Have samples that are dicts: nested as x and y, or flat with the label among the features."""

    def __init__(self, flat: bool) -> None:
        self.flat = flat

    def __getitem__(self, index: int) -> Any:
        x = {"a": A[index], "b": B[index]}
        return {**x, "label": Y[index]} if self.flat else {"x": x, "y": Y[index]}

    def __len__(self) -> int:
        return N


def pairs(config: dict[str, Any], batch_size: int) -> Any:
    return DataLoader([({"a": A[i], "b": B[i]}, Y[i]) for i in range(N)], batch_size)  # type: ignore[arg-type]


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "arrays": (({"a": A, "b": B}, Y), {}),
    "arrays by name": ({"x": {"a": A, "b": B}, "y": Y}, {}),
    "flat arrays": ({"a": A, "b": B, "label": Y}, {"label_cols": ["label"]}),
    "loader": (DataLoader(Samples(flat=False), batch_size=4), {}),
    "flat loader": (DataLoader(Samples(flat=True), batch_size=4), {"label_cols": ["label"]}),
    "creator": (pairs, {}),
}


class Alone(TorchEstimator):
    """An Estimator whose one rank runs in this process."""

    engine = AloneEngine()  # type: ignore[assignment]


def estimator(kind: type[Estimator], **options: Any) -> Estimator:
    torch.manual_seed(3)
    return kind.from_torch(
        model=Named(),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=nn.MSELoss(),
        **{"backend": "local", "seed": 1, "use_tqdm": False, **options},
    )


@pytest.mark.parametrize(("kind", "workers"), [*((kind, 1) for kind in KINDS), ("flat loader", 2)])
def test_a_model_of_a_dict_is_trained_evaluated_and_answered(kind: str, workers: int) -> None:
    data, columns = KINDS[kind]
    made = estimator(Alone if workers == 1 else Estimator, workers_per_node=workers)
    first, last = made.fit(data, epochs=2, batch_size=4, **columns)
    assert first["num_samples"] == last["num_samples"] == N and last["train_loss"] < first["train_loss"]
    assert made.evaluate(data, batch_size=4, **columns)["num_samples"] == N
    net = made.get_model().eval()
    expected = net({"a": torch.from_numpy(A), "b": torch.from_numpy(B)}).detach().numpy()
    features = {"a": A, "b": B} if "arrays" in kind else data
    np.testing.assert_allclose(made.predict(features, batch_size=4), expected, rtol=1e-5, atol=1e-6)


def test_a_model_of_a_dict_is_trained_and_answered_with_shards(spark: Any) -> None:
    made = estimator(Estimator, backend="spark", workers_per_node=2)
    shards = XShards.partition({"x": {"a": A, "b": B}, "y": Y}, num_shards=3)
    assert made.fit(shards, batch_size=4)[0]["num_samples"] == N
    net = made.get_model().eval()
    expected = net({"a": torch.from_numpy(A), "b": torch.from_numpy(B)}).detach().numpy()
    answered = np.concatenate([shard["prediction"] for shard in made.predict(shards, batch_size=4).collect()])
    np.testing.assert_allclose(answered, expected, rtol=1e-5, atol=1e-6)
