"""Quarters: small images with one bright quarter, which is their class; and the plain loop that training must equal."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS, BATCH, CLASSES = 101, 20, 4  # the last step is short


def quarters(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, 64) of 8 x 8 pixels and the number of each one's bright quarter."""
    draw = np.random.default_rng(5)
    images, labels = draw.random((rows, 2, 4, 2, 4), np.float32) / 2, draw.integers(0, CLASSES, rows)
    images[np.arange(rows), labels // 2, :, labels % 2] += 0.5
    return images.reshape(rows, 64), labels


def classifier() -> nn.Module:
    """Return a network that gives the logarithm of each class's probability; the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, CLASSES), nn.LogSoftmax(dim=1))


def loader(batch_size: int = BATCH) -> DataLoader[Any]:
    """Return a DataLoader that gives the rows in their order."""
    images, labels = quarters()
    return DataLoader(TensorDataset(torch.from_numpy(images), torch.from_numpy(labels)), batch_size=batch_size)


def trained(
    model: nn.Module,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    epochs: int,
    clip_norm: float = float("inf"),
    decay: float = 1.0,
) -> nn.Module:
    """Return a copy of the model, trained in one process; `decay` is that of the learning rate after an epoch."""
    model = copy.deepcopy(model)
    optimizer = make_optimizer(model)
    for _ in range(epochs):
        for images, labels in loader():
            optimizer.zero_grad()
            nn.functional.nll_loss(model(images), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            optimizer.step()
        optimizer.param_groups[0]["lr"] *= decay
    return model


def answers(model: nn.Module) -> np.ndarray:
    """Return what the model itself says about all rows."""
    with torch.no_grad():
        return model(torch.from_numpy(quarters()[0])).numpy()


def assert_same_weights(model: nn.Module, expected: nn.Module) -> None:
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=1e-5, rtol=0)
