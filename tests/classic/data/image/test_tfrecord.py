from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orca.errors import ArgumentError, DataError
from orca_classic.data.image import read_tfrecord, write_tfrecord

pytest.importorskip("tensorflow")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of six training images in two classes, and three images for validation."""
    root = tmp_path_factory.mktemp("imagenet")
    for kind in ("n01", "n02"):
        (root / "train" / kind).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (4, 4), (number, 0, 0)).save(root / "train" / kind / f"{kind}_{number}.JPEG", "jpeg")
    (root / "validation").mkdir()
    for number in range(3):
        Image.new("RGB", (4, 4), (0, number, 0)).save(root / "validation" / f"{number}.JPEG", "jpeg")
    (root / "synset_labels.txt").write_text("n02\nn01\nn02\n")
    return root


@pytest.mark.slow
def test_imagenet_is_written_and_read(spark: Any, imagenet: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "records")
    write_tfrecord("imagenet", path, str(imagenet), train_files=4, validation_files=2)
    names = sorted(file.name for file in Path(path).iterdir())
    assert names == [f"train-{n:05}-of-00004" for n in range(4)] + [f"validation-{n:05}-of-00002" for n in range(2)]
    train = [(image.numpy(), int(label)) for image, label in read_tfrecord("imagenet", path, is_training=True)]
    files = {file.read_bytes() for file in (imagenet / "train").rglob("*.JPEG")}
    assert {image for image, _ in train} == files and sorted(label for _, label in train) == [1, 1, 1, 2, 2, 2]
    assert [int(label) for _, label in read_tfrecord("imagenet", path, False)] == [2, 2, 1]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="format must be 'imagenet'; got 'coco'"):
        write_tfrecord("coco", str(tmp_path))
    with pytest.raises(DataError, match="there is no folder 'train' in"):
        write_tfrecord("imagenet", str(tmp_path), str(tmp_path))
    with pytest.raises(DataError, match=r"there are no files validation-\*-of-\* in"):
        read_tfrecord("imagenet", str(tmp_path), is_training=False)
