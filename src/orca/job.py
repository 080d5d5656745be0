"""Job: the work of a rank. Frozen dataclasses that travel to every rank and run there: fit, evaluate, predict."""

from __future__ import annotations

import gc
import hashlib
import io
import logging
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import cloudpickle
import numpy as np

from orca.core.columns import concatenate
from orca.core.engine import dumps
from orca.core.feed import Feed, StreamFeed, feed_of
from orca.core.learner import FitPlan, Learner, Predictor, PredictorSpec
from orca.core.loop import FitLoop, History, evaluate, mean_profile, profile_of
from orca.core.metrics import Metric
from orca.core.processor import protect_from_amx
from orca.core.session import Session
from orca.core.source import Rows
from orca.core.state import OutputSpec, Position, State
from orca.core.world import World
from orca.errors import ArgumentError, DataError, OrcaError
from orca.monitor.heartbeat import Heartbeat, waiting_for_storage
from orca.monitor.stopping import Halted
from orca.rows.tree import cut_rows, flatten, map_tree, rows_of
from orca.storage.checkpoints import CheckpointWriter, prefix_in
from orca.storage.files import filesystem, probe_file
from orca.storage.retries import may_pass, retried

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FitJob:
    """A fit on every rank; each returns its History, rank 0 the State as well: without payload where that is stored."""

    learner: Learner
    plan: FitPlan
    metrics: tuple[Metric, ...]
    state: State | None

    def __call__(self, world: World, rows: dict[str, Rows], heartbeat: Heartbeat) -> tuple[History, State | None]:
        """Run on one rank."""
        plan = replace(self.plan, validates="valid" in rows)
        heartbeat.profiling = plan.profile
        feed = partial(
            feed_of,
            world=world,
            batch_size=plan.batch_size,
            seed=plan.seed,
            weighted=plan.weighted,
            first_epoch=_epochs_before(self.state),
        )
        train = feed(rows["train"], shuffle=plan.shuffle)
        train.check_rows()
        valid = None
        if "valid" in rows:
            valid = feed(rows["valid"], shuffle=False)
        _check_ends(train, plan.steps_per_epoch or plan.max_steps, "steps_per_epoch")
        _check_ends(valid, plan.validation_steps, "validation_steps")
        since = _since(self.state, plan, train)
        steps = plan.steps_per_epoch or train.steps
        session = self.learner.join(world, self.state, plan.seed, plan.callbacks, plan, steps)
        with session, session.callbacks, _writer(session, plan, world) as writer:
            session.cache_rows(train, valid)
            metrics = _resolved(self.metrics, session)
            loop = FitLoop(session, train, valid, metrics, plan, world, heartbeat, since, writer)
            try:
                history = loop.run()
            except Halted:
                return replace(loop.history, stop=heartbeat.stop_point.order), loop.snapshot
            state = State() if plan.stores else session.state()
        epoch, steps = since.first_epoch + len(history.epochs), since.first_steps + history.steps
        history = replace(history, stop=heartbeat.stop_point.outlived, busy=heartbeat.busy)
        return history, replace(state, epoch=epoch, steps=steps) if world.rank == 0 else None


@dataclass(frozen=True)
class EvaluateJob:
    """An evaluation on every rank; each returns (statistics over all ranks, statistics of its own, row specs)."""

    learner: Learner
    batch_size: int | None
    metrics: tuple[Metric, ...]
    state: State | None
    seed: int = 0
    num_steps: int | None = None
    profile: bool = False
    weighted: bool = False
    callbacks: tuple[Any, ...] = ()

    def __call__(
        self, world: World, rows: dict[str, Rows], heartbeat: Heartbeat
    ) -> tuple[dict[str, Any], dict[str, Any], Any]:
        """Run on one rank."""
        heartbeat.profiling = self.profile
        feed = feed_of(rows["train"], world, self.batch_size, shuffle=False, seed=self.seed, weighted=self.weighted)
        _check_ends(feed, self.num_steps, "num_steps")
        session = self.learner.join(world, self.state, self.seed, self.callbacks)
        with session, session.callbacks as callbacks:
            callbacks.begin()
            began = time.perf_counter()
            metrics = _resolved(self.metrics, session)
            overall, own = evaluate(session, feed, metrics, world, heartbeat, self.num_steps)
            seconds = time.perf_counter() - began
            callbacks("after_run")
            state = session.state()
        if self.profile:
            steps = min(filter(None, (self.num_steps, feed.steps)), default=0)
            own["profile"] = profile_of(heartbeat, validation_steps=steps) | {"mean_validation_s": seconds}
            overall = overall | {"profile": mean_profile(world.all_gather(own["profile"]))}
        return overall, own, (state.input, state.output)


@dataclass(frozen=True)
class PredictJob:
    """Answers for blocks of rows; the model is restored once in a process, whatever the number of blocks.

    A process keeps the models that answered last, so that several may take turns, as in a query with the predictions
    of two Estimators; a model that others have pushed out is let go.

    Attributes:
        key: Names this model and these weights.
        work: The pickled (spec, state), opened only where the key is new.
        batch_size: Rows the model sees at a time.
        output: The model's answer for a row, where its shape and type are known already.
    """

    key: str
    work: bytes
    batch_size: int
    output: OutputSpec | None

    @classmethod
    def of(cls, spec: PredictorSpec, state: State, batch_size: int) -> PredictJob:
        """Pickle the model and its weights once."""
        work = dumps((spec, state.for_answers()), "the model")
        return cls(hashlib.sha256(work).hexdigest(), work, batch_size, state.output)

    def __call__(self, x: Any) -> Any:
        """Return the outputs for a block of rows, as a tree of numpy arrays."""
        rows, size = rows_of(x), self.batch_size
        if not rows and self.output is not None:  # the rows' shapes may be unknown where there are none
            return self.output.example(0)
        predictor = self._predictor()
        if not rows:
            return _answer_nothing(predictor, x)
        return concatenate([_answer(predictor, cut_rows(x, slice(at, at + size))) for at in range(0, rows, size)])

    def takes(self, x: Any) -> bool:
        """Say whether these may be the model's inputs, as far as it can tell."""
        return self._predictor().takes(x)

    def spares(self, x: Any) -> bool:
        """Say whether the model can do without the last of these inputs, as far as it can tell."""
        return self._predictor().spares(x)

    def _predictor(self) -> Predictor:
        """Return the restored model, which is then the one that answered last."""
        gpu = _given_gpu()
        key = (self.key, gpu)
        predictor, size = _models.pop(key, (None, len(self.work)))
        if predictor is None:
            _make_room(size)
            protect_from_amx()  # also where there is no rank, as in Spark's Python workers
            spec, state = cloudpickle.loads(self.work)
            predictor = spec.open_predictor(state, gpu)
        _models[key] = (predictor, size)
        return cast(Predictor, predictor)


def outline_of(spec: PredictorSpec, state: State) -> bytes | None:
    """Return a digest that differs where the model does, many times faster than by pickling it.

    Outlines may be compared while their models are alive; None where there is none.
    """
    sketch = io.BytesIO()
    try:
        _Outline(sketch).dump((spec, state.for_answers()))
    except Exception:  # an error of pickling is reported where the model has to travel
        return None
    return hashlib.sha256(sketch.getbuffer()).digest()


class _Outline(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that writes of a tensor only which one it is, and a checksum of its numbers.

    The count of changes that torch keeps for a tensor would be cheaper, but misses those made through `.data`.
    """

    def persistent_id(self, thing: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(thing, torch.Tensor):
            return None
        try:
            numbers = thing.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        except (RuntimeError, TypeError):  # one of another kind, such as a sparse one, goes as it is
            return None
        return id(thing), str(thing.dtype), tuple(thing.shape), zlib.crc32(numbers)


def _given_gpu() -> str | None:
    """Return the GPU that Spark gave the task that runs here. Ray shows a task no other GPUs than its own."""
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.TaskContext.get()
    gpus = None if context is None else context.resources().get("gpu")
    return str(gpus.addresses[0]) if gpus is not None and gpus.addresses else None


def _answer(predictor: Predictor, x: Any) -> Any:
    """Return one answer for each row of a batch.

    A model that drops dimensions of size 1 drops that of the rows, too, where there is one row: it is asked with two.
    """
    rows, output = rows_of(x), predictor.predict(x)
    if rows == 1 and _answered(output) != {1}:
        both = predictor.predict(map_tree(lambda leaf: np.repeat(leaf, 2, axis=0), x))
        output = cut_rows(both, slice(0, 1)) if _answered(both) == {2} else output
    if _answered(output) != {rows}:
        arrays = " and ".join(f"an array of shape {np.shape(head)}" for head in flatten(output)[0])
        raise DataError(
            f"the model must answer once for each row; for {rows} row(s) it returned {arrays or 'nothing'}. "
            "Let its outputs have the rows as their first dimension, as many as its inputs have.",
            code="output-not-rows",
        )
    return output


def _answer_nothing(predictor: Predictor, x: Any) -> Any:
    """Return the answer for no rows of a model whose answers nobody has seen yet."""
    try:
        return _answer(predictor, x)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"there is no row to answer for, and the model takes no empty batch: {type(error).__name__}: {error}. Fit "
            "or evaluate first, so that its answers are known, or leave the call out where there are no rows.",
            code="no-rows",
        ) from error


def _answered(output: Any) -> set[int | None]:
    """Return for how many rows there are answers; None for an output without rows."""
    return {np.shape(head)[0] if np.ndim(head) else None for head in flatten(output)[0]}


def _make_room(size: int) -> None:
    """Let the models go that answered longest ago, until there is room for one of this many bytes."""
    count = len(_models)
    while _models and (len(_models) >= _KEPT or size + sum(own for _, own in _models.values()) > _KEPT_BYTES):
        del _models[next(iter(_models))]
    if len(_models) < count:
        gc.collect()  # models hold on to themselves in circles, and we need the memory now


def _resolved(metrics: Sequence[Metric], session: Session) -> tuple[Metric, ...]:
    """Return the metrics as they count for a model at work: its loss says what its outputs are."""
    return tuple(metric.resolved(session.output_link()) for metric in metrics)


def _epochs_before(state: State | None) -> int:
    """Return how many epochs were trained before the fit that begins or is resumed."""
    if state is None or state.position is None:
        return state.epoch if state else 0
    return Position.from_json(state.position).first_epoch


def _since(state: State | None, plan: FitPlan, train: Feed | StreamFeed) -> Position:
    """Return the position to begin at: after earlier fits, or within an interrupted one."""
    layout = train.layout
    if state is None or state.position is None:
        return Position(state.epoch if state else 0, state.steps if state else 0, 0, plan.seed, layout)
    since = Position.from_json(state.position)
    if since.step and since.layout != layout:
        logger.warning(
            "the fit that is resumed was interrupted after %d steps of an epoch, but the rows are dealt out "
            "otherwise now (%s, before %s): in this epoch some rows are seen twice and others not at all.",
            *(since.step, layout, since.layout),
        )
    return replace(since, layout=layout)


@contextmanager
def _writer(session: Session, plan: FitPlan, world: World) -> Iterator[CheckpointWriter | None]:
    """Give rank 0 the writer of the checkpoints that the plan asks for."""
    if (plan.checkpoint_trigger is None and not plan.stores) or world.rank:
        yield None
        return
    folder = plan.checkpoint_folder
    fs, place = filesystem(folder)
    if plan.checkpoint_visible and not fs.isdir(place):
        raise ArgumentError(
            f"model_dir must be on storage that the driver and all workers share: the folder {folder} of the "
            f"driver's machine is not there on {socket.gethostname()}, where rank 0 runs. Pass a path on shared "
            "storage, such as hdfs://..., s3://... or a mounted folder.",
            code="model-dir-not-shared",
        )

    def probe() -> None:
        with waiting_for_storage(f"a file is being written to {folder}"), probe_file(folder):
            pass  # an epoch may take hours: the user must know before that it cannot be kept

    try:
        retried(probe, f"checkpoint folder {folder} cannot be written to", plan.storage_timeout, may_pass)
    except Exception as error:
        raise OrcaError(
            f"checkpoints cannot be written to {folder}: {type(error).__name__}: {error}. Pass a model_dir that the "
            "first worker may write to.",
            code="checkpoint-not-writable",
        ) from error
    with CheckpointWriter(
        folder, session.write_state, prefix_in(folder), plan.checkpoint_keep, plan.storage_timeout
    ) as writer:
        yield writer


_KEPT, _KEPT_BYTES = 3, 1 << 30  # models a process keeps, and their bytes together, as they travelled
_models: dict[tuple[str, str | None], tuple[Any, int]] = {}  # the model that answered last is the last


def _check_ends(feed: Feed | StreamFeed | None, limit: int | None, name: str) -> None:
    if feed is not None and feed.endless and not limit:
        raise DataError(
            f"the data has no end (it repeats itself). Pass {name}=, or leave out repeat().", code="endless-data"
        )
