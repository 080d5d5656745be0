"""Decoding: the bytes of image files and of IDX files, the format of MNIST, as images and arrays."""

from __future__ import annotations

import gzip
import io
import math
from typing import TYPE_CHECKING

import numpy as np

from orca.errors import DataError, MissingDependency

if TYPE_CHECKING:
    from PIL.Image import Image


def decode_image(content: bytes, name: str = "an image") -> Image:
    """Return the image in the bytes of a file, its pixels read.

    Args:
        content: The bytes.
        name: Its name in an error.

    Raises:
        DataError: Pillow cannot read it.
        MissingDependency: Pillow is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingDependency.of("pillow", "image", "reading images") from error
    try:
        image = Image.open(io.BytesIO(content))
        image.load()
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{name} is no image, or a damaged one: {error}. Take it out of the data.") from error
    return image


def decode_idx(content: bytes, dimensions: int, name: str) -> np.ndarray:
    """Return the array in the bytes of an IDX file, compressed or not.

    Args:
        content: The bytes.
        dimensions: How many dimensions the array has; its elements are bytes.
        name: Its name in an error.

    Raises:
        DataError: It is no such file, or an incomplete one.
    """
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    if content[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{name} is no IDX file of {dimensions} dimension(s) of bytes; it begins with {content[:4]!r}.")
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if len(values) != math.prod(shape):
        raise DataError(f"{name} is not complete: it has {len(values)} bytes for an array of shape {tuple(shape)}.")
    return values.reshape(shape)
