from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from orca.frameworks.torch.targets import align, align_all, takes_classes, weighs


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), nn.NLLLoss(), nn.MultiMarginLoss(), F.cross_entropy, F.nll_loss]
)
def test_losses_of_class_numbers_are_known(loss: Any) -> None:
    assert takes_classes(loss)


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.BCELoss(), nn.BCEWithLogitsLoss(), F.mse_loss, lambda o, t: o, None])
def test_other_losses_compare_values(loss: Any) -> None:
    assert not takes_classes(loss)


@pytest.mark.parametrize(
    ("output", "target"),
    [((4, 1), (4,)), ((4,), (4, 1)), ((4, 1, 3), (4, 3)), ((4, 3), (4, 1, 3)), ((1, 1), (1,)), ((1,), (1, 1))],
)
def test_a_target_takes_the_shape_of_the_output(output: tuple[int, ...], target: tuple[int, ...]) -> None:
    values = torch.arange(int(np.prod(target)), dtype=torch.float32).reshape(target)
    aligned = align(torch.zeros(output), values, classes=False)
    assert aligned.shape == output
    assert torch.equal(aligned.reshape(-1), values.reshape(-1))


@pytest.mark.parametrize("labels", [(5,), (5, 1)])
@pytest.mark.parametrize("outputs", [(5,), (5, 1)])
def test_the_squared_error_never_broadcasts(outputs: tuple[int, ...], labels: tuple[int, ...]) -> None:
    output, target = torch.linspace(0, 1, 5), torch.tensor([1.0, 5.0, 2.0, 0.0, 3.0])
    aligned = align(output.reshape(outputs), target.reshape(labels), classes=False)
    loss = nn.MSELoss()(output.reshape(outputs), aligned)
    assert loss == pytest.approx(float(((output - target) ** 2).mean()))


def test_values_of_a_row_are_never_mixed() -> None:
    target = torch.zeros(4, 3, 2)
    assert align(torch.zeros(4, 2, 3), target, classes=False).shape == (4, 3, 2)  # for the loss to refuse
    assert align(torch.zeros(4, 5, 2, 3), target.long(), classes=True).shape == (4, 3, 2)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float64, torch.float16])
def test_a_target_takes_the_dtype_of_the_output(dtype: torch.dtype) -> None:
    aligned = align(torch.zeros(3, 1), torch.tensor([0, 1, 1]).to(dtype), classes=False)
    assert aligned.dtype == torch.float32
    assert aligned.tolist() == [[0.0], [1.0], [1.0]]
    assert align(torch.zeros(3, dtype=torch.float64), torch.ones(3), classes=False).dtype == torch.float64


def test_binary_cross_entropy_takes_whole_labels() -> None:
    chance = torch.tensor([[0.25], [0.75]])
    loss = nn.BCELoss()(chance, align(chance, torch.tensor([0, 1]), classes=False))
    assert loss == pytest.approx(-np.log(0.75))


def test_whole_numbers_of_another_shape_stay_whole() -> None:
    # A function of the user's that calls cross_entropy, say: class numbers, not values.
    target = torch.tensor([2, 0])
    assert align(torch.zeros(2, 3), target, classes=False) is target
    assert align(torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3), classes=False).dtype == torch.float32


@pytest.mark.parametrize(
    "target",
    [
        torch.tensor([2, 0]),
        torch.tensor([2, 0], dtype=torch.int32),
        torch.tensor([2.0, 0.0]),
        torch.tensor([[2.0], [0.0]], dtype=torch.float64),
        torch.tensor([[2], [0]], dtype=torch.uint8),
    ],
)
def test_class_numbers_become_one_whole_number_a_row(target: torch.Tensor) -> None:
    aligned = align(torch.zeros(2, 3), target, classes=True)
    assert aligned.dtype == torch.int64
    assert aligned.tolist() == [2, 0]


def test_class_numbers_of_every_pixel_keep_their_places() -> None:
    target = torch.arange(12).reshape(2, 1, 2, 3) % 4
    aligned = align(torch.zeros(2, 4, 2, 3), target.float(), classes=True)
    assert torch.equal(aligned, target[:, 0])


def test_probabilities_of_every_class_are_kept() -> None:
    chances = torch.tensor([[0.2, 0.8], [0.5, 0.5]], dtype=torch.float64)
    aligned = align(torch.zeros(2, 2), chances, classes=True)
    assert aligned.dtype == torch.float32
    assert torch.equal(aligned, chances.float())


def test_each_target_meets_the_output_at_its_place() -> None:
    outputs, targets = align_all(
        {"a": torch.zeros(2, 1), "b": torch.zeros(2)}, [torch.tensor([1, 2]), torch.tensor([[3], [4]])], False
    )
    assert [o.shape for o in outputs] == [t.shape for t in targets] == [(2, 1), (2,)]
    assert targets[1].tolist() == [3.0, 4.0]


def test_another_number_of_targets_is_left_to_the_loss() -> None:
    outputs, targets = align_all((torch.zeros(2, 1), torch.zeros(2, 1)), torch.tensor([1, 2]), False)
    assert len(outputs) == 2
    assert targets[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("loss", "target", "expected"),
    [
        (nn.CrossEntropyLoss(), torch.zeros(4), False),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), torch.zeros(4), True),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), torch.zeros(4, 1), True),  # class numbers in a column of floats
        (nn.CrossEntropyLoss(weight=torch.ones(3)), torch.zeros(4, 3), False),  # probabilities
        (nn.CrossEntropyLoss(), torch.zeros(4, 2, dtype=torch.long), True),  # tokens, some of them ignored perhaps
        (nn.CrossEntropyLoss(weight=torch.ones(3), reduction="sum"), torch.zeros(4), False),
        (nn.MSELoss(), torch.zeros(4), False),
    ],
)
def test_only_losses_that_divide_by_their_targets_weights_weigh(loss: Any, target: Any, expected: bool) -> None:
    assert weighs(loss, target) is expected
