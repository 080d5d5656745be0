"""GraphLearner: a graph of TensorFlow 1 on one rank. Owns its session: feeds and fetches.

A step is two runs of the session: the forward pass with the gradients of this rank's rows, and the step of the user's
own optimizer, to which the mean of the gradients over all ranks is fed. The variables of the optimizer are part of the
state. An optimizer of `orca_classic.bigdl.optimizers` steps outside of the graph, on torch's parameters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from tensorflow.core.protobuf.config_pb2 import CallableOptions

from orca.core.array_learner import ArrayLearner, Arrays
from orca.core.array_session import ArraySession
from orca.core.metrics import Metric
from orca.core.session import Evaluation
from orca.core.source import Batch
from orca.core.state import Losses, State
from orca.core.world import World
from orca.errors import ArgumentError, DataError
from orca.rows.tree import cut_rows, flatten, unflatten
from orca_classic.tf1.graph.draws import reseed
from orca_classic.tf1.graph.norms import let_ranks_meet
from orca_classic.tf1.graph.optimizers import MethodsByPrefix
from orca_classic.tf1.graph.program import GraphProgram, Part, Turn, VariableSpec, quiet, tf
from orca_classic.tf1.graph.rehearsal import ROWS_OF_SPARSE, rehearse
from orca_classic.tf1.graph.scores import PartTally, TensorMetric, undivided
from orca_classic.tf1.graph.terms import JOINT, ROWS, SUM


class GraphSession(ArraySession):
    """A graph at work on one rank."""

    learner: GraphLearner

    @contextmanager
    def evaluation(self, metrics: Sequence[Metric]) -> Iterator[Evaluation]:
        """Open an evaluation."""
        with self.learner.preserving():
            yield GraphEvaluation(self, metrics)

    def state(self) -> State:
        """Return the values of all variables, and the form of outputs if the inputs are enough for them."""
        if not self.learner.program.answers:
            self.sample = None
        return super().state()

    def _gradients(self, batch: Batch) -> tuple[float, float, Arrays]:
        """Return this rank's loss, its divisor and gradients in a step, which may be the first one."""
        self.learner.rehearse(batch)
        return super()._gradients(batch)


class GraphEvaluation(Evaluation):
    """An evaluation of a graph, which fetches loss, metrics and outputs at once.

    Args:
        session: Its session.
        metrics: The metrics to feed.
    """

    def __init__(self, session: GraphSession, metrics: Sequence[Metric]) -> None:
        program = session.learner.program
        self.session, self.losses = session, Losses()
        self.others = [metric for metric in metrics if not isinstance(metric, TensorMetric)]
        self.heads, self.structure = _flat(program.outputs)
        self.targets, self.form = _flat(program.targets)
        self.tallies = {m: PartTally(program.metrics[m.tensor]) for m in metrics if isinstance(m, TensorMetric)}
        self.joint_loss = [PartTally(part) for part in program.loss if part.kind == JOINT]
        self.mixing: list[str] = []  # the scalars that a batch cannot be divided for
        self.batch: Batch | None = None  # the last one

    def step(self, batch: Batch, step: int) -> None:
        """Fetch loss and metrics of this rank's rows."""
        learner, program = self.session.learner, self.session.learner.program
        rows = self.session.true_rows(batch) if batch.rows else batch
        if self.batch is None:
            self._find_mixing(rows)
        wrong = [metric.name for metric, tally in self.tallies.items() if tally.part.name in self.mixing]
        if wrong and (self.batch is not None or self.session.world.size > 1):
            raise _mixing_metric(wrong[0])
        self.batch = batch
        parts = [replace(part, kind=ROWS) if part.name in self.mixing else part for part in program.loss]
        names = [name for part in parts for name in part.fetches]
        names += [name for tally in self.tallies.values() for name in (tally.part.fetches)]
        names += [tally.part.name for tally in self.tallies.values() if tally.part.name in self.mixing]
        names = list(dict.fromkeys((*names, *self.heads, *self.targets) if self.others else names))
        values = dict(zip(names, learner.fetch(f"evaluate {self.mixing}", names, rows, training=False), strict=True))
        total = 0.0
        if batch.rows:
            for tally in (*self.joint_loss, *self.tallies.values()):
                tally.add(values, batch.rows)
            outputs = unflatten(self.structure, [values[name] for name in self.heads]) if self.others else None
            has_targets = self.others and self.targets
            y = unflatten(self.form, [values[name] for name in self.targets]) if has_targets else rows.y
            for metric in self.others:
                metric.update(outputs, y)
            weights = [float(batch.step_rows if part.kind == SUM else batch.rows) for part in parts]
            linear = [(w, part.name) for w, part in zip(weights, parts, strict=True) if part.kind != JOINT]
            total = float(sum(weight * np.sum(values[name]) for weight, name in linear))
        self.losses.add(total, float(batch.rows), batch.rows)

    def result(self) -> Losses:
        """Update the metrics of the graph with what was tallied; return the losses with those of a joint loss."""
        if self.batch is None:
            return self.losses
        learner, world, losses = self.session.learner, self.session.world, self.losses
        joint = [tally for tally in (*self.joint_loss, *self.tallies.values()) if tally.part.kind == JOINT]
        ranks = world.all_gather([(tally.totals, tally.counts) for tally in joint]) if joint else []
        scores = {}
        for at, tally in enumerate(joint):
            tally.merge(states[at] for states in ranks)
            feeds = {} if tally.part.name in self.mixing else tally.feeds
            scores[tally.part.name] = learner.value_of(tally.part, self.batch, feeds)
        for metric, tally in self.tallies.items():
            value, weight = (scores[tally.part.name], 1.0) if tally.part.name in scores else (tally.total, tally.weight)
            metric.update(np.array([value]), np.array([weight]))
        total = sum(scores[tally.part.name] for tally in self.joint_loss)
        return replace(losses, loss_sum=losses.loss_sum + total * losses.rows)

    def _find_mixing(self, rows: Batch) -> None:
        """Find the scalars that the first batch cannot be divided for.

        Raises:
            ArgumentError: The loss is one of them, and there are several ranks.
        """
        learner, size = self.session.learner, self.session.world.size
        loss_parts = () if learner.program.is_claimed else learner.program.loss
        self.mixing = learner.undivided([*loss_parts, *(tally.part for tally in self.tallies.values())], rows)
        if size > 1 and (names := [part.name for part in loss_parts if part.name in self.mixing]):
            raise _mixing_loss(names[0], size)
        self.joint_loss = [tally for tally in self.joint_loss if tally.part.name not in self.mixing]


def _flat(tree: Any) -> tuple[list[Any], Any]:
    return ([], None) if tree is None else flatten(tree)


@dataclass
class GraphLearner(ArrayLearner):
    """A graph that learns. The fields travel to a rank; the session is opened there.

    Attributes:
        program: The graph, and the names of its feeds and fetches.
        method: An optimizer of `orca_classic.bigdl.optimizers`; None where the graph has its own.
        clip_norm: The largest norm that all gradients together may have.
        clip_value: The least and the largest value of a gradient.
        session_config: A serialized ConfigProto.
    """

    program: GraphProgram
    method: Any = None
    clip_norm: float | None = None
    clip_value: tuple[float, float] | None = None
    session_config: bytes = b""
    framework = "tensorflow graph"
    session_type: ClassVar[type[ArraySession]] = GraphSession

    def build(self, state: State) -> Any:
        """Return the values of the variables by name: the graph itself is the user's."""
        return state.payload["models"][0]

    def check_trainable(self) -> None:
        """Check that there is a loss and something to lower it with."""
        if not self.program.gradients:
            raise ArgumentError("fit needs a loss and an optimizer. Pass loss= and optimizer= to from_graph.")

    def check_state(self, state: State, name: str) -> None:
        """Check that a state has the variables of the graph."""
        arrays = state.payload["models"][0]
        specs = [spec for spec in self.program.variables if spec.name not in self.program.slots]
        missing = [spec.name for spec in specs if spec.name not in arrays]
        if missing:
            raise ArgumentError(f"{name} has no values of the variables {missing}; it has {sorted(arrays)}.")
        for spec in specs:
            shape = np.shape(arrays[spec.name])
            if shape != spec.shape:
                raise ArgumentError(f"the variable {spec.name!r} has the shape {spec.shape}, but {shape} in {name}.")

    def initial_state(self, seed: int) -> State:
        """Return the values that the initializers of the graph draw."""
        learner = self.copy_for(None, seed)
        learner.session.run([spec.initializer for spec in self.program.variables])
        return learner.copied_state()

    # On a rank.

    def make(self) -> None:
        """Open the session."""
        program = self.program
        graph = tf.Graph()
        with graph.as_default(), quiet():
            definition = tf.GraphDef.FromString(program.graph)
            reseed(definition, self._streams())
            self.sums = RankSums(self.world)
            if program.active and self._ranks() > 1:
                let_ranks_meet(definition, self.sums.add)
            try:
                tf.import_graph_def(definition, name="")
            except (ValueError, tf.errors.NotFoundError) as error:
                raise ArgumentError(f"the graph cannot be read on this worker: {error}") from error
        self.session = tf.Session(graph=graph, config=_config(self.session_config))
        for name in program.setup:
            self.session.run(name)
        self.values = Values(self.session, program.variables)
        self.calls: dict[str, Callable[..., Any]] = {}
        self.slots = sorted(program.slots & self.values.specs.keys())
        self.weight_names = sorted(self.values.specs.keys() - program.slots)
        self.dense = _templates(program)
        self.torch: Any = None
        self.take_turn(0, {})
        self.is_rehearsed = program.is_claimed or self._ranks() == 1

    def take_turn(self, steps: int, draws: Mapping[str, Any]) -> None:
        """Go on after so many steps of the optimizer, with these random numbers in place of those of the graph."""
        self.steps, self.draws = steps, draws

    def weights(self) -> dict[str, np.ndarray]:
        """Return the values of all variables but those of the optimizer."""
        return self.values.read(self.weight_names)

    def set_weights(self, weights: Arrays) -> None:
        """Give variables their values."""
        self.values.write({name: weights[name] for name in self.weight_names if name in weights})
        self.torch = None

    def templates(self) -> Arrays:
        """Return an array in the shape of each gradient, without asking the session."""
        return self.dense

    def optimizer_state(self) -> dict[str, Any]:
        """Return the variables of the optimizer, or the state of one that steps outside of the graph."""
        if self.method is None:
            return {"slots": self.values.read(self.slots), "steps": self.steps}
        return {"torch": self._stepper()[1].state_dict(), "steps": self.steps}

    def set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Take over the result of `optimizer_state`."""
        self.steps = int(state.get("steps", 0))
        if slots := state.get("slots"):
            self.values.write({name: slots[name] for name in self.slots if name in slots})
        if self.method is not None and state.get("torch"):
            self._stepper()[1].load_state_dict(state["torch"])

    def learning_rates(self) -> list[float]:
        """Return the learning rate of the next step."""
        if self.method is not None:
            return [float(group["lr"]) for group in self._stepper()[1].param_groups if "lr" in group]
        rate = self.program.rate
        if isinstance(rate, str):
            names, values = self._fed()
            (rate,) = self._call("rate", [rate], names)(*values, *self._drawn())
        return [] if rate is None else [float(rate)]

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate, where the optimizer keeps it in a variable, as those of Keras do.

        Raises:
            ArgumentError: It does not.
        """
        name = str(self.program.rate).partition(":")[0].partition("/Read")[0]
        if name not in self.values.specs:
            raise ArgumentError(
                "the learning rate of this optimizer is no variable, so no callback can change it. Take an optimizer "
                "of Keras, or a schedule of tf.train."
            )
        self.values.write({name: rate})

    def outputs(self, x: Any) -> Any:
        """Return the outputs for rows."""
        names, structure = flatten(self.program.outputs)
        arrays = _arranged(self.program.inputs, x, "x")
        feeds = [name for name, *_ in self.program.feeds]
        call = self._call("outputs", names, [port.name for port in flatten(self.program.inputs)[0]] + feeds)
        with self.preserving():
            answers = call(*arrays, *(value for *_, value in self.program.feeds), *self._drawn())
        return unflatten(structure, list(map(np.asarray, answers)))

    def takes(self, x: Any) -> bool:
        """Say whether there are as many inputs as the graph has."""
        return len(flatten(x)[0]) == len(flatten(self.program.inputs)[0])

    def loss(self, outputs: Any, batch: Batch) -> tuple[float, float]:
        """Return this rank's part of the loss, and its rows."""
        raise NotImplementedError("evaluate fetches outputs, loss and metrics at once")

    def loss_and_gradients(self, batch: Batch) -> tuple[float, float, Arrays]:
        """Return this rank's part of the loss, its rows, and the gradients of that part."""
        total, values = self._step(batch)
        gradients: dict[str, np.ndarray] = {}
        for spec in self.program.gradients:
            gradient = values[spec.values]
            if spec.indices is None:
                gradients[spec.variable] = gradient
                continue
            rows = np.zeros_like(self.dense[spec.variable])
            counts = np.zeros_like(self.dense[spec.variable + ROWS_OF_SPARSE])
            np.add.at(rows, values[spec.indices], gradient)
            counts[values[spec.indices]] = 1.0
            gradients[spec.variable], gradients[spec.variable + ROWS_OF_SPARSE] = rows, counts
        return total, float(batch.rows), gradients

    def idle(self, batch: Batch) -> None:
        """Take the step along, where ranks meet within it, or variables are written."""
        if self.program.active or self.program.written:
            self._step(batch)

    def apply(self, gradients: Arrays) -> None:
        """Take a step of the optimizer."""
        gradients = self._clipped(gradients)
        if self.method is not None:
            self._step_outside(gradients)
            self.steps += 1
            return
        feeds: dict[str, np.ndarray] = {}
        turn = self._turn()
        apply = self.program.apply if turn is None else turn.apply
        for spec in self.program.gradients:
            if turn is not None and spec.variable not in turn.variables:
                continue
            gradient = gradients[spec.variable]
            if spec.indices_port is not None:
                rows = np.flatnonzero(gradients[spec.variable + ROWS_OF_SPARSE])
                kind = self.session.graph.get_tensor_by_name(spec.indices_port).dtype.as_numpy_dtype
                feeds[spec.indices_port], gradient = rows.astype(kind), gradient[rows]  # a callable casts nothing
            feeds[spec.port] = gradient
        names, values = self._fed()
        self._call(f"apply {apply}", [apply], [*feeds, *names])(*feeds.values(), *values, *self._drawn())
        self.steps += 1

    def value_of(self, part: Part, batch: Batch, feeds: Mapping[str, Any], joined: bool = True) -> float:
        """Return a scalar's value for a batch, or for the totals that are fed."""
        for name in self.program.setup:  # local variables, in which metrics of tf.metrics count
            if self.session.graph.as_graph_element(name).type.startswith("Assign"):
                self.session.run(name)
        (value,) = self.fetch(f"score {part.name}", [part.name], batch, False, (), feeds, joined)
        return float(np.sum(value))

    def undivided(self, parts: Sequence[Part], batch: Batch) -> list[str]:
        """Return the names of the scalars that a batch cannot be divided for, as far as two pieces of one tell."""
        program = self.program
        if batch.rows < 5 or program.has_statistics or program.draw:  # then two pieces are no batch
            return []

        def fetch(names: list[str], cut: slice) -> list[Any]:
            count = len(range(*cut.indices(batch.rows)))
            x, y = cut_rows(batch.x, cut), None if batch.y is None else cut_rows(batch.y, cut)
            piece = replace(batch, x=x, y=y, rows=count)
            return self.fetch(f"piece {names}", names, piece, training=False, joined=False)

        return undivided(parts, fetch, lambda part, feeds: self.value_of(part, batch, feeds, False), batch.rows)

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Tell an optimizer of `orca_classic.bigdl.optimizers` that an epoch has ended, for its schedule."""
        if self.method is not None:
            names = [f"val_{metric.lower()}" for metric in self.program.metrics]
            score = next((line[name] for name in names if name in line), None)
            self._stepper()[1].end_epoch(line.get("val_loss", line["train_loss"]), score)

    def close(self) -> None:
        """Close the session."""
        self.calls.clear()
        self.session.close()

    def rehearse(self, batch: Batch) -> None:
        """Try before the first step whether ranks train as one process does; all ranks call it together."""
        if not self.is_rehearsed:
            self.is_rehearsed = rehearse(self, batch)

    def _step(self, batch: Batch) -> tuple[float, dict[str, Any]]:
        """Run the forward pass and the gradients; return this rank's part of the loss, and the fetched values."""
        names = [self.program.total]
        names += [name for spec in self.program.gradients for name in (spec.values, spec.indices) if name]
        turn = self._turn()
        shares = [
            0.0 if not batch.rows or (turn is not None and part.name not in turn.terms)
            else float(batch.step_rows if part.kind == SUM else batch.rows)
            for part in self.program.loss
        ]  # fmt: skip
        more = {self.program.shares: np.array(shares, np.float32)}
        values = self.fetch("train", names, batch, True, self.program.updates, more)
        return float(values[0]), dict(zip(names, values, strict=True))

    @contextmanager
    def preserving(self) -> Iterator[None]:
        """Undo what the forward pass writes into variables: only steps of training may."""
        before = self.values.read(self.program.written) if self.program.written else {}
        yield
        if before:
            self.values.write(before)

    def _fed(self) -> tuple[list[str], list[Any]]:
        """Return the tensors that are fed in training besides the rows, and their values: a learning rate, say."""
        return [name for name, *_ in self.program.feeds], [value for _, value, _ in self.program.feeds]

    def _turn(self) -> Turn | None:
        """Return whose turn the next step is, where several optimizers take turns."""
        at = self.steps % (sum(turn.steps for turn in self.program.turns) or 1)
        for turn in self.program.turns:
            if at < turn.steps:
                return turn
            at -= turn.steps
        return None

    def fetch(
        self,
        purpose: str,
        names: Sequence[str],
        batch: Batch,
        training: bool,
        operations: Sequence[str] = (),
        more: Mapping[str, np.ndarray] | None = None,
        joined: bool = True,
    ) -> list[Any]:
        """Run the session on a batch's rows; with the other ranks where they meet within it, unless it is a trial."""
        program, more = self.program, {**(more or {}), **self.draws}
        if program.active:
            more[program.active] = np.array(batch.rows > 0, np.float64)
        arrays = _arranged(program.inputs, batch.x, "x")
        ports = flatten(program.inputs)[0]
        if program.labels is not None:
            if batch.y is None:
                raise DataError("the graph takes labels, and the data has none. Pass (x, y), or label_cols=.")
            arrays += _arranged(program.labels, batch.y, "y")
            ports = ports + flatten(program.labels)[0]
        feeds = [port.name for port in ports] + [name for name, *_ in program.feeds] + list(more)
        values = [value[0 if training else 1] for _, *value in program.feeds]
        call = self._call(purpose, [*names, *operations], feeds)
        try:
            with self.sums.joined(joined):
                return call(*arrays, *values, *more.values(), *self._drawn())
        except tf.errors.OpError as error:
            if self.sums.error is not None:  # of which TensorFlow has kept only the text
                raise self.sums.error from None
            if not isinstance(error, tf.errors.InvalidArgumentError):
                raise
            raise DataError(f"the graph cannot compute a batch of {batch.rows} rows: {error.message}") from error

    def _ranks(self) -> int:
        return 1 if self.world is None else self.world.size

    def _streams(self) -> int:
        """Return a number by which draws that count for themselves differ between ranks, and from fit to fit."""
        return 0 if self.world is None else self.world.rank + self.world.size * self.steps_before

    def _call(self, purpose: str, fetches: Sequence[str], feeds: Sequence[str]) -> Callable[..., list[Any]]:
        """Return a function of the session, made when it is first asked for: far cheaper to call than `run` is.

        It returns the tensors among the fetches; operations among them run along.
        """
        key = f"{purpose}/{len(feeds)}"
        if key not in self.calls:
            graph = self.session.graph
            tensors = [name for name in fetches if hasattr(graph.as_graph_element(name), "dtype")]
            ports = [*feeds, *([self.program.draw] if self.program.draw else [])]
            distinct = [name for name in dict.fromkeys(tensors) if name not in ports]
            targets = [name for name in fetches if name not in tensors]
            options = CallableOptions(fetch=distinct, target=targets, feed=ports)
            kinds = [graph.as_graph_element(name).dtype.as_numpy_dtype for name in ports]
            names = [*ports, *distinct]
            places = [names.index(name) for name in tensors]
            run = self.session._make_callable_from_options(options) if distinct or targets else None

            def call(*values: Any) -> list[Any]:
                arrays = [np.asarray(value, kind) for value, kind in zip(values, kinds, strict=True)]
                both = [*arrays, *(run(*arrays) if run else ())]  # a tensor that is fed is its own result
                return [both[at] for at in places]

            self.calls[key] = call
        return self.calls[key]

    def _drawn(self) -> list[np.ndarray]:
        """Return the seeds of this step's draws, where the graph draws: of this rank, and of all ranks."""
        if not self.program.draw:
            return []
        common = np.random.default_rng((self.seed, self.steps))
        return [np.stack([each.integers(2**62, size=2) for each in (self.generator, common)])]

    def _clipped(self, gradients: Arrays) -> dict[str, np.ndarray]:
        arrays = dict(gradients)
        names = [spec.variable for spec in self.program.gradients]
        if self.clip_value is not None:
            arrays |= {name: np.clip(arrays[name], *self.clip_value) for name in names}
        if self.clip_norm is not None:
            norm = np.sqrt(sum(float(np.square(arrays[name], dtype=np.float64).sum()) for name in names))
            if norm > self.clip_norm:
                arrays |= {name: arrays[name] * arrays[name].dtype.type(self.clip_norm / norm) for name in names}
        return arrays

    def _stepper(self) -> tuple[dict[str, Any], Any]:
        """Return torch parameters with the values of the trained variables, and the optimizer that steps them."""
        if self.torch is None:
            import torch

            values = self.values.read([spec.variable for spec in self.program.gradients])
            parameters = {name: torch.nn.Parameter(torch.from_numpy(np.array(v))) for name, v in values.items()}
            own = parameters if isinstance(self.method, MethodsByPrefix) else list(parameters.values())
            self.torch = parameters, self.method.build(own)
        return self.torch

    def _step_outside(self, gradients: Arrays) -> None:
        import torch

        parameters, optimizer = self._stepper()
        for name, parameter in parameters.items():
            parameter.grad = torch.from_numpy(np.ascontiguousarray(gradients[name])).to(parameter.dtype)
        optimizer.step()
        self.values.write({name: parameter.detach().numpy() for name, parameter in parameters.items()})


class RankSums:
    """The sums over ranks in the middle of a run of a session.

    Args:
        world: The ranks; None for a rank without others.
    """

    def __init__(self, world: World | None) -> None:
        self.world = world
        self.is_joined = False
        self.error: BaseException | None = None

    @contextmanager
    def joined(self, is_joined: bool) -> Iterator[None]:
        """Sum over all ranks while a block runs; other runs, such as predictions, are those of one rank."""
        self.is_joined = is_joined
        try:
            yield
        finally:
            self.is_joined = False

    def add(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of an array over the ranks."""
        if not self.is_joined or self.world is None:
            return array
        try:
            return self.world.all_reduce([array], "sum")[0]
        except BaseException as error:
            self.error = error
            raise


class Values:
    """The values of a session's variables, by name.

    Args:
        session: The session.
        specs: The variables.
    """

    def __init__(self, session: Any, specs: Sequence[VariableSpec]) -> None:
        self.session = session
        self.specs = {spec.name: spec for spec in specs}

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return values."""
        arrays = self.session.run({name: self.specs[name].value for name in names})
        return {name: np.asarray(value) for name, value in arrays.items()}

    def write(self, values: Mapping[str, Any]) -> None:
        """Set values: by the initializers, so that the graph need not grow."""
        rest = dict(values)
        while rest:
            feeds: dict[str, Any] = {}
            names = []
            for name, value in rest.items():
                spec = self.specs[name]
                if spec.initial not in feeds:  # variables may share the tensor that they begin with
                    feeds[spec.initial] = np.asarray(value, spec.dtype).reshape(spec.shape)
                    names.append(name)
            self.session.run([self.specs[name].initializer for name in names], feeds)
            rest = {name: value for name, value in rest.items() if name not in names}


def _templates(program: GraphProgram) -> dict[str, np.ndarray]:
    """Return arrays that take no memory, in the shapes of the gradients."""
    specs = {spec.name: spec for spec in program.variables}
    arrays = {}
    for gradient in program.gradients:
        spec = specs[gradient.variable]
        arrays[spec.name] = np.broadcast_to(np.zeros((), spec.dtype), spec.shape)
        if gradient.indices is not None:
            arrays[spec.name + ROWS_OF_SPARSE] = np.broadcast_to(np.zeros((), np.float32), spec.shape[:1])
    return arrays


def _arranged(ports: Any, tree: Any, what: str) -> list[np.ndarray]:
    """Return the arrays of x or y in the order of the ports, each as its port takes it."""
    if isinstance(ports, list | tuple) and isinstance(tree, dict):
        ports_by_name = {port.name.partition(":")[0]: port for port in flatten(ports)[0]}
        ports = ports_by_name if ports_by_name.keys() & tree.keys() else ports  # the inputs of a Keras model have names
    if isinstance(ports, dict) and isinstance(tree, dict):
        if missing := [name for name in ports if name not in tree]:
            raise DataError(f"{what} has no {missing[0]!r}; it has {sorted(tree)}. Name its parts as the inputs are.")
        tree = {name: tree[name] for name in ports}
    places, arrays = flatten(ports)[0], flatten(tree)[0]
    if len(places) != len(arrays):
        raise DataError(
            f"{what} must have {len(places)} part(s), for {[port.name for port in places]}; the data has "
            f"{len(arrays)}. Pass one array (or column) for each."
        )
    return [port.arrange(array) for port, array in zip(places, arrays, strict=True)]


def _mixing_loss(name: str, ranks: int) -> ArgumentError:
    return ArgumentError(
        f"the loss {name!r} takes rows together, so {ranks} workers, of which each has a part of the rows, cannot "
        'evaluate it. Evaluate with one worker, or pass loss_reduction="mean" to from_graph to take it as that of each '
        "worker's own rows."
    )


def _mixing_metric(name: str) -> ArgumentError:
    return ArgumentError(
        f"the metric {name!r} of a batch is not made of those of its parts, so it cannot be computed over several "
        "batches or workers. Pass a tensor of means, sums or extremes of one value a row, a metric of orca.metrics, or "
        "evaluate with one worker and a batch_size of all rows."
    )


def _config(message: bytes) -> Any:
    """Return the user's configuration, with this worker's share of threads where they say nothing of threads."""
    config = tf.ConfigProto.FromString(message) if message else tf.ConfigProto()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdigit() and not config.intra_op_parallelism_threads:
        config.intra_op_parallelism_threads = threads = int(limit)
        # -1: in the thread that calls. To hand each run over to a single other one costs two wake-ups.
        config.inter_op_parallelism_threads = config.inter_op_parallelism_threads or (threads if threads > 1 else -1)
    return config
