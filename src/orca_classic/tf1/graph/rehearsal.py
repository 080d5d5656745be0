"""Rehearsal: a step of a few rows, on one rank and on two uneven ones. Owns the proof that ranks train as one does.

No walk of a graph knows what every operation does with rows. So before the first step of a fit on several ranks, rank 0
takes a step of a few rows as one rank, and as two ranks in two threads: loss, gradients and written variables must be
the same, up to rounding, with the weights as they are and with others nearby. All of it happens in sessions of its own,
which leaves the variables, counters and random numbers of the fit alone. Random numbers are those of the two ranks on
the one rank, too, so that dropout and noise are no difference.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from orca.core.source import Batch
from orca.core.world import World
from orca.errors import ArgumentError, DataError
from orca.rows.tree import cut_rows, flatten, map_tree, unflatten
from orca_classic.tf1.graph.draws import with_fixed_draws
from orca_classic.tf1.graph.program import GraphProgram, tf

if TYPE_CHECKING:
    from orca_classic.tf1.graph.learner import GraphLearner

_ROWS = 16  # of a rehearsal at most
_CLOSE = 3e-5  # the difference that may be, as a share of the largest value
_NOISE = 20  # and how often that of the same rows in another order,
_MOST = 1e-3  # if that is not a larger share
ROWS_OF_SPARSE = "//rows"  # the suffix of a variable's name for the numbers of the rows that a sparse gradient has


def rehearse(learner: GraphLearner, batch: Batch) -> bool:
    """Return whether a rehearsal was possible with the first rows of the ranks; all ranks call it together.

    Raises:
        ArgumentError: Several ranks would train otherwise than one does.
        DataError: The graph cannot compute these rows.
    """
    rows = _rows_of_ranks(learner, batch)
    found: Any = None
    if not learner.world.rank and rows is not None:
        try:
            found = _difference(learner, *rows)
        except DataError as error:
            raise DataError(
                f"{error}\nThis was a trial with a few rows, before the fit. A graph for a fixed number of rows needs "
                'loss_reduction="mean" (or "sum") in from_graph, which leaves the trial out.'
            ) from None
    verdict = learner.world.broadcast(found)
    if verdict:
        names = ", ".join(repr(part.name) for part in learner.program.loss)
        raise ArgumentError(
            f"the loss {names} takes rows together: {learner.world.size} workers, of which each has a part of the "
            f"rows, would not train as one does ({verdict}). Make it a mean or a sum of one value a row that needs no "
            'other rows, train with one worker, or pass loss_reduction="mean" (or "sum") to from_graph to take it as '
            "that of each worker's own rows."
        )
    return verdict is not None


def _rows_of_ranks(learner: GraphLearner, batch: Batch) -> tuple[Any, Any] | None:
    """Return some rows of all ranks on rank 0, finite ones if there are any; None if there are no two."""
    count = min(batch.rows, _ROWS)
    mine = cut_rows((batch.x, () if batch.y is None else batch.y), slice(0, count)) if count else None
    travels = mine is not None and all(np.asarray(leaf).dtype != object for leaf in flatten(mine)[0])
    ranks = learner.world.gather(mine if travels else None)
    if ranks is None:
        return None
    parts = [mine if rank == learner.world.rank else item for rank, item in enumerate(ranks)]
    parts = [part for part in parts if part is not None]
    if not parts:
        return None
    share = -(-_ROWS // len(parts))
    leaves = [flatten(cut_rows(part, slice(0, share)))[0] for part in parts]
    arrays = [np.concatenate([np.asarray(array) for array in same]) for same in zip(*leaves, strict=True)]
    good = np.ones(len(arrays[0]), bool)
    for array in arrays:
        if array.dtype.kind == "f":
            good &= np.isfinite(array).reshape(len(array), -1).all(axis=1)
    arrays = [array[good] for array in arrays] if good.any() else arrays
    if len(arrays[0]) < 2:
        return None
    x, y = unflatten(flatten(parts[0])[1], arrays)
    return x, None if isinstance(y, tuple) and not y else y


def _difference(learner: GraphLearner, x: Any, y: Any) -> str:
    """Return how two ranks differ from one; "" if they do not."""
    rows = len(flatten(x)[0][0])
    cut = max(2 if rows > 3 else 1, rows // 3)  # a graph may squeeze a single row away
    order = np.arange(rows)
    first, second = order[:cut], np.concatenate([order[cut:], order[: max(1, cut // 2)]])  # with a row of the other
    if len(first) == len(second):
        second = np.concatenate([second, order[:1]])

    def batch(*pieces: np.ndarray, of: int = 0) -> Batch:
        index = np.concatenate(pieces)
        taken = map_tree(lambda leaf: np.asarray(leaf)[index], (x, () if y is None else y))
        return Batch(taken[0], None if y is None else taken[1], len(index), of or len(index))

    step = len(first) + len(second)
    stage = _Stage(learner)
    try:
        pieces = [batch(first, of=step), batch(second, of=step)]
        for weights in _places(learner.weights(), {spec.variable for spec in learner.program.gradients}):
            for turn in _turns(learner.program):
                text = stage.difference(weights, turn, pieces, [batch(first, second), batch(second, first)])
                if text:
                    return text
        return ""
    finally:
        stage.close()


def _places(weights: dict[str, np.ndarray], trained: set[str]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the weights, and others nearby, with which what was idle may be at work."""
    yield weights
    generator = np.random.default_rng(0)
    noise = {
        name: generator.normal(size=array.shape) * max(np.abs(array).mean(), 0.1)
        for name, array in weights.items()
        if name in trained and array.size
    }
    yield weights | {name: weights[name] + noise[name].astype(weights[name].dtype) for name in noise}


def _turns(program: GraphProgram) -> list[int]:
    """Return the number of a step of each optimizer that takes turns."""
    starts = np.cumsum([0, *(turn.steps for turn in program.turns)])
    return [int(start) for start in starts[:-1]] or [0]


@dataclass(frozen=True)
class _Rehearsed:
    """The results of a step: loss and gradients of the mean, and what each rank wrote into variables."""

    loss: float
    gradients: dict[str, np.ndarray] = field(repr=False)
    written: tuple[dict[str, np.ndarray], ...] = field(repr=False)


class _Stage:
    """Three replicas of a learner: one rank, and two that meet."""

    def __init__(self, learner: GraphLearner) -> None:
        config = tf.ConfigProto.FromString(learner.session_config)
        config.MergeFrom(tf.ConfigProto(inter_op_parallelism_threads=-1))  # two sessions that wait share no threads
        program = replace(learner.program, graph=with_fixed_draws(learner.program.graph))
        pair = _Pair()
        self.replicas = []
        for world in (_PairWorld(None, 0, 1), _PairWorld(pair, 0, 2), _PairWorld(pair, 1, 2)):
            spec = replace(learner, program=program, session_config=config.SerializeToString())
            replica = spec.copy_for(cast(World, world), learner.seed)
            replica.set_weights(learner.weights())
            self.replicas.append(replica)
        self.pair = pair

    def difference(
        self, weights: dict[str, np.ndarray], turn: int, pieces: Sequence[Batch], wholes: Sequence[Batch]
    ) -> str:
        """Return how the step of two ranks differs from that of one; "" if it does not, as far as can be told."""
        one, *two = self.replicas
        for replica in self.replicas:
            replica.take_turn(turn, {})
        draws = self._draws(weights, pieces, wholes[0])
        results = []
        for whole, order in zip(wholes, (1, -1), strict=True):
            one.take_turn(turn, {name: draw.joined(order) for name, draw in draws.items()})
            results.append(_taken([self._step(one, weights, whole)]))
        for at, replica in enumerate(two):
            replica.take_turn(turn, {name: draw.parts[at] for name, draw in draws.items()})
        steps = self._together(lambda at: self._step(two[at], weights, pieces[at]))
        return _compared(results[0], results[1], _taken(steps))

    def close(self) -> None:
        """Close the sessions."""
        for replica in self.replicas:
            replica.close()

    @staticmethod
    def _step(replica: GraphLearner, weights: dict[str, np.ndarray], batch: Batch) -> tuple[float, float, Any, Any]:
        replica.set_weights(weights)
        total, mass, gradients = replica.loss_and_gradients(batch)
        return total, mass, gradients, replica.values.read(replica.program.written)

    def _draws(self, weights: dict[str, np.ndarray], pieces: Sequence[Batch], whole: Batch) -> dict[str, _Draw]:
        """Return what the two ranks are to draw: each its own, or the same where one rank draws no more than each."""
        names = self.replicas[0].program.draws
        if not names:
            return {}

        def drawn(replica: GraphLearner, batch: Batch) -> list[Any]:
            replica.set_weights(weights)
            return replica.fetch("draws", names, batch, training=True)

        parts = self._together(lambda at: drawn(self.replicas[1 + at], pieces[at]))
        draws: dict[str, _Draw] = {}
        for name, first, second, both in zip(names, *parts, drawn(self.replicas[0], whole), strict=True):
            axis = _axis(first, second, np.shape(both))
            if axis is not None:
                draws[name] = _Draw((first, second), axis)
            elif np.shape(first) == np.shape(second) == np.shape(both):
                draws[name] = _Draw((first, first), None)
        return draws

    def _together(self, work: Callable[[int], Any]) -> list[Any]:
        """Return the results of work on both ranks, each in a thread."""
        self.pair.barrier.reset()

        def run(at: int) -> Any:
            try:
                return work(at)
            except BaseException:
                self.pair.barrier.abort()  # the other rank must not wait
                raise

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(run, at) for at in range(2)]
            errors = [future.exception() for future in futures]
        for error in sorted(filter(None, errors), key=lambda each: isinstance(each, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]


@dataclass(frozen=True)
class _Draw:
    """The random numbers of two ranks, and the axis of their rows; None for numbers that are no row's."""

    parts: tuple[Any, Any]
    axis: int | None

    def joined(self, order: int) -> Any:
        """Return those of one rank that has the rows of both, in their order (1) or the other one's first (-1)."""
        return self.parts[0] if self.axis is None else np.concatenate(self.parts[::order], self.axis)


class _Pair:
    """The place where two ranks in two threads meet."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.arrays: list[Any] = [None, None]


@dataclass
class _PairWorld:
    """The world of a rank without others, or of one of two in one process; of a World, as much as a step needs."""

    pair: _Pair | None
    rank: int
    size: int

    def all_reduce(self, arrays: Sequence[np.ndarray], how: str = "mean") -> list[np.ndarray]:
        """Return the sums over the ranks."""
        if self.pair is None:
            return [np.array(array) for array in arrays]
        self.pair.arrays[self.rank] = [np.array(array) for array in arrays]
        self.pair.barrier.wait()
        sums = [a + b for a, b in zip(*self.pair.arrays, strict=True)]
        self.pair.barrier.wait()
        return sums


def _taken(parts: Sequence[tuple[float, float, Any, Any]]) -> _Rehearsed:
    """Return the step that ranks take with these parts of it."""
    mass = sum(part[1] for part in parts)
    names = dict.fromkeys(name for part in parts for name in part[2] if not name.endswith(ROWS_OF_SPARSE))
    gradients = {
        name: np.sum([np.asarray(part[2][name], np.float64) for part in parts if name in part[2]], axis=0) / mass
        for name in names
    }
    return _Rehearsed(sum(part[0] for part in parts) / mass, gradients, tuple(part[3] for part in parts))


def _compared(whole: _Rehearsed, turned: _Rehearsed, ranks: _Rehearsed) -> str:
    """Return what differs between a step of one rank and that of several; "" where nothing does, or none can tell.

    Args:
        whole: The step of one rank.
        turned: The same of the same rows in another order, which shows what rounding does.
        ranks: The step of several ranks.
    """
    largest = max((np.abs(array).max(initial=0.0) for array in whole.gradients.values()), default=0.0)
    if not np.isfinite(whole.loss) or not np.isfinite(largest):
        return ""
    if _differs(whole.loss, turned.loss, ranks.loss):
        return f"a loss of {ranks.loss:.6g} for {whole.loss:.6g}"
    for name, gradient in whole.gradients.items():
        noisy, other = (step.gradients.get(name, np.zeros(gradient.shape)) for step in (turned, ranks))
        if _differs(gradient, noisy, other, floor=1e-6 * largest):
            return f"other gradients of {name!r}"
    for name, value in whole.written[0].items():
        for of_rank in ranks.written:
            if _differs(value, turned.written[0][name], of_rank[name]):
                return f"another value of the variable {name!r}, which the step writes"
    return ""


def _differs(whole: Any, turned: Any, other: Any, floor: float = 1e-7) -> bool:
    """Return whether a value is another one, by more than rounding explains."""
    one, noisy, rest = (np.asarray(value, np.float64) for value in (whole, turned, other))
    scale = np.abs(one).max(initial=0.0)
    noise = np.abs(one - noisy).max(initial=0.0)
    if not np.isfinite(noise):
        return False
    allowed = _CLOSE * scale + floor + min(_NOISE * noise, _MOST * scale)
    return not np.abs(one - rest).max(initial=0.0) <= allowed


def _axis(first: Any, second: Any, whole: tuple[int, ...]) -> int | None:
    """Return the axis along which two arrays make one of a shape; None if there is none."""
    shapes = np.shape(first), np.shape(second)
    if len({len(whole), *map(len, shapes)}) > 1:
        return None
    unlike = [at for at, sizes in enumerate(zip(*shapes, whole, strict=True)) if len(set(sizes)) > 1]
    is_joined = len(unlike) == 1 and shapes[0][unlike[0]] + shapes[1][unlike[0]] == whole[unlike[0]]
    return unlike[0] if is_joined else None
