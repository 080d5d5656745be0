from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca_classic.data.image import DType, FeatureType, ParquetDataset, SchemaField, read_parquet

tf = pytest.importorskip("tensorflow")
Image = pytest.importorskip("PIL.Image")

PLAIN = {
    "image": SchemaField(FeatureType.IMAGE, DType.BYTES),
    "pixels": SchemaField(FeatureType.NDARRAY, DType.UINT8, (2, 3)),
    "label": SchemaField(FeatureType.SCALAR, DType.INT64),
    "name": SchemaField(FeatureType.SCALAR, DType.STRING),
}
BOXES = {**PLAIN, "box": SchemaField(FeatureType.NDARRAY, DType.FLOAT32, (-1, 4))}


def row(number: int) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("L", (3, 2), number).save(file, "png")
    pixels = np.full((2, 3), number, np.uint8)
    box = np.full((number, 4), number, np.float32)
    return {"image": file.getvalue(), "pixels": pixels, "label": number, "name": f"n{number}", "box": box}


@pytest.mark.parametrize("schema", [PLAIN, BOXES], ids=["blocks", "rows"])
def test_tensorflow_reads_rows_as_dicts(tmp_path: Path, schema: Any) -> None:
    path = str(tmp_path / "set")
    ParquetDataset.write(path, map(row, range(7)), schema, block_size=3)
    read = list(ParquetDataset.read_as_tf(path))
    assert [int(one["label"]) for one in read] == list(range(7)) and read[2]["name"] == b"n2"
    assert (read[5]["pixels"].numpy() == 5).all() and read[5]["pixels"].shape == (2, 3)
    assert int(tf.io.decode_png(read[4]["image"])[0, 0, 0]) == 4
    if schema is BOXES:
        assert read[3]["box"].shape == (3, 4)


def test_rows_are_cast_mapped_cut_and_batched(tmp_path: Path) -> None:
    path = str(tmp_path / "set")
    ParquetDataset.write(path, map(row, range(7)), PLAIN, block_size=3)
    data = read_parquet(
        "tf_dataset",
        path,
        lambda one: (one["pixels"] / 2, one["label"]),
        {"num_shards": 2, "rank": 0},
        batch_size=3,
        output_types={"pixels": tf.float32, "label": tf.int32, "name": tf.string},
    )
    (x, y), (_, last) = list(data)
    assert x.dtype == tf.float32 and x.shape == (3, 2, 3) and y.numpy().tolist() == [0, 1, 2] and y.dtype == tf.int32
    assert last.numpy().tolist() == [3]
