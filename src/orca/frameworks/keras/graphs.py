"""Graphs: a step of Keras as graphs of TensorFlow. Owns when a step is traced anew."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from orca.frameworks.keras.travel import family_of


class Graphs:
    """A function of (structure, tensors) as graphs: one for each structure and kind of tensors.

    A graph takes any number of rows. Where another size differs from those seen before, it is traced anew with that
    size left free. A model that runs eagerly gets the function itself.
    """

    def __init__(self, model: Any, function: Callable[..., Any]) -> None:
        self.eager = bool(getattr(model, "run_eagerly", False))
        # As Keras 3 does; tf_keras converts.
        plain = family_of(model) == "keras"
        self.function = tf.autograph.experimental.do_not_convert(function) if plain else function
        self.graphs: dict[Any, tuple[list[Any], Any]] = {}

    def __call__(self, structure: Any, *tensors: Any) -> Any:
        """Call the function on tensors that make a tree of this structure."""
        if self.eager:
            return self.function(structure, *tensors)
        kind = (structure, *(tensor.dtype for tensor in tensors), *(tensor.shape.rank for tensor in tensors))
        specs = self.graphs[kind][0] if kind in self.graphs else None
        if specs is None or not all(s.shape.is_compatible_with(t.shape) for s, t in zip(specs, tensors, strict=True)):
            specs = [_spec(t, None if specs is None else specs[i].shape) for i, t in enumerate(tensors)]
            graph = tf.function(partial(self.function, structure), input_signature=specs)
            # A call of the graph itself costs half as much as one of the function around it.
            self.graphs[kind] = specs, graph.get_concrete_function()
        return self.graphs[kind][1](*tensors)


def _spec(tensor: Any, earlier: Any) -> Any:
    """Describe a tensor with any number of rows, and with any size where that differs from the earlier shape."""
    sizes = tensor.shape.as_list()
    before = sizes if earlier is None else earlier.as_list()
    shape = [None, *(s if s == b else None for s, b in zip(sizes[1:], before[1:], strict=True))] if sizes else []
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank, tensor.row_splits.dtype)
    return (
        tf.SparseTensorSpec(shape, tensor.dtype)
        if isinstance(tensor, tf.SparseTensor)
        else tf.TensorSpec(shape, tensor.dtype)
    )
