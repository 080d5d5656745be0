from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orca.core.creators import call_creator, create_data
from orca.errors import ArgumentError


class Model:
    """A class as a creator."""

    def __init__(self, width: int = 3) -> None:
        self.width = width


def test_creators_get_as_many_arguments_as_they_take() -> None:
    creators: list[Callable[..., Any]] = [
        lambda: "none",
        lambda config: config,
        lambda config=None: config,
        lambda config, more: (config, more),
        lambda *everything: everything,
        lambda *, option=1: option,
    ]
    assert [call_creator(creator, "a", "b") for creator in creators] == ["none", "a", "a", ("a", "b"), ("a", "b"), 1]
    assert call_creator(Model, "a").width == 3, "defaults of a class are not meant for a config"


def test_what_is_no_creator_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expected an object or a creator function; got int 7"):
        call_creator(7, {})  # type: ignore[arg-type]


def test_data_creators_get_config_and_batch_size_as_they_ask() -> None:
    config = {"lr": 1}
    creators: list[Callable[..., int]] = [
        lambda: 5,
        lambda config: config["lr"] + 5,
        lambda config: config["batch_size"],
        lambda config, batch_size: batch_size,
        lambda config, size: size,
        lambda config, batch_size=7: batch_size,
        lambda config, batch_size, extra=4: batch_size + extra,
        lambda config, extra=4: extra,
    ]
    assert [create_data(creator, config, 3) for creator in creators] == [5, 6, 3, 3, 3, 3, 7, 4]
    assert config == {"lr": 1}
