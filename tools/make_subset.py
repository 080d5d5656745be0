"""Make_subset: the first rows of Fashion-MNIST as a small data set in the same layout. Owns what examples/data holds.

python tools/make_subset.py --source folder/FashionMNIST/raw --target examples/data/FashionMNIST/raw
"""

from __future__ import annotations

import argparse
import gzip
import struct
from collections import Counter
from pathlib import Path

ROWS = {"train": 6000, "t10k": 1000}
IMAGES, LABELS = "images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"
IMAGE_HEADER, LABEL_HEADER = 16, 8  # bytes before the first row of an IDX file


def main() -> None:
    """Cut both parts and say how many images of each class they hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="folder with the four .gz files of the whole set")
    parser.add_argument("--target", type=Path, required=True, help="folder that receives the four .gz files")
    options = parser.parse_args()
    options.target.mkdir(parents=True, exist_ok=True)
    for part, rows in ROWS.items():
        cut(options.source / f"{part}-{IMAGES}", options.target / f"{part}-{IMAGES}", IMAGE_HEADER, 28 * 28, rows)
        cut(options.source / f"{part}-{LABELS}", options.target / f"{part}-{LABELS}", LABEL_HEADER, 1, rows)
        labels = gzip.decompress((options.target / f"{part}-{LABELS}").read_bytes())[LABEL_HEADER:]
        print(part, rows, dict(sorted(Counter(labels).items())))


def cut(source: Path, target: Path, header: int, width: int, rows: int) -> None:
    """Write the first rows of one IDX file, with the row count in its header; the same bytes every time."""
    with gzip.open(source) as file:
        head = bytearray(file.read(header))
        body = file.read(rows * width)
    if len(body) != rows * width:
        raise SystemExit(f"{source.name} holds fewer than {rows} rows. Give the folder of the whole data set.")
    head[4:8] = struct.pack(">I", rows)
    target.write_bytes(gzip.compress(bytes(head) + body, compresslevel=9, mtime=0))


if __name__ == "__main__":
    main()
