"""Loop: the epoch driver on every rank. Owns the order of things in a fit and how ranks' numbers become one.

    for each epoch:   train all steps  ->  add the ranks' losses up  ->  validate  ->  one line of history  ->  go on?

Every rank runs it with the same plan, so all of them take the same decisions at the same place.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any

from orca.core.feed import Feed, StreamFeed
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
    train: Feed | StreamFeed,
    valid: Feed | StreamFeed | None,
    metrics: Sequence[Metric],
    plan: FitPlan,
    world: World,
    pulse: Pulse,
    trained: int,
) -> History:
    """Train `plan.epochs` epochs after the `trained` ones, or as many as `plan.max_steps` takes."""
    history = History()
    if train.steps == 0:
        return history
    usual = plan.steps_per_epoch or train.steps
    endless = chain.from_iterable(map(train.epoch, count(trained + 1)))
    learner.begin(plan, usual)
    for epoch in count(trained + 1):
        if history.steps == plan.max_steps or (not plan.max_steps and len(history.epochs) == plan.epochs):
            break
        steps = _least(usual, plan.max_steps and plan.max_steps - history.steps)
        pulse.step(epoch, 0, steps or 0)
        began = time.perf_counter()
        batches = endless if plan.steps_per_epoch else train.epoch(epoch)
        losses = learner.train(islice(batches, steps), pulse, epoch, plan)
        seconds = time.perf_counter() - began
        history.steps += losses.steps
        mine = _training_stats(epoch, [losses])
        line = _training_stats(epoch, world.all_gather(losses))
        validates = valid is not None and _is_due(plan.initial_epoch + len(history.epochs) + 1, plan.validation_freq)
        if valid is not None and validates:
            reduced, own = evaluate(learner, valid, metrics, world, pulse, plan.validation_steps)
            line |= _as_validation(reduced)
            mine |= _as_validation(own)
        if plan.profile:
            evaluated = (_least(valid.steps, plan.validation_steps) or 0) if valid and validates else 0
            mine["profile"] = profile_of(pulse, losses.steps, evaluated) | {"mean_train_epoch_s": seconds}
            line["profile"] = mean_profile(world.all_gather(mine["profile"]))
        history.epochs.append(line)
        history.mine.append(mine)
        if any(world.all_gather(learner.end_epoch(line))):
            break
    learner.finish()
    return history


def evaluate(
    learner: Learner,
    feed: Feed | StreamFeed,
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


def _training_stats(epoch: int, told: Sequence[Losses]) -> dict[str, Any]:
    last = sum(losses.last_mass for losses in told)
    return {f"train_{name}": value for name, value in told[0].logs.items()} | {
        "num_samples": sum(losses.rows for losses in told),
        "epoch": epoch,
        "batch_count": told[0].steps,
        "train_loss": _ratio(sum(losses.loss_sum for losses in told), sum(losses.mass for losses in told)),
        "last_train_loss": _ratio(sum(losses.last_loss_sum for losses in told), last),
    }


def _evaluation_stats(metrics: Sequence[Metric], told: Sequence[tuple[Losses, list[Any]]]) -> dict[str, Any]:
    meters = [metric.start() for metric in metrics]
    for position, meter in enumerate(meters):
        meter.merge(*(states[position] for _, states in told))
    rows, mass = (sum(getattr(losses, name) for losses, _ in told) for name in ("rows", "mass"))
    loss = sum(losses.loss_sum for losses, _ in told)
    return {"num_samples": rows, "val_loss": _ratio(loss, mass)} | told[0][0].logs | result_dict(meters)


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


def _least(*limits: int | None) -> int | None:
    """Return the smallest of the limits that there are."""
    return min((limit for limit in limits if limit), default=None)


def _is_due(epoch: int, freq: int | tuple[int, ...]) -> bool:
    return epoch % freq == 0 if isinstance(freq, int) else epoch in freq


def _ratio(total: float, mass: float) -> float:
    return total / mass if mass else float("nan")
