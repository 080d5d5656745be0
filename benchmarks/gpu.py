"""GPU: our loop on one GPU, in bf16 and compiled, against a hand-tuned loop of the same, seconds an epoch.

Run it by itself where there is a GPU: python -m benchmarks gpu. All contenders live in one process and take turns of an
epoch each. The peer does what a tuned program does: rows in pinned memory, gathered one batch ahead and copied on a
stream of their own, fused optimizer, no look at the loss but once an epoch, no DistributedDataParallel. Ours runs with
device_cache=True, which keeps the rows on the GPU, and without; so does the peer, with rows that it put there by hand.
Where a step is so small that launching it takes longest, both also run with CUDA graphs (mode="reduce-overhead").
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.measure import Result, compared, interleaved
from orca.core.feed import Feed, spool_parts
from orca.core.learner import FitPlan
from orca.core.world import World, form
from orca.frameworks.torch.learner import TorchLearner
from orca.monitor.heartbeat import Heartbeat
from orca.testing import Alone

WARM, EPOCHS, TARGET = 2, 2, 0.98  # epochs to warm up, and of each turn
GRAPHS = {"mode": "reduce-overhead"}


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def resnet() -> nn.Module:
    from torchvision.models import resnet50

    return resnet50(num_classes=10)


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


@dataclass(frozen=True)
class Case:
    """A model, its data and its batch size."""

    name: str
    make: Callable[[], nn.Module]
    data: Callable[[], tuple[np.ndarray, np.ndarray]]
    batch: int
    small: bool = False


CASES = (
    Case("a tiny perceptron", perceptron, numbers, 256, small=True),
    Case("ResNet-50", resnet, images, 128),
    Case("a transformer of 6 layers", Reader, texts, 128),
)


def adamw(model: nn.Module, config: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def ours(
    case: Case,
    data: tuple[np.ndarray, np.ndarray],
    world: World,
    exits: ExitStack,
    resident: bool = False,
    options: dict[str, str] | None = None,
) -> Iterator[float]:
    """Train by our loop, an epoch at a time; yield the seconds of each."""
    given = TorchLearner.options_of(precision="bf16", compiled=options or True, device_cache=resident)
    learner = TorchLearner.of(lambda config: case.make(), adamw, nn.CrossEntropyLoss(), {}, "replicated", None, given)
    rows = spool_parts([("train", *data)], Path(tempfile.gettempdir()), ["train"])["train"]
    feed, plan = Feed(rows, world, case.batch, shuffle=True, seed=0), FitPlan(1, case.batch)
    exits.callback(rows.close)
    session = exits.enter_context(learner.join(world, None, 0, fit=plan, steps=feed.steps))
    session.cache_rows(feed, None)
    epoch = 0
    while True:
        epoch += 1
        torch.cuda.synchronize()
        began = time.perf_counter()
        losses = session.begin_epoch(epoch, plan.on_nan)
        for step, batch in enumerate(session.prepare(feed.epoch(epoch), epoch, 0)):
            losses.add(step, session.train_step(batch, step), batch.rows)
        losses.result()
        yield time.perf_counter() - began


def tuned(
    case: Case, data: tuple[np.ndarray, np.ndarray], resident: bool = False, options: dict[str, str] | None = None
) -> Iterator[float]:
    """Train by hand; yield the seconds of each epoch."""
    torch.manual_seed(0)
    x, y = (torch.from_numpy(part).cuda() if resident else torch.from_numpy(part).pin_memory() for part in data)
    model = torch.compile(case.make().cuda(), **(options or {}))
    optimizer, criterion, stream = adamw(model, {}), nn.CrossEntropyLoss(), torch.cuda.Stream()

    def send(index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if resident:
            return x[index], y[index]
        with torch.cuda.stream(stream):
            return tuple(part[index].pin_memory().to("cuda", non_blocking=True) for part in (x, y))

    while True:
        torch.cuda.synchronize()
        began = time.perf_counter()
        total = torch.zeros((), device="cuda")
        steps = torch.randperm(len(x), device="cuda" if resident else "cpu").split(case.batch)
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
        yield time.perf_counter() - began


def run(repeats: int) -> list[Result]:
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, and torch sees none here. Leave its name out.")
    results = []
    for case in CASES:
        with form(Alone(), 600.0, Heartbeat()) as world:
            results += measured(case, world, repeats)
            gc.collect()
            torch.cuda.empty_cache()
            torch.compiler.reset()  # shapes of one case would make those of the next dynamic, as in no program
    return results


def measured(case: Case, world: World, repeats: int) -> list[Result]:
    data = case.data()
    with ExitStack() as exits:
        loops = {
            "a hand-tuned loop": tuned(case, data),
            "orca": ours(case, data, world, exits),
            "one with its rows on the GPU": tuned(case, data, resident=True),
            "orca, device_cache": ours(case, data, world, exits, resident=True),
        }
        if case.small:
            loops |= {
                "one with CUDA graphs": tuned(case, data, options=GRAPHS),
                "orca, CUDA graphs": ours(case, data, world, exits, options=GRAPHS),
            }
        for loop in loops.values():
            for _ in range(WARM):
                next(loop)
        turns = {name: partial(_mean, loop) for name, loop in loops.items()}
        times = interleaved(turns, repeats)
        for loop in loops.values():
            loop.close()
    name = f"epoch on a GPU, {case.name}"
    results = compared(name, times, {"a hand-tuned loop": TARGET})
    for means, peer in (("device_cache", "one with its rows on the GPU"), ("CUDA graphs", "one with CUDA graphs")):
        if peer in times:
            own = times | {"orca": times[f"orca, {means}"]}
            results += compared(f"{name}, {means}", own, {"a hand-tuned loop": TARGET, peer: None})
    return results


def _mean(loop: Iterator[float]) -> float:
    """Return the mean seconds of some epochs."""
    return sum(next(loop) for _ in range(EPOCHS)) / EPOCHS
