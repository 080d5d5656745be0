"""MXNet's models: any number of ranks, on rows dealt out in any way, trains as one process of MXNet does."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classic.mxnet.truth import (
    ROWS,
    SEED,
    X,
    Y,
    cross_entropy,
    gluon_loop,
    index_of,
    module,
    module_loop,
    network,
    recorded,
)
from orca import Estimator
from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.core.triggers import MaxIteration, SeveralIteration
from orca.engines.local import LocalEngine
from orca.storage.checkpoints import newest_run, versions
from orca.testing import shards_of
from orca_classic.mxnet import create_config

pytestmark = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")

ADAM = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.02, "wd": 0.01}}
MOMENTUM = {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}}


def estimator(config: dict[str, Any], workers: int, creator: Any = network, **options: Any) -> Any:
    return Estimator.from_mxnet(
        config=create_config(seed=SEED, log_interval=0, extra_config=config),
        model_creator=creator,
        loss_creator=cross_entropy if creator is network else None,
        num_workers=workers,
        **{"backend": "local"} | options,
    )


def assert_same(weights: dict[str, Any], expected: dict[str, Any], tolerance: float = 2e-6) -> None:
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, atol=tolerance, rtol=1e-5, err_msg=name)


def trained(est: Any) -> dict[str, np.ndarray]:
    return dict(est.get_state_dict()["models"][0])


@pytest.mark.parametrize(
    ("cuts", "config"),
    [
        ([ROWS], ADAM),
        ([40, 40, ROWS], ADAM | {"hybrid": True}),
        ([1, 51, 52, ROWS], MOMENTUM | {"scales": {"last": 0.5}}),
        ([40, ROWS], MOMENTUM | {"frozen": True}),
    ],
    ids=["one rank, adam", "an empty shard, hybridized", "single rows, momentum, lr_mult", "frozen weights"],
)
def test_any_number_of_ranks_trains_as_a_plain_loop_of_gluon(cuts: list[int], config: dict[str, Any]) -> None:
    shards = [(part, Y[list(map(index_of, part))]) for part in np.split(X, cuts[:-1])]
    job = recorded(config, FitPlan(epochs=2, batch_size=7, seed=SEED))
    results = LocalEngine(len(cuts)).run(job, shards_of(shards), Settings(60))
    steps = [np.concatenate(parts) for parts in zip(*(steps for _, steps, _ in results), strict=True)]
    assert len(steps) == 16 and min(map(len, steps)) == 4  # a last step in which most ranks have no row
    expected = gluon_loop(config, [np.array(list(map(index_of, rows))) for rows in steps])
    for _, _, weights in results:
        assert_same(weights, expected)


def batches(config: dict[str, Any], kv: Any) -> Any:
    import mxnet as mx

    return mx.io.NDArrayIter(X[:48], Y[:48].astype("float32"), config["batch_size"])


@pytest.mark.parametrize(
    ("workers", "config"),
    [(1, ADAM | {"normalized": True}), (2, ADAM), (2, MOMENTUM)],
    ids=["one rank, batch normalization", "adam", "momentum"],
)
def test_a_module_trains_as_module_fit_does(workers: int, config: dict[str, Any]) -> None:
    est = estimator(config, workers, module)
    lines = est.fit(batches, epochs=3, batch_size=16)
    expected = module_loop(config, 16, 3, 48)
    assert_same(trained(est), expected)
    assert [line["num_samples"] for line in lines] == [48] * 3 and lines[-1]["train_loss"] < lines[0]["train_loss"]
    model = est.get_model()
    model.bind([("data", (48, 5))], for_training=False)
    again = model.predict(batches({"batch_size": 48}, None)).asnumpy()
    np.testing.assert_allclose(est.predict(X[:48]), again, atol=1e-6)
    loss = -np.log(again[np.arange(48), Y[:48]]).mean()
    assert est.evaluate((X[:48], Y[:48]))["val_loss"] == pytest.approx(loss, rel=1e-5)


def test_running_statistics_agree_on_all_ranks() -> None:
    config = MOMENTUM | {"normalized": True}
    shards = [(part, Y[list(map(index_of, part))]) for part in np.split(X, [9, 9])]
    results = LocalEngine(3).run(
        recorded(config, FitPlan(epochs=2, batch_size=20, seed=SEED)), shards_of(shards), Settings(60)
    )
    first, *others = [weights for _, _, weights in results]
    for weights in others:
        assert all(np.array_equal(weights[name], first[name]) for name in first)
    assert not np.array_equal(first["1.running_var"], np.ones(6)) and np.abs(first["1.running_mean"]).max() > 0


def test_running_mean_is_that_of_all_rows_of_a_step() -> None:
    config = {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.0}, "normalized": True}
    est = estimator(config, 3)
    est.fit((X, Y), batch_size=ROWS)
    expected = gluon_loop(config, [np.arange(ROWS)])
    np.testing.assert_allclose(trained(est)["1.running_mean"], expected["1.running_mean"], atol=1e-6)


class Halving:
    """A schedule that remembers when it halved the rate."""

    base_lr = 0.1

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, num_update: int) -> float:
        while num_update > self.count + 5:
            self.count += 5
            self.base_lr /= 2
        return self.base_lr


@pytest.mark.parametrize("kind", ["arrays", "own shares"])
def test_a_fit_resumed_mid_epoch_ends_where_the_whole_one_does(kind: str, tmp_path: Path) -> None:
    def shares(config: dict[str, Any], kv: Any) -> Any:
        import mxnet as mx

        mine = slice(0, 40) if kv.rank == 0 else slice(40, None)
        return mx.io.NDArrayIter(X[mine], Y[mine].astype("float32"), config["batch_size"], shuffle=True)

    config = {"optimizer": "nadam", "normalized": True, "dropout": 0.4, "hybrid": True}
    config["optimizer_params"] = {"lr_scheduler": Halving(), "learning_rate": 0.1}
    data = (X, Y) if kind == "arrays" else shares
    common = {"epochs": 3, "batch_size": 8}
    metrics = {"eval_metrics_creator": lambda config: ["acc", "pcc"]}
    whole = estimator(config, 2, **metrics)
    lines = whole.fit(data, **common)
    steps = [line["batch_count"] for line in lines]
    folder = str(tmp_path / "kept")
    first = estimator(config, 2, model_dir=folder, **metrics)
    cut = steps[0] + 3
    first.fit(data, **common, checkpoint_trigger=SeveralIteration(cut - 2), end_trigger=MaxIteration(cut))
    assert versions(newest_run(folder)) == [cut - 2]  # mid-epoch
    rest = estimator(config, 2, model_dir=folder, **metrics)
    again = rest.fit(data, **common, resume=True)
    assert [line["batch_count"] for line in again] == steps
    for name, value in trained(whole).items():
        assert np.array_equal(trained(rest)[name], value), name
    for line, expected in zip(again, lines, strict=True):
        for name in ("train_loss", "train_accuracy", "train_pcc", "num_samples"):
            assert line[name] == pytest.approx(expected[name], abs=1e-12), name


@pytest.fixture(params=["local", "spark", pytest.param("ray", marks=pytest.mark.full)])
def engine(request: pytest.FixtureRequest) -> str:
    """Give the word of each backend, with its cluster up."""
    if request.param != "local":
        pytest.importorskip({"spark": "pyspark", "ray": "ray"}[request.param])
        request.getfixturevalue({"spark": "spark", "ray": "ray_context"}[request.param])
    return str(request.param)


def test_models_train_on_every_engine(engine: str, tmp_path: Path) -> None:
    est = estimator(ADAM, 2, backend=engine)
    lines = est.fit((X, Y), epochs=2, batch_size=ROWS)
    assert [line["num_samples"] for line in lines] == [ROWS] * 2
    assert_same(trained(est), gluon_loop(ADAM, [np.arange(ROWS)] * 2))
    est.save(str(tmp_path / "state"))
    again = estimator(ADAM, 1).load(str(tmp_path / "state"))
    np.testing.assert_allclose(again.predict(X), est.predict(X), atol=1e-6)
    assert est.predict(X).shape == (ROWS, 3)


def test_a_loaded_state_trains_on_as_one_fit_does(tmp_path: Path) -> None:
    whole, first, second = (estimator(ADAM, 2) for _ in range(3))
    whole.fit((X, Y), epochs=4, batch_size=ROWS)
    first.fit((X, Y), epochs=2, batch_size=ROWS)
    second.load(first.save(str(tmp_path / "state"))).fit((X, Y), epochs=2, batch_size=ROWS)
    for name, value in trained(whole).items():
        np.testing.assert_allclose(trained(second)[name], value, atol=1e-6, err_msg=name)
