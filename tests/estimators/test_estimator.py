"""The calls that make Estimators, their signatures, and attributes that are not there."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

import orca_classic.zoo.bigdl
from orca import Estimator
from orca.errors import ArgumentError, SignatureError
from orca.estimators import estimator
from orca.estimators.torch import TorchEstimator
from orca_classic.zoo import zoo


def parts() -> dict[str, Any]:
    net = torch.nn.Linear(2, 1)
    return {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1), "loss": torch.nn.MSELoss()}


@pytest.mark.parametrize(
    ("options", "sync"), [({}, "sharded"), ({"backend": None}, "sharded"), ({"backend": "spark"}, "replicated")]
)
def test_defaults_of_older_releases_hold_where_none_is_given(options: dict[str, Any], sync: str) -> None:
    assert zoo.Estimator.from_torch(**parts(), **options).backend.sync == sync


def test_a_default_of_an_older_release_gives_way_to_what_is_given() -> None:
    made = [orca_classic.zoo.bigdl.Estimator.from_torch(**parts(), **options) for options in ({}, {"squeeze": False})]
    assert [est.learner.options.squeeze for est in made] == [True, False]


@pytest.mark.parametrize("name", ["from_torch", "from_keras", "from_openvino"])
def test_a_call_documents_each_argument(name: str) -> None:
    method = getattr(Estimator, name)
    assert [each for each in inspect.signature(method).parameters if f"{each}: " not in method.__doc__] == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Estimator.from_torch(worker_per_node=2),
         "Estimator.from_torch() has no argument 'worker_per_node'. Did you mean 'workers_per_node'?"),
        (lambda: zoo.Estimator.from_torch(modell=1),
         "Estimator.from_torch() has no argument 'modell'. Did you mean 'model'?"),
        (lambda: Estimator.from_keras(device="cuda"), "Estimator.from_keras() has no argument 'device': GPUs need no "),
        (lambda: Estimator.from_openvino(path="m.xml"),
         "Estimator.from_openvino() has no argument 'path'; it has model_path, batch_size, backend."),
        (lambda: Estimator.from_torch(epochs=2),
         "Estimator.from_torch() has no argument 'epochs': pass it to fit, evaluate or predict."),
        (lambda: local().fit(1, metrics=["mae"]), "Estimator.fit() has no argument 'metrics': the Estimator has "),
        (lambda: Estimator(model=1), "Estimator() makes none: call Estimator.from_torch(...)"),  # type: ignore[call-arg]
        (lambda: Estimator.from_torch(colour="red"),
         "Estimator.from_torch() has no argument 'colour'; it has model, optimizer, loss, metrics, "),
        (lambda: Estimator.from_torch(torch.nn.Linear(2, 1)),
         "Estimator.from_torch(): too many positional arguments. Pass arguments by name: from_torch(model=..., "),
        (lambda: local().fit(1, epoch=2), "Estimator.fit() has no argument 'epoch'. Did you mean 'epochs'?"),
        (lambda: local().fit(x=1, y=2),
         "Estimator.fit() has no argument 'x': data is one argument: fit((x, y)), evaluate((x, y)), predict(x).\n"
         "Estimator.fit() has no argument 'y': "),
        (lambda: local().fit(), "Estimator.fit(): missing a required argument: 'data'. Pass arguments by name: "),
        (lambda: Estimator.from_keras(model=1), "Estimator.from_keras() has no argument 'model': pass keras_model= "),
        (lambda: local().fit(np.ones((9, 2)), np.ones(9)),
         "Estimator.fit(): epochs must be a number, and data is one argument: fit((x, y)), "),
        (lambda: local().evaluate([1, 2], [1, 2]),
         "Estimator.evaluate(): batch_size must be a number, and data is one argument: "),
        (lambda: local().evaluate(1, use_gpu=True), "Estimator.evaluate() has no argument 'use_gpu': GPUs need no "),
        (lambda: local().predict(1, features_col="x"),
         "Estimator.predict() has no argument 'features_col'. Did you mean 'feature_cols'?"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_answered_with_the_public_call_and_what_to_write(call: Any, words: str) -> None:
    with pytest.raises(SignatureError) as caught:
        call()
    assert str(caught.value).startswith(words)
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, ArgumentError)
    assert caught.value.__context__ is None  # one traceback


def local() -> Any:
    return Estimator.from_torch(**parts(), backend="local", workers_per_node=2)


def test_repr_tells_what_is_trained_where_and_how_far() -> None:
    est = local()
    facts = "framework='torch', model='Linear', backend='local', workers_per_node=2"
    assert repr(est) == f"TorchEstimator({facts}, epochs_trained=0)"
    x = np.ones((8, 2), "float32")
    est.fit((x, x[:, :1]), epochs=2)
    assert repr(est) == f"TorchEstimator({facts}, epochs_trained=2)"
    several = Estimator.from_torch(model=[torch.nn.Linear(2, 1), torch.nn.ReLU()], backend=None)
    assert "model=['Linear', 'ReLU'], backend='spark'" in repr(several)
    assert "model='parts'" in repr(Estimator.from_torch(model=parts))


def test_what_is_wrong_within_a_property_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator, "engine_class", lambda name: None)
    made = Estimator.from_torch(**parts(), backend="local")
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'on_cluster'"):
        made.engine  # noqa: B018
    with pytest.raises(AttributeError, match="'TorchEstimator' object has no attribute 'fitt'"):
        made.fitt  # noqa: B018


class Louder(TorchEstimator):
    """An Estimator of the user's own."""

    def shutdown(self, force: bool = False) -> str:
        return "loud"


def test_a_class_of_the_users_own_keeps_what_it_changes() -> None:
    made = Louder.from_torch(**parts(), backend="local")
    assert isinstance(made, Louder) and isinstance(made, TorchEstimator) and made.shutdown() == "loud"
    assert type(made) is Louder
    assert type(TorchEstimator.from_torch(**parts(), backend="local")) is TorchEstimator
