"""Truth: what training on n ranks must equal. Owns the data, the cases, the job that trains them and the plain loop.

Starting ranks costs seconds, training a case some milliseconds: so one run trains many cases on the same ranks,
through the same FitJob that Estimator.fit sends. Next to the results it brings back which rows each rank gave to each
step: what one process must be fed to end with the same weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from orca.callbacks import Callback, MainCallback
from orca.core.feed import Feed, spool_parts
from orca.core.learner import FitPlan
from orca.core.metrics import AUC, MAE, MSE, Accuracy, Metric, metrics_of
from orca.core.plan import even_split
from orca.core.source import DataSpec, Items, Shards
from orca.core.world import World
from orca.frameworks.torch.learner import TorchLearner
from orca.frameworks.torch.operator import TrainingOperator
from orca.job import FitJob
from orca.monitor.heartbeat import Heartbeat
from orca.rows.tree import flatten, map_tree
from orca.sources.creator import CreatorSource, OpenCreated
from orca.sources.torchdata import LoaderSource, OpenLoaders

SEED = 11
FITS = (2, 1)  # epochs of the first fit, and of the second that goes on from its state
BATCH = 5

# Data: x in [0, 1), y is 0 or 1.


def rows_for(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows of a part; no two are alike, so a row tells its own number."""
    count = {"even": 24, "uneven": 23, "empty": 13, "few": 2, "valid": 11}.get(part, 23)
    x = np.random.default_rng(3).random((count, 4))
    return x, (x.sum(axis=1) > x.sum(axis=1).mean()).astype(np.float64)[:, None]


def dealt(part: str, ranks: int) -> list[tuple[int, int]]:
    """Return which rows of a part each rank holds."""
    count = len(rows_for(part)[0])
    if ranks == 1 or part == "even":
        return even_split(count, ranks)
    # The sizes of uneven shards; in "empty", rank 0 is the one without rows, as most things begin with it.
    sizes = {
        "uneven": {2: [17, 6], 3: [15, 1, 7]},
        "empty": {2: [0, 13], 3: [0, 9, 4]},
        "few": {2: [1, 1], 3: [1, 1, 0]},
        "valid": {2: [8, 3], 3: [4, 0, 7]},
    }[part][ranks]
    edges = np.cumsum([0, *sizes]).tolist()
    return list(pairwise(edges))


def numbers_of(part: str, x: Any) -> list[int]:
    """Return the numbers of rows from their content."""
    known = {row.tobytes(): number for number, row in enumerate(rows_for(part)[0])}
    return [known[row.tobytes()] for row in np.asarray(flatten(x)[0][0], dtype=np.float64)]


class Stream(IterableDataset):
    """Give the rows one by one."""

    def __iter__(self) -> Iterator[Any]:
        return iter(tensors("iterable"))


def tensors(part: str) -> TensorDataset:
    """Return the rows of a part as a torch Dataset."""
    return TensorDataset(*map(torch.from_numpy, rows_for(part)))


def creator(config: dict[str, Any], batch_size: int) -> DataLoader:
    """Return a loader with this rank's share of a batch, as a user's creator does."""
    return DataLoader(tensors("creator"), batch_size=batch_size, shuffle=True)


SHAPES = ("even", "uneven", "empty", "few", "valid")
LOADED: dict[str, Callable[[], Any]] = {
    "dataset": lambda: LoaderSource(tensors("dataset"), DataSpec(batch_size=BATCH)),
    "loader": lambda: LoaderSource(DataLoader(tensors("loader"), batch_size=BATCH, shuffle=True), DataSpec()),
    "dropping": lambda: LoaderSource(DataLoader(tensors("dropping"), batch_size=BATCH, drop_last=True), DataSpec()),
    "creator": lambda: CreatorSource(creator, DataSpec(batch_size=BATCH)),
    "iterable": lambda: LoaderSource(DataLoader(Stream(), batch_size=2), DataSpec()),
}


@dataclass(frozen=True)
class Piece:
    """One rank's rows of all parts, which travel together."""

    rank: int
    ranks: int
    loaders: dict[str, Callable[[], Items]]

    def __call__(self) -> Items:
        """Give blocks of the arrays and the loaders."""
        for part in SHAPES:
            start, stop = dealt(part, self.ranks)[self.rank]
            if start < stop:
                x, y = rows_for(part)
                yield part, x[start:stop], y[start:stop]
        for part, piece in self.loaders.items():
            for _, *item in piece():
                yield (part, *item)


@dataclass(frozen=True)
class OpenAll:
    """Open arrays and loaders."""

    loaders: tuple[str, ...]

    def __call__(self, items: Items, folder: Path) -> dict[str, Any]:
        """Return the rows of every part."""
        blocks, loaders, creations = list[Any](), list[Any](), list[Any]()
        for item in items:
            created = creations if item[0] == "creator" else loaders
            (created if item[0] in self.loaders else blocks).append(item)
        rows = spool_parts(blocks, folder, SHAPES)
        return rows | OpenLoaders()(iter(loaders), folder) | OpenCreated()(iter(creations), folder)


def all_shards(ranks: int, loaders: bool) -> Shards:
    """Return the shards of all parts: one piece a rank."""
    sources = LOADED if loaders else {}
    dealt_out = {part: source().shards(ranks).portable() for part, source in sources.items()}
    pieces = [Piece(rank, ranks, {part: p[rank] for part, p in dealt_out.items()}) for rank in range(ranks)]
    return Shards(OpenAll(tuple(sources)), lambda: pieces)


# Models.


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.layer(x))


class Perceptron(nn.Module):
    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5) if norm else nn.Identity(), nn.Tanh())
        self.head = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.head(self.body(x)))


class TwoInputs(nn.Module):
    """Take several arguments; the temperature is a parameter without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor, again: torch.Tensor | None = None) -> torch.Tensor:
        again = x.flip(1) if again is None else again
        return torch.sigmoid((self.left(x) * self.right(again)).sum(1, keepdim=True) * self.temperature)


def linear(config: Any) -> nn.Module:
    return Linear().double()


def single(config: Any) -> nn.Module:
    return Perceptron().float()


def perceptron(config: Any) -> nn.Module:
    return Perceptron().double()


def normed(config: Any) -> nn.Module:
    return Perceptron(norm=True).double()


def two_inputs(config: Any) -> nn.Module:
    return TwoInputs().double()


def frozen(config: Any) -> nn.Module:
    net = Perceptron().double()
    net.body[0].weight.requires_grad_(False)
    return net


# Optimizers.


def momentum(net: nn.Module, config: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)


def adam(net: nn.Module, config: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.05)


def groups_of(net: nn.Module) -> list[dict[str, Any]]:
    """Return two groups with settings of their own."""
    children = list(net.children())
    rest = [p for child in children[1:] for p in child.parameters()] + list(net.parameters(recurse=False))
    return [
        {"params": list(children[0].parameters()), "lr": 0.02, "weight_decay": 0.1},
        {"params": rest, "lr": 0.2},
    ]


def momentum_groups(net: nn.Module, config: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups_of(net), lr=0.1, momentum=0.8, nesterov=True)


def adam_groups(net: nn.Module, config: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups_of(net), lr=0.1, amsgrad=True)


class TrustRatio(torch.optim.SGD):
    """Scale each parameter's step by its norm: a user's own optimizer, that must see parameters whole."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                param.add_(param.grad, alpha=-group["lr"] * float(param.norm()) / (1 + float(param.grad.norm())))


@dataclass(frozen=True)
class Make:
    """Create an optimizer of torch by its name."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()
    grouped: bool = True
    alone: bool = False  # whether the parameter without a dimension has a group of its own

    def __str__(self) -> str:
        return "-".join([self.name, *(name for name, _ in self.options if name != "lr")])

    def __call__(self, net: nn.Module, config: Any) -> torch.optim.Optimizer:
        kind = TrustRatio if self.name == "TrustRatio" else getattr(torch.optim, self.name)
        if self.name == "Muon":  # for matrices alone
            params: Any = [p for p in net.parameters() if p.dim() == 2]
        elif self.alone:
            params = [{"params": [p for p in net.parameters() if bool(p.dim()) == flat]} for flat in (True, False)]
        else:
            params = groups_of(net) if self.grouped else net.parameters()
        return kind(params, **dict(self.options))


OPTIMIZERS = [
    Make("SGD", (("lr", 0.1), ("momentum", 0.9), ("dampening", 0.3), ("weight_decay", 0.01))),
    Make("SGD", (("lr", 0.1),)),
    Make("Adam", (("lr", 0.05), ("maximize", True))),
    Make("AdamW", (("lr", 0.05), ("weight_decay", 0.2), ("amsgrad", True))),
    Make("NAdam", (("lr", 0.05),)),
    Make("RAdam", (("lr", 0.05),)),
    Make("Adamax", (("lr", 0.05),)),
    Make("Adagrad", (("lr", 0.1), ("lr_decay", 0.1), ("initial_accumulator_value", 0.2))),
    Make("Adadelta", (("lr", 1.0),)),
    Make("RMSprop", (("lr", 0.02), ("momentum", 0.5), ("centered", True))),
    Make("Rprop", (("lr", 0.01),), grouped=False),
    Make("ASGD", (("lr", 0.1), ("t0", 3))),
    Make("LBFGS", (("lr", 0.5), ("max_iter", 3), ("history_size", 4)), grouped=False),
    Make("Adafactor", (("lr", 0.05),)),
    Make("Muon", (("lr", 0.02),)),
    Make("TrustRatio", (("lr", 0.1),)),
]


# Cases.


@dataclass(frozen=True)
class Case:
    """Say what to train: which rows, which model, how."""

    name: str
    part: str
    model: Callable[[Any], nn.Module]
    optimizer: Callable[[nn.Module, Any], torch.optim.Optimizer]
    sync: str
    loss: nn.Module
    batch_size: int | None = BATCH
    options: tuple[tuple[str, Any], ...] = ()
    callbacks: tuple[Any, ...] = ()

    def learner(self) -> TorchLearner:
        """Return the learner, as from_torch makes it."""
        options = TorchLearner.options_of(**dict(self.options))
        return TorchLearner.of(self.model, self.optimizer, self.loss, {}, self.sync, None, options)

    def option(self, name: str) -> Any:
        """Return an option, None where it is not given."""
        return dict(self.options).get(name)

    def metrics(self) -> tuple[Metric, ...]:
        """Return metrics that are sums, one that is not, and a function of all rows."""
        return tuple(metrics_of([Accuracy(), MSE(), MAE(), AUC(threshold_num=None), largest_error]))

    @property
    def tolerance(self) -> float:
        """Return how far rounding may carry the numbers; most models are of doubles, where a mistake cannot hide."""
        if isinstance(self.optimizer, Make) and self.optimizer.name == "LBFGS":
            return 1e-6  # it divides by differences of gradients, which cost digits
        if self.option("precision"):
            return 0.02
        return 1e-5 if self.model is single else 1e-9


def largest_error(output: Any, target: Any) -> float:
    return float(abs(output - target).max())


def shape_cases() -> list[Case]:
    """Return every shape of shards x optimizer x sync, each with a model of another kind."""
    models = {"even": perceptron, "uneven": two_inputs, "empty": frozen, "few": linear}
    steppers = {
        "even": {"sgd": momentum_groups, "adam": adam_groups},
        "uneven": {"sgd": momentum_groups, "adam": adam_groups},
        "empty": {"sgd": momentum, "adam": adam},
        "few": {"sgd": momentum, "adam": adam},
    }
    cases = [
        Case(f"{part}-{word}-{sync}", part, models[part], stepper, sync, nn.BCELoss())
        for part in models
        for word, stepper in steppers[part].items()
        for sync in ("replicated", "sharded")
    ]
    cases += [Case(f"float32-{sync}", "uneven", single, adam, sync, nn.MSELoss()) for sync in ("replicated", "sharded")]
    cases += [Case("sum", "uneven", linear, momentum, "sharded", nn.BCELoss(reduction="sum"))]
    cases += [
        Case(f"norm-{sync}", "even", normed, momentum, sync, nn.MSELoss(), 12) for sync in ("replicated", "sharded")
    ]
    return cases


def loader_cases() -> list[Case]:
    """Return a case for each kind of torch data; those whose batches come from the data name no batch size."""
    sizes = {"dataset": BATCH, "loader": BATCH, "dropping": BATCH, "creator": None, "iterable": BATCH}
    return [Case(part, part, perceptron, adam, "replicated", nn.BCELoss(), size) for part, size in sizes.items()]


def optimizer_cases() -> list[Case]:
    """Return a case for each optimizer this torch has."""
    have = [make for make in OPTIMIZERS if make.name == "TrustRatio" or hasattr(torch.optim, make.name)]
    cases = [Case(str(make), "uneven", two_inputs, make, "sharded", nn.BCELoss()) for make in have]
    scalar = Make("Adam", (("lr", 0.1),), alone=True)
    closing = Make("LBFGS", (("max_iter", 2),), grouped=False)
    return [
        *cases,
        Case("Adam-scalar", "uneven", two_inputs, scalar, "sharded", nn.BCELoss()),
        Case("LBFGS-empty", "empty", perceptron, closing, "sharded", nn.BCELoss()),
    ]


def every_two_steps(optimizer: torch.optim.Optimizer, config: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)


def by_cosine(optimizer: torch.optim.Optimizer, config: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)


class Handmade(TrainingOperator):
    """Train as everyone writes it."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        features, target = batch
        loss = self.criterion(self.model(features), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"train_loss": loss.item(), "num_samples": len(target)}


class Forwards(MainCallback):
    """Compute the loss in the user's words."""

    def on_iter_forward(self, runner: Any) -> None:
        *features, runner.target = runner.batch
        runner.output = runner.model(*features)
        runner.loss = runner.criterion(runner.output, runner.target)


class Backwards(Forwards):
    """Do the update in the user's words, too."""

    def on_iter_backward(self, runner: Any) -> None:
        runner.optimizer.zero_grad(set_to_none=False)
        runner.loss.backward()
        runner.optimizer.step()


def option_cases() -> list[Case]:
    """Return a case for each way to train beyond the plain step, on uneven shards and with a rank that has no row."""
    ways: dict[str, dict[str, Any]] = {
        "accumulate": {"accumulate": 3},
        "clip-norm": {"clip_norm": 0.05},
        "clip-value": {"clip_value": (-0.01, 0.02)},
        "scheduler-batch": {"scheduler": every_two_steps},
        "scheduler-epoch": {"scheduler": by_cosine, "step_freq": "epoch"},
        "ema": {"ema": 0.9},
        "all": {"accumulate": 2, "clip_norm": 0.1, "ema": 0.8, "scheduler": every_two_steps, "deterministic": True},
    }
    cases = [
        Case(f"{way}-{part}-{sync}", part, perceptron, momentum, sync, nn.BCELoss(), options=tuple(options.items()))
        for way, options in ways.items()
        for part in ("uneven", "empty")
        for sync in ("replicated", "sharded")
    ]
    alone: list[tuple[str, Any, str, dict[str, Any], tuple[Any, ...]]] = [
        ("norm", normed, "replicated", {"sync_batchnorm": True}, ()),
        ("norm-sharded", normed, "sharded", {"sync_batchnorm": True}, ()),
        ("bf16", single, "replicated", {"precision": "bf16"}, ()),
        ("unused", perceptron, "replicated", {"unused": True}, ()),
        ("operator", perceptron, "replicated", {"operator": Handmade}, ()),
        ("operator-scheduler", perceptron, "replicated", {"operator": Handmade, "scheduler": every_two_steps}, ()),
        ("forwards", perceptron, "sharded", {}, (Forwards(),)),
        ("backwards", perceptron, "replicated", {}, (Backwards(),)),
        ("hooks", perceptron, "replicated", {}, (Callback(),)),
    ]
    cases += [
        # The weights before batch norm have gradients of zero, of which Adam would make steps by the rounding.
        Case(
            f"{way}-{part}",
            part,
            model,
            momentum if model is normed else adam,
            sync,
            nn.BCELoss(),
            BATCH,
            tuple(options.items()),
            callbacks,
        )
        for way, model, sync, options, callbacks in alone
        for part in ("uneven", "empty")
    ]
    return cases


# What runs on the ranks.


@dataclass
class Outcome:
    """Bring back what a case ended with on one rank, and its rows of every step of every epoch."""

    steps: list[list[np.ndarray]]
    lines: list[dict[str, Any]]
    payload: dict[str, Any] | None


@dataclass(frozen=True)
class TruthJob:
    """Train all cases one after the other, each in two fits."""

    cases: tuple[Case, ...]

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> dict[str, Outcome]:
        """Run on one rank."""
        return {case.name: train(case, world, rows, heartbeat) for case in self.cases}


def train(case: Case, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> Outcome:
    """Train a case in two fits, the second from the state of the first, as an Estimator does."""
    # Validation data is of the kind of the training data: the arrays' own rows, and none for torch's.
    parts = {"train": rows[case.part]} | ({"valid": rows["valid"]} if case.part in SHAPES else {})
    lines, state = [], None
    for epochs in FITS:
        learner = cloudpickle.loads(cloudpickle.dumps(case.learner()))
        plan = FitPlan(epochs, case.batch_size, shuffle=True, seed=SEED, callbacks=case.callbacks)
        history, state = FitJob(learner, plan, case.metrics(), state)(world, parts, heartbeat)
        state = cloudpickle.loads(world.broadcast(cloudpickle.dumps(state)))  # as the driver sends it
        lines += history.epochs
    feed = Feed(parts["train"], world, case.batch_size, shuffle=True, seed=SEED)
    return Outcome(steps_of(feed, sum(FITS)), lines, state.payload if world.rank == 0 else None)


@dataclass(frozen=True)
class RowsJob:
    """Tell which rows each rank gives to each step of a fit: the global batches, cut by rank."""

    epochs: int
    batch_size: int | None
    seed: int

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> list[list[np.ndarray]]:
        """Run on one rank."""
        return steps_of(Feed(rows["train"], world, self.batch_size, shuffle=True, seed=self.seed), self.epochs)


def steps_of(feed: Feed, epochs: int) -> list[list[np.ndarray]]:
    """Return the first input of this rank's rows, by epoch and step."""
    return [
        [np.array(np.asarray(flatten(batch.x)[0][0])[: batch.rows]) for batch in feed.epoch(epoch)]
        for epoch in range(1, epochs + 1)
    ]


# What one process makes of it.


@dataclass
class Plain:
    """Hold what the plain loop ended with."""

    losses: list[float]
    last_losses: list[float]
    net: nn.Module
    optimizer: torch.optim.Optimizer
    average: dict[str, torch.Tensor] | None = None


def plain_loop(case: Case, steps: list[list[list[list[int]]]], seed: int = SEED, data: Any = None) -> Plain:
    """Train in this process, over the given rows: steps[epoch][step][rank] holds row numbers.

    The ranks' parts go through the model as one batch; with batch norm, which sees a rank's rows alone, one by one, and
    the first rank's running statistics count, as in DistributedDataParallel.
    """
    x, y = rows_for(case.part) if data is None else data
    torch.manual_seed(seed)
    net = case.model({})
    stepper = case.optimizer(net, {})
    apart = any(isinstance(module, nn.BatchNorm1d) for module in net.modules()) and not case.option("sync_batchnorm")
    scheduler = case.option("scheduler")(stepper, {}) if case.option("scheduler") else None
    average: dict[str, torch.Tensor] | None = None
    kind = next(net.parameters()).dtype
    losses, last_losses = [], []
    for epoch in steps:
        total, rows, loss = 0.0, 0, 0.0
        net.train()
        stepper.load_state_dict(copy.deepcopy(stepper.state_dict()))  # which rounds some entries to the weights' dtype
        for ranks in epoch:
            step = [[n for part in ranks for n in part]] if not apart else [part for part in ranks if part]
            size = sum(map(len, step))

            def closure(step: Any = step, size: int = size) -> float:
                stepper.zero_grad()
                loss = 0.0
                for place, part in enumerate(step):
                    kept = [buffer.clone() for buffer in net.buffers()]
                    inputs = map_tree(lambda leaf, part=part: torch.from_numpy(leaf[part]).to(kind), x)
                    output = net(*inputs) if isinstance(inputs, tuple) else net(inputs)
                    mean = case.loss(output, torch.from_numpy(y[part]).to(kind))
                    weighted = mean * (1 if case.loss.reduction == "sum" else len(part) / size)
                    weighted.backward()
                    loss += float(weighted.detach())
                    for buffer, old in zip(net.buffers(), kept, strict=True) if place else ():
                        buffer.copy_(old)
                return loss

            if isinstance(stepper, torch.optim.LBFGS):
                loss = float(stepper.step(closure))
            else:
                loss = closure()
                if case.option("clip_norm"):
                    nn.utils.clip_grad_norm_(net.parameters(), case.option("clip_norm"))
                for param in net.parameters() if case.option("clip_value") else ():
                    param.grad.clamp_(*case.option("clip_value"))
                stepper.step()
                average = averaged(average, net, case.option("ema"))
            if scheduler and case.option("step_freq") != "epoch":
                scheduler.step()
            loss = loss / size if case.loss.reduction == "sum" else loss  # told for a row
            total, rows = total + loss * size, rows + size
        losses.append(total / rows)
        last_losses.append(loss)
        if scheduler and case.option("step_freq") == "epoch":
            scheduler.step()
    return Plain(losses, last_losses, net, stepper, average)


def averaged(before: dict[str, torch.Tensor] | None, net: nn.Module, decay: float | None) -> Any:
    """Return the moving average of the weights after one more step."""
    now = {name: value.clone() for name, value in net.state_dict().items()}
    if decay is None or before is None:
        return now if decay is not None else None
    return {name: decay * before[name] + (1 - decay) * now[name] for name in now}


def scores(net: nn.Module, x: Any, y: np.ndarray) -> dict[str, float]:
    """Return the metrics of a model over all rows, by their definitions."""
    net = copy.deepcopy(net).eval()
    with torch.no_grad():
        output = net(torch.from_numpy(x).to(next(net.parameters()).dtype)).numpy()
    error = np.abs(output.astype(np.float64) - y)
    positive, negative = output[y == 1], output[y == 0]
    pairs = np.sign(positive[:, None] - negative[None, :])
    return {
        "val_num_samples": len(x),
        "val_accuracy": float(np.mean((output > 0.5) == y)),
        "val_mse": float(np.mean(error**2)),
        "val_mae": float(np.mean(error)),
        "val_auc": float(np.mean((pairs + 1) / 2)),
        "val_largest_error": float(error.max()),
    }
