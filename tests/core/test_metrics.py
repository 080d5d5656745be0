"""Metrics: each against a plain formula, for numpy and torch, over any split of the rows."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.classification as theirs
from torch._subclasses.fake_tensor import FakeTensorMode

from orca.core.metrics import (
    AUC,
    MAE,
    MSE,
    ROC,
    Accuracy,
    BinaryAccuracy,
    BinaryCrossEntropy,
    CategoricalAccuracy,
    CategoricalCrossEntropy,
    CustomizedMetric,
    F1Score,
    KLDivergence,
    Metric,
    Poisson,
    Precision,
    PrecisionRecallCurve,
    Recall,
    SparseCategoricalAccuracy,
    SparseCategoricalCrossEntropy,
    Top5Accuracy,
    metrics_of,
)
from orca.errors import ArgumentError, DataError
from orca.rows.tree import flatten

ROWS = 203
rng = np.random.default_rng(7)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


CHANCE = rng.random(ROWS).astype(np.float32)
LOGITS = np.log(CHANCE / (1 - CHANCE)).astype(np.float32)
TRUTH = (rng.random(ROWS) < 0.2 + 0.6 * CHANCE).astype(np.int64)
MANY = rng.random((ROWS, 4)).astype(np.float32)
MANY_TRUTH = (rng.random((ROWS, 4)) < MANY).astype(np.int64)
MANY_LOGITS = np.log(MANY / (1 - MANY)).astype(np.float32)
CLASSES = softmax(2 * rng.normal(size=(ROWS, 9))).astype(np.float32)
LABELS = np.where(rng.random(ROWS) < 0.4, CLASSES.argmax(1), rng.integers(0, 9, ROWS))
ONE_HOT = np.eye(9, dtype=np.float32)[LABELS]
CLASS_LOGITS = np.log(CLASSES.astype(np.float64)) + rng.normal(size=(ROWS, 1))
SOFT = softmax(rng.normal(size=(ROWS, 9))).astype(np.float32)
VALUES = rng.normal(size=(ROWS, 3)).astype(np.float32)
WANTED = rng.normal(size=(ROWS, 3)).astype(np.float32)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def pixels(x: np.ndarray) -> np.ndarray:
    """Return rows of classes as rows of two pixels, with the classes on axis 1."""
    return np.stack([x, x], 2)


def pairs_auc(scores: np.ndarray, truth: np.ndarray) -> float:
    """The area by its meaning: over all pairs of a positive and a negative."""
    gap = wide(scores.ravel()[truth.ravel() == 1])[:, None] - wide(scores.ravel()[truth.ravel() == 0])[None]
    return float(np.where(gap > 0, 1, np.where(gap == 0, 0.5, 0)).mean())


def keras_auc(scores: np.ndarray, truth: np.ndarray, thresholds: int) -> float:
    """The area as Keras' AUC(num_thresholds) does it: a trapezoid between neighbouring thresholds."""
    edges = [-1e-7, *(i / (thresholds - 1) for i in range(1, thresholds - 1)), 1 + 1e-7]
    points = [(np.mean(wide(scores)[truth == 0] > edge), np.mean(wide(scores)[truth == 1] > edge)) for edge in edges]
    return float(sum((a[0] - b[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points)))


def tp_fp_fn(output: np.ndarray, target: np.ndarray) -> tuple[int, int, int]:
    said = output > 0.5
    return int((said & (target == 1)).sum()), int((said & (target == 0)).sum()), int((~said & (target == 1)).sum())


def precision(output: np.ndarray, target: np.ndarray) -> float:
    tp, fp, _ = tp_fp_fn(output, target)
    return tp / (tp + fp)


def recall(output: np.ndarray, target: np.ndarray) -> float:
    tp, _, fn = tp_fp_fn(output, target)
    return tp / (tp + fn)


def f1(output: np.ndarray, target: np.ndarray) -> float:
    p, r = precision(output, target), recall(output, target)
    return 2 * p * r / (p + r)


def f1_function(output: Any, target: Any) -> Any:
    """F1 as a user writes it, for tensors and arrays alike: no mean of batches."""
    said, truth = output > 0.5, target > 0.5
    return 2 * (said & truth).sum() / (said.sum() + truth.sum())


def top5(output: np.ndarray, target: np.ndarray) -> float:
    return float(np.mean([label in np.argsort(-row)[:5] for row, label in zip(output, target, strict=True)]))


CASES: dict[str, tuple[Metric, np.ndarray, np.ndarray, float]] = {
    "accuracy, two classes": (Accuracy(), CHANCE, TRUTH, np.mean((CHANCE > 0.5) == TRUTH)),
    "accuracy, column": (Accuracy(), CHANCE[:, None], TRUTH, np.mean((CHANCE > 0.5) == TRUTH)),
    "accuracy, classes": (Accuracy(), CLASSES, LABELS, np.mean(CLASSES.argmax(1) == LABELS)),
    "accuracy, label column": (Accuracy(), CLASSES, LABELS[:, None], np.mean(CLASSES.argmax(1) == LABELS)),
    "accuracy, one-hot": (Accuracy(), CLASSES, ONE_HOT, np.mean(CLASSES.argmax(1) == LABELS)),
    "accuracy, labels from 1": (Accuracy(False), CLASSES, LABELS + 1, np.mean(CLASSES.argmax(1) == LABELS)),
    "accuracy, predicted labels": (Accuracy(), LABELS, LABELS // 2 * 2, np.mean(LABELS % 2 == 0)),
    "sparse accuracy": (SparseCategoricalAccuracy(), CLASSES, LABELS, np.mean(CLASSES.argmax(1) == LABELS)),
    "categorical accuracy": (CategoricalAccuracy(), CLASSES, ONE_HOT, np.mean(CLASSES.argmax(1) == LABELS)),
    "binary accuracy": (BinaryAccuracy(0.3), MANY, MANY_TRUTH, np.mean((MANY > 0.3) == MANY_TRUTH)),
    "top 5": (Top5Accuracy(), CLASSES, LABELS, top5(CLASSES, LABELS)),
    "top 5, one-hot": (Top5Accuracy(), CLASSES, ONE_HOT, top5(CLASSES, LABELS)),
    "top 5, from 1": (Top5Accuracy(zero_based_label=False), CLASSES, LABELS + 1, top5(CLASSES, LABELS)),
    "mse": (MSE(), VALUES, WANTED, np.mean((wide(VALUES) - wide(WANTED)) ** 2)),
    "mae": (MAE(), VALUES, WANTED, np.mean(abs(wide(VALUES) - wide(WANTED)))),
    "mae of integers": (MAE(), LABELS.astype(np.uint8), TRUTH, np.mean(abs(LABELS - TRUTH))),
    "poisson": (Poisson(), MANY, MANY_TRUTH, np.mean(wide(MANY) - MANY_TRUTH * np.log(wide(MANY) + 1e-7))),
    "binary cross entropy": (
        BinaryCrossEntropy(), MANY, MANY_TRUTH, -np.mean(np.log(np.where(MANY_TRUTH == 1, wide(MANY), 1 - wide(MANY)))),
    ),
    "categorical cross entropy": (
        CategoricalCrossEntropy(), CLASSES, SOFT, np.mean(-(wide(SOFT) * np.log(wide(CLASSES))).sum(1)),
    ),
    "sparse cross entropy": (
        SparseCategoricalCrossEntropy(), CLASSES, LABELS, np.mean(-np.log(wide(CLASSES)[np.arange(ROWS), LABELS])),
    ),
    "kl divergence": (
        KLDivergence(), CLASSES, SOFT, np.mean((wide(SOFT) * np.log(wide(SOFT) / wide(CLASSES))).sum(1)),
    ),
    "precision": (Precision(), CHANCE, TRUTH, precision(CHANCE, TRUTH)),
    "recall": (Recall(), CHANCE, TRUTH, recall(CHANCE, TRUTH)),
    "f1": (F1Score(), CHANCE, TRUTH, f1(CHANCE, TRUTH)),
    "f1, two logits": (F1Score(), np.stack([0 * CHANCE, CHANCE - 0.5], 1), TRUTH, f1(CHANCE, TRUTH)),
    "f1, several labels": (F1Score(), MANY, MANY_TRUTH, f1(MANY, MANY_TRUTH)),
    "auc": (AUC(200), CHANCE, TRUTH, keras_auc(CHANCE, TRUTH, 200)),
    "auc, few thresholds": (AUC(7), CHANCE, TRUTH, keras_auc(CHANCE, TRUTH, 7)),
    "auc, two classes": (AUC(200), np.stack([1 - CHANCE, CHANCE], 1), TRUTH, keras_auc(CHANCE, TRUTH, 200)),
    "auc, several labels": (AUC(200), MANY, MANY_TRUTH, keras_auc(MANY, MANY_TRUTH, 200)),
    "exact auc": (AUC(), CHANCE, TRUTH, pairs_auc(CHANCE, TRUTH)),
    "exact auc, ties": (AUC(), CHANCE.round(1), TRUTH[:, None], pairs_auc(CHANCE.round(1), TRUTH)),
    "exact auc, logits": (AUC(), np.stack([CHANCE, 3 * CHANCE], 1), TRUTH, pairs_auc(CHANCE, TRUTH)),
    "exact auc, several labels": (AUC(), MANY, MANY_TRUTH, pairs_auc(MANY, MANY_TRUTH)),
    "accuracy, logits": (Accuracy().resolved("sigmoid"), LOGITS[:, None], TRUTH, np.mean((LOGITS > 0) == TRUTH)),
    "accuracy, labels -1 and 1": (Accuracy(threshold=0), LOGITS, 2 * TRUTH - 1, np.mean((LOGITS > 0) == TRUTH)),
    "accuracy, threshold": (Accuracy(threshold=0.3), CHANCE, TRUTH, np.mean((CHANCE > 0.3) == TRUTH)),
    "binary accuracy, logits": (
        BinaryAccuracy().resolved("sigmoid"), MANY_LOGITS, MANY_TRUTH, np.mean((MANY_LOGITS > 0) == MANY_TRUTH),
    ),
    "precision, logits": (Precision().resolved("sigmoid"), LOGITS, TRUTH, precision(LOGITS + 0.5, TRUTH)),
    "recall, threshold": (Recall(threshold=0.8), CHANCE, TRUTH, recall(CHANCE - 0.3, TRUTH)),
    "f1, logits of labels": (F1Score().resolved("sigmoid"), MANY_LOGITS, MANY_TRUTH, f1(MANY_LOGITS + 0.5, MANY_TRUTH)),
    "f1, threshold of two classes": (
        F1Score(0.8), np.stack([1 - CHANCE, CHANCE], 1), TRUTH, f1(np.where(CHANCE > 0.8, 1, 0), TRUTH),
    ),
    "auc, logits": (
        AUC(7).resolved("sigmoid"), wide(LOGITS), TRUTH, keras_auc(1 / (1 + np.exp(-wide(LOGITS))), TRUTH, 7),
    ),
    "binary cross entropy, logits": (
        BinaryCrossEntropy().resolved("sigmoid"), LOGITS, TRUTH,
        np.mean(np.log1p(np.exp(-wide(LOGITS) * (2 * TRUTH - 1)))),
    ),
    "sparse cross entropy, logits": (
        SparseCategoricalCrossEntropy().resolved("softmax"), np.log(wide(CLASSES)) + 3, LABELS,
        np.mean(-np.log(softmax(np.log(wide(CLASSES)))[np.arange(ROWS), LABELS])),
    ),
    "accuracy, steps": (Accuracy(), MANY[:, :, None], MANY_TRUTH, np.mean((MANY > 0.5) == MANY_TRUTH)),
    "accuracy, logits of steps": (
        Accuracy().resolved("sigmoid"), MANY_LOGITS[:, :, None], MANY_TRUTH[:, :, None],
        np.mean((MANY_LOGITS > 0) == MANY_TRUTH),
    ),
    "binary accuracy, logits of classes": (
        BinaryAccuracy().resolved("softmax"), CLASS_LOGITS, ONE_HOT, np.mean((CLASSES > 0.5) == ONE_HOT),
    ),
    "f1, logits of classes": (F1Score().resolved("softmax"), CLASS_LOGITS, ONE_HOT, f1(CLASSES, ONE_HOT)),
    "exact auc, logits of classes": (AUC().resolved("softmax"), CLASS_LOGITS, ONE_HOT, pairs_auc(CLASSES, ONE_HOT)),
    "auc, logits of classes": (AUC(7).resolved("softmax"), CLASS_LOGITS, ONE_HOT, keras_auc(CLASSES, ONE_HOT, 7)),
    "binary cross entropy, labels -1 and 1": (
        BinaryCrossEntropy().resolved("sigmoid"), LOGITS, 2 * TRUTH - 1,
        np.mean(np.log1p(np.exp(-wide(LOGITS) * (2 * TRUTH - 1)))),
    ),
    "accuracy, one-hot pixels": (
        Accuracy().resolved("softmax"), pixels(CLASS_LOGITS), pixels(ONE_HOT), np.mean(CLASSES.argmax(1) == LABELS),
    ),
    "categorical accuracy, pixels": (
        CategoricalAccuracy().resolved("softmax"), pixels(CLASS_LOGITS), pixels(ONE_HOT),
        np.mean(CLASSES.argmax(1) == LABELS),
    ),
    "categorical cross entropy, pixels": (
        CategoricalCrossEntropy().resolved("softmax"), pixels(CLASS_LOGITS), pixels(SOFT),
        np.mean(-(wide(SOFT) * np.log(softmax(CLASS_LOGITS))).sum(1)),
    ),
    "function": (CustomizedMetric(f1_function), CHANCE, TRUTH, f1(CHANCE, TRUTH)),
}  # fmt: skip

KINDS: dict[str, Callable[[np.ndarray], Any]] = {"numpy": np.asarray, "torch": torch.as_tensor}


def measure(metric: Metric, output: Any, target: Any) -> Any:
    meter = metric.start()
    meter.update(output, target)
    return meter.result()


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Callable[[np.ndarray], Any]:
    return KINDS[request.param]


@pytest.mark.parametrize("case", CASES)
def test_result_is_the_plain_formula(case: str, kind: Callable[[np.ndarray], Any]) -> None:
    metric, output, target, expected = CASES[case]
    result = measure(metric, kind(output), kind(target))
    assert type(result) is float
    tolerance = 1e-6 if metric.name == "f1_function" else 1e-12  # torch divides integers in float32
    assert result == pytest.approx(expected, abs=tolerance, rel=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_any_split_over_ranks_and_batches_gives_the_one_pass_result(
    case: str, kind: Callable[[np.ndarray], Any]
) -> None:
    metric, output, target, _ = CASES[case]
    whole = measure(metric, kind(output), kind(target))
    for seed in range(3):
        cuts = np.random.default_rng(seed).integers(0, ROWS, 9)
        bounds = [0, 0, *sorted(cuts), ROWS, ROWS]  # empty batches first and last
        ranks = [metric.start() for _ in range(4)]  # rank 3 sees only an empty batch, or nothing
        for position, (start, stop) in enumerate(pairwise(bounds)):
            ranks[min(position // 4, 2)].update(kind(output[start:stop]), kind(target[start:stop]))
        if seed:
            ranks[3].update(kind(output[:0]), kind(target[:0]))
        states = [pickle.loads(pickle.dumps(meter.state())) for meter in ranks]
        together = metric.start()
        together.merge(*states)
        assert together.result() == pytest.approx(whole, abs=1e-12, rel=1e-12)
        if not isinstance(metric, MSE | MAE | Poisson) and "Entropy" not in metric.name and "KL" not in metric.name:
            assert together.result() == whole
        ranks[0].merge(*states[1:])  # a meter with rows of its own
        assert ranks[0].result() == pytest.approx(whole, abs=1e-12, rel=1e-12)
        ranks[0].merge(together.state())  # and once more, all rows twice
        assert ranks[0].result() == pytest.approx(whole, abs=1e-12, rel=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_metric_leaves_itself_and_its_inputs_alone(case: str, kind: Callable[[np.ndarray], Any]) -> None:
    metric, output, target, _ = CASES[case]
    before = pickle.dumps(metric)
    given = kind(output.copy()), kind(target.copy())
    first, second = metric.start(), metric.start()
    first.update(*given)
    first.merge(first.state())
    first.result()
    assert math.isnan(second.result())
    assert pickle.dumps(metric) == before
    np.testing.assert_array_equal(np.asarray(given[0]), output)
    np.testing.assert_array_equal(np.asarray(given[1]), target)


@pytest.mark.parametrize("case", CASES)
def test_no_rows_give_nan_without_a_warning(case: str, kind: Callable[[np.ndarray], Any]) -> None:
    metric, output, target, _ = CASES[case]
    meter = metric.start()
    assert math.isnan(meter.result())
    meter.update(kind(output[:0]), kind(target[:0]))
    meter.merge(metric.start().state(), meter.state())
    assert math.isnan(meter.result())


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    "metric",
    [Accuracy(), BinaryAccuracy(), MSE(), MAE(), AUC(), AUC(200), Precision(), F1Score(), BinaryCrossEntropy()],
    ids=lambda metric: metric.name,
)
def test_labels_of_every_dtype_count_alike(metric: Metric, dtype: str, kind: Callable[[np.ndarray], Any]) -> None:
    assert measure(metric, kind(CHANCE), kind(TRUTH.astype(dtype))) == measure(metric, CHANCE, TRUTH)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
@pytest.mark.parametrize(
    "metric",
    [Accuracy(), SparseCategoricalAccuracy(), Top5Accuracy(), SparseCategoricalCrossEntropy()],
    ids=lambda metric: metric.name,
)
def test_class_numbers_of_every_dtype_count_alike(
    metric: Metric, dtype: str, kind: Callable[[np.ndarray], Any]
) -> None:
    assert measure(metric, kind(CLASSES), kind(LABELS.astype(dtype))) == pytest.approx(
        measure(metric, CLASSES, LABELS), rel=1e-14
    )


@pytest.mark.parametrize("metric", [Accuracy(), BinaryAccuracy(), Precision(), Recall(), F1Score()])
def test_outputs_that_are_no_probabilities_are_refused_unless_they_are_known_as_logits(metric: Metric) -> None:
    outside = int((abs(LOGITS - 0.5) > 0.5).sum())
    words = rf"{metric.name} needs probabilities .*; {outside} lie outside .*BCEWithLogitsLoss.*\(threshold=0.0\)"
    with pytest.raises(DataError, match=words):
        measure(metric, LOGITS, TRUTH)
    known = metric.resolved("sigmoid")
    assert measure(known, LOGITS, TRUTH) == measure(metric, CHANCE, TRUTH)
    assert (metric.link, known.name) == ("", metric.name)
    with pytest.raises(DataError, match="lie outside"):  # the loss says nothing of single outputs
        measure(metric.resolved("softmax"), LOGITS, TRUTH)
    with pytest.raises(ArgumentError, match="threshold of .* must be a number; got 'high'. Pass 0.5"):
        type(metric)(threshold="high")  # type: ignore[call-arg]


def test_outputs_of_low_precision_and_with_gradients_are_measured() -> None:
    exact = measure(Accuracy(), CLASSES, LABELS)
    logits = torch.tensor(CLASSES, requires_grad=True)
    labels = torch.tensor(LABELS)
    assert measure(Accuracy(), logits, labels) == exact
    assert measure(CustomizedMetric(lambda o, t: (o.argmax(1) == t).double().mean()), logits, labels) == exact
    low = logits.bfloat16()
    agree = float((low.argmax(1) == labels).double().mean())
    assert measure(Accuracy(), low, labels) == agree
    assert measure(CustomizedMetric(lambda o, t: (o.argmax(1) == t).double().mean()), low, labels) == agree


def test_numpy_targets_meet_tensor_outputs_and_the_reverse() -> None:
    expected = measure(MSE(), VALUES, WANTED)
    read_only = WANTED.copy()
    read_only.setflags(write=False)
    assert measure(MSE(), torch.tensor(VALUES), read_only) == pytest.approx(expected, rel=1e-14)
    assert measure(MSE(), VALUES, torch.tensor(WANTED)) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("metric", [MSE(), MAE(), BinaryAccuracy(), Accuracy(), F1Score(), AUC(), AUC(200)])
def test_a_column_beside_a_row_of_numbers_never_broadcasts(metric: Metric, kind: Callable[[np.ndarray], Any]) -> None:
    flat = measure(metric, kind(CHANCE), kind(TRUTH))
    assert measure(metric, kind(CHANCE[:, None]), kind(TRUTH)) == flat
    assert measure(metric, kind(CHANCE), kind(TRUTH[:, None])) == flat


def test_a_function_gets_the_target_in_the_shape_of_the_output(kind: Callable[[np.ndarray], Any]) -> None:
    shapes = []

    def error(output: Any, target: Any) -> Any:
        shapes.append((tuple(output.shape), tuple(target.shape)))
        return ((output - target) ** 2).mean()

    expected = pytest.approx(measure(MSE(), CHANCE, TRUTH), rel=1e-6)
    assert measure(CustomizedMetric(error), kind(CHANCE[:, None]), kind(TRUTH)) == expected
    assert measure(CustomizedMetric(error), kind(CHANCE), kind(TRUTH[:, None])) == expected
    assert shapes == [((ROWS, 1), (ROWS, 1)), ((ROWS,), (ROWS,))]


def test_a_function_sees_all_rows_once_in_rank_order_as_the_kind_it_knows(kind: Callable[[np.ndarray], Any]) -> None:
    calls = []

    def watch(output: Any, target: Any) -> float:
        calls.append((type(output), type(target), output.tolist(), target.tolist()))
        return 0

    metric = CustomizedMetric(watch)
    ranks = [metric.start() for _ in range(3)]
    buffer = kind(np.zeros(2))
    for value, rank in enumerate((0, 2, 0, 2)):
        buffer[:] = value  # the same memory for each batch
        ranks[rank].update(buffer, kind(np.array([10 * value] * 2)))
    together = metric.start()
    together.merge(*(meter.state() for meter in ranks))
    assert calls == []
    assert together.result() == 0.0
    known = type(kind(np.zeros(1)))
    assert calls == [(known, known, [0, 0, 2, 2, 1, 1, 3, 3], [0, 0, 20, 20, 10, 10, 30, 30])]


def test_several_outputs_the_first_counts_and_a_function_gets_all(kind: Callable[[np.ndarray], Any]) -> None:
    output = (kind(VALUES), {"side": kind(CHANCE[:, None])})
    target = [kind(WANTED), kind(TRUTH)]
    assert measure(MSE(), output, target) == measure(MSE(), kind(VALUES), kind(WANTED))

    def both(output: Any, target: Any) -> Any:
        assert isinstance(output, tuple)
        return abs(output[0] - target[0]).mean() + output[1]["side"].sum() + target[1].sum()

    meter = CustomizedMetric(both).start()
    parts = CustomizedMetric(both).start()
    meter.update(output, target)
    parts.update((kind(VALUES[:7]), {"side": kind(CHANCE[:7, None])}), [kind(WANTED[:7]), kind(TRUTH[:7])])
    parts.update((kind(VALUES[7:]), {"side": kind(CHANCE[7:, None])}), [kind(WANTED[7:]), kind(TRUTH[7:])])
    assert parts.result() == meter.result()
    assert meter.result() == pytest.approx(abs(VALUES - WANTED).mean() + CHANCE.sum() + TRUTH.sum(), rel=1e-5)


def test_a_function_may_do_without_targets(kind: Callable[[np.ndarray], Any]) -> None:
    def largest(output: Any, target: None) -> Any:
        assert target is None
        return output.max()

    assert measure(CustomizedMetric(largest), kind(CHANCE), None) == CHANCE.max()


@pytest.mark.parametrize("place", ["channels first", "channels last"])
def test_classes_of_every_pixel_are_found_on_their_axis(place: str, kind: Callable[[np.ndarray], Any]) -> None:
    output = rng.random((5, 7, 3, 4))  # n, classes, height, width
    target = rng.integers(0, 7, (5, 3, 4))
    right = np.mean(output.argmax(1) == target)
    loss = -np.mean(np.log(np.take_along_axis(output, target[:, None], 1)))
    best = np.argsort(-output, 1)[:, :5]
    among = np.mean((best == target[:, None]).any(1))
    if place == "channels last":
        output = np.moveaxis(output, 1, -1)
    assert measure(Accuracy(), kind(output), kind(target)) == pytest.approx(right, rel=1e-14)
    assert measure(SparseCategoricalAccuracy(), kind(output), kind(target)) == pytest.approx(right, rel=1e-14)
    assert measure(Top5Accuracy(), kind(output), kind(target)) == pytest.approx(among, rel=1e-14)
    assert measure(SparseCategoricalCrossEntropy(), kind(output), kind(target)) == pytest.approx(loss, rel=1e-12)


def test_top5_takes_the_lower_of_equal_classes_and_refuses_nan_and_unknown_ones(
    kind: Callable[[np.ndarray], Any],
) -> None:
    equal = np.ones((8, 8))
    assert measure(Top5Accuracy(), kind(equal), kind(np.arange(8))) == 5 / 8
    assert measure(Top5Accuracy(), kind(equal), kind(np.arange(8) - 100)) == 0
    assert measure(Top5Accuracy(), kind(np.full((8, 8), np.nan)), kind(np.arange(8))) == 0
    assert measure(Top5Accuracy(), kind(np.ones((4, 3))), kind(np.array([0, 1, 2, 2]))) == 1


def test_binned_auc_is_close_to_the_exact_one(kind: Callable[[np.ndarray], Any]) -> None:
    assert measure(AUC(200), kind(CHANCE), kind(TRUTH)) == pytest.approx(pairs_auc(CHANCE, TRUTH), abs=2e-3)
    assert measure(AUC(100_000), kind(CHANCE), kind(TRUTH)) == pytest.approx(pairs_auc(CHANCE, TRUTH), abs=1e-5)


@pytest.mark.parametrize("thresholds", [200, None])
def test_auc_at_the_ends_and_without_one_of_the_classes(
    thresholds: int | None, kind: Callable[[np.ndarray], Any]
) -> None:
    auc = AUC(thresholds)
    ends = kind(np.array([0.0, 0.0, 1.0, 1.0]))
    assert measure(auc, ends, kind(np.array([0, 0, 1, 1]))) == 1
    assert measure(auc, ends, kind(np.array([1, 1, 0, 0]))) == 0
    assert measure(auc, ends, kind(np.array([0, 1, 0, 1]))) == 0.5
    assert math.isnan(measure(auc, ends, kind(np.ones(4))))
    assert math.isnan(measure(auc, ends, kind(np.zeros(4))))
    assert math.isnan(measure(auc, kind(np.array([0.5, np.nan])), kind(np.array([0, 1]))))


def test_positives_without_any_give_zero(kind: Callable[[np.ndarray], Any]) -> None:
    for metric in (Precision(), Recall(), F1Score()):
        assert measure(metric, kind(np.zeros(3)), kind(np.zeros(3))) == 0.0


def test_cross_entropies_stay_finite_at_zero_and_one(kind: Callable[[np.ndarray], Any]) -> None:
    output, target = kind(np.array([[0.0, 1.0], [1.0, 0.0]])), kind(np.array([[1.0, 0.0], [1.0, 0.0]]))
    for metric in (BinaryCrossEntropy(), CategoricalCrossEntropy(), KLDivergence()):
        assert measure(metric, output, target) == pytest.approx(-math.log(1e-7) / 2, rel=1e-5)
    assert math.isnan(measure(BinaryCrossEntropy(), kind(np.array([np.nan, 0.5])), kind(np.array([0, 1]))))


def test_values_worked_out_by_hand(kind: Callable[[np.ndarray], Any]) -> None:
    log = math.log
    output, target = kind(np.array([[0.7, 0.2], [0.1, 0.9]])), kind(np.array([[1, 0], [0, 1]]))
    assert measure(BinaryCrossEntropy(), output, target) == pytest.approx(-log(0.7 * 0.8 * 0.9 * 0.9) / 4, abs=1e-6)
    # Keras lifts a target 0 to 1e-7.
    assert measure(KLDivergence(), output, target) == pytest.approx(-log(0.7 * 0.9) / 2, abs=1e-5)
    output, target = kind(np.array([[0.5, 2.0], [1.0, 4.0]])), kind(np.array([[1, 0], [2, 3]]))
    assert measure(Poisson(), output, target) == pytest.approx((7.5 - log(0.5) - 3 * log(4)) / 4, abs=1e-6)
    output = kind(np.array([[0.2, 0.7, 0.1], [0.5, 0.25, 0.25]]))
    assert measure(SparseCategoricalCrossEntropy(), output, kind(np.array([1, 0]))) == pytest.approx(-log(0.35) / 2)
    assert measure(MSE(), kind(np.array([[3, 0], [1, -1]])), kind(np.array([[1, 0], [1, 1]]))) == 2.0
    assert measure(Accuracy(), kind(np.array([3, 1, 0, 2, 2])), kind(np.array([3, 1, 1, 2, 0]))) == 0.6


@pytest.mark.parametrize(
    ("metric", "output", "target", "words"),
    [
        (MSE(), VALUES, WANTED[:9], r"MSE needs one target for every output.*\(203, 3\) and target \(9, 3\)"),
        (MSE(), VALUES, WANTED[:, :1], r"MSE needs targets in the shape of the outputs; .*\(203, 3\).*\(203, 1\)"),
        (MSE(), VALUES[:3], WANTED[:3, 0], r"got output \(3, 3\) and target \(3,\)"),
        (MSE(), np.float32(1), np.float32(1), r"MSE needs one target for every output, row by row; got output \(\)"),
        (MSE(), VALUES, None, "MSE compares outputs with targets; got None .* Give labels"),
        (MSE(), VALUES, (), r"MSE compares outputs with targets; got \(\)"),
        (Accuracy(), CLASSES, LABELS[:9], r"Accuracy .*\(203, 9\) and target \(9,\)"),
        (Accuracy(), CLASSES, ONE_HOT[:, :4], r"Accuracy needs outputs \(n, classes\) .* a class number per row"),
        (Accuracy(), CHANCE, LABELS.astype(str), "Accuracy needs numbers; got <U21"),
        (SparseCategoricalAccuracy(), CLASSES, ONE_HOT, r"SparseCategoricalAccuracy needs .* a class number per row"),
        (SparseCategoricalAccuracy(), CHANCE, TRUTH, r"SparseCategoricalAccuracy needs .* got output \(203,\)"),
        (CategoricalAccuracy(), CLASSES, LABELS, r"CategoricalAccuracy .* one-hot targets in the same shape \(the.*Sp"),
        (Accuracy(), CLASSES, np.maximum(ONE_HOT, ONE_HOT[::-1]), r"\d+ targets name several classes.*BinaryAccuracy"),
        (Accuracy(), CLASSES, 0 * ONE_HOT, "203 targets name several classes, or none"),
        (Top5Accuracy(), CLASSES, 0 * ONE_HOT, "Top5Accuracy .* 203 targets name several classes, or none"),
        (CategoricalAccuracy(), CLASSES, 1 + 0 * ONE_HOT, "CategoricalAccuracy .* 203 targets name several classes"),
        (CategoricalAccuracy(), CHANCE[:, None], TRUTH[:, None], "CategoricalAccuracy needs .* at least two classes"),
        (SparseCategoricalAccuracy(), CHANCE[:, None], TRUTH, "SparseCategoricalAccuracy needs .* two classes"),
        (Poisson(), CHANCE - 1, TRUTH, r"Poisson needs rates as outputs; 203 are negative\. End the model with exp"),
        (Precision(0.4), np.stack([CHANCE, CHANCE + 1], 1), TRUTH, "Precision needs probabilities .*; 203 lie outside"),
        (Precision(), CLASSES, LABELS, r"Precision needs targets in the shape of the outputs; got output \(203, 9\)"),
        (AUC(200), 9 * CHANCE - 4, TRUTH, r"AUC needs probabilities as outputs; \d+ lie outside .*use AUC"),
        (BinaryCrossEntropy(), 9 * CHANCE, TRUTH, r"BinaryCrossEntropy needs probabilities .* sigmoid or softmax"),
        (
            SparseCategoricalCrossEntropy(), CLASSES, LABELS + 1,
            rf"from 0 to one less than the number of outputs; {(LABELS == 8).sum()} labels are not",
        ),
        (CustomizedMetric(f1_function), CHANCE, TRUTH[:9], r"f1_function needs .*\(203,\) and target \(9,\)"),
        (CustomizedMetric(f1_function), (CHANCE, CHANCE[:4]), TRUTH, r"\(203,\), \(4,\) and target \(203,\)"),
        (CustomizedMetric(lambda o, t: o), CHANCE, TRUTH, r"'<lambda>' must return one number; .* shape \(203,\)"),
        (CustomizedMetric(lambda o, t: None), CHANCE, TRUTH, "must return one number; got NoneType"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_words(metric: Metric, output: Any, target: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        measure(metric, output, target)


def test_data_that_does_not_fit_is_a_data_error() -> None:
    with pytest.raises(DataError):
        Accuracy().start().update(CHANCE, TRUTH[:4])
    with pytest.raises(ArgumentError, match="at least 2 thresholds; got threshold_num=1"):
        AUC(1)


def test_metrics_of_takes_every_form() -> None:
    mse = MSE()
    assert metrics_of(None) == [] == metrics_of([])
    for spec in (mse, [mse], (mse,)):
        (copy,) = metrics_of(spec)
        assert type(copy) is MSE and copy is not mse
    (made,) = metrics_of(f1_function)
    assert isinstance(made, CustomizedMetric)
    assert made.name == "f1_function"
    assert [m.name for m in metrics_of([mse, f1_function, functools.partial(f1_function), torch.nn.L1Loss()])] == [
        "MSE", "f1_function", "f1_function_2", "L1Loss",
    ]  # fmt: skip
    named = metrics_of({"error": mse, "f": f1_function})
    assert [m.name for m in named] == ["error", "f"] == [m.start().name for m in named]
    assert mse.name == "MSE"
    assert measure(named[0], VALUES, WANTED) == measure(mse, VALUES, WANTED)


def test_equal_names_become_unique_also_in_lower_case() -> None:
    def accuracy(output: Any, target: Any) -> float:
        return 0.0

    one = BinaryAccuracy(0.3)
    unique = metrics_of([one, BinaryAccuracy(0.6), one, Accuracy(), accuracy])
    assert [m.name for m in unique] == [
        "BinaryAccuracy", "BinaryAccuracy_2", "BinaryAccuracy_3", "Accuracy", "accuracy_2",
    ]  # fmt: skip
    assert one.name == "BinaryAccuracy"


@pytest.mark.parametrize(
    ("spec", "kind", "name"),
    [
        ("accuracy", Accuracy, "accuracy"),
        (["ACC"], Accuracy, "ACC"),
        ({"a": "auc"}, AUC, "a"),
        (["top5_accuracy"], Top5Accuracy, "top5_accuracy"),
        (["sparse_categorical_crossentropy"], SparseCategoricalCrossEntropy, "sparse_categorical_crossentropy"),
        (["mean_squared_error"], MSE, "mean_squared_error"),
        (["f1"], F1Score, "f1"),
    ],
)
def test_a_metric_may_be_given_by_its_plain_name(spec: Any, kind: type, name: str) -> None:
    (metric,) = metrics_of(spec)
    assert type(metric) is kind
    assert metric.name == name


def test_a_name_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(ArgumentError, match="There is no metric named 'acuracy'. Pass one of AUC, Accuracy, .*Top5"):
        metrics_of(["acuracy"])


def test_other_objects_and_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="functions are supported, but get int"):
        metrics_of([Accuracy(), 3])
    with pytest.raises(RuntimeError, match=r"but get the class Accuracy\. Write Accuracy\(\), with the brackets"):
        metrics_of(Accuracy)
    with pytest.raises(ArgumentError, match="but get str"):
        CustomizedMetric("f1")  # type: ignore[arg-type]

    def loss(output: Any, target: Any) -> float:
        return 0.0

    with pytest.raises(ArgumentError, match=r"cannot be named 'loss'.*my_loss"):
        metrics_of(loss)


@pytest.mark.parametrize("backend", ["bigdl", "pytorch", "tf", "mxnet"])
def test_methods_of_the_old_systems(backend: str) -> None:
    metric = Accuracy()
    counter = metric.get_metric(backend)
    assert float(counter(CHANCE, TRUTH)) == pytest.approx(measure(Accuracy(), CHANCE, TRUTH))
    assert math.isnan(metric.result())
    assert type(getattr(metric, f"get_{backend}_metric")()) is Accuracy
    assert Accuracy().get_name() == "Accuracy"
    assert CustomizedMetric(f1_function).get_name() == "f1_function"
    assert Metric.convert_metrics_list(None) is None
    several = Metric.convert_metrics_list([MSE(), f1_function], backend) or []
    assert [m.name for m in several] == ["MSE", "f1_function"]
    assert Metric.convert_metrics_dict(None) == {}
    assert list(Metric.convert_metrics_dict(several, backend)) == ["MSE", "f1_function"]
    with pytest.raises(ArgumentError, match="backend must be one of bigdl, tf, pytorch, mxnet; got 'torch'"):
        metric.get_metric("torch")


def test_a_class_of_an_older_program_may_give_a_metric_of_torchmetrics() -> None:
    class Share(Metric):
        def get_pytorch_metric(self) -> Any:
            return theirs.BinaryAccuracy()

        def get_name(self) -> str:
            return "share"

    (metric,) = metrics_of(Share())
    assert metric.name == "share"
    assert measure(metric, CHANCE, TRUTH) == pytest.approx(measure(Accuracy(), CHANCE, TRUTH))


@pytest.mark.parametrize("base", [Metric, object])
def test_a_class_of_an_older_program_may_count_in_its_own_way(base: type) -> None:
    class Largest(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            self.largest = torch.tensor(0.0)

        def __call__(self, preds: Any, targets: Any) -> None:
            self.largest = torch.maximum(self.largest, (preds - targets).abs().max())

        def compute(self) -> Any:
            return self.largest

    class Named(Metric):
        def get_pytorch_metric(self) -> Any:
            return Largest()

        def get_name(self) -> str:
            return "largest"

    output, target = torch.as_tensor(VALUES), torch.as_tensor(WANTED)
    for metric, name in ((Largest(), "Largest"), (Named(), "largest")):
        (given,) = metrics_of(metric)
        assert given.name == name
        parts = [given.start() for _ in range(3)]
        for part, rows in zip(parts, (slice(0, 50), slice(50, 50), slice(50, None)), strict=True):
            part.update(output[rows], target[rows])
        whole = given.start()
        whole.merge(*(part.state() for part in parts))
        assert whole.result() == pytest.approx(abs(VALUES - WANTED).max())


def test_what_the_program_counted_before_is_forgotten() -> None:
    class Rows:
        def __init__(self) -> None:
            self.reset()

        def reset(self) -> None:
            self.rows = 0

        def __call__(self, preds: Any, targets: Any) -> None:
            self.rows += len(preds)

        def compute(self) -> int:
            return self.rows

    metric = Rows()
    metric(VALUES, WANTED)
    assert measure(metrics_of(metric)[0], VALUES[:3], WANTED[:3]) == 3.0
    assert metric.rows == len(VALUES)


def test_a_class_of_an_older_program_is_asked_for_the_backend_it_knows() -> None:
    class Share(Metric):
        def get_metric(self, backend: str = "bigdl") -> Any:
            return {"tf": MSE(), "bigdl": MAE()}[backend]

    for backend, kind in (("tf", MSE), ("bigdl", MAE)):
        assert [type(m) for m in Metric.convert_metrics_list(Share(), backend) or ()] == [kind]
        assert {name: type(m) for name, m in Metric.convert_metrics_dict([Share()], backend).items()} == {"Share": kind}


def test_a_new_metric_is_a_tally_and_a_score(kind: Callable[[np.ndarray], Any]) -> None:
    class RMSE(Metric):
        def tally(self, output: Any, target: Any) -> tuple[Any, ...]:
            return ((output - target) ** 2).sum(), output.numel()

        def score(self, total: Any, count: Any) -> float:
            return math.sqrt(total / count)

    assert RMSE().name == "RMSE"
    expected = math.sqrt(measure(MSE(), VALUES, WANTED))
    assert measure(RMSE(), kind(VALUES), kind(WANTED)) == pytest.approx(expected, rel=1e-6)
    column = measure(RMSE(), kind(VALUES[:, :1]), kind(WANTED[:, 0]))  # which must not become a square
    assert column == pytest.approx(math.sqrt(measure(MSE(), VALUES[:, 0], WANTED[:, 0])), rel=1e-6)
    with pytest.raises(NotImplementedError, match=r"Metric has no tally\(output, target\)"):
        measure(Metric(), VALUES, WANTED)


@pytest.mark.parametrize("case", CASES)
def test_a_call_counts_a_batch_and_gives_its_value(case: str, kind: Callable[[np.ndarray], Any]) -> None:
    metric, output, target, expected = CASES[case]
    mine, other = metric.start(), metric.start()
    for rows in (slice(50), slice(50, ROWS)):
        value = mine(kind(output[rows]), kind(target[rows]))
        assert isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.shape == ()
        assert value.item() == pytest.approx(measure(metric, output[rows], target[rows]), rel=1e-6)
    assert torch.isclose(mine.compute(), torch.tensor(float(expected)), rtol=1e-6)
    other.update(kind(output), kind(target))
    assert mine.result() == pytest.approx(other.result(), rel=1e-12)
    mine.reset()
    assert math.isnan(mine.compute()) and not math.isnan(other.compute())
    assert mine(kind(output[:50]), kind(target[:50])) == mine.compute()


def test_a_metric_that_has_counted_is_asked_for_afresh() -> None:
    used = Accuracy()
    used(CHANCE, TRUTH)
    assert math.isnan(metrics_of({"a": used})[0].result()) and math.isnan(used.named("b").result())
    assert not math.isnan(used.result())
    copy = used.start()
    copy(CHANCE[:9], TRUTH[:9])
    assert used.result() == measure(Accuracy(), CHANCE, TRUTH)


@pytest.mark.parametrize("scores", [CHANCE, CHANCE.round(1), MANY])
@pytest.mark.parametrize(
    ("metric", "reference"),
    [(ROC(), theirs.BinaryROC()), (PrecisionRecallCurve(), theirs.BinaryPrecisionRecallCurve())],
    ids=["ROC", "precision and recall"],
)
def test_curves_are_those_of_torchmetrics_for_any_split(
    metric: Metric, reference: Any, scores: np.ndarray, kind: Callable[[np.ndarray], Any]
) -> None:
    truth = MANY_TRUTH if scores is MANY else TRUTH
    expected = [points.numpy() for points in reference(torch.tensor(scores), torch.tensor(truth))]
    if metric.name == "ROC":
        expected[2][0] = math.inf  # where torchmetrics has 1, which is not above all scores of 1
    ranks = [metric.start() for _ in range(3)]
    for rank, rows in zip(ranks, (slice(20), slice(20, 20), slice(20, ROWS)), strict=True):
        rank.update(kind(scores[rows]), kind(truth[rows]))
    whole = metric.start()
    whole.merge(*(pickle.loads(pickle.dumps(rank.state())) for rank in ranks))
    for points, numbers, wanted in zip(whole.compute(), whole.result(), expected, strict=True):
        np.testing.assert_allclose(points.numpy(), wanted, rtol=1e-6)
        np.testing.assert_allclose(numbers, wanted, rtol=1e-6)
    assert math.isnan(metric.start().compute())


def test_curves_take_two_logits_and_targets_of_one_class() -> None:
    two = np.stack([0 * CHANCE, CHANCE], 1)
    for metric in (ROC(), PrecisionRecallCurve()):
        for one, other in zip(metric(two, TRUTH), metric(CHANCE, TRUTH), strict=True):
            torch.testing.assert_close(one, other)
    false, true, _ = ROC()(CHANCE, np.zeros(ROWS))
    assert true.sum() == 0 and false[-1] == 1


@pytest.mark.parametrize("odd", [np.longdouble, ">f4", np.uint16, np.uint64])
def test_arrays_that_torch_does_not_know_count_as_well(odd: Any) -> None:
    expected = measure(MSE(), LABELS, TRUTH)
    assert measure(MSE(), LABELS.astype(odd), TRUTH.astype(odd)) == expected
    assert measure(MSE(), LABELS[::-1], TRUTH[::-1]) == pytest.approx(expected, rel=1e-14)
    assert measure(Accuracy(), CLASSES, LABELS.astype(odd)) == measure(Accuracy(), CLASSES, LABELS)


@pytest.mark.parametrize("case", CASES)
def test_a_batch_of_tensors_is_counted_without_reading_its_values(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(*_: object) -> None:
        raise AssertionError("this waits for the device")

    metric, output, target, _ = CASES[case]
    meter = metric.start()
    with monkeypatch.context() as patch:
        for reader in ("__array__", "__bool__", "__float__", "__index__", "__int__", "cpu", "item", "numpy", "tolist"):
            patch.setattr(torch.Tensor, reader, waits)
        for _ in range(2):
            meter.update(torch.tensor(output), torch.tensor(target))
    assert meter.result() == pytest.approx(measure(metric, output, target), rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_batch_on_a_gpu_is_counted_there_without_waiting(case: str) -> None:
    metric, output, target, _ = CASES[case]
    with FakeTensorMode():  # whose tensors have a device and no values: reading one raises, as do mixed devices
        given = [torch.empty_like(torch.as_tensor(array), device="cuda") for array in (output, target)]
        meter = metric.start()
        for _ in range(2):
            meter.update(*given)
        kept = [leaf.device.type for leaf in flatten(meter._total().values)[0] if isinstance(leaf, torch.Tensor)]
    assert set(kept) == {"cpu" if metric.keeps_rows else "cuda"}
