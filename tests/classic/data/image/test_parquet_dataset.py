from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from orca.errors import ArgumentError, DataError
from orca_classic.data.image import (
    DType,
    FeatureType,
    ParquetDataset,
    SchemaField,
    read_parquet,
    write_from_directory,
    write_mnist,
    write_parquet,
)
from orca_classic.data.image.parquet_dataset import ParquetIterable
from orca_classic.data.image.schema import (
    chunks,
    decode_image,
    decode_ndarray,
    decode_schema,
    encode_schema,
    ndarray_dtype_to_dtype,
)

Image = pytest.importorskip("PIL.Image")

FASHION = Path(__file__).resolve().parents[4] / "examples" / "data" / "FashionMNIST" / "raw"
SCHEMA = {
    "image": SchemaField(FeatureType.IMAGE, DType.BYTES),
    "box": SchemaField(FeatureType.NDARRAY, DType.FLOAT32, (-1, 4)),
    "pixels": SchemaField(FeatureType.NDARRAY, DType.UINT8, (2, 3)),
    "label": SchemaField(FeatureType.SCALAR, DType.INT64),
    "name": SchemaField(FeatureType.SCALAR, DType.STRING),
}


def png(colour: int, size: tuple[int, int] = (5, 4)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (colour, 0, 255)).save(file, "png")
    return file.getvalue()


def rows(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "image": png(number),
            "box": np.full((number % 3, 4), number, np.float32),
            "pixels": np.full((2, 3), number, np.uint8),
            "label": number,
            "name": f"n{number}",
        }


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("sets") / "small")
    ParquetDataset.write(path, rows(11), SCHEMA, block_size=4)
    return path


def test_a_dataset_is_chunks_and_a_schema(dataset: str) -> None:
    names = sorted(path.name for path in Path(dataset).iterdir())
    assert names == ["_orca_metadata", "chunk=0", "chunk=1", "chunk=2"]
    assert decode_schema((Path(dataset) / "_orca_metadata").read_text()) == SCHEMA
    assert decode_schema(encode_schema(SCHEMA)) == SCHEMA


def test_rows_come_back_as_they_were_written(dataset: str) -> None:
    for row, expected in zip(ParquetIterable.of(dataset, None, None)(), rows(11), strict=True):
        assert row["image"] == expected["image"] and row["name"] == expected["name"]
        assert row["label"] == expected["label"]
        for name in ("box", "pixels"):
            np.testing.assert_array_equal(row[name], expected[name])
            assert row[name].dtype == expected[name].dtype


@pytest.mark.parametrize("ranks", [1, 2, 3, 13])
def test_ranks_share_all_rows(dataset: str, ranks: int) -> None:
    parts = [[row["label"] for row in ParquetIterable.of(dataset, ranks, rank)()] for rank in range(ranks)]
    assert list(chain(*parts)) == list(range(11))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    halves = [[row["label"] for row in ParquetIterable.of(dataset, ranks, 0).part(n, 2)()] for n in (0, 1)]
    assert list(chain(*halves)) == parts[0]


def test_arrays_of_one_shape_stay_apart_where_shapes_may_differ(tmp_path: Path) -> None:
    path = str(tmp_path / "set")
    ParquetDataset.write(path, ({**row, "box": np.full((2, 4), row["label"])} for row in rows(5)), SCHEMA)
    assert [row["box"].tolist() for row in ParquetIterable.of(path, None, None)()] == [[[n] * 4] * 2 for n in range(5)]


def test_a_failed_write_leaves_what_was_there(dataset: str, tmp_path: Path) -> None:
    path = str(tmp_path / "set")
    ParquetDataset.write(path, rows(2), SCHEMA)

    def failing() -> Iterator[dict[str, Any]]:
        yield from rows(5)
        raise KeyError("the disk is gone")

    with pytest.raises(KeyError, match="the disk is gone"):
        ParquetDataset.write(path, failing(), SCHEMA, block_size=2)
    assert len(list(ParquetIterable.of(path, None, None)())) == 2
    with pytest.raises(KeyError):
        ParquetDataset.write(str(tmp_path / "new"), failing(), SCHEMA, block_size=2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]
    with pytest.raises(KeyError):
        ParquetDataset.write("memory://sets/new", failing(), SCHEMA, block_size=2)
    assert not fsspec.filesystem("memory").exists("/sets/new")


def test_modes_say_what_becomes_of_a_dataset_that_is_there(tmp_path: Path) -> None:
    path = str(tmp_path / "set")
    for mode, expected in (("overwrite", 3), ("ignore", 3), ("overwrite", 2)):
        ParquetDataset.write(path, rows(2 if mode == "ignore" else expected), SCHEMA, 1, mode)
        assert len(list(ParquetIterable.of(path, None, None)())) == expected
    with pytest.raises(ArgumentError, match="there is a dataset at .* already. Pass write_mode='overwrite'"):
        ParquetDataset.write(path, rows(1), SCHEMA, write_mode="error")
    with pytest.raises(
        ArgumentError, match="write_mode must be one of overwrite, error, errorifexists, ignore; got 'ap"
    ):
        ParquetDataset.write(path, rows(1), SCHEMA, write_mode="append")
    (tmp_path / "set" / "thesis.txt").write_text("years of work")
    with pytest.raises(ArgumentError, match="holds other things than a dataset, 'thesis.txt' for example"):
        ParquetDataset.write(path, rows(1), SCHEMA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "three"}, "the field 'label' is SCALAR of INT64 in the schema, and a row has another thing"),
        (
            {"pixels": np.zeros((3, 2))},
            r"'pixels' is NDARRAY of UINT8 .*: shape \(3, 2\) where the schema has \(2, 3\)",
        ),
        ({"box": np.zeros(4)}, r"shape \(4,\) where the schema has \(-1, 4\)"),
        ({"pixels": np.full((2, 3), 300)}, "numbers of int64 that uint8 does not hold"),
        ({"pixels": np.full((2, 3), 0.5)}, "numbers of float64 that uint8 does not hold"),
        ({"image": 3}, "an image is a path or the bytes of a file, not int"),
    ],
)
def test_rows_must_fit_the_schema(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ParquetDataset.write(str(tmp_path / "set"), [{**next(rows(1)), **change}], SCHEMA)
    with pytest.raises(DataError, match="a row has no '(image|box)', which the schema has; it has"):
        ParquetDataset.write(str(tmp_path / "set"), [change], SCHEMA)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (DType.INT64, 2.7, "SCALAR of INT64 .*: 2.7 that int64 does not hold"),
        (DType.INT32, 2**31, "2147483648 that int32 does not hold"),
        (DType.UINT8, -1, "-1 that uint8 does not hold"),
        (DType.INT64, 2**70, "object where numbers belong"),
        (DType.INT32, float("nan"), "nan that int32 does not hold"),
        (DType.INT64, None, "object where numbers belong"),
        (DType.INT64, "5", "<U1 where numbers belong"),
        (DType.FLOAT32, "2.5", "<U3 where numbers belong"),
        (DType.FLOAT32, 1e300, r"1e\+300 that float32 does not hold"),
        (DType.BOOL, 2, "2 that bool does not hold"),
        (DType.FLOAT64, np.datetime64("2024-01-01"), "datetime64.* where numbers belong"),
        (DType.FLOAT64, [1.0, 2.0], r"shape \(2,\) where the schema has \(\)"),
        (DType.STRING, 5, "SCALAR of STRING in the schema, and a row has another thing"),
    ],
)
def test_a_number_that_its_field_does_not_hold_is_refused(
    tmp_path: Path, kind: DType, value: Any, message: str
) -> None:
    schema = {"v": SchemaField(FeatureType.SCALAR, kind)}
    with pytest.raises(DataError, match=message):
        ParquetDataset.write(str(tmp_path / "set"), [{"v": value}], schema)


def test_numbers_that_their_fields_hold_are_written_in_their_types(tmp_path: Path) -> None:
    path = str(tmp_path / "set")
    values: dict[str, tuple[DType, Any]] = {
        "whole": (DType.INT64, 2.0), "large": (DType.INT64, 2**60 + 1), "truth": (DType.BOOL, np.True_),
        "counted": (DType.INT8, True), "missing": (DType.FLOAT32, None), "half": (DType.FLOAT16, 0.5),
        "infinite": (DType.FLOAT32, float("inf")), "number": (DType.FLOAT64, 3), "text": (DType.STRING, "5"),
    }  # fmt: skip
    schema = {name: SchemaField(FeatureType.SCALAR, kind) for name, (kind, _) in values.items()}
    ParquetDataset.write(path, [{name: value for name, (_, value) in values.items()}], schema)
    (row,) = ParquetIterable.of(path, None, None)()
    assert np.isnan(row.pop("missing"))
    assert row == {
        "whole": 2, "large": 2**60 + 1, "truth": True, "counted": 1, "half": 0.5, "infinite": float("inf"),
        "number": 3.0, "text": "5",
    }  # fmt: skip


def test_what_is_no_dataset_is_refused(tmp_path: Path, dataset: str) -> None:
    with pytest.raises(DataError, match="there is no dataset at .*: it has no _orca_metadata"):
        ParquetDataset.read_as_torch(str(tmp_path))
    with pytest.raises(ArgumentError, match="format must be one of tf_dataset, dataloader; got 'csv'"):
        read_parquet("csv", dataset)
    with pytest.raises(ArgumentError, match="format must be one of mnist, image_folder, voc; got 'csv'"):
        write_parquet("csv", str(tmp_path))
    with pytest.raises(ArgumentError, match="rank from 0 to num_shards - 1; got 2 and 2"):
        ParquetIterable.of(dataset, 2, 2)
    with pytest.raises(DataError, match="arrays of complex64 cannot be stored"):
        ndarray_dtype_to_dtype(np.complex64)
    assert [list(piece) for piece in chunks(range(5), 2)] == [[0, 1], [2, 3], [4]]


# torch


def test_torch_reads_images_as_tensors(dataset: str) -> None:
    torch = pytest.importorskip("torch")
    read = list(ParquetDataset.read_as_torch(dataset))
    assert len(read) == 11
    assert (
        read[3]["image"].shape == (3, 4, 5) and read[3]["image"][0, 0, 0] == 3 and read[3]["image"].dtype == torch.uint8
    )
    assert read[3]["pixels"].tolist() == [[3] * 3] * 2 and read[3]["name"] == "n3" and int(read[3]["label"]) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_every_row_once(dataset: str, workers: int) -> None:
    pytest.importorskip("torch")

    def transform(row: dict[str, Any]) -> tuple[Any, int]:
        return np.asarray(row["image"].resize((2, 2)), np.float32), int(row["label"])

    loader = read_parquet("dataloader", dataset, transform, {"num_workers": workers}, batch_size=4)
    batches = list(loader)
    assert sorted(int(label) for _, labels in batches for label in labels) == list(range(11))
    assert batches[0][0].shape == (4, 2, 2, 3)
    half = read_parquet("dataloader", dataset, transform, {"num_shards": 2, "rank": 1}, 4)
    assert sorted(int(label) for _, labels in half for label in labels) == list(range(6, 11))


def test_an_estimator_trains_on_a_dataset(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from orca import Estimator

    path = str(tmp_path / "fashion")
    write_mnist(str(FASHION / "t10k-images-idx3-ubyte.gz"), str(FASHION / "t10k-labels-idx1-ubyte.gz"), path)

    def loader(config: Any, batch_size: int) -> Any:
        def transform(row: Any) -> Any:
            return torch.from_numpy(row["image"]).float().flatten() / 255, int(row["label"])

        return read_parquet("dataloader", path, transform, batch_size=batch_size)

    torch.manual_seed(0)
    model = torch.nn.Linear(784, 10)
    est = Estimator.from_torch(
        model=model,
        loss=torch.nn.CrossEntropyLoss(),
        optimizer=torch.optim.Adam(model.parameters(), 0.01),
        backend="local",
    )
    history = est.fit(loader, epochs=3, batch_size=50)
    assert history[-1]["train_loss"] < 0.8 < history[0]["train_loss"]


# Formats


def test_fashion_mnist_is_written_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "fashion")
    images, labels = (FASHION / f"t10k-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    write_parquet("mnist", path, str(images), str(labels), block_size=400)
    blocks = list(ParquetIterable.of(path, None, None).blocks())
    pixels = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)
    np.testing.assert_array_equal(np.concatenate([block["image"] for block in blocks]), pixels)
    truth = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)
    np.testing.assert_array_equal(np.concatenate([block["label"] for block in blocks]), truth)
    plain = tmp_path / "plain"
    plain.write_bytes(gzip.decompress(images.read_bytes()))
    write_mnist(str(plain), f"file://{labels}", path)
    with pytest.raises(DataError, match="is no IDX file of 3 dimension"):
        write_mnist(str(labels), str(labels), path)
    with pytest.raises(DataError, match="No such file or directory"):
        write_mnist(str(tmp_path / "nothing"), str(labels), path)
    short = tmp_path / "short"
    short.write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, 2) + b"\1\2")
    with pytest.raises(DataError, match=r"has \d+ images, .* has 2 labels"):
        write_mnist(str(images), str(short), path)


def test_folders_of_images_are_classes(tmp_path: Path) -> None:
    for number in range(6):
        folder = tmp_path / "pets" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(png(number))
    path = str(tmp_path / "set")
    write_parquet("image_folder", path, str(tmp_path / "pets"), {"cat": 0, "dog": 1})
    read = {row["image_id"]: row for row in ParquetIterable.of(path, None, None)()}
    assert {name: int(row["label"]) for name, row in read.items()} == {f"{n}.png": 1 - n % 2 for n in range(6)}
    assert read["3.png"]["image"] == png(3)
    write_from_directory(str(tmp_path / "pets"), {"cat": 0, "dog": 1}, path, shuffle=False)
    assert [int(row["label"]) for row in ParquetIterable.of(path, None, None)()] == [0, 0, 0, 1, 1, 1]
    with pytest.raises(
        DataError, match=r"has the folders \['cat', 'dog'\], label_map has \['cat'\]. They must be the same"
    ):
        write_from_directory(str(tmp_path / "pets"), {"cat": 0}, path)


# XShards


def test_chunks_become_shards(spark: Any, dataset: str) -> None:
    shards = ParquetDataset.read_as_xshards(dataset)
    parts = shards.collect()
    assert [len(part["label"]) for part in parts] == [4, 4, 3]
    assert parts[0]["pixels"].shape == (4, 2, 3) and parts[2]["label"].tolist() == [8, 9, 10]

    def height(shard: Any) -> list[int]:
        from orca_classic.data.image.schema import decode_image

        return [decode_image(content).height for content in shard["image"]]

    assert [row["label"] for row in ParquetDataset._read_as_dict_rdd(dataset).collect()] == list(range(11))
    assert shards.transform_shard(height).collect() == [[4] * 4, [4] * 4, [4] * 3]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "[" * 100_000,
        '{"x": 1}',
        '{"x": {"feature_type": "NDARRAY", "dtype": "UINT8", "shape": [1e300]}}',
        '{"x": {"feature_type": "NDARRAY", "dtype": "UINT8", "shape": [1000000000, 1000000000]}}',
        '{"x": {"feature_type": "NDARRAY", "dtype": "UINT8", "shape": [-7]}}',
        '{"x": {"feature_type": "NDARRAY", "dtype": "UINT8", "shape": 3}}',
        '{"x": {"feature_type": "EVAL", "dtype": "UINT8", "shape": []}}',
        '{"x": {"feature_type": [], "dtype": "UINT8", "shape": []}}',
    ],
)
def test_a_schema_that_is_none_is_an_error_that_names_the_dataset(tmp_path: Path, text: str) -> None:
    (tmp_path / "_orca_metadata").write_text(text)
    with pytest.raises(DataError, match=rf"the dataset at {tmp_path} cannot be read: _orca_metadata: .*is no schema"):
        list(ParquetIterable.of(str(tmp_path), None, None)())


def test_rows_that_do_not_hold_their_schema_are_named(tmp_path: Path) -> None:
    rows = [{"x": np.zeros((2, 3), np.float32)}]
    ParquetDataset.write(
        f"file://{tmp_path}/data", rows, {"x": SchemaField(FeatureType.NDARRAY, DType.FLOAT32, (2, 3))}
    )
    metadata = tmp_path / "data" / "_orca_metadata"
    metadata.write_text(metadata.read_text().replace('"x"', '"y"'))
    with pytest.raises(DataError, match="the rows do not hold the field 'y' of their schema"):
        list(ParquetIterable.of(f"file://{tmp_path}/data", None, None)())


def test_arrays_and_images_of_far_more_than_their_bytes_are_refused() -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999, 9999999), }"
    bomb = b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header + b"\n"
    for content in (bomb, b"", b"\x93NUMPY", b"PK\x03\x04", b"no array at all"):
        with pytest.raises(DataError, match=f"{len(content)} bytes are no array"):
            decode_ndarray(content)
    pixels = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", len(pixels)) + b"IHDR" + pixels + struct.pack(">I", zlib.crc32(b"IHDR" + pixels))
    rows = struct.pack(">I", 4) + b"IDAT" + b"rows" + struct.pack(">I", zlib.crc32(b"IDATrows"))
    with pytest.raises(DataError, match="decompression bomb"):
        decode_image(b"\x89PNG\r\n\x1a\n" + chunk + rows)


def test_arrays_of_images_and_labels_are_written_by_their_older_name(tmp_path: Path) -> None:
    from bigdl.orca.data.image.parquet_dataset import _write_ndarrays

    images = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    for labels in (np.arange(3), np.arange(6.0).reshape(3, 2)):
        _write_ndarrays(images, labels, str(tmp_path / "rows"))
        rows = list(ParquetDataset.read_as_torch(str(tmp_path / "rows")))
        np.testing.assert_array_equal([row["image"] for row in rows], images)
        np.testing.assert_array_equal([row["label"] for row in rows], labels)
