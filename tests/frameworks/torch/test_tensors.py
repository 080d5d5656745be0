from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from orca.errors import DataError
from orca.frameworks.torch.tensors import Place, answering_device, call, integer_inputs, to_numpy, twice


def test_features_come_in_the_precision_of_the_model_and_targets_as_they_are() -> None:
    place = Place.of(nn.Linear(1, 1), torch.device("cpu"))
    for given in (torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.bfloat16), np.ones(2)):
        assert place.features(given).dtype == torch.float32
    assert place.features(torch.ones(2, dtype=torch.int32)).dtype == torch.int32
    assert place.targets(torch.ones(2, dtype=torch.float64)).dtype == torch.float64


def test_rows_of_any_tensor_are_doubled() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for given in (rows, rows.bfloat16(), rows.numpy()):
        assert twice(given).tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]


def test_what_is_no_tensor_is_no_answer() -> None:
    assert to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    assert (to_numpy(torch.eye(2).to_sparse()) == np.eye(2)).all()
    with pytest.raises(DataError, match="must answer with tensors, .* got NoneType among its outputs"):
        to_numpy(None)  # type: ignore[arg-type]


def test_an_answer_is_computed_on_the_gpu_of_that_number_where_there_is_one() -> None:
    count = torch.cuda.device_count()
    for number in (None, "0", str(count - 1), str(count), "GPU-1234"):
        device = answering_device(number)
        own = number is not None and number.isdigit() and int(number) < count
        assert device == (torch.device("cuda", int(number or 0) if own else 0) if count else torch.device("cpu"))


@pytest.mark.parametrize(("kind", "is_named"), [(torch.float64, False), (torch.float16, False), (torch.int64, True)])
def test_integers_are_named_only_if_torch_refused_integers(kind: torch.dtype, is_named: bool) -> None:
    ids, numbers = torch.tensor([[1], [0]]), torch.ones(2, 1, dtype=kind)
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(1, 1)(numbers)
    assert (integer_inputs(caught.value, [ids, numbers], ("id", "n")) is not None) == is_named


@pytest.mark.parametrize(
    ("features", "columns", "words"),
    [
        ([(5, 3)], (), r"features of the shape \(5, 3\), a batch.*torch: .*cannot be multiplied"),
        ([(5,), (5,)], ("a", "b"), r"Linear\.forward\(input\) .* 2 columns \(a, b\), .* one column of arrays"),
        ([(5, 4), (5, 1)], (), r"Linear\.forward\(input\) .* 2 arrays, .* predict takes features without labels"),
    ],
)
def test_a_model_of_other_inputs_is_named(
    features: list[tuple[int, ...]], columns: tuple[str, ...], words: str
) -> None:
    with pytest.raises(DataError, match=words) as caught:
        call(nn.Linear(4, 2), [torch.ones(shape) for shape in features], columns)
    assert caught.value.__cause__ is None  # one traceback


class Mistaken(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[:, :2])


class Unsteady(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, x)  # type: ignore[call-arg]


@pytest.mark.parametrize(("model", "kind"), [(Mistaken(4, 2), RuntimeError), (Unsteady(4, 2), TypeError)])
def test_an_error_in_a_model_of_the_users_stays(model: nn.Module, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        call(model, torch.ones(5, 4))
    assert type(caught.value) is kind
