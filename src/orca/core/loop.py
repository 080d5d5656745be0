"""Loop: the epochs of a fit on every rank. Owns the order of things in a fit and how ranks' numbers become one.

    for each epoch:   train all steps  ->  add the ranks' losses up  ->  validate  ->  one line of history  ->  go on?
                      (after each step: validate or save a checkpoint, if one is due)

Every rank runs it with the same plan, so all of them take the same decisions at the same place. Callbacks are called on
the way; those of a framework that has its own, by its session.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import Any

import numpy as np

from orca.core.feed import Feed, StreamFeed
from orca.core.items import Unsendable, encode
from orca.core.learner import FitPlan
from orca.core.losses import LossAccumulator, without_steps
from orca.core.metrics import Metric
from orca.core.schedule import Due, Schedule, epoch_ended
from orca.core.session import Evaluation, Session
from orca.core.source import Batch
from orca.core.state import COMPLETE, STOPPED, STOPPING, Losses, Position, State
from orca.core.trace import Trace
from orca.core.triggers import Moment
from orca.core.world import World
from orca.errors import ArgumentError
from orca.monitor.heartbeat import CHECKPOINT, DATA, EVALUATE, EpochEnd, Heartbeat
from orca.monitor.stopping import Halted, StopOrder
from orca.storage.checkpoints import CheckpointWriter

_MEETING = 10.0  # seconds between two meetings of ranks that wait for a checkpoint
_NOTHING_DUE = Due()


@dataclass
class History:
    """One line of statistics an epoch: `epochs` over all ranks, `mine` of this rank only; `traces` step by step.

    The epochs that an interrupted fit had done are in `epochs` only.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    mine: list[dict[str, Any]] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    steps: int = 0
    stop: StopOrder | None = None  # which ended the fit early
    busy: float = 0.0  # seconds that this rank has worked itself


@dataclass(frozen=True)
class Epoch:
    """An epoch under way.

    Attributes:
        number: Its number over all fits, from 1.
        steps_before: Steps of all fits before it.
        first_step: Steps of it that an interrupted fit had done.
        steps: Its steps, with those; None if unknown.
        ends_at: The step to end it at.
    """

    number: int
    steps_before: int
    first_step: int
    steps: int | None
    ends_at: int | None

    def moment(self, step: int) -> Moment:
        """Return the moment after so many of its steps."""
        return Moment(self.number - 1, self.steps_before + step)


@dataclass
class Validations:
    """The validations of an epoch: statistics over all ranks, with the step of each; those of this rank; seconds.

    Those before an interruption have only the first.
    """

    overall: list[dict[str, Any]] = field(default_factory=list)
    mine: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def last_step(self) -> int | None:
        """The step of the last one, over all fits."""
        return self.overall[-1]["step"] if self.overall else None


class FitLoop:
    """A fit on one rank, and how far it is.

    It trains until `plan.epochs` epochs (or `plan.max_steps` steps) were added to those before, resuming at `since`.

    Args:
        session: The learner at work.
        train: The rows to train on.
        valid: The rows to validate on, if any.
        metrics: Metrics of validations.
        plan: The plan, the same on every rank.
        world: The ranks.
        heartbeat: Told where the loop is.
        since: Where to begin.
        writer: Writes checkpoints; only rank 0 has one.
    """

    def __init__(
        self,
        session: Session,
        train: Feed | StreamFeed,
        valid: Feed | StreamFeed | None,
        metrics: Sequence[Metric],
        plan: FitPlan,
        world: World,
        heartbeat: Heartbeat,
        since: Position,
        writer: CheckpointWriter | None = None,
    ) -> None:
        self.session, self.callbacks = session, session.callbacks
        self.train, self.valid, self.metrics = train, valid, metrics
        self.plan, self.world, self.heartbeat, self.since, self.writer = plan, world, heartbeat, since, writer
        self.steps_by_trigger = None if valid is None else plan.validation_trigger
        self.schedule = Schedule(self.steps_by_trigger, plan.checkpoint_trigger, plan.end_trigger)
        self.history = History(list(since.lines), steps=sum(line["batch_count"] for line in since.lines))
        self.resumed = since.losses  # of the interrupted epoch, over all ranks, until it has ended
        self.validations = Validations(list(since.validations))
        self.usual_steps = plan.steps_per_epoch or train.steps
        self.endless = _endless(train, since, plan)
        self.saves = plan.checkpoint_trigger is not None or plan.stores
        self.stop_point = heartbeat.stop_point
        self.snapshot: State | None = None  # on rank 0, of the last epoch that has ended

    def run(self) -> History:
        """Run all epochs and the callbacks' last hooks; save the state that these leave behind."""
        plan, since, history = self.plan, self.since, self.history
        if self.train.steps == 0:
            return history
        skips_validations = self.valid is not None and (
            plan.validation_trigger is not None or plan.validation_freq != 1
        )
        self.callbacks.begin(plan.epochs, self.usual_steps, next(reversed(since.lines), None), skips_validations)
        if since.lines or since.step:
            self._rewind(load_callbacks=not since.step)
        # The steps after which the callbacks' last hooks were called already.
        last = history.steps if since.ended in (COMPLETE, STOPPED) else -1
        ending, is_checkpoint_due = self._resumed_ending(), False
        steps, can_halt = since.first_steps + history.steps + self.resumed.steps, self.session.user_epoch is None
        with self.stop_point.open(steps, can_halt, self.saves):
            while not ending and (self.resumed.steps or not self._is_over()):
                ending, is_checkpoint_due = self._run_epoch()
        if is_checkpoint_due and plan.callbacks:  # one of them may fail at the end: save the trained state first
            self._save(Losses(), STOPPING if ending == STOPPED else "")
            _wait_for(self.writer, self.world)
        self.session.end_fit()
        self.callbacks.finish()
        if is_checkpoint_due or (plan.stores and last != history.steps):  # the state that callbacks leave behind
            self._save(Losses(), ending or COMPLETE)
        return history

    def _run_epoch(self) -> tuple[str, bool]:
        """Train an epoch and validate; return how the fit ended with it, if it did, and whether a checkpoint is due."""
        history, world, resumed = self.history, self.world, self.resumed
        epoch = self._next_epoch()
        began = time.perf_counter()
        losses, due = self._train(epoch)
        seconds = {"mean_train_epoch_s": time.perf_counter() - began - sum(self.validations.seconds)}
        ranks = world.all_gather(without_steps(losses))
        trace = _trace(losses, world, seconds["mean_train_epoch_s"])
        steps = resumed.steps + losses.steps
        mine = _training_stats(epoch.number, [(resumed.then(losses) if world.rank == 0 else losses).alone()])
        line = _training_stats(epoch.number, [resumed.then(ranks[0]), *ranks[1:]])
        if self._validates_epoch(epoch, steps, due):
            self._validate(epoch.steps_before + steps)
        self._close_validations(line, mine, seconds)
        if self.plan.profile:
            self._profile(line, mine, losses.steps, seconds)
        if world.rank == 0:
            rate = (line["num_samples"] - resumed.rows) / max(seconds["mean_train_epoch_s"], 1e-9)
            self.heartbeat.end_epoch(EpochEnd(epoch.number, _texts(line), rate, time.perf_counter() - began))
        history.steps += steps
        history.epochs.append(line)
        history.mine.append(mine)
        history.traces.append(trace)
        wishes = self.session.end_epoch(line), self.callbacks.end_epoch(line)
        stops = any(world.all_gather(any(wishes)))
        due |= self.schedule.due_at_epoch_end(epoch_ended(epoch.number, epoch.steps_before + steps, line, self.metrics))
        self.resumed = Losses()
        if self._is_over() or due.stop:
            return COMPLETE, due.checkpoint
        if stops:
            return STOPPED, due.checkpoint
        state = None
        if due.checkpoint:
            state = self._save(Losses())
        elif not self.session.is_sharded:
            state = self._state(Losses())
        self.snapshot = state if world.rank == 0 and state is not None else self.snapshot
        return "", due.checkpoint

    def _next_epoch(self) -> Epoch:
        """Return the epoch that begins, or that was interrupted."""
        history, resumed = self.history, self.resumed
        limit = self.plan.max_steps and self.plan.max_steps - history.steps
        steps = _least(self.usual_steps, limit)
        number = self.since.first_epoch + len(history.epochs) + 1
        epoch = Epoch(number, self.since.first_steps + history.steps, resumed.steps, steps, steps)
        if resumed.steps and (self._is_over() or self._due(epoch, resumed.steps).stop):
            # The interrupted fit has gone as far as this one shall: its epoch ends there.
            return replace(epoch, ends_at=resumed.steps)
        return epoch

    def _train(self, epoch: Epoch) -> tuple[Losses, Due]:
        """Train an epoch, or the rest of it; return this rank's losses, and what was due after its last step."""
        first, limit = epoch.first_step, epoch.ends_at
        self.heartbeat.step(epoch.number, first, limit or 0)
        batches = self.endless if self.plan.steps_per_epoch else self.train.epoch(epoch.number, first)
        batches = islice(batches, None if limit is None else max(limit - first, 0))
        losses = self.session.begin_epoch(epoch.number, self.plan.on_nan)
        self.callbacks.begin_epoch(epoch.number)
        if first:
            self._rewind(load_callbacks=True)
        if self.session.user_epoch is not None:
            return self._run_user_epoch(epoch, batches)
        self.heartbeat.at(DATA)
        due = self._train_steps(epoch, batches, losses)
        return losses.result(), due

    def _train_steps(self, epoch: Epoch, batches: Iterator[Batch], losses: LossAccumulator) -> Due:
        """Train on these batches; return what was due after the last one, and has to be seen to at the epoch's end."""
        session, callbacks, heartbeat, runner = self.session, self.callbacks, self.heartbeat, self.callbacks.runner
        watched, first = callbacks.watches_steps, epoch.first_step
        due = self._due(epoch, first) if first else _NOTHING_DUE
        stream = session.prepare(batches, epoch.number, first)
        try:
            for step, batch in enumerate(stream, first):
                if watched:
                    callbacks.before_train_iter(step, session.batch_view(batch))
                result = session.train_step(batch, step)
                loss = losses.add(step, result, batch.rows)
                heartbeat.step(epoch.number, step + 1, heartbeat.steps, loss, heartbeat.rows + batch.step_rows)
                runner.end_step()
                if watched:
                    callbacks.after_train_iter(step, heartbeat.loss)
                stops = session.agree_to_stop(callbacks.wants_stop)
                if stops:
                    callbacks.stop()
                due = self._due(epoch, step + 1)
                halts = self.stop_point.reached(epoch.steps_before + step + 1)
                if stops or due.stop:
                    return due
                if due.validate:
                    self._validate(epoch.steps_before + step + 1)
                if due.checkpoint or (halts and self.saves):
                    self._save(_added(self.resumed, self.world.all_gather(without_steps(losses.totals()))))
                if halts:
                    _wait_for(self.writer, self.world)
                    raise Halted
                heartbeat.at(DATA)
        finally:
            if isinstance(stream, Generator):  # it may own a thread
                stream.close()
        return due

    def _run_user_epoch(self, epoch: Epoch, batches: Iterator[Batch]) -> tuple[Losses, Due]:
        """Let code of the user's train an epoch; triggers that fire within it act at its end."""
        assert self.session.user_epoch is not None
        losses = self.session.user_epoch(batches, self.heartbeat, epoch.number)
        due = _NOTHING_DUE
        for step in range(1, epoch.first_step + losses.steps):
            due |= self.schedule.due(epoch.moment(step))
        return losses, replace(due, stop=False)

    def _due(self, epoch: Epoch, step: int) -> Due:
        """Return what is due after a step; nothing after the last one, as triggers see the end of the epoch instead."""
        if self.session.user_epoch is not None or (epoch.steps is not None and step >= epoch.steps):
            return _NOTHING_DUE
        return self.schedule.due(epoch.moment(step))

    def _validates_epoch(self, epoch: Epoch, steps: int, due: Due) -> bool:
        """Return whether an epoch is validated at its end, after so many steps; not twice after the same step."""
        if self.valid is None:
            return False
        if self.steps_by_trigger is None:
            number, freq = self.plan.initial_epoch + len(self.history.epochs) + 1, self.plan.validation_freq
            return number % freq == 0 if isinstance(freq, int) else number in freq
        step = epoch.steps_before + steps
        fires = self.schedule.validates_epoch(Moment(epoch.number, step, True))
        return (fires or due.validate) and self.validations.last_step != step

    def _validate(self, step: int) -> None:
        """Evaluate after so many steps of all epochs."""
        assert self.valid is not None
        began = time.perf_counter()
        overall, own = evaluate(
            self.session, self.valid, self.metrics, self.world, self.heartbeat, self.plan.validation_steps
        )
        self.validations.overall.append({"step": step} | _as_validation(overall))
        self.validations.mine.append({"step": step} | _as_validation(own))
        self.validations.seconds.append(time.perf_counter() - began)

    def _close_validations(self, line: dict[str, Any], mine: dict[str, Any], seconds: dict[str, float]) -> None:
        """Add the last validation to the statistics of an epoch; all of them, if a trigger requested them."""
        done, self.validations = self.validations, Validations()
        for stats, validations in ((line, done.overall), (mine, done.mine)):
            for last in validations[-1:]:
                stats |= {name: value for name, value in last.items() if name != "step"}
            if validations and self.steps_by_trigger is not None:
                stats["validations"] = validations
        if done.seconds:
            seconds["mean_validation_s"] = sum(done.seconds) / len(done.seconds)

    def _profile(
        self, line: dict[str, Any], mine: dict[str, Any], training_steps: int, seconds: dict[str, float]
    ) -> None:
        """Add to the statistics of an epoch where its time went."""
        self.heartbeat.profile["communication"] += self.session.communication_seconds() * training_steps
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

    def _resumed_ending(self) -> str:
        """Return how a resumed fit had ended: a callback stopped it, or its end_trigger fires at its end."""
        since = self.since
        if since.ended in (STOPPED, STOPPING):
            return STOPPED
        if not since.lines or since.step:
            return ""
        *before, line = since.lines
        steps = sum(each["batch_count"] for each in before)
        epoch = Epoch(since.first_epoch + len(since.lines), since.first_steps + steps, 0, self.usual_steps, None)
        due = self._due(epoch, line["batch_count"])
        ended = epoch_ended(epoch.number, epoch.steps_before + line["batch_count"], line, self.metrics)
        return COMPLETE if (due | self.schedule.due_at_epoch_end(ended)).stop else ""

    def _rewind(self, load_callbacks: bool) -> None:
        """Undo the changes that callbacks made at the beginning of a resumed fit: its state already has them.

        Once the fit, or the epoch that it was interrupted in, has begun, callbacks get their own states back.
        """
        self.session.rewind()
        if load_callbacks:
            self.callbacks.restore()

    def _save(self, losses: Losses, ending: str = "") -> State:
        """Hand a state that a fit can be resumed from to the writer; all ranks call it."""
        phase = self.heartbeat.phase
        self.heartbeat.at(CHECKPOINT)
        state, callbacks = self._state(losses), self.callbacks.states() | self.session.resume_state()
        if self.writer is not None:
            position = replace(
                self.since,
                step=losses.steps,
                losses=without_steps(losses),
                lines=tuple(self.history.epochs),
                ended=ending,
                validations=tuple(self.validations.overall),
            )
            payload = state.payload | ({"callbacks": callbacks} if callbacks else {})
            self.writer.keep(replace(state, payload=payload, position=position.as_json()))
        self.heartbeat.at(phase)
        return state

    def _state(self, losses: Losses) -> State:
        """Return the session's state with the counts of epochs and steps; all ranks call it."""
        since, history = self.since, self.history
        epoch, steps = since.first_epoch + len(history.epochs), since.first_steps + history.steps + losses.steps
        return replace(self.session.state(), epoch=epoch, steps=steps)


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
    session: Session,
    feed: Feed | StreamFeed,
    metrics: Sequence[Metric],
    world: World,
    heartbeat: Heartbeat,
    num_steps: int | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (statistics over all ranks, statistics of this rank): exact for any split of the rows."""
    meters = [metric.start() for metric in metrics]
    losses = _evaluate(session, islice(feed.epoch(0), num_steps), meters, heartbeat)
    mine = (losses, [meter.state() for meter in meters])
    try:
        ranks = world.gather(mine)
    except Unsendable:
        for meter, state in zip(meters, mine[1], strict=True):
            _check_state(meter, state)
        raise
    overall = None if ranks is None else _evaluation_stats(metrics, ranks)
    return world.broadcast(overall), _evaluation_stats(metrics, [(losses.alone(), mine[1])])


def _evaluate(session: Session, batches: Iterator[Batch], meters: Sequence[Metric], heartbeat: Heartbeat) -> Losses:
    """Evaluate on these batches, calling the hooks; return the losses."""
    callbacks = session.callbacks
    with session.evaluation(meters) as evaluation:
        callbacks("before_val_epoch")
        if session.user_evaluation is not None:
            losses = session.user_evaluation(batches, meters, heartbeat)
        else:
            losses = _evaluate_steps(session, evaluation, batches, heartbeat)
        callbacks("after_val_epoch")
    return losses


def _evaluate_steps(session: Session, evaluation: Evaluation, batches: Iterator[Batch], heartbeat: Heartbeat) -> Losses:
    callbacks = session.callbacks
    heartbeat.at(DATA)
    with evaluation.steps():
        for step, batch in enumerate(batches):
            heartbeat.at(EVALUATE)
            watched = bool(callbacks) and evaluation.joins(batch)
            if watched:
                callbacks.before_val_iter(step, session.batch_view(batch))
            evaluation.step(batch, step)
            if watched:
                callbacks("after_val_iter")
            heartbeat.at(DATA)
    return evaluation.result()


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
