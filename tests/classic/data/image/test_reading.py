from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca.errors import ArgumentError, DataError
from orca_classic.data.image import read_coco, read_images, read_voc, write_voc
from orca_classic.data.image.parquet_dataset import ParquetIterable
from orca_classic.data.image.voc import VOCDatasets

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of five images, each of one colour, and their masks."""
    folder = tmp_path_factory.mktemp("pets")
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for number in range(5):
        Image.new("RGB", (6, 4), (40 * number, 0, 0)).save(
            folder / "images" / f"{'cat' if number % 2 else 'dog'}{number}.jpg"
        )
        Image.new("L", (6, 4), number).save(folder / "masks" / f"{'cat' if number % 2 else 'dog'}{number}.png")
    (folder / "images" / "notes.txt").write_text("no image")
    return folder


@pytest.mark.parametrize("backend", ["pillow", "spark"])
def test_images_are_read_one_a_shard(spark: Any, pets: Path, backend: str) -> None:
    images = read_images(str(pets / "images"), backend=backend).collect()
    assert len(images) == 5
    assert all(isinstance(image, Image.Image) for image in images)
    pixels = [np.asarray(image) for image in images]
    assert {array.shape for array in pixels} == {(4, 6, 3)} and all(array.dtype == np.uint8 for array in pixels)
    assert sorted(round(int(array[0, 0, 0]) / 40) for array in pixels) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("backend", ["pillow", "spark"])
def test_images_have_labels_or_targets(spark: Any, pets: Path, backend: str) -> None:
    labelled = read_images(str(pets / "images"), label_func=lambda path: int("cat" in path), backend=backend).collect()
    assert all(label == round(int(np.asarray(image)[0, 0, 0]) / 40) % 2 for image, label in labelled)
    pairs = read_images(str(pets / "images"), target_path=str(pets / "masks"), backend=backend).collect()
    assert len(pairs) == 5
    assert all(round(int(np.asarray(image)[0, 0, 0]) / 40) == np.asarray(mask)[0, 0] for image, mask in pairs)


@pytest.mark.parametrize("backend", ["pillow", "spark"])
def test_what_is_no_image_is_refused(spark: Any, pets: Path, tmp_path: Path, backend: str) -> None:
    with pytest.raises(DataError, match="there is no image whose name ends with '.gif'"):
        read_images(str(pets / "images"), image_type=".gif", backend=backend)
    with pytest.raises(DataError, match="notes.txt is no image, or a damaged one"):
        read_images(str(pets / "images"), image_type=".txt", backend=backend)
    (tmp_path / "dog0.png").write_bytes((pets / "masks" / "dog0.png").read_bytes())
    with pytest.raises(DataError, match="the image .* has no target named '(cat|dog)[1-4]'"):
        read_images(str(pets / "images"), target_path=str(tmp_path), backend=backend)
    with pytest.raises(ArgumentError, match="label_func.* or a target .*not both"):
        read_images(str(pets / "images"), len, str(tmp_path), backend=backend)
    with pytest.raises(ArgumentError, match="backend must be 'pillow' or 'spark'; got 'opencv'"):
        read_images(str(pets / "images"), backend="opencv")


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a VOCdevkit of three images, with one, two and no objects."""
    root = tmp_path_factory.mktemp("voc") / "VOCdevkit"
    year = root / "VOC2007"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (year / name).mkdir(parents=True)
    objects = [[("dog", 0)], [("person", 0), ("cat", 1)], []]
    for number, things in enumerate(objects):
        Image.new("L", (10, 8), number).save(year / "JPEGImages" / f"00{number}.jpg")
        boxes = "".join(
            f"<object><name>{kind}</name><difficult>{hard}</difficult><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>5</xmax>"
            "<ymax>6</ymax></bndbox></object>"
            for kind, hard in things
        )
        (year / "Annotations" / f"00{number}.xml").write_text(f"<annotation>{boxes}</annotation>")
    (year / "ImageSets" / "Main" / "trainval.txt").write_text("000\n001\n002\n")
    return root


def test_voc_is_read_with_its_boxes(spark: Any, voc: Path) -> None:
    pairs = read_voc(str(voc), [(2007, "trainval")], diff=True).collect()
    assert [image.shape for image, _ in pairs] == [(8, 10, 3)] * 3
    numbers = VOCDatasets(str(voc)).classes_label
    assert pairs[0][1].tolist() == [[0, 1, 4, 5, numbers["dog"], 0]]
    assert pairs[1][1][:, 4:].tolist() == [[numbers["person"], 0], [numbers["cat"], 1]] and pairs[2][1].shape == (0, 6)
    easy = read_voc(str(voc), classes={"dog": 7, "person": 8, "cat": 9}, max_samples=2).collect()
    assert [boxes[:, 4].tolist() for _, boxes in easy] == [[7], [8]]
    with pytest.raises(DataError, match="there is no split 'test' of 2012"):
        read_voc(str(voc), [(2012, "test")])
    with pytest.raises(DataError, match=r"has an object '(dog|person)', which is not among the classes \['cat'\]"):
        read_voc(str(voc), classes=["cat"])


def test_voc_is_written_with_its_boxes(voc: Path, tmp_path: Path) -> None:
    write_voc(str(voc), [(2007, "trainval")], str(tmp_path / "set"))
    read = list(ParquetIterable.of(str(tmp_path / "set"), None, None)())
    assert [row["image_id"] for row in read] == ["000", "001", "002"]
    assert [len(row["label"]) for row in read] == [1, 2, 0]
    assert read[1]["image"] == (voc / "VOC2007" / "JPEGImages" / "001.jpg").read_bytes()


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder as COCO has it, of three images with one, two and no objects."""
    root = tmp_path_factory.mktemp("coco")
    (root / "annotations").mkdir()
    (root / "val2017").mkdir()
    for number in (7, 3, 5):
        Image.new("L", (10, 8), number).save(root / "val2017" / f"{number:012}.jpg")
    things = [(7, 18, [1.5, 2, 3, 4], 0), (3, 1, [0, 0, 10, 8], 1), (3, 18, [4, 4, 2, 2.5], 0)]
    content = {
        "images": [{"id": number, "file_name": f"{number:012}.jpg"} for number in (7, 3, 5)],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
        "annotations": [
            {"image_id": image, "category_id": kind, "bbox": box, "iscrowd": crowd}
            for image, kind, box, crowd in things
        ],
    }
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    return root


def test_coco_is_read_with_its_boxes(spark: Any, coco: Path) -> None:
    pairs = read_coco(str(coco), "val").collect()
    assert [image.shape for image, _ in pairs] == [(8, 10, 3)] * 3
    assert [round(float(image.mean())) for image, _ in pairs] == [3, 5, 7]
    assert [boxes.tolist() for _, boxes in pairs] == [
        [[0, 0, 10, 8, 0, 1], [4, 4, 6, 6.5, 1, 0]],
        [],
        [[1.5, 2, 4.5, 6, 1, 0]],
    ]
    assert pairs[1][1].shape == (0, 6) and pairs[1][1].dtype == np.float32


def test_what_is_no_coco_is_refused(spark: Any, coco: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must have one file annotations/instances_train<year>.json; there is none"):
        read_coco(str(coco))
    (tmp_path / "annotations").mkdir()
    listing = tmp_path / "annotations" / "instances_train2014.json"
    listing.write_text('{"images": []}')
    with pytest.raises(DataError, match="instances_train2014.json is no list of objects in images.*'categories'"):
        read_coco(str(tmp_path))
    empty: dict[str, Any] = {"images": [], "categories": [], "annotations": []}
    listing.write_text(json.dumps(empty))
    with pytest.raises(DataError, match="there are no images to read in .*: the split 'train' is empty"):
        read_coco(str(tmp_path))
    listing.write_text(json.dumps(empty | {"images": [{"id": 1, "file_name": "gone.jpg"}]}))
    with pytest.raises(DataError, match="there is no image .*train2014/gone.jpg"):
        read_coco(str(tmp_path))
    (tmp_path / "annotations" / "instances_train2017.json").write_text("{}")
    with pytest.raises(DataError, match="it has .'instances_train2014.json', 'instances_train2017.json'."):
        read_coco(str(tmp_path))
