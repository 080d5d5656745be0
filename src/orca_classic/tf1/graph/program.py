"""GraphProgram: a graph on its way to the ranks. Owns the part that is shipped, and its changes on the way.

A GraphDef holds the operations that training, evaluating or answering needs, under the user's own names; the values of
variables travel beside it, in the State. Added are the gradients of the loss (terms.py says how much of it each rank
has), and operations that draw random numbers draw them by the seed of the step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from orca.errors import ArgumentError, DataError
from orca.rows.tree import flatten, map_tree
from orca_classic.tf1.graph.draws import DRAW, draw_by_step
from orca_classic.tf1.graph.nodes import closure, op_of
from orca_classic.tf1.graph.norms import ACTIVE, GRADIENTS, AgreedGraph, agreed
from orca_classic.tf1.graph.optimizers import TrainStep, learning_rate, no_variables
from orca_classic.tf1.graph.terms import (
    CONSTANT,
    JOINT,
    ROWS,
    SUM,
    WRITES,
    Analysis,
    Term,
    ancestors,
    has_rows,
)  # fmt: skip

_VARIABLES = {"VariableV2", "Variable", "VarHandleOp"}
# A kind of operation that stays in the user's process -> why, and the remedy.
_STAYING = {
    r"(Eager)?PyFunc(Stateless)?": "is a py_func: it calls a function of this process, which cannot be sent to the "
    "workers. Write it with operations of TensorFlow, or apply it to the data before training.",
    r"(Anonymous|OneShot)?Iterator(V\d)?": "reads from an iterator of tf.data, which stays in this process. Use "
    "placeholders as inputs, and pass the dataset itself to fit.",
    r"\w*(Queue|Reader|Barrier|StagingArea)(V2)?": "reads from a queue of tf.train, which is filled in this process. "
    "Use placeholders as inputs, and pass the data to fit.",
}


@dataclass(frozen=True)
class FedTensor:
    """A tensor that rows are fed to."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None

    @classmethod
    def of(cls, tensor: Any) -> FedTensor:
        """Describe a tensor."""
        shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
        return cls(tensor.name, tensor.dtype.base_dtype.name, shape)

    def arrange(self, array: Any) -> np.ndarray:
        """Return rows in the type and shape that the tensor takes: flat ones get its shape.

        Raises:
            DataError: They do not fit.
        """
        rows = np.asarray(array)
        if self.dtype == "string":
            return rows.astype(object) if rows.dtype.kind in "US" else rows
        if rows.dtype.kind in "OUSmM":
            raise DataError(
                f"{self.name!r} takes {self.dtype}; the data has {_kind(rows)}. Turn it into numbers first."
            )
        rows = self._cast(rows)
        if self.shape is None:
            return rows
        sizes = self.shape[1:]
        if rows.ndim == len(self.shape) and all(n in (None, m) for n, m in zip(sizes, rows.shape[1:], strict=True)):
            return rows
        if (
            rows.ndim == len(self.shape) - 1
            and sizes[-1] is None
            and all(n in (None, m) for n, m in zip(sizes, rows.shape[1:], strict=False))
        ):
            return rows[..., None]  # a number a row, where the graph takes lists of any length
        flat = int(np.prod(rows.shape[1:], dtype=np.int64))
        if rows.ndim != len(self.shape) and None not in sizes and flat == math.prod(size or 0 for size in sizes):
            return rows.reshape(len(rows), *sizes)
        raise DataError(
            f"a row for {self.name!r} must have the shape {_shown(sizes)}; the data has {_shown(rows.shape[1:])}. "
            "Give the data, or the placeholder, the other's shape."
        )

    def _cast(self, rows: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            cast = rows.astype(self.dtype, copy=False)
        if rows.dtype.kind == "f" and cast.dtype.kind in "iu" and not np.array_equal(rows, cast):
            wrong = rows[rows != cast].ravel()[0]
            raise DataError(
                f"{self.name!r} takes {self.dtype}, and the data has {wrong}. Round the data, or make the placeholder "
                "one of floats."
            )
        return cast


@dataclass(frozen=True)
class VariableSpec:
    """A variable of a graph: the operation that sets it, the tensor fed to that, and the tensor that reads it."""

    name: str
    initializer: str
    initial: str
    value: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, variable: Any) -> VariableSpec:
        """Describe a variable.

        Raises:
            ArgumentError: Its shape is not known.
        """
        if not variable.shape.is_fully_defined():
            raise ArgumentError(f"the variable {variable.name!r} must have a known shape; it has {variable.shape}.")
        value = variable.graph.as_graph_element(variable)
        return cls(
            variable.op.name,
            variable.initializer.name,
            variable.initializer.inputs[1].name,
            value.name,
            variable.dtype.base_dtype.name,
            tuple(variable.shape.as_list()),
        )


@dataclass(frozen=True)
class Reduction:
    """A number made of rows, by the names of its tensors, and how those of several batches become one.

    Attributes:
        name: The tensor with the number of a batch.
        kind: The type of the operation: Mean, Max, Min and Shape; all others are sums.
        count: For a mean, the tensor with the number of its elements.
        rows: For a shape, the dimension of the rows.
        total: Another tensor that stands for the number of all batches.
    """

    name: str
    kind: str
    count: str = ""
    rows: int = 0
    total: str = ""


@dataclass(frozen=True)
class Part:
    """A term of a scalar by its name (see terms.py), and for a JOINT one the reductions that it is computed from."""

    name: str
    kind: str
    reductions: tuple[Reduction, ...] = ()

    @property
    def fetches(self) -> list[str]:
        """Return the tensors of a batch that the value over several batches is made of."""
        reductions = [name for each in self.reductions for name in (each.name, each.count) if name]
        return reductions if self.kind == JOINT else [self.name]


@dataclass(frozen=True)
class GradientSpec:
    """The gradient of a variable: where it is read, and where the mean over all ranks is fed."""

    variable: str
    values: str
    port: str
    indices: str | None = None
    indices_port: str | None = None


@dataclass(frozen=True)
class Turn:
    """The steps that one of several optimizers takes in a row: of which terms, on which variables."""

    apply: str
    steps: int
    terms: frozenset[str]
    variables: frozenset[str]


@dataclass(frozen=True)
class GraphProgram:
    """A graph, and the names of its feeds and fetches.

    Attributes:
        graph: A GraphDef.
        variables: Its variables.
        slots: Names of those that the optimizer made for itself.
        setup: Operations to run once in a new session.
        inputs: A tree of the ports for x.
        labels: A tree of the ports for y; None where there are none.
        outputs: A tree of names of tensors; None where there are none.
        loss: The terms of the loss.
        total: The tensor with this rank's part of the loss; "" where there is none to train.
        shares: The tensor that the share of each term is fed to.
        draw: The tensor that the step's seeds are fed to; "" where nothing is drawn.
        draws: The tensors that are drawn by it.
        gradients: The gradients.
        apply: The operation that applies them; "" where they are applied outside of the graph.
        updates: Operations that run with the forward pass of training.
        written: The variables that these, or the forward pass itself, write.
        rate: The learning rate, or the tensor that tells it.
        metrics: Name of a metric -> its tensor and the rows or counts that it is over.
        feeds: Tensor -> (value in training, value in evaluations and answers).
        targets: A tree of names of the tensors that metrics compare outputs with; None where that is y.
        turns: The optimizers that take turns, where there are several.
        answers: Whether there are outputs that need the inputs alone.
        active: The tensor that tells a rank without rows; "" where no number within a step is over all ranks.
        has_statistics: Whether rows are made of numbers of other rows, as in batch normalization.
        is_claimed: Whether the user says what the loss is over.
        placeholder: One that nothing has a value for; "" where there is none.
    """

    graph: bytes = field(repr=False)
    variables: tuple[VariableSpec, ...]
    slots: frozenset[str] = frozenset()
    setup: tuple[str, ...] = ()
    inputs: Any = ()
    labels: Any = None
    outputs: Any = None
    loss: tuple[Part, ...] = ()
    total: str = ""
    shares: str = ""
    draw: str = ""
    draws: tuple[str, ...] = ()
    gradients: tuple[GradientSpec, ...] = ()
    apply: str = ""
    updates: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    rate: Any = None
    metrics: Mapping[str, Part] = field(default_factory=dict)
    feeds: tuple[tuple[str, Any, Any], ...] = ()
    targets: Any = None
    turns: tuple[Turn, ...] = ()
    answers: bool = False
    active: str = ""
    has_statistics: bool = False
    is_claimed: bool = False
    placeholder: str = ""

    def checked(self) -> GraphProgram:
        """Return it, if all that is needed is fed.

        Raises:
            ArgumentError: Nothing has a value for a placeholder.
        """
        if self.placeholder:
            where = "labels" if self.labels is None else "inputs or labels"
            raise ArgumentError(
                f"the placeholder {self.placeholder + ':0'!r} gets no value from the data. Add it to {where}, or give "
                "it a value with feed_dict={tensor: (value in training, value otherwise)}."
            )
        return self

    def answering(self) -> GraphProgram:
        """Return the part of it that answers.

        Raises:
            ArgumentError: There are no outputs, or they need more than the inputs.
        """
        if self.outputs is None:
            raise ArgumentError("there are no outputs to answer with. Pass outputs= to from_graph.")
        return replace(self, labels=None, loss=(), metrics={}, targets=None).evaluating()

    def evaluating(self) -> GraphProgram:
        """Return the part of it that evaluates: without gradients, and without the optimizer's variables."""
        less = replace(self, total="", shares="", gradients=(), apply="", updates=(), slots=frozenset())
        variables = [spec for spec in self.variables if spec.name not in self.slots]
        less = replace(less, rate=None, turns=())
        return _shipped(less, tf.GraphDef.FromString(self.graph), variables, self.setup)

    def tensors(self) -> list[str]:
        """Return the names of all that is fetched."""
        parts = [*self.loss, *self.metrics.values()]
        heads = [tree for tree in (self.outputs, self.targets) if tree is not None]
        names = [self.total, *flatten(heads)[0], *(name for part in parts for name in (part.name, *part.fetches))]
        names += [each.total for part in parts for each in part.reductions] + [spec.values for spec in self.gradients]
        names += [spec.indices for spec in self.gradients] + [self.rate if isinstance(self.rate, str) else ""]
        return [name for name in names if name]


def training_program(
    *,
    inputs: Any,
    labels: Any = None,
    outputs: Any = None,
    loss: Any = None,
    step: TrainStep | None = None,
    turns: Sequence[tuple[TrainStep, int]] = (),
    weights: Sequence[Any] = (),
    targets: Any = None,
    metrics: Mapping[str, Any] | None = None,
    updates: Sequence[Any] = (),
    feeds: Mapping[Any, Any] | None = None,
    loss_reduction: str | None = None,
    alone: bool = False,
) -> GraphProgram:
    """Return the program of a graph.

    Args:
        inputs: A tree of tensors that x is fed to.
        labels: A tree of tensors that y is fed to.
        outputs: A tree of tensors to answer with.
        loss: The scalar to lower.
        step: The step of the optimizer, where that is one of TensorFlow's.
        turns: Steps of several optimizers that take turns, and how many each takes in a row, in place of `step`.
        targets: A tree of tensors that metrics compare outputs with, where that is not y.
        weights: The variables to train, where the step is taken outside of the graph.
        metrics: Name -> tensor.
        updates: Operations that run with the forward pass of training.
        feeds: Tensor -> value, or (value in training, value otherwise).
        loss_reduction: "mean", "sum" or "none": what the loss is over; unless given, the graph tells.
        alone: Whether it is for one rank.

    Raises:
        ArgumentError: The loss has no variables, something is not fed, or an operation cannot be shipped.
    """
    ports = [*flatten(inputs)[0], *([] if labels is None else flatten(labels)[0])]
    things = [*ports, *([] if outputs is None else flatten(outputs)[0]), *([] if loss is None else [loss])]
    graph = _one_graph([*things, *(metrics or {}).values()])
    steps = [each for each, _ in turns] or ([] if step is None else [step])
    losses = [each.loss for each, _ in turns] or ([] if loss is None else [loss])
    program = GraphProgram(
        b"",
        (),
        slots=frozenset(v.op.name for each in steps for v in each.slots),
        targets=None if targets is None else map_tree(lambda tensor: tensor.name, targets),
        inputs=map_tree(FedTensor.of, inputs),
        labels=None if labels is None else map_tree(FedTensor.of, labels),
        outputs=None if outputs is None else map_tree(lambda tensor: tensor.name, outputs),
        answers=outputs is not None and not _needs(flatten(outputs)[0], [] if labels is None else flatten(labels)[0]),
        feeds=_fed_values(feeds or {}),
        updates=tuple(dict.fromkeys(getattr(op, "op", op).name for op in (*updates, *(each.op for each in losses)))),
        rate=_name_of_rate(steps[0]) if steps else None,
        written=_written(graph, [*things, *updates, *losses]),
        is_claimed=loss_reduction is not None,
    )
    variables = [VariableSpec.of(variable) for variable in _variables(graph).values()]
    setup = [op.name for op in graph.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)]
    setup += [variable.initializer.name for variable in graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES)]
    metric_ops = [each.op.name for each in (metrics or {}).values() if hasattr(each, "op")]
    summed = [] if loss_reduction else [each.op.name for each in losses]
    whole = agreed(graph, [port.name for port in ports], summed, metric_ops, program.updates, alone)
    program = replace(program, active=f"{ACTIVE}:0" if whole.sums else "", has_statistics=whole.has_statistics)
    graph = whole.graph
    program = _with_terms(program, whole, ports, losses, metrics or {}, turns, loss_reduction)
    definition = graph.as_graph_def()
    if steps or weights:
        program, definition = _with_gradients(program, graph, loss, steps, weights)
    return _shipped(program, definition, variables, setup)


def _with_terms(
    program: GraphProgram,
    whole: AgreedGraph,
    ports: Sequence[Any],
    losses: Sequence[Any],
    metrics: Mapping[str, Any],
    turns: Sequence[tuple[TrainStep, int]],
    loss_reduction: str | None,
) -> GraphProgram:
    """Return the program with the terms of its losses and metrics, which its graph gets operations for."""
    there = whole.graph.as_graph_element  # by a name: the graph may be a copy of the user's
    with whole.graph.as_default(), tf.name_scope("orca_step"):
        scalars = {name: _scalar_of(name, there(getattr(each, "name", each))) for name, each in metrics.items()}
        analysis = Analysis(there(port.name) for port in ports)
        parts = _Parts(analysis, whole)
        over = {name: parts.of_metric(scalar) for name, scalar in scalars.items()}
        if loss_reduction is None:
            terms = {each.name: analysis.terms(there(each.name)) for each in losses}
        else:
            terms = {each.name: [_claimed(there(each.name), loss_reduction)] for each in losses}
        loss = [parts.of(term) for term in _distinct(terms.values())]
    all_turns = [_turn(terms[each.loss.name], each, count) for each, count in turns]
    return replace(program, loss=tuple(loss), metrics=over, turns=tuple(all_turns))


def _claimed(loss: Any, reduction: str) -> Term:
    """Return a loss as the term that the user says it is."""
    if loss.shape.num_elements() != 1:  # a value a row
        return Term(tf.reduce_mean(loss), ROWS)
    return Term(loss, {"mean": ROWS, "sum": SUM, "none": CONSTANT}[reduction])


def _distinct(losses: Iterable[Sequence[Term]]) -> list[Term]:
    """Return the terms of some losses; one that several losses have is there once, for each of their turns."""
    terms: list[Term] = []
    for each in losses:
        earlier = {term.tensor.name for term in terms}
        terms += [term for term in each if term.tensor.name not in earlier]
    return terms


def _turn(terms: Iterable[Term], step: TrainStep, count: int) -> Turn:
    names = frozenset(term.tensor.name for term in terms)
    return Turn(step.apply.name, count, names, frozenset(point.variable.op.name for point in step.points))


def _name_of_rate(step: TrainStep) -> Any:
    """Return the learning rate of a step, or the name of the tensor that tells it."""
    rate = learning_rate(step.optimizer)
    return step.apply.graph.as_graph_element(rate).name if hasattr(rate, "graph") else rate


def _with_gradients(
    program: GraphProgram, graph: Any, loss: Any, steps: Sequence[TrainStep], variables: Sequence[Any]
) -> tuple[GraphProgram, Any]:
    """Return the program with its gradients, and the graph with their operations."""
    targets = [point.variable for step in steps for point in step.points] or list(variables)
    before = ancestors([loss.op])
    weights = [variable for variable in targets if variable.op in before]
    if not weights:
        raise no_variables(loss)
    with graph.as_default(), tf.name_scope(GRADIENTS):
        terms = [graph.get_tensor_by_name(part.name) for part in program.loss]
        shares = tf.placeholder(tf.float32, [len(terms)], name="shares")
        parts = [_shared(shares[at], term) for at, term in enumerate(terms)]
        total = tf.reduce_sum(tf.add_n([tf.cast(part, parts[0].dtype) for part in parts]))
        gradients = tf.gradients(total, [graph.get_tensor_by_name(f"{variable.op.name}:0") for variable in weights])
        points = {point.variable.op.name: point for step in steps for point in step.points}
        specs = [
            _gradient(variable, gradient, points.get(variable.op.name))
            for variable, gradient in zip(weights, gradients, strict=True)
            if gradient is not None
        ]
    if not specs:
        raise no_variables(loss)
    program = replace(
        program,
        total=total.name,
        shares=shares.name,
        gradients=tuple(specs),
        apply=steps[0].apply.name if len(steps) == 1 else "",
    )
    definition = graph.as_graph_def()
    gradient_ports = {op_of(name) for spec in specs for name in (spec.port, spec.indices_port) if name}
    for node in definition.node:
        if node.name in gradient_ports:  # a point that passes a gradient on, and is always fed here
            node.op = "Placeholder"
            del node.input[:]
    return program, definition


def _shared(share: Any, term: Any) -> Any:
    """Return a share of a term; nothing for none, whatever the term is: a mean of no rows is not a number."""
    part = tf.reshape(tf.cast(share, term.dtype) * term, [])
    return tf.where(tf.equal(share, 0.0), tf.zeros_like(part), part)


def _gradient(variable: Any, gradient: Any, point: Any) -> GradientSpec:
    name = variable.op.name
    sparse = isinstance(gradient, tf.IndexedSlices)
    if sparse and (point is None or point.indices is None):  # a step that is taken on whole arrays
        gradient, sparse = tf.convert_to_tensor(gradient), False
    if sparse and point is not None:
        return GradientSpec(name, gradient.values.name, point.values.name, gradient.indices.name, point.indices.name)
    if point is not None and point.indices is not None:
        raise ArgumentError(
            f"the gradient of {name!r} is sparse where the optimizer was made, and is not now. Keep the loss."
        )
    return GradientSpec(name, gradient.name, point.values.name if point else "")


def _shipped(
    program: GraphProgram, definition: Any, specs: Sequence[VariableSpec], setup: Sequence[str]
) -> GraphProgram:
    """Return the program with the part of a graph that it needs, checked and made ready to travel."""
    nodes = {node.name: node for node in definition.node}
    roots = [op_of(name) for name in program.tensors()]
    roots += [name for name in (program.apply, *program.updates, *(turn.apply for turn in program.turns)) if name]
    ports = [*flatten(program.inputs)[0], *([] if program.labels is None else flatten(program.labels)[0])]
    entries = {op_of(port.name) for port in ports} | {op_of(name) for name, *_ in program.feeds}
    entries |= {op_of(program.shares)} if program.shares else set()
    gradient_ports = {op_of(name) for spec in program.gradients for name in (spec.port, spec.indices_port) if name}
    names = closure(nodes, roots, entries | gradient_ports)
    variables = [spec for spec in specs if spec.name in names]
    functions = {function.signature.name: function for function in definition.library.function}
    _check_nodes((nodes[name] for name in sorted(names)), functions)
    open_names = [name for name in sorted(names - entries - gradient_ports - {DRAW}) if nodes[name].op == "Placeholder"]
    program = replace(program, placeholder=open_names[0] if open_names else "")
    tables = [name for name in setup if closure(nodes, [name]) & _resources(nodes, names)]
    more = [op_of(name) for spec in variables for name in (spec.initializer, spec.initial, spec.value)]
    members = closure(nodes, [*roots, *more, *tables, *(entries & nodes.keys()), *gradient_ports])
    graph = tf.GraphDef(versions=definition.versions, library=definition.library)
    for node in definition.node:
        if node.name in members:
            copy = graph.node.add()
            copy.CopyFrom(node)
            copy.device = ""
            copy.attr.pop("_class", None)  # beside which other operation to run, which may be gone
    if not program.draw:
        draw, draws = draw_by_step(graph, names, entries)
    else:
        draw, draws = program.draw if DRAW in members else "", program.draws
    draws = tuple(name for name in draws if op_of(name) in names)
    active = program.active if op_of(program.active) in members else ""
    written = tuple(name for name in program.written if name in names)
    program = replace(
        program, variables=tuple(variables), setup=tuple(tables), draw=draw, draws=draws, active=active,
        written=written,
    )  # fmt: skip
    return replace(program, graph=graph.SerializeToString())


def _check_nodes(nodes: Iterable[Any], functions: dict[str, Any]) -> None:
    """Check that operations, and the functions that they call, can be shipped."""
    for node in nodes:
        for kind, reason in _STAYING.items():
            if re.fullmatch(kind, node.op):
                raise ArgumentError(f"{node.name + ':0'!r} {reason}")
        bodies = [functions.pop(each.func.name, None) for each in node.attr.values() if each.HasField("func")]
        for body in filter(None, bodies):
            _check_nodes(body.node_def, functions)


def _resources(nodes: Mapping[str, Any], names: set[str]) -> set[str]:
    """Return the tables and local variables that are used."""
    return {name for name in names if "Table" in nodes[name].op or nodes[name].op in _VARIABLES}


def _scalar_of(name: str, tensor: Any) -> Any:
    """Return a metric as a scalar: the mean of one that is a number a row.

    Raises:
        ArgumentError: It is no tensor of one number, or of one a row.
    """
    if not hasattr(tensor, "graph") or not hasattr(tensor, "shape"):
        raise ArgumentError(
            f"the metric {name!r} must be a tensor; got {type(tensor).__name__}. Pass a scalar tensor, such as the "
            "mean of tf.equal(...), or a list of metrics of orca.metrics."
        )
    if has_rows(tensor):
        return tf.reduce_mean(tf.cast(tensor, tf.float32))
    if tensor.shape.rank is None or tensor.shape.num_elements() != 1:
        raise ArgumentError(f"the metric {name!r} must be one number, or one a row; {tensor.name!r} is {tensor.shape}.")
    return tensor


class _Parts:
    """The terms of losses and metrics as parts of a program.

    Args:
        analysis: The analysis of the graph.
        whole: The graph.
    """

    def __init__(self, analysis: Analysis, whole: AgreedGraph) -> None:
        self.analysis, self.whole = analysis, whole

    def of(self, term: Term) -> Part:
        """Return a term."""
        if term.kind != JOINT:
            return Part(term.tensor.name, term.kind)
        local = {total: name for name, total in self.whole.totals.items()}
        totals = [self.whole.graph.get_tensor_by_name(name).op for name in local]
        head = self.analysis.head([term.tensor.op], totals)
        own = [self.whole.graph.get_tensor_by_name(local[op.outputs[0].name]).op for op in totals if op in head.stops]
        reductions = sorted({*head.reductions, *own}, key=lambda op: op.name)
        name = self.whole.totals.get(term.tensor.name, term.tensor.name)  # a loss that is one reduction itself
        return Part(name, JOINT, tuple(map(self._reduction, reductions)))

    def of_metric(self, tensor: Any) -> Part:
        """Return a metric."""
        terms = self.analysis.terms(tensor)
        return self.of(terms[0] if len(terms) == 1 else Term(tensor, JOINT))

    def _reduction(self, op: Any) -> Reduction:
        tensor = op.outputs[0]
        sizes = op.inputs[0].shape.as_list() if op.type == "Shape" and op.inputs[0].shape.rank is not None else [None]
        count = tf.size(op.inputs[0]) / tf.size(tensor) if op.type == "Mean" else None
        return Reduction(
            tensor.name,
            op.type,
            "" if count is None else count.name,
            sizes.index(None),
            self.whole.totals.get(tensor.name, ""),
        )


def _needs(tensors: Sequence[Any], others: Sequence[Any]) -> bool:
    """Say whether some tensors are computed from others."""
    return bool(ancestors(tensor.op for tensor in tensors) & {other.op for other in others})


def _one_graph(tensors: Sequence[Any]) -> Any:
    graphs = {id(tensor.graph): tensor for tensor in tensors}
    if len(graphs) > 1:
        one, other = list(graphs.values())[:2]
        raise ArgumentError(
            f"{one.name!r} and {other.name!r} belong to different graphs. Build inputs, outputs, labels and loss in "
            "one tf.Graph."
        )
    return tensors[0].graph


def _variables(graph: Any) -> dict[str, Any]:
    local = {variable.op.name for variable in graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES)}
    variables = graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    variables += graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)
    return {variable.op.name: variable for variable in variables if variable.op.name not in local}


def _written(graph: Any, ends: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of the variables that are written on the way to some ends, but for those of metrics."""
    variables = _variables(graph)
    names = []
    for op in ancestors(getattr(each, "op", each) for each in ends):
        if op.type.startswith(WRITES) and op.inputs:
            target = op.inputs[0].op
            while target.type in ("Identity", "Enter", "RefEnter", "Switch", "RefSwitch") and target.inputs:
                target = target.inputs[0].op
            names += [target.name] if target.name in variables else []
    return tuple(sorted(set(names)))


def _fed_values(feeds: Mapping[Any, Any]) -> tuple[tuple[str, Any, Any], ...]:
    values = []
    for tensor, value in feeds.items():
        if not hasattr(tensor, "graph") or not hasattr(tensor, "dtype"):
            raise ArgumentError(f"feed_dict must have tensors for keys; got {tensor!r}. Pass the placeholder itself.")
        pair = isinstance(value, list | tuple) and len(value) == 2
        if tensor.shape.rank and pair and not np.ndim(value[0]):
            pair = False  # the value of a list of two
        both = tuple(value) if pair else (value, value)
        kind = tensor.dtype.base_dtype.as_numpy_dtype
        values.append((tensor.name, *(np.asarray(each, kind) for each in both)))
    return tuple(values)


def _kind(array: np.ndarray) -> str:
    return "dates" if array.dtype.kind in "mM" else "texts or objects"


def _shown(sizes: Iterable[int | None]) -> str:
    axes = list(sizes)
    return f"({', '.join('any' if size is None else str(size) for size in axes)}{',' * (len(axes) == 1)})"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep TensorFlow from logging below the level of errors."""
    level = tf.logging.get_verbosity()
    tf.logging.set_verbosity(tf.logging.ERROR)
    try:
        yield
    finally:
        tf.logging.set_verbosity(level)
