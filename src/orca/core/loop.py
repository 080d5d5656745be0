"""Loop: the epoch driver on every rank. Owns the order of things in a fit and how ranks' numbers become one.

    for each epoch:   train all steps  ->  add the ranks' losses up  ->  validate  ->  one line of history  ->  go on?
                      (pausing where a validation or a checkpoint is due)

Every rank runs it with the same plan, so all of them take the same decisions at the same place. Callbacks are called on
the way, by their Hooks; those of a framework that has its own, by its learner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import Any

import numpy as np

from orca.core.callbacks.hooks import Hooks
from orca.core.feed import Feed, StreamFeed
from orca.core.items import Unsendable, encode
from orca.core.learner import FitPlan, Learner
from orca.core.metrics import Metric
from orca.core.source import Batch
from orca.core.state import COMPLETE, STOPPED, STOPPING, Losses, Position, State
from orca.core.trace import Trace
from orca.core.triggers import Moment, Trigger
from orca.core.world import World
from orca.errors import ArgumentError
from orca.monitor.heartbeat import CHECKPOINT, EpochEnd, Heartbeat
from orca.monitor.stopping import Halted, StopOrder, StopPoint
from orca.storage.checkpoints import CheckpointWriter

_MEETING = 10.0  # seconds between two meetings of ranks that wait for a checkpoint


@dataclass
class History:
    """One line of statistics an epoch: `epochs` over all ranks, `mine` of this rank alone; `traces` step by step.

    The epochs that an interrupted fit had done are in `epochs` alone.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    mine: list[dict[str, Any]] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    steps: int = 0
    stop: StopOrder | None = None  # which ended the fit early
    busy: float = 0.0  # seconds that this rank has worked itself


@dataclass
class EpochLoop:
    """A fit on one rank, and how far it is.

    It trains until `plan.epochs` epochs (or `plan.max_steps` steps) were added to those before, resuming at `since`.
    Checkpoints go to the writer, which rank 0 alone has. The hooks are those of the plan's callbacks.

    `history` has the epochs that are done; `before` has the losses of an interrupted epoch, up to the interruption.
    `validations` are those of the epoch that is going on: statistics over all ranks, with the step of each; `mine` has
    this rank's own statistics of the same, and `times` their seconds, without those before an interruption.
    """

    learner: Learner
    train: Feed | StreamFeed
    valid: Feed | StreamFeed | None
    metrics: Sequence[Metric]
    plan: FitPlan
    world: World
    heartbeat: Heartbeat
    since: Position
    writer: CheckpointWriter | None = None
    hooks: Hooks = field(default_factory=Hooks)

    def __post_init__(self) -> None:
        self.history = History(list(self.since.lines), steps=sum(line["batch_count"] for line in self.since.lines))
        self.before = self.since.losses
        self.validations, self.mine, self.times = list(self.since.validations), list[dict[str, Any]](), list[float]()
        if self.valid is None:
            self.plan = replace(self.plan, validation_trigger=None)
        self.usual_steps = self.plan.steps_per_epoch or self.train.steps
        self.endless = _endless(self.train, self.since, self.plan)
        self.stop_point = self.heartbeat.stop_point
        self.snapshot: State | None = None  # on rank 0, of the last epoch that has ended

    def run(self) -> History:
        """Run all epochs and the callbacks' last hooks; keep the state that these leave behind."""
        plan, since, history = self.plan, self.since, self.history
        if self.train.steps == 0:
            return history
        self.learner.begin(plan, self.usual_steps)
        self.learner.keep_rows(self.train, self.valid)
        at_times = plan.validation_trigger is not None or plan.validation_freq != 1
        self.hooks.runner.skips_validations = self.valid is not None and at_times
        self.hooks.begin(plan.epochs, self.usual_steps, next(reversed(since.lines), None))
        if since.lines or since.step:
            self._revert(has_begun=not since.step)
        # The steps after which the callbacks' last hooks were called already.
        last = history.steps if since.ended in (COMPLETE, STOPPED) else -1
        ending, due = _ending(since, plan, self.usual_steps if self.learner.pauses else 0, self.metrics), False
        saves = plan.checkpoint_trigger is not None or plan.stores
        with self.stop_point.open(since.first_steps + history.steps + self.before.steps, self.learner.pauses, saves):
            while not ending and (self.before.steps or not self._is_over()):
                ending, due = self._run_epoch()
        if due and plan.callbacks:  # one of them may fail at the end: keep the trained state first
            self._keep(Losses(), STOPPING if ending == STOPPED else "")
            _wait_for(self.writer, self.world)
        self.learner.finish()
        self.hooks.finish()
        if due or (plan.stores and last != history.steps):  # the last state is the one that callbacks leave behind
            self._keep(Losses(), ending or COMPLETE)
        return history

    def _run_epoch(self) -> tuple[str, bool]:
        """Train an epoch and validate; return how the fit ended with it, if it did, and whether a checkpoint is due."""
        plan, history, world, before = self.plan, self.history, self.world, self.before
        epoch = self.since.first_epoch + len(history.epochs) + 1
        steps = _least(self.usual_steps, plan.max_steps and plan.max_steps - history.steps)
        clock = Clock(plan, self.since.first_steps + history.steps, epoch - 1, steps if self.learner.pauses else 0)
        if before.steps and (self._is_over() or clock.ends(before.steps)):
            steps = before.steps  # the interrupted fit has gone as far as this one shall: its epoch ends there
        began = time.perf_counter()
        losses = self._train(epoch, clock, steps)
        seconds = {"mean_train_epoch_s": time.perf_counter() - began - sum(self.times)}
        ranks = world.all_gather(_bare(losses))
        trace = _trace(losses, world, seconds["mean_train_epoch_s"])
        history.steps += before.steps + losses.steps
        mine = _training_stats(epoch, [(before.then(losses) if world.rank == 0 else losses).alone()])
        line = _training_stats(epoch, [before.then(ranks[0]), *ranks[1:]])
        if self._is_validation_due(clock, before.steps + losses.steps):
            self._validate(clock.steps + before.steps + losses.steps)
        self._close_validations(line, mine, seconds)
        if plan.profile:
            self._profile(line, mine, losses.steps, seconds)
        if world.rank == 0:
            rate = (line["num_samples"] - before.rows) / max(seconds["mean_train_epoch_s"], 1e-9)
            self.heartbeat.end_epoch(EpochEnd(epoch, _texts(line), rate, time.perf_counter() - began))
        history.epochs.append(line)
        history.mine.append(mine)
        history.traces.append(trace)
        wishes = self.learner.end_epoch(line), self.hooks.end_epoch(line)
        stops = any(world.all_gather(any(wishes)))
        moment = clock.epoch_ended(before.steps + losses.steps, line, self.metrics)
        self.before, due = Losses(), clock.kept(moment)
        if self._is_over() or clock.over(moment):
            return COMPLETE, due
        if stops:
            return STOPPED, due
        state = self._keep(Losses()) if due else None if self.learner.spread else self._state(Losses())
        if world.rank == 0 and state is not None:
            self.snapshot = state
        return "", due

    def _train(self, epoch: int, clock: Clock, steps: int | None) -> Losses:
        """Train an epoch, or the rest of it, in parts: after each but the last one something is due."""
        before, losses = self.before, Losses()  # this rank's; those of all ranks before the interruption are rank 0's
        self.heartbeat.step(epoch, before.steps, steps or 0)
        batches = self.endless if self.plan.steps_per_epoch else self.train.epoch(epoch, before.steps)
        batches = islice(batches, steps and max(steps - before.steps, 0))
        self.learner.begin_epoch(epoch)
        self.hooks.begin_epoch(epoch)
        if before.steps:
            self._revert(has_begun=True)
        while True:
            part = EpochPart(batches, clock, before.steps + losses.steps, self.stop_point)
            stream = self.hooks.steps(part, part.step, self.heartbeat, self.world)
            losses = losses.then(self.learner.train(stream, self.heartbeat, epoch, self.plan, part.step))
            step = before.steps + losses.steps
            if losses.stopped or self.hooks.stopped or not part.paused or clock.ends(step):
                return losses
            if clock.validates(step):
                self._validate(clock.steps + step)
            halts = self.stop_point.is_reached
            if clock.keeps(step) or (halts and (self.plan.checkpoint_trigger is not None or self.plan.stores)):
                self._keep(_added(before, self.world.all_gather(_bare(losses))))
            if halts:
                _wait_for(self.writer, self.world)
                raise Halted

    def _is_validation_due(self, clock: Clock, steps: int) -> bool:
        """Say whether an epoch is validated at its end, after so many steps; not twice after the same step."""
        plan = self.plan
        if self.valid is None:
            return False
        if plan.validation_trigger is None:
            epoch, freq = plan.initial_epoch + len(self.history.epochs) + 1, plan.validation_freq
            return epoch % freq == 0 if isinstance(freq, int) else epoch in freq
        last = next(reversed(self.validations), {"step": None})
        return last["step"] != clock.steps + steps and clock.validated(steps)

    def _validate(self, step: int) -> None:
        """Evaluate after so many steps of all epochs."""
        assert self.valid is not None
        began = time.perf_counter()
        overall, own = evaluate(
            self.learner, self.valid, self.metrics, self.world, self.heartbeat, self.plan.validation_steps, self.hooks
        )
        self.validations.append({"step": step} | _as_validation(overall))
        self.mine.append({"step": step} | _as_validation(own))
        self.times.append(time.perf_counter() - began)

    def _close_validations(self, line: dict[str, Any], mine: dict[str, Any], seconds: dict[str, float]) -> None:
        """Add the last validation to the statistics of an epoch; all of them, where a trigger asked for them."""
        for stats, validations in ((line, self.validations), (mine, self.mine)):
            for last in validations[-1:]:
                stats |= {name: value for name, value in last.items() if name != "step"}
            if validations and self.plan.validation_trigger is not None:
                stats["validations"] = validations
        if self.times:
            seconds["mean_validation_s"] = sum(self.times) / len(self.times)
        self.validations, self.mine, self.times = [], [], []

    def _profile(
        self, line: dict[str, Any], mine: dict[str, Any], training_steps: int, seconds: dict[str, float]
    ) -> None:
        """Add to the statistics of an epoch where its time went."""
        steps = 0
        if self.valid is not None and "mean_validation_s" in seconds:
            steps = (_least(self.valid.steps, self.plan.validation_steps) or 0) * len(mine.get("validations", [1]))
        mine["profile"] = profile_of(self.heartbeat, training_steps, steps) | seconds
        profiles = self.world.all_gather(mine["profile"])
        line["profile"] = mean_profile(profiles) | {"ranks": profiles}

    def _is_over(self) -> bool:
        if self.plan.max_steps:
            return self.history.steps >= self.plan.max_steps
        return len(self.history.epochs) >= self.plan.epochs

    def _revert(self, has_begun: bool) -> None:
        """Undo the changes that callbacks made at the beginning of a resumed fit: its state already has them.

        Once the fit, or the epoch that it was interrupted in, has begun, callbacks get their own states back.
        """
        self.learner.revert()
        if has_begun:
            self.hooks.restore()

    def _keep(self, losses: Losses, ending: str = "") -> State:
        """Hand a state that a fit can be resumed from to the writer; all ranks call it."""
        since, history, phase = self.since, self.history, self.heartbeat.phase
        self.heartbeat.at(CHECKPOINT)
        state, callbacks = self._state(losses), self.hooks.states() | self.learner.callback_states()
        if self.writer is not None:
            if callbacks:
                state.payload["callbacks"] = callbacks
            lines = tuple(history.epochs)
            position = replace(
                since, step=losses.steps, losses=_bare(losses), lines=lines, ended=ending,
                validations=tuple(self.validations),
            )  # fmt: skip
            state.position = position.as_json()
            self.writer.keep(state)
        self.heartbeat.at(phase)
        return state

    def _state(self, losses: Losses) -> State:
        """Return the learner's state with the counts of epochs and steps; all ranks call it."""
        state = self.learner.state()
        state.epoch = self.since.first_epoch + len(self.history.epochs)
        state.steps = self.since.first_steps + self.history.steps + losses.steps
        return state


@dataclass
class Clock:
    """The count of steps and epochs for triggers, which see nothing else between the ends of epochs.

    Attributes:
        plan: The plan, with its triggers.
        steps: Steps trained before this epoch.
        epochs: Epochs trained before it.
        last: The epoch's last step, after which triggers are asked when it has ended; None where nobody knows, 0 where
            an epoch cannot be paused.
    """

    plan: FitPlan
    steps: int
    epochs: int
    last: int | None

    def pauses(self, step: int) -> bool:
        """Say whether something is due after this step of the epoch."""
        return self.keeps(step) or self.ends(step) or self.validates(step)

    def keeps(self, step: int) -> bool:
        """Say whether a checkpoint is due after this step of the epoch."""
        return self._fires(self.plan.checkpoint_trigger, step)

    def ends(self, step: int) -> bool:
        """Say whether the fit ends after this step of the epoch."""
        return self._fires(self.plan.end_trigger, step)

    def validates(self, step: int) -> bool:
        """Say whether a validation is due after this step of the epoch."""
        return self._fires(self.plan.validation_trigger, step)

    def validated(self, steps: int) -> bool:
        """Say whether a validation is due at the end of an epoch of so many steps."""
        return self._due(self.plan.validation_trigger, Moment(self.epochs + 1, self.steps + steps, True))

    def kept(self, moment: Moment) -> bool:
        """Say whether a checkpoint is due at the end of an epoch."""
        return self._due(self.plan.checkpoint_trigger, moment)

    def over(self, moment: Moment) -> bool:
        """Say whether the fit ends with the epoch that ended at this moment."""
        trigger = self.plan.end_trigger
        return trigger is not None and (trigger(moment) or self.ends(moment.step - self.steps))

    def epoch_ended(self, steps: int, line: dict[str, Any], metrics: Sequence[Metric]) -> Moment:
        """Return the moment in which an epoch of so many steps ended with these statistics."""
        names = [f"val_{metric.name.lower()}" for metric in metrics]
        if not names:  # a framework that has metrics of its own
            names = [name for name in line if name.startswith("val_") and name not in ("val_loss", "val_num_samples")]
        values = [line.get(name) for name in names]
        curves = tuple | list  # a list where the line was read from a checkpoint
        score = next((value for value in values if value is not None and not isinstance(value, curves)), None)
        return Moment(self.epochs + 1, self.steps + steps, True, line.get("val_loss", line["train_loss"]), score)

    def _due(self, trigger: Trigger | None, moment: Moment) -> bool:
        """Say whether a trigger fires at the end of an epoch; for one that cannot be paused, also within it."""
        if trigger is None:
            return False
        within = range(self.steps + 1, moment.step) if self.last == 0 else ()
        return (
            trigger(moment)
            or self._fires(trigger, moment.step - self.steps)  # where the epoch was cut
            or any(trigger(Moment(self.epochs, step, False)) for step in within)
        )

    def _fires(self, trigger: Trigger | None, step: int) -> bool:
        if trigger is None or (self.last is not None and step >= self.last):
            return False
        return trigger(Moment(self.epochs, self.steps + step, False))


class EpochPart:
    """The batches of an epoch up to the step after which something is due; `paused` once they were read up to there.

    A learner may read ahead: that the batches were read does not say that they were trained on.
    """

    def __init__(self, batches: Iterator[Batch], clock: Clock, step: int, stop_point: StopPoint) -> None:
        self.batches, self.clock, self.step, self.paused = batches, clock, step, False
        self.stop_point = stop_point

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            yield batch
            self.step += 1
            if self.stop_point.reached(self.clock.steps + self.step) or self.clock.pauses(self.step):
                self.paused = True
                return


def _ending(since: Position, plan: FitPlan, last: int | None, metrics: Sequence[Metric]) -> str:
    """Return how a resumed fit had ended: a callback stopped it, or its end_trigger fires at its last epoch's end."""
    if since.ended in (STOPPED, STOPPING):
        return STOPPED
    if not since.lines or since.step:
        return ""
    *before, line = since.lines
    steps = since.first_steps + sum(each["batch_count"] for each in before)
    clock = Clock(plan, steps, since.first_epoch + len(before), last)
    return COMPLETE if clock.over(clock.epoch_ended(line["batch_count"], line, metrics)) else ""


def _endless(train: Feed | StreamFeed, since: Position, plan: FitPlan) -> Iterator[Batch]:
    """Yield one pass after the other, from where the interrupted fit was."""
    steps = sum(line["batch_count"] for line in since.lines) + since.losses.steps if plan.steps_per_epoch else 0
    passes, rest = divmod(steps, train.steps) if train.steps else (0, 0)
    first = since.first_epoch + 1 + passes
    unseen = chain(train.epoch(first, rest), chain.from_iterable(map(train.epoch, count(first + 1))))
    yield from unseen if train.steps else islice(unseen, steps, None)  # in how many passes, only reading them tells


def _wait_for(writer: CheckpointWriter | None, world: World) -> None:
    """Wait on every rank until rank 0 has written its checkpoint: a rank that fails ends the others.

    Ranks meet again and again, as a collective fails when others do not join it for long.
    """
    while not all(world.all_gather(writer is None or writer.wait(_MEETING))):
        pass


def _bare(losses: Losses) -> Losses:
    return replace(losses, trace=[], rates=[])


def _added(before: Losses, ranks: Sequence[Losses]) -> Losses:
    """Return the losses of all ranks in an epoch so far, as one rank's."""
    names = ("loss_sum", "mass", "rows", "last_loss_sum", "last_mass")
    together = Losses(**{name: sum(getattr(losses, name) for losses in ranks) for name in names}, steps=ranks[0].steps)
    return before.then(together)


def _trace(losses: Losses, world: World, seconds: float) -> Trace:
    """Return the loss of every step over all ranks."""
    sums, masses = world.all_reduce([np.array(losses.trace, np.float64).reshape(-1, 2).T], "sum")[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        return Trace(sums / masses, np.array(losses.rates, np.float64), seconds, time.time())


def evaluate(
    learner: Learner,
    feed: Feed | StreamFeed,
    metrics: Sequence[Metric],
    world: World,
    heartbeat: Heartbeat,
    num_steps: int | None = None,
    hooks: Hooks | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (statistics over all ranks, statistics of this rank): exact for any split of the rows."""
    meters = [metric.start() for metric in metrics]
    batches = islice(feed.epoch(0), num_steps)
    losses = learner.evaluate(batches if hooks is None else hooks.evaluation(batches), meters, heartbeat)
    mine = (losses, [meter.state() for meter in meters])
    try:
        ranks = world.gather(mine)
    except Unsendable:
        for meter, state in zip(meters, mine[1], strict=True):
            _check_state(meter, state)
        raise
    overall = None if ranks is None else _evaluation_stats(metrics, ranks)
    return world.broadcast(overall), _evaluation_stats(metrics, [(losses.alone(), mine[1])])


def _check_state(meter: Metric, state: Any) -> None:
    try:
        encode(state)
    except Unsendable as error:
        raise ArgumentError(
            f"the state of the metric {meter.name!r} cannot travel to the other ranks: {error} Let its tally return "
            "numbers, arrays and tensors.",
            code="bad-metric-state",
        ) from error


def _training_stats(epoch: int, ranks: Sequence[Losses]) -> dict[str, Any]:
    last = sum(losses.last_mass for losses in ranks)
    line = {
        "num_samples": sum(losses.rows for losses in ranks),
        "epoch": epoch,
        "batch_count": ranks[0].steps,
        "train_loss": _ratio(sum(losses.loss_sum for losses in ranks), sum(losses.mass for losses in ranks)),
        "last_train_loss": _ratio(sum(losses.last_loss_sum for losses in ranks), last),
    }
    return line | {f"train_{name}": value for name, value in ranks[0].logs.items()}  # which may have a loss of its own


def _evaluation_stats(metrics: Sequence[Metric], ranks: Sequence[tuple[Losses, list[Any]]]) -> dict[str, Any]:
    meters = [metric.start() for metric in metrics]
    for position, meter in enumerate(meters):
        meter.merge(*(states[position] for _, states in ranks))
    rows, mass = (sum(getattr(losses, name) for losses, _ in ranks) for name in ("rows", "mass"))
    loss = sum(losses.loss_sum for losses, _ in ranks)
    results = {meter.name: meter.result() for meter in meters}
    if ranks[0][0].conducted:
        results = {name: value for name, value in results.items() if value == value}  # nan: nobody fed it
    return {"num_samples": rows, "val_loss": _ratio(loss, mass)} | ranks[0][0].logs | results


def _texts(line: dict[str, Any]) -> list[str]:
    """Return the numbers of an epoch's statistics as people read them: "loss=0.0123", "val_loss=0.0234"."""
    names = [name for name in line if name.startswith(("train_", "val_")) and name != "val_num_samples"]
    return [
        f"{name.removeprefix('train_')}={line[name]:.4g}"
        for name in names
        if isinstance(line[name], int | float | np.number)
    ]


def _as_validation(stats: dict[str, Any]) -> dict[str, Any]:
    """Return evaluation statistics under the names fit gives them: val_loss, val_accuracy, val_num_samples."""
    return {key if key.startswith("val_") else f"val_{key.lower()}": value for key, value in stats.items()}


def profile_of(heartbeat: Heartbeat, training_steps: int = 0, validation_steps: int = 0) -> dict[str, float]:
    """Return the mean seconds a training or evaluation step spent in each phase, and start counting anew."""
    phases = {"data": ("data", training_steps + validation_steps), "eval_fwd": ("evaluate", validation_steps)}
    if training_steps:
        phases |= {
            "fwd": ("forward", training_steps),
            "bwd": ("backward", training_steps),
            "optimizer": ("optimizer", training_steps),
        }
    means = {f"mean_{name}_s": heartbeat.profile[phase] / max(steps, 1) for name, (phase, steps) in phases.items()}
    if training_steps:  # communication beside the backward pass, and communication that everything waits for
        means["mean_comm_s"] = (heartbeat.profile["communication"] + heartbeat.profile["wait"]) / training_steps
    heartbeat.profile = dict.fromkeys(heartbeat.profile, 0.0)
    return means


def mean_profile(profiles: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of the ranks' profiles."""
    return {key: sum(profile[key] for profile in profiles) / len(profiles) for key in profiles[0]}


def _least(*limits: int | None) -> int | None:
    """Return the smallest of the limits that there are."""
    return min((limit for limit in limits if limit), default=None)


def _ratio(total: float, mass: float) -> float:
    return total / mass if mass else float("nan")
