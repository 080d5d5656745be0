"""Optimizer on an RDD: validation, checkpoints, resuming in another program, evaluation, classes that count from 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bigdl.optim.optimizer import (  # noqa: E402
    DistriOptimizer,
    EveryEpoch,
    LocalOptimizer,
    Loss,
    MaxEpoch,
    Optimizer,
    Top1Accuracy,
)
from orca.errors import ArgumentError, DataError, WorkerFailed  # noqa: E402
from orca_classic.bigdl import criterion as C  # noqa: E402
from orca_classic.bigdl import layers as L  # noqa: E402
from orca_classic.bigdl.optimizers import SGD, Adam  # noqa: E402
from orca_classic.nnframes.wrappers import TorchModel  # noqa: E402
from orca_classic.zoo.sample import Sample  # noqa: E402

DRAW = np.random.default_rng(8)
X = DRAW.normal(size=(29, 4)).astype(np.float32)
Y = 1 + (X[:, 0] > X[:, 1]).astype(np.float32)
SAMPLES = [Sample.from_ndarray(x, y) for x, y in zip(X, Y, strict=True)]


def network() -> Any:
    model = L.Sequential().add(L.Linear(4, 2)).add(L.LogSoftMax())
    model.set_weights([np.eye(2, 4) * 0.1, np.zeros(2)])
    return model


def local(model: Any, end: int) -> Any:
    return LocalOptimizer(X, Y, model, C.ClassNLLCriterion(), MaxEpoch(end), 8, Adam(learningrate=0.05))


@pytest.mark.slow
def test_rdd_of_samples_trains_as_a_plain_loop_and_is_evaluated(spark: Any) -> None:
    rdd = spark.sparkContext.parallelize([SAMPLES[:2], [], SAMPLES[2:]], 3).flatMap(lambda rows: rows)
    optimizer = DistriOptimizer(network(), rdd, C.ClassNLLCriterion(), MaxEpoch(2), 29, SGD(learningrate=0.5))
    optimizer.workers_per_node = 3
    optimizer.set_validation(10, rdd, EveryEpoch())
    model = optimizer.optimize()
    net = network().to_torch()
    steps = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(2):
        steps.zero_grad()
        torch.nn.functional.nll_loss(net(torch.tensor(X)), torch.tensor(Y).long() - 1).backward()
        steps.step()
    for mine, truth in zip(model.get_weights(), net.parameters(), strict=True):
        np.testing.assert_allclose(mine, truth.detach().numpy(), rtol=1e-4, atol=1e-6)
    scores = model.predict(X)
    accuracy, loss = model.evaluate(rdd, 7, [Top1Accuracy(), Loss()])
    assert (accuracy.result, accuracy.total_num) == (pytest.approx((scores.argmax(1) + 1 == Y).mean()), 29)
    assert loss.result == pytest.approx(-scores[np.arange(29), Y.astype(int) - 1].mean(), rel=1e-5)
    assert model.predict_class(rdd).collect() == (scores.argmax(1) + 1).tolist()
    for empty in (spark.sparkContext.emptyRDD(), rdd.filter(lambda row: False)):
        with pytest.raises(DataError, match="there are no rows to evaluate: the data is empty"):
            model.evaluate(empty, 7, [Top1Accuracy(), Loss()])
        assert model.predict(empty).collect() == []
    module = torch.nn.Linear(4, 2)
    answers = TorchModel.from_pytorch(module).predict(rdd).collect()
    np.testing.assert_allclose(np.stack(answers), module(torch.tensor(X)).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_training_is_resumed_from_its_checkpoints(tmp_path: Path) -> None:
    whole = local(network(), 3)
    truth = whole.optimize().get_weights()
    first = local(network(), 2)
    first.set_checkpoint(EveryEpoch(), str(tmp_path), isOverWrite=False)
    first.optimize()
    assert len(list(tmp_path.glob("run-*/orca.*"))) == 2
    second = local(network(), 3)
    second.set_checkpoint(EveryEpoch(), str(tmp_path), isOverWrite=False)
    for mine, other in zip(second.optimize(resume=True).get_weights(), truth, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_wrong_labels_and_data_are_named() -> None:
    with pytest.raises(WorkerFailed, match=r"labels count from 1|classes 1 to 2|from 1"):
        LocalOptimizer(X, Y - 1, network(), C.ClassNLLCriterion(), MaxEpoch(1), 8).optimize()
    model, unlabelled = network(), [Sample(sample.features, []) for sample in SAMPLES]
    with pytest.raises(DataError, match="these rows have no labels to compare with"):
        model.evaluate(unlabelled, 8, [Top1Accuracy()])
    with pytest.raises(DataError, match="must have the same number of rows"):
        model.evaluate(X, Y[:5], 8, [Top1Accuracy()])
    with pytest.raises(ArgumentError, match="evaluate takes arrays x and y, Samples, or an RDD of Samples; got dict"):
        model.evaluate({"x": X}, 8, [Top1Accuracy()])
    with pytest.raises(ArgumentError, match="with brackets; got type"):
        model.evaluate(X, Y, 8, [Top1Accuracy])
    assert model.predict(np.zeros((0, 4))).shape == (0, 2)


def test_batch_may_be_smaller_than_the_workers() -> None:
    trained = []
    for ranks in (1, 3):
        rows = np.repeat(X[:1], 9, 0), np.repeat(Y[:1], 9)  # alike, so that it does not matter which ones a step has
        optimizer = Optimizer(network(), rows, C.ClassNLLCriterion(), MaxEpoch(1), 2, backend="local")
        optimizer.workers_per_node = ranks
        trained.append(optimizer.optimize().get_weights())
    for mine, truth in zip(*trained, strict=True):
        np.testing.assert_allclose(mine, truth, rtol=1e-4, atol=1e-6)


def test_torch_module_is_trained_in_place_and_goes_on_into_the_set_board(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 1)
    optimizer = LocalOptimizer(X, X[:, :1], module, C.MSECriterion(), MaxEpoch(1), 29)
    optimizer.set_tensorboard(str(tmp_path), "run")
    before = module.weight.detach().clone()
    assert optimizer.optimize() is module
    middle = module.weight.detach().clone()
    optimizer.set_end_when(MaxEpoch(2))
    optimizer.optimize()
    assert not torch.equal(before, middle) and not torch.equal(middle, module.weight)
    assert optimizer.get_train_summary("Loss")[:, 0].tolist() == [1, 2]
