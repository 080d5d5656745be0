"""Which changes of a process keep it from running another job."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from orca.core.reuse import SINGLE_USE, Baseline


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setenv("SOME_SETTING", "1"),
        lambda patch: patch.chdir("/"),
        lambda patch: patch.setattr(logging.getLogger(), "handlers", []),
        lambda patch: torch.set_default_dtype(torch.float64),
        lambda patch: torch.use_deterministic_algorithms(True),
        lambda patch: torch.set_float32_matmul_precision("medium"),
        lambda patch: torch.set_grad_enabled(False),
    ],
)
def test_settings_that_change_later_results_are_seen(
    change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline, precision = Baseline(), torch.get_float32_matmul_precision()
    assert baseline.holds()
    try:
        change(monkeypatch)
        assert not baseline.holds()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(precision)
        torch.set_grad_enabled(True)


def test_a_process_whose_memory_others_need_runs_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SINGLE_USE, "1")
    assert not Baseline().holds()


def test_an_edited_module_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "edited_by_the_user.py"
    source.write_text("SCALE = 1")
    os.utime(source, (1e9, 1e9))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, source.stem, importlib.import_module(source.stem))
    baseline = Baseline()
    assert baseline.holds()
    os.utime(source, (time.time() + 1, time.time() + 1))
    assert not baseline.holds()
