"""Loop: the epoch driver on every rank. Owns the order of things in a fit and how ranks' numbers become one.

    for each epoch:   train all steps  ->  add the ranks' losses up  ->  validate  ->  one line of history

Every rank runs it with the same plan, so all of them take the same decisions at the same place.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from orca.core.feed import Feed
from orca.core.learner import FitPlan, Learner, Losses
from orca.core.metrics import Metric, result_dict
from orca.core.pulse import Pulse
from orca.core.world import World


@dataclass
class History:
    """Hold one line of statistics an epoch: `epochs` over all ranks, `mine` of this rank alone."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    mine: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0


def run_epochs(
    learner: Learner,
    train: Feed,
    valid: Feed | None,
    metrics: Sequence[Metric],
    plan: FitPlan,
    world: World,
    pulse: Pulse,
    trained: int,
) -> History:
    """Train `plan.epochs` epochs after the `trained` ones, or as many as `plan.max_steps` takes."""
    history = History()
    left = plan.max_steps or plan.epochs * train.steps
    for epoch in count(trained + 1):
        steps = min(train.steps, left - history.steps)
        if not steps:
            break
        pulse.step(epoch, 0, steps)
        began = time.perf_counter()
        losses = learner.train(islice(train.epoch(epoch), steps), pulse, epoch, plan)
        seconds = time.perf_counter() - began
        history.steps += steps
        mine = _training_stats(epoch, steps, [losses])
        line = _training_stats(epoch, steps, world.all_gather(losses))
        if valid is not None:
            reduced, own = evaluate(learner, valid, metrics, world, pulse)
            line |= _as_validation(reduced)
            mine |= _as_validation(own)
        if plan.profile:
            mine["profile"] = profile_of(pulse, steps, valid.steps if valid else 0) | {"mean_train_epoch_s": seconds}
            line["profile"] = mean_profile(world.all_gather(mine["profile"]))
        history.epochs.append(line)
        history.mine.append(mine)
    return history


def evaluate(
    learner: Learner,
    feed: Feed,
    metrics: Sequence[Metric],
    world: World,
    pulse: Pulse,
    num_steps: int | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (statistics over all ranks, statistics of this rank): exact for any split of the rows."""
    meters = [metric.start() for metric in metrics]
    losses = learner.evaluate(islice(feed.epoch(0), num_steps), meters, pulse)
    mine = (losses, [meter.state() for meter in meters])
    told = world.gather(mine)
    reduced = None if told is None else _evaluation_stats(metrics, told)
    return world.broadcast(reduced), _evaluation_stats(metrics, [mine])


def _training_stats(epoch: int, steps: int, told: Sequence[Losses]) -> dict[str, Any]:
    last = sum(losses.last_mass for losses in told)
    return {
        "num_samples": sum(losses.rows for losses in told),
        "epoch": epoch,
        "batch_count": steps,
        "train_loss": _ratio(sum(losses.loss_sum for losses in told), sum(losses.mass for losses in told)),
        "last_train_loss": _ratio(sum(losses.last_loss_sum for losses in told), last),
    }


def _evaluation_stats(metrics: Sequence[Metric], told: Sequence[tuple[Losses, list[Any]]]) -> dict[str, Any]:
    meters = [metric.start() for metric in metrics]
    for position, meter in enumerate(meters):
        meter.merge(*(states[position] for _, states in told))
    rows, mass = (sum(getattr(losses, name) for losses, _ in told) for name in ("rows", "mass"))
    loss = sum(losses.loss_sum for losses, _ in told)
    return {"num_samples": rows, "val_loss": _ratio(loss, mass)} | result_dict(meters)


def _as_validation(stats: dict[str, Any]) -> dict[str, Any]:
    """Return evaluation statistics under the names fit gives them: val_loss, val_accuracy, val_num_samples."""
    return {key if key.startswith("val_") else f"val_{key.lower()}": value for key, value in stats.items()}


def profile_of(pulse: Pulse, trained: int = 0, evaluated: int = 0) -> dict[str, float]:
    """Return the mean seconds a training or evaluation step spent in each phase, and start counting anew."""
    phases = {"data": ("data", trained + evaluated), "eval_fwd": ("evaluate", evaluated)}
    if trained:
        phases |= {"fwd": ("forward", trained), "bwd": ("backward", trained), "optimizer": ("optimizer", trained)}
    means = {f"mean_{name}_s": pulse.profile[phase] / max(steps, 1) for name, (phase, steps) in phases.items()}
    pulse.profile = dict.fromkeys(pulse.profile, 0.0)
    return means


def mean_profile(told: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of the ranks' profiles."""
    return {key: sum(profile[key] for profile in told) / len(told) for key in told[0]}


def _ratio(total: float, mass: float) -> float:
    return total / mass if mass else float("nan")
