"""Images in files as XShards: an image a shard. Owns how files, labels and targets meet; workers decode the images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.data.pandas.paths import files_at, path_list
from orca.data.spark_frames import computed
from orca.errors import ArgumentError, DataError
from orca.storage import hdfs
from orca.storage.files import filesystem, name_of
from orca_classic.data.image.coco import coco_items
from orca_classic.data.image.decoding import decode_image
from orca_classic.data.image.voc import VOCDatasets

if TYPE_CHECKING:
    from pyspark import RDD

    from orca.data.shard import SparkXShards

_IMAGE, _TUPLE = "PIL.Image.Image", "builtins.tuple"


def read_images(
    file_path: Any,
    label_func: Callable[[str], Any] | None = None,
    target_path: Any = None,
    image_type: str = ".jpg",
    target_type: str = ".png",
    backend: str = "pillow",
) -> SparkXShards:
    """Read images into XShards: one image a shard, or (image, label), or (image, target).

    Args:
        file_path: A file, a folder, a glob, or several of these, as in orca.data.pandas.read_csv.
        label_func: Returns the label of an image, given its path.
        target_path: Images that are the targets of others: of the same name, but for the type.
        image_type: How the names of images end.
        target_type: How the names of targets end.
        backend: "pillow" lets the workers read files, "spark" lets Spark do so. Both give images of Pillow.

    Raises:
        ArgumentError: The backend is unknown, or there are both labels and targets.
        DataError: There are no images, or an image has no target.

    Example:
        ::

            shards = read_images("pets", label_func=lambda path: "cat" in path)
            shards = shards.transform_shard(lambda pair: (np.asarray(pair[0].resize((64, 64))), pair[1]))
    """
    readers = {"pillow": read_images_pil, "spark": read_images_spark}
    if backend not in readers:
        raise ArgumentError(f"backend must be 'pillow' or 'spark'; got {backend!r}.")
    return readers[backend](file_path, label_func, target_path, image_type, target_type)


def read_images_pil(
    file_path: Any,
    label_func: Callable[[str], Any] | None = None,
    target_path: Any = None,
    image_type: str = ".jpg",
    target_type: str = ".png",
) -> SparkXShards:
    """Read images as read_images does, with the workers reading files; images are Pillow's."""
    from orca.cluster.context import OrcaContext

    _check(label_func, target_path)
    pairs: list[tuple[str, Any]] = [(path, None) for path in _images(file_path, image_type)]
    if target_path is not None:
        pairs = _matched([path for path, _ in pairs], _images(target_path, target_type))
    context = OrcaContext.get_spark_context()
    rdd = context.parallelize(pairs, min(len(pairs), 4 * context.defaultParallelism))
    task = hdfs.Reaching(partial(_each, reader=partial(_with_label, label_func=label_func)))
    return computed(rdd.mapPartitions(task), _TUPLE if label_func or target_path else _IMAGE)


def read_images_spark(
    file_path: Any,
    label_func: Callable[[str], Any] | None = None,
    target_path: Any = None,
    image_type: str = ".jpg",
    target_type: str = ".png",
) -> SparkXShards:
    """Read images as read_images does, with Spark reading files; images are Pillow's."""
    _check(label_func, target_path)
    contents = _spark_contents(file_path, image_type)
    if target_path is None:
        return computed(contents.map(partial(_labelled, label_func=label_func)), _TUPLE if label_func else _IMAGE)
    both = contents.map(_by_stem).leftOuterJoin(_spark_contents(target_path, target_type).map(_by_stem))
    return computed(both.map(_target_pair), _TUPLE)


def read_voc(
    file_path: str = "VOCdevkit",
    split_names: Sequence[tuple[int | str, str]] | None = None,
    classes: Sequence[str] | Mapping[str, int] | None = None,
    diff: bool = False,
    max_samples: int | None = None,
) -> SparkXShards:
    """Read images of Pascal VOC into XShards: each an (image, boxes) pair.

    Args:
        file_path: The folder VOCdevkit.
        split_names: Years and splits; [(2007, "trainval")] unless given.
        classes: As in VOCDatasets.
        diff: Whether boxes that are marked as difficult are among them.
        max_samples: How many images at most.

    Returns:
        Pairs of an array (height, width, 3) and an array of boxes: xmin, ymin, xmax, ymax, class, difficult.

    Raises:
        DataError: There is no such split, or an object of no known class.
    """
    from orca.cluster.context import OrcaContext

    voc = VOCDatasets(file_path, split_names or [(2007, "trainval")], classes, diff)
    count = len(voc) if max_samples is None else min(len(voc), max_samples)
    if not count:
        raise DataError(
            f"there are no images to read in {file_path}: split_names={split_names}, max_samples={max_samples}."
        )
    context = OrcaContext.get_spark_context()
    rdd = context.parallelize(range(count), min(count, 4 * context.defaultParallelism))
    return computed(rdd.map(lambda number: voc[number]), _TUPLE)


def read_coco(file_path: str, split: str = "train") -> SparkXShards:
    """Read images of COCO into XShards: each an (image, boxes) pair, in the order of their ids.

    Args:
        file_path: The folder with `annotations/instances_<split><year>.json` and the images in `<split><year>/`.
        split: "train" or "val".

    Returns:
        Pairs of an array (height, width, 3) and an array of boxes: xmin, ymin, xmax, ymax, class, crowd. Classes are
        numbered from 0 in the order of their ids in COCO.

    Raises:
        DataError: There is no such split, or no image in it.
    """
    from orca.cluster.context import OrcaContext

    items, _ = coco_items(file_path, split)
    if not items:
        raise DataError(f"there are no images to read in {file_path}: the split {split!r} is empty.")
    context = OrcaContext.get_spark_context()
    rdd = context.parallelize(items, min(len(items), 4 * context.defaultParallelism))
    return computed(rdd.mapPartitions(hdfs.Reaching(partial(_each, reader=_with_boxes))), _TUPLE)


def _each(items: Iterable[Any], reader: Callable[[Any], Any]) -> Iterator[Any]:
    return (reader(item) for item in items)


def _with_boxes(item: tuple[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return an image as an array of three colours, with the boxes it came with."""
    path, boxes = item
    return np.asarray(_opened(path).convert("RGB")), boxes


def _with_label(pair: tuple[str, str | None], label_func: Callable[[str], Any] | None) -> Any:
    """Return an image of Pillow, with its label or target, of a (path, target's path) pair."""
    path, target = pair
    if target is not None:
        return _opened(path), _opened(target)
    return (_opened(path), label_func(path)) if label_func else _opened(path)


def _labelled(pair: tuple[str, bytes], label_func: Callable[[str], Any] | None) -> Any:
    """Return an image, with its label, of a (path, content) pair."""
    path, content = pair
    return (decode_image(content, path), label_func(path)) if label_func else decode_image(content, path)


def _spark_contents(file_path: Any, ending: str) -> RDD[tuple[str, bytes]]:
    from orca.data.pandas.spark_files import loaded

    frame = loaded("binaryFile", path_list(file_path), {"pathGlobFilter": f"*{ending}"}).select("path", "content")
    rdd = frame.rdd.map(lambda row: (row[0], bytes(row[1])))
    if rdd.isEmpty():
        raise _nothing(file_path, ending)
    return rdd


def _by_stem(pair: tuple[str, bytes]) -> tuple[str, tuple[str, bytes]]:
    return _stem(pair[0]), pair


def _target_pair(pair: Any) -> tuple[Any, Any]:
    stem, (image, target) = pair
    if target is None:
        raise DataError(f"the image {image[0]} has no target named {stem!r}.")
    return decode_image(image[1], image[0]), decode_image(target[1], target[0])


def _opened(path: str) -> Any:
    fs, place = filesystem(path)
    try:
        return decode_image(fs.cat_file(place), path)
    except FileNotFoundError:
        raise DataError(f"there is no image {path}.") from None


def _images(file_path: Any, ending: str) -> list[str]:
    paths = [file.path for file in files_at(path_list(file_path)) if file.path.lower().endswith(ending.lower())]
    if not paths:
        raise _nothing(file_path, ending)
    return paths


def _matched(images: list[str], targets: list[str]) -> list[tuple[str, Any]]:
    by_stem = {_stem(path): path for path in targets}
    missing = [path for path in images if _stem(path) not in by_stem]
    if missing:
        raise DataError(f"the image {missing[0]} has no target named {_stem(missing[0])!r}.")
    return [(path, by_stem[_stem(path)]) for path in images]


def _stem(path: str) -> str:
    return name_of(path).rsplit(".", 1)[0]


def _nothing(file_path: Any, ending: str) -> DataError:
    return DataError(f"there is no image whose name ends with {ending!r} at {file_path}. Pass image_type= for others.")


def _check(label_func: Any, target_path: Any) -> None:
    if label_func is not None and target_path is not None:
        raise ArgumentError("an image has a label (label_func) or a target (target_path), not both.")
