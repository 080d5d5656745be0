"""BigDL's criterions against numpy and torch's own functions, and what they are over rows."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from orca.errors import ArgumentError, DataError

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from orca.bigdl import criterion as C  # noqa: E402
from orca.bigdl.keras.objectives import MeanSquaredError, SparseCategoricalCrossEntropy  # noqa: E402

DRAW = np.random.default_rng(1)
X, Y, P = (DRAW.normal(size=(4, 3)).astype(np.float32) for _ in range(3))
P = np.exp(P) / np.exp(P).sum(1, keepdims=True)
LABELS = np.array([1, 3, 2, 3])
SIGNS = np.sign(Y)
T = torch.tensor

TRUTH: list[tuple[Any, Any, Any, Any]] = [
    (C.MSECriterion(), X, Y, lambda x: F.mse_loss(x, T(Y))),
    (C.AbsCriterion(), X, Y, lambda x: F.l1_loss(x, T(Y))),
    (C.AbsCriterion(False), X, Y, lambda x: F.l1_loss(x, T(Y), reduction="sum")),
    (C.ClassNLLCriterion(), np.log(P), LABELS, lambda x: F.nll_loss(x, T(LABELS) - 1)),
    (C.ClassNLLCriterion(size_average=False), np.log(P), LABELS,
     lambda x: F.nll_loss(x, T(LABELS) - 1, reduction="sum")),
    (C.ClassNLLCriterion(np.array([1.0, 2.0, 3.0])), np.log(P), LABELS,
     lambda x: F.nll_loss(x, T(LABELS) - 1, T([1.0, 2, 3]))),
    (C.ClassNLLCriterion(logProbAsInput=False), P, LABELS, lambda x: F.nll_loss(x.log(), T(LABELS) - 1)),
    (C.CrossEntropyCriterion(), X, LABELS, lambda x: F.cross_entropy(x, T(LABELS) - 1)),
    (C.CrossEntropyCriterion(), X[0], np.array(2), lambda x: F.cross_entropy(x[None], T([1]))),
    (C.BCECriterion(), P, (Y > 0) * 1.0, lambda x: F.binary_cross_entropy(x, T((Y > 0) * 1.0).float())),
    (C.BCECriterion(np.array([1.0, 2.0, 3.0])), P, (Y > 0) * 1.0,
     lambda x: F.binary_cross_entropy(x, T((Y > 0) * 1.0).float(), T([1.0, 2, 3]))),
    (C.SmoothL1Criterion(), X, Y, lambda x: F.smooth_l1_loss(x, T(Y))),
    (C.SoftMarginCriterion(), X, SIGNS, lambda x: F.soft_margin_loss(x, T(SIGNS))),
    (C.MarginCriterion(), X, SIGNS, lambda x: F.relu(1 - x * T(SIGNS)).mean()),
    (C.HingeEmbeddingCriterion(), X, SIGNS, lambda x: F.hinge_embedding_loss(x, T(SIGNS))),
    (C.DistKLDivCriterion(), np.log(P), P[::-1].copy(), lambda x: F.kl_div(x, T(P[::-1].copy()), reduction="sum") / 12),
    (C.MultiMarginCriterion(), X, LABELS, lambda x: F.multi_margin_loss(x, T(LABELS) - 1)),
    (C.MultiLabelSoftMarginCriterion(), X, (Y > 0) * 1.0,
     lambda x: F.multilabel_soft_margin_loss(x, T((Y > 0) * 1.0).float())),
    (C.CosineDistanceCriterion(), X, Y, lambda x: (1 - F.cosine_similarity(x, T(Y))).mean()),
    (C.L1Cost(), X, None, lambda x: x.abs().sum()),
    (C.MultiCriterion().add(C.MSECriterion(), 0.5).add(C.AbsCriterion(), 2.0), X, Y,
     lambda x: 0.5 * F.mse_loss(x, T(Y)) + 2 * F.l1_loss(x, T(Y))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "x", "target", "truth"), TRUTH, ids=[f"{type(r[0]).__name__}-{i}" for i, r in enumerate(TRUTH)]
)
def test_criterion_is_its_definition(loss: Any, x: Any, target: Any, truth: Any) -> None:
    given = torch.tensor(x, requires_grad=True)
    expected = truth(given)
    assert loss.forward(x, target) == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    np.testing.assert_allclose(loss.backward(x, target), given.grad, rtol=1e-4, atol=1e-6)
    again = pickle.loads(pickle.dumps(loss.to_torch()))
    assert float(again(*[torch.tensor(np.asarray(each)) for each in (x, target) if each is not None])) == pytest.approx(
        expected.item(), rel=1e-5
    )


def test_criterion_at_every_step_of_time_is_added_up_or_averaged() -> None:
    x, labels = np.log(np.stack([P, P[::-1]], 1)), np.stack([LABELS, LABELS], 1)
    each = [C.ClassNLLCriterion().forward(x[:, at], LABELS) for at in range(2)]
    assert C.TimeDistributedCriterion(C.ClassNLLCriterion()).forward(x, labels) == pytest.approx(sum(each), rel=1e-5)
    assert C.TimeDistributedCriterion(C.ClassNLLCriterion(), True).forward(x, labels) == pytest.approx(
        sum(each) / 2, rel=1e-5
    )
    masked = labels * np.array([1, 0])
    assert C.TimeDistributedMaskCriterion(C.ClassNLLCriterion()).forward(x, masked) == pytest.approx(each[0], rel=1e-5)


def test_labels_count_from_one_and_padding_counts_nothing() -> None:
    loss = C.ClassNLLCriterion()
    assert loss.one_based and not C.MSECriterion().one_based and C.TimeDistributedCriterion(loss).one_based
    with pytest.raises(DataError, match="count from 1: 1 to 3; got 0"):
        loss.forward(np.log(P), LABELS - 1)
    padded = loss.forward(np.log(P), np.array([1, -1, 2, -1]))
    assert padded == pytest.approx(-np.log(P)[[0, 2], [0, 1]].mean(), rel=1e-5)
    weighted = C.ClassNLLCriterion(np.array([1.0, 2.0, 4.0]))
    assert weighted.reduction(torch.tensor([1.0, -1, 3, 2])).tolist() == [1, 0, 4, 2]


def test_targets_never_broadcast() -> None:
    with pytest.raises(DataError, match=r"outputs of shape \(4, 3\) .* got \(4,\)"):
        C.MSECriterion().forward(X, Y[:, 0])
    assert C.MSECriterion().forward(X[:, :1], Y[:, 0]) == pytest.approx(np.square(X[:, 0] - Y[:, 0]).mean(), rel=1e-5)


def test_what_a_criterion_is_over_rows() -> None:
    assert [C.MSECriterion().reduction, C.AbsCriterion(False).reduction, C.L1Cost().reduction] == ["mean", "sum", "sum"]
    assert (
        C.MultiCriterion().add(C.MSECriterion()).add(C.AbsCriterion(False)).reduction is None
    )  # the learner finds out
    with pytest.raises(ArgumentError, match="MSECriterion has no argument 'size_average'; it has none"):
        C.MSECriterion(size_average=True)
    with pytest.raises(ArgumentError, match="takes criterions; got Linear"):
        C.MultiCriterion().add(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("loss", [C.ClassNLLCriterion(), C.CrossEntropyCriterion(), C.ClassNLLCriterion(np.ones(3))])
def test_labels_that_are_all_padding_lose_nothing(loss: Any) -> None:
    assert loss.forward(np.log(P), np.full(4, -1)) == 0
    assert not loss.backward(np.log(P), np.full(4, -1)).any()
    assert C.ClassNLLCriterion(np.array([0.0, 1.0, 1.0])).forward(np.log(P), np.ones(4)) == 0


def test_binary_cross_entropy_of_a_sure_mistake_has_a_gradient() -> None:
    loss, sure, truth = C.BCECriterion(), np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert loss.forward(sure, truth) == pytest.approx(-np.log(1e-12), rel=1e-5)
    assert loss.backward(sure, truth).tolist() == pytest.approx([5e11, -5e11], rel=1e-5)


@pytest.mark.parametrize(("padding", "zero_based"), [(-1, True), (0, True), (2, True), (1, False), (7, True)])
def test_sparse_cross_entropy_leaves_out_its_own_padding(padding: int, zero_based: bool) -> None:
    labels = np.array([1, 2, 1, 2] if zero_based else [1, 2, 3, 2])
    labels[[0, 3]] = padding
    loss = SparseCategoricalCrossEntropy(zero_based_label=zero_based, padding_value=padding)
    kept = labels != padding
    places = labels[kept] - (0 if zero_based else 1)
    assert loss.forward(P, labels) == pytest.approx(-np.log(P)[kept, places].mean(), rel=1e-5)
    assert loss.reduction(torch.tensor(labels)).tolist() == kept.tolist()


def test_criterions_of_criterions_say_what_they_are_over_rows() -> None:
    weighted = C.ClassNLLCriterion(np.array([1.0, 2.0, 4.0]))
    assert C.MultiCriterion().add(C.MultiMarginCriterion()).add(weighted).reduction is None
    assert C.MultiCriterion().add(C.MSECriterion()).add(C.AbsCriterion()).reduction == "mean"
    assert MeanSquaredError(size_average=False).reduction == "sum"
    mask = C.TimeDistributedMaskCriterion
    assert mask(C.ClassNLLCriterion(size_average=False)).reduction == "sum"
    labels = torch.tensor([[1, 0, 3], [0, 0, 2]])
    assert mask(weighted).reduction(labels).tolist() == [5, 2]
    assert mask(C.ClassNLLCriterion()).reduction(labels).tolist() == [2, 1]


def test_criterions_of_tables_tell_outputs_from_targets() -> None:
    x, y = torch.tensor(X), torch.tensor(Y)
    both = C.KLDCriterion().forward([X, Y])
    assert float(C.KLDCriterion().to_torch()(x, y, y)) == pytest.approx(both, rel=1e-5)
    repeated = C.ParallelCriterion(True).add(C.MSECriterion()).add(C.AbsCriterion())
    expected = F.mse_loss(x, y) + F.l1_loss(2 * x, y)
    assert float(repeated.to_torch()(x, 2 * x, y)) == pytest.approx(float(expected), rel=1e-5)
    ones = torch.ones_like(x)
    weighted = C.SmoothL1CriterionWithWeights(1.0)
    assert float(weighted.to_torch()(x, y, ones, ones)) == pytest.approx(weighted.forward(X, Y), rel=1e-5)
    alike = C.CosineEmbeddingCriterion()
    held = C.MultiCriterion().add(alike, 2.0).to_torch()
    signs = np.sign(Y[:, 0])
    assert float(held(x, y, T(signs))) == pytest.approx(2 * alike.forward([X, Y], signs), rel=1e-5)
