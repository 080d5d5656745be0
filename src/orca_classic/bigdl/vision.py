"""Vision: steps on images and frames of them under the names of bigdl.transform.vision.image. Owns arguments that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orca_classic.bigdl import refusals
from orca_classic.bigdl.feature import image
from orca_classic.bigdl.feature.image import (
    ImageChannelNormalize,
    ImageFeature,
    ImageMatToTensor,
    ImageRandomPreprocessing,
    ImageSetToSample,
)
from orca_classic.bigdl.feature.image import ImagePreprocessing as FeatureTransformer
from orca_classic.bigdl.featuresets import DistributedImageSet as DistributedImageFrame
from orca_classic.bigdl.featuresets import ImageSet as ImageFrame
from orca_classic.bigdl.featuresets import LocalImageSet as LocalImageFrame
from orca_classic.bigdl.featuresets import Pipeline

# Steps whose names here lack the word Image.
STEPS = ("AspectScale", "Brightness", "BytesToMat", "CenterCrop", "ChannelOrder", "ColorJitter", "Contrast", "Expand", "Filler", "FixExpand", "FixedCrop", "HFlip", "Hue", "PixelBytesToMat", "PixelNormalize", "RandomAlterAspect", "RandomAspectScale", "RandomCrop", "RandomCropper", "RandomResize", "Resize", "Saturation")  # fmt: skip
__all__ = [
    "ChannelNormalize", "ChannelScaledNormalizer", "DistributedImageFrame", "FeatureTransformer", "ImageFeature", "ImageFrame",
    "ImageFrameToSample", "LocalImageFrame", "MatToFloats", "MatToTensor", "Pipeline", "RandomTransformer", *STEPS, *refusals.VISION,
]  # fmt: skip


def ChannelNormalize(mean_r: float, mean_g: float, mean_b: float, std_r: float = 1.0, std_g: float = 1.0,
                     std_b: float = 1.0) -> ImageChannelNormalize:  # fmt: skip
    """Return the step that takes means off and divides by deviations, given as red, green, blue."""
    return ImageChannelNormalize(mean_b, mean_g, mean_r, std_b, std_g, std_r)


def ChannelScaledNormalizer(mean_r: float, mean_g: float, mean_b: float, scale: float) -> ImageChannelNormalize:
    """Return the step that takes means off and multiplies by a number."""
    return ImageChannelNormalize(mean_b, mean_g, mean_r, 1 / scale, 1 / scale, 1 / scale)


def MatToTensor(to_rgb: bool = False, tensor_key: str = "imageTensor") -> ImageMatToTensor:
    """Return the step that makes a tensor of an image."""
    return ImageMatToTensor(to_rgb, tensor_key)


def MatToFloats(valid_height: int = 300, valid_width: int = 300, valid_channel: int = 300, out_key: str = "floats",
                share_buffer: bool = True) -> ImageMatToTensor:  # fmt: skip
    """Return the step that makes floats of an image."""
    return ImageMatToTensor(False, "imageTensor")


def RandomTransformer(transformer: Any, prob: float) -> ImageRandomPreprocessing:
    """Return the step that images go through with a probability."""
    return ImageRandomPreprocessing(transformer, prob)


def ImageFrameToSample(input_keys: Sequence[str] = ("imageTensor",), target_keys: Any = None,
                       sample_key: str = "sample") -> ImageSetToSample:  # fmt: skip
    """Return the step that makes Samples of images."""
    return ImageSetToSample(list(input_keys), list(target_keys or ["label"]), sample_key)


globals().update({name: getattr(image, f"Image{name}") for name in STEPS})
globals().update(refusals.VISION)
