"""Topology: the layers of a graph. Owns their order, and the picture that TensorBoard draws of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from orca.errors import ArgumentError


class Topology:
    """A graph of layers from input nodes to output nodes."""

    inputs: list[Any]
    outputs: list[Any]

    @cached_property
    def parts(self) -> list[Any]:
        """The layers in the order of the modules of the graph."""
        return list({id(node.layer): node.layer for node in ordered(self.inputs, self.outputs)}.values())

    def steps(self) -> dict[str, Any]:
        """Return the steps of the graph as files store them."""
        raise NotImplementedError

    def save_graph_topology(self, log_path: str, backward: bool = False, bigdl_type: str = "float") -> Any:
        """Write the graph for TensorBoard; returns the graph.

        Args:
            log_path: A folder at any fsspec path; `tensorboard --logdir` takes it.
            backward: Ignored; the backward pass is torch's own.
        """
        from orca.report.tensorboard import EventFiles

        parts, values = self.parts, [node.layer.name() for node in self.inputs]
        nodes = {name: (name, "Placeholder", list[str]()) for name in values}
        for which, places in self.steps()["steps"]:
            part, uses = parts[which], [values[place] for place in places]
            is_new = part.name() not in nodes or (uses[:1] == [part.name()] and not nodes[part.name()][2])
            name = part.name() if is_new else f"{part.name()}_{len(values)}"
            nodes.setdefault(name, (name, type(part).__name__, uses))
            values.append(name)
        events = EventFiles(log_path, None, grows=False)
        events.add_graph(nodes.values())
        events.close()
        return self


def begins(node: Any) -> bool:
    """Return whether a node is a layer without inputs, such as Linear(2, 3)(), not an Input."""
    from orca_classic.bigdl.layer import Node

    return type(node) is Node and not node.previous


def ordered(inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Return the nodes from the inputs to the outputs in topological order."""
    input_ids = {id(node) for node in inputs}
    order_ids, order = {id(node) for node in inputs if not begins(node)}, []
    stack = [(node, False) for node in reversed(outputs)]
    while stack:
        node, ready = stack.pop()
        if id(node) in order_ids:
            continue
        if ready:
            order_ids.add(id(node))
            order.append(node)
        elif not (node.previous or id(node) in input_ids or node.layer.is_source):
            raise ArgumentError(f"{node.layer} has no nodes before it and is not among the inputs of the Model.")
        else:
            stack.append((node, True))
            stack += [(before, False) for before in reversed(node.previous)]
    return order
