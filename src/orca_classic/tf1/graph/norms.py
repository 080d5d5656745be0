"""Norms: numbers within a graph that are made of the rows of all ranks. Owns how ranks add them up in a step.

These are means over rows that other rows are made of, as in batch normalization; the sums and means of a loss that is
no sum of them, such as the root of a mean; and those that updates write into variables. On the driver, a copy of the
graph gets sums over the ranks, before gradients are made, so that gradients are summed on their way back, too. In the
shipped graph such a sum is an Identity: right for one rank. A rank of several turns it into a call of the world's sum.
Numbers within loops or functions of the graph stay those of a rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from orca.errors import ArgumentError
from orca_classic.tf1.graph.nodes import op_of
from orca_classic.tf1.graph.terms import (
    JOINT,
    WRITES,
    Analysis,
    Head,
    ancestors,
    has_rows,
    is_batch_norm,
    is_open,
)  # fmt: skip

ACTIVE = "orca_active"  # fed with 0 on a rank without rows
_SUM = "orca_sum"
_SUMS = re.compile(rf"(^|/){_SUM}(_\d+)?$")
_GRADIENT = "OrcaSumOverRanks"
GRADIENTS = "orca_gradients"  # the scope of operations that run in steps alone: an evaluation must not wait for them
_IFS = {"If", "StatelessIf"}
_SWITCHES, _MERGES = {"Switch", "RefSwitch"}, {"Merge", "RefMerge"}
_RANDOM = re.compile(r"(Stateful(Uniform|Standard)?)?(Random|Normal|TruncatedNormal|Multinomial|Uniform)|Parameterized")
_DERIVED = re.compile(r"(^|/)gradients(_\d+)?/.*_grad/")  # an operation that tf.gradients made


class RowStatistics:
    """The statistics over rows that a graph computes on the way to some operations.

    Args:
        analysis: The analysis of the graph, from its rows on.
        heads: The operations.
        updates: Operations that run with a step.

    Attributes:
        means: Operations that take a mean over rows, of which other rows are made.
        norms: Operations of batch normalization that take statistics of their own.
    """

    def __init__(self, analysis: Analysis, heads: Iterable[Any], updates: Iterable[Any]) -> None:
        members = ancestors([*heads, *updates]) & analysis.by_value
        gradients = [op for op in members if _DERIVED.search(op.name)]
        rows = [op for op in members if any(has_rows(tensor) for tensor in op.outputs)]
        before = ancestors([each.op for op in rows for each in op.inputs], control=False)
        norms = [op for op in members if is_batch_norm(op) and "Grad" not in op.type]
        means = [op for op in members & before if _is_over_rows(op) and op not in analysis.after_picks]
        self.norms, self.means = (
            [] if gradients else sorted((op for op in ops if _same_everywhere(op, analysis)), key=lambda op: op.name)
            for ops in (norms, means)
        )

    @classmethod
    def of(cls, graph: Any, ports: Iterable[str], heads: Iterable[str], updates: Iterable[str]) -> RowStatistics:
        """Find the statistics of a graph by names; see `agreed`."""
        data, ends, updaters = ([graph.as_graph_element(name) for name in names] for names in (ports, heads, updates))
        return cls(Analysis(data), ends, updaters)

    def __bool__(self) -> bool:
        return bool(self.means or self.norms)


def _is_over_rows(op: Any) -> bool:
    """Say whether an operation makes one mean of rows."""
    if op.type != "Mean" or not op.outputs[0].dtype.is_floating:
        return False
    rows, mean = op.inputs[0].shape, op.outputs[0].shape
    return rows.rank is not None and is_open(op.inputs[0]) and mean.is_fully_defined()


def _same_everywhere(op: Any, analysis: Analysis) -> bool:
    """Say whether all ranks run an operation, and once: not in a loop, and not where rows, or a draw, decide."""
    context = op._get_control_flow_context()
    while context is not None:
        if context.IsWhileContext() or (context.IsCondContext() and _differs(context.pred.op, analysis)):
            return False
        context = context.outer_context
    return True


def _differs(op: Any, analysis: Analysis) -> bool:
    """Say whether ranks may have other results of an operation: by their rows, how many they are, or their draws."""
    return op in analysis.dependent or any(_RANDOM.match(each.type) for each in ancestors([op]))


@dataclass(frozen=True)
class AgreedGraph:
    """A graph whose numbers made of rows are those of all ranks.

    Attributes:
        graph: The user's graph, or a copy of it.
        sums: The operations in it that sum over ranks.
        totals: Name of a tensor that is one rank's number -> name of that of all ranks.
        has_statistics: Whether rows are made of numbers of other rows, on the way to the loss.
    """

    graph: Any
    sums: frozenset[Any]
    totals: Mapping[str, str]
    has_statistics: bool


def agreed(
    graph: Any,
    ports: Iterable[str],
    losses: Iterable[str],
    metrics: Iterable[str],
    updates: Iterable[str],
    alone: bool = False,
) -> AgreedGraph:
    """Return a graph, or a changed copy of it where numbers must be those of all ranks.

    Args:
        graph: The graph.
        ports: Names of the tensors that rows are fed to.
        losses: Names of the operations that losses come from.
        metrics: Names of those that metrics come from.
        updates: Names of operations that run with a step.
        alone: Whether one rank has all rows, and the kernels of the graph as it is, which are faster, are right.
    """
    ports, losses, metrics, updates = list(ports), list(losses), list(metrics), list(updates)
    ends = [*losses, *metrics, *updates]
    conditions = _conditions(graph, ends)
    statistics = RowStatistics.of(graph, ports, [*losses, *metrics], updates)
    if not conditions and (alone or not (statistics or _heads(graph, ports, losses, updates))):
        return AgreedGraph(graph, frozenset(), {}, bool(RowStatistics.of(graph, ports, losses, updates)))
    graph = _copy(graph)
    while conditions:
        for name in conditions:
            _lower(graph.get_operation_by_name(name))
        conditions = _conditions(graph, ends)  # those that were within branches
    statistics = RowStatistics.of(graph, ports, [*losses, *metrics], updates)
    has_statistics = bool(RowStatistics.of(graph, ports, losses, updates))
    totals: dict[str, str] = {}
    with graph.as_default():
        tf.placeholder_with_default(tf.ones([], tf.float64), [], name=ACTIVE)
        for mean, variance in _pairs(statistics.means):
            _replace_means(mean, variance)
        for op in statistics.norms:
            _replace_fused(op)
        for head in _heads(graph, ports, losses, updates):
            totals |= _replace_reductions(head)
    return AgreedGraph(graph, _sums(graph), totals, has_statistics)


def _sums(graph: Any) -> frozenset[Any]:
    return frozenset(op for op in graph.get_operations() if _SUMS.search(op.name))


def _heads(graph: Any, ports: Iterable[str], losses: Iterable[str], updates: Iterable[str]) -> list[Head]:
    """Return what must be computed from totals: each loss that is no sum of terms, and each write into a variable."""
    analysis, sums = Analysis(graph.as_graph_element(name) for name in ports), _sums(graph)
    ops = [graph.get_operation_by_name(name) for name in losses]
    roots = [op for op in ops if any(term.kind == JOINT for term in analysis.terms(op.outputs[0]))]
    before = ancestors([*ops, *map(graph.get_operation_by_name, updates)])
    roots += sorted((op for op in before if op.type.startswith(WRITES)), key=lambda op: op.name)
    heads = []
    for root in roots:
        head = analysis.head([root], sums)
        inner = ancestors([each.op for op in head.reductions for each in op.inputs])  # rows need these, as they are
        reductions = tuple(op for op in head.reductions if op not in inner and _same_everywhere(op, analysis))
        heads += [Head(head.ops, reductions)] if reductions else []
    return heads


def _copy(graph: Any) -> Any:
    contexts = [tf.GraphKeys.COND_CONTEXT, tf.GraphKeys.WHILE_CONTEXT]
    with graph.as_default():
        meta = tf.train.export_meta_graph(graph=graph, collection_list=contexts)
    copy = tf.Graph()
    with copy.as_default():
        tf.train.import_meta_graph(meta)
    return copy


def _conditions(graph: Any, heads: Iterable[str]) -> list[str]:
    """Return the conditions, with functions for branches, of which the results are used."""
    ops = ancestors(graph.get_operation_by_name(name) for name in heads)
    return sorted(op.name for op in ops if op.type in _IFS and any(each.consumers() for each in op.outputs))


def _lower(op: Any) -> None:
    """Replace a condition with functions for branches by one whose branches are part of the graph, and can be seen."""
    library = {function.signature.name: function for function in op.graph.as_graph_def().library.function}
    users = [_users(tensor) for tensor in op.outputs]

    def branch(name: str) -> Callable[[], list[Any]]:
        function = library[op.get_attr(name).name]
        arguments = [argument.name for argument in function.signature.input_arg]
        inputs = dict(zip(arguments, op.inputs[1:], strict=True))
        body, names = function_def_to_graph_def(function, [tensor.shape for tensor in inputs.values()])
        for node in body.node:
            node.attr.pop("_class", None)  # beside which other operation to run, which has another name here
        ends = [names[function.ret[end.name]] for end in function.signature.output_arg]
        ran = list(function.control_ret.values())

        def run() -> list[Any]:
            results = tf.import_graph_def(body, input_map=inputs, return_elements=[*ends, *ran], name="branch")
            with tf.control_dependencies(results[len(ends) :]):
                return [tf.identity(each) for each in results[: len(ends)]]

        return run

    functional = tf.control_flow_v2_enabled()
    tf.disable_control_flow_v2()
    try:
        with op.graph.as_default(), tf.name_scope(op.name):
            results = tf.cond(op.inputs[0], branch("then_branch"), branch("else_branch"))
    finally:
        if functional:
            tf.enable_control_flow_v2()
    for each, result in zip(users, results if isinstance(results, list) else [results], strict=True):
        _redirect(each, result)


def _pairs(means: list[Any]) -> list[tuple[Any, Any]]:
    """Return means with the variance around each, as `tf.nn.moments` makes it, and with None where there is none."""
    variances = {}
    for op in means:
        inner = op.inputs[0].op
        centre = inner.inputs[1].op if inner.type == "SquaredDifference" else op
        if centre.type == "StopGradient" and centre.inputs[0].op in means:
            variances[centre.inputs[0].op] = op
    return [(op, variances.get(op)) for op in means if op not in variances.values()]


def _replace_means(mean: Any, variance: Any) -> None:
    """Let all that uses a mean, and the variance around it, use those over all ranks."""
    local = [op.outputs[0] for op in (mean, variance) if op is not None]
    users = [_users(tensor) for tensor in local]
    if variance is not None:
        around = variance.inputs[0].op.inputs[1].op  # by which this rank's own variance is centred
        users[0] = [(user, at) for user, at in users[0] if user is not around]
    rows = mean.inputs[0]
    count = tf.size(rows, out_type=tf.int64) / tf.size(local[0], out_type=tf.int64)
    statistics = _moments(local[0], local[1], count)[:2] if variance is not None else _over_ranks(local, count)[:1]
    for each, old, new in zip(users, local, statistics, strict=True):
        _redirect(each, tf.cast(new, old.dtype))


def _replace_reductions(head: Head) -> dict[str, str]:
    """Let the end of a computation use totals over all ranks; return the names of these, by those of a rank's own."""
    local = [op.outputs[0] for op in head.reductions]
    users = [[(op, at) for op, at in _users(tensor) if op in head.ops] for tensor in local]
    counts = [
        tf.size(op.inputs[0], out_type=tf.int64) / tf.size(tensor, out_type=tf.int64)
        if op.type == "Mean"
        else tf.ones([], tf.float64)
        for op, tensor in zip(head.reductions, local, strict=True)
    ]
    flat = tf.concat([_weighted(tensor, count) for tensor, count in zip(local, counts, strict=True)], 0)
    parts = tf.split(_total(flat), [tf.size(tensor) + 1 for tensor in local], num=len(local))
    totals: dict[str, str] = {}
    for op, tensor, part, each in zip(head.reductions, local, parts, users, strict=True):
        total = part[:-1] / part[-1] if op.type == "Mean" else part[:-1]
        total = tf.reshape(total, tensor.shape)
        if op.type == "Shape":  # of which rows are the first open dimension
            sizes = op.inputs[0].shape.as_list() if op.inputs[0].shape.rank is not None else [None]
            rows = tf.one_hot(sizes.index(None), tf.size(tensor), True, False)
            total = tf.where(rows, total, tf.cast(tensor, tf.float64))
        total = tf.cast(total, tensor.dtype)
        _redirect(each, total)
        totals[tensor.name] = total.name
    return totals


def _weighted(number: Any, count: Any) -> Any:
    """Return a rank's number times what it counts for, and that; flat, in float64: nothing for a rank without rows."""
    weight = count * tf.get_default_graph().get_tensor_by_name(f"{ACTIVE}:0")
    part = tf.math.multiply_no_nan(tf.cast(number, tf.float64), weight)  # a mean of nothing is no number
    return tf.concat([tf.reshape(part, [-1]), tf.reshape(weight, [1])], 0)


def _total(flat: Any) -> Any:
    """Return the sum over ranks."""
    with flat.graph.gradient_override_map({"Identity": _GRADIENT}):
        return tf.identity(flat, name=_SUM)


def _replace_fused(op: Any) -> None:
    """Let all that uses the outputs of fused batch normalization use those over all ranks, by the same fast kernels."""
    users = [_users(tensor) for tensor in op.outputs[:3]]
    kernel = {"epsilon": op.get_attr("epsilon"), "data_format": op.get_attr("data_format").decode()}
    shape = [-1 if name == "C" else 1 for name in kernel["data_format"]]

    @tf.custom_gradient
    def normalize(x: Any, scale: Any, offset: Any) -> Any:
        none = tf.zeros([0], scale.dtype)
        own = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=scale, offset=offset, mean=none, variance=none, is_training=True, **kernel
        )
        count = tf.size(x, out_type=tf.int64) / tf.size(scale, out_type=tf.int64)
        spread = tf.cast(own.batch_variance, tf.float64) * (tf.maximum(count - 1.0, 1.0) / count)
        mean, variance, total = _moments(own.batch_mean, spread, count)
        sample_variance = tf.cast(variance * (total / tf.maximum(total - 1.0, 1.0)), scale.dtype)
        mean, variance = tf.cast(mean, scale.dtype), tf.cast(variance, scale.dtype)
        y = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=scale, offset=offset, mean=mean, variance=variance, is_training=False, **kernel
        ).y

        def back(upstream: Any, *_: Any) -> tuple[Any, Any, Any]:
            partials = tf.raw_ops.FusedBatchNormGradV3(  # as if mean and variance were no part of it
                y_backprop=upstream, x=x, scale=scale, reserve_space_1=mean, reserve_space_2=variance,
                reserve_space_3=none, is_training=False, **kernel,
            )  # fmt: skip
            sums = tf.cast(tf.stack([partials.offset_backprop, partials.scale_backprop]), tf.float64)
            by_mean, by_spread = tf.unstack(tf.cast(_summed(sums) / total, scale.dtype))
            width = tf.rsqrt(variance + kernel["epsilon"])
            slope = scale * width * width * by_spread
            level = scale * width * by_mean - slope * mean
            change = tf.reshape(slope, shape) * tf.cast(x, scale.dtype) + tf.reshape(level, shape)
            return partials.x_backprop - tf.cast(change, x.dtype), partials.scale_backprop, partials.offset_backprop

        return (y, mean, sample_variance), back

    y, *moments = normalize(*op.inputs[:3])
    share = op.get_attr("exponential_avg_factor")
    if share != 1.0:
        moments = [before * (1.0 - share) + now * share for before, now in zip(op.inputs[3:], moments, strict=True)]
    for each, new in zip(users, [y, *moments], strict=True):
        _redirect(each, new)


def _moments(mean: Any, variance: Any, count: Any) -> tuple[Any, Any, Any]:
    """Return mean, variance and count over all ranks, in float64: so that large means leave digits to the variance."""
    mean, variance = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
    mean, square, total = _over_ranks([mean, variance + tf.square(mean)], count)
    return mean, tf.maximum(square - tf.square(mean), 0.0), total


def _over_ranks(means: list[Any], count: Any) -> list[Any]:
    """Return means over the elements of all ranks, of which this rank has some, and how many there are in all."""
    weight = count * tf.get_default_graph().get_tensor_by_name(f"{ACTIVE}:0")
    parts = [tf.math.multiply_no_nan(tf.cast(mean, tf.float64), weight) for mean in means]  # a mean of nothing is none
    flat = tf.concat([*(tf.reshape(part, [-1]) for part in parts), tf.reshape(weight, [1])], 0)
    *sums, whole = tf.split(_total(flat), [*(tf.size(mean) for mean in means), 1], num=len(means) + 1)
    whole = tf.reshape(whole, [])
    return [*(tf.reshape(each / whole, mean.shape) for each, mean in zip(sums, means, strict=True)), whole]


@tf.RegisterGradient(_GRADIENT)
def _gradient_of_sum(op: Any, upstream: Any) -> Any:
    """Return the gradient of this rank's part of a sum over ranks: that of the sum, over all ranks that use it."""
    return _summed(upstream)


def _summed(array: Any) -> Any:
    """Return the sum of an array over the ranks that have rows."""
    active = array.graph.get_tensor_by_name(f"{ACTIVE}:0")
    return tf.identity(tf.math.multiply_no_nan(array, active), name=_SUM)


def _users(tensor: Any) -> list[tuple[Any, int]]:
    """Return the places where a tensor is used: operations, and which of their inputs it is."""
    users = dict.fromkeys(tensor.consumers())
    return [(op, at) for op in users for at, each in enumerate(op.inputs) if each is tensor]


def _redirect(users: Iterable[tuple[Any, int]], tensor: Any) -> None:
    for op, at in users:
        op._update_input(at, tensor)


# On a rank.


def sums_of(definition: Any) -> list[Any]:
    """Return the nodes of a GraphDef that sum over ranks."""
    return [node for node in definition.node if _SUMS.search(node.name)]


def let_ranks_meet(definition: Any, add: Callable[[np.ndarray], np.ndarray]) -> None:
    """Let the sums of a GraphDef call a function, one after another and in the same order on every rank.

    Args:
        definition: A GraphDef that the default graph is about to import.
        add: Returns the sum of an array over all ranks.

    Raises:
        ArgumentError: There is no such order.
    """
    token = tf.numpy_function(add, [tf.zeros([1], tf.float64)], tf.float64).op.get_attr("token")
    sums = {node.name for node in sums_of(definition)}
    nodes = {node.name: node for node in definition.node}
    order = _order(nodes, nodes)
    guards = _guards(nodes, order)
    always = [
        name for name in nodes if name in sums and not guards[name]
    ]  # these cannot wait for those that may not run
    order = _order(nodes, sorted([*always, *nodes], key=lambda name: name.startswith(GRADIENTS)))
    place = {name: at for at, name in enumerate(order)}
    users: dict[str, list[str]] = {}
    for node in definition.node:
        for each in node.input:
            users.setdefault(op_of(each), []).append(node.name)
    earlier: list[str] = []
    for name in [name for name in order if name in sums]:
        for other in reversed(earlier):
            nodes[name].input.append(f"^{_live(other, name, guards, place, users)}")
            if guards[other] <= guards[name]:  # it runs whenever this one does, and waits for those before it
                break
        earlier.append(name)
    for name in sums:
        node = nodes[name]
        node.op = "PyFunc"
        node.attr.clear()
        node.attr["token"].s = token
        for kind in ("Tin", "Tout"):
            node.attr[kind].list.type.append(tf.float64.as_datatype_enum)


def _order(nodes: Mapping[str, Any], roots: Iterable[str]) -> list[str]:
    """Return the names of nodes so that each follows all that it needs, loops aside; roots in their order."""
    order: list[str] = []
    names: set[str] = set()
    for root in roots:
        stack = [(root, False)]
        while stack:
            name, ready = stack.pop()
            if ready:
                order.append(name)
            elif name not in names:
                names.add(name)
                stack.append((name, True))
                stack += [(op_of(each), False) for each in reversed(nodes[name].input)]
    return order


def _guards(nodes: Mapping[str, Any], order: Iterable[str]) -> dict[str, frozenset[Any]]:
    """Return the conditions under which each node runs: predicates, and their values."""
    guards: dict[str, frozenset[Any]] = {}
    for name in order:
        conditions = []
        for each in nodes[name].input:
            source = op_of(each)
            guard = guards.get(source, frozenset())
            if nodes[source].op in _SWITCHES and not each.startswith("^"):
                predicate = _predicate(nodes, source)
                if nodes[op_of(predicate)].op != "LoopCond":  # a loop runs, and ends, whatever it counts to
                    guard |= {(predicate, each.endswith(":1"))}
            conditions.append(guard)
        join = frozenset.intersection if nodes[name].op in _MERGES else frozenset.union
        guards[name] = join(*conditions) if conditions else frozenset()
    return guards


def _predicate(nodes: Mapping[str, Any], switch: str) -> str:
    name = nodes[switch].input[1]
    while nodes[op_of(name)].op == "Identity":
        name = nodes[op_of(name)].input[0]
    return str(name)


def _live(
    sum_: str, follower: str, guards: Mapping[str, Any], place: Mapping[str, int], users: Mapping[str, list[str]]
) -> str:
    """Return a node that runs after a sum, or where that does not run, whenever its follower runs."""
    names, stack = set(), [sum_]
    while stack:
        name = stack.pop()
        if name not in names and place[name] < place[follower]:
            names.add(name)
            stack += users.get(name, [])
    alive = [name for name in names if guards[name] <= guards[follower]]
    if not alive:
        raise ArgumentError(
            f"batch normalization under several conditions ({sum_!r}, {follower!r}) has no order that all workers can "
            "keep. Use one placeholder for training in all of it, or train with one worker."
        )
    return min(alive, key=place.__getitem__)
