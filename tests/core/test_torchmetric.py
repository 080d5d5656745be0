"""Metrics of torchmetrics: over any split of the rows, and on ranks, what one metric says that sees them all."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassF1Score,
    MultilabelF1Score,
)

from frameworks.torch.pair import Recording, on_two_ranks
from orca.core.metrics import Accuracy, metrics_of
from orca.errors import ArgumentError

ROWS = 31
DRAW = torch.Generator().manual_seed(0)
X = torch.rand(ROWS, 3, generator=DRAW)
CHANCES = torch.rand(ROWS, 1, generator=DRAW)
TRUTH = (torch.rand(ROWS, generator=DRAW) < 0.4).long()
SCORES = torch.randn(ROWS, 4, generator=DRAW)
LABELS = torch.randint(0, 4, (ROWS,), generator=DRAW)
NUMBERS = torch.randn(ROWS, 1, generator=DRAW)
LOGITS = torch.rand(ROWS, 4, generator=DRAW) * 1.2 - 0.1  # most rows look like probabilities
LOGITS[-1] = 3.0

CASES: dict[str, tuple[Any, torch.Tensor, torch.Tensor]] = {
    "sums": (torchmetrics.MeanSquaredError(), CHANCES, NUMBERS),
    "classes": (MulticlassAccuracy(num_classes=4), SCORES, LABELS),
    "averaged": (MulticlassF1Score(num_classes=4, average="macro"), SCORES, LABELS),
    "rows kept": (BinaryAUROC(thresholds=None), CHANCES, TRUTH[:, None]),
    "thresholds": (BinaryAUROC(thresholds=20), CHANCES, TRUTH[:, None]),
    "no rule of its own": (torchmetrics.PearsonCorrCoef(), CHANCES[:, 0], NUMBERS[:, 0]),
    "rank correlation": (torchmetrics.SpearmanCorrCoef(), CHANCES[:, 0], NUMBERS[:, 0]),
    "logits": (BinaryAUROC(thresholds=None), LOGITS[:, :1], TRUTH[:, None]),
    "decisions of logits": (BinaryAccuracy(), LOGITS[:, 0], TRUTH),
    "logits of labels": (MultilabelF1Score(num_labels=4), LOGITS, (SCORES > 0).long()),
    "logits of classes": (MulticlassAUROC(num_classes=4), LOGITS, LABELS),
    "composed logits": (BinaryAccuracy() + BinaryAUROC(), LOGITS[:, 0], TRUTH),
    "composed": (torchmetrics.MeanSquaredError() + torchmetrics.MeanAbsoluteError(), CHANCES, NUMBERS),
}


def expected(case: str) -> float:
    metric, output, target = CASES[case]
    metric.reset()
    metric.update(output, target)
    return float(metric.compute())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cuts", [[0, 31], [0, 10, 31], [0, 0, 3, 4, 20, 31, 31]])
def test_the_states_of_any_parts_become_one(case: str, cuts: list[int]) -> None:
    (metric,) = metrics_of(CASES[case][0])
    meters = []
    for start, stop in pairwise(cuts):
        meter = pickle.loads(pickle.dumps(metric)).start()
        for at in range(start, stop, 7):
            here = slice(at, min(at + 7, stop))
            meter.update(CASES[case][1][here], CASES[case][2][here])
        meters.append(meter)
    whole = metric.start()
    whole.merge(*(pickle.loads(pickle.dumps(meter.state())) for meter in meters))
    assert whole.result() == pytest.approx(expected(case), rel=1e-5)
    again = metric.start()
    again.merge(whole.state())
    assert again.result() == pytest.approx(expected(case), rel=1e-5)


def test_logits_that_look_like_probabilities_are_logits_if_the_loss_says_so() -> None:
    truth, logits = torch.tensor([1, 1, 1, 0]), torch.tensor([0.1, 0.2, 0.9, 0.3])
    (metric,) = metrics_of(BinaryAccuracy())
    for link, expected in (("sigmoid", 0.75), ("softmax", 0.5), ("", 0.5)):
        meter = metric.resolved(link)
        meter.update(logits, truth)
        assert meter.result() == expected


def test_labels_come_in_any_shape_and_type() -> None:
    for target in (TRUTH, TRUTH[:, None], TRUTH.float(), TRUTH[:, None].double(), TRUTH.numpy()):
        (metric,) = metrics_of(BinaryAccuracy())
        meter = metric.start()
        meter.update(CHANCES, target)
        meter.update(np.zeros((0, 1), np.float32), np.zeros(0))
        assert meter.result() == pytest.approx(float(((CHANCES[:, 0] > 0.5) == TRUTH).float().mean()))


def test_a_call_counts_a_batch_and_gives_its_value() -> None:
    (metric,) = metrics_of(torchmetrics.MeanSquaredError())
    assert metric(CHANCES[:9], NUMBERS[:9]) == torchmetrics.MeanSquaredError()(CHANCES[:9], NUMBERS[:9])
    metric.update(CHANCES[9:], NUMBERS[9:])
    assert metric.compute().item() == pytest.approx(expected("sums"))
    metric.reset()
    assert math.isnan(metric.compute())


def test_rows_that_are_kept_are_not_moved_again() -> None:
    (metric,) = metrics_of([BinaryAUROC()])
    for _ in range(3):
        metric.update(torch.rand(4), torch.ones(4))
    first, *_ = metric.metric.preds
    moved: list[Any] = []
    metric.metric._apply = moved.append
    metric.update(torch.rand(4), torch.ones(4))
    assert metric.metric.preds[0] is first and not moved


def test_a_metric_that_saw_no_row_has_no_number_and_the_users_own_is_never_changed() -> None:
    mine = torchmetrics.MeanSquaredError()
    (metric,) = metrics_of(mine)
    assert math.isnan(metric.start().result())
    meter = metric.start()
    meter.update(CHANCES, NUMBERS)
    assert meter.result() > 0
    assert mine.update_count == 0 and mine.sync_on_compute


def test_collections_are_metrics_of_their_own_and_names_may_be_given() -> None:
    both = torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()])
    assert [m.name for m in metrics_of([Accuracy(), both])] == ["Accuracy", "MeanSquaredError", "MeanAbsoluteError"]
    named = metrics_of({"auc": BinaryAUROC(), "errors": both})
    assert [m.name for m in named] == ["auc", "errors_MeanSquaredError", "errors_MeanAbsoluteError"]


def test_a_metric_of_several_numbers_is_refused() -> None:
    (metric,) = metrics_of(MulticlassAccuracy(num_classes=4, average="none"))
    meter = metric.start()
    meter.update(SCORES, LABELS)
    with pytest.raises(ArgumentError, match=r"'MulticlassAccuracy' must give one number; got Tensor of shape \(4,\)"):
        meter.result()


def test_two_ranks_give_what_one_metric_over_all_rows_gives() -> None:
    net = nn.Linear(3, 4)
    metrics = [MulticlassAccuracy(num_classes=4), torchmetrics.AUROC("multiclass", num_classes=4), "accuracy"]
    made = Recording.from_torch(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        loss=nn.CrossEntropyLoss(),
        metrics=metrics,
        backend="local",
        use_tqdm=False,
    )
    data = (X.numpy(), LABELS.numpy())
    ranks = on_two_ranks({"fit": lambda: made.fit(data, batch_size=8, validation_data=data)})["fit"]
    history, state = ranks[0]
    net.load_state_dict(state.payload["models"][0])
    line = history.epochs[0]
    for metric in metrics[:2]:
        metric.update(net(X).detach(), LABELS)
        assert line[f"val_{type(metric).__name__.lower()}"] == pytest.approx(float(metric.compute()), rel=1e-5)
    assert line["val_accuracy"] == pytest.approx(float((net(X).argmax(1) == LABELS).float().mean()))
