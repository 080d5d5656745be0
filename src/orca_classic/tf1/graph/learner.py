"""GraphLearner: a graph of TensorFlow 1 on one rank. Owns its session: feeds and fetches.

A step is two runs of the session: the forward pass with the gradients of this rank's rows, and the step of the user's
own optimizer, to which the mean of the gradients over all ranks is fed. The variables of the optimizer are part of the
state. An optimizer of `orca_classic.bigdl.optimizers` steps outside of the graph, on torch's parameters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tensorflow.core.protobuf.config_pb2 import CallableOptions

from orca.core.array_learner import ArrayLearner, Arrays
from orca.core.array_session import ArraySession
from orca.core.learner import FitPlan
from orca.core.metrics import Metric
from orca.core.session import Evaluation, Session
from orca.core.source import Batch
from orca.core.state import Losses, State
from orca.core.world import World
from orca.errors import ArgumentError, DataError
from orca.rows.tree import flatten, unflatten
from orca_classic.tf1.graph.norms import let_ranks_meet
from orca_classic.tf1.graph.program import GraphProgram, Part, Turn, VariableSpec, quiet, tf
from orca_classic.tf1.graph.terms import COUNTED, SUM, WHOLE

_ROWS = "//rows"  # the suffix of a variable's name for the numbers of the rows that a sparse gradient has


class GraphSession(ArraySession):
    """A graph at work on one rank."""

    learner: GraphLearner

    @contextmanager
    def evaluation(self, metrics: Sequence[Metric]) -> Iterator[Evaluation]:
        """Open an evaluation."""
        yield GraphEvaluation(self, metrics)

    def state(self) -> State:
        """Return the values of all variables, and the form of outputs if the inputs are enough for them."""
        if not self.learner.program.answers:
            self.sample = None
        return super().state()


class GraphEvaluation(Evaluation):
    """An evaluation of a graph, which fetches loss, metrics and outputs at once.

    Args:
        session: Its session.
        metrics: The metrics to feed.
    """

    def __init__(self, session: GraphSession, metrics: Sequence[Metric]) -> None:
        program = session.learner.program
        self.session, self.losses = session, Losses()
        self.own = [metric for metric in metrics if not isinstance(metric, TensorMetric)]
        self.parts = {metric: program.metrics[metric.tensor] for metric in metrics if isinstance(metric, TensorMetric)}
        self.heads, self.structure = _flat(program.outputs)
        self.targets, self.form = _flat(program.targets)
        names = list(dict.fromkeys(name for part in (*program.loss, *self.parts.values()) for name in _names(part)))
        outputs = dict.fromkeys((*self.heads, *self.targets))
        self.names = names + [name for name in outputs if self.own and name not in names]

    def step(self, batch: Batch, step: int) -> None:
        """Fetch loss and metrics of this rank's rows."""
        learner = self.session.learner
        rows = self.session.true_rows(batch) if batch.rows else batch
        values = dict(zip(self.names, learner.fetch("evaluate", self.names, rows, training=False), strict=True))
        total, mass = learner.evaluated(values, batch)
        if batch.rows:
            for metric, part in self.parts.items():
                weight = float(values[part.mass]) if part.mass else 1.0 if part.kind == SUM else float(batch.rows)
                value = float(values[part.name]) * weight if weight else 0.0  # the mean of nothing is no number
                metric.update(np.array([value]), np.array([weight]))
            outputs = unflatten(self.structure, [values[name] for name in self.heads]) if self.own else None
            y = unflatten(self.form, [values[name] for name in self.targets]) if self.own and self.targets else rows.y
            for other in self.own:
                other.update(outputs, y)
        self.losses.add(total, mass, batch.rows)

    def result(self) -> Losses:
        """Return the loss."""
        return self.losses


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

    def join(
        self,
        world: World,
        state: State | None,
        seed: int,
        callbacks: Sequence[Any] = (),
        fit: FitPlan | None = None,
        steps: int | None = None,
    ) -> Session:
        """Open the session, and give the variables their values."""
        parts = (*self.program.loss, *self.program.metrics.values())
        whole = next((part for part in parts if part.kind == WHOLE), None)
        if world.size > 1 and whole is not None:
            cause = f" ({whole.cause!r} takes rows together)" if whole.cause else ""
            raise ArgumentError(
                f"{whole.name!r} is neither a mean nor a sum over the rows of a batch, each for itself{cause}, so "
                f"{world.size} workers, of which each has a part of the rows, cannot compute it. Make it a mean of one "
                "value a row (tf.reduce_mean) that needs no other rows, or train with one worker."
            )
        return super().join(world, state, seed, callbacks, fit, steps)

    def make(self) -> None:
        """Open the session."""
        program = self.program
        graph = tf.Graph()
        with graph.as_default(), quiet():
            definition = tf.GraphDef.FromString(program.graph)
            if program.active and self._ranks() > 1:
                let_ranks_meet(definition, self._add)
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
        self.error: BaseException | None = None
        self.meets = False
        self.steps = 0

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
        return {"torch": self._stepper()[1].state_dict()}

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

    def outputs(self, x: Any) -> Any:
        """Return the outputs for rows."""
        names, structure = flatten(self.program.outputs)
        arrays = _arranged(self.program.inputs, x, "x")
        feeds = [name for name, *_ in self.program.feeds]
        call = self._call("outputs", names, [port.name for port in flatten(self.program.inputs)[0]] + feeds)
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
            rows, counts = np.zeros_like(self.dense[spec.variable]), np.zeros_like(self.dense[spec.variable + _ROWS])
            np.add.at(rows, values[spec.indices], gradient)
            counts[values[spec.indices]] = 1.0
            gradients[spec.variable], gradients[spec.variable + _ROWS] = rows, counts
        return total, float(batch.rows), gradients

    def idle(self, batch: Batch) -> None:
        """Meet the other ranks where they meet within a step."""
        if self.program.active:
            self._step(batch)
            return
        if self._counted():
            self._shares(batch, 0, training=True)
        if self.program.averages:
            self._agree_on_updates(0, batch.step_rows)

    def apply(self, gradients: Arrays) -> None:
        """Take a step of the optimizer."""
        gradients = self._clipped(gradients)
        if self.method is not None:
            self._step_outside(gradients)
            return
        feeds: dict[str, np.ndarray] = {}
        turn = self._turn()
        apply = self.program.apply if turn is None else turn.apply
        for spec in self.program.gradients:
            if turn is not None and spec.variable not in turn.variables:
                continue
            gradient = gradients[spec.variable]
            if spec.indices_port is not None:
                rows = np.flatnonzero(gradients[spec.variable + _ROWS])
                kind = self.session.graph.get_tensor_by_name(spec.indices_port).dtype.as_numpy_dtype
                feeds[spec.indices_port], gradient = rows.astype(kind), gradient[rows]  # a callable casts nothing
            feeds[spec.port] = gradient
        names, values = self._fed()
        self._call(f"apply {apply}", [apply], [*feeds, *names])(*feeds.values(), *values, *self._drawn())
        self.steps += 1

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

    def _step(self, batch: Batch) -> tuple[float, dict[str, Any]]:
        """Run the forward pass and the gradients; return this rank's part of the loss, and the fetched values."""
        names = [self.program.total]
        names += [name for spec in self.program.gradients for name in (spec.values, spec.indices) if name]
        shares, lowers = self._shares(batch, batch.rows, training=True)
        purpose = " ".join(["train", *lowers])
        values = self.fetch(purpose, names, batch, True, self.program.updates, {self.program.shares: shares} | lowers)
        if self.program.averages:
            self._agree_on_updates(batch.rows, batch.step_rows)
        return float(values[0]), dict(zip(names, values, strict=True))

    def _shares(self, batch: Batch, rows: int, training: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the factor of this rank's part of each term, so that the ranks add up to rows x the loss.

        Beside it, the divisors where this rank counts nothing and others do: its part is zero, not 0 / 0. Where no
        rank counts anything, each has the loss itself, as one process has it.
        """
        masses: dict[str, float] = {}
        lowers: dict[str, np.ndarray] = {}
        if counts := self._counted():
            mine = np.array(self.fetch("masses", counts, batch, training), np.float64) * bool(rows)
            whole = self.world.all_reduce([mine], "sum")[0]
            ratios = np.divide(mine * batch.step_rows, whole, out=np.full(len(mine), float(rows)), where=whole != 0)
            masses = dict(zip(counts, ratios, strict=True))
            empty = {name for name, own, all_ in zip(counts, mine, whole, strict=True) if all_ and not own}
            ones = [part.lower for part in self.program.loss if part.mass in empty and part.lower is not None]
            lowers = {port.name: np.ones([size or 1 for size in port.shape or ()], port.dtype) for port in ones}
        kinds = {SUM: float(batch.step_rows) * bool(rows)}
        shares = [masses[part.mass] if part.mass else kinds.get(part.kind, float(rows)) for part in self.program.loss]
        if training and (turn := self._turn()) is not None:
            shares = [share * (part.name in turn.terms) for share, part in zip(shares, self.program.loss, strict=True)]
        return np.array(shares, np.float32), lowers

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

    def _counted(self) -> list[str]:
        return list(dict.fromkeys(part.mass for part in self.program.loss if part.mass))

    def evaluated(self, values: Mapping[str, Any], batch: Batch) -> tuple[float, float]:
        """Return this rank's part of the loss of an evaluation's step, and the divisor of the ranks' sum."""
        parts = self.program.loss
        if not parts or not batch.rows:
            if any(part.kind == COUNTED for part in parts) and not self._one_count():
                self._shares(batch, 0, training=False)
            return 0.0, 0.0
        if count := self._one_count():
            mass = float(values[count])
            return sum(float(values[part.name]) for part in parts) * mass if mass else 0.0, mass
        shares, _ = self._shares(batch, batch.rows, training=False)
        terms = [(share, float(values[part.name])) for share, part in zip(shares, parts, strict=True) if share]
        return float(sum(share * value for share, value in terms)), float(batch.rows)

    def _one_count(self) -> str | None:
        """Return the mass of the loss, where all of its terms but constants have the same one."""
        counts = self._counted()
        alone = all(part.kind in (COUNTED, "constant") for part in self.program.loss)
        return counts[0] if len(counts) == 1 and alone else None

    def fetch(
        self,
        purpose: str,
        names: Sequence[str],
        batch: Batch,
        training: bool,
        operations: Sequence[str] = (),
        more: Mapping[str, np.ndarray] | None = None,
    ) -> list[Any]:
        """Run the session on a batch's rows."""
        program, more = self.program, dict(more or {})
        if program.active:
            more[program.active] = np.array(batch.rows > 0, np.float64)
        arrays = _arranged(program.inputs, batch.x, "x")
        ports = flatten(program.inputs)[0]
        if program.labels is not None and batch.y is not None:
            arrays += _arranged(program.labels, batch.y, "y")
            ports = ports + flatten(program.labels)[0]
        feeds = [port.name for port in ports] + [name for name, *_ in program.feeds] + list(more)
        values = [value[0 if training else 1] for _, *value in program.feeds]
        call = self._call(purpose, [*names, *operations], feeds)
        self.meets = True
        try:
            return call(*arrays, *values, *more.values(), *self._drawn())
        except tf.errors.OpError as error:
            if self.error is not None:  # of which TensorFlow has kept the text alone
                raise self.error from None
            if not isinstance(error, tf.errors.InvalidArgumentError):
                raise
            raise DataError(f"the graph cannot compute a batch of {batch.rows} rows: {error.message}") from error
        finally:
            self.meets = False

    def _ranks(self) -> int:
        return 1 if self.world is None else self.world.size

    def _add(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of an array over all ranks; in answers, which ranks give each for itself, the array."""
        try:
            return self.world.all_reduce([array], "sum")[0] if self.meets else array
        except BaseException as error:
            self.error = error
            raise

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
        """Return the seed of this step's draws, where the graph draws."""
        return [self.generator.integers(2**62, size=2)] if self.program.draw else []

    def _agree_on_updates(self, rows: int, step_rows: int) -> None:
        """Give the variables that updates have written the mean over the ranks, by their rows."""
        values = self.values.read(self.program.averages)
        flat = np.concatenate([np.ravel(value).astype(np.float64) for value in values.values()])
        flat = flat * rows if rows else np.zeros_like(flat)  # no number may come of the rows that stand in for none
        means, start = self.world.all_reduce([flat], "sum")[0] / step_rows, 0
        for name, value in values.items():
            part = means[start : start + value.size].reshape(value.shape)
            start += value.size
            values[name] = (np.rint(part) if value.dtype.kind in "iub" else part).astype(value.dtype)
        self.values.write(values)

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
            self.torch = parameters, self.method.build(list(parameters.values()))
        return self.torch

    def _step_outside(self, gradients: Arrays) -> None:
        import torch

        parameters, optimizer = self._stepper()
        for name, parameter in parameters.items():
            parameter.grad = torch.from_numpy(np.ascontiguousarray(gradients[name])).to(parameter.dtype)
        optimizer.step()
        self.values.write({name: parameter.detach().numpy() for name, parameter in parameters.items()})


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


class TensorMetric(Metric):
    """A metric that the graph itself computes: a mean over rows, or over its counts; a sum stays one.

    Args:
        tensor: Its name in the program.
        sums: Whether it is a sum over rows.
    """

    def __init__(self, tensor: str, sums: bool = False) -> None:
        self.name = self.tensor = tensor
        self.sums = sums

    def tally(self, output: Any, target: Any) -> tuple[Any, ...]:
        """Return the sum, and its count."""
        return output.sum(), target.sum()

    def score(self, total: Any, count: Any) -> Any:
        """Return the mean, or the sum."""
        return total if self.sums else total / count


def _names(part: Part) -> list[str]:
    return [part.name, part.mass] if part.mass else [part.name]


def _templates(program: GraphProgram) -> dict[str, np.ndarray]:
    """Return arrays that take no memory, in the shapes of the gradients."""
    specs = {spec.name: spec for spec in program.variables}
    arrays = {}
    for gradient in program.gradients:
        spec = specs[gradient.variable]
        arrays[spec.name] = np.broadcast_to(np.zeros((), spec.dtype), spec.shape)
        if gradient.indices is not None:
            arrays[spec.name + _ROWS] = np.broadcast_to(np.zeros((), np.float32), spec.shape[:1])
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


def _config(message: bytes) -> Any:
    """Return the user's configuration, with this worker's share of threads where they say nothing of threads."""
    config = tf.ConfigProto.FromString(message) if message else tf.ConfigProto()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdigit() and not config.intra_op_parallelism_threads:
        config.intra_op_parallelism_threads = threads = int(limit)
        # -1: in the thread that calls. To hand each run over to a single other one costs two wake-ups.
        config.inter_op_parallelism_threads = config.inter_op_parallelism_threads or (threads if threads > 1 else -1)
    return config
