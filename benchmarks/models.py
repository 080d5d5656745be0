"""Models and data that all contenders share."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from torch import nn

DATA = Path(__file__).parent.parent / "examples" / "data" / "FashionMNIST" / "raw"


def cnn() -> nn.Module:
    """Return a network of LeNet-5's size."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def mlp(inputs: int = 784, hidden: int = 128) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def tiny_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def images() -> tuple[np.ndarray, np.ndarray]:
    """Return 6,000 Fashion-MNIST images as float32 (n, 1, 28, 28) and their labels."""
    pixels = np.frombuffer(gzip.decompress((DATA / "train-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress((DATA / "train-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    return (pixels.reshape(-1, 1, 28, 28) / np.float32(255)).astype(np.float32), labels.astype(np.int64)


def numbers(rows: int, columns: int = 32) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.random((rows, columns), np.float32), draw.integers(0, 10, rows)


CASES = {  # name: model, data, global batch, learning rate
    "cnn": (cnn, images, 64),
    "tiny_mlp": (tiny_mlp, lambda: numbers(60_000), 256),
}
