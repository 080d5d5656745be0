"""Docs: the programs of the pages run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import program_of, run_program

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page",
    ["callbacks", "checkpoints", "doctor", "inference", "logging", "migrating", "operator", "training", "xshards"],
)
def test_programs_of_a_page_run(page: str) -> None:
    pytest.importorskip("torch")
    if page in ("inference", "xshards"):
        pytest.importorskip("pyspark")
    run_program(program_of(DOCS / f"{page}.md"), timeout=270)
