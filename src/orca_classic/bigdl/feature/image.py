"""Image: preprocessing of images. Owns ImageFeature and the Image... steps, which take (height, width, BGR) arrays.

A step that draws random numbers draws those of an image from its seed and the image itself: the same on any number of
workers, in any order of the rows. Files are decoded by Pillow; sizes are changed by torch, as OpenCV would.

Not torchvision or kornia: results must equal those of the older system bit by bit.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from orca.errors import ArgumentError, DataError
from orca.rows.arrow import missing
from orca_classic.bigdl.feature.preprocessing import Preprocessing
from orca_classic.bigdl.feature.values import computed, value_class
from orca_classic.data.image.decoding import decode_image

__all__ = [
    "ImageAspectScale", "ImageBrightness", "ImageBytesToMat", "ImageCenterCrop", "ImageChannelNormalize",
    "ImageChannelOrder", "ImageColorJitter", "ImageExpand", "ImageFeatureToSample", "ImageFeatureToTensor",
    "ImageFiller", "ImageFixedCrop", "ImageHFlip", "ImageHue", "ImageMatToTensor", "ImageMirror",
    "ImagePixelBytesToMat", "ImagePixelNormalize", "ImagePreprocessing", "ImageRandomAspectScale",
    "ImageRandomCrop", "ImageRandomPreprocessing", "ImageResize", "ImageSaturation", "ImageSetToSample",
    "PerImageNormalize", "RowToImageFeature",
]  # fmt: skip

_MODES = ("nearest", "bilinear", "bicubic", "area")  # OpenCV's numbers of ways to resize
_INTERPOLATIONS = {"NEAREST": 0, "LINEAR": 1, "CUBIC": 2, "AREA": 3}  # OpenCV's names of them
_CHANNELS = {0: (np.uint8, 1), 16: (np.uint8, 3), 24: (np.uint8, 4), 5: (np.float32, 1), 21: (np.float32, 3)}
MODES = {(np.dtype(kind).name, channels): mode for mode, (kind, channels) in _CHANNELS.items()}  # of OpenCV


class ImageFeature:
    """An image with its parts by key: "mat" (the array), "bytes", "uri", "label", "imageTensor", ...

    Args:
        image: An array (height, width, channels) in the order BGR, or an image of Pillow.
        label: A label.
        path: Where it came from.
    """

    def __init__(self, image: Any = None, label: Any = None, path: str | None = None) -> None:
        is_picture = type(image).__module__.startswith("PIL.")
        mat = in_bgr(image) if is_picture else None if image is None else np.asarray(image)
        values = {"mat": mat, "label": label, "uri": path}
        self.parts: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
        self.drawn = 0  # steps that have drawn random numbers for it
        if "mat" in self.parts:
            self.parts["originalSize"] = self.parts["mat"].shape

    def __getitem__(self, key: str) -> Any:
        return self.parts[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.parts[key] = value

    def __contains__(self, key: str) -> bool:
        return key in self.parts

    def get(self, key: str, default: Any = None) -> Any:
        """Return a part, or the default."""
        return self.parts.get(key, default)

    def need(self, key: str) -> Any:
        """Return a part that a step must have."""
        if key not in self.parts:
            raise DataError(f"an image has no {key!r}; it has {', '.join(self.parts) or 'nothing'}. Read it first.")
        return self.parts[key]

    def keys(self) -> list[str]:
        """Return the keys of its parts."""
        return list(self.parts)

    @property
    def mat(self) -> np.ndarray:
        """Return the array (height, width, channels), decoded from the bytes if there is none yet."""
        if "mat" not in self.parts:
            if "bytes" not in self.parts:
                raise DataError(f"an image has neither pixels nor bytes; it has {self.keys()}.")
            self.set_mat(decoded(self.parts["bytes"], -1, self.get("uri", "an image")))
        mat: np.ndarray = self.parts["mat"]
        return mat

    def set_mat(self, mat: np.ndarray) -> None:
        """Replace the array."""
        self.parts.setdefault("originalSize", mat.shape)
        self.parts["mat"] = mat

    def get_image(self, float_key: str = "floats", to_chw: bool = True) -> np.ndarray:
        """Return the image as floats, (channels, height, width) or (height, width, channels)."""
        floats = self.parts.get(float_key)
        image = np.asarray(self.mat if floats is None else floats, np.float32)
        return image.transpose(2, 0, 1) if to_chw else image

    def get_label(self) -> Any:
        """Return the label."""
        return self.parts.get("label")

    @property
    def tensor(self) -> np.ndarray:
        """Return the tensor that a step has made, else the pixels as (channels, height, width)."""
        tensor = self.parts.get("imageTensor")
        return self.get_image() if tensor is None else tensor


def decoded(data: bytes, codec: int = -1, name: str = "an image") -> np.ndarray:
    """Return the pixels of an image file as (height, width, channels), BGR.

    Args:
        data: The file.
        codec: As OpenCV's: -1 as it is, 0 gray, 1 in colours.
        name: Its name in an error.

    Raises:
        DataError: It is no image that Pillow knows.
        MissingDependency: Pillow is not installed.
    """
    return in_bgr(decode_image(data, name), codec)


def in_bgr(image: Any, codec: int = -1) -> np.ndarray:
    """Return the pixels of an image of Pillow as (height, width, channels), BGR."""
    mode = {0: "L", 1: "RGB"}.get(codec)
    if mode is None:  # as it is, in one of the kinds that an image column has
        mode = image.mode if image.mode in ("L", "RGB", "RGBA") else "RGBA" if "A" in image.mode else "RGB"
    pixels = np.asarray(image.convert(mode))
    if pixels.ndim == 2:
        return pixels[:, :, None]
    return pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]]


def resized(mat: np.ndarray, height: int, width: int, mode: int = 1) -> np.ndarray:
    """Return an image in another size, as OpenCV does: mode 0 is nearest, 1 linear, 2 cubic, 3 area."""
    import torch
    from torch.nn import functional

    if mode not in range(len(_MODES)):
        raise ArgumentError(f"resize_mode must be 0 (nearest), 1 (linear), 2 (cubic) or 3 (area); got {mode!r}.")
    if mat.shape[:2] == (height, width):
        return mat
    pixels = torch.from_numpy(np.ascontiguousarray(mat.transpose(2, 0, 1))).float()[None]
    options: dict[str, Any] = {"align_corners": False} if mode in (1, 2) else {}
    new = functional.interpolate(pixels, (height, width), mode=_MODES[mode], **options)[0].permute(1, 2, 0).numpy()
    return _like(new, mat)


def _like(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return numbers in the type of an image: bytes are rounded and clipped, as in OpenCV."""
    if old.dtype == np.uint8:
        return np.clip(np.rint(new), 0, 255).astype(np.uint8)
    return new.astype(np.float32, copy=False)


@dataclass(frozen=True)
class ImagePreprocessing(Preprocessing):
    """A step on images. Most have a `function` of an array, random numbers and the arguments, which changes it."""

    grows: ClassVar[bool] = True
    function: ClassVar[Callable[..., np.ndarray]]

    def apply(self, rows: Any) -> Any:
        """Return the images, changed."""
        if not isinstance(rows, list):
            raise DataError(
                f"{type(self).__name__} takes images; got {type(rows).__name__}. Begin the chain with "
                "RowToImageFeature()."
            )
        return [self.transform(row) for row in rows]

    def transform(self, feature: ImageFeature) -> ImageFeature:
        """Change one image."""
        feature.set_mat(self.change(feature.mat, self.draw(feature)))
        return feature

    def change(self, mat: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """Return the array of a changed image."""
        result: np.ndarray = computed(self, mat, draw)
        return result

    def draw(self, feature: ImageFeature) -> np.random.Generator:
        """Return the random numbers for an image."""
        return np.random.default_rng(0)


@dataclass(frozen=True)
class RandomImagePreprocessing(ImagePreprocessing):
    """A step on images that draws random numbers."""

    seed: int = field(default=0, kw_only=True)
    draws: ClassVar[bool] = True

    def seeded(self, seed: int) -> RandomImagePreprocessing:
        """Return it with other random numbers."""
        return replace(self, seed=seed)

    def draw(self, feature: ImageFeature) -> np.random.Generator:
        """Return the random numbers for an image, by the seed, the kind of step, its place among these, the pixels."""
        pixels, feature.drawn = zlib.crc32(feature.mat.tobytes()), feature.drawn + 1
        return np.random.default_rng([self.seed, zlib.crc32(type(self).__name__.encode()), pixels, feature.drawn])


@dataclass(frozen=True)
class RowToImageFeature(ImagePreprocessing):
    """Cells of an image column (origin, height, width, nChannels, mode, data) as images; bytes of files, too."""

    def read(self, column: Any, name: str) -> list[ImageFeature]:
        """Return the images of a column."""
        if column.null_count:
            raise missing(name, column.null_count)
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            return [_file_feature(data) for data in column.to_pylist()]
        if not pa.types.is_struct(column.type) or column.type.get_field_index("data") < 0:
            raise DataError(
                f"column {name!r} has the type {column.type}, which holds no images. Read images with NNImageReader, "
                "or select a column of image files' bytes."
            )
        return [image_of(row, name) for row in column.to_pylist()]

    def transform(self, feature: ImageFeature) -> ImageFeature:
        """Return the image, which is one already."""
        return feature


def image_of(row: dict[str, Any], name: str) -> ImageFeature:
    """Return the image of a cell of an image column."""
    kind, channels = _CHANNELS.get(row["mode"], (None, 0))
    if kind is None:
        raise DataError(f"an image of column {name!r} has the OpenCV mode {row['mode']}; known are {list(_CHANNELS)}.")
    shape = (row["height"], row["width"], channels)
    pixels = np.frombuffer(row["data"], kind)
    if pixels.size != np.prod(shape):
        raise DataError(f"an image of column {name!r} is damaged: {pixels.size} numbers for the shape {shape}.")
    return ImageFeature(pixels.reshape(shape), path=row.get("origin"))


def _file_feature(data: bytes) -> ImageFeature:
    feature = ImageFeature()
    feature["bytes"] = data
    return feature


@dataclass(frozen=True)
class ImageBytesToMat(ImagePreprocessing):
    """Bytes of image files as arrays."""

    byte_key: str = "bytes"
    image_codec: int = -1

    def transform(self, feature: ImageFeature) -> ImageFeature:
        """Decode one image; one that has its pixels and no bytes stays as it is."""
        if self.byte_key in feature or "mat" not in feature:
            feature.set_mat(decoded(feature.need(self.byte_key), self.image_codec, feature.get("uri", "an image")))
        return feature


@dataclass(frozen=True)
class ImagePixelBytesToMat(ImagePreprocessing):
    """Bytes of pixels as arrays of the image's original size."""

    byte_key: str = "bytes"

    def transform(self, feature: ImageFeature) -> ImageFeature:
        """Read the pixels of one image; one that has them and no bytes stays as it is."""
        if self.byte_key in feature or "mat" not in feature:
            pixels = np.frombuffer(feature.need(self.byte_key), np.uint8)
            feature.set_mat(pixels.reshape(feature.need("originalSize")))
        return feature


def _scaled(mat: np.ndarray, draw: Any, min_size: int, scale_multiple_of: int = 1, max_size: int = 1000,
            resize_mode: int = 1, use_scale_factor: bool = True, min_scale: float = -1.0) -> np.ndarray:  # fmt: skip
    short, long = sorted(mat.shape[:2])
    scale = min(min_size / short, max_size / long)
    scale = max(scale, min_scale) if min_scale > 0 else scale
    step = scale_multiple_of
    height, width = (int(size * scale // step * step) if step > 1 else round(size * scale) for size in mat.shape[:2])
    return resized(mat, max(height, 1), max(width, 1), resize_mode)


def _hue(mat: np.ndarray, draw: np.random.Generator, delta_low: float, delta_high: float) -> np.ndarray:
    turn = draw.uniform(delta_low, delta_high) / 180
    return _recoloured(mat, lambda hue, saturation: ((hue + turn) % 1, saturation))


def _saturation(mat: np.ndarray, draw: np.random.Generator, delta_low: float, delta_high: float) -> np.ndarray:
    factor = draw.uniform(delta_low, delta_high)
    return _recoloured(mat, lambda hue, saturation: (hue, np.clip(saturation * factor, 0, 1)))


def _jittered(mat: np.ndarray, draw: np.random.Generator, brightness_prob: float = 0.5, brightness_delta: float = 32.0,
              contrast_prob: float = 0.5, contrast_lower: float = 0.5, contrast_upper: float = 1.5,
              hue_prob: float = 0.5, hue_delta: float = 18.0, saturation_prob: float = 0.5,
              saturation_lower: float = 0.5, saturation_upper: float = 1.5, random_order_prob: float = 0.0,
              shuffle: bool = False) -> np.ndarray:  # fmt: skip
    brightness, contrast, saturation, hue = (
        (brightness_prob, ImageBrightness(-brightness_delta, brightness_delta)),
        (contrast_prob, ImageContrast(contrast_lower, contrast_upper)),
        (saturation_prob, ImageSaturation(saturation_lower, saturation_upper)),
        (hue_prob, ImageHue(-hue_delta, hue_delta)),
    )
    steps = [brightness, contrast, saturation, hue]
    if shuffle:
        steps = [steps[at] for at in draw.permutation(4)]
    elif draw.random() >= 0.5:
        steps = [brightness, saturation, hue, contrast]
    for chance, step in [*steps, (random_order_prob, ImageChannelOrder())]:
        if draw.random() < chance:
            mat = step.change(mat, draw)
    return mat


def _normalized(mat: np.ndarray, draw: Any, mean_b: float, mean_g: float, mean_r: float, std_b: float = 1.0,
                std_g: float = 1.0, std_r: float = 1.0) -> np.ndarray:  # fmt: skip
    means, deviations = [mean_b, mean_g, mean_r], [std_b, std_g, std_r]
    if mat.shape[2] == 1 and len(set(means)) == len(set(deviations)) == 1:  # equal for all channels: also for grey
        means, deviations = means[:1], deviations[:1]
    if mat.shape[2] != len(means):
        raise DataError(
            f"ImageChannelNormalize has means of three channels, and an image has {mat.shape[2]}. Read images in "
            "colours (image_codec=1), or pass three equal means and deviations for grey ones."
        )
    return (mat.astype(np.float32) - np.array(means, np.float32)) / np.array(deviations, np.float32)


def _without(mat: np.ndarray, draw: Any, means: Any) -> np.ndarray:
    offsets = np.asarray(means, np.float32)
    if offsets.size != mat.size:
        raise DataError(f"ImagePixelNormalize has {offsets.size} means; an image has {mat.size} numbers {mat.shape}.")
    return mat.astype(np.float32) - offsets.reshape(mat.shape)


def _stretched(mat: np.ndarray, draw: Any, min: float, max: float, norm_type: int = 32) -> np.ndarray:
    if norm_type != 32:
        raise ArgumentError(f"PerImageNormalize knows the norm_type 32 (OpenCV's MINMAX); got {norm_type!r}.")
    pixels = mat.astype(np.float32)
    low, high = pixels.min(), pixels.max()
    return (pixels - low) * ((max - min) / np.maximum(high - low, 1e-12)) + min


def _short_side(mat: np.ndarray, size: int) -> np.ndarray:
    height, width = mat.shape[:2]
    return resized(mat, *(max(round(each * size / min(height, width)), 1) for each in (height, width)))


def _middle(mat: np.ndarray, draw: Any, crop_width: int, crop_height: int, is_clip: bool = True) -> np.ndarray:
    height, width = mat.shape[:2]
    return _cropped(mat, (width - crop_width) / 2, (height - crop_height) / 2, crop_width, crop_height, is_clip)


def _somewhere(mat: np.ndarray, draw: np.random.Generator, crop_width: int, crop_height: int,
               is_clip: bool = True) -> np.ndarray:  # fmt: skip
    height, width = mat.shape[:2]
    x, y = (draw.integers(0, max(room, 0) + 1) for room in (width - crop_width, height - crop_height))
    return _cropped(mat, int(x), int(y), crop_width, crop_height, is_clip)


def _between(mat: np.ndarray, draw: Any, x1: float, y1: float, x2: float, y2: float, normalized: bool = True,
             is_clip: bool = True) -> np.ndarray:  # fmt: skip
    height, width = mat.shape[:2] if normalized else (1, 1)
    x, y = x1 * width, y1 * height
    return _cropped(mat, x, y, round(x2 * width - x), round(y2 * height - y), is_clip)


def _expanded(mat: np.ndarray, draw: np.random.Generator, means_r: float = 123, means_g: float = 117,
              means_b: float = 104, min_expand_ratio: float = 1.0,
              max_expand_ratio: float = 4.0) -> np.ndarray:  # fmt: skip
    ratio = draw.uniform(min_expand_ratio, max_expand_ratio)
    height, width, channels = mat.shape
    tall, wide = int(height * ratio), int(width * ratio)
    y, x = int(draw.uniform(0, tall - height + 1)), int(draw.uniform(0, wide - width + 1))
    canvas = np.empty((tall, wide, channels), mat.dtype)
    colours = [means_b, means_g, means_r, 255]  # alpha: nothing shines through
    canvas[:] = np.array(colours[:channels] if channels > 1 else np.mean(colours[:3]), mat.dtype)
    canvas[y : y + height, x : x + width] = mat
    return canvas


def _filled(mat: np.ndarray, draw: Any, start_x: float, start_y: float, end_x: float, end_y: float,
            value: int = 255) -> np.ndarray:  # fmt: skip
    height, width = mat.shape[:2]
    image = mat.copy()
    image[round(start_y * height) : round(end_y * height), round(start_x * width) : round(end_x * width)] = value
    return image


def _centred(mat: np.ndarray, draw: Any, expand_height: int, expand_width: int) -> np.ndarray:
    height, width, channels = mat.shape
    if height > expand_height or width > expand_width:
        raise DataError(f"an image of {height} x {width} is no part of one of {expand_height} x {expand_width}.")
    canvas = np.zeros((expand_height, expand_width, channels), mat.dtype)
    top, left = (expand_height - height) // 2, (expand_width - width) // 2
    canvas[top : top + height, left : left + width] = mat
    return canvas


def _altered(mat: np.ndarray, draw: np.random.Generator, min_area_ratio: float, max_area_ratio: float,
             min_aspect_ratio_change: float, interp_mode: Any, crop_length: int) -> np.ndarray:  # fmt: skip
    mode = interp_mode if isinstance(interp_mode, int) else _INTERPOLATIONS.get(str(interp_mode).upper(), -1)
    height, width = mat.shape[:2]
    for _ in range(10):
        area = height * width * draw.uniform(min_area_ratio, max_area_ratio)
        aspect = draw.uniform(min_aspect_ratio_change, 1 / min_aspect_ratio_change)
        wide, tall = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            x, y = draw.integers(0, width - wide + 1), draw.integers(0, height - tall + 1)
            return resized(mat[y : y + tall, x : x + wide], crop_length, crop_length, mode)
    scale = crop_length / min(height, width)
    whole = resized(mat, max(round(height * scale), crop_length), max(round(width * scale), crop_length), mode)
    return _middle(whole, draw, crop_length, crop_length)


def _cut_out(mat: np.ndarray, draw: np.random.Generator, crop_w: int, crop_h: int, mirror: bool,
             cropper_method: str = "random", channels: int = 3) -> np.ndarray:  # fmt: skip
    cut = {"random": _somewhere, "center": _middle}.get(str(cropper_method).lower())
    if cut is None:
        raise ArgumentError(f"cropper_method must be 'random' or 'center'; got {cropper_method!r}.")
    part = cut(mat, draw, crop_w, crop_h, False)
    return part[:, ::-1] if mirror and draw.random() < 0.5 else part


_step, _random_step = (partial(value_class, base) for base in (ImagePreprocessing, RandomImagePreprocessing))
# fmt: off
ImageResize = _step("ImageResize", lambda mat, draw, resize_h, resize_w, resize_mode=1, use_scale_factor=True: resized(
    mat, resize_h, resize_w, resize_mode), "Images in one size.")
ImageAspectScale = _step("ImageAspectScale", _scaled,
    "Images whose short side is min_size long, unless the long one would be longer than max_size.")
ImageRandomAspectScale = _random_step("ImageRandomAspectScale", lambda mat, draw, scales, scale_multiple_of=1,
    max_size=1000: _scaled(mat, draw, int(draw.choice(np.asarray(scales))), scale_multiple_of, max_size),
    "Images scaled as ImageAspectScale does, to one of several sizes.")
ImageBrightness = _random_step("ImageBrightness", lambda mat, draw, delta_low, delta_high: _like(
    mat.astype(np.float32) + draw.uniform(delta_low, delta_high), mat), "Images brighter by a number between two.")
ImageContrast = _random_step("ImageContrast", lambda mat, draw, delta_low, delta_high: _like(
    mat.astype(np.float32) * draw.uniform(delta_low, delta_high), mat), "Images multiplied by a number between two.")
ImageHue = _random_step("ImageHue", _hue,
    "Images whose hue is turned by a number between two, of 180 for the whole circle.")
ImageSaturation = _random_step("ImageSaturation", _saturation,
    "Images whose saturation is multiplied by a number between two.")
ImageChannelOrder = _random_step("ImageChannelOrder", lambda mat, draw: mat[:, :, draw.permutation(mat.shape[2])],
    "Images with their channels in an order that is drawn.")
ImageColorJitter = _random_step("ImageColorJitter", _jittered,
    """Images with other brightness, contrast, hue and saturation, each with its probability, and another channel order.

    With `shuffle` the four come in an order that is drawn; else contrast comes before or after hue and saturation.""")
ImageChannelNormalize = _step("ImageChannelNormalize", _normalized,
    "Images minus a mean and divided by a deviation, channel by channel, as floats.")
ImagePixelNormalize = _step("ImagePixelNormalize", _without,
    "Images minus an image of means, as floats.")
PerImageNormalize = _step("PerImageNormalize", _stretched,
    "Images stretched so that their least number is `min` and their largest `max`, as floats.")
ImageCenterCrop = _step("ImageCenterCrop", _middle,
    "The middle of images; with is_clip, as much of it as there is.")
ImageRandomCrop = _random_step("ImageRandomCrop", _somewhere,
    "A part of images at a place that is drawn; with is_clip, as much of it as there is.")
ImageFixedCrop = _step("ImageFixedCrop", _between,
    "The part of images between two corners: in pixels, or as fractions of width and height.")
ImageExpand = _random_step("ImageExpand", _expanded,
    "Images at a place that is drawn in a larger picture of one colour.")
ImageFixExpand = _step("ImageFixExpand", _centred,
    "Images in the middle of a black picture of one size.")
ImageRandomAlterAspect = _random_step("ImageRandomAlterAspect", _altered,
    """A part of images with a share of their area and another aspect, both drawn, in one size.

    Where ten draws give no part of the image, it is the middle of the image, whose short side has that size.""")
ImageRandomCropper = _random_step("ImageRandomCropper", _cut_out,
    "A part of images at a place that is drawn, or the middle; mirrored every other time if `mirror` is true.")
ImageRandomResize = _random_step("ImageRandomResize", lambda mat, draw, min_size, max_size: _short_side(mat,
    int(draw.integers(min_size, max_size + 1))), "Images whose short side has a length that is drawn.")
ImageFiller = _step("ImageFiller", _filled,
    "Images with one colour between two corners, which are fractions of width and height.")
ImageHFlip = _step("ImageHFlip", lambda mat, draw: mat[:, ::-1], "Images with left and right exchanged.")
ImageMirror = _step("ImageMirror", lambda mat, draw: mat[::-1, ::-1],
    "Images with left and right, and top and bottom, exchanged.")
# fmt: on


@dataclass(frozen=True)
class ImageRandomPreprocessing(RandomImagePreprocessing):
    """A step that images go through with a probability."""

    preprocessing: Preprocessing
    prob: float

    def seeded(self, seed: int) -> ImageRandomPreprocessing:
        """Return it with other random numbers, and so the step."""
        return replace(self, seed=seed, preprocessing=self.preprocessing.seeded(seed))

    def transform(self, feature: ImageFeature) -> ImageFeature:
        """Change one image, or not."""
        if self.draw(feature).random() >= self.prob:
            return feature
        return self.preprocessing.apply([feature])[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ImageMatToTensor(ImagePreprocessing):
    """Images as float tensors beside their arrays.

    Args:
        to_RGB: Whether the channels come in the order RGB.
        tensor_key: The key of the tensor.
        share_buffer: Accepted; it may share memory or not.
        format: "NCHW" or "NHWC".
    """

    to_RGB: bool = False
    tensor_key: str = "imageTensor"
    share_buffer: bool = True
    format: str = "NCHW"

    def __post_init__(self) -> None:
        if self.format not in ("NCHW", "NHWC"):
            raise ArgumentError(f"the format of ImageMatToTensor must be 'NCHW' or 'NHWC'; got {self.format!r}.")

    def transform(self, feature: ImageFeature) -> ImageFeature:
        """Make the tensor of one image."""
        pixels = np.asarray(feature.mat, np.float32)
        if self.to_RGB and pixels.shape[2] >= 3:
            pixels = pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]]
        feature[self.tensor_key] = np.ascontiguousarray(pixels.transpose(2, 0, 1) if self.format == "NCHW" else pixels)
        return feature


@dataclass(frozen=True)
class ImageFeatureToTensor(ImagePreprocessing):
    """Images as one array of their tensors, for a model."""

    def apply(self, rows: Any) -> Any:
        """Return the tensors (rows, ...)."""
        tensors = [row.tensor for row in super().apply(rows)]
        shapes = sorted({tensor.shape for tensor in tensors})
        if len(shapes) > 1:
            raise DataError(
                f"images differ in size: tensors of {shapes[0]} and {shapes[-1]}. Give the chain an ImageResize or a "
                "crop."
            )
        return np.stack(tensors) if tensors else np.zeros((0,), np.float32)

    def transform(self, feature: ImageFeature) -> ImageFeature:
        """Return the image, which has its tensor."""
        return feature


@dataclass(frozen=True)
class ImageFeatureToSample(ImageFeatureToTensor):
    """Images as samples: one array of their tensors."""


@dataclass(frozen=True)
class ImageSetToSample(ImagePreprocessing):
    """Images with a sample of some of their parts."""

    input_keys: Sequence[str] = ("imageTensor",)
    target_keys: Sequence[str] | None = ("label",)
    sample_key: str = "sample"

    def transform(self, feature: ImageFeature) -> ImageFeature:
        """Put the inputs, and the targets that are there, under the sample's key."""
        targets = [feature[key] for key in self.target_keys or () if key in feature]
        feature[self.sample_key] = ([feature[key] for key in self.input_keys], targets)
        return feature


def _cropped(mat: np.ndarray, x: float, y: float, width: int, height: int, clips: bool) -> np.ndarray:
    """Return a part of an image.

    Raises:
        DataError: It is not within the image, and `clips` is false.
    """
    left, top = round(x), round(y)
    if clips:
        right, bottom = min(left + width, mat.shape[1]), min(top + height, mat.shape[0])
        left, top = max(left, 0), max(top, 0)
    else:
        right, bottom = left + width, top + height
        if left < 0 or top < 0 or right > mat.shape[1] or bottom > mat.shape[0]:
            raise DataError(
                f"a crop of {width} x {height} does not lie within an image of {mat.shape[1]} x {mat.shape[0]}. Resize "
                "the image first, or pass is_clip=True."
            )
    return mat[top:bottom, left:right]


def _recoloured(mat: np.ndarray, change: Callable[..., tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return an image with other hues and saturations; one channel has neither, and a fourth (alpha) stays."""
    if mat.shape[2] < 3:
        return mat
    hue, saturation, value = _to_hsv(mat)
    return _like(np.concatenate([_from_hsv(*change(hue, saturation), value), mat[:, :, 3:]], axis=2), mat)


def _to_hsv(mat: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return hue and saturation from 0 to 1, and the value, of a BGR image."""
    blue, green, red = (mat[:, :, channel].astype(np.float32) for channel in range(3))
    value, low = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    span = value - low
    safe = np.where(span == 0, 1, span)
    hue = np.where(
        value == red, (green - blue) / safe, np.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    )
    return np.where(span == 0, 0, hue / 6 % 1), np.where(value == 0, 0, span / np.where(value == 0, 1, value)), value


def _from_hsv(hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
    def channel(shift: int) -> np.ndarray:
        place = (shift + hue * 6) % 6
        return value - value * saturation * np.clip(np.minimum(place, 4 - place), 0, 1)

    return np.stack([channel(1), channel(3), channel(5)], axis=-1)
