"""Import paths of older programs: every name of names.txt imports, but those of parts that are still to come."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

# What does not import yet, by the part that brings it: a module, or module:name. A part that is built removes its own.
PENDING = {
    "BigDL layers": """
        bigdl.dataset bigdl.dataset.base bigdl.dataset.transformer bigdl.dllib.estimator
        bigdl.dllib.feature.common:FeatureSet bigdl.dllib.feature.dataset bigdl.dllib.feature.dataset.base
        bigdl.dllib.feature.dataset.dataset bigdl.dllib.feature.dataset.transformer bigdl.dllib.feature.image.imageset
        bigdl.dllib.feature.image:ImageSet bigdl.dllib.feature.image:transforms bigdl.dllib.feature.text
        bigdl.dllib.feature.transform.vision.image bigdl.dllib.keras bigdl.dllib.keras.autograd
        bigdl.dllib.keras.backend bigdl.dllib.keras.converter bigdl.dllib.keras.layers bigdl.dllib.keras.metrics
        bigdl.dllib.keras.models bigdl.dllib.keras.objectives bigdl.dllib.keras.optimizers bigdl.dllib.keras.utils
        bigdl.dllib.net bigdl.dllib.nn.criterion bigdl.dllib.nn.initialization_method bigdl.dllib.nn.keras.backend
        bigdl.dllib.nn.keras.keras_utils bigdl.dllib.nn.keras.layers.layer bigdl.dllib.nn.keras.layers.topology
        bigdl.dllib.nn.layer bigdl.dllib.optim.optimizer bigdl.dllib.utils.common bigdl.dllib.utils.file_utils:Sample
        bigdl.dllib.utils.file_utils:set_core_number bigdl.keras.converter bigdl.nn.criterion
        bigdl.nn.initialization_method bigdl.nn.keras.layer bigdl.nn.keras.topology bigdl.nn.layer bigdl.optim.optimizer
        bigdl.orca.inference bigdl.orca.learn.bigdl bigdl.orca.learn.bigdl.estimator bigdl.transform.vision.image
        bigdl.util.common zoo.common:Sample zoo.common:set_core_number zoo.feature.common:FeatureSet
        zoo.feature.common:Relations zoo.feature.image.imageset zoo.feature.image:ImageSet zoo.feature.text
        zoo.orca.learn.bigdl zoo.orca.learn.bigdl.estimator zoo.pipeline.api.autograd zoo.pipeline.api.keras
        zoo.pipeline.api.keras.layers zoo.pipeline.api.keras.metrics zoo.pipeline.api.keras.models
        zoo.pipeline.api.keras.objectives zoo.pipeline.api.keras.optimizers zoo.pipeline.api.keras.utils
        zoo.pipeline.api.keras2.layers zoo.pipeline.api.net:Net zoo.pipeline.api.utils zoo.pipeline.estimator
        zoo.pipeline.inference
    """,
}


@cache
def absent() -> frozenset[str]:
    lines = Path(__file__).with_name("names.txt").read_text().splitlines()
    parts = [line.partition(":") for line in lines if not line.startswith("#")]
    assert len(parts) == 147
    return frozenset(name for module, _, names in parts for name in lacking(module, names.split(",")))


def lacking(module: str, names: list[str]) -> Iterator[str]:
    """Yield a module that does not import, or those of its names that it lacks."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        assert error.name and f"{module}.".startswith(f"{error.name}."), error  # it is there, and lacks something else
        yield module
        return
    for name in filter(None, map(str.strip, names)):
        scope: dict[str, object] = {}
        try:
            exec(f"from {module} import {name}", scope)
        except ImportError:
            yield f"{module}:{name}"
        else:
            assert name != "*" or set(scope) - {"__builtins__"} == set(importlib.import_module(module).__all__)


def test_every_name_imports_but_those_of_parts_to_come() -> None:
    pending = {name for names in PENDING.values() for name in names.split()}
    assert sorted(absent() - pending) == []


@pytest.mark.parametrize("part", PENDING)
def test_part_to_come_lists_no_name_that_imports(part: str) -> None:
    assert sorted(set(PENDING[part].split()) - absent()) == [], "remove these from PENDING"
