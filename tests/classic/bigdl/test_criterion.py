"""BigDL's criterions against numpy and torch's own functions, and what they are over rows."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

from orca.errors import ArgumentError, DataError

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from orca_classic.bigdl import criterion as C  # noqa: E402
from orca_classic.bigdl.keras.objectives import (  # noqa: E402
    OBJECTIVES,
    Hinge,
    MeanSquaredError,
    RankHinge,
    SparseCategoricalCrossEntropy,
    SquaredHinge,
)
from orca_classic.bigdl.layers import Abs, Square  # noqa: E402

DRAW = np.random.default_rng(1)
X, Y, Z, P = (DRAW.normal(size=(4, 3)).astype(np.float32) for _ in range(4))
P = np.exp(P) / np.exp(P).sum(1, keepdims=True)
LABELS = np.array([1, 3, 2, 3])
SIGNS = np.sign(Y)
T = torch.tensor

# A criterion, its output(s), its target(s), and its definition by the outputs; what divides a sum is spelled out.
TRUTH: list[tuple[Any, Any, Any, Any]] = []
BITS, W3, NLL = (Y > 0) * 1.0, np.array([1.0, 2.0, 3.0]), np.log(P)
PADDED, PLACES = np.array([1, -1, 2, -1]), LABELS - 1
IMAGES, PIXELS = DRAW.normal(size=(2, 3, 4, 5)).astype(np.float32), DRAW.integers(1, 4, (2, 4, 5))
STEPS, STEP_LABELS = np.log(np.stack([P, P[::-1]], 1)), np.array([[1, 2], [3, 0], [2, 1], [3, 0]])
TABLE = [X, Y]


def row(kind: Any, x: Any, target: Any, by: Any, *args: Any, count: float | None = None, **kwargs: Any) -> None:
    """Add a row; with `count`, `by` is a sum that size_average divides by it: both ways are rows then."""
    if count is None:
        TRUTH.append((kind(*args, **kwargs), x, target, by))
        return
    for average in (True, False):
        word = "sizeAverage" if kind is C.PGCriterion else "size_average"
        made = kind(*args, **kwargs, **{word: average})
        TRUTH.append((made, x, target, lambda *t, n=count if average else 1: by(*t) / n))


def nll(logs: Any, labels: Any, weights: Any = None) -> Any:
    """Return minus the sum of the logarithms at labels that count from 1, but at -1."""
    return -sum(
        (1 if weights is None else weights[label - 1]) * logs[at, label - 1]
        for at, label in enumerate(labels)
        if label > 0
    )


def margins(x: Any, labels: Any, p: int = 1, margin: float = 1.0, weights: Any = None) -> Any:
    total = 0
    for at, label in enumerate(labels):
        for other in set(range(x.shape[1])) - {label - 1}:
            share = 1 if weights is None else weights[label - 1]
            total = total + share * (margin - x[at, label - 1] + x[at, other]).clamp(min=0) ** p / x.shape[1]
    return total


def several(x: Any, labels: Any) -> Any:
    """The margin of several right classes; a 0 ends them."""
    total = 0
    for at, line in enumerate(labels):
        right = [label - 1 for label in line[: list(line).index(0) if 0 in line else None]]
        wrong = [place for place in range(x.shape[1]) if place not in right]
        total = total + sum((1 - x[at, i] + x[at, j]).clamp(min=0) for i in right for j in wrong) / x.shape[1]
    return total


def cosine(a: Any, b: Any) -> Any:
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def smooth(d: Any, beta: float = 1.0) -> Any:
    return torch.where(d.abs() < beta, d.square() / (2 * beta), d.abs() - beta / 2)


def step_sum(x: Any) -> Any:
    return sum(nll(x[:, at], np.maximum(STEP_LABELS[:, at], 1)) / 4 for at in range(2))


SIMPLEX = T([[1, 0, 0], [-0.5, 3**0.5 / 2, 0], [-0.5, -(3**0.5) / 2, 0]])  # corners of a triangle
ONE, TWO = SIGNS[:, 0], np.array([1.0, -1, -1, 1])
# fmt: off
row(C.MSECriterion, X, Y, lambda x: (x - T(Y)).square().sum() / 12)
row(MeanSquaredError, X, Y, lambda x: (x - T(Y)).square().sum(), count=12)
row(C.AbsCriterion, X, Y, lambda x: (x - T(Y)).abs().sum(), count=12)
row(C.SmoothL1Criterion, X, 3 * Y, lambda x: smooth(x - T(3 * Y)).sum(), count=12)
row(C.SmoothL1CriterionWithWeights, X, [Y, 2 * BITS, 3 * BITS[::-1]],
    lambda x: (T(3 * BITS[::-1].copy()) * smooth((x - T(Y)) * T(2 * BITS), 1 / 4)).sum() / 5, 2.0, 5)
row(C.SmoothL1CriterionWithWeights, X, Y, lambda x: smooth(x - T(Y), 1 / 4).sum(), 2.0)
row(C.ClassNLLCriterion, NLL, LABELS, lambda x: nll(x, LABELS), count=4)
row(C.ClassNLLCriterion, NLL, LABELS, lambda x: nll(x, LABELS, W3), W3, count=9)
row(C.ClassNLLCriterion, NLL, PADDED, lambda x: nll(x, PADDED, W3), W3, count=3)
row(C.ClassNLLCriterion, NLL, PADDED * 0 - 1, lambda x: (0 * x).sum())
row(C.ClassNLLCriterion, P, LABELS, lambda x: nll(x.log(), LABELS), logProbAsInput=False, count=4)
row(C.ClassNLLCriterion, NLL[1], np.array(3), lambda x: -x[2])
row(C.CrossEntropyCriterion, X, LABELS, lambda x: nll(x.log_softmax(1), LABELS), count=4)
row(C.CrossEntropyCriterion, X, PADDED, lambda x: nll(x.log_softmax(1), PADDED, W3), W3, count=3)
row(C.CrossEntropyCriterion, X[0], np.array(2), lambda x: -x.log_softmax(0)[1])
row(SparseCategoricalCrossEntropy, P, PLACES, lambda x: nll(x.log(), LABELS, W3), weights=W3, count=9)
row(SparseCategoricalCrossEntropy, NLL, PLACES, lambda x: nll(x, LABELS) / 4, True)
for mode, count in (("VALID", 40), ("FULL", 40), ("BATCH_SIZE", 2), ("NONE", 1)):
    row(C.SoftmaxWithCriterion, IMAGES, PIXELS[:, None], lambda x, n=count: nll(
        x.log_softmax(1).movedim(1, -1).reshape(-1, 3), PIXELS.reshape(-1)) / n, normalize_mode=mode)
row(C.SoftmaxWithCriterion, X, LABELS, lambda x: nll(x.log_softmax(1), [1, -1, 2, -1]) / 2, 3)
row(C.MultiMarginCriterion, X, LABELS, lambda x: margins(x, LABELS), count=4)
row(C.MultiMarginCriterion, X, LABELS, lambda x: margins(x, LABELS, 2, 0.5, W3), 2, W3, 0.5, count=4)
row(C.MultiMarginCriterion, X[0], np.array([2]), lambda x: margins(x[None], [2]))
row(C.MultiLabelMarginCriterion, X, np.array([[1, 0, 0], [3, 1, 0], [2, 0, 0], [3, 2, 1]]), lambda x: several(x, [[1, 0,
    0], [3, 1, 0], [2, 0, 0], [3, 2, 1]]), count=4)
row(C.MultiLabelMarginCriterion, X[0], np.array([3, 0, 0]), lambda x: several(x[None], [[3, 0, 0]]))
row(C.ClassSimplexCriterion, X, LABELS, lambda x: (x - SIMPLEX[LABELS - 1]).square().sum() / 12, 3)
row(C.BCECriterion, P, BITS, lambda x: -(T(BITS) * x.log() + T(1 - BITS) * (1 - x).log()).sum(), count=12)
row(C.BCECriterion, P, BITS, lambda x: -(T(W3) * (T(BITS) * x.log() + T(1 - BITS) * (1 - x).log())).sum(), W3, count=12)
row(C.MultiLabelSoftMarginCriterion, X, BITS,
    lambda x: -(T(W3) * (T(BITS) * torch.sigmoid(x).log() + T(1 - BITS) * torch.sigmoid(-x).log())).sum(), W3, count=12)
row(C.SoftMarginCriterion, X, SIGNS, lambda x: (1 + (-T(SIGNS) * x).exp()).log().sum(), count=12)
row(C.MarginCriterion, X, SIGNS, lambda x: (0.5 - T(SIGNS) * x).clamp(min=0).sum(), 0.5, count=12)
row(C.MarginCriterion, X, SIGNS, lambda x: (1 - T(SIGNS) * x).clamp(min=0).square().sum(), squared=True, count=12)
row(Hinge, X, SIGNS, lambda x: (0.5 - T(SIGNS) * x).clamp(min=0).sum(), 0.5, count=12)
row(SquaredHinge, X, SIGNS, lambda x: (1 - T(SIGNS) * x).clamp(min=0).square().sum(), count=12)
row(SquaredHinge, X, SIGNS, lambda x: (1 - T(SIGNS) * x).clamp(min=0).square().sum())
row(RankHinge, X[:, :1], Y[:, :1],
    lambda x: ((1 - x[0] + x[1]).clamp(min=0) + (1 - x[2] + x[3]).clamp(min=0)).sum() / 2)
row(C.HingeEmbeddingCriterion, X, SIGNS, lambda x: torch.where(T(SIGNS) > 0, x, (0.5 - x).clamp(min=0)).sum(), 0.5,
    count=12)
row(C.DistKLDivCriterion, NLL, P[::-1].copy(), lambda x: (T(P[::-1].copy()) * (T(P[::-1].copy()).log() - x)).sum(),
    count=12)
row(C.DistKLDivCriterion, NLL, BITS, lambda x: -(T(BITS) * x).sum(), count=12)
row(C.CategoricalCrossEntropy, P, BITS, lambda x: -(T(BITS) * (x / x.sum(1, keepdim=True)).log()).sum() / 4)
row(C.KullbackLeiblerDivergenceCriterion, P, P[::-1].copy(),
    lambda x: (T(P[::-1].copy()) * (T(P[::-1].copy()) / x).log()).sum() / 4)
row(C.PoissonCriterion, P, Y, lambda x: (x - T(Y) * (x + 1e-07).log()).sum() / 12)
row(C.CosineProximityCriterion, X, Y, lambda x: -cosine(x, T(Y)).sum() / 12)
row(C.MeanAbsolutePercentageCriterion, X, Y, lambda x: ((x - T(Y)) / T(Y)).abs().sum() * 100 / 12)
row(C.MeanSquaredLogarithmicCriterion, P, abs(Y), lambda x: ((T(abs(Y)) + 1).log() - (x + 1).log()).square().sum() / 12)
row(C.CosineDistanceCriterion, X, Y, lambda x: (1 - cosine(x, T(Y))).sum(), count=4)
row(C.CosineDistanceCriterion, X[0], Y[0], lambda x: 1 - cosine(x, T(Y[0])))
row(C.DiceCoefficientCriterion, P, BITS,
    lambda x: (1 - (2 * (x * T(BITS)).sum(1) + 2) / (x.sum(1) + T(BITS).sum(1) + 2)).sum(), epsilon=2.0, count=4)
row(C.L1Cost, X, None, lambda x: (x * x.sign()).sum())
row(C.DotProductCriterion, X, Y, lambda x: (x * T(Y)).sum(), count=4)
row(C.PGCriterion, P, Y, lambda x: -(x.log() * T(Y)).sum(), count=4)
# Tables.
row(C.CosineEmbeddingCriterion, TABLE, ONE, lambda a, b: torch.where(T(ONE) > 0, 1 - cosine(a, b), (cosine(a,
    b) - 0.1).clamp(min=0)).sum(), 0.1, count=4)
row(C.L1HingeEmbeddingCriterion, TABLE, TWO, lambda a, b: torch.where(T(TWO) > 0, (a - b).abs().sum(1),
    (2.5 - (a - b).abs().sum(1)).clamp(min=0)).sum() / 4, 2.5)
row(C.L1HingeEmbeddingCriterion, [X[0], Y[0]], np.array([-1.0]), lambda a, b: (9 - (a - b).abs().sum()).clamp(min=0),
    9.0)
row(C.MarginRankingCriterion, [X[:, 0], Y[:, 0]], TWO, lambda a, b: (0.5 - T(TWO) * (a - b)).clamp(min=0).sum(), 0.5,
    count=4)
row(C.KLDCriterion, TABLE, Y, lambda m, v: (m.square() + v.exp() - 1 - v).sum() / 2, count=4)
row(C.GaussianCriterion, TABLE, Z, lambda m,
    v: ((2 * math.pi * v.exp()).sqrt().log() + (T(Z) - m).square() / (2 * v.exp())).sum())
TRUTH += [
    (C.MultiCriterion().add(C.MSECriterion(), 0.5).add(C.AbsCriterion(), 2.0), X, Y,
     lambda x: 0.5 * (x - T(Y)).square().mean() + 2 * (x - T(Y)).abs().mean()),
    (C.ParallelCriterion().add(C.MSECriterion(), 0.5).add(C.ClassNLLCriterion()), [X, NLL], [Y, LABELS],
     lambda a, b: 0.5 * (a - T(Y)).square().mean() + nll(b, LABELS) / 4),
    (C.ParallelCriterion(True).add(C.MSECriterion()).add(C.AbsCriterion()), TABLE, Z,
     lambda a, b: (a - T(Z)).square().mean() + (b - T(Z)).abs().mean()),
    (C.TransformerCriterion(C.MSECriterion(), Square(), Abs()), X, Y, lambda x: (x * x - T(abs(Y))).square().mean()),
    (C.TimeDistributedCriterion(C.ClassNLLCriterion()), STEPS, np.maximum(STEP_LABELS, 1), step_sum),
    (C.TimeDistributedCriterion(C.ClassNLLCriterion(), True), STEPS, np.maximum(STEP_LABELS, 1),
     lambda x: step_sum(x) / 2),
    (C.TimeDistributedMaskCriterion(C.ClassNLLCriterion()), STEPS, STEP_LABELS,
     lambda x: nll(x.reshape(8, 3), np.where(STEP_LABELS == 0, -1, STEP_LABELS).reshape(-1)) / 6),
]
# fmt: on


@pytest.mark.parametrize(("criterion", "label", "words"), [
    (C.ClassNLLCriterion(), 0, "from 1: 1 to 3; got 0. Add 1"), (C.CrossEntropyCriterion(), 1.5, "got 1.5"),
    (C.CrossEntropyCriterion(), np.nan, "got nan"), (C.SoftmaxWithCriterion(ignore_label=7), 4, "got 4"),
    (SparseCategoricalCrossEntropy(), 3, "from 0: 0 to 2; got 3. Take 1 off"),
    (SparseCategoricalCrossEntropy(zero_based_label=False), 0, "from 1: 1 to 3; got 0"),
])  # fmt: skip
def test_labels_that_are_no_classes_are_named(criterion: Any, label: float, words: str) -> None:
    with pytest.raises(DataError, match=words):
        criterion.forward(np.full((2, 3), 1 / 3), np.array([1, label]))


def test_every_criterion_has_a_definition_here() -> None:
    kinds = {type(each[0]).__name__ for each in TRUTH}
    own = {kind.__name__ for kind in OBJECTIVES.values() if kind is not C.Criterion}
    assert kinds == {*C.CRITERIONS, *own}


@pytest.mark.parametrize(
    ("loss", "x", "target", "truth"), TRUTH, ids=[f"{type(r[0]).__name__}-{i}" for i, r in enumerate(TRUTH)]
)
def test_criterion_is_its_definition(loss: Any, x: Any, target: Any, truth: Any) -> None:
    table = isinstance(x, list)
    given = [torch.tensor(each, requires_grad=True) for each in (x if table else [x])]
    expected = truth(*given)
    assert loss.forward(x, target) == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    expected.backward()
    back = loss.backward(x, target)
    for mine, tensor in zip(back if table else [back], given, strict=True):
        np.testing.assert_allclose(mine, tensor.grad, rtol=1e-3, atol=1e-5)
    again = pickle.loads(pickle.dumps(loss.to_torch()))
    targets = target if isinstance(target, list) else [] if target is None else [target]
    if isinstance(loss, C.SmoothL1CriterionWithWeights | C.ParallelCriterion) or not isinstance(target, list):
        tensors = [torch.tensor(np.ascontiguousarray(each)) for each in [*(x if table else [x]), *targets]]
        assert float(again(*tensors)) == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)


BATCHES = [  # of several rows, and no matter for the learner to find out
    each
    for each in TRUTH
    if len(each[1][0] if isinstance(each[1], list) else each[1]) != 3 and each[0].reduction is not None
]


@pytest.mark.parametrize(
    ("loss", "x", "target", "truth"), BATCHES, ids=[f"{type(r[0]).__name__}-{i}" for i, r in enumerate(BATCHES)]
)
def test_losses_of_uneven_parts_add_up_as_the_reduction_says(loss: Any, x: Any, target: Any, truth: Any) -> None:
    def part(tree: Any, rows: slice) -> Any:
        return [each[rows] for each in tree] if isinstance(tree, list) else None if tree is None else tree[rows]

    total, mass = 0.0, 0.0
    for rows in (slice(0, 1), slice(1, None)):
        some, wanted = part(x, rows), part(target, rows)
        count = len(some[0] if isinstance(x, list) else some)
        if callable(loss.reduction):
            leaves = [
                torch.tensor(np.ascontiguousarray(leaf)) for leaf in (wanted if isinstance(wanted, list) else [wanted])
            ]
            count = float(loss.reduction(*leaves).sum())
        total += loss.forward(some, wanted) * (1 if loss.reduction == "sum" else count)
        mass += count
    expected = loss.forward(x, target) * (1 if loss.reduction == "sum" else mass)
    assert total == pytest.approx(expected, rel=1e-4, abs=1e-6)


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
    with pytest.raises(DataError, match="RankHinge takes pairs of rows; got 3 outputs"):
        RankHinge().forward(X[:3, :1], None)
    with pytest.raises(
        DataError, match=r"outputs of shape \(4, 3\) and targets of shape \(4,\): targets must have the shape"
    ):
        C.MSECriterion().forward(X, Y[:, 0])
    assert C.MSECriterion().forward(X[:, :1], Y[:, 0]) == pytest.approx(np.square(X[:, 0] - Y[:, 0]).mean(), rel=1e-5)


OTHER = {"KLDCriterion": ([X], None), "L1Cost": ([X], None), "ParallelCriterion": ([X, X], Y)}
HOLDING = {"TimeDistributedCriterion", "TimeDistributedMaskCriterion", "TransformerCriterion"}


@pytest.mark.parametrize("name", sorted(C.CRITERIONS))
def test_wrong_shape_names_the_criterion(name: str) -> None:
    args = {"ClassSimplexCriterion": [3], "SmoothL1CriterionWithWeights": [1.0]}.get(name, [])
    criterion = C.CRITERIONS[name](*[C.MSECriterion()] if name in HOLDING else args)
    if name in ("MultiCriterion", "ParallelCriterion"):
        criterion.add(C.MSECriterion())
    for x, target in (OTHER[name],) if name in OTHER else ((X, np.ones((4, 2))), ([X, X, X], np.ones(4)), (X, None)):
        for verb in (criterion.forward, criterion.backward):
            with pytest.raises(DataError, match=f"({name}|MSECriterion) cannot take outputs of shape "):
                verb(x, target)


def test_wrong_numbers_of_outputs_targets_and_steps_are_told() -> None:
    parallel = C.ParallelCriterion().add(C.MSECriterion()).add(C.MSECriterion())
    steps = C.TimeDistributedCriterion(C.MSECriterion())
    for criterion, x, target, words in (
        (C.ClassNLLCriterion(), X, None, r"outputs of shape \(4, 3\) and targets of shape None: it needs targets"),
        (C.ClassNLLCriterion(), X, [Y, Y], "it takes one tensor"),
        (parallel, [X, X, X], [X, X, X], "2 criterions take as many outputs and targets"),
        (steps, X[:, :2, None], X[:, :, None], "targets must have as many steps of time as the outputs, 2"),
    ):
        with pytest.raises(DataError, match=words):
            criterion.forward(x, target)


def test_distances_between_two_outputs_take_no_rows_for_them() -> None:
    for criterion in (C.KLDCriterion(), C.L1HingeEmbeddingCriterion()):
        with pytest.raises(DataError, match=r"outputs of shape \(2, 3\) .* must be a table of two tensors"):
            criterion.forward(X[:2], np.ones(1))


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
    both = C.MultiCriterion().add(C.ClassNLLCriterion()).add(C.CrossEntropyCriterion(), 2.0)
    assert both.reduction(torch.tensor([1.0, -1, 3])).tolist() == [1, 0, 1]
    mixed = C.ParallelCriterion().add(C.MSECriterion()).add(C.ClassNLLCriterion())
    assert mixed.reduction(torch.zeros(2, 3), torch.tensor([1.0, 2])).tolist() == [3, 3]
    full = C.MultiCriterion().add(C.ClassNLLCriterion()).add(C.SoftmaxWithCriterion(normalize_mode="FULL"))
    for label in (2.0, -1.0):  # on one worker, steps with padding count as much as others
        assert full.reduction(torch.tensor([[1.0, label], [3.0, 1.0]])).tolist() == [2, 2]
    pair = C.ParallelCriterion().add(C.ClassNLLCriterion()).add(C.CrossEntropyCriterion())
    targets = torch.tensor([1.0, -1, 3]), torch.tensor([2.0, -1, 1])
    assert C.MultiCriterion().add(pair).add(pair).reduction(*targets).tolist() == [1, 0, 1]
    assert MeanSquaredError(size_average=False).reduction == "sum"
    mask = C.TimeDistributedMaskCriterion
    assert mask(C.ClassNLLCriterion(size_average=False)).reduction == "sum"
    labels = torch.tensor([[1, 0, 3], [0, 0, 2]])
    assert mask(weighted).reduction(labels).tolist() == [5, 2]
    assert mask(C.ClassNLLCriterion()).reduction(labels).tolist() == [2, 1]


def test_labels_are_counted_before_they_are_on_the_gpu_of_class_weights() -> None:
    loss = C.ClassNLLCriterion(W3)
    with FakeTensorMode():  # whose tensors have a device and no values
        loss.module.weights = torch.empty(3, device="cuda")
        assert loss.reduction(torch.empty(4)).device.type == "cpu"


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


def test_masked_targets_between_0_and_1_count() -> None:
    counts = C.TimeDistributedMaskCriterion(C.MSECriterion()).reduction
    assert counts(torch.tensor([[0.3, 0.0, 2.0], [0.0, 0.0, 0.9]])).tolist() == [2, 1]


def test_softmax_with_says_what_it_is_over_rows() -> None:
    counts = C.SoftmaxWithCriterion(ignore_label=2).reduction
    assert counts(torch.tensor([[1, 2], [2, 2]])).tolist() == [1, 0]
    kinds = [C.SoftmaxWithCriterion(normalize_mode=mode).reduction for mode in ("FULL", "BATCH_SIZE", "NONE")]
    assert kinds == ["mean", "mean", "sum"]


@pytest.mark.parametrize(
    "criterion", [C.MultiMarginCriterion(), C.ClassSimplexCriterion(120)], ids=lambda c: str(type(c))
)
def test_margins_and_corners_have_no_class_of_padding(criterion: Any) -> None:
    with pytest.raises(DataError, match="got -1"):
        criterion.forward(np.zeros((2, 120)), np.array([-1, 2]))


def test_probabilities_of_a_categorical_cross_entropy_are_divided_by_their_sum() -> None:
    loss = C.CategoricalCrossEntropy()
    assert loss.forward(np.array([[0.2, 0.2]]), np.array([[1.0, 0.0]])) == pytest.approx(np.log(2), rel=1e-6)
    keras = pytest.importorskip("keras")
    chances, truth = np.random.default_rng(0).random((7, 3)), np.eye(3)[[0, 1, 2, 0, 1, 2, 0]]
    expected = float(np.mean(keras.losses.categorical_crossentropy(truth, chances)))
    assert loss.forward(chances, truth) == pytest.approx(expected, rel=1e-5)
