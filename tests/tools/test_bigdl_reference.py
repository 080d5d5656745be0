"""The page of BigDL's names."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def test_page_of_names_is_current() -> None:
    pytest.importorskip("torch")
    path = Path(__file__).resolve().parents[2] / "tools" / "bigdl_reference.py"
    spec = importlib.util.spec_from_file_location("bigdl_reference", path)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text() == tool.page(), "run python tools/bigdl_reference.py"
