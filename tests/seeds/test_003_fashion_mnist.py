"""Seed 003: its program, with its own imports, from the first block to the last."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from programs import run_program
from seeds.blocks import code_blocks, document, substitute, unpack_images

EPOCHS, BATCH = 2, 8  # the document's learning rate is small: it takes small batches to get somewhere soon
TRAIN, TEST = 6000, 1000


GIVEN = f"""
import os
os.chdir({{folder!r}})
epochs, batch_size = {EPOCHS}, {BATCH}
# Two threads of torch on a busy machine wait a hundred times longer than they work.
os.environ["OMP_NUM_THREADS"] = "1"
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_program_of_the_document_trains_and_validates(tmp_path: Path) -> None:
    unpack_images(tmp_path / "data")
    blocks = code_blocks(document("003_fashion_mnist.txt"))
    assert len(blocks) == 8
    # YARN needs a cluster; the rest is the document's.
    program = substitute("\n".join(blocks), 'cluster_mode="yarn-client"', 'cluster_mode="local"')

    said = run_program(GIVEN.format(folder=str(tmp_path)) + program, timeout=180).stdout

    train, valid = told(said, "Train stats"), told(said, "Validation stats")
    assert [line["epoch"] for line in train] == list(range(1, EPOCHS + 1))
    assert [line["num_samples"] for line in train] == [TRAIN] * EPOCHS
    assert [line["batch_count"] for line in train] == [TRAIN // BATCH] * EPOCHS
    assert train[-1]["train_loss"] < train[0]["train_loss"]
    assert valid["num_samples"] == TEST
    assert valid["Accuracy"] >= 0.5  # plain torch reaches 0.63 to 0.72; ten classes: chance gives 0.1
    assert valid["val_loss"] < 2.0  # chance gives ln(10) = 2.3


def told(said: str, title: str) -> Any:
    """Return what a line `title: ...` prints, as values."""
    (text,) = re.findall(rf"^{title}: (.*)$", said, flags=re.MULTILINE)
    return ast.literal_eval(text)
