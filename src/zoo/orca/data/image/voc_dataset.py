"""Images of Pascal VOC, as zoo.orca.data.image.voc_dataset names them."""

from orca_classic.data.image.voc import VOCDatasets

__all__ = ["VOCDatasets"]
