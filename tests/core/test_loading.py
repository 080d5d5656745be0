"""Libraries that are loaded before a fork: a wrong name would only make every start slower, so each must import."""

from __future__ import annotations

import importlib
import sys

import pytest

from orca.core import loading


@pytest.mark.parametrize("library", ["torch", "tensorflow", "mxnet"])
def test_every_module_that_is_loaded_before_a_fork_imports(library: str) -> None:
    import orca_classic  # noqa: F401  # it adds some

    pytest.importorskip(library)
    assert loading._WITH[library]
    for module in loading._WITH[library]:
        importlib.import_module(module)


def test_modules_needed_by_every_rank_import() -> None:
    pytest.importorskip("torch")
    for module in loading.NEEDED:
        importlib.import_module(module)


def test_modules_of_a_library_are_slow_once_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_WITH", {})
    loading.preload("a_library", ["a_library.layers"])
    loading.preload("a_library", ["a_library.layers", "a_library.losses"])
    assert loading.slow_modules() == []
    monkeypatch.setitem(sys.modules, "a_library", sys)
    assert loading.slow_modules() == ["a_library.layers", "a_library.losses"]
