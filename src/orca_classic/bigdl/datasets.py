"""Datasets: the readers that BigDL's programs import. Owns MNIST's and MovieLens' files, and small helpers for data."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.errors import ArgumentError
from orca_classic.bigdl.featuresets import FeatureSet as DataSet
from orca_classic.bigdl.initial import L1L2Regularizer, L1Regularizer, L2Regularizer
from orca_classic.data.image.decoding import decode_idx
from orca_classic.zoo.sample import Sample

__all__ = [
    "DataSet", "extract_images", "extract_labels", "get_id_pairs", "get_id_ratings", "l1", "l1l2", "l2", "load_data",
    "maybe_download", "normalizer", "read_data_sets", "read_localfile", "read_ratings", "remove_batch",
    "sentence_tokenizer", "sentences_split", "set_core_number", "toMultiShape", "to_sample_rdd",
]  # fmt: skip

_FILES = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
          "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}  # fmt: skip


def extract_images(f: Any) -> np.ndarray[Any, Any]:
    """Return the images of an open IDX file, compressed or not, as (count, rows, columns, 1)."""
    return decode_idx(f.read(), 3, "the file of images")[..., None]


def extract_labels(f: Any) -> np.ndarray[Any, Any]:
    """Return the labels of an open IDX file, compressed or not."""
    return decode_idx(f.read(), 1, "the file of labels")


def read_data_sets(train_dir: str, data_type: str = "train") -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return images (count, 28, 28, 1) and labels, from 0, of MNIST's IDX files in a folder.

    Raises:
        ArgumentError: The files are not there: nothing is downloaded.
    """
    arrays = []
    for name in _FILES[data_type]:
        paths = [os.path.join(train_dir, *inside, name + end) for inside in ((), ("raw",)) for end in (".gz", "")]
        path = next((path for path in paths if os.path.exists(path)), None)
        if path is None:
            raise ArgumentError(f"there is no {name}.gz in {train_dir}. Put MNIST's four files there.")
        with open(path, "rb") as file:
            arrays.append((extract_images if "images" in name else extract_labels)(file))
    return arrays[0], arrays[1]


def load_data(location: str = "/tmp/mnist") -> tuple[Any, Any]:
    """Return ((images, labels) to train with, (images, labels) to test with) of MNIST in a folder."""
    return read_data_sets(location, "train"), read_data_sets(location, "test")


def read_ratings(data_dir: str) -> np.ndarray[Any, Any]:
    """Return rows of user, item, rating and time of MovieLens' ratings.dat in a folder."""
    names = ("ratings.dat", "ml-1m/ratings.dat")
    path = next((os.path.join(data_dir, name) for name in names if os.path.exists(os.path.join(data_dir, name))), None)
    if path is None:
        raise ArgumentError(f"there is no ratings.dat in {data_dir}. Put the files of MovieLens 1M there.")
    with open(path, encoding="latin-1") as lines:
        return np.array([line.strip().split("::") for line in lines], dtype=np.int64)


def get_id_pairs(data_dir: str) -> np.ndarray[Any, Any]:
    """Return rows of user and item of MovieLens."""
    return read_ratings(data_dir)[:, :2]


def get_id_ratings(data_dir: str) -> np.ndarray[Any, Any]:
    """Return rows of user, item and rating of MovieLens."""
    return read_ratings(data_dir)[:, :3]


def maybe_download(filename: str, work_directory: str, source_url: str) -> str:
    """Return the path of a file in a folder, downloaded from an address if it is missing."""
    from urllib.request import urlretrieve

    os.makedirs(work_directory, exist_ok=True)
    path = os.path.join(work_directory, filename)
    if not os.path.exists(path):
        urlretrieve(source_url, path)
    return path


def normalizer(data: Any, mean: float, std: float) -> Any:
    """Return data minus a mean, divided by a deviation; of a Sample, its features."""
    if isinstance(data, Sample):
        arrays = [(tensor.to_ndarray() - mean) / std for tensor in data.features]
        return Sample(Sample.from_ndarray(arrays, 0).features, data.labels)
    return (data - mean) / std


def read_localfile(fileName: str) -> list[str]:
    """Return the lines of a text file."""
    with open(fileName, encoding="utf-8") as lines:
        return lines.read().splitlines()


def sentences_split(line: str) -> list[str]:
    """Return the sentences of a text."""
    return [sentence.strip() for sentence in re.findall(r"[^.!?]+[.!?]*", line) if sentence.strip()]


def sentence_tokenizer(sentences: Sequence[str] | str) -> list[str]:
    """Return the words and marks of sentences."""
    text = sentences if isinstance(sentences, str) else " ".join(sentences)
    return re.findall(r"\w+|[^\w\s]", text)


def to_sample_rdd(x: Any, y: Any, sc: Any = None, num_slices: int | None = None, numSlices: int | None = None) -> Any:
    """Return an RDD of Samples of arrays."""
    from pyspark import SparkContext

    context = sc if sc is not None and not isinstance(sc, int) else SparkContext.getOrCreate()
    slices = num_slices or numSlices or (sc if isinstance(sc, int) else None)
    pairs = context.parallelize(list(zip(x, y, strict=True)), slices)
    return pairs.map(lambda pair: Sample.from_ndarray(pair[0], pair[1]))


def set_core_number(num: int) -> None:
    """Set the threads of torch's arithmetic in this process."""
    import torch

    torch.set_num_threads(num)


def remove_batch(shape: Any) -> Any:
    """Return a shape (or a list of shapes) without its first dimension, the rows."""
    is_several = isinstance(shape, list) and bool(shape) and isinstance(shape[0], list | tuple)
    return [remove_batch(each) for each in shape] if is_several else tuple(shape[1:])


def toMultiShape(shape: Any) -> Any:
    """Return one shape, or several, as a list of shapes."""
    return list(shape) if any(isinstance(size, list | tuple) for size in shape) else [shape]


def l1(l1: float = 0.01) -> Any:
    """Return a penalty on the size of weights."""
    return L1Regularizer(l1)


def l2(l2: float = 0.01) -> Any:
    """Return a penalty on the square of weights."""
    return L2Regularizer(l2)


def l1l2(l1: float = 0.01, l2: float = 0.01) -> Any:
    """Return a penalty on the size and the square of weights."""
    return L1L2Regularizer(l1, l2)
