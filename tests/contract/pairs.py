"""Pairs: every two options of training together. Owns the options, which of them are refused, and the table.

A seeded table of cases holds every pair of options that may be combined at least once; one run trains all of them on
the same ranks. The rows are dealt unevenly, and the last step has two rows on one rank, one on another, none on the
first. The truth is a plain loop of torch over the same global batches, option by option as its documentation says.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, pairwise, product
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from contract.truth import Forwards, Handmade, steps_of
from orca.callbacks import Callback
from orca.core.feed import Feed, spool_parts, weigh
from orca.core.learner import FitPlan
from orca.core.source import Items, Shards
from orca.core.state import State
from orca.core.triggers import SeveralIteration
from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.torch.learner import TorchLearner
from orca.frameworks.torch.options import PRECISIONS
from orca.job import FitJob
from orca.monitor.heartbeat import Heartbeat
from orca.storage.checkpoints import path_of
from orca.storage.states import load_state
from orca_classic.bigdl.optimizers import SGD, Adam, TorchOptim
from orca_classic.bigdl.optimizers.schedules import Plateau

SEED, BATCH, EPOCHS = 5, 5, 2
COUNTS = {1: (18,), 2: (2, 16), 3: (2, 9, 7)}  # rows by rank
IGNORED = -100

OPTIONS: dict[str, tuple[str, ...]] = {
    "sync": ("replicated", "sharded", "fully sharded"),
    "precision": ("whole", "bf16", "fp16"),
    "accumulate": ("no", "pieces"),
    "clip": ("no", "norm", "value"),
    "ema": ("no", "average"),
    "compile": ("no", "compiled"),
    "batchnorm": ("no", "synchronized"),
    "weights": ("no", "rows"),
    "rows": ("spooled", "resident"),
    "loss": ("mean", "sum", "classes", "ignored"),
    "parameters": ("all", "frozen", "unoptimized", "unused"),
    "optimizer": ("torch", "method", "schedule", "wrapped"),
    "scheduler": ("no", "batch", "epoch"),
    "keeps": ("no", "checkpoint", "resume"),
    "hands": ("no", "rates", "thaws", "forward", "operator"),
}

Choice = tuple[str, str]
Pair = tuple[Choice, Choice]

# Pairs that are refused, each with words of the message.
REFUSED: dict[Pair, str] = {
    (("sync", "sharded"), ("precision", "fp16")): "precision='fp16' and backend='bigdl'",
    (("sync", "fully sharded"), ("precision", "fp16")): "precision='fp16' and shard_model",
    (("sync", "fully sharded"), ("ema", "average")): "ema and shard_model",
    (("sync", "fully sharded"), ("parameters", "unused")): "find_unused_parameters and shard_model",
    (("accumulate", "pieces"), ("batchnorm", "synchronized")): "accumulate and sync_batchnorm",
    (("optimizer", "schedule"), ("scheduler", "batch")): "changes the learning rate by itself",
    (("optimizer", "schedule"), ("scheduler", "epoch")): "changes the learning rate by itself",
    (("optimizer", "wrapped"), ("scheduler", "batch")): "changes the learning rate by itself",
    (("optimizer", "wrapped"), ("scheduler", "epoch")): "changes the learning rate by itself",
    (("weights", "rows"), ("hands", "forward")): "sample weights cannot reach a loss of your own",
    (("weights", "rows"), ("hands", "operator")): "sample weights cannot reach a loss of your own",
    (("sync", "fully sharded"), ("hands", "operator")): "where shard_model cannot be brought in",
    (("sync", "fully sharded"), ("hands", "thaws")): "weights cannot be frozen or unfrozen",
    (("precision", "fp16"), ("hands", "operator")): "where precision='fp16' cannot be brought in",
    (("accumulate", "pieces"), ("hands", "operator")): "where accumulate cannot be brought in",
    (("clip", "norm"), ("hands", "operator")): "where gradient clipping cannot be brought in",
    (("clip", "value"), ("hands", "operator")): "where gradient clipping cannot be brought in",
    (("ema", "average"), ("hands", "operator")): "where ema cannot be brought in",
    (("batchnorm", "synchronized"), ("hands", "operator")): "where sync_batchnorm cannot be brought in",
}

# Pairs that are refused where there are several ranks.
REFUSED_APART: dict[Pair, str] = {
    (("loss", "sum"), ("hands", "operator")): "do not count the same",
    (("loss", "classes"), ("hands", "operator")): "do not count the same",
    (("loss", "ignored"), ("hands", "operator")): "do not count the same",
}
_EXCLUDED = REFUSED | REFUSED_APART


@dataclass(frozen=True)
class Case:
    """A choice for every option."""

    choices: tuple[Choice, ...]

    def __getitem__(self, option: str) -> str:
        return dict(self.choices).get(option, OPTIONS[option][0])

    @property
    def name(self) -> str:
        """Name the choices that are not the first ones."""
        return "-".join(choice for option, choice in self.choices if choice != OPTIONS[option][0]) or "plain"

    @property
    def part(self) -> str:
        """Name the rows: with ignored labels, with weights."""
        return f"{'ignored' if self['loss'] == 'ignored' else 'kept'}-{self['weights']}"

    @property
    def tolerance(self) -> float:
        """Return how far rounding may carry the numbers."""
        return 1e-9 if self["precision"] == "whole" else 5e-3

    def pairs(self) -> list[Pair]:
        """Return the pairs that this case proves: of rounded numbers only those with the rounding itself."""
        exact = self["precision"] == "whole"
        return [pair for pair in combinations(self.choices, 2) if exact or "precision" in dict(pair)]

    def learner(self) -> TorchLearner:
        """Return the learner, as from_torch makes it."""
        options = TorchLearner.options_of(
            clip_norm=0.1 if self["clip"] == "norm" else None,
            clip_value=0.02 if self["clip"] == "value" else None,
            precision=None if self["precision"] == "whole" else self["precision"],
            accumulate=2 if self["accumulate"] == "pieces" else 1,
            ema=0.8 if self["ema"] == "average" else None,
            compiled={"backend": "eager"} if self["compile"] == "compiled" else False,
            sync_batchnorm=self["batchnorm"] == "synchronized",
            unused=self["parameters"] == "unused",
            scheduler=None if self["scheduler"] == "no" else _scheduler,
            step_freq="epoch" if self["scheduler"] == "epoch" else "batch",
            operator=Handmade if self["hands"] == "operator" else None,
            device_cache=self["rows"] == "resident",
        )
        return TorchLearner.of(self.model, self.optimizer, self.loss(), {}, self["sync"], None, options)

    def plan(self) -> FitPlan:
        """Return how the fit goes on."""
        callbacks: dict[str, tuple[Any, ...]] = {"rates": (Rates(),), "thaws": (Thaws(),), "forward": (Forwards(),)}
        return FitPlan(
            EPOCHS,
            BATCH,
            seed=SEED,
            weighted=self["weights"] == "rows",
            callbacks=callbacks.get(self["hands"], ()),
            checkpoint_trigger=None if self["keeps"] == "no" else SeveralIteration(3),
        )

    def model(self, config: Any) -> nn.Module:
        """Make the model."""
        # With fp16, gradients of large outputs overflow in their first steps, on as many rows as a process has.
        net = Net(self["batchnorm"] == "synchronized", 1.0 if self["precision"] == "whole" else 0.05)
        if self["parameters"] == "frozen":
            net.first.weight.requires_grad_(False)
        net.spare.requires_grad_(self["parameters"] == "unused")
        return net.double() if self["precision"] == "whole" else net

    def optimizer(self, net: Net, config: Any) -> torch.optim.Optimizer:
        """Make the optimizer. It decays, so that a weight without a gradient must not get one of zero."""
        optimized = net.head if self["parameters"] == "unoptimized" else net
        match self["optimizer"]:
            case "method":  # whose epsilon changes with every step, and whose count of steps is one for all weights
                return Adam(0.05, epsilon=1e-3)(optimized)
            case "schedule":
                plateau = Plateau("score", 0.5, patience=0, epsilon=10.0)
                return SGD(0.3, 0.0, 0.01, 0.9, 0.0, learningrate_schedule=plateau)(optimized)
            case "wrapped":
                # With a large epsilon, rounding is not blown up where the true gradient is zero: a bias before a norm.
                adam = torch.optim.Adam(optimized.parameters(), lr=0.05, eps=0.1, weight_decay=0.01)
                return TorchOptim.from_pytorch(StepLR(adam, 2, 0.7), "IterationDecay")(optimized)
        return torch.optim.SGD(optimized.parameters(), lr=0.3, momentum=0.9, weight_decay=0.01)

    def loss(self) -> nn.Module:
        """Make the loss."""
        options = {
            "sum": {"reduction": "sum"},
            "classes": {"weight": torch.tensor([0.3, 1.0, 2.5])},
            "ignored": {"ignore_index": IGNORED},
        }
        loss = nn.CrossEntropyLoss(**options.get(self["loss"], {}))
        return loss.double() if self["precision"] == "whole" else loss


class Rates(Callback):
    """A callback that changes learning rates and weights, by what it counts itself, wherever it is called."""

    def __init__(self) -> None:
        self.epochs = 0

    def before_run(self, runner: Any) -> None:
        slow_down(runner.optimizer, 0.9)
        scale_down(runner.given_models[0])

    def before_train_epoch(self, runner: Any) -> None:
        self.epochs += 1
        slow_down(runner.optimizer, 0.8**self.epochs)

    def after_train_iter(self, runner: Any) -> None:
        slow_down(runner.optimizer, 0.95)

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]


class Thaws(Callback):
    """A callback that freezes a weight at first, and lets it train from the second step of the first epoch on."""

    def before_run(self, runner: Any) -> None:
        runner.given_models[0].head.bias.requires_grad_(False)

    def after_train_iter(self, runner: Any) -> None:
        if (runner.epochs, runner.batch_idx) == (1, 1):
            runner.given_models[0].head.bias.requires_grad_(True)


def slow_down(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= factor


def scale_down(net: nn.Module) -> None:
    with torch.no_grad():
        for param in net.parameters():
            param.mul_(0.7)


class Net(nn.Module):
    """A perceptron with a layer that nothing uses."""

    def __init__(self, norm: bool, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.head = nn.Linear(6, 3)
        self.spare = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.norm(self.first(x)))).to(x.dtype) * self.scale


def _scheduler(optimizer: torch.optim.Optimizer, config: Any) -> Any:
    return StepLR(optimizer, 2, 0.7)


# The table.


def table(seed: int = 0) -> list[Case]:
    """Return cases that hold every pair of options which may be combined."""
    generator = random.Random(seed)
    missing = [pair for pair in pairs() if pair not in _EXCLUDED]
    generator.shuffle(missing)
    cases = []
    left = dict.fromkeys(missing)
    while left:
        chosen = {"precision": "whole"} | dict(next(iter(left)))
        for option in generator.sample(list(OPTIONS), len(OPTIONS)):
            if option not in chosen:
                allowed = [choice for choice in OPTIONS[option] if _goes(option, choice, chosen)]
                generator.shuffle(allowed)
                chosen[option] = max(allowed, key=lambda choice: sum(p in left for p in _with(option, choice, chosen)))
        case = Case(tuple((option, chosen[option]) for option in OPTIONS))
        for pair in case.pairs():
            left.pop(pair, None)
        cases.append(case)
    return cases


def pairs() -> Iterator[Pair]:
    """Yield every two choices of two options."""
    for one, other in combinations(OPTIONS, 2):
        yield from product(((one, choice) for choice in OPTIONS[one]), ((other, choice) for choice in OPTIONS[other]))


def _with(option: str, choice: str, chosen: dict[str, str]) -> Iterator[Pair]:
    order = list(OPTIONS)
    for other in chosen.items():
        one: Choice = (option, choice)
        yield (one, other) if order.index(option) < order.index(other[0]) else (other, one)


def _goes(option: str, choice: str, chosen: dict[str, str]) -> bool:
    return not any(pair in _EXCLUDED for pair in _with(option, choice, chosen))


# The rows.


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs, labels, labels of which some are ignored, and weights."""
    generator = np.random.default_rng(8)
    x, y = generator.random((18, 4)), generator.integers(0, 3, 18)
    ignored = np.where(np.arange(18) % 3 == 1, IGNORED, y)
    ignored[:2] = IGNORED  # all that rank 0 has
    weights = generator.random(18) * 2
    weights[5] = 0.0
    return x, y, ignored, weights


@dataclass(frozen=True)
class Piece:
    """One rank's rows, in every form."""

    start: int
    stop: int

    def __call__(self) -> Items:
        x, y, ignored, weights = (array[self.start : self.stop] for array in rows())
        for name, labels in (("kept", y), ("ignored", ignored)):
            yield f"{name}-no", x, labels
            yield f"{name}-rows", x, weigh(labels, weights)


def shards(ranks: int) -> Shards:
    """Return the rows, dealt unevenly."""
    edges = np.cumsum([0, *COUNTS[ranks]]).tolist()
    pieces = [Piece(start, stop) for start, stop in pairwise(edges)]
    parts = ("kept-no", "kept-rows", "ignored-no", "ignored-rows")
    return Shards(partial(spool_parts, parts=parts), lambda: pieces)


# On the ranks.


@dataclass
class Outcome:
    """What a case ended with on one rank, and its rows of every step; or why it was refused."""

    steps: list[list[np.ndarray]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    payload: dict[str, Any] | None = None
    failure: str = ""


@dataclass(frozen=True)
class PairsJob:
    """The training of all cases, one after the other."""

    cases: tuple[Case, ...]

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> list[Outcome]:
        return [_train(case, world, rows, heartbeat) for case in self.cases]


def _train(case: Case, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> Outcome:
    parts = {"train": rows[case.part], "valid": rows[case.part]}
    folder = world.broadcast(tempfile.mkdtemp(prefix="pairs-") if world.rank == 0 else "")
    plan = replace(case.plan(), checkpoint_folder=folder)

    def fit(state: State | None) -> Any:
        learner = cloudpickle.loads(cloudpickle.dumps(case.learner()))
        history, after = FitJob(learner, plan, (), state)(world, parts, heartbeat)
        return history, cloudpickle.loads(world.broadcast(cloudpickle.dumps(after)))  # as the driver sends it

    try:
        history, state = fit(None)
        if case["keeps"] == "resume":  # in the midst of the first epoch, or behind it for an epoch without a pause
            version = 4 if case["hands"] == "operator" else 3
            history, state = fit(load_state(path_of(folder, version), "torch"))
    except ArgumentError as error:
        if world.size > 1:
            raise
        return Outcome(failure=str(error))
    finally:
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    feed = Feed(rows[case.part], world, BATCH, shuffle=True, seed=SEED)
    return Outcome(steps_of(feed, EPOCHS), history.epochs, state.payload if world.rank == 0 else None)


# One process.


@dataclass
class Plain:
    """What the plain loop ended with."""

    losses: list[float]
    val_losses: list[float]
    net: nn.Module
    optimizer: torch.optim.Optimizer
    average: dict[str, torch.Tensor] | None


def plain_loop(case: Case, outcomes: list[Outcome]) -> Plain:
    """Train in this process on the global batches of a run."""
    x, y, ignored, row_weights = map(torch.from_numpy, rows())
    labels = ignored if case["loss"] == "ignored" else y
    numbers = {row.tobytes(): number for number, row in enumerate(x.numpy())}
    x = x if case["precision"] == "whole" else x.float()
    torch.manual_seed(SEED)
    net = case.model({})
    judge = case.model({})
    optimizer = case.optimizer(net, {})
    scheduler = _scheduler(optimizer, {}) if case["scheduler"] != "no" else None
    half = PRECISIONS.get(case["precision"])
    scaler = torch.amp.GradScaler("cpu", enabled=case["precision"] == "fp16")
    average = None
    losses, val_losses = [], []

    def loss_and_mass(model: nn.Module, index: list[int]) -> tuple[torch.Tensor, float]:
        """Return the loss of rows, and what it is a mean over."""
        with torch.autocast("cpu", half, enabled=half is not None):
            return _loss_and_mass(case, model(x[index]), labels[index], row_weights[index])

    rates, thaws = (case["hands"] == word for word in ("rates", "thaws"))
    if rates:
        slow_down(optimizer, 0.9)
        scale_down(net)
    for epoch in range(EPOCHS):
        net.train()
        total = mass = 0.0
        if rates:
            slow_down(optimizer, 0.8 ** (epoch + 1))
        for number, step in enumerate(zip(*(outcome.steps[epoch] for outcome in outcomes), strict=True)):
            if thaws:
                net.head.bias.requires_grad_(epoch == 1 or number > 1)
            index = [numbers[row.tobytes()] for part in step for row in part]
            optimizer.zero_grad()
            loss, weight = loss_and_mass(net, index)
            if weight:
                scaler.scale(loss).backward()
                total, mass = total + float(loss) * (1 if case["loss"] == "sum" else weight), mass + weight
            scaler.unscale_(optimizer)
            optimized = [param for group in optimizer.param_groups for param in group["params"]]
            if case["clip"] == "norm":
                nn.utils.clip_grad_norm_(optimized, 0.1)
            if case["clip"] == "value":
                nn.utils.clip_grad_value_(optimized, 0.02)
            scaler.step(optimizer)
            scaler.update()
            if case["ema"] == "average":
                average = _averaged(average, net)
            if case["scheduler"] == "batch" and scheduler:
                scheduler.step()
            if rates:
                slow_down(optimizer, 0.95)
        losses.append(total / mass)
        if case["scheduler"] == "epoch" and scheduler:
            scheduler.step()
        judge.load_state_dict(average or net.state_dict())
        judge.eval()
        with torch.no_grad():
            loss, weight = loss_and_mass(judge, list(range(len(x))))
        val_losses.append(float(loss) / (weight if case["loss"] == "sum" else 1))
        if hasattr(optimizer, "end_epoch"):
            optimizer.end_epoch(losses[-1], val_losses[-1])
    return Plain(losses, val_losses, net, optimizer, average)


def _averaged(before: dict[str, torch.Tensor] | None, net: nn.Module) -> dict[str, torch.Tensor]:
    """Return the moving average of the weights after one more step; buffers are the last ones."""
    now = {name: value.clone() for name, value in net.state_dict().items()}
    for name, _ in net.named_parameters() if before else ():
        now[name] = 0.8 * before[name] + 0.2 * now[name]
    return now


def _loss_and_mass(case: Case, output: Any, labels: Any, row_weights: Any) -> tuple[torch.Tensor, float]:
    criterion = case.loss()
    weighted = case["weights"] == "rows"
    if not weighted:
        if case["loss"] == "classes":
            return criterion(output, labels), float(criterion.weight[labels].sum())
        return criterion(output, labels), int((labels != IGNORED).sum())
    # Rows that weigh one each must give the loss without weights: what is divided by is weighted too.
    masses = (labels != IGNORED).double() if criterion.weight is None else criterion.weight[labels.clamp(min=0)]
    mass = float((masses * row_weights).sum())
    criterion.reduction = "none"
    total = (criterion(output, labels) * row_weights.to(output.dtype)).sum()
    if case["loss"] == "sum":
        return total, len(labels)
    return total / mass, mass
