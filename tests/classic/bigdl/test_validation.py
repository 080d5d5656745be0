"""BigDL's validation methods against numpy: labels that count from 1, several batches, rankings in groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orca.errors import DataError

torch = pytest.importorskip("torch")

from orca_classic.bigdl import validation as V  # noqa: E402
from orca_classic.bigdl.criterion import CRITERIONS  # noqa: E402
from orca_classic.bigdl.layer import Layer  # noqa: E402

DRAW = np.random.default_rng(0)
SCORES, LABELS = DRAW.normal(size=(50, 7)).astype(np.float32), DRAW.integers(1, 8, 50)
PLACES = (SCORES[np.arange(50), LABELS - 1][:, None] < SCORES).sum(1)  # how many classes are ahead of the right one
ONE = 1 / (1 + np.exp(-SCORES[:, :1]))
TREES = DRAW.normal(size=(50, 4, 7)).astype(np.float32)
LOGS = SCORES - np.log(np.exp(SCORES).sum(1, keepdims=True))
RANKED, RIGHT = DRAW.normal(size=(40, 1)).astype(np.float32), np.tile([1.0, 0, 0, 0], 10)
AHEAD = (RANKED.reshape(10, 4)[:, 1:] > RANKED.reshape(10, 4)[:, :1]).sum(1)


def precision(k: int) -> float:
    values = []
    for number in range(7):
        order = np.argsort(-SCORES[:, number], kind="stable")[:k]
        hits = LABELS[order] - 1 == number
        each = [hits[: at + 1].mean() for at in range(k) if hits[at]]
        values.append(sum(each) / max((number == LABELS - 1).sum(), 1))
    return float(np.mean(values))


@pytest.mark.parametrize(("method", "outputs", "targets", "truth"), [
    (V.Top1Accuracy(), SCORES, LABELS, (PLACES == 0).mean()), (V.Top5Accuracy(), SCORES, LABELS, (PLACES < 5).mean()),
    (V.Top1Accuracy(), ONE, LABELS % 2, ((ONE[:, 0] >= 0.5) == LABELS % 2).mean()),
    (V.TreeNNAccuracy(), TREES, np.stack([LABELS] * 4, 1), (TREES[:, 0].argmax(1) + 1 == LABELS).mean()),
    (V.MAE(), SCORES, SCORES[::-1].copy(), np.abs(SCORES - SCORES[::-1]).mean()),
    (V.MAE(), SCORES, LABELS, np.abs(SCORES.argmax(1) + 1 - LABELS).mean()),
    (V.Loss(), LOGS, LABELS, -LOGS[np.arange(50), LABELS - 1].mean()),
    (V.Loss(CRITERIONS["MSECriterion"]()), SCORES, SCORES * 2, np.square(SCORES).mean()),
    (V.HitRatio(2, 3), RANKED, RIGHT, (AHEAD < 2).mean()),
    (V.NDCG(2, 3), RANKED, RIGHT, np.where(AHEAD < 2, 1 / np.log2(AHEAD + 2), 0).mean()),
    (V.MeanAveragePrecision(20, 7), SCORES, LABELS - 1, precision(20)),
], ids=lambda value: type(value).__name__ if isinstance(value, V.Metric) else "")  # fmt: skip
def test_method_is_its_definition(method: Any, outputs: Any, targets: Any, truth: float) -> None:
    (result,) = Layer.of(torch.nn.Identity()).evaluate(outputs, targets, 17, [method])  # batches of 17, 17 and 16 rows
    assert result.result == pytest.approx(truth, rel=1e-5) and result.method == type(method).__name__


def test_rankings_need_whole_groups() -> None:
    with pytest.raises(DataError, match="needs groups of 101 rows; got 40 rows"):
        Layer.of(torch.nn.Identity()).evaluate(RANKED, RIGHT, 40, [V.HitRatio()])
