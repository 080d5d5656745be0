"""Seed 001: every call that the document describes is taken, with the arguments it describes."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from orca.registry import BACKENDS
from seeds.blocks import code_blocks, document
from zoo.orca.learn.pytorch import Estimator

TEXT = document("001_pytorch_estimator.txt")
CREATE, *METHODS = code_blocks(TEXT, language="")
# Gradient clipping is not built yet.
LATER = {"clear_gradient_clipping", "set_constant_gradient_clipping", "set_l2_norm_gradient_clipping"}
# Documented as False; here a bar is shown wherever there is a terminal. TrainingOperator is not built yet.
OTHER_DEFAULTS = {"use_tqdm", "training_operator_cls", "backend"}  # backend: None, which is "bigdl" here


def described(call: str) -> tuple[str, dict[str, Any]]:
    """Return a documented call's name and its arguments: their defaults, or `...` for those that must be given.

    >>> described("fit(self, data, epochs=1):")
    ('fit', {'data': Ellipsis, 'epochs': 1})
    """
    function = ast.parse(f"def {call.strip().removesuffix(':')}: pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    pairs = [*zip(reversed(arguments.args), reversed(arguments.defaults), strict=False)][::-1]
    defaults = {argument.arg: default for argument, default in pairs}
    defaults |= {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}
    names = [argument.arg for argument in arguments.args + arguments.kwonlyargs if argument.arg != "self"]
    return function.name, {name: _value(defaults[name]) if name in defaults else ... for name in names}


def _value(default: ast.expr) -> Any:
    return default.id if isinstance(default, ast.Name) else ast.literal_eval(default)


def calls() -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of methods the document describes, in its order: in blocks, and within its sentences."""
    found = re.findall(r"^(\w+\(self.*\):?)$|`(\w+\(self[^`]*\))`", TEXT, flags=re.MULTILINE)
    return [described(block or sentence) for block, sentence in found]


def test_document_describes_the_calls_that_are_tested_here() -> None:
    names = [name for name, _ in calls()]
    assert names == [
        *("fit", "evaluate", "get_model", "save", "load", "shutdown"),
        *("fit", "evaluate", "get_model", "load"),
        *("clear_gradient_clipping", "set_constant_gradient_clipping", "set_l2_norm_gradient_clipping"),
    ]
    assert len(METHODS) == names.count("fit") + names.count("evaluate")


def test_from_torch_takes_every_documented_argument_with_its_default() -> None:
    imported, call = CREATE.split("\n", 1)
    assert (
        imported
        == f"from {Estimator.__module__.replace('orca.classic.zoo', 'zoo.orca.learn.pytorch')} import Estimator"
    )
    name, arguments = described(call.removeprefix("Estimator."))
    assert (name, len(arguments)) == ("from_torch", 12)
    parameters = inspect.signature(Estimator.from_torch).parameters
    assert set(arguments) <= set(parameters)
    for argument, default in arguments.items():
        if default is not ... and argument not in OTHER_DEFAULTS:
            assert parameters[argument].default == default, argument


def test_from_torch_makes_an_estimator_of_the_documented_arguments() -> None:
    _, arguments = described(CREATE.split("\n", 1)[1].removeprefix("Estimator."))
    model = torch.nn.Linear(2, 1)
    given = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loss": torch.nn.MSELoss()}
    defaults = {name: default for name, default in arguments.items() if name != "training_operator_cls"}
    del defaults["backend"]  # left out, it is "bigdl"
    est = Estimator.from_torch(**{**defaults, **given})
    assert est.backend == BACKENDS["bigdl"]


@pytest.mark.parametrize(("name", "arguments"), [call for call in calls() if call[0] not in LATER])
def test_method_takes_the_documented_arguments(name: str, arguments: dict[str, Any]) -> None:
    inspect.signature(getattr(Estimator, name)).bind("self", **arguments)


@pytest.mark.slow
def test_methods_work_with_all_documented_arguments(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.rand(24, 2)
    model = torch.nn.Linear(2, 1)
    est = Estimator.from_torch(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=torch.nn.MSELoss(), backend="local"
    )
    given = {
        "data": DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=8),
        "checkpoint": str(tmp_path / "model.pt"),
    }
    # The document has two Estimators; ours answers for both, so it gets the arguments of both at once.
    together: dict[str, dict[str, Any]] = {}
    for name, arguments in calls():
        together.setdefault(name, {}).update(arguments)
    answers = {}
    for name in [name for name in together if name not in LATER]:
        arguments = {argument: given.get(argument, default) for argument, default in together[name].items()}
        answers[name] = getattr(est, name)(**arguments)

    assert [line["num_samples"] for line in answers["fit"]] == [24]
    assert answers["evaluate"]["num_samples"] == 24
    assert answers["evaluate"]["val_loss"] < answers["fit"][0]["train_loss"]
    assert isinstance(answers["get_model"], torch.nn.Linear)
    assert (tmp_path / "model.pt").exists()
    assert answers["load"] is est
    assert torch.equal(est.get_model().weight, answers["get_model"].weight)
