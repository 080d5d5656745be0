"""COCO: images with boxes around objects. Owns the layout of its folder and the numbers of its classes."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np

from orca.errors import DataError
from orca.storage.files import filesystem, name_of


def coco_items(root: str, split: str) -> tuple[list[tuple[str, np.ndarray]], list[str]]:
    """Return the path and the boxes of each image, in the order of their ids, and the names of the classes.

    Args:
        root: The folder with annotations/instances_<split><year>.json and the images in <split><year>/, on any file
            system.
        split: "train" or "val".

    Returns:
        Boxes are rows of xmin, ymin, xmax, ymax, class and crowd (1 where the box is around many objects). Classes are
        numbered from 0 in the order of their ids in the file, which has gaps.

    Raises:
        DataError: There is no such split, or more than one year of it, or the file is not one of COCO's.
    """
    fs, place = filesystem(root)
    place = place.rstrip("/")
    listings = sorted(map(str, fs.glob(f"{place}/annotations/instances_{split}*.json")))
    if len(listings) != 1:
        have = f"it has {[name_of(listing) for listing in listings]}" if listings else "there is none"
        raise DataError(f"{root} must have one file annotations/instances_{split}<year>.json; {have}.")
    folder = f"{place}/{name_of(listings[0]).removeprefix('instances_').removesuffix('.json')}"
    try:
        content: dict[str, Any] = json.loads(fs.cat_file(listings[0]))
        classes = sorted((int(entry["id"]), str(entry["name"])) for entry in content["categories"])
        numbers = {key: number for number, (key, _) in enumerate(classes)}
        boxes: dict[int, list[list[float]]] = defaultdict(list)
        for thing in content["annotations"]:
            x, y, width, height = thing["bbox"]
            row = [x, y, x + width, y + height, numbers[thing["category_id"]], thing.get("iscrowd", 0)]
            boxes[thing["image_id"]].append(row)
        images = sorted((int(entry["id"]), str(entry["file_name"])) for entry in content["images"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{listings[0]} is no list of objects in images, as COCO has it: {error!r}.") from error
    items = [
        (str(fs.unstrip_protocol(f"{folder}/{name}")), np.array(boxes.get(key, []), np.float32).reshape(-1, 6))
        for key, name in images
    ]
    return items, [name for _, name in classes]
