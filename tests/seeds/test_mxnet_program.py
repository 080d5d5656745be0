"""Seed 002, section 4: a Gluon LeNet (mxnet_lenet.py beside this) on images of the repository, and on all of MNIST."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from programs import run_program
from seeds import mnist

pytestmark = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")
IMAGES = Path(__file__).resolve().parents[2] / "examples" / "data" / "FashionMNIST" / "raw"


def outcome(folder: str, workers: int) -> Any:
    program = Path(__file__).with_name("mxnet_lenet.py").read_text()
    output = run_program(program, timeout=280, args=[folder, "--workers", str(workers)]).stdout
    return json.loads(output.splitlines()[-1])


@pytest.mark.full
def test_lenet_learns_from_the_images_of_the_repository() -> None:
    result = outcome(str(IMAGES), workers=2)
    assert [line["num_samples"] for line in result["lines"]] == [6000, 6000]
    assert result["test"]["num_samples"] == 1000
    assert result["test"]["accuracy"] == pytest.approx(result["lines"][-1]["val_accuracy"])
    assert result["test"]["accuracy"] > 0.7  # ten classes: chance gives 0.1


@pytest.mark.full
@pytest.mark.timeout(300)
@mnist.needed
@pytest.mark.parametrize("workers", [1, 2])
def test_lenet_reads_the_digits_of_mnist(workers: int) -> None:
    result = outcome(str(mnist.FOLDER), workers)
    assert [line["num_samples"] for line in result["lines"]] == [60000, 60000]
    assert result["test"]["num_samples"] == 10000 and result["test"]["accuracy"] >= 0.97
