"""Sparkplan: the columns and rows of files that a plan of Spark asks for, and how its partitions lie. Owns which nodes
and expressions are known to mean the same in Arrow.
"""

from __future__ import annotations

import datetime
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_CATALYST = "org.apache.spark.sql.catalyst."
RELATION = "org.apache.spark.sql.execution.datasources.LogicalRelation"
# Nodes that give a row for each row, where it lies.
_IN_PLACE = {f"{_CATALYST}plans.logical.{name}" for name in ("Project", "BatchEvalPython", "ArrowEvalPython")}


class OtherRoad(Exception):
    """The reason why Spark must read."""


def need(holds: bool, reason: str) -> None:
    """Leave the reading to Spark where something does not hold."""
    if not holds:
        raise OtherRoad(reason)


def read_plan(nodes: list[dict[str, Any]], by_place: bool) -> tuple[list[str], pc.Expression | None, list[str]]:
    """Return the column of the relation that each output is, the condition, and the columns in that."""
    *steps, relation = nodes
    need(relation["class"] == RELATION and not relation["isStreaming"], relation["class"])
    outputs = [(_identity(cells[0]), cells[0]["name"]) for cells in relation["output"]]
    conditions: list[_Condition] = []
    for step in reversed(steps):
        names = dict(outputs)
        if step["class"] == _CATALYST + "plans.logical.Filter":
            if not by_place:
                conditions.append(_condition(_term(iter(step["condition"]), names)))
        elif step["class"] == _CATALYST + "plans.logical.Project":
            outputs = [_output(cells, names) for cells in step["projectList"]]
        else:
            raise OtherRoad(step["class"])
    whole = reduce(operator.and_, (condition.expression for condition in conditions)) if conditions else None
    operands = [name for condition in conditions for name in condition.columns]
    return [name for _, name in outputs], whole, operands


def is_dealt(frame: Any, ranks: int) -> bool:
    """Say whether Spark deals the rows of a DataFrame out by turns, over so many partitions: as repartition(n) does.

    The partitions of a kept DataFrame lie as they were computed.
    """
    if not hasattr(frame, "_jdf"):  # Spark Connect tells no plan
        return False
    node = frame._jdf.queryExecution().optimizedPlan()
    while (name := node.getClass().getName()) != _CATALYST + "plans.logical.Repartition":
        if name == "org.apache.spark.sql.execution.columnar.InMemoryRelation":
            node = node.cacheBuilder().logicalPlan()
        elif name in _IN_PLACE:
            node = node.child()
        else:
            return False
    return bool(node.shuffle()) and node.numPartitions() == ranks


def _identity(node: dict[str, Any]) -> tuple[Any, ...]:
    return node["exprId"]["id"], node["exprId"]["jvmId"]


def _output(cells: list[dict[str, Any]], names: dict[Any, str]) -> tuple[Any, str]:
    """Return an item of a projection, an attribute or another name for one, with the column that it is."""
    *alias, attribute = cells
    classes = [node["class"].removeprefix(_CATALYST + "expressions.") for node in cells]
    need(classes in (["AttributeReference"], ["Alias", "AttributeReference"]), str(classes))
    return _identity(alias[0] if alias else attribute), names[_identity(attribute)]


@dataclass(frozen=True)
class _Attribute:
    name: str
    kind: Any


@dataclass(frozen=True)
class _Value:
    value: Any
    kind: Any


@dataclass(frozen=True)
class _Condition:
    expression: pc.Expression
    columns: tuple[str, ...]
    floats: bool = False


_Term = _Attribute | _Value | _Condition
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
}
_MIRRORED = {operator.lt: operator.gt, operator.le: operator.ge, operator.gt: operator.lt, operator.ge: operator.le}
# How the text of a value is read, and its type in Arrow.
_VALUES: dict[str, tuple[Callable[[str], Any], pa.DataType]] = {
    "boolean": ({"true": True, "false": False}.__getitem__, pa.bool_()),
    "byte": (int, pa.int8()),
    "short": (int, pa.int16()),
    "integer": (int, pa.int32()),
    "long": (int, pa.int64()),
    "float": (float, pa.float32()),
    "double": (float, pa.float64()),
    "string": (str, pa.string()),
    "date": (datetime.date.fromisoformat, pa.date32()),
}


def _term(nodes: Iterator[dict[str, Any]], names: dict[Any, str]) -> _Term:
    """Return an expression, whose nodes come parents first."""
    node = next(nodes)
    kind = node["class"].removeprefix(_CATALYST + "expressions.")
    terms = [_term(nodes, names) for _ in range(node["num-children"])]
    if kind == "AttributeReference":
        return _Attribute(names[_identity(node)], node["dataType"])
    if kind == "Literal":
        return _value(node)
    if kind in ("IsNull", "IsNotNull") and isinstance(terms[0], _Attribute):
        field = pc.field(terms[0].name)
        return _Condition(field.is_null() if kind == "IsNull" else field.is_valid(), (terms[0].name,))
    if kind in _COMPARISONS:
        return _comparison(kind, *terms)
    if kind == "In":
        comparisons = (_comparison("EqualTo", terms[0], value) for value in terms[1:])
        return reduce(partial(_joined, operator.or_), comparisons)
    if kind == "Not":
        condition = _condition(terms[0])
        need(not condition.floats, "a filter for which NaN may hold")
        return _Condition(~condition.expression, condition.columns)
    if kind in ("And", "Or"):
        return _joined(operator.or_ if kind == "Or" else operator.and_, *map(_condition, terms))
    raise OtherRoad(kind)


def _joined(join: Callable[[Any, Any], Any], one: _Condition, other: _Condition) -> _Condition:
    return _Condition(join(one.expression, other.expression), one.columns + other.columns, one.floats or other.floats)


def _condition(term: _Term) -> _Condition:
    if isinstance(term, _Attribute) and term.kind == "boolean":
        return _Condition(pc.field(term.name), (term.name,))
    if not isinstance(term, _Condition):
        raise OtherRoad(f"a filter by {term}")
    return term


def _value(node: dict[str, Any]) -> _Value:
    kind, text = node["dataType"], node.get("value")
    if text is None or not isinstance(kind, str) or kind not in _VALUES:
        raise OtherRoad(f"the value {text} of {kind}")
    value = _VALUES[kind][0](text)
    # Before, java.sql.Date, in which the plan is written, has another calendar or odd time zones.
    need(not (isinstance(value, datetime.date) and value.year < 1900), "a comparison with an old date")
    need("\ufffd" not in text, "a text that is no UTF-8")
    return _Value(value, kind)


def _comparison(kind: str, left: _Term, right: _Term) -> _Condition:
    """Return a column compared with a value.

    For Spark, NaN is larger than all numbers. But it skips row groups by the largest number in their footers, and those
    know of no NaN: only Spark finds the same rows. With its dictionary filters the two zeros are one, or two.
    """
    compare = _COMPARISONS[kind]
    if isinstance(left, _Value) and isinstance(right, _Attribute):
        left, right, compare = right, left, _MIRRORED.get(compare, compare)
    if not (isinstance(left, _Attribute) and isinstance(right, _Value) and left.kind == right.kind):
        raise OtherRoad(f"{kind} of {left} and {right}")
    floats = left.kind in ("float", "double")
    need(left.kind != "boolean" or compare is operator.eq, "an order of booleans")
    need(not floats or compare not in (operator.gt, operator.ge), "a filter for which NaN may hold")
    need(not floats or (right.value != 0 and not math.isnan(right.value)), "a comparison with zero or NaN")
    field = pc.field(left.name)
    holds = compare(field, pa.scalar(right.value, _VALUES[right.kind][1]))
    return _Condition(holds & field.is_valid() if kind == "EqualNullSafe" else holds, (left.name,), floats)
