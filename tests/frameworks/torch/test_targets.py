from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from orca.errors import DataError
from orca.frameworks.torch.batch_loss import BatchLoss
from orca.frameworks.torch.targets import (
    Classes,
    align,
    align_all,
    align_trees,
    check_shapes,
    link_of,
    takes,
    takes_classes,
)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), nn.NLLLoss(), nn.MultiMarginLoss(), F.cross_entropy, F.nll_loss]
)
def test_losses_of_class_numbers_are_known(loss: Any) -> None:
    assert takes_classes(loss)


class Smooth(nn.BCEWithLogitsLoss):
    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(output, 0.9 * target + 0.05)


@pytest.mark.parametrize(
    ("loss", "link"),
    [
        (nn.BCEWithLogitsLoss(), "sigmoid"),
        (Smooth(), "sigmoid"),
        (F.binary_cross_entropy_with_logits, "sigmoid"),
        (partial(F.binary_cross_entropy_with_logits, pos_weight=torch.ones(1)), "sigmoid"),
        (nn.MultiLabelSoftMarginLoss(), "sigmoid"),
        (nn.SoftMarginLoss(), "sigmoid"),
        (nn.CrossEntropyLoss(), "softmax"),
        (partial(F.cross_entropy, label_smoothing=0.1), "softmax"),
        (nn.BCELoss(), ""),
        (nn.MSELoss(), ""),
        (nn.NLLLoss(), ""),
        (nn.MultiLabelMarginLoss(), ""),
        (lambda output, target: F.binary_cross_entropy_with_logits(output, target), ""),
        (None, ""),
    ],
)
def test_a_loss_of_torch_says_whether_it_takes_logits(loss: Any, link: str) -> None:
    assert link_of(loss) == link


def test_the_focal_loss_of_torchvision_takes_logits() -> None:
    focal = pytest.importorskip("torchvision.ops").sigmoid_focal_loss
    assert link_of(focal) == link_of(partial(focal, reduction="mean")) == "sigmoid"


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


def test_named_targets_meet_the_outputs_of_their_names() -> None:
    output = {"a": torch.zeros(2, 1), "b": (torch.zeros(2), torch.zeros(2))}
    target = {"b": [torch.tensor([3, 4]), torch.tensor([5, 6])], "a": torch.tensor([1, 2])}
    assert [t.tolist() for t in align_all(output, target, False)[1]] == [[[1.0], [2.0]], [3.0, 4.0], [5.0, 6.0]]
    nested = align_all([output], [target], False)[1]
    assert [t.shape for t in nested] == [(2, 1), (2,), (2,)]


@pytest.mark.parametrize("names", [("a", "c"), ("c", "d"), ("a",), ("a", "b", "c")])
def test_targets_under_other_names_than_the_outputs_are_refused(names: tuple[str, ...]) -> None:
    output = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with pytest.raises(
        DataError, match=r"outputs are named \['a', 'b'\], but the targets are named .* Name them alike"
    ):
        align_all(output, dict.fromkeys(names, torch.zeros(2)), False)


def test_other_names_that_are_not_paired_are_left_to_the_loss() -> None:
    output = {"scores": torch.zeros(2, 3), "hidden": torch.zeros(2, 5)}
    assert align_all(output, {"label": torch.tensor([1, 2])}, False)[1][0].tolist() == [1, 2]


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_outputs_of_half_precision_go_up_and_targets_never_down(half: torch.dtype) -> None:
    (output,), (target,) = align_all(torch.full((2, 1), 1000.0, dtype=half), torch.tensor([1001.0, 70001.0]), False)
    assert output.dtype == target.dtype == torch.float32
    assert target.tolist() == [[1001.0], [70001.0]]
    _, (chances,) = align_all(torch.zeros(2, 2, dtype=half), torch.full((2, 2), 0.501), True)
    assert chances.tolist() == torch.full((2, 2), 0.501).tolist()


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64, np.float32])
def test_class_numbers_count_the_weight_of_their_class(kind: Any) -> None:
    masses = Classes(np.array([0.5, 2.0, 1.0]), ignored_class=1)
    assert masses(np.array([0, 1, 2, 2], kind)).tolist() == [0.5, 0.0, 1.0, 1.0]
    assert masses(np.array([[0, 1], [2, 2]], kind)).tolist() == [0.5, 2.0]
    assert Classes()(np.array([[0], [-100]], np.int8)).tolist() == [1.0, 0.0]


def test_targets_of_a_loss_of_dicts_keep_names_that_no_output_has() -> None:
    output = {"hidden": torch.zeros(2, 5), "score": torch.zeros(2, 1), "pair": (torch.zeros(2), torch.zeros(2, 1))}
    target = {"label": torch.tensor([1, 2]), "pair": [torch.ones(2, 1), torch.ones(2)], "score": torch.tensor([1, 2])}
    aligned = align_trees(output, target)
    assert list(aligned) == ["score", "pair", "label"]
    assert aligned["score"].tolist() == [[1.0], [2.0]] and aligned["label"] is target["label"]
    assert [part.shape for part in aligned["pair"]] == [(2,), (2, 1)]


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.L1Loss(), F.smooth_l1_loss, nn.BCEWithLogitsLoss()])
@pytest.mark.parametrize("labels", [(2,), (2, 1), (2, 3)])
def test_labels_of_another_size_than_the_outputs_are_refused(loss: Any, labels: tuple[int, ...]) -> None:
    measure = BatchLoss(loss)  # two rows of two outputs: torch would broadcast the first two
    with pytest.raises(DataError, match=r"number by number, but a row's labels have the shape \(.*its outputs \(2,\)"):
        measure.pair(torch.zeros(2, 2), torch.zeros(labels))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (
            [1, 3],
            "classes that count from 0: 0 to 2 for a model of 3 outputs; got 3. Subtract 1 from labels that count",
        ),
        ([-1, 2], "0 to 2 for a model of 3 outputs; got -1"),
        ([1.0, 1.5], "labels are numbers of classes; got 1.5. Pass whole numbers"),
    ],
)
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.nll_loss])
def test_labels_that_are_no_classes_are_refused_in_words(labels: list[float], words: str, loss: Any) -> None:
    measure = BatchLoss(loss)
    with pytest.raises(DataError, match=words):
        measure(*measure.pair(torch.zeros(2, 3), torch.tensor(labels)))


def test_a_loss_says_how_many_arguments_it_takes() -> None:
    assert takes(lambda output, target, weight=1: 0, 2) and not takes(lambda a, b, c, d: 0, 2)
    assert takes(nn.MSELoss(), 2) and not takes(nn.MSELoss(), 4)
    assert not takes(3, 2)


def test_outputs_of_another_number_of_rows_are_told_so() -> None:
    with pytest.raises(
        DataError, match=r"labels has the shape \(4,\), and its outputs \(1,\). Let the model answer for"
    ):
        check_shapes("MSELoss", [torch.zeros(1)], [torch.zeros(4)])
    check_shapes("MSELoss", [torch.zeros(4), None], [torch.zeros(4), torch.zeros(4)])
