"""Docs: the programs of the pages run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import run_program
from seeds.blocks import code_blocks

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page", ["callbacks", "checkpoints", "doctor", "inference", "logging", "migrating", "operator", "training"]
)
def test_programs_of_a_page_run(page: str) -> None:
    pytest.importorskip("torch")
    if page == "inference":
        pytest.importorskip("pyspark")
    blocks = code_blocks((DOCS / f"{page}.md").read_text())
    assert blocks
    run_program("".join(blocks), timeout=270)
