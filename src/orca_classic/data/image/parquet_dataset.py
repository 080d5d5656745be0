"""ParquetDataset: rows of images, arrays and values in Parquet. Owns its folder, `chunk=<i>/` and `_orca_metadata`.

A dataset is written whole or not at all. It is read by blocks, and by rank: each reads its own rows.

Not petastorm, which does not run with the pyarrow of today.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow.parquet as pq

from orca.core.plan import even_split
from orca.core.units import positive
from orca.data import folders
from orca.errors import ArgumentError, DataError
from orca.rows.arrow import cut_batches
from orca.storage import hdfs
from orca.storage.files import filesystem, name_of, refuse_foreign, remove, replacing
from orca_classic.data.image.decoding import decode_idx, decode_image
from orca_classic.data.image.schema import (
    DType,
    FeatureType,
    Schema,
    SchemaField,
    chunks,
    decode_schema,
    encode_schema,
    ndarray_dtype_to_dtype,
    to_columns,
    to_table,
)
from orca_classic.data.image.voc import VOCDatasets

if TYPE_CHECKING:
    from pyspark import RDD

    from orca.data.shard import SparkXShards

__all__ = [
    "ParquetDataset", "ParquetIterable", "read_as_dataloader", "read_as_tfdataset", "read_parquet",
    "write_from_directory", "write_mnist", "write_parquet", "write_voc",
]  # fmt: skip

METADATA = "_orca_metadata"
_MODES = ("overwrite", "error", "errorifexists", "ignore")
_READ_ROWS = 256  # rows of a block in memory

logger = logging.getLogger(__name__)


class ParquetDataset:
    """Rows in Parquet files, to be read by every framework."""

    @staticmethod
    def write(
        path: str,
        generator: Iterable[Mapping[str, Any]],
        schema: Schema,
        block_size: int = 1000,
        write_mode: str = "overwrite",
        **kwargs: Any,
    ) -> None:
        """Write rows to a folder: whole or not at all.

        Args:
            path: The folder, on any file system.
            generator: Rows as dicts; an image is the path of its file, or its bytes.
            schema: The fields of a row.
            block_size: Rows of a chunk.
            write_mode: "overwrite", "error" where there is a dataset already, or "ignore" to keep that.
            kwargs: For pyarrow.parquet.write_table, compression for example.

        Raises:
            ArgumentError: The mode is unknown, the folder holds other things, or is there and may not be replaced.
            DataError: A row does not fit the schema.

        Example:
            ::

                schema = {"image": SchemaField(FeatureType.IMAGE, DType.BYTES), "label": SchemaField(
                    FeatureType.SCALAR, DType.INT64)}
                ParquetDataset.write("out", [{"image": "cat.jpg", "label": 0}], schema)
        """
        if write_mode not in _MODES:
            raise ArgumentError(f"write_mode must be one of {', '.join(_MODES)}; got {write_mode!r}.")
        positive("block_size", block_size)
        fs, place = filesystem(path)
        place = place.rstrip("/")
        if fs.exists(f"{place}/{METADATA}") and write_mode != "overwrite":
            if write_mode == "ignore":
                return
            raise ArgumentError(f"there is a dataset at {path} already. Pass write_mode='overwrite' to replace it.")
        names = map(name_of, fs.ls(place, detail=False) if fs.isdir(place) else ())
        ours = {name for name in names if name == METADATA or name.startswith("chunk=")}
        refuse_foreign(path, ours, "a dataset")
        with replacing(fs, place) as draft:
            if draft == place and fs.exists(place):  # on an object store: nothing old may stay
                remove(path, METADATA)
            try:
                for number, rows in enumerate(chunks(generator, block_size)):
                    folder = f"{draft}/chunk={number}"
                    fs.makedirs(folder, exist_ok=True)
                    with fs.open(f"{folder}/rows.parquet", "wb") as file:
                        pq.write_table(to_table(list(rows), schema), file, **kwargs)
                fs.makedirs(draft, exist_ok=True)
                fs.pipe_file(f"{draft}/{METADATA}", encode_schema(schema).encode())
            except BaseException:
                if draft == place:
                    with suppress(Exception):  # the first error is the one to tell
                        remove(path, METADATA)
                raise

    @staticmethod
    def read_as_tf(path: str) -> Any:
        """Return a tf.data.Dataset of rows as dicts; images are the bytes of their files.

        Raises:
            DataError: There is no dataset.
        """
        return read_as_tfdataset(path)

    @staticmethod
    def read_as_torch(
        path: str, transforms: Callable[[dict[str, Any]], Any] | None = None, num_shards: int = 1, rank: int = 0
    ) -> Any:
        """Return an IterableDataset of torch, of rows as dicts; several workers of a DataLoader share its rows.

        Args:
            path: The folder.
            transforms: Called with every row, whose images are those of Pillow and arrays those of numpy; its result
                takes the row's place. Without it images and arrays become tensors.
            num_shards: How many processes share the rows.
            rank: Which of them this is.

        Raises:
            DataError: There is no dataset.
        """
        from orca_classic.data.image.torch_rows import ParquetTorchRows

        return ParquetTorchRows(ParquetIterable.of(path, num_shards, rank, transforms))

    @staticmethod
    def read_as_xshards(path: str) -> SparkXShards:
        """Return XShards of dicts of arrays by field, one of each chunk; images are bytes, decoded where they are used.

        Raises:
            DataError: There is no dataset.
        """
        from orca.cluster.context import OrcaContext
        from orca.data.spark_frames import computed

        fragments, schema = _opened(path)
        context = OrcaContext.get_spark_context()
        paths = [fragment.path for fragment in fragments]
        parts = context.parallelize(paths, max(1, min(len(paths), context.defaultParallelism)))
        return computed(parts.map(folders.loading(partial(_chunk, schema=schema))), "builtins.dict")

    _read_as_xshards = read_as_xshards

    @staticmethod
    def _read_as_dict_rdd(path: str) -> RDD[dict[str, Any]]:
        return ParquetDataset.read_as_xshards(path).rdd.flatMap(_rows)


@dataclass(frozen=True)
class Fragment:
    """A file of a dataset and its rows."""

    path: str
    rows: int


@dataclass(frozen=True)
class ParquetIterable:
    """A rank's rows of a dataset, read block by block.

    Args:
        row_group: The files of the dataset.
        schema: Their fields.
        num_shards: How many share the rows; all of them get as many, or one more.
        rank: Which of them this is.
        transforms: Called with every row.
    """

    row_group: list[Fragment]
    schema: Schema
    num_shards: int | None = None
    rank: int | None = None
    transforms: Callable[[dict[str, Any]], Any] | None = None
    piece: tuple[int, int] = (0, 1)  # which of how many parts of the rank's rows
    where: Mapping[str, str] = field(default_factory=hdfs.environment)

    @classmethod
    def of(cls, path: str, num_shards: int | None, rank: int | None, transforms: Any = None) -> ParquetIterable:
        """Return a rank's rows of the dataset at a path.

        Raises:
            ArgumentError: There is no such rank.
            DataError: There is no dataset.
        """
        if (num_shards is None) != (rank is None) or (num_shards is not None and rank not in range(num_shards)):
            raise ArgumentError(
                f"num_shards and rank go together, rank from 0 to num_shards - 1; got {num_shards} and {rank}."
            )
        return cls(*_opened(path), num_shards, rank, transforms)

    def __call__(self) -> Iterator[Any]:
        """Yield the rows: the results of `transforms`, or dicts in which images are bytes."""
        for block in self.blocks():
            for row in _rows(block):
                yield row if self.transforms is None else self.transforms(self.decoded(row))

    def blocks(self) -> Iterator[dict[str, Any]]:
        """Yield arrays by field, of some rows each."""
        hdfs.adopt(self.where)
        start, stop = self.bounds()
        before = 0
        for fragment in self.row_group:
            first, last = max(start - before, 0), min(stop - before, fragment.rows)
            if first < last:
                fs, place = filesystem(fragment.path)
                with fs.open(place, "rb") as file:
                    for batch in cut_batches(pq.ParquetFile(file).iter_batches(_READ_ROWS), first, last):
                        yield to_columns(batch, self.schema)
            before += fragment.rows

    def decoded(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with its images decoded."""
        images = [name for name, one in self.schema.items() if one.feature_type is FeatureType.IMAGE]
        return {**row, **{name: decode_image(row[name]) for name in images}}

    def part(self, number: int, parts: int) -> ParquetIterable:
        """Return one of several parts of these rows."""
        return replace(self, piece=(number, parts))

    def bounds(self) -> tuple[int, int]:
        """Return the first of these rows, and the one after the last."""
        total = sum(fragment.rows for fragment in self.row_group)
        start, stop = even_split(total, self.num_shards or 1)[self.rank or 0]
        first, last = even_split(stop - start, self.piece[1])[self.piece[0]]
        return start + first, start + last


def _chunk(file: BinaryIO, schema: Schema) -> dict[str, Any]:
    return to_columns(pq.read_table(file), schema)


def _rows(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (dict(zip(block, row, strict=True)) for row in zip(*block.values(), strict=True))


def _opened(path: str) -> tuple[list[Fragment], dict[str, SchemaField]]:
    """Return the files of a dataset, in the order they were written, and its schema."""
    fs, place = filesystem(path)
    place = place.rstrip("/")
    if not fs.exists(f"{place}/{METADATA}"):
        raise DataError(f"there is no dataset at {path}: it has no {METADATA}. Write one with ParquetDataset.write.")
    try:
        schema = decode_schema(fs.cat_file(f"{place}/{METADATA}").decode())
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(f"the dataset at {path} cannot be read: {METADATA}: {error}") from None
    folders = [str(name) for name in fs.ls(place, detail=False) if re.fullmatch(r"chunk=\d+", name_of(str(name)))]
    fragments = []
    for folder in sorted(folders, key=lambda name: int(name_of(name).partition("=")[2])):
        for name in sorted(map(str, fs.ls(folder, detail=False))):
            if name.endswith(".parquet"):
                with fs.open(name, "rb") as file:
                    fragments.append(Fragment(fs.unstrip_protocol(name), pq.ParquetFile(file).metadata.num_rows))
    return fragments, schema


# Formats to write


def write_mnist(image_file: str, label_file: str, output_path: str, **kwargs: Any) -> None:
    """Write images and labels in the files of MNIST (IDX, gzip or not) as a dataset of "image" and "label".

    Args:
        image_file: The images, on any file system.
        label_file: Their labels.
        output_path: The folder of the dataset.
        kwargs: As in ParquetDataset.write.

    Raises:
        DataError: They are no such files, or not as many labels as images.
    """
    images, labels = _idx(image_file, 3), _idx(label_file, 1).astype(np.int64)
    if len(images) != len(labels):
        raise DataError(f"{image_file} has {len(images)} images, {label_file} has {len(labels)} labels.")
    schema = {
        "image": SchemaField(FeatureType.NDARRAY, DType.UINT8, images.shape[1:]),
        "label": SchemaField(FeatureType.SCALAR, DType.INT64),
    }
    rows = ({"image": image, "label": label} for image, label in zip(images, labels, strict=True))
    ParquetDataset.write(output_path, rows, schema, **kwargs)


def _write_ndarrays(images: np.ndarray, labels: np.ndarray, output_path: str, **kwargs: Any) -> None:
    """Write arrays of images and labels, a row each, as a dataset of "image" and "label"; older programs call it."""
    arrays = {"image": np.asarray(images), "label": np.asarray(labels)}
    schema = {
        name: SchemaField(FeatureType.NDARRAY, ndarray_dtype_to_dtype(array.dtype), array.shape[1:])
        for name, array in arrays.items()
    }
    rows = ({"image": image, "label": label} for image, label in zip(*arrays.values(), strict=True))
    ParquetDataset.write(output_path, rows, schema, **kwargs)


def write_voc(voc_root_path: str, splits_names: Iterable[tuple[int, str]], output_path: str, **kwargs: Any) -> None:
    """Write images of Pascal VOC as a dataset of "image", "label" (boxes: xmin, ymin, xmax, ymax, class, difficult) and
    "image_id".

    Args:
        voc_root_path: The folder VOCdevkit.
        splits_names: Years and splits: [(2007, "trainval")].
        output_path: The folder of the dataset.
        kwargs: As in ParquetDataset.write, and `classes`, as in VOCDatasets.

    Raises:
        DataError: There is no such split, or an object of no known class.
    """
    voc = VOCDatasets(voc_root_path, list(splits_names), kwargs.pop("classes", None))
    schema = {
        "image": SchemaField(FeatureType.IMAGE, DType.BYTES),
        "label": SchemaField(FeatureType.NDARRAY, DType.FLOAT32, (-1, 6)),
        "image_id": SchemaField(FeatureType.SCALAR, DType.STRING),
    }
    rows = (
        {"image": voc.image_path(number), "label": voc.boxes(number), "image_id": voc.names[number]}
        for number in range(len(voc))
    )
    ParquetDataset.write(output_path, rows, schema, **kwargs)


def write_from_directory(
    directory: str, label_map: Mapping[str, int], output_path: str, shuffle: bool = True, **kwargs: Any
) -> None:
    """Write images that lie in a folder for each class as a dataset of "image", "label" and "image_id".

    Args:
        directory: The folder that holds the folders of the classes.
        label_map: Labels by the name of a class' folder.
        output_path: The folder of the dataset.
        shuffle: Whether to mix the images; otherwise they stay class by class.
        kwargs: As in ParquetDataset.write.

    Raises:
        DataError: A class has no folder, or there is a folder of no known class.
    """
    fs, place = filesystem(directory)
    folders = [str(entry["name"]) for entry in fs.ls(place, detail=True) if entry["type"] == "directory"]
    names = sorted(map(name_of, folders))
    if set(names) != set(label_map):
        raise DataError(
            f"{directory} has the folders {names}, label_map has {sorted(label_map)}. They must be the same."
        )
    paths = [str(name) for folder in sorted(folders) for name in sorted(fs.ls(folder, detail=False))]
    if shuffle:
        np.random.default_rng(0).shuffle(paths)
    schema = {
        "image": SchemaField(FeatureType.IMAGE, DType.BYTES),
        "label": SchemaField(FeatureType.SCALAR, DType.INT64),
        "image_id": SchemaField(FeatureType.SCALAR, DType.STRING),
    }
    rows = (
        {"image": fs.cat_file(path), "label": label_map[name_of(fs._parent(path))], "image_id": name_of(path)}
        for path in paths
    )
    ParquetDataset.write(output_path, rows, schema, **kwargs)


_WRITERS: dict[str, Callable[..., None]] = {
    "mnist": write_mnist,
    "image_folder": write_from_directory,
    "voc": write_voc,
}


def write_parquet(format: str, output_path: str, *args: Any, **kwargs: Any) -> None:
    """Write a dataset of a known format: "mnist", "image_folder" or "voc".

    Args:
        format: The format.
        output_path: The folder of the dataset.
        args: The arguments of the format's own function before its output_path.
        kwargs: Its other arguments, by name.

    Raises:
        ArgumentError: The format is unknown.
    """
    if format not in _WRITERS:
        raise ArgumentError(f"format must be one of {', '.join(_WRITERS)}; got {format!r}.")
    _WRITERS[format](*args, output_path=output_path, **kwargs)


def _idx(path: str, dimensions: int) -> np.ndarray:
    """Return the array of an IDX file of bytes."""
    fs, place = filesystem(path)
    if not fs.exists(place):
        raise DataError(f"No such file or directory: {path!r}. Check the path.")
    return decode_idx(fs.cat_file(place), dimensions, path)


# Formats to read


def read_parquet(
    format: str,
    path: str,
    transforms: Callable[..., Any] | None = None,
    config: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Read a dataset as a tf.data.Dataset or a torch DataLoader, on the worker that uses it.

    Args:
        format: "tf_dataset" or "dataloader".
        path: The folder of the dataset.
        transforms: "dataloader": called with every row, as in ParquetDataset.read_as_torch. "tf_dataset": given to
            Dataset.map.
        config: "num_shards" and "rank", to read a part of the rows; "num_workers" of a DataLoader.
        batch_size: Rows of a batch; a tf.data.Dataset is batched where it is more than one.
        kwargs: "tf_dataset": output_types, the types to cast fields to, by name.

    Raises:
        ArgumentError: The format is unknown.
        DataError: There is no dataset.
    """
    readers: dict[str, Callable[..., Any]] = {"tf_dataset": read_as_tfdataset, "dataloader": read_as_dataloader}
    if format not in readers:
        raise ArgumentError(f"format must be one of {', '.join(readers)}; got {format!r}.")
    return readers[format](path, *args, config=config, transforms=transforms, batch_size=batch_size, **kwargs)


def read_as_dataloader(
    path: str,
    config: Mapping[str, Any] | None = None,
    transforms: Callable[[dict[str, Any]], Any] | None = None,
    batch_size: int = 1,
    **kwargs: Any,
) -> Any:
    """Return a torch DataLoader; the arguments are those of read_parquet, kwargs those of the DataLoader."""
    from torch.utils.data import DataLoader

    options = dict(config or {})
    rows = ParquetDataset.read_as_torch(path, transforms, options.get("num_shards") or 1, options.get("rank") or 0)
    return DataLoader(rows, batch_size=batch_size, num_workers=options.get("num_workers") or 0, **kwargs)


def read_as_tfdataset(
    path: str,
    output_types: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    output_shapes: Any = None,
    transforms: Callable[..., Any] | None = None,
    batch_size: int = 1,
) -> Any:
    """Return a tf.data.Dataset of rows as dicts; the arguments are those of read_parquet. Shapes are in the schema."""
    from orca_classic.data.tf.loading import tensorflow

    tf = tensorflow()
    options = dict(config or {})
    rows = ParquetIterable.of(path, options.get("num_shards") or 1, options.get("rank") or 0)
    ragged = any(one.feature_type is FeatureType.NDARRAY and not one.fixed for one in rows.schema.values())
    signature = {name: _spec(tf, one, () if ragged else (None,)) for name, one in rows.schema.items()}
    if ragged:
        dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
    else:
        dataset = tf.data.Dataset.from_generator(rows.blocks, output_signature=signature).unbatch()
    if output_types:
        dataset = dataset.map(
            lambda row: {
                name: tf.cast(value, output_types[name]) if name in output_types and value.dtype != tf.string else value
                for name, value in row.items()
            }
        )
    dataset = dataset.map(transforms) if transforms else dataset
    return dataset.batch(batch_size) if batch_size > 1 else dataset


def _spec(tf: Any, one: SchemaField, rows: tuple[None, ...]) -> Any:
    text = one.feature_type is FeatureType.IMAGE or one.dtype in (DType.STRING, DType.BYTES)
    shape = [None if length < 0 else length for length in one.shape] if one.feature_type is FeatureType.NDARRAY else []
    return tf.TensorSpec([*rows, *shape], tf.string if text else tf.as_dtype(one.dtype.value))
