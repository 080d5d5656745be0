"""Seed 004 and section 2.1 of seed 002: programs of TensorFlow 1 on MNIST, where its files are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from programs import run_program

pytest.importorskip("pyspark")
pytest.importorskip("tf_slim")
HERE = Path(__file__).resolve()
# A folder `MNIST/raw` with the IDX files: named by ORCA_DATA, or beside the project.
PLACES = [Path(os.environ.get("ORCA_DATA", "data")), *(parent / "shared" / "data" for parent in HERE.parents)]
MNIST = next((place / "MNIST" / "raw" for place in PLACES if (place / "MNIST" / "raw").is_dir()), None)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(MNIST is None, reason="there are no files of MNIST: set ORCA_DATA to a folder with MNIST/raw")
def test_the_programs_of_the_documents_learn_mnist(tmp_path: Path) -> None:
    text = HERE.with_name("tf1_mnist.py").read_text()
    lines = run_program(text, timeout=380, args=[str(MNIST), str(tmp_path)]).stdout.splitlines()
    assert lines == [
        "lenet learns True 57",
        "lenet predicts 1000 True",
        "graph True",
        "dataframe True",
        "keras True True",
        "keras predicts True",
        "model function ['Top1Accuracy', 'loss'] True",
        "model function predicts True",
    ]
