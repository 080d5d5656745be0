"""Seed 002, section 6: its OpenVINO program, with a small model in place of the file that it takes as given."""

from __future__ import annotations

import json

import pytest

from programs import run_program
from seeds.blocks import code_blocks, document, substitute

pytest.importorskip("openvino")

# A model of 4 images 3 x 224 x 224 at a time with 1000 scores each: their channels' means times a matrix.
GIVEN = """
import json, os

import numpy as np
import openvino as ov
from openvino import opset13 as op

from zoo.orca import init_orca_context, stop_orca_context
from zoo.orca.data import XShards

matrix = np.random.default_rng(0).normal(size=(3, 1000)).astype(np.float32)
image = op.parameter([4, 3, 224, 224], name="image")
scores = op.matmul(op.reduce_mean(image, np.array([2, 3])), matrix, False, False)
ov.save_model(ov.Model([scores], [image]), "model.xml", compress_to_fp16=False)

init_orca_context(cluster_mode="local", cores=2)
"""

ANSWERS = """
shards = result_shards.collect()
expected = input_data.mean(axis=(3, 4)) @ matrix
print("RESULT", json.dumps({
    "shape": result.shape,
    "difference": float(np.abs(result - expected).max()),
    "keys": [sorted(shard) for shard in shards],
    "x": bool((np.concatenate([shard["x"] for shard in shards]) == input_data).all()),
    "shards_difference": float(np.abs(np.concatenate([shard["prediction"] for shard in shards]) - expected).max()),
}))
stop_orca_context()
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_batches_of_images_are_answered_for_as_arrays_and_as_xshards() -> None:
    create, predict = code_blocks(document("002_training_and_inference.txt", "### **6. OpenVINO Estimator**"))
    create = substitute(create, "The/file_path/to/the/OpenVINO_IR_xml_file", "model.xml")

    said = run_program(GIVEN + create + predict + ANSWERS, timeout=180).stdout

    (line,) = [line for line in said.splitlines() if line.startswith("RESULT ")]
    result = json.loads(line.removeprefix("RESULT "))
    assert result["shape"] == [20, 4, 1000]
    assert result["difference"] < 1e-4
    assert result["keys"] == [["prediction", "x"]] * 2
    assert result["x"]
    assert result["shards_difference"] < 1e-4
