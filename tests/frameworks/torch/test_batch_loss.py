from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from frameworks.torch.alone import alone
from orca.core.source import Batch
from orca.errors import ArgumentError
from orca.frameworks.torch.batch_loss import ROWS, SUM, TARGETS, BatchLoss, Tally
from orca.monitor.heartbeat import Heartbeat

WEIGHTS = torch.tensor([0.2, 3.0, 1.0])
OUTPUT = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
LABELS = np.array([0, 1, 2, 0, 1, 2, 2, 2, 1])


class Own(nn.CrossEntropyLoss):
    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(output, target)


class Noisy(nn.Module):
    """Draw random numbers and count its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return output.square().mean() + torch.rand(()) * 1e-9


def first_reading(loss: Any, labels: np.ndarray = LABELS, apart: bool = True, **options: Any) -> BatchLoss:
    """Return a measure after its first step in a world of one rank."""
    measure = BatchLoss(loss, apart=apart, **options)
    batch = measure.counted(Batch(None, labels, len(labels), len(labels)))
    pair = measure.pair(OUTPUT[: len(labels)], torch.from_numpy(labels))
    with alone(Heartbeat()):
        measure.whole(batch, batch, pair)
    return measure


def test_rows_that_were_counted_count_the_same_once_the_loss_is_no_mean_over_targets() -> None:
    measure = first_reading(lambda output, target: output.std(), apart=False)
    batch = measure.counted(Batch(None, LABELS, 9, 9, masses=np.full(9, 5.0), shares=(9,)))  # by an earlier look
    assert measure.whole(batch, batch, measure.pair(OUTPUT, torch.from_numpy(LABELS))) == 9


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (nn.MSELoss(), ROWS),
        (nn.MSELoss(reduction="sum"), SUM),
        (nn.KLDivLoss(reduction="batchmean"), ROWS),
        (nn.CrossEntropyLoss(), TARGETS),
        (nn.CrossEntropyLoss(reduction="none"), ROWS),
        (nn.CrossEntropyLoss(reduction="sum"), SUM),
        (F.mse_loss, ROWS),
        (F.cross_entropy, TARGETS),
        (partial(F.cross_entropy, weight=WEIGHTS), TARGETS),
        (partial(F.mse_loss, reduction="sum"), SUM),
        (None, ROWS),
    ],
)
def test_losses_of_torch_need_not_be_asked(loss: Any, expected: str) -> None:
    measure = BatchLoss(loss)
    assert (measure.asks, measure.readings) == (False, [expected])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda output, target: F.cross_entropy(output, target), [TARGETS, ROWS]),  # nothing was ignored so far
        (lambda output, target: F.cross_entropy(output, target, reduction="sum"), [SUM]),
        (lambda output, target: F.cross_entropy(output, target, reduction="none"), [ROWS]),
        (lambda output, target: F.cross_entropy(output, target) + 5, [TARGETS, ROWS]),
        (lambda output, target: output.sum(), [SUM]),
        (lambda output, target: output.sum() * 0, [TARGETS, ROWS, SUM]),  # it has said nothing
        (Own(), [TARGETS, ROWS]),
        (Own(weight=WEIGHTS), [TARGETS]),
        (Own(reduction="sum"), [SUM]),
    ],
)
@pytest.mark.parametrize("rows", [9, 3, 2])
def test_a_loss_of_the_users_own_is_asked(loss: Any, expected: list[str], rows: int) -> None:
    assert first_reading(loss, LABELS[:rows]).readings == expected


def test_one_row_tells_a_sum_from_a_mean() -> None:
    assert first_reading(lambda output, target: (output[:, 0] - target).square().sum(), LABELS[1:2]).readings == [SUM]
    mean = first_reading(lambda output, target: (output[:, 0] - target).square().mean(), LABELS[1:2])
    assert mean.readings == [TARGETS, ROWS]


def test_ignored_labels_tell_targets_from_rows_whenever_they_come() -> None:
    measure = BatchLoss(lambda output, target: F.cross_entropy(output, target), apart=True)
    with alone(Heartbeat()):
        for labels in [LABELS] * 20 + [np.where(LABELS == 1, -100, LABELS)]:
            assert measure.readings == [TARGETS, ROWS] or labels is LABELS
            batch = measure.counted(Batch(None, labels, 9, 9))
            whole = measure.whole(batch, batch, measure.pair(OUTPUT, torch.from_numpy(labels)))
    assert measure.readings == [TARGETS]
    assert whole == 6


@pytest.mark.parametrize("rows", [1, 4])
def test_a_number_that_torch_would_ignore_counts_where_the_loss_counts_it(rows: int) -> None:
    mean = first_reading(lambda output, target: (output[:, 0] - target).square().mean(), np.full(rows, -100))
    assert mean.readings == [ROWS]


def test_ignored_labels_that_both_halves_have_tell_targets_from_rows() -> None:
    labels = np.array([1, -100, -100, 2])
    mean = first_reading(lambda output, target: (output[:, 0] - target).square().mean(), labels)
    assert mean.readings == [ROWS]
    assert first_reading(lambda output, target: F.cross_entropy(output, target), labels).readings == [TARGETS]


def test_ignored_labels_of_a_later_piece_tell_targets_from_rows() -> None:
    measure = BatchLoss(lambda output, target: (output[:, 0] - target).square().mean(), apart=True)
    labels = np.array([1, 2, -100, 2])
    batch = measure.counted(Batch(None, labels, 4, 4))
    piece = measure.counted(Batch(None, labels[:2], 2, 4))
    with alone(Heartbeat()):
        whole = measure.whole(batch, piece, measure.pair(OUTPUT[:2], torch.from_numpy(labels[:2])))
    assert (measure.readings, whole) == ([ROWS], 4)


@pytest.mark.parametrize("weights", [None, np.array([1.0, 2.0, 0.5])])
def test_masses_that_follow_from_the_targets_travel_beside_the_forward_pass(weights: Any) -> None:
    numbers, chances = np.array([0, 1, 2]), np.array([[0.2, 0.8, 0.0], [1, 0, 0], [0, 0, 1]], np.float32)
    given = np.ones(3) if weights is None else weights
    for labels, expected in ((numbers, (given * WEIGHTS.numpy()).sum()), (chances, given.sum())):
        measure = BatchLoss(nn.CrossEntropyLoss(weight=WEIGHTS))
        batch = measure.counted(Batch(None, labels, 3, 3, weights=weights))
        with alone(Heartbeat()):
            measure.send(batch)
            assert measure.on_the_way is not None
            whole = measure.whole(batch, batch, measure.pair(OUTPUT[:3], torch.from_numpy(labels)))
        assert whole == pytest.approx(expected) and measure.on_the_way is None


def test_class_probabilities_count_the_same_whatever_their_classes_weigh() -> None:
    measure = BatchLoss(nn.CrossEntropyLoss(weight=WEIGHTS))
    chances = np.array([[0.2, 0.8, 0.0], [1, 0, 0]], np.float32)
    assert measure.is_even(measure.counted(Batch(None, chances, 2, 2)))
    assert not measure.is_even(measure.counted(Batch(None, np.array([0, 1]), 2, 2)))
    numbers = np.array([[0.0, 1.0, 2.0], [1.0, 1.0, 0.0]], np.float32)  # three class numbers a row
    assert not measure.is_even(measure.counted(Batch(None, numbers, 2, 2)))


def test_sample_weights_do_not_go_with_a_function_that_counts_rows() -> None:
    measure = BatchLoss(nn.MSELoss(), reduction=lambda target: target)
    with pytest.raises(ArgumentError, match="sample weights and a loss_reduction function do not go together"):
        measure.counted(Batch(None, LABELS, 9, 9, weights=np.ones(9)))


def test_labels_of_half_precision_are_counted() -> None:
    batch = Batch(None, torch.tensor([1.0, 2.0], dtype=torch.bfloat16), 2, 2)
    assert BatchLoss(lambda output, target: output.mean()).counted(batch).masses is None
    assert BatchLoss(nn.CrossEntropyLoss()).counted(batch).masses.tolist() == [1.0, 1.0]


WRONG = [
    lambda output, target: F.cross_entropy(output, target, weight=WEIGHTS),
    lambda output, target: output.std(),
    lambda output, target: output.reshape(3, 3, 3).mean(),  # takes these nine rows alone
]


@pytest.mark.parametrize("loss", WRONG)
def test_a_loss_that_does_not_follow_from_its_parts_is_refused_where_there_are_parts(loss: Any) -> None:
    with pytest.raises(ArgumentError, match=r"neither a mean nor a sum over rows.* pass loss_reduction: a function"):
        first_reading(loss)
    assert first_reading(loss, apart=False).readings == [ROWS]
    assert first_reading(loss, reduction="mean").readings == [ROWS]


def test_what_the_user_says_is_not_asked() -> None:
    assert first_reading(WRONG[0], reduction="sum").readings == [SUM]
    counted = BatchLoss(WRONG[0], reduction=lambda target: WEIGHTS[target])
    batch = counted.counted(Batch(None, LABELS.astype(np.uint8), 9, 9))
    assert batch.masses.tolist() == pytest.approx(WEIGHTS[torch.from_numpy(LABELS)].tolist())
    with pytest.raises(ArgumentError, match=r"what each row counts, 9 numbers .*; got shape \(\)"):
        BatchLoss(WRONG[0], reduction=lambda target: WEIGHTS[target].sum()).counted(Batch(None, LABELS, 9, 9))


def test_asking_leaves_no_trace() -> None:
    loss = Noisy()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first_reading(loss)
    assert torch.equal(torch.rand(2), expected)
    assert loss.calls == 0


@pytest.mark.parametrize(("loss", "mass"), [(WRONG[0], 9), (lambda o, t: F.cross_entropy(o, t, reduction="sum"), 9)])
def test_an_evaluation_adds_up_what_it_found_the_loss_to_be(loss: Any, mass: float) -> None:
    measure = BatchLoss(loss)
    tally, total = Tally(measure), 0.0
    for cut in (slice(0, 5), slice(5, 9)):
        batch = measure.counted(Batch(None, LABELS[cut], len(LABELS[cut]), 9))
        outputs, targets = measure.pair(OUTPUT[cut], torch.from_numpy(LABELS[cut]))
        value = measure(outputs, targets)
        tally.add(batch, outputs, targets, value)
        total += float(value) * (1 if loss is not WRONG[0] else batch.rows)
    with alone(Heartbeat()):
        assert tally.close() == pytest.approx((total, mass))


@pytest.mark.parametrize("names", [("class", "size"), ("size", "class")])  # of outputs
@pytest.mark.parametrize("flat", [False, True])
def test_labels_that_a_loss_ignores_are_found_under_any_name(names: tuple[str, str], flat: bool) -> None:
    def by_name(outputs: dict[str, Any], targets: dict[str, Any]) -> Any:
        return F.cross_entropy(outputs["class"], targets["class"])

    def by_place(one: Any, other: Any, target: Any, another: Any) -> Any:
        return by_name(dict(zip(names, (one, other), strict=True)), dict(zip(names, (target, another), strict=True)))

    labels = np.array([0, -100, 2, 0, 1, 2, 2, -100, 1])  # as many in both halves, so that these say nothing
    outputs = {name: OUTPUT if name == "class" else OUTPUT[:, 0] for name in names}
    for order in (("class", "size"), ("size", "class")):
        y = {name: labels if name == "class" else np.ones(9) for name in order}
        measure = BatchLoss(by_place if flat else by_name, apart=True)
        batch = measure.counted(Batch(None, y, 9, 9))
        pair = measure.pair(outputs, {name: torch.from_numpy(each) for name, each in y.items()})
        with alone(Heartbeat()):
            assert measure.whole(batch, batch, pair) == 7.0
        assert measure.readings == [TARGETS]


def squeezed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output.squeeze(1) - target) ** 2).mean()


def as_column(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def by_torch(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(output.squeeze(-1), target)  # refuses (n,) against (n, 1)


def by_name(output: dict[str, torch.Tensor], target: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(output["score"].squeeze(-1), target["score"]) + squeezed(output["b"], target["b"])


def contrastive(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - output.T).abs() * (target - target.T).abs()).mean()  # compares all rows, in columns


@pytest.mark.parametrize("rows", [1, 6, 7])
@pytest.mark.parametrize("loss", [squeezed, as_column, by_torch])
def test_custom_loss_compares_rows_whether_or_not_it_squeezes_the_outputs(loss: Any, rows: int) -> None:
    output, target = torch.rand(rows, 1), torch.rand(rows)
    batch_loss = BatchLoss(loss)
    expected = loss(output, target.reshape(-1, 1) if loss is as_column else target)
    assert torch.equal(batch_loss(*batch_loss.pair(output, target)), expected)
    assert batch_loss.pair(output, target)[1][0].shape == (rows, 1)  # for metrics


def test_custom_loss_of_dicts_squeezes_its_outputs() -> None:
    output = {"score": torch.rand(5, 1), "b": torch.rand(5, 1)}
    target = {"b": torch.rand(5), "score": torch.rand(5)}
    batch_loss = BatchLoss(by_name)
    assert torch.equal(batch_loss(*batch_loss.pair(output, target)), by_name(output, target))


def test_custom_loss_that_compares_all_rows_gets_targets_like_its_outputs() -> None:
    output, target = torch.rand(5, 1), torch.rand(5)
    batch_loss = BatchLoss(contrastive)
    expected = contrastive(output, target.reshape(-1, 1))
    assert torch.equal(batch_loss(*batch_loss.pair(output, target)), expected)
