"""Nodes: a GraphDef node by node. Owns making nodes, and what must run before them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


def op_of(reference: str) -> str:
    """Return the name of the operation that a tensor or a control input comes from."""
    return re.sub(r":\d+$", "", reference).lstrip("^")


def closure(nodes: Mapping[str, Any], roots: Iterable[str], stops: Iterable[str] = ()) -> set[str]:
    """Return nodes and all that must run before them; those to stop at are taken, and the nodes before them are not."""
    names: set[str] = set()
    stack, ends = list(roots), frozenset(stops)
    while stack:
        name = stack.pop()
        if name not in names:
            names.add(name)
            stack += [] if name in ends else [op_of(each) for each in nodes[name].input]
    return names


def node_of(name: str, op: str, inputs: Iterable[str] = (), **attributes: Any) -> Any:
    """Return a node; attributes are types, whole numbers, shapes (lists), or AttrValues."""
    return tf.NodeDef(
        name=name, op=op, input=list(inputs), attr={key: _attribute(value) for key, value in attributes.items()}
    )


def constant(name: str, value: np.ndarray, inputs: Iterable[str] = ()) -> Any:
    """Return a node with a constant."""
    proto = tf.AttrValue(tensor=tf.make_tensor_proto(value))
    return node_of(name, "Const", inputs, dtype=tf.as_dtype(value.dtype), value=proto)


def _attribute(value: Any) -> Any:
    if isinstance(value, tf.DType):
        return tf.AttrValue(type=value.as_datatype_enum)
    if isinstance(value, list):
        return tf.AttrValue(shape=tf.TensorShape(value).as_proto())
    return tf.AttrValue(i=value) if isinstance(value, int) else value
