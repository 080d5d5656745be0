"""Terms: how a scalar is made of rows. Owns which scalars are provably means and sums over rows.

A loss of TensorFlow 1 is any scalar tensor. Walking back from it, there is a frontier: the operations that turn rows
into numbers without rows. Where all that follows is a sum of means and sums over rows, ranks need nothing but the rows
of a step to add up their parts (ROWS, SUM, CONSTANT). Any other scalar (JOINT) is computed from totals over all ranks
at that frontier (norms.py). That rows are computed each for itself is not read off the graph: rehearsal.py tries it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

ROWS = "rows"  # a mean over rows, or over elements of which each row has equally many
SUM = "sum"  # a sum over rows
CONSTANT = "constant"  # the same on every rank: a penalty on the weights
JOINT = "joint"  # anything else, computed from totals over the rows of all ranks

_SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"}  # they read only the shape of their input
# Operations with values that decide how many rows there are after them.
_PICKS = {"Where", "Unique", "UniqueV2", "DynamicPartition", "SparseReorder", "NonMaxSuppressionV3", "ListDiff"}
_SAME = {"Identity", "Squeeze", "Reshape", "ExpandDims", "Snapshot", "CheckNumerics", "Print"}
_LINEAR = _SAME | {"Cast", "Neg", "StopGradient", "Mean", "Sum"}
_SPLITS = {"Add", "AddV2", "AddN"}
_DIVIDES = {"RealDiv", "Div", "DivNoNan", "Xdivy"}
_FLOWS = ("TensorArray", "TensorList")  # their scalars are handles
WRITES = ("Assign", "Scatter", "Apply", "ResourceApply", "ResourceScatter")


@dataclass(frozen=True)
class Term:
    """A part of a scalar.

    Attributes:
        tensor: The tensor.
        kind: One of ROWS, SUM, CONSTANT and JOINT.
    """

    tensor: Any
    kind: str


@dataclass(frozen=True)
class Head:
    """The end of a computation: what is computed from totals over rows.

    Attributes:
        ops: Its operations.
        reductions: The operations before these, which turn rows into numbers.
        stops: The operations before these whose outputs are totals already.
    """

    ops: frozenset[Any]
    reductions: tuple[Any, ...]
    stops: frozenset[Any] = frozenset()


class Analysis:
    """A look at a graph, from where the rows come in.

    Args:
        data: The tensors that rows are fed to.
    """

    def __init__(self, data: Iterable[Any]) -> None:
        sources = {tensor.op for tensor in data}
        self.dependent = _after(sources, frozenset())
        self.by_value = _after(sources, _SHAPES)  # by the rows' values, not by their shapes alone
        self.after_picks = _after({op for op in self.dependent if op.type in _PICKS}, frozenset())

    def terms(self, scalar: Any) -> list[Term]:
        """Return the terms whose sum is the scalar."""
        kind = self._kind(scalar)
        parts = [scalar] if kind != JOINT else self._summands(scalar)
        terms = [Term(part, self._kind(part)) for part in parts]
        return [Term(scalar, JOINT)] if any(term.kind == JOINT for term in terms) else terms

    def head(self, roots: Iterable[Any], stops: Iterable[Any] = ()) -> Head:
        """Return what follows the frontier on the way to some operations, and the reductions at the frontier.

        Args:
            roots: The operations.
            stops: Operations whose outputs are totals already.
        """
        ops: set[Any] = set()
        reductions: set[Any] = set()
        met: set[Any] = set()
        stack, ends = list(roots), frozenset(stops)
        while stack:
            op = stack.pop()
            if op in ops or op not in self.dependent:
                continue
            if op in ends:
                met.add(op)
            elif reduces(op):
                reductions.add(op)
            elif not any(is_open(each) for each in op.inputs):
                ops.add(op)
                stack += [*(each.op for each in op.inputs), *_written_before(op)]
        return Head(frozenset(ops), tuple(sorted(reductions, key=lambda op: op.name)), frozenset(met))

    def _summands(self, tensor: Any) -> list[Any]:
        """Return the tensors that a scalar adds up, as far as their gradients are those of a sum."""
        op = tensor.op
        if "_gradient_op_type" in op.node_def.attr:  # a gradient of the user's own
            return [tensor]
        if op.type in _SPLITS:
            return [part for each in op.inputs for part in self._summands(each)]
        if op.type in _SAME or (op.type in ("Mean", "Sum") and op.inputs[0].shape.rank == 0):
            return self._summands(op.inputs[0])
        return [tensor]

    def _kind(self, tensor: Any) -> str:
        op = tensor.op
        if op not in self.dependent:
            return CONSTANT
        if reduces(op):
            if op.type == "Mean" and op not in self.after_picks:
                return ROWS
            return SUM if op.type in ("Sum", "L2Loss") else JOINT
        if tensor.shape.rank is None or any(is_open(each) for each in op.inputs):
            return JOINT
        if op.type in _LINEAR:
            return self._kind(op.inputs[0])
        if op.type in ("Mul", "MulNoNan"):
            parts = [each for each in op.inputs if each.op in self.dependent]
            return self._kind(parts[0]) if len(parts) == 1 else JOINT
        if op.type in _DIVIDES:
            return self._ratio(*op.inputs[:2])
        if op.type in _SPLITS | {"Sub"}:
            kinds = {self._kind(each) for each in op.inputs}
            if kinds == {ROWS, CONSTANT}:
                return ROWS
            return kinds.pop() if len(kinds) == 1 else JOINT
        return JOINT

    def _ratio(self, upper: Any, lower: Any) -> str:
        if lower.op not in self.dependent:
            return self._kind(upper)
        if self._kind(upper) != SUM or lower.op in self.by_value or lower.op in self.after_picks:
            return JOINT
        return {"rows": ROWS, "": SUM}.get(str(self._grows(lower)), JOINT)

    def _grows(self, size: Any) -> str | None:
        """Return how a number grows that shapes decide: "rows" as rows do, "" not with them, None in another way."""
        op = size.op
        if op not in self.dependent:
            return ""
        if op.type in _SAME | {"Cast"}:
            return self._grows(op.inputs[0])
        if op.type == "Size" or (op.type == "Prod" and op.inputs[0].op.type == "Shape"):
            return "rows" if has_rows((op if op.type == "Size" else op.inputs[0].op).inputs[0]) else None
        if op.type == "Sum" and has_rows(op.inputs[0]):  # of ones, or of a number for each row
            return None if {"Range", "Cumsum"} & {each.type for each in ancestors([op])} else "rows"
        if op.type == "StridedSlice" and op.inputs[0].op.type == "Shape" and size.shape.rank == 0:
            first = tf.get_static_value(op.inputs[1])
            return "rows" if has_rows(op.inputs[0].op.inputs[0]) and first is not None and not first[0] else None
        growths = [self._grows(each) for each in op.inputs[:2]]
        if op.type == "Mul" and None not in growths and growths != ["rows", "rows"]:
            return "".join(map(str, growths))
        if op.type in _DIVIDES and growths[1:] == [""]:
            return growths[0]
        floor = [tf.get_static_value(each) for each in op.inputs if each.op not in self.dependent]
        if op.type == "Maximum" and "rows" in growths and floor and floor[0] is not None and np.all(floor[0] <= 1):
            return "rows"
        return None


def reduces(op: Any) -> bool:
    """Return whether an operation turns rows into one tensor of a known shape."""
    if len(op.outputs) != 1 or op.type.startswith((*WRITES, *_FLOWS)):
        return False
    output = op.outputs[0]
    numbers = output.dtype.is_floating or output.dtype.is_integer
    return bool(numbers and output.shape.is_fully_defined() and any(is_open(each) for each in op.inputs))


def is_batch_norm(op: Any) -> bool:
    """Return whether an operation normalizes, or its gradient does, by the statistics of the rows that it gets.

    Keras normalizes layers with the same operation: each row is a channel then, and their number is not known.
    """
    if not op.type.startswith("FusedBatchNorm") or not op.get_attr("is_training"):
        return False
    return bool(op.inputs[2 if "Grad" in op.type else 1].shape.is_fully_defined())


def is_open(tensor: Any) -> bool:
    """Return whether a tensor has a dimension of any size, wherever it is, or any shape."""
    return tensor.dtype.base_dtype not in (tf.resource, tf.variant) and not tensor.shape.is_fully_defined()


def has_rows(tensor: Any) -> bool:
    """Return whether a tensor's first dimension is one of any size, as that of rows is."""
    return bool(tensor.shape.rank) and tensor.shape.as_list()[0] is None


def ancestors(ops: Iterable[Any], control: bool = True) -> set[Any]:
    """Return these operations and all that must run before them."""
    earlier: set[Any] = set()
    stack = list(ops)
    while stack:
        op = stack.pop()
        if op not in earlier:
            earlier.add(op)
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
        stack += [user for user in op._control_outputs if op in _written_before(user)]
    return users


def _written_before(op: Any) -> list[Any]:
    """Return the writes into a variable that a reading of it waits for: it has their results."""
    if op.type != "ReadVariableOp":
        return []
    return [each for each in op.control_inputs if each.type.startswith(WRITES) and each.inputs[0] is op.inputs[0]]
