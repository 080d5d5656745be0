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
from torchvision.models import resnet50

from benchmarks.measure import Result, compared, interleaved
from orca import Estimator

EPOCHS, TARGET = 14, 0.98


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


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
    return draw.random((4096, 3, 128, 128), np.float32), draw.integers(0, 10, 4096)


def numbers() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.random((65536, 64), np.float32), draw.integers(0, 10, 65536)


def texts() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.integers(0, 8192, (8192, 256)), draw.integers(0, 10, 8192)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], int]] = {
    "ResNet-50": (lambda: resnet50(num_classes=10), images, 128),
    "a tiny perceptron": (perceptron, numbers, 256),
    "a transformer of 6 layers": (Reader, texts, 128),
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
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, and torch sees none here. Leave its name out.")
    results = []
    for case in CASES:
        times = interleaved({"orca": lambda c=case: ours(c), "a hand-tuned loop": lambda c=case: tuned(c)}, repeats)
        results += compared(f"epoch on a GPU, {case}", times, {"a hand-tuned loop": TARGET})
    return results
