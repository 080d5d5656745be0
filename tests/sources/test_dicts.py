"""Models whose forward takes a dict are trained and answered with every kind of data that can give one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from frameworks.torch.alone import AloneEngine
from frameworks.torch.pair import RANKS, Recording, on_two_ranks
from orca import Estimator, XShards
from orca.core.plan import Plan, even_split
from orca.estimators.torch import TorchEstimator
from orca.metrics import MAE

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


# Labels that are dicts, on two ranks; the last step has one row.

ROWS, BATCH = 13, 4
LABELS = {"more": np.stack([A[:ROWS, 0], B[:ROWS]], axis=1), "less": B[:ROWS] / 2}
WEIGHTS = np.linspace(0, 1, ROWS, dtype=np.float32)


class Heads(nn.Module):
    """Answer with a dict, in another order than the labels'."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.less, self.more = nn.Linear(2, 1), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"less": self.less(x), "more": self.more(x), "hidden": x}


def each_row(output: Any, target: Any) -> torch.Tensor:
    errors = {name: (output[name] - value) ** 2 for name, value in target.items()}
    return errors["less"].sum(1) + 3 * errors["more"].sum(1)


def of_dicts(output: Any, target: Any) -> torch.Tensor:
    return each_row(output, target).mean()


def of_tensors(less: Any, more: Any, hidden: Any, one: Any, other: Any, third: Any) -> torch.Tensor:
    return of_dicts({"less": less, "more": more}, {"less": one, "more": other})


def largest(output: Any, target: Any) -> Any:
    return max((output[name].flatten() - value.flatten()).abs().max() for name, value in target.items())


def plain_loop(weights: np.ndarray) -> dict[str, torch.Tensor]:
    """Return the weights after two epochs over the same steps in one process."""
    net = Heads()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    cuts = even_split(ROWS, RANKS)
    for _ in range(2):
        for before, after in Plan(tuple(stop - start for start, stop in cuts), BATCH).walk():
            rows = [first + i for (first, _), b, a in zip(cuts, before, after, strict=True) for i in range(b, a)]
            less, more = (torch.from_numpy(LABELS[name][rows]) for name in ("less", "more"))
            target = {"more": more, "less": less[:, None]}
            losses, weight = each_row(net(torch.from_numpy(A[rows])), target), torch.from_numpy(weights[rows])
            optimizer.zero_grad()
            ((losses * weight).sum() / weight.sum()).backward()
            optimizer.step()
    return net.state_dict()


def test_labels_of_a_dict_meet_losses_and_metrics_by_key() -> None:
    def made(loss: Any, **options: Any) -> TorchEstimator:
        return Recording.from_torch(
            model=Heads(),
            optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            loss=loss,
            metrics=[MAE(), largest],
            backend="local",
            seed=1,
            use_tqdm=False,
            **options,
        )

    data, options = (A[:ROWS], LABELS), {"batch_size": BATCH, "shuffle": False, "epochs": 2}
    named = (A[:ROWS], LABELS | {"hidden": A[:ROWS]})
    results = on_two_ranks(
        {
            "dicts": lambda: made(of_dicts).fit(data, **options),
            "pieces": lambda: made(of_dicts, accumulate=3).fit(data, **options),
            "tensors": lambda: made(of_tensors).fit(named, **options),
            "weighed": lambda: made(each_row).fit((*data, WEIGHTS), sample_weight=True, **options),
            "evaluated": lambda: made(of_dicts).evaluate(data, batch_size=BATCH),
        }
    )
    for name in ("dicts", "pieces", "tensors", "weighed"):
        (_, state), _ = results[name]
        expected = plain_loop(WEIGHTS if name == "weighed" else np.ones(ROWS, np.float32))
        for key, value in expected.items():
            np.testing.assert_allclose(state.payload["models"][0][key], value, rtol=1e-4, atol=1e-6, err_msg=name)
    with torch.no_grad():
        output = Heads()(torch.from_numpy(A[:ROWS]))
    target = {name: torch.from_numpy(value) for name, value in LABELS.items()}
    (reduced, _, _), _ = results["evaluated"]
    assert reduced["MAE"] == pytest.approx(float((output["less"][:, 0] - target["less"]).abs().mean()), rel=1e-5)
    assert reduced["largest"] == pytest.approx(float(largest(output, target)), rel=1e-5)
    whole = of_dicts(output, target | {"less": target["less"][:, None]})
    assert reduced["val_loss"] == pytest.approx(float(whole), rel=1e-5)
