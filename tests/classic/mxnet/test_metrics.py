"""MXNet's metrics: the value over all rows, however they are split."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from orca.errors import ArgumentError

pytestmark = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")

DRAWN = np.random.default_rng(0)
CHANCES = DRAWN.dirichlet([1.0, 1.0], size=31).astype("float32")
CLASSES = DRAWN.integers(0, 2, 31)


@pytest.mark.parametrize("name", ["acc", "ce", "nll_loss", "perplexity", "f1", "mcc", "mae", "mse", "rmse", "pearsonr"])
def test_ranks_add_up_to_the_value_of_all_rows(name: str) -> None:
    import mxnet as mx

    from orca_classic.mxnet.metrics import mxnet_metrics

    measures = name in ("mae", "mse", "rmse", "pearsonr")
    outputs, labels = (CHANCES[:, :1], CLASSES.astype("float32")[:, None]) if measures else (CHANCES, CLASSES)
    options: dict[str, Any] = {"ignore_label": None} if name == "perplexity" else {}
    theirs = mx.metric.create(name, **options)
    theirs.update([mx.nd.array(labels)], [mx.nd.array(outputs)])
    (metric,) = mxnet_metrics(mx.metric.create(name, **options))
    ranks = [metric.start() for _ in range(3)]
    for rank, cuts in zip(ranks, ([0, 5, 20], [20], [20, 21, 31]), strict=True):  # the second has no rows
        for start, stop in pairwise(cuts):
            rank.update(outputs[start:stop], labels[start:stop])
    total = metric.start()
    total.merge(*(rank.state() for rank in ranks))
    assert metric.name == theirs.get()[0]
    assert total.result() == pytest.approx(float(theirs.get()[1]), rel=1e-5)


def test_composites_functions_and_metrics_of_ours_are_metrics_too() -> None:
    import mxnet as mx

    from orca.metrics import AUC
    from orca_classic.mxnet.metrics import mxnet_metrics

    both = mx.metric.CompositeEvalMetric(["acc", "mse"])
    made = mxnet_metrics([both, AUC(), lambda label, output: float((label - output[:, 1]).sum())])
    assert [metric.name for metric in made[:3]] == ["accuracy", "mse", "AUC"]
    made[3].update(CHANCES, CLASSES)
    assert made[3].result() == pytest.approx(float((CLASSES - CHANCES[:, 1]).sum()), rel=1e-5)
    assert mxnet_metrics(None) == []


def test_what_is_no_metric_is_named() -> None:
    from orca_classic.mxnet.metrics import mxnet_metrics

    with pytest.raises(ArgumentError, match=r"must return metrics of MXNet, such as .*; got 'accurate'"):
        mxnet_metrics(["accurate"])
    import mxnet as mx

    with pytest.raises(ArgumentError, match=r"it is a class, call it: Accuracy\(\)"):
        mxnet_metrics([mx.metric.Accuracy])
