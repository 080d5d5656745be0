"""Steps on images, as bigdl.dllib.feature.image.imagePreprocessing names them."""

from orca_classic.bigdl.feature.image import *

__all__ = [
    "ImageAspectScale", "ImageBrightness", "ImageBytesToMat", "ImageCenterCrop", "ImageChannelNormalize",
    "ImageChannelOrder", "ImageColorJitter", "ImageExpand", "ImageFeatureToSample", "ImageFeatureToTensor",
    "ImageFiller", "ImageFixedCrop", "ImageHFlip", "ImageHue", "ImageMatToTensor", "ImageMirror",
    "ImagePixelBytesToMat", "ImagePixelNormalize", "ImagePreprocessing", "ImageRandomAspectScale",
    "ImageRandomCrop", "ImageRandomPreprocessing", "ImageResize", "ImageSaturation", "ImageSetToSample",
    "PerImageNormalize", "RowToImageFeature",
]  # fmt: skip
