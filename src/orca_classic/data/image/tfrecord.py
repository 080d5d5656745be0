"""TFRecord files of ImageNet. Owns their names and fields; Spark's workers write them, one file at a time.

TensorFlow writes the records; the package `tfrecord` ignores checksums and reads local files only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from orca.core.plan import even_split
from orca.errors import ArgumentError, DataError
from orca.storage import hdfs
from orca.storage.files import filesystem, name_of, write
from orca_classic.data.tf.loading import tensorflow

_FILES = {"train": 1024, "validation": 128}
_LABELS = "synset_labels.txt"


def write_tfrecord(format: str, output_path: str, *args: Any, **kwargs: Any) -> None:
    """Write images as TFRecord files of a known format: "imagenet".

    Args:
        format: The format.
        output_path: The folder that gets the files.
        args: The arguments of write_imagenet before its output_path.
        kwargs: Its other arguments, by name.

    Raises:
        ArgumentError: The format is unknown.
    """
    _check(format)
    partial(write_imagenet, output_path=output_path)(*args, **kwargs)


def read_tfrecord(format: str, path: str, *args: Any, **kwargs: Any) -> Any:
    """Read TFRecord files of a known format, "imagenet", as a tf.data.Dataset; see read_imagenet.

    Raises:
        ArgumentError: The format is unknown.
    """
    _check(format)
    return read_imagenet(path, *args, **kwargs)


def write_imagenet(
    imagenet_path: str,
    output_path: str,
    train_files: int = _FILES["train"],
    validation_files: int = _FILES["validation"],
) -> None:
    """Write ImageNet as TFRecord files train-00000-of-01024 and validation-00000-of-00128, and so on.

    Args:
        imagenet_path: A folder with `train/<class>/` and `validation/<class>/`; or with all validation images in
            `validation/` and their classes, line by line in the order of their names, in `synset_labels.txt`.
        output_path: The folder that gets the files; each of them appears when it is complete.
        train_files: How many files training images are dealt to.
        validation_files: How many files validation images are dealt to.

    Raises:
        DataError: A folder is missing, or classes are.
    """
    from orca.cluster.context import OrcaContext

    fs, place = filesystem(imagenet_path)
    if not fs.isdir(f"{place}/train"):
        raise DataError(f"there is no folder 'train' in {imagenet_path}.")
    classes = sorted(name_of(str(entry["name"])) for entry in fs.ls(f"{place}/train", detail=True) if _is_folder(entry))
    numbers = {name: number for number, name in enumerate(classes, 1)}  # 0 is left for the background
    pieces = []
    for part, count in (("train", train_files), ("validation", validation_files)):
        images = _images(fs, place, part, numbers)
        if part == "train":
            np.random.default_rng(0).shuffle(images)
        for number, (start, stop) in enumerate(even_split(len(images), count) if images else ()):
            pieces.append((f"{output_path.rstrip('/')}/{part}-{number:05}-of-{count:05}", images[start:stop]))
    out, folder = filesystem(output_path)
    out.makedirs(folder, exist_ok=True)
    context = OrcaContext.get_spark_context()
    parts = context.parallelize(pieces, min(len(pieces), 4 * context.defaultParallelism))
    parts.foreachPartition(hdfs.Reaching(_write_files))


def read_imagenet(path: str, is_training: bool) -> Any:
    """Return a tf.data.Dataset of (bytes of an image file, label from 1) pairs; training files are read in turn.

    Raises:
        DataError: There are no such files.
    """
    tf = tensorflow()
    names = get_filenames(is_training, path)
    files = tf.data.Dataset.from_tensor_slices(names)
    files = files.shuffle(len(names)) if is_training else files
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=min(10, len(names)))
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def pair(record: Any) -> tuple[Any, Any]:
        example = tf.io.parse_single_example(record, features)
        return example["image/encoded"], example["image/class/label"]

    return records.map(pair, num_parallel_calls=tf.data.AUTOTUNE)


def get_filenames(is_training: bool, data_dir: str) -> list[str]:
    """Return the TFRecord files of training or validation, in order.

    Raises:
        DataError: There are none.
    """
    part = "train" if is_training else "validation"
    fs, place = filesystem(data_dir)
    names = sorted(map(str, fs.glob(f"{place.rstrip('/')}/{part}-*-of-*")))
    if not names:
        raise DataError(f"there are no files {part}-*-of-* in {data_dir}. Write them with write_tfrecord.")
    return [name if name.startswith("/") else fs.unstrip_protocol(name) for name in names]


def _write_files(pieces: Iterable[tuple[str, list[tuple[str, int, str]]]]) -> None:
    for path, images in pieces:
        write(path, {"": partial(_write_records, images)}, None)


def _write_records(images: list[tuple[str, int, str]], path: str) -> None:
    tf = tensorflow()
    with tf.io.TFRecordWriter(path) as writer:
        for image, label, kind in images:
            fs, place = filesystem(image)
            values = {"image/encoded": fs.cat_file(place), "image/class/synset": kind, "image/filename": name_of(image)}
            features = {name: _text_feature(tf, value) for name, value in values.items()}
            features["image/class/label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def _text_feature(tf: Any, value: str | bytes) -> Any:
    content = value.encode() if isinstance(value, str) else value
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))


def _images(fs: Any, place: str, part: str, numbers: Mapping[str, int]) -> list[tuple[str, int, str]]:
    """Return the path, label and class of every image of a part."""
    folder = f"{place}/{part}"
    entries = sorted(fs.ls(folder, detail=True), key=lambda entry: str(entry["name"])) if fs.isdir(folder) else []
    kinds = [name_of(str(entry["name"])) for entry in entries if _is_folder(entry)]
    pairs = [(str(name), kind) for kind in kinds for name in sorted(fs.ls(f"{folder}/{kind}", detail=False))]
    flat = [str(entry["name"]) for entry in entries if not _is_folder(entry)]
    if flat:
        listing = f"{place}/{_LABELS}"
        lines = fs.cat_file(listing).decode().split() if fs.exists(listing) else []
        if len(lines) != len(flat):
            raise DataError(f"{folder} has {len(flat)} images, and {listing} has the classes of {len(lines)}.")
        pairs += list(zip(flat, lines, strict=True))
    strange = sorted({kind for _, kind in pairs} - set(numbers))
    if strange:
        raise DataError(f"{folder} has images of the class {strange[0]!r}, of which there are none in train.")
    return [(str(fs.unstrip_protocol(path)), numbers[kind], kind) for path, kind in pairs]


def _is_folder(entry: Mapping[str, Any]) -> bool:
    return bool(entry["type"] == "directory")


def _check(format: str) -> None:
    if format != "imagenet":
        raise ArgumentError(f"format must be 'imagenet'; got {format!r}.")
