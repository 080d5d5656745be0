"""Terms: what a scalar of a graph is a mean or a sum over. Owns how ranks that hold parts of a step add up to it.

A loss of TensorFlow 1 is any scalar tensor. Ranks that each compute it on their own rows can be added up exactly where
it is a mean or a sum over the rows, or a combination of such terms; the graph tells which. A walk from the scalar back
to where the rows come in together finds out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.core.loading import triton_first

triton_first()
import tensorflow.compat.v1 as tf  # noqa: E402

ROWS = "rows"  # a mean over rows, or over what each row has equally many of
SUM = "sum"  # a sum over rows
COUNTED = "counted"  # a sum over rows, divided by something that the rows' values decide, such as the weights' sum
CONSTANT = "constant"  # the same on every rank: a penalty on the weights
WHOLE = "whole"  # anything else: only a rank that has all rows of a step can tell it

_SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"}  # they look at the shape of their input alone
_PICKS = {"Where", "Unique", "UniqueV2", "DynamicPartition", "SparseReorder", "NonMaxSuppressionV3", "ListDiff"}
_SAME = {"Identity", "Squeeze", "Reshape", "Cast", "Neg", "ExpandDims", "StopGradient", "Snapshot", "CheckNumerics"}
_ADDS = {"Add", "AddV2", "AddN", "Sub", "BiasAdd"}
_DIVIDES = {"RealDiv", "Div", "DivNoNan", "Xdivy"}
_REDUCES = {"Mean", "Sum", "Prod", "Max", "Min", "L2Loss", "EuclideanNorm"}
_COMPARES = _ADDS | _DIVIDES | {"Mul", "SquaredDifference", "Pow", "Maximum", "Minimum", "Equal", "Greater", "Less"}
_ALONG = {"Cumsum": 1, "Cumprod": 1, "ReverseV2": 1, "Roll": 2, "ExpandDims": 1}  # the input that has the axes
_MOMENTS = re.compile(r"moments(_\d+)?/")  # batch normalization, of which the learner warns


@dataclass(frozen=True)
class Term:
    """A part of a scalar, and what it is over.

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
    """

    def __init__(self, data: Iterable[Any]) -> None:
        sources = {tensor.op for tensor in data}
        self.dependent = _after(sources, frozenset())
        self.valued = _after(sources, _SHAPES)  # by the rows' values, not by their shapes alone
        self.picked = _after({op for op in self.dependent if op.type in _PICKS}, frozenset())
        self._mixed: dict[Any, bool] = {}

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
        """Return what a tensor without rows is over, as one term."""
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
            return (COUNTED, _SizeOf(inner)) if inner.op in self.picked else (ROWS, None)
        if op.type in _SAME:
            return self._kind(op.inputs[0])
        if op.type in ("Mul", "MulNoNan"):
            parts = [each for each in op.inputs if each.op in self.dependent]
            return self._kind(parts[0]) if len(parts) == 1 else (WHOLE, None)
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
        grows = None if lower.op in self.valued else self._grows(lower)
        if grows == "":
            return self._kind(upper)
        if grows and lower.op not in self.picked:
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
        return "rows" if int(np.ravel(begin)[0]) % tensor.shape.rank == 0 and has_rows(tensor) else ""

    def mixes(self, tensor: Any) -> bool:
        """Say whether what a tensor has for a row needs the values of other rows, batch normalization aside."""
        if tensor.op not in self._mixed:
            self._mixed[tensor.op] = any(self._mixes(op) for op in ancestors([tensor.op], False) & self.valued)
        return self._mixed[tensor.op]

    def _mixes(self, op: Any) -> bool:
        if not op.inputs or not op.outputs or _MOMENTS.search(op.name):
            return False
        fed = [each for each in op.inputs if each.op in self.valued]
        rows = [each for each in fed if has_rows(each)]
        if op.type in _REDUCES:  # rows become numbers, of which other rows are made
            return bool(rows) and op.outputs[0].dtype.is_floating and op.outputs[0].shape.is_fully_defined()
        if op.type == "MatMul":
            return len(fed) == 2
        if op.type == "Einsum":
            places = op.get_attr("equation").decode().split("->")[0].split(",")
            return len(rows) == 2 and places[0][:1] != places[1][:1]
        if op.type in _COMPARES:  # (rows, 1) and (rows,) become (rows, rows)
            return len({each.shape.rank for each in rows}) > 1
        if op.type in ("Softmax", "LogSoftmax"):  # rows lie along the last axis
            sizes = fed[0].shape.as_list() if fed and fed[0].shape.rank == 2 else []
            return bool(sizes) and sizes[0] is not None and sizes[1] is None
        if op.type in _ALONG and rows:
            axes = tf.get_static_value(op.inputs[_ALONG[op.type]])
            return axes is not None and 0 in np.ravel(axes) % (rows[0].shape.rank + (op.type == "ExpandDims"))
        if op.type == "TopKV2" or op.type == "RandomShuffle":
            return bool(rows) and (op.type == "RandomShuffle" or rows[0].shape.rank == 1)
        return op.type in ("StridedSlice", "Slice") and bool(rows) and not _takes_all_rows(op)

    @staticmethod
    def _joint(kinds: list[tuple[str, Any]]) -> tuple[str, Any]:
        """Return what a sum of tensors is over: all of one kind, where a mean may have a constant beside it."""
        distinct = list(dict.fromkeys(kinds))
        if len(distinct) == 1:
            return distinct[0]
        rest = [kind for kind in distinct if kind[0] != CONSTANT]
        return rest[0] if len(rest) == 1 and rest[0][0] in (ROWS, COUNTED) else (WHOLE, None)


@dataclass(frozen=True)
class _SizeOf:
    """The number of elements of a tensor, as something that becomes a tensor when it is needed."""

    tensor: Any


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


def has_rows(tensor: Any) -> bool:
    """Say whether a tensor's first dimension is one of any size, as that of rows is."""
    return bool(tensor.shape.rank) and tensor.shape.as_list()[0] is None


def ancestors(ops: Iterable[Any], control: bool = True) -> set[Any]:
    """Return these operations and all that must run before them."""
    found: set[Any] = set()
    stack = list(ops)
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack += [each.op for each in op.inputs]
            stack += op.control_inputs if control else ()
    return found


def _after(sources: Iterable[Any], stops: Iterable[str]) -> set[Any]:
    """Return operations and all that use what they give, except through operations of the types to stop at."""
    found: set[Any] = set()
    stack, ends = list(sources), set(stops)
    while stack:
        op = stack.pop()
        if op in found or op.type in ends:
            continue
        found.add(op)
        stack += [consumer for output in op.outputs for consumer in output.consumers()]
    return found
