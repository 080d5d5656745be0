"""Terms: the parts of a scalar, each over rows or counts. Owns how ranks that hold parts of a step add up to it.

A loss of TensorFlow 1 is any scalar tensor. Ranks that each compute it on their own rows can be added up exactly where
it is a mean or a sum over the rows, or a combination of such terms; the graph tells which. A walk from the scalar back
to where the rows come in together finds out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

ROWS = "rows"  # a mean over rows, or over elements of which each row has equally many
SUM = "sum"  # a sum over rows
COUNTED = "counted"  # a sum over rows, divided by something that the rows' values decide, such as the weights' sum
CONSTANT = "constant"  # the same on every rank: a penalty on the weights
WHOLE = "whole"  # anything else: only a rank that has all rows of a step can tell it

_SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"}  # they look at the shape of their input alone
_PICKS = {"Where", "Unique", "UniqueV2", "DynamicPartition", "SparseReorder", "NonMaxSuppressionV3", "ListDiff"}
_SAME = {"Identity", "Squeeze", "Reshape", "Cast", "Neg", "ExpandDims", "StopGradient", "Snapshot", "CheckNumerics"}
_ADDS = {"Add", "AddV2", "AddN", "Sub", "BiasAdd"}
_DIVIDES = {"RealDiv", "Div", "DivNoNan", "Xdivy"}
_INVERTS = _DIVIDES | {"Reciprocal", "Inv"}
_REDUCES = {"Mean", "Sum", "Prod", "Max", "Min", "L2Loss", "EuclideanNorm"}
_ORDERS = {"Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr"}
_COMPARES = _ADDS | _DIVIDES | _ORDERS | {"Mul", "SquaredDifference", "Pow", "Maximum", "Minimum", "SelectV2"}
_DECIDES, _CHOOSES = {"Any", "All"}, {"Select", "SelectV2"}
_ALONG = {"Cumsum": 1, "Cumprod": 1, "ReverseV2": 1, "Roll": 2, "ExpandDims": 1, "ArgMax": 1, "ArgMin": 1}
_ALONG |= {"CumulativeLogsumexp": 1, "Split": 0, "SplitV": 2, "GatherV2": 2}  # the input that has the axes
_KEEPS_AXES = _COMPARES | {"Identity", "Cast", "Neg", "StopGradient", "Tanh", "Sigmoid", "Relu", "Exp", "Log", "Square"}
_KEEPS_AXES |= {"ReverseV2", "ReverseSequence", "Cumsum", "Cumprod", "Roll", "Softmax", "LogSoftmax", "ConcatV2"}
_SLIDES = {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"}
_SOLVES = {"Svd", "Qr", "Cholesky", "MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant", "SelfAdjointEigV2"}
_COUNTS = {"Size", "Prod", "StridedSlice", "GatherV2"}  # they may tell how many rows there are
_WHILES = {"While", "StatelessWhile"}
_TAKES_APART = {"TensorArrayScatterV3": 2, "TensorListFromTensor": 0}  # for a loop; the input that has the rows
_READS, _WRITES = {"TensorArrayReadV3", "TensorListGetItem"}, {"TensorArrayWriteV3", "TensorListSetItem"}
_NUMBERED = {"GatherNd": 1, "ScatterNd": 0, "TensorScatterUpdate": 1, "TensorScatterAdd": 1}  # that has the places


@dataclass(frozen=True)
class Term:
    """A part of a scalar, and the rows or counts that it is over.

    Attributes:
        tensor: The tensor.
        kind: One of ROWS, SUM, COUNTED, CONSTANT and WHOLE.
        mass: For COUNTED, the tensor that a rank's part counts by.
    """

    tensor: Any
    kind: str
    mass: Any = None


class Analysis:
    """A look at a graph, from where the rows come in.

    Args:
        data: The tensors that rows are fed to.
        sums: Operations whose outputs are the same on all ranks, though rows have a part in them.
    """

    def __init__(self, data: Iterable[Any], sums: Iterable[Any] = ()) -> None:
        sources = {tensor.op for tensor in data}
        self.sums = frozenset(sums)
        self.dependent = _after(sources, frozenset())
        self.by_value = _after(sources, _SHAPES)  # by the rows' values, not by their shapes alone
        self.after_picks = _after({op for op in self.dependent if op.type in _PICKS}, frozenset())
        self._mixers: dict[Any, str] = {}

    def terms(self, scalar: Any) -> list[Term]:
        """Return the terms whose sum is the scalar."""
        term = self.term(scalar)
        if term.kind != WHOLE:
            return [term]
        op = scalar.op
        if op.type in _SAME - {"Neg", "Cast"} or (op.type in ("Mean", "Sum") and op.inputs[0].shape.rank == 0):
            return self.terms(op.inputs[0])
        if op.type in ("Add", "AddV2", "AddN"):
            return [part for each in op.inputs for part in self.terms(each)]
        return [term]

    def term(self, tensor: Any) -> Term:
        """Return a tensor without rows as one term."""
        kind, mass = self._kind(tensor)
        return Term(tensor, kind, mass)

    def _kind(self, tensor: Any) -> tuple[str, Any]:
        op = tensor.op
        if op not in self.dependent:
            return CONSTANT, None
        if tensor.shape.rank is None or has_rows(tensor):
            return WHOLE, None
        if op.type in ("Mean", "Sum"):
            inner = op.inputs[0]
            if not has_rows(inner):
                return self._kind(inner)
            if self.mixes(inner):
                return WHOLE, None
            if op.type == "Sum":
                return SUM, None
            return (COUNTED, _SizeOf(inner)) if inner.op in self.after_picks else (ROWS, None)
        if op.type in _SAME:
            return self._kind(op.inputs[0])
        if op.type in ("Mul", "MulNoNan"):
            parts = [each for each in op.inputs if each.op in self.dependent]
            if len(parts) == 1:
                return self._kind(parts[0])
            for upper, factor in (parts, parts[::-1]):  # x * (1 / n) is x / n
                if factor.op.type in _INVERTS and not self.dependent & {each.op for each in factor.op.inputs[:-1]}:
                    return self._ratio(upper, factor.op.inputs[-1])
            return WHOLE, None
        if op.type in _DIVIDES:
            return self._ratio(*op.inputs[:2])
        if op.type in _ADDS:
            return self._joint([self._kind(each) for each in op.inputs])
        return WHOLE, None

    def _ratio(self, upper: Any, lower: Any) -> tuple[str, Any]:
        if lower.op not in self.dependent:
            return self._kind(upper)
        if self._kind(upper)[0] != SUM:
            return WHOLE, None
        grows = None if lower.op in self.by_value else self._grows(lower)
        if grows == "":
            return self._kind(upper)
        if grows and lower.op not in self.after_picks:
            return ROWS, None
        counts = grows or self._kind(lower)[0] == SUM
        return (COUNTED, lower) if counts and lower.shape.num_elements() == 1 else (WHOLE, None)

    def _grows(self, size: Any) -> str | None:
        """Say how a number that shapes decide grows: "rows" as the rows do, "" not with them, None in another way."""
        op = size.op
        if op not in self.dependent:
            return ""
        if op.type in _SAME:
            return self._grows(op.inputs[0])
        if op.type == "Size" or (op.type == "Prod" and op.inputs[0].op.type == "Shape"):
            return "rows" if has_rows((op if op.type == "Size" else op.inputs[0].op).inputs[0]) else ""
        if op.type == "Sum" and has_rows(op.inputs[0]):  # of ones, or of a number for each row
            return None if {"Range", "Cumsum"} & {each.type for each in ancestors([op])} else "rows"
        if op.type in ("StridedSlice", "GatherV2") and op.inputs[0].op.type == "Shape" and size.shape.rank == 0:
            return self._axis(op.inputs[0].op.inputs[0], tf.get_static_value(op.inputs[1]))
        growths = [self._grows(each) for each in op.inputs[:2]]
        if op.type == "Mul" and None not in growths and growths != ["rows", "rows"]:
            return "".join(map(str, growths))
        if op.type in _DIVIDES and growths[1:] == [""]:
            return growths[0]
        floor = [tf.get_static_value(each) for each in op.inputs if each.op not in self.dependent]
        if op.type == "Maximum" and "rows" in growths and floor and floor[0] is not None and np.all(floor[0] <= 1):
            return "rows"
        return None

    @staticmethod
    def _axis(tensor: Any, begin: Any) -> str | None:
        if begin is None or tensor.shape.rank is None:
            return None
        axis = int(np.ravel(begin)[0]) % tensor.shape.rank
        return "rows" if _is_open(tensor) and axis == _axis_of_rows(tensor) else ""

    def mixes(self, tensor: Any) -> bool:
        """Say whether a tensor's values for a row need other rows of this rank."""
        return bool(self.mixer(tensor))

    def mixer_before(self, scalar: Any) -> str:
        """Return the name of an operation that takes rows together before a scalar does; "" where there is none."""
        rows = [each for op in ancestors([scalar.op], False) & self.by_value for each in op.outputs if has_rows(each)]
        return min(filter(None, map(self.mixer, rows)), default="")

    def mixer(self, tensor: Any) -> str:
        """Return the name of an operation that takes rows together on the way to a tensor; "" where there is none."""
        if tensor.op not in self._mixers:
            before = ancestors([tensor.op], False, self.sums) & self.dependent
            mixing = (op.name for op in before if (self._mixes(op) if op in self.by_value else self._counts(op)))
            self._mixers[tensor.op] = min(mixing, default="")
        return self._mixers[tensor.op]

    def _counts(self, op: Any) -> bool:
        """Say whether an operation makes a value of how many rows this rank has, such as one to divide each row by."""
        if op.type != "Cast" or not op.outputs[0].dtype.is_floating or op.inputs[0].dtype.is_floating:
            return False
        shapes = [each for each in self.dependent if each.type in _SHAPES]  # their inputs do not matter
        sizes = [each for each in ancestors([op], False, shapes) & self.dependent if each.type in _COUNTS]
        return any(self._grows(each.outputs[0]) == "rows" for each in sizes if each not in self.by_value)

    def _mixes(self, op: Any) -> bool:
        if not op.inputs or not op.outputs or op in self.sums:
            return False
        values = [each for each in op.inputs if each.op in self.by_value]
        rows = [each for each in values if has_rows(each)]
        if op.type in _TAKES_APART:
            value = op.inputs[_TAKES_APART[op.type]]
            return any(each is value for each in rows) and not _axis_of_rows(value) and not self._maps(op)
        if bodies := [value.func.name for value in op.node_def.attr.values() if value.HasField("func")]:
            return bool(values) and any(self._mixes_within(op, name) for name in bodies)
        return _mixes_values(op, values, rows) or _mixes_places(op, values, rows)

    def _mixes_within(self, op: Any, function: str) -> bool:
        """Say whether a function that an operation calls mixes rows."""
        body = _Function.of(op, function)
        inner = Analysis(argument for argument, value in body.arguments if value.op in self.by_value)
        return any(map(inner.mixes, body.results))

    def _maps(self, op: Any) -> bool:
        """Say whether every loop that reads the rows of this operation has each row for itself: as `tf.map_fn` does.

        Such a loop reads and writes at one place, its counter, and carries nothing of a row to the next one.
        """
        users = op.outputs[0].consumers()
        bodies = [
            body for user in users if user.type in _WHILES for body in [_Function.of(user, user.get_attr("body"))]
        ]
        if any(user.type in _READS for user in users) or not all(self._maps_within(body, op) for body in bodies):
            return False
        inside = _users_in_loops(op.outputs[0])
        if any(user.type == "Enter" for user in inside):  # a loop within a loop
            return False
        loops = {user._get_control_flow_context() for user in inside if user.type in _READS}
        for loop in loops:
            ops = [each for each in op.graph.get_operations() if each._get_control_flow_context() is loop]
            reads = [each for each in ops if each.type in _READS and each in inside]
            carries = [_plain(each.inputs[0]).op for each in ops if each.type == "NextIteration"]
            if not _is_map(reads, carries, self.by_value):
                return False
        return True

    def _maps_within(self, body: _Function, op: Any) -> bool:
        lists = [argument.op for argument, value in body.arguments if value is op.outputs[0]]
        reads = [
            each for each in body.graph.get_operations() if each.type in _READS and _plain(each.inputs[0]).op in lists
        ]
        dependents = _after({argument.op for argument, value in body.arguments if value.op in self.by_value}, _SHAPES)
        pairs = [
            (_plain(result).op, argument) for result, (argument, _) in zip(body.results, body.arguments, strict=True)
        ]
        carries = [op for op, argument in pairs if op is not argument.op and not _is_kept_for_gradients(op, argument)]
        return _is_map(reads, carries, dependents)

    @staticmethod
    def _joint(kinds: list[tuple[str, Any]]) -> tuple[str, Any]:
        """Return the kind of a sum of tensors: all of one kind, where a mean may have a constant beside it."""
        distinct = list(dict.fromkeys(kinds))
        if len(distinct) == 1:
            return distinct[0]
        rest = [kind for kind in distinct if kind[0] != CONSTANT]
        return rest[0] if len(rest) == 1 and rest[0][0] in (ROWS, COUNTED) else (WHOLE, None)


def _mixes_values(op: Any, values: list[Any], rows: list[Any]) -> bool:
    """Say whether an operation computes with the values of several rows: sums, products, comparisons of them."""
    if op.type in _REDUCES | _DECIDES:  # rows become numbers, of which other rows are made
        whole = op.outputs[0].shape.is_fully_defined() and not all(each.shape.is_fully_defined() for each in values)
        axes = tf.get_static_value(op.inputs[1]) if len(op.inputs) == 2 else None
        reductions = [] if axes is None else [each for each in rows if _axis_of_rows(each) and _is_among(axes, each)]
        return (whole or bool(reductions)) and _is_value(op.outputs[0])
    if is_batch_norm(op):
        return bool(values)
    if op.type == "MatMul":
        return len(values) == 2
    if op.type.startswith("BatchMatMul"):
        return len(values) == 2 and any(map(_is_matrix_of_rows, values))
    if op.type in _SOLVES:
        return any(map(_is_matrix_of_rows, values))
    if op.type in _SLIDES:
        return any(each is op.inputs[0] for each in values) and _axis_of_rows(op.inputs[0]) > 0
    if op.type == "Einsum":
        places, _, letters_out = op.get_attr("equation").decode().partition("->")
        letters = {
            place[:1]
            for place, each in zip(places.split(","), op.inputs, strict=True)
            if any(each is one for one in rows)
        }
        return len(letters) > 1 or any(letter not in letters_out for letter in letters)
    if op.type in _COMPARES:  # (rows, 1) and (rows,), or (1, rows), become (rows, rows)
        return len({each.shape.rank for each in rows}) > 1 or any(_cross(a, b) for a in rows for b in values)
    if op.type in ("Softmax", "LogSoftmax"):  # rows lie along the last axis
        sizes = values[0].shape.as_list() if values and values[0].shape.rank == 2 else []
        return bool(sizes) and sizes[0] is not None and sizes[1] is None
    return False


def _mixes_places(op: Any, values: list[Any], rows: list[Any]) -> bool:
    """Say whether an operation moves rows to other places, or leaves some out."""
    if op.type in _ALONG:
        value, axes = op.inputs[op.type == "Split"], tf.get_static_value(op.inputs[_ALONG[op.type]])
        if axes is None or not _is_open(value) or all(each is not value for each in values):
            return False
        if op.type == "ExpandDims":
            return 0 in np.ravel(axes) % (value.shape.rank + 1) and not _axis_of_rows(value)
        return _is_among(axes, value) and not _keeps_rows(op)
    if op.type in _NUMBERED or "Segment" in op.type:
        return bool(rows) and not (op.type in _NUMBERED and _is_numbered(op.inputs[_NUMBERED[op.type]]))
    if op.type == "Unpack":
        return bool(rows) and op.get_attr("axis") % rows[0].shape.rank == 0
    if op.type in ("Reshape", "EnsureShape"):
        return bool(rows) and _regroups(op)
    if op.type == "DynamicStitch":
        return bool(rows) and not all(map(_is_numbered, op.inputs[: len(op.inputs) // 2]))
    if op.type == "TopKV2":  # along the last axis
        value = op.inputs[0]
        return bool(values) and _is_open(value) and _axis_of_rows(value) == value.shape.rank - 1
    if op.type == "RandomShuffle":
        return bool(rows)
    if op.type in ("StridedSlice", "Slice"):
        return bool(rows) and not _axis_of_rows(rows[0]) and not _takes_all_rows(op)
    return False


@dataclass(frozen=True)
class _Function:
    """A function that an operation calls: its graph, arguments, each with its value, and results."""

    graph: Any
    arguments: list[tuple[Any, Any]]
    results: list[Any]

    @classmethod
    def of(cls, op: Any, function: Any) -> _Function:
        """Return the function of a name."""
        library = op.graph.as_graph_def().library
        name = getattr(function, "name", function)
        definition = next(each for each in library.function if each.signature.name == name)
        names = [argument.name for argument in definition.signature.input_arg]
        inputs = list(op.inputs)[-len(names) :] if names else []  # a condition comes before them
        body, tensors = function_def_to_graph_def(definition, [each.shape for each in inputs])
        body.library.CopyFrom(library)
        for node in body.node:
            node.attr.pop("_class", None)
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(body, name="")
        arguments = [graph.get_tensor_by_name(f"{name}:0") for name in names]
        ends = [definition.ret[end.name] for end in definition.signature.output_arg]
        return cls(
            graph,
            list(zip(arguments, inputs, strict=True)),
            [graph.get_tensor_by_name(tensors[end]) for end in ends],
        )


def _is_kept_for_gradients(op: Any, argument: Any) -> bool:
    """Say whether a loop only adds to a list, which tf.gradients reads in a loop of its own."""
    return op.type == "TensorListPushBack" and argument.consumers() == [op]


def _is_map(reads: list[Any], carries: list[Any], dependents: set[Any]) -> bool:
    """Say whether a loop reads rows, and writes, at the place of one counter, and carries no more of them."""
    writes = [op for op in carries if op.type in _WRITES]
    counters = {_plain(op.inputs[1]).op for op in (*reads, *writes)}
    alone = len(counters) == 1 and next(iter(counters)).type in ("Switch", "Placeholder")
    return alone and not any(op in dependents for op in carries if op not in writes)


def _plain(tensor: Any) -> Any:
    """Return a tensor before the operations that leave it as it is."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


@dataclass(frozen=True)
class _SizeOf:
    """The number of elements of a tensor, as something that becomes a tensor when it is needed."""

    tensor: Any


def _is_value(number: Any) -> bool:
    """Say whether a number may become part of rows: a whole one tells a shape, such as the longest length's."""
    users = [user for user in number.consumers() if user.type == "Cast"]
    chooses = number.dtype.base_dtype == tf.bool and any(each.type in _CHOOSES for each in number.consumers())
    return bool(chooses or number.dtype.is_floating or any(user.outputs[0].dtype.is_floating for user in users))


def _keeps_rows(op: Any) -> bool:
    """Say whether an operation along the axis of rows picks some as they are, or parts a stack again."""
    if op.type == "GatherV2":
        return op.get_attr("batch_dims") > 0 or bool({"Where", "Range"} & {end.type for end in _ends_of(op.inputs[1])})
    joins = [each for each in ancestors([op], False) if each.type == "ConcatV2" and has_rows(each.outputs[0])]
    along = [each for each in joins if tf.get_static_value(each.inputs[-1]) == 0]
    return op.type in ("Split", "SplitV") and any(len(each.inputs) - 1 == len(op.outputs) for each in along)


def _is_numbered(places: Any) -> bool:
    """Say whether places begin with the number of their own row, or are those of a mask."""
    while places.op.type in _SAME:
        places = places.op.inputs[0]
    first = places.op.inputs[0] if places.op.type in ("Pack", "ConcatV2") else places
    return bool({"Range", "Where", "DynamicPartition"} & {end.type for end in _ends_of(first)})


def _ends_of(tensor: Any) -> set[Any]:
    """Return the origin of a tensor, by way of operations that keep its contents."""
    op = tensor.op
    while op.type in _SAME | {"Tile", "BroadcastTo", "Pack", "ConcatV2"} and op.inputs:
        op = op.inputs[0].op
    if op.type == "StridedSlice" and op.inputs[0].op.type == "Where":  # a column of places
        return {op.inputs[0].op}
    products = [each.op for each in op.inputs if each.op.type == "Mul"] if op.type in ("Add", "AddV2") else []
    parts = [end for each in products for part in each.inputs for end in _ends_of(part) if end.type == "Range"]
    if op.type == "Range" and tf.get_static_value(op.inputs[2]) != 1:
        return set()  # rows from the last to the first
    return set(parts) or {op}  # the number of a row, times the length of rows that lie one after another, and a place


def _regroups(op: Any) -> bool:
    """Say whether a reshape makes one row of several that were never parts of one, or a known number of groups."""
    groups = op.outputs[0].shape.as_list()[0] if op.outputs[0].shape.rank else None
    if groups not in (None, 1) and has_rows(op.inputs[0]) and not _axis_of_rows(op.inputs[0]):
        return True
    old, new = (_width(each) for each in (op.inputs[0], op.outputs[0]))
    if old is None or new is None or new <= old:
        return False
    earlier = [each for each in ancestors([op], False) - {op} if each.type == "Reshape"]
    widths = [(_width(each.inputs[0]), _width(each.outputs[0])) for each in earlier]
    return not any(a is None or b is None or a * old >= b * new for a, b in widths)


def _width(tensor: Any) -> int | None:
    """Return how many numbers a row has; None where that is not known, or there are no rows."""
    sizes = tensor.shape.as_list()[1:] if has_rows(tensor) else [None]
    return None if None in sizes else math.prod(sizes)


def _axis_of_rows(tensor: Any) -> int:
    """Return the axis along which rows lie: not the first after a transposition that has put time there."""
    op = tensor.op
    if op.type == "Transpose":
        order = tf.get_static_value(op.inputs[1])
        return 0 if order is None else list(order).index(_axis_of_rows(op.inputs[0]))
    if op.type in ("TensorArrayGatherV3", "TensorListStack"):
        return _axis_of_written(op)
    alike = [each for each in op.inputs if _is_open(each) and each.shape.rank == tensor.shape.rank]
    if alike and op.type in _KEEPS_AXES:
        return _axis_of_rows(next(filter(has_rows, alike), alike[0]))
    return tensor.shape.as_list().index(None) if _is_open(tensor) else 0


def _axis_of_written(op: Any) -> int:
    """Return the axis along which rows lie in a loop's result: the second, unless it went over rows one by one."""
    writers, readers = [], []
    if op.type == "TensorListStack" and (loop := _plain(op.inputs[0])).op.type in _WHILES:
        body = _Function.of(loop.op, loop.op.get_attr("body"))
        writers = [_plain(body.results[loop.value_index]).op]
        readers = [value.op for _, value in body.arguments]
    elif op.type == "TensorArrayGatherV3":
        inside = _users_in_loops(op.inputs[0])
        writers = [user for user in inside if user.type in _WRITES]
        loops = {user._get_control_flow_context() for user in writers}
        ops = [each for each in op.graph.get_operations() if each.type in _READS]
        readers = [each.inputs[2].op.inputs[0].op for each in ops if each._get_control_flow_context() in loops]
    values = [each.inputs[2] for each in writers if each.type in _WRITES]
    sources = [each.inputs[_TAKES_APART[each.type]] for each in readers if each.type in _TAKES_APART]
    by_row = any(has_rows(each) and not _axis_of_rows(each) for each in sources)
    return 1 + _axis_of_rows(values[0]) if values and has_rows(values[0]) and not by_row else 0


def _users_in_loops(tensor: Any) -> list[Any]:
    """Return the operations within loops that use a tensor from outside."""
    enters = [user for user in tensor.consumers() if user.type == "Enter"]
    return [user for enter in enters for user in enter.outputs[0].consumers()]


def _is_open(tensor: Any) -> bool:
    """Say whether a tensor has a dimension of any size, wherever it is."""
    return bool(tensor.shape.rank) and None in tensor.shape.as_list()


def _is_matrix_of_rows(tensor: Any) -> bool:
    """Say whether rows lie along one of the last two axes, those of matrices."""
    return _is_open(tensor) and _axis_of_rows(tensor) >= tensor.shape.rank - 2


def _is_among(axes: Any, tensor: Any) -> bool:
    return _axis_of_rows(tensor) in np.ravel(axes) % tensor.shape.rank


def _cross(column: Any, other: Any) -> bool:
    """Say whether one tensor is (rows, 1), and another (1, rows), whatever axes there are beside these."""
    sizes, others = column.shape.as_list(), other.shape.as_list() if other.shape.rank == column.shape.rank else [None]
    return others[0] == 1 and (1, None) in zip(sizes, others, strict=True)


def _takes_all_rows(op: Any) -> bool:
    begin, size = (tf.get_static_value(each) for each in op.inputs[1:3])
    if op.type == "Slice":
        return begin is not None and size is not None and begin[0] == 0 and size[0] == -1
    if (op.get_attr("ellipsis_mask") & 1) or not op.inputs[1].shape.num_elements():
        return True
    strides = tf.get_static_value(op.inputs[3])
    from_first = op.get_attr("begin_mask") & 1 or (begin is not None and begin[0] == 0)
    whole = from_first and op.get_attr("end_mask") & 1 and strides is not None and strides[0] == 1
    return bool(whole) and not (op.get_attr("new_axis_mask") | op.get_attr("shrink_axis_mask")) & 1


def mass_tensor(term: Term) -> Any:
    """Return the scalar tensor, in float32, that a rank's part of a COUNTED term counts by."""
    mass = tf.size(term.mass.tensor) if isinstance(term.mass, _SizeOf) else term.mass
    return tf.reshape(tf.cast(mass, tf.float32), [])


def is_batch_norm(op: Any) -> bool:
    """Say whether an operation normalizes, or its gradient does, by the statistics of the rows that it gets.

    Keras normalizes layers with the same operation: each row is a channel then, and their number is not known.
    """
    if not op.type.startswith("FusedBatchNorm") or not op.get_attr("is_training"):
        return False
    return bool(op.inputs[2 if "Grad" in op.type else 1].shape.is_fully_defined())


def has_rows(tensor: Any) -> bool:
    """Say whether a tensor's first dimension is one of any size, as that of rows is."""
    return bool(tensor.shape.rank) and tensor.shape.as_list()[0] is None


def ancestors(ops: Iterable[Any], control: bool = True, stops: Iterable[Any] = ()) -> set[Any]:
    """Return these operations and all that must run before them; not the ones before those to stop at."""
    earlier: set[Any] = set()
    stack, ends = list(ops), frozenset(stops)
    while stack:
        op = stack.pop()
        if op not in earlier:
            earlier.add(op)
            if op not in ends:
                stack += [each.op for each in op.inputs]
                stack += op.control_inputs if control else ()
    return earlier


def _after(sources: Iterable[Any], stops: Iterable[str]) -> set[Any]:
    """Return operations and all users of their outputs, except through operations of the types to stop at."""
    users: set[Any] = set()
    stack, ends = list(sources), set(stops)
    while stack:
        op = stack.pop()
        if op in users or op.type in ends:
            continue
        users.add(op)
        stack += [consumer for output in op.outputs for consumer in output.consumers()]
    return users
