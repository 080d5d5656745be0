"""Draws: the random numbers of a graph. Owns by which seeds they are drawn, in a fit and in its rehearsal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from orca_classic.tf1.graph.nodes import closure, constant, node_of

DRAW = "orca_draw"  # fed with the seeds of a step
# An operation that draws by its own count -> the one that draws by a seed it is given, the place of the seed among its
# inputs, and its attributes: the name there -> the name here.
_DRAWS: dict[str, tuple[str, int, dict[str, str]]] = {
    "RandomUniform": ("StatelessRandomUniform", 1, {"dtype": "dtype", "T": "T"}),
    "RandomStandardNormal": ("StatelessRandomNormal", 1, {"dtype": "dtype", "T": "T"}),
    "TruncatedNormal": ("StatelessTruncatedNormal", 1, {"dtype": "dtype", "T": "T"}),
    "RandomUniformInt": ("StatelessRandomUniformInt", 1, {"dtype": "Tout", "T": "T"}),
    "Multinomial": ("StatelessMultinomial", 2, {"T": "T", "output_dtype": "output_dtype"}),
    "RandomGamma": ("StatelessRandomGammaV2", 1, {"dtype": "T", "T": "S"}),
    "RandomPoissonV2": ("StatelessRandomPoisson", 1, {"dtype": "dtype", "Rtype": "R", "T": "S"}),
}
_OF_SHAPE = {"RandomUniform", "RandomStandardNormal", "TruncatedNormal"}
_ADDS_SHAPE = {"RandomGamma": "T", "RandomPoissonV2": "R"}  # that of their parameter, which is of this type
_LOOPS = {"Enter", "RefEnter", "NextIteration"}


def draw_by_step(definition: Any, names: set[str], entries: set[str]) -> tuple[str, tuple[str, ...]]:
    """Let operations draw by seeds that are fed; return the tensor they are fed to, "" for none, and those drawn.

    What is drawn for rows goes by the seed of a rank, all else by one that ranks have in common. Operations in a loop
    stay as they are, as they draw more than once in a step, and so do those within functions.

    Args:
        definition: The graph, which is changed.
        names: The operations that are used.
        entries: The operations that rows are fed to.
    """
    nodes = {node.name: node for node in definition.node}
    loops = {node.name for node in definition.node if node.op in _LOOPS}
    before = {name: closure(nodes, [name]) for name in names if nodes[name].op in _DRAWS}
    drawing = [node for node in definition.node if node.name in before and not before[node.name] & loops]
    if not drawing:
        return "", ()
    seeds = node_of(f"{DRAW}/seeds", "Unpack", [DRAW], num=2, axis=0, T=tf.int64)  # of this rank, and of all
    added = [node_of(DRAW, "Placeholder", dtype=tf.int64, shape=[2, 2]), seeds]
    for number, node in enumerate(drawing):
        offset = constant(f"{DRAW}/offset_{number}", np.array([number, 0], np.int64))
        source = f"{seeds.name}:{0 if before[node.name] & entries else 1}"
        own = node_of(f"{DRAW}/seed_{number}", "AddV2", [source, offset.name], T=tf.int64)
        added += [offset, own, *_drawn_by(node, own.name)]
    definition.node.extend(added)
    return f"{DRAW}:0", tuple(f"{node.name}:0" for node in drawing)


def _drawn_by(node: Any, seed: str) -> list[Any]:
    """Let an operation draw by a seed; return the nodes that it needs for that."""
    op, place, names = _DRAWS[node.op]
    inputs, added = list(node.input), []
    if node.op in _ADDS_SHAPE:
        kind = node.attr["S"]
        shape = node_of(f"{seed}/parameter", "Shape", inputs[1:2], T=node.attr[_ADDS_SHAPE[node.op]], out_type=kind)
        axis = constant(f"{seed}/axis", np.array(0, np.int32))
        both = node_of(f"{seed}/shape", "ConcatV2", [inputs[0], shape.name, axis.name], N=2, T=kind, Tidx=tf.int32)
        inputs[0], added = both.name, [shape, axis, both]
    inputs.insert(place, seed)
    attributes = {there: node.attr[here] for there, here in names.items()}
    node.CopyFrom(node_of(node.name, op, inputs, Tseed=tf.int64, **attributes))
    return added


def reseed(definition: Any, stream: int) -> None:
    """Give operations that still draw by their own seed and count other seeds, in functions of the graph, too."""
    for nodes, _ in _bodies(definition):
        for node in nodes:
            if stream and "seed2" in node.attr and node.attr["seed2"].i:
                node.attr["seed2"].CopyFrom(tf.AttrValue(i=node.attr["seed2"].i + stream))


def with_fixed_draws(graph: bytes) -> bytes:
    """Return a graph in which random numbers that nothing can be fed for are constants, or the same in each session."""
    definition = tf.GraphDef.FromString(graph)
    for nodes, suffix in _bodies(definition):
        for node in list(nodes):
            if node.op in _OF_SHAPE:
                kind = tf.as_dtype(node.attr["dtype"].type)
                frame = f"^{node.input[0].split(':')[0]}"  # that of a loop
                half = constant(f"{node.name}/half", np.array(0.5, kind.as_numpy_dtype), [frame])
                inputs = [node.input[0], half.name + suffix, *node.input[1:]]
                node.CopyFrom(node_of(node.name, "Fill", inputs, T=kind, index_type=node.attr["T"]))
                nodes.append(half)
            elif "seed2" in node.attr:
                node.attr["seed"].CopyFrom(tf.AttrValue(i=1))
                node.attr["seed2"].CopyFrom(tf.AttrValue(i=0))
    return bytes(definition.SerializeToString())


def _bodies(definition: Any) -> Iterator[tuple[Any, str]]:
    """Yield the nodes of a graph and of its functions, with what names of outputs end in there."""
    yield definition.node, ""
    for function in definition.library.function:
        yield function.node_def, ":output:0"
