"""Steps on images, as bigdl.dllib.feature.image names them."""

from orca.bigdl.featuresets import DistributedImageSet, ImageSet, LocalImageSet
from orca.feature.image import *

__all__ = [
    "DistributedImageSet", "ImageAspectScale", "ImageBrightness", "ImageBytesToMat", "ImageCenterCrop",
    "ImageChannelNormalize", "ImageChannelOrder", "ImageColorJitter", "ImageExpand", "ImageFeatureToSample",
    "ImageFeatureToTensor", "ImageFiller", "ImageFixedCrop", "ImageHFlip", "ImageHue", "ImageMatToTensor",
    "ImageMirror", "ImagePixelBytesToMat", "ImagePixelNormalize", "ImagePreprocessing", "ImageRandomAspectScale",
    "ImageRandomCrop", "ImageRandomPreprocessing", "ImageResize", "ImageSaturation", "ImageSet",
    "ImageSetToSample", "LocalImageSet", "PerImageNormalize", "RowToImageFeature",
]  # fmt: skip
