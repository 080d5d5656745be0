"""Modules as plain values: made again without their constructors, tied weights and odd attributes included."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from orca.errors import ArgumentError  # noqa: E402
from orca.frameworks.torch.architecture import build, describe  # noqa: E402
from orca.storage.state import State  # noqa: E402
from orca.storage.states import load_state, save_state  # noqa: E402


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.again = self.first
        self.activation, self.scale = functional.relu, partial(torch.mul, other=2.0)
        self.kind, self.sizes = torch.float32, {"a": (1, 2)}
        self.register_buffer("shift", torch.tensor([1.0, 2.0, 3.0]), persistent=False)
        self.register_parameter("none", None)
        self.first.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(self.again(self.activation(self.second(self.first(x)))) + self.shift)  # type: ignore[no-any-return]


def made_again(net: nn.Module, folder: Path) -> nn.Module:
    save_state(State(payload={"models": [net.state_dict()], "architecture": describe(net)}), str(folder), "torch")
    payload = load_state(str(folder), "torch").payload
    other = build(payload["architecture"])
    other.load_state_dict(payload["models"][0])
    return other


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (Tied, (2, 3)),
        (lambda: nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), (2, 5, 3)),
        (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, batch_first=True), 2), (2, 4, 6)),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten()), (2, 1, 5, 5)),
    ],
)
def test_module_made_again_answers_alike(make: Callable[[], nn.Module], shape: Any, tmp_path: Path) -> None:
    net = make().eval()
    other = made_again(net, tmp_path / "saved").eval()
    x = torch.rand(shape)
    with torch.no_grad():
        expected, got = net(x), other(x)
    pairs = zip(expected, got, strict=True) if isinstance(expected, tuple) else [(expected, got)]
    assert all(torch.equal(one, two) for one, two in pairs if isinstance(one, torch.Tensor))
    assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in net.parameters()]


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    other: Any = made_again(Tied(), tmp_path / "saved")
    assert other.second.weight is other.first.weight and other.again is other.first
    assert len(list(other.parameters())) == 2


def hooked() -> nn.Module:
    net = nn.Linear(1, 1)
    net.register_forward_hook(lambda *_: None)
    return net


def holding(thing: Any) -> nn.Module:
    net = nn.Linear(1, 1)
    net.extra = thing
    return net


def inner() -> nn.Module:
    class Inner(nn.Linear):
        pass

    return Inner(1, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (inner, "needs .*Inner, which is defined in the program itself or in a function"),
        (hooked, "has hooks .*, which are code"),
        (lambda: holding(lambda x: x), "the attribute extra of the model .Linear. needs .*lambda"),
        (lambda: holding(open), None),
        (
            lambda: holding(iter(())),
            "the attribute extra of the model .Linear. is a tuple_iterator, which cannot be written",
        ),
    ],
)
def test_what_cannot_be_written_is_named(make: Callable[[], nn.Module], words: str | None) -> None:
    if words is None:
        assert describe(make())["attributes"]["extra"]["name"].endswith(":open")
        return
    with pytest.raises(ArgumentError, match=words):
        describe(make())


def test_class_that_is_no_module_is_refused() -> None:
    about = describe(nn.Linear(1, 1)) | {"class": "subprocess:Popen"}
    with pytest.raises(ArgumentError, match=r"names subprocess:Popen, which is no torch\.nn\.Module"):
        build(about)
    with pytest.raises(ArgumentError, match=r"needs nowhere\.Net, which cannot be imported here"):
        build(about | {"class": "nowhere:Net"})


@pytest.mark.parametrize("name", ["load_state_dict", "_load_from_state_dict", "_load_state_dict_pre_hooks"])
def test_a_file_that_replaces_code_of_torch_is_refused(name: str) -> None:
    about = describe(nn.Linear(2, 1))
    about["attributes"][name] = {"orca.kind": "name", "name": "builtins:print"}
    with pytest.raises(ArgumentError, match=rf"sets {name} of torch.nn.*Linear, which is torch's own, and code"):
        build(about)


def test_a_module_whose_train_is_replaced_by_a_function_is_made_again() -> None:
    net = nn.Linear(2, 1)
    net.train = functional.relu  # type: ignore[assignment,method-assign]
    assert build(describe(net)).train is functional.relu
