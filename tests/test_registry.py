from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from orca import registry
from orca.core import loading
from orca.core.source import DataSpec
from orca.errors import ArgumentError, MissingDependency
from orca.registry import BACKENDS, Backend, backend_of, engine_class, load, register, source_of


def test_backend_words_select_engine_and_sync() -> None:
    assert backend_of("bigdl") == Backend("spark", "sharded")
    assert backend_of("spark") == Backend("spark", "replicated")
    assert backend_of("ray") == backend_of("torch_distributed") == Backend("ray", "replicated")
    assert backend_of("local") == Backend("local", "replicated")


def test_every_backend_has_an_engine() -> None:
    assert {backend_of(name).engine for name in BACKENDS} <= set(registry.ENGINES)


def test_an_unknown_backend_lists_the_known() -> None:
    with pytest.raises(
        ArgumentError, match=r"one of bigdl, .*local, ray, spark, tf2, torch_distributed; got backend: 'sprk'"
    ):
        backend_of("sprk")


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
    monkeypatch.setitem(registry.ENGINES, "ray", "plugin_without_ray:RayEngine")
    with pytest.raises(MissingDependency, match=r"the ray engine needs the package 'ray'.* install 'orca-dl\[ray\]'"):
        engine_class("ray")


def test_a_package_that_is_no_extra_of_ours_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugin_without_else.py").write_text("import a_module_of_nobody\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_of_nobody"):
        load("plugin_without_else:Estimator", need="a model")


@pytest.fixture
def empty_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test change the tables."""
    for name in ("BACKENDS", "ENGINES", "PLUGIN_SOURCES"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    registry._plugins.cache_clear()


PLUGIN = """
import sys
from orca.engines.local import LocalEngine
from orca.registry import Backend, FrameworkPlugin

class Column:
    def __array__(self, *args, **kwargs):
        raise AssertionError("taken for an array")

class ColumnSource:
    batch_size = None
    def __init__(self, data, spec):
        self.data = data
    @classmethod
    def wraps(cls, data):
        return isinstance(data, Column)

class SpotEngine(LocalEngine):
    name = "spot"

SPOT = Backend("spot", "replicated")
def either(framework):
    return Backend("spot", "theirs:Sync" if framework == "torch" else "replicated")
PLUGIN = FrameworkPlugin("columns_of_theirs", ("columns_of_theirs",))
WRONG = 3
"""
ENTRIES = """
[orca.sources]
columns_of_theirs = columns_of_theirs:ColumnSource
[orca.backends]
spot = columns_of_theirs:SPOT
either = columns_of_theirs:either
wrong = columns_of_theirs:WRONG
[orca.engines]
spot = columns_of_theirs:SpotEngine
[orca.frameworks]
columns_of_theirs = columns_of_theirs:PLUGIN
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_tables: None) -> Iterator[None]:
    """Install a package whose entry points name a source, a backend, an engine and a framework."""
    (tmp_path / "columns_of_theirs.py").write_text(PLUGIN)
    info = tmp_path / "columns_of_theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: columns-of-theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    registry._plugins.cache_clear()
    sys.modules.pop("columns_of_theirs", None)


def test_an_installed_package_adds_a_backend_and_its_engine(plugin: None) -> None:
    assert "spot" not in registry.BACKENDS and "spot" in registry.backend_names()
    assert backend_of("spot") == Backend("spot", "replicated")
    assert engine_class("spot").name == "spot"
    assert [backend_of("either", framework).sync for framework in ("torch", "keras")] == ["theirs:Sync", "replicated"]
    with pytest.raises(ArgumentError, match="one of bigdl, .*, spark, spot, tf2, .*; got backend: 'sprk'"):
        backend_of("sprk")
    with pytest.raises(ArgumentError, match="'wrong' of orca.backends must give a Backend; got int"):
        backend_of("wrong")


def test_an_installed_package_adds_a_source_that_goes_before_arrays(plugin: None) -> None:
    import columns_of_theirs

    class Mine(columns_of_theirs.Column):  # type: ignore[misc]
        pass

    for data in (Mine(), columns_of_theirs.Column()):
        assert type(source_of(data, DataSpec())).__name__ == "ColumnSource"


def test_an_installed_package_names_what_is_loaded_before_a_fork(plugin: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_WITH", {})
    registry.preload_plugins()
    assert "columns_of_theirs" not in sys.modules and loading.slow_modules() == []
    import columns_of_theirs  # noqa: F401

    registry.preload_plugins()
    assert loading.slow_modules() == ["columns_of_theirs"]


def test_a_package_registers_when_it_is_imported_and_takes_no_name_of_others(empty_tables: None) -> None:
    register(backends={"spot": Backend("spark", "sharded")}, sources={"theirs": "theirs.data:Source"})
    register(backends={"spot": Backend("spark", "sharded")})  # the same again
    assert backend_of("spot").sync == "sharded"
    with pytest.raises(ArgumentError, match="the backend 'spark' is taken by .*; got .*. Choose another name"):
        register(backends={"spark": Backend("spark", "sharded")})


def test_data_of_known_packages_looks_for_no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_plugins", lambda group: pytest.fail("entry points were read"))
    assert type(source_of((np.zeros((4, 2)), np.zeros(4)), DataSpec(batch_size=4))).__name__ == "ArraySource"
    assert type(source_of(lambda config, batch_size: None, DataSpec(batch_size=4))).__name__ == "CreatorSource"
