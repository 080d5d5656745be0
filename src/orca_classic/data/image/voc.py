"""VOCDatasets: the images and boxes of Pascal VOC. Owns the layout of its folder and the numbers of its classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np

from orca.errors import DataError
from orca.storage.files import filesystem

CLASSES = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant sheep "
    "sofa train tvmonitor"
).split()


class VOCDatasets:
    """Images of Pascal VOC and the boxes in them; images are read one by one.

    Args:
        root: The folder VOCdevkit, on any file system.
        splits_names: Years and splits.
        classes: Classes that are numbered from 0, in their order; or numbers by class.
        difficult: Whether boxes that are marked as difficult are among them.

    Raises:
        DataError: There is no such split.
    """

    def __init__(
        self,
        root: str = "VOCdevkit",
        splits_names: Iterable[tuple[int | str, str]] = ((2007, "trainval"),),
        classes: Sequence[str] | Mapping[str, int] | None = None,
        difficult: bool = True,
    ) -> None:
        names = CLASSES if classes is None else classes
        numbers = names if isinstance(names, Mapping) else {name: number for number, name in enumerate(names)}
        self._numbers, self.difficult = dict(numbers), difficult
        self._fs, place = filesystem(root)
        self._items: list[tuple[str, str]] = []
        for year, split in splits_names:
            folder = f"{place.rstrip('/')}/VOC{year}"
            listing = f"{folder}/ImageSets/Main/{split}.txt"
            if not self._fs.exists(listing):
                raise DataError(f"there is no split {split!r} of {year} in {root}: it lacks {listing}.")
            lines = self._fs.cat_file(listing).decode().splitlines()
            self._items += [(folder, line.split()[0]) for line in lines if line.strip()]

    @property
    def names(self) -> list[str]:
        """Return the names of the images."""
        return [name for _, name in self._items]

    @property
    def classes_label(self) -> dict[str, int]:
        """Return the numbers of the classes."""
        return dict(self._numbers)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, idx: int) -> tuple[Any, np.ndarray]:
        """Return an image as an array (height, width, 3) and its boxes."""
        from orca_classic.data.image.decoding import decode_image

        fs, place = filesystem(self.image_path(idx))
        return np.asarray(decode_image(fs.cat_file(place)).convert("RGB")), self.boxes(idx)

    def image_path(self, number: int) -> str:
        """Return the path of an image."""
        folder, name = self._items[number]
        return str(self._fs.unstrip_protocol(f"{folder}/JPEGImages/{name}.jpg"))

    def boxes(self, number: int) -> np.ndarray:
        """Return the boxes of an image: xmin, ymin, xmax, ymax from 0, class and difficult.

        Raises:
            DataError: An object is of no known class.
        """
        folder, name = self._items[number]
        place = f"{folder}/Annotations/{name}.xml"
        rows = []
        for thing in ElementTree.fromstring(self._fs.cat_file(place)).iter("object"):
            kind, hard = (thing.findtext("name") or "").strip().lower(), int(thing.findtext("difficult") or 0)
            if kind not in self._numbers:
                raise DataError(
                    f"{place} has an object {kind!r}, which is not among the classes {list(self._numbers)}."
                )
            if hard and not self.difficult:
                continue
            corners = [float(thing.findtext(f"bndbox/{side}") or 0) - 1 for side in ("xmin", "ymin", "xmax", "ymax")]
            rows.append([*corners, self._numbers[kind], hard])
        return np.array(rows, np.float32).reshape(-1, 6)
