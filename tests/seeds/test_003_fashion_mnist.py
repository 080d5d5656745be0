"""Seed 003, Fashion-MNIST: its steps as a program (fashion_mnist.py beside this), and the example that is run by hand.

Its last section, on YARN, is in tests/cluster/test_yarn.py.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from programs import run_program

pytest.importorskip("pyspark")
pytest.importorskip("torchvision")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRAIN, TEST = 6000, 1000


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_steps_train_and_test_a_network(tmp_path: Path) -> None:
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for packed in (EXAMPLES / "data" / "FashionMNIST" / "raw").glob("*.gz"):  # torchvision reads plain files
        (raw / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    program = Path(__file__).with_name("fashion_mnist.py").read_text()

    output = run_program(program, timeout=180, args=["--cluster_mode", "local", "--data_dir", str(tmp_path)]).stdout

    (line,) = re.findall("^RESULT (.*)$", output, flags=re.MULTILINE)
    result = json.loads(line)
    assert [(line["epoch"], line["num_samples"]) for line in result["lines"]] == [(1, TRAIN), (2, TRAIN)]
    assert result["lines"][1]["train_loss"] < result["lines"][0]["train_loss"]
    assert result["scores"]["num_samples"] == TEST
    assert result["scores"]["Accuracy"] > 0.7  # ten classes: chance gives 0.1
    assert result["scores"]["val_loss"] < 1


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["spark", "local"])
def test_example_trains_evaluates_saves_loads_and_predicts(backend: str, tmp_path: Path) -> None:
    program = (EXAMPLES / "fashion_mnist.py").read_text()
    args = ["--backend", backend, "--data_dir", str(EXAMPLES / "data"), "--output", str(tmp_path), "--epochs", "1"]

    output = run_program(program, timeout=280, args=args).stdout

    assert f"epoch 1: {TRAIN} images" in output
    kind = {"spark": "DataFrame", "local": "dict"}[backend]
    (loaded,) = re.findall(rf"^Accuracy of the loaded model on a {kind}: (.*)$", output, flags=re.MULTILINE)
    (accuracy,) = re.findall("^Accuracy: (.*)$", output, flags=re.MULTILINE)
    assert float(loaded) > 0.7 and float(accuracy) > 0.7
    assert (tmp_path / "loss.png").exists() and (tmp_path / "model").exists()
