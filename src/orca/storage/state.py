"""State: all that training needs to continue. Owns its parts, and the description of a row of input or output."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from orca.rows.tree import flatten, unflatten


@dataclass(frozen=True)
class OutputSpec:
    """A row of a model's output (or input): (dtype, shape) of each head, and the heads' structure."""

    heads: tuple[tuple[str, tuple[int, ...]], ...]
    structure: Any = None

    @classmethod
    def of(cls, output: Any) -> OutputSpec:
        """Describe an output, a tree of arrays or tensors."""
        heads, structure = flatten(output)
        return cls(tuple((str(h.dtype).removeprefix("torch."), tuple(h.shape[1:])) for h in heads), structure)

    def example(self, rows: int = 1) -> Any:
        """Return a tree of arrays of this kind: zeros, or empty texts."""
        heads = [
            np.full((rows, *s), "", object) if kind == "object" else np.zeros((rows, *s), kind)
            for kind, s in self.heads
        ]
        return unflatten(self.structure, heads)


@dataclass
class State:
    """Everything that training needs to continue: picklable, independent of how many ranks made it.

    Attributes:
        epoch: Epochs trained.
        steps: Steps trained.
        payload: Lists of state dicts under "models", "optimizers" and "schedulers".
        output: The shape and type of an answer, where they are known.
        input: Those of a row of features.
        position: The Position of an interrupted fit, as JSON.
        path: The folder that ranks read the payload from, where it is too large to travel.
    """

    epoch: int = 0
    steps: int = 0
    payload: dict[str, Any] = field(default_factory=dict)
    output: OutputSpec | None = None
    input: OutputSpec | None = None
    position: dict[str, Any] | None = None
    path: str | None = None

    def to_send(self) -> State:
        """Return the state as it travels to the ranks."""
        return self if self.path is None else replace(self, payload={})

    def settled(self) -> State:
        """Return the state for a new fit: without the position of an interrupted one, and its callbacks' states."""
        payload = {name: value for name, value in self.payload.items() if name != "callbacks"}
        return replace(self, payload=payload, position=None)

    def for_answers(self) -> State:
        """Return the state for predictions: the weights without the optimizers' state."""
        parts = ("models", "averages", "operator")
        return replace(self, payload={name: self.payload[name] for name in parts if name in self.payload}).to_send()
