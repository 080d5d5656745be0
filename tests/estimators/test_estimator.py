"""The door to the Estimators: defaults of older releases, and attributes that are not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orca import Estimator
from orca.classic import zoo
from orca.estimators import estimator
from orca.estimators.torch import TorchEstimator


def parts() -> dict[str, Any]:
    net = torch.nn.Linear(2, 1)
    return {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1), "loss": torch.nn.MSELoss()}


@pytest.mark.parametrize(
    ("options", "sync"), [({}, "sharded"), ({"backend": None}, "sharded"), ({"backend": "spark"}, "replicated")]
)
def test_defaults_of_older_releases_hold_where_none_is_given(options: dict[str, Any], sync: str) -> None:
    assert zoo.Estimator.from_torch(**parts(), **options).backend.sync == sync


def test_what_is_wrong_within_a_property_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator, "engine_class", lambda name: None)
    made = Estimator.from_torch(**parts(), backend="local")
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'on_cluster'"):
        made.engine  # noqa: B018
    with pytest.raises(AttributeError, match="'TorchEstimator' object has no attribute 'fitt'"):
        made.fitt  # noqa: B018


class Louder(Estimator):
    """An Estimator of the user's own."""

    def shutdown(self, force: bool = False) -> str:
        return "loud"


def test_a_class_of_the_users_own_keeps_what_it_changes() -> None:
    made = Louder.from_torch(**parts(), backend="local")
    assert isinstance(made, Louder) and isinstance(made, TorchEstimator) and made.shutdown() == "loud"
    assert type(made) is type(Louder.from_torch(**parts(), backend="local"))
    assert type(TorchEstimator.from_torch(**parts(), backend="local")) is TorchEstimator
    assert TorchEstimator.from_openvino.__self__.__name__ == "OpenvinoEstimator"
