"""Images: files as a column of images. Owns NNImageReader and its schema, which is that of Spark's own image source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from orca.errors import ArgumentError, DataError
from orca_classic.bigdl.feature.image import MODES, decoded, resized

SCHEMA = "image struct<origin:string,height:int,width:int,nChannels:int,mode:int,data:binary>"
_TYPES = pa.struct(
    [("origin", pa.string()), *((name, pa.int32()) for name in ("height", "width", "nChannels", "mode")),
     ("data", pa.binary())]
)  # fmt: skip


class NNImageReader:
    """The reader of images: structs of origin, height, width, nChannels, mode and data in the column `image`.

    Pixels are in the order BGR, row by row, as OpenCV has them.
    """

    @staticmethod
    def readImages(
        path: str, sc: Any = None, minPartitions: int = 1, resizeH: int = -1, resizeW: int = -1, image_codec: int = -1
    ) -> Any:
        """Read images, lazily; the workers read and decode the files.

        Args:
            path: A file or a folder (with those within), a glob, or several of these with commas between.
            sc: Accepted: the active session reads.
            minPartitions: The least number of partitions.
            resizeH: The height to resize to; -1 leaves it.
            resizeW: The width to resize to; -1 leaves it.
            image_codec: As OpenCV's: -1 as the file is, 0 gray, 1 in colours.

        Raises:
            ArgumentError: Only one of height and width is given.
        """
        if (resizeH > 0) != (resizeW > 0):
            raise ArgumentError(f"resizeH and resizeW go together; got {resizeH} and {resizeW}. Pass both.")
        session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        reader = session.read.format("binaryFile").option("recursiveFileLookup", "true")
        files = reader.load([part.strip() for part in path.split(",")]).select("path", "content")
        if minPartitions > 1:
            files = files.repartition(minPartitions)
        return files.mapInArrow(ImageDecoding(resizeH, resizeW, image_codec), SCHEMA)


@dataclass(frozen=True)
class ImageDecoding:
    """Files decoded into images, a record batch at a time."""

    height: int
    width: int
    codec: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of images."""
        for batch in batches:
            files = zip(batch.column(0).to_pylist(), batch.column(1), strict=True)
            cells = [self._image(path, content.as_py()) for path, content in files]
            yield pa.RecordBatch.from_arrays([pa.array(cells, _TYPES)], names=["image"])

    def _image(self, path: str, content: bytes) -> dict[str, Any]:
        mat = decoded(content, self.codec, path)
        if self.height > 0:
            mat = resized(mat, self.height, self.width)
        return row_of(mat, path)


def row_of(mat: np.ndarray, origin: str) -> dict[str, Any]:
    """Return an array (height, width, channels) as a cell of an image column."""
    height, width, channels = mat.shape
    if (mat.dtype.name, channels) not in MODES:
        raise DataError(f"an image of {channels} channels of {mat.dtype} has no OpenCV mode; known are {list(MODES)}.")
    mode, data = MODES[mat.dtype.name, channels], np.ascontiguousarray(mat).tobytes()
    return dict(zip(_TYPES.names, (origin, height, width, channels, mode, data), strict=True))


def with_origin_column(dataset: Any, imageColumn: str = "image", originColumn: str = "origin") -> Any:
    """Return a DataFrame with a column of the origins of its images."""
    return dataset.withColumn(originColumn, dataset[imageColumn]["origin"])
