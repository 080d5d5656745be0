"""Seed 004 and section 2.1 of seed 002: programs of TensorFlow 1 on MNIST, where its files are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import run_program
from seeds import mnist

pytest.importorskip("pyspark")
pytest.importorskip("tf_slim")
HERE = Path(__file__).resolve()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(400)
@mnist.needed
def test_the_programs_of_the_documents_learn_mnist(tmp_path: Path) -> None:
    text = HERE.with_name("tf1_mnist.py").read_text()
    lines = run_program(text, timeout=380, args=[str(mnist.FOLDER), str(tmp_path)]).stdout.splitlines()
    assert lines == [
        "lenet learns True 57",
        "lenet predicts 1000 True",
        "graph True",
        "dataframe True",
        "keras True True",
        "keras predicts True",
        "keras optimizer True True",
        "model function ['Top1Accuracy', 'loss'] True",
        "model function predicts True",
    ]
