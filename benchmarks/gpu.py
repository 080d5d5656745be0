"""GPU: our loop on one GPU, in bf16 and compiled, against a hand-tuned loop of the same, seconds an epoch.

Run it by itself where there is a GPU: python -m benchmarks gpu. The peer does what a tuned program does: rows
in pinned memory, gathered one batch ahead and copied on a stream of their own, fused optimizer, no look at the loss
but once an epoch, no DistributedDataParallel.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.measure import Result, interleaved, medians
from orca import Estimator

EPOCHS, TARGET = 14, 0.97


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        short = before == after and stride == 1
        self.past = nn.Identity() if short else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norms[0](self.one(x)))
        return torch.relu(self.norms[1](self.two(hidden)) + self.past(x))


class Residual(nn.Module):
    """Classify small images with a residual network."""

    def __init__(self) -> None:
        super().__init__()
        plan = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
        self.first = nn.Conv2d(3, 64, 3, 1, 1)
        self.blocks = nn.ModuleList([Block(*sizes) for sizes in plan])
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Reader(nn.Module):
    """Classify a sequence of tokens with a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(8192, 512)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.tokens(x)).mean(1))


def images() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.random((16384, 3, 32, 32), np.float32), draw.integers(0, 10, 16384)


def texts() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.integers(0, 8192, (8192, 256)), draw.integers(0, 10, 8192)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], int]] = {
    "residual network": (Residual, images, 512),
    "transformer": (Reader, texts, 128),
}


def adamw(model: nn.Module, config: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def ours(case: str) -> float:
    make, data, batch = CASES[case]
    estimator = Estimator.from_torch(
        model=lambda config: make(),
        optimizer=adamw,
        loss=nn.CrossEntropyLoss(),
        backend="local",
        precision="bf16",
        compile=True,
        seed=0,
    )
    estimator.fit(data(), epochs=EPOCHS, batch_size=batch)
    return statistics.median(trace.seconds for trace in estimator.history.traces[2:])


def tuned(case: str) -> float:
    make, data, batch = CASES[case]
    torch.manual_seed(0)
    x, y = (torch.from_numpy(part).pin_memory() for part in data())
    model = make().cuda()
    model.compile()
    optimizer, criterion, stream = adamw(model, {}), nn.CrossEntropyLoss(), torch.cuda.Stream()

    def send(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.cuda.stream(stream):
            return tuple(part[index].pin_memory().to("cuda", non_blocking=True) for part in (x, y))

    times = []
    for _ in range(EPOCHS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        total = torch.zeros((), device="cuda")
        steps = torch.randperm(len(x)).split(batch)
        ahead = send(steps[0])
        for step in range(len(steps)):
            torch.cuda.current_stream().wait_stream(stream)
            inputs, targets = ahead
            if step + 1 < len(steps):
                ahead = send(steps[step + 1])
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        float(total)
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


def run(repeats: int) -> list[Result]:
    results = []
    for case in CASES:
        times = medians(interleaved({"orca": lambda c=case: ours(c), "tuned": lambda c=case: tuned(c)}, repeats))
        results.append(
            Result(f"epoch on a GPU, {case}", times["orca"], times["tuned"], "a hand-tuned loop", "s", TARGET)
        )
    return results
