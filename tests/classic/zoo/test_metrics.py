"""Metrics of older programs, where they differ from ours."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torchmetrics.classification")

from orca import metrics as ours  # noqa: E402
from orca_classic.zoo import metrics  # noqa: E402

DRAW = torch.Generator().manual_seed(0)
SCORES, LABELS = torch.randn(40, 4, generator=DRAW), torch.randint(0, 4, (40,), generator=DRAW)
LOGITS, TRUTH = torch.randn(40, generator=DRAW), torch.randint(0, 2, (40,), generator=DRAW)


@pytest.mark.parametrize("name", ["Precision", "Recall", "F1Score"])
def test_several_classes_count_together_as_in_torchmetrics(name: str) -> None:
    metric, reference = getattr(metrics, name)(), getattr(theirs, f"Multiclass{name}")(num_classes=4, average="micro")
    for rows in (slice(0, 13), slice(13, 40)):
        assert torch.isclose(metric(SCORES[rows], LABELS[rows]), reference(SCORES[rows], LABELS[rows]))
    assert torch.isclose(metric.compute(), reference.compute())
    assert metric.get_name() == name
    two = SCORES[:, :2].softmax(1)
    reference = getattr(theirs, f"Multiclass{name}")(num_classes=2, average="micro")
    assert torch.isclose(getattr(metrics, name)()(two, TRUTH), reference(two, TRUTH))
    chances = LOGITS.sigmoid()
    assert getattr(metrics, name)()(chances, TRUTH) == getattr(ours, name)()(chances, TRUTH)


@pytest.mark.parametrize("metric", [metrics.AUC(), metrics.AUC(threshold_num=20), metrics.AUROC()])
def test_area_under_the_curve_is_exact_for_any_scores(metric: Any) -> None:
    assert torch.isclose(metric(LOGITS, TRUTH), theirs.BinaryAUROC()(LOGITS.sigmoid(), TRUTH))
    assert metric.get_name() == type(metric).__name__


@pytest.mark.parametrize("name", ["Accuracy", "BinaryAccuracy", "Precision", "Recall", "F1Score"])
def test_outputs_are_cut_at_one_half_whatever_they_are(name: str) -> None:
    expected = getattr(ours, name)(threshold=0.5)(LOGITS, TRUTH)
    assert getattr(metrics, name)()(LOGITS, TRUTH) == expected
    assert getattr(metrics, name)().resolved("sigmoid")(LOGITS, TRUTH) == expected


def test_batch_is_cut_at_its_own_threshold() -> None:
    metric, chances = metrics.BinaryAccuracy(), LOGITS.sigmoid()
    low = metric(chances[:20], TRUTH[:20], threshold=0.3)
    high = metric(chances[20:], TRUTH[20:])
    assert low == ours.BinaryAccuracy(threshold=0.3)(chances[:20], TRUTH[:20])
    assert torch.isclose(metric.compute(), (low + high) / 2)
