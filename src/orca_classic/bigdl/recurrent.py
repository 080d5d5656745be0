"""Recurrent: BigDL's layers over time. Owns cells, the order of their gates and weights, and their states.

A cell has `project` (the projection of the input, computed for all steps at once), `begin` (the first state) and
`step`, which is the third part of a row. Inputs are (batch, time, ...). Weights are, in this order: of the input, their
bias, of the hidden state, of the memory where gates see it. An LSTM's gates are input, new value, forget, output.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orca_classic.bigdl.layers  # noqa: F401  (it fills the table)
from orca.errors import ArgumentError, DataError
from orca.rows.tree import map_tree
from orca_classic.bigdl.layer import FORWARD, LAYERS, Container, Holder, Layer, Parts, Weights, lookup, rows, signed

State = tuple[Tensor, ...]


class Cell(Weights):
    """A cell: weights of the input for some gates, and of the hidden state."""

    forward: Any = nn.Module.forward  # none of its own: FSDP detects that containers call other methods

    def __init__(self, input_size: int, hidden_size: int, gates: int, p: float = 0.0, bias: bool = True,
                 states: int = 1, activation: Any = None, inner_activation: Any = None,
                 **hidden: Any) -> None:  # fmt: skip
        own = {"weight": [gates * hidden_size, input_size], "bias": [gates * hidden_size] if bias else None}
        super().__init__(hidden_size, own | hidden, size=hidden_size, p=p, states=states, value=activation or nn.Tanh(),
                         gate=inner_activation or nn.Sigmoid())  # fmt: skip

    def project(self, x: Tensor) -> Tensor:
        """Return the projection of the input at every step, which the gates take."""
        return F.linear(self.drop(x), self.weight, self.bias)

    def begin(self, x: Tensor) -> State:
        """Return the first state, of zeros."""
        return tuple(x.new_zeros(len(x), self.size) for _ in range(self.states))

    def step(self, projection: Tensor, state: State) -> State:
        """Return the next state."""
        return FORWARD[self.row](self, projection, state)  # type: ignore[no-any-return]

    def drop(self, x: Tensor) -> Tensor:
        """Drop some numbers in training."""
        return F.dropout(x, self.p, self.training) if self.p else x


def _remember(cell: Any, gates: Tensor, memory: Tensor, dim: int) -> State:
    """Return output and memory of an LSTM with its gates in this order; with a `peep` they see the memory."""
    enter, value, forget, leave = gates.chunk(4, dim)
    first, second, third = (0, 0, 0) if cell.peep is None else cell.peep.unbind(0)
    rest = cell.gate(forget + second * memory) * memory
    memory = cell.gate(enter + first * memory) * cell.value(value) + rest
    return cell.gate(leave + third * memory) * cell.value(memory), memory


def _lstm(size: int, hidden: int, p: float, *activations: Any, peephole: bool = False) -> Cell:
    more = {"hidden": [4 * hidden, hidden], "peep": [3, hidden] if peephole else None}
    return Cell(size, hidden, 4, p, True, 2, *activations, **more)


def _lstm_step(cell: Any, projection: Tensor, state: State) -> State:
    return _remember(cell, projection + F.linear(cell.drop(state[0]), cell.hidden), state[1], -1)


def _gru(size: int, hidden: int, p: float, *activations: Any) -> Cell:
    return Cell(size, hidden, 3, p, True, 1, *activations, hidden=[2 * hidden, hidden], hidden_value=[hidden, hidden])


def _gru_step(cell: Any, projection: Tensor, state: State) -> State:
    (output,) = state
    gates = cell.gate(projection[..., : 2 * cell.size] + F.linear(cell.drop(output), cell.hidden))
    reset, update = gates.chunk(2, -1)
    value = cell.value(projection[..., 2 * cell.size :] + F.linear(cell.drop(reset * output), cell.hidden_value))
    return ((1 - update) * value + update * output,)


def _rnn(size: int, hidden: int, activation: Any, bias: bool, hidden_bias: bool) -> Cell:
    more = {"hidden": [hidden, hidden], "bias_hidden": [hidden] if hidden_bias else None}
    return Cell(size, hidden, 1, 0.0, bias, 1, activation, **more)


class ConvolutionCell(nn.Module):
    """An LSTM of images or volumes, whose sums are convolutions."""

    weight_kinds: ClassVar[dict[str, str]] = {"inner.weight": "hidden", "peep": "peep"}
    weight_order = ("outer.weight", "outer.bias", "inner.weight", "peep")

    def __init__(self, dims: int, inputs: int, outputs: int, outer: int, inner: int, stride: int = 1, padding: int = -1,
                 activation: Any = None, inner_activation: Any = None, peephole: bool = False) -> None:  # fmt: skip
        super().__init__()
        for word, value, one in (("stride", stride, 1), ("padding", padding, -1)):
            if value != one:
                raise ArgumentError(
                    f"the states of a ConvLSTM have the size of its images: its {word} must be {one}; got {value}."
                )
        kind: Any = (nn.Conv2d, nn.Conv3d)[dims - 2]
        self.size, self.outer = outputs, kind(inputs, 4 * outputs, outer, padding="same")
        self.inner = kind(outputs, 4 * outputs, inner, padding="same", bias=False)
        self.peep = nn.Parameter(torch.zeros(3, outputs, *[1] * dims)) if peephole else None
        self.value, self.gate = activation or nn.Tanh(), inner_activation or nn.Sigmoid()

    def project(self, x: Tensor) -> Tensor:
        """Return the projection of the input at every step, which the gates take."""
        return self.outer(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def begin(self, x: Tensor) -> State:
        """Return the first state, of zeros."""
        return tuple(x.new_zeros(len(x), self.size, *x.shape[3:]) for _ in range(2))

    def step(self, projection: Tensor, state: State) -> State:
        """Return output and memory."""
        return _remember(self, projection + self.inner(state[0]), state[1], 1)


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

    def step(self, signal: Tensor, state: Any) -> Any:
        states: list[Any] = []
        for at, (cell, before) in enumerate(zip(self.cells, state[1:], strict=True)):
            signal = signal if at == 0 else cell.project(signal.unsqueeze(1)).squeeze(1)
            states.append(cell.step(signal, before))
            signal = states[-1][0]
        return (signal, *states)


def unroll(cell: Any, x: Tensor, backwards: bool = False) -> tuple[Tensor, Any]:
    """Return the outputs of all steps as (batch, time, ...), and the last state."""
    if not hasattr(cell, "project"):
        raise DataError(
            f"{getattr(cell, 'row', type(cell).__name__)} is no cell: add LSTM, GRU, RnnCell or another one"
        )
    if x.dim() < 3:
        raise DataError("the input needs the dimensions batch, time and features")
    projections, state = cell.project(x).unbind(1), cell.begin(x)
    outputs = []
    for each in reversed(projections) if backwards else projections:
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


class _BothWays(_RecurrentContainer):
    """A container of a cell and of a copy of it that reads backwards."""

    def add(self, model: Any) -> Any:
        super().add(model)
        self.back = copy.deepcopy(self.layers[0]).reset()
        self.module.back = self.back.module
        cells, others = ([each, *each.flattened_layers(include_container=True)] for each in (self.layers[0], self.back))
        for cell, other in zip(cells, others, strict=True):
            cell._twin = other
        return self

    @property
    def _inner(self) -> Any:
        """The cell and its copy, and the layer that merges them."""
        merge = self.arguments["merge"]
        return [*self.layers, self.back, *([merge] if isinstance(merge, Layer) else [])] if self.layers else []

    def flattened_layers(self, include_container: bool = False) -> Any:
        """Return the cell and its copy, which has the same names."""
        every = super().flattened_layers(include_container)
        for cell in every:
            if cell._twin is not None:
                cell._twin.set_name(cell.name())
        return every


def _kept(m: Any, outputs: Tensor, state: Any) -> Tensor:
    m.state = map_tree(Tensor.detach, state)
    return outputs


def _decoded(m: Any, x: Tensor) -> Tensor:
    cell, outputs = m.parts[0], list[Tensor]()
    state = cell.begin(x.unsqueeze(1))
    for _ in range(m.length):
        state = cell.step(cell.project(x.unsqueeze(1)).squeeze(1), state)
        x = state[0]
        outputs.append(x)
    return _kept(m, torch.stack(outputs, 1), state)


def _both_ways(m: Any, x: Tensor) -> Tensor:
    ways = [unroll(m.parts[0], x)[0], unroll(m.back, x, backwards=True)[0]]
    return ways[0] + ways[1] if m.merge is None else m.merge(ways)


WUB: dict[str, Any] = dict.fromkeys(("wRegularizer", "uRegularizer", "bRegularizer"))
GATES: dict[str, Any] = {"p": 0.0, "activation": None, "inner_activation": None, **WUB}
FILM: dict[str, Any] = {"stride": 1, "padding": -1}
rows({
    "LSTM": (signed("input_size", "hidden_size", **GATES), _lstm, _lstm_step,
        "A cell with the gates input, new value, forget and output."),
    "LSTMPeephole": (signed(input_size=4, hidden_size=3, p=0.0, **WUB), partial(_lstm, peephole=True), _lstm_step,
        "An LSTM whose gates see its memory."),
    "GRU": (signed("input_size", "hidden_size", **GATES), _gru, _gru_step,
        "A cell with the gates reset and update, and a new value."),
    "RnnCell": (signed("input_size", "hidden_size", "activation", isInputWithBias=True, isHiddenWithBias=True, **WUB),
        _rnn, lambda cell, gates, state: (cell.value(gates + F.linear(state[0], cell.hidden, cell.bias_hidden)),),
        "A cell without gates."),
    "ConvLSTMPeephole": (signed("input_size", "output_size", "kernel_i", "kernel_c", **FILM, activation=None,
        inner_activation=None, **WUB, cRegularizer=None, with_peephole=True), partial(ConvolutionCell, 2),
        "An LSTM of images, whose sums are convolutions."),
    "ConvLSTMPeephole3D": (signed("input_size", "output_size", "kernel_i", "kernel_c", **FILM, **WUB, cRegularizer=None,
        with_peephole=True), lambda inputs, outputs, outer, inner, stride, padding, peephole: ConvolutionCell(3, inputs,
        outputs, outer, inner, stride, padding, peephole=peephole), "An LSTM of volumes, whose sums are convolutions."),
})  # fmt: skip
rows({"MultiRNNCell": (_MultiRNNCell, "Cells one above the other.")}, Holder)
rows({
    "Recurrent": (lambda: Parts(state=None), lambda m, x: _kept(m, *unroll(m.parts[0], x)),
        "A cell over all steps of (batch, time, ...)."),
    "RecurrentDecoder": (lambda output_length: Parts(state=None, length=output_length), _decoded,
        "A cell whose first input is (batch, ...), and each output the next input."),
}, _RecurrentContainer)  # fmt: skip
rows({"BiRecurrent": (lambda merge=None: Parts(state=None, merge=merge), _both_ways,
    "A cell forwards and another backwards, their outputs added up or merged by a layer.")}, _BothWays)  # fmt: skip

__getattr__ = lookup(LAYERS, "layer")
