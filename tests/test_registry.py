from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from orca import registry
from orca.core.source import DataSpec
from orca.errors import ArgumentError, MissingDependency
from orca.registry import BACKENDS, Backend, backend_of, engine_class, estimator_class, source_of


def test_backend_words_select_engine_and_sync() -> None:
    assert backend_of("bigdl") == Backend("spark", "sharded")
    assert backend_of("spark") == Backend("spark", "replicated")
    assert backend_of("ray") == backend_of("torch_distributed") == Backend("ray", "replicated")
    assert backend_of("local") == Backend("local", "replicated")


def test_every_backend_has_an_engine() -> None:
    assert {backend.engine for backend in BACKENDS.values()} <= set(registry.ENGINES)


def test_an_unknown_backend_lists_the_known() -> None:
    with pytest.raises(
        ArgumentError, match=r"one of bigdl, horovod, local, ray, spark, tf2, torch_distributed; got backend: 'sprk'"
    ):
        backend_of("sprk")


def test_horovod_runs_on_ray_and_where_that_is_not_up_on_spark() -> None:
    assert backend_of("horovod") == Backend("ray", "horovod", otherwise="spark")


def test_engines_load_by_name() -> None:
    assert engine_class("local").name == "local"


def test_arrays_find_their_source() -> None:
    spec = DataSpec(batch_size=4)
    assert type(source_of((np.zeros((4, 2)), np.zeros(4)), spec)).__name__ == "ArraySource"
    assert type(source_of({"x": np.zeros((4, 2)), "y": np.zeros(4)}, spec)).__name__ == "ArraySource"


def test_pandas_finds_its_source() -> None:
    pd = pytest.importorskip("pandas")
    from orca.core.source import Columns

    spec = DataSpec(Columns(("a",), ("y",)))
    assert type(source_of(pd.DataFrame({"a": [1.0], "y": [2.0]}), spec)).__name__ == "PandasSource"


@pytest.mark.parametrize("data", [object(), 3, "text", ()])
def test_data_of_an_unknown_kind_is_named(data: object) -> None:
    with pytest.raises(
        ArgumentError, match=rf"data of type builtins.{type(data).__name__} is not supported. Pass numpy"
    ):
        source_of(data, DataSpec())


def test_a_missing_package_is_named_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin_without_ray.py").write_text("import ray.nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    monkeypatch.setitem(registry.ENGINES, "ray", ("plugin_without_ray", "RayEngine"))
    with pytest.raises(MissingDependency, match=r"the ray engine needs the package 'ray'.* install 'orca-dl\[ray\]'"):
        engine_class("ray")


def test_a_package_that_is_no_extra_of_ours_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugin_without_else.py").write_text("import a_module_of_nobody\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.ESTIMATORS, "torch", ("plugin_without_else", "Estimator"))
    with pytest.raises(ModuleNotFoundError, match="a_module_of_nobody"):
        estimator_class("torch")
