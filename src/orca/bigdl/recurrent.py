"""Recurrent: BigDL's layers over time. Owns cells, the order of their gates and weights, and how states go on.

A cell has `project` (what all steps need of the input, computed at once), `begin` (the first state) and `step`. Inputs
are (batch, time, ...). Weights are, in this order: of the input, their bias, of the hidden state.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orca.bigdl.layers  # noqa: F401  (it fills the table)
from orca.bigdl.layer import LAYERS, Container, Parts, Weights, lookup, rows
from orca.errors import ArgumentError, DataError
from orca.rows.tree import map_tree

State = tuple[Tensor, ...]


class Cell(Weights):
    """A cell: weights of the input for some gates, and of the hidden state."""

    def __init__(self, input_size: int, hidden_size: int, gates: int, p: float = 0.0, bias: bool = True,
                 states: int = 1, activation: Any = None, inner_activation: Any = None,
                 **hidden: Any) -> None:  # fmt: skip
        own = {"weight": [gates * hidden_size, input_size], "bias": [gates * hidden_size] if bias else None}
        super().__init__(hidden_size, own | hidden, size=hidden_size, p=p, states=states, value=activation or nn.Tanh(),
                         gate=inner_activation or nn.Sigmoid())  # fmt: skip

    def project(self, x: Tensor) -> Tensor:
        """Return what the gates get of the input at every step."""
        return F.linear(self.drop(x), self.weight, self.bias)

    def begin(self, x: Tensor) -> State:
        """Return the first state, of zeros."""
        return tuple(x.new_zeros(len(x), self.size) for _ in range(self.states))

    def drop(self, x: Tensor) -> Tensor:
        """Drop some numbers in training."""
        return F.dropout(x, self.p, self.training) if self.p else x


def _remember(cell: Any, given: Tensor, memory: Tensor, dim: int) -> State:
    """Return output and memory of an LSTM with its gates in this order; they see the memory where there is a `peep`."""
    enter, value, forget, leave = given.chunk(4, dim)
    first, second, third = (0, 0, 0) if cell.peep is None else cell.peep.unbind(0)
    kept = cell.gate(forget + second * memory) * memory
    memory = cell.gate(enter + first * memory) * cell.value(value) + kept
    return cell.gate(leave + third * memory) * cell.value(memory), memory


class _LSTM(Cell):
    def __init__(self, input_size: int, size: int, p: float, peephole: bool, *activations: Any) -> None:
        more = {"hidden": [4 * size, size], "peep": [3, size] if peephole else None}
        Cell.__init__(self, input_size, size, 4, p, True, 2, *activations, **more)

    def step(self, given: Tensor, state: State) -> State:
        return _remember(self, given + F.linear(self.drop(state[0]), self.hidden), state[1], -1)


class _GRU(Cell):
    def step(self, given: Tensor, state: State) -> State:
        (output,) = state
        gates = self.gate(given[..., : 2 * self.size] + F.linear(self.drop(output), self.hidden))
        reset, update = gates.chunk(2, -1)
        value = self.value(given[..., 2 * self.size :] + F.linear(self.drop(reset * output), self.hidden_value))
        return ((1 - update) * value + update * output,)


class _RnnCell(Cell):
    def step(self, given: Tensor, state: State) -> State:
        return (self.value(given + F.linear(state[0], self.hidden, self.bias_hidden)),)


class ConvolutionCell(nn.Module):
    """An LSTM of images or volumes, whose sums are convolutions."""

    weight_kinds: ClassVar[dict[str, str]] = {"inner.weight": "hidden", "peep": "peep"}

    def __init__(self, dims: int, planes: tuple[int, int], kernels: tuple[int, int], stride: int, padding: int = -1,
                 peephole: bool = False, activation: Any = None, inner_activation: Any = None) -> None:  # fmt: skip
        super().__init__()
        for word, value, one in (("stride", stride, 1), ("padding", padding, -1)):
            if value != one:
                raise ArgumentError(
                    f"a ConvLSTM goes on with images of one size: its {word} must be {one}; got {value}."
                )
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
        return _remember(self, given + self.inner(state[0]), state[1], 1)


class _MultiRNNCell(nn.Module):
    def __init__(self, cells: Sequence[Any]) -> None:
        super().__init__()
        self.cells: Any = nn.ModuleList(cells)

    def project(self, x: Tensor) -> Tensor:
        return self.cells[0].project(x)

    def begin(self, x: Tensor) -> Any:
        states = [self.cells[0].begin(x)]
        for cell in self.cells[1:]:
            states.append(cell.begin(states[-1][0].unsqueeze(1)))
        return (None, *states)

    def step(self, given: Tensor, state: Any) -> Any:
        states: list[Any] = []
        for at, (cell, before) in enumerate(zip(self.cells, state[1:], strict=True)):
            given = given if at == 0 else cell.project(given.unsqueeze(1)).squeeze(1)
            states.append(cell.step(given, before))
            given = states[-1][0]
        return (given, *states)


def unroll(cell: Any, x: Tensor, backwards: bool = False) -> tuple[Tensor, Any]:
    """Return the outputs of all steps as (batch, time, ...), and the last state."""
    if not hasattr(cell, "project"):
        raise DataError(
            f"{getattr(cell, 'row', type(cell).__name__)} is no cell: add LSTM, GRU, RnnCell or another one"
        )
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
        if self.layers:
            raise ArgumentError(f"{self} has its cell already: {self.layers[0]}. Put several into MultiRNNCell([...]).")
        return super().add(model)

    def get_hidden_state(self) -> Any:
        state: Any = self.module.state
        if state is None:
            raise ArgumentError(f"{self} has no state yet. Call forward first.")
        arrays = [tensor.detach().cpu().numpy() for tensor in state if isinstance(tensor, Tensor)]
        return arrays[0] if len(arrays) == 1 else arrays


class _Recurrent(Parts):
    layer_bases: ClassVar[tuple[type, ...]] = (_RecurrentContainer,)

    def __init__(self) -> None:
        super().__init__()
        self.state: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return self._kept(*unroll(self.parts[0], x))

    def _kept(self, outputs: Tensor, state: Any) -> Tensor:
        self.state = map_tree(Tensor.detach, state)
        return outputs

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "state": None}


class _RecurrentDecoder(_Recurrent):
    def __init__(self, output_length: int) -> None:
        super().__init__()
        self.length = output_length

    def forward(self, x: Tensor) -> Tensor:
        cell: Any = self.parts[0]
        state, outputs = cell.begin(x.unsqueeze(1)), []
        for _ in range(self.length):
            state = cell.step(cell.project(x.unsqueeze(1)).squeeze(1), state)
            x = state[0]
            outputs.append(x)
        return self._kept(torch.stack(outputs, 1), state)


class _BothWays(_RecurrentContainer):
    """A container of a cell and of another like it that reads backwards."""

    def add(self, model: Any) -> Any:
        super().add(model)
        self.back = copy.deepcopy(model).reset()
        self.module.back = self.back.module
        return self

    def flattened_layers(self, include_container: bool = False) -> Any:
        """Return the cell and the other one, which has the same name."""
        return [*self.layers, *(self.back.set_name(cell.name()) for cell in self.layers)]


class _BiRecurrent(_Recurrent):
    layer_bases: ClassVar[tuple[type, ...]] = (_BothWays,)

    def __init__(self, merge: Any = None) -> None:
        super().__init__()
        self.merge = merge

    def forward(self, x: Tensor) -> Tensor:
        ways = [unroll(self.parts[0], x)[0], unroll(self.back, x, backwards=True)[0]]
        return ways[0] + ways[1] if self.merge is None else self.merge(ways)


rows({
    "LSTM": (lambda input_size, hidden_size, p=0.0, activation=None, inner_activation=None, wRegularizer=None,
        uRegularizer=None, bRegularizer=None: _LSTM(input_size, hidden_size, p, False, activation, inner_activation),
        "A cell with the gates input, new value, forget and output."),
    "LSTMPeephole": (lambda input_size=4, hidden_size=3, p=0.0, wRegularizer=None, uRegularizer=None, bRegularizer=None:
        _LSTM(input_size, hidden_size, p, True), "An LSTM whose gates see its memory."),
    "GRU": (lambda input_size, hidden_size, p=0.0, activation=None, inner_activation=None, wRegularizer=None,
        uRegularizer=None, bRegularizer=None: _GRU(input_size, hidden_size, 3, p, True, 1, activation, inner_activation,
        hidden=[2 * hidden_size, hidden_size], hidden_value=[hidden_size, hidden_size]),
        "A cell with the gates reset and update, and a new value."),
    "RnnCell": (lambda input_size, hidden_size, activation, isInputWithBias=True, isHiddenWithBias=True,
        wRegularizer=None, uRegularizer=None, bRegularizer=None: _RnnCell(input_size, hidden_size, 1, 0.0,
        isInputWithBias, 1, activation, hidden=[hidden_size, hidden_size], bias_hidden=[
        hidden_size] if isHiddenWithBias else None), "A cell without gates."),
    "ConvLSTMPeephole": (lambda input_size, output_size, kernel_i, kernel_c, stride=1, padding=-1, activation=None,
        inner_activation=None, wRegularizer=None, uRegularizer=None, bRegularizer=None, cRegularizer=None,
        with_peephole=True: ConvolutionCell(2, (input_size, output_size), (kernel_i, kernel_c), stride, padding,
        with_peephole, activation, inner_activation), "An LSTM of images, whose sums are convolutions."),
    "ConvLSTMPeephole3D": (lambda input_size, output_size, kernel_i, kernel_c, stride=1, padding=-1, wRegularizer=None,
        uRegularizer=None, bRegularizer=None, cRegularizer=None, with_peephole=True: ConvolutionCell(3, (input_size,
        output_size), (kernel_i, kernel_c), stride, padding, with_peephole),
        "An LSTM of volumes, whose sums are convolutions."),
    "MultiRNNCell": (_MultiRNNCell, "Cells one above the other."),
    "Recurrent": (_Recurrent, "A cell over all steps of (batch, time, ...)."),
    "RecurrentDecoder": (_RecurrentDecoder,
        "A cell that begins with (batch, ...) and gets each of its outputs as its next input."),
    "BiRecurrent": (_BiRecurrent,
        "A cell forwards and another backwards, their outputs added up or merged by a layer."),
})  # fmt: skip

__getattr__ = lookup(LAYERS, "layer")
