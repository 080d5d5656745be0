"""Docs: the programs of the pages run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from programs import program_of, run_program

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page",
    [
        *"bigdl callbacks checkpoints data doctor inference logging migrating mxnet nnframes operator tf1".split(),
        *"training xshards".split(),
    ],
)
def test_programs_of_a_page_run(page: str) -> None:
    pytest.importorskip("torch")
    needs = {
        "inference": ["pyspark"],
        "mxnet": ["mxnet"],
        "nnframes": ["pyspark", "PIL"],
        "tf1": ["tf_slim"],
        "xshards": ["pyspark"],
        "data": ["pyspark", "PIL", "tensorflow"],
    }
    for library in needs.get(page, []):
        pytest.importorskip(library)
    run_program(program_of(DOCS / f"{page}.md"), timeout=270)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_tutorial_learns_what_people_like() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pyspark")
    program = (DOCS.parent / "examples" / "ncf.py").read_text()
    output = run_program(program, timeout=270).stdout
    (area,) = re.findall(r"AUC (0\.\d+)$", output, flags=re.MULTILINE)
    assert float(area) > 0.75  # chance gives 0.5
    assert "prediction" in output


@pytest.mark.full
@pytest.mark.timeout(300)
def test_features_of_old_drawings_tell_new_ones_apart() -> None:
    for library in ("torch", "pyspark", "PIL"):
        pytest.importorskip(library)
    program = (DOCS.parent / "examples" / "transfer_learning.py").read_text()
    output = run_program(program, timeout=270).stdout
    (accuracy,) = re.findall(r"accuracy on new kinds of drawings (\d\.\d+)$", output, flags=re.MULTILINE)
    assert float(accuracy) > 0.75  # chance gives 0.5
