"""Recurrent: BigDL's layers over time. Owns cells, the order of their gates and weights, and how states go on.

A cell has `project` (what all steps need of the input, computed at once), `begin` (the first state) and `step`. Inputs are
(batch, time, ...). Weights are, in this order: of the input, their bias, of the hidden state.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orca.bigdl.layer import LAYERS, Container, Parts, layer
from orca.bigdl.layers import Weights
from orca.errors import ArgumentError, DataError

State = tuple[Tensor, ...]


class Cell(Weights):
    """A cell: weights of the input for some gates, and of the hidden state."""

    hidden: Any
    hidden_value: Any
    bias_hidden: Any
    peep: Any

    def __init__(
        self, input_size: int, hidden_size: int, gates: int, p: float = 0.0, **more: Sequence[int] | None
    ) -> None:
        shapes = {"weight": [gates * hidden_size, input_size], "bias": [gates * hidden_size], **more}
        super().__init__(hidden_size, **shapes)
        self.size, self.states, self.p = hidden_size, 1, p

    def project(self, x: Tensor) -> Tensor:
        """Return what the gates get of the input at every step."""
        return F.linear(self.drop(x), self.weight, self.bias)

    def begin(self, x: Tensor) -> State:
        """Return the first state, of zeros."""
        return tuple(x.new_zeros(len(x), self.size) for _ in range(self.states))

    def drop(self, x: Tensor) -> Tensor:
        """Drop some numbers in training."""
        return F.dropout(x, self.p, self.training) if self.p else x

    def step(self, given: Tensor, state: State) -> State:
        """Return the next state; its first tensor is the output."""
        raise NotImplementedError


@layer
class LSTM(Cell):
    """A cell with the gates input, new value, forget and output."""

    def __init__(self, input_size: int, hidden_size: int, p: float = 0.0, activation: Any = None,
                 inner_activation: Any = None, wRegularizer: Any = None, uRegularizer: Any = None,
                 bRegularizer: Any = None) -> None:  # fmt: skip
        Cell.__init__(self, input_size, hidden_size, 4, p, hidden=[4 * hidden_size, hidden_size])
        self.states, self.value, self.gate = 2, activation or nn.Tanh(), inner_activation or nn.Sigmoid()

    def step(self, given: Tensor, state: State) -> State:
        """Return output and memory."""
        output, memory = state
        enter, value, forget, leave = (given + F.linear(self.drop(output), self.hidden)).chunk(4, -1)
        memory = self.gate(enter) * self.value(value) + self.gate(forget) * memory
        return self.gate(leave) * self.value(memory), memory


@layer
class LSTMPeephole(Cell):
    """An LSTM whose gates see its memory."""

    def __init__(self, input_size: int = 4, hidden_size: int = 3, p: float = 0.0, wRegularizer: Any = None,
                 uRegularizer: Any = None, bRegularizer: Any = None) -> None:  # fmt: skip
        Cell.__init__(self, input_size, hidden_size, 4, p, hidden=[4 * hidden_size, hidden_size], peep=[3, hidden_size])
        self.states = 2

    def step(self, given: Tensor, state: State) -> State:
        """Return output and memory."""
        output, memory = state
        enter, value, forget, leave = (given + F.linear(self.drop(output), self.hidden)).chunk(4, -1)
        kept = torch.sigmoid(forget + self.peep[1] * memory) * memory
        memory = torch.sigmoid(enter + self.peep[0] * memory) * torch.tanh(value) + kept
        return torch.sigmoid(leave + self.peep[2] * memory) * torch.tanh(memory), memory


@layer
class GRU(Cell):
    """A cell with the gates reset and update, and a new value."""

    def __init__(self, input_size: int, hidden_size: int, p: float = 0.0, activation: Any = None,
                 inner_activation: Any = None, wRegularizer: Any = None, uRegularizer: Any = None,
                 bRegularizer: Any = None) -> None:  # fmt: skip
        more = {"hidden": [2 * hidden_size, hidden_size], "hidden_value": [hidden_size, hidden_size]}
        Cell.__init__(self, input_size, hidden_size, 3, p, **more)
        self.value, self.gate = activation or nn.Tanh(), inner_activation or nn.Sigmoid()

    def step(self, given: Tensor, state: State) -> State:
        """Return the output."""
        (output,) = state
        gates = self.gate(given[..., : 2 * self.size] + F.linear(self.drop(output), self.hidden))
        reset, update = gates.chunk(2, -1)
        value = self.value(given[..., 2 * self.size :] + F.linear(self.drop(reset * output), self.hidden_value))
        return ((1 - update) * value + update * output,)


@layer
class RnnCell(Cell):
    """A cell without gates."""

    def __init__(self, input_size: int, hidden_size: int, activation: Any, isInputWithBias: bool = True,
                 isHiddenWithBias: bool = True, wRegularizer: Any = None, uRegularizer: Any = None,
                 bRegularizer: Any = None) -> None:  # fmt: skip
        more = {"hidden": [hidden_size, hidden_size], "bias_hidden": [hidden_size] if isHiddenWithBias else None}
        Cell.__init__(self, input_size, hidden_size, 1, 0.0, **more)
        self.activation = activation
        if not isInputWithBias:
            self.bias = None

    def step(self, given: Tensor, state: State) -> State:
        """Return the output."""
        return (self.activation(given + F.linear(state[0], self.hidden, self.bias_hidden)),)


class _ConvolutionCell(nn.Module):
    """An LSTM of images or volumes, whose sums are convolutions."""

    weight_kinds: ClassVar[dict[str, str]] = {"inner.weight": "hidden", "peep": "peep"}

    def __init__(self, dims: int, planes: tuple[int, int], kernels: tuple[int, int], stride: int, peephole: bool,
                 activation: Any = None, inner_activation: Any = None) -> None:  # fmt: skip
        super().__init__()
        if stride != 1:
            raise ArgumentError(f"a ConvLSTM goes on with images of one size: its stride must be 1; got {stride}.")
        kind: Any = (nn.Conv2d, nn.Conv3d)[dims - 2]
        self.size, self.outer = planes[1], kind(planes[0], 4 * planes[1], kernels[0], padding="same")
        self.inner = kind(planes[1], 4 * planes[1], kernels[1], padding="same", bias=False)
        self.peep = nn.Parameter(torch.zeros(3, planes[1], *[1] * dims)) if peephole else None
        self.value, self.gate = activation or nn.Tanh(), inner_activation or nn.Sigmoid()

    def project(self, x: Tensor) -> Tensor:
        """Return what the gates get of the input at every step."""
        return self.outer(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def begin(self, x: Tensor) -> State:
        """Return the first state, of zeros."""
        return tuple(x.new_zeros(len(x), self.size, *x.shape[3:]) for _ in range(2))

    def step(self, given: Tensor, state: State) -> State:
        """Return output and memory."""
        output, memory = state
        enter, value, forget, leave = (given + self.inner(output)).chunk(4, 1)
        a, b, c = (0, 0, 0) if self.peep is None else self.peep.unbind(0)
        memory_now = self.gate(enter + a * memory) * self.value(value) + self.gate(forget + b * memory) * memory
        return self.gate(leave + c * memory_now) * self.value(memory_now), memory_now


@layer
def ConvLSTMPeephole(input_size, output_size, kernel_i, kernel_c, stride=1, padding=-1, activation=None,
                     inner_activation=None, wRegularizer=None, uRegularizer=None, bRegularizer=None,
                     cRegularizer=None, with_peephole=True):  # fmt: skip
    """An LSTM of images, whose sums are convolutions."""
    planes, kernels = (input_size, output_size), (kernel_i, kernel_c)
    return _ConvolutionCell(2, planes, kernels, stride, with_peephole, activation, inner_activation)


@layer
def ConvLSTMPeephole3D(input_size, output_size, kernel_i, kernel_c, stride=1, padding=-1,
                       wRegularizer=None, uRegularizer=None, bRegularizer=None, cRegularizer=None,
                       with_peephole=True):  # fmt: skip
    """An LSTM of volumes, whose sums are convolutions."""
    return _ConvolutionCell(3, (input_size, output_size), (kernel_i, kernel_c), stride, with_peephole)


@layer
class MultiRNNCell(nn.Module):
    """Cells one above the other."""

    def __init__(self, cells: Sequence[Any]) -> None:
        super().__init__()
        self.cells: Any = nn.ModuleList(cells)

    def project(self, x: Tensor) -> Tensor:
        """Return what the lowest cell gets of the input at every step."""
        return self.cells[0].project(x)

    def begin(self, x: Tensor) -> Any:
        """Return the first states of all cells."""
        states = [self.cells[0].begin(x)]
        for cell in self.cells[1:]:
            states.append(cell.begin(states[-1][0].unsqueeze(1)))
        return (None, *states)

    def step(self, given: Tensor, state: Any) -> Any:
        """Return the output of the highest cell, and the states of all."""
        states = []
        for at, (cell, before) in enumerate(zip(self.cells, state[1:], strict=True)):
            given = given if at == 0 else cell.project(given.unsqueeze(1)).squeeze(1)
            states.append(cell.step(given, before))
            given = states[-1][0]
        return (given, *states)


def unroll(cell: Any, x: Tensor, backwards: bool = False) -> tuple[Tensor, Any]:
    """Return the outputs of all steps as (batch, time, ...), and the last state."""
    if not hasattr(cell, "project"):
        raise DataError(f"{type(cell).__name__} is no cell: add LSTM, GRU, RnnCell or another one")
    if x.dim() < 3:
        raise DataError("the input needs the dimensions batch, time and features")
    given, state = cell.project(x).unbind(1), cell.begin(x)
    outputs = []
    for each in reversed(given) if backwards else given:
        state = cell.step(each, state)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs, 1), state


class _RecurrentContainer(Container):
    """A container of one cell, whose last state can be read."""

    def add(self, model: Any) -> Any:
        """Add the cell; returns the container."""
        if self.layers:
            raise ArgumentError(f"{self} has its cell already: {self.layers[0]}. Put several into MultiRNNCell([...]).")
        return super().add(model)

    def get_hidden_state(self) -> Any:
        """Return the state behind the last step of the last forward pass, as arrays."""
        state: Any = self.module.state
        if state is None:
            raise ArgumentError(f"{self} has no state yet. Call forward first.")
        arrays = [tensor.detach().cpu().numpy() for tensor in state if isinstance(tensor, Tensor)]
        return arrays[0] if len(arrays) == 1 else arrays


@layer
class Recurrent(Parts):
    """A cell over all steps of (batch, time, ...)."""

    layer_bases: ClassVar[tuple[type, ...]] = (_RecurrentContainer,)

    def __init__(self) -> None:
        super().__init__()
        self.state: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, time, ...) of the outputs."""
        outputs, state = unroll(self.parts[0], x)
        self.state = tuple(each.detach() if isinstance(each, Tensor) else each for each in state)
        return outputs

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "state": None}


@layer
class RecurrentDecoder(Parts):
    """A cell that begins with (batch, ...) and gets each of its outputs as its next input."""

    layer_bases: ClassVar[tuple[type, ...]] = (_RecurrentContainer,)

    def __init__(self, output_length: int) -> None:
        super().__init__()
        self.length, self.state = output_length, None

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, time, ...) of the outputs."""
        cell: Any = self.parts[0]
        state, outputs = cell.begin(x.unsqueeze(1)), []
        for _ in range(self.length):
            state = cell.step(cell.project(x.unsqueeze(1)).squeeze(1), state)
            x = state[0]
            outputs.append(x)
        return torch.stack(outputs, 1)


class _BothWays(_RecurrentContainer):
    """A container of a cell and of another like it that reads backwards."""

    def add(self, model: Any) -> Any:
        """Add the cell; returns the container."""
        super().add(model)
        self.module.back = copy.deepcopy(model).reset().module
        return self


@layer
class BiRecurrent(Parts):
    """A cell forwards and another backwards, their outputs added up or merged by a layer."""

    layer_bases: ClassVar[tuple[type, ...]] = (_BothWays,)

    def __init__(self, merge: Any = None) -> None:
        super().__init__()
        self.merge, self.state = merge, None

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, time, ...) of the merged outputs."""
        ways = [unroll(self.parts[0], x)[0], unroll(self.back, x, backwards=True)[0]]
        return ways[0] + ways[1] if self.merge is None else self.merge(ways)


__all__ = sorted(LAYERS)
