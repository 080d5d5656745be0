"""The program of NNFrames: init_spark_on_local, the torch wrappers, NNClassifier with its setters, show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from programs import run_program

pytest.importorskip("torch")
pytest.importorskip("pyspark")

PROGRAM = Path(__file__).with_name("nnframes.py").read_text()
TABLE = """+---------+-----+----------+
|features |label|prediction|
+---------+-----+----------+
|[5.0,3.0]|1.0  |1.0       |
|[3.0,5.0]|0.0  |0.0       |
|[5.0,3.0]|1.0  |1.0       |
|[3.0,5.0]|0.0  |0.0       |
+---------+-----+----------+"""


@pytest.mark.timeout(300)
@pytest.mark.full  # a cold program of many epochs
@pytest.mark.parametrize("seeds", ["0", "1 2 3 4 5 6 7"])
def test_program_prints_its_table_from_any_seed(seeds: str) -> None:
    output = run_program(PROGRAM, args=["150", *seeds.split()], timeout=270).stdout
    assert re.findall(r"^seed (\d) True$", output, re.MULTILINE) == seeds.split()
    assert output.count(TABLE) == len(seeds.split())
