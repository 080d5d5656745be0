"""The chaos runs themselves, by hand, take all seeds (`make chaos`): here one of each fault, on local processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts disks and makes cgroups"),
]
TOOL = Path(__file__).parents[2] / "tools" / "chaos.py"


@pytest.mark.parametrize("seeds", [(0, 4), (4, 4), pytest.param((8, 24), marks=pytest.mark.full)])
def test_a_disturbed_fit_ends_as_the_clean_one(seeds: tuple[int, int], run_program: Callable[..., Any]) -> None:
    first, count = seeds
    arguments = ["--engines", "local", "--first", str(first), "--seeds", str(count)]
    said = run_program(TOOL.read_text(), args=arguments, timeout=280)
    assert f"{count} of {count} runs as the clean one" in said.stdout
