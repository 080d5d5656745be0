"""GraphModule: a frozen TensorFlow graph as a torch module. Owns how tensors and gradients pass between the two.

The graph is a part of a larger model of torch, such as one of BigDL's layers: it has no trainable weights, but passes
gradients to the layers before it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from orca.errors import ArgumentError
from orca_classic.data.tf.loading import tensorflow


class GraphModule(nn.Module):
    """A frozen graph that computes tensors of torch.

    Args:
        definition: The graph, as a GraphDef's bytes.
        inputs: Names of the tensors that are fed.
        outputs: Names of the tensors to answer with.
    """

    _open_session: _Session | None = None  # of this process

    def __init__(self, definition: bytes, inputs: list[str], outputs: list[str]) -> None:
        super().__init__()
        self.definition, self.inputs, self.outputs = definition, list(inputs), list(outputs)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_open_session"}

    def extra_repr(self) -> str:
        """Return its inputs and outputs as torch prints them."""
        return f"{', '.join(self.inputs)} -> {', '.join(self.outputs)}"

    def forward(self, *inputs: Any) -> Any:
        """Return the output for one tensor or several; a list if the graph has several outputs.

        Raises:
            ArgumentError: The graph has another number of inputs.
        """
        tensors = list(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], list | tuple) else list(inputs)
        if len(tensors) != len(self.inputs):
            raise ArgumentError(f"the graph has the inputs {self.inputs}; got {len(tensors)} tensor(s).")
        answers = _Run.apply(self._session(), *tensors)
        return answers[0] if len(answers) == 1 else list(answers)

    def _session(self) -> _Session:
        if self._open_session is None:
            self._open_session = _Session(self.definition, self.inputs, self.outputs)
        return self._open_session


class _Session:
    """A session of the graph in this process, with the gradients of its inputs."""

    def __init__(self, definition: bytes, inputs: list[str], outputs: list[str]) -> None:
        from orca_classic.tf1.graph.program import FedTensor

        tf = tensorflow().compat.v1
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(tf.GraphDef.FromString(definition), name="")
            self.inputs, self.outputs = (
                [self.graph.get_tensor_by_name(n) for n in group] for group in (inputs, outputs)
            )
        self.ports = [FedTensor.of(tensor) for tensor in self.inputs]
        self.session = tf.Session(graph=self.graph)
        self._gradients: Any = None

    def answers(self, tensors: tuple[Any, ...]) -> list[Any]:
        return self._torch(self.session.run(self.outputs, self._feed(tensors)))

    def gradients(self, tensors: tuple[Any, ...], outer: tuple[Any, ...]) -> list[Any]:
        """Return the gradient of each input; None if the graph has none."""
        tf = tensorflow().compat.v1
        if self._gradients is None:
            with self.graph.as_default():
                ports = [tf.placeholder(tensor.dtype, tensor.shape) for tensor in self.outputs]
                gradients = tf.gradients(self.outputs, self.inputs, ports)
                dense = [
                    None if each is None else tf.convert_to_tensor(each) for each in gradients
                ]  # not IndexedSlices
                self._gradients = ports, dense
        ports, gradients = self._gradients
        feed = {
            **self._feed(tensors),
            **{at: each.detach().cpu().numpy() for at, each in zip(ports, outer, strict=True)},
        }
        heads = [gradient for gradient in gradients if gradient is not None]
        values = iter(self._torch(self.session.run(heads, feed)))
        return [
            None if gradient is None else next(values).reshape(tensor.shape)
            for gradient, tensor in zip(gradients, tensors, strict=True)
        ]

    def _feed(self, tensors: tuple[Any, ...]) -> dict[Any, Any]:
        arrays = [port.arrange(tensor.detach().cpu().numpy()) for port, tensor in zip(self.ports, tensors, strict=True)]
        return dict(zip(self.inputs, arrays, strict=True))

    @staticmethod
    def _torch(arrays: list[Any]) -> list[Any]:
        return [torch.from_numpy(array.copy()) for array in arrays]


class _Run(torch.autograd.Function):
    """A run of a session as a step of torch's autograd."""

    @staticmethod
    def forward(ctx: Any, session: _Session, *tensors: Any) -> tuple[Any, ...]:  # type: ignore[override]
        ctx.session = session
        ctx.save_for_backward(*tensors)
        answers = tuple(answer.to(tensors[0].device) for answer in session.answers(tensors))
        ctx.mark_non_differentiable(*(answer for answer in answers if not answer.is_floating_point()))
        return answers

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> tuple[Any, ...]:  # type: ignore[override]
        gradients = ctx.session.gradients(ctx.saved_tensors, outer)
        device = outer[0].device
        return (None, *(None if each is None else each.to(device) for each in gradients))
