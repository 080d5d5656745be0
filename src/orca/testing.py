"""Testing: small stand-ins for each axis, for our tests and for plug-in authors. Owns the facts that a test
may rely on.

LocalEngine(2).run(FitJob(LinearLearner(2), FitPlan(), (), None), shards_of([(x, y), (x2, y2)]), Settings())
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from orca.core.array_learner import ArrayLearner
from orca.core.feed import spool_parts
from orca.core.resources import NO_LIMIT, Grant
from orca.core.source import Batch, Shards
from orca.core.state import State
from orca.sources.arrays import Block


@dataclass
class LinearLearner(ArrayLearner):
    """A learner of y = x @ weight + bias by gradient descent on the squared error, in float64.

    Args:
        features: Columns of x.
        rate: Learning rate.
        momentum: Momentum, kept in the state.
    """

    features: int
    rate: float = 0.1
    momentum: float = 0.0
    weight: np.ndarray = field(init=False, repr=False, compare=False)
    velocity: np.ndarray = field(init=False, repr=False, compare=False)
    framework = "linear"

    def make(self) -> None:
        """Draw the weights, the bias last."""
        self.weight = self.generator.normal(size=self.features + 1)
        self.velocity = np.zeros_like(self.weight)

    def build(self, state: State) -> np.ndarray:
        """Return the weights."""
        return np.array(state.payload["models"][0]["weight"])

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights."""
        return {"weight": self.weight}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over weights."""
        self.weight = np.array(weights["weight"])

    def optimizer_state(self) -> dict[str, Any]:
        """Return the velocity."""
        return {"velocity": self.velocity}

    def set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Take over a velocity."""
        self.velocity = np.array(state["velocity"])

    def learning_rates(self) -> list[float]:
        """Return the learning rate."""
        return [self.rate]

    def outputs(self, x: Any) -> np.ndarray:
        """Return one number a row."""
        return np.asarray(x, np.float64) @ self.weight[:-1] + self.weight[-1]

    def loss(self, outputs: Any, batch: Batch) -> tuple[float, float]:
        """Return the sum of squared errors, and the rows."""
        error = outputs - np.asarray(batch.y, np.float64).reshape(-1)
        return float(error @ error), batch.rows

    def loss_and_gradients(self, batch: Batch) -> tuple[float, float, dict[str, np.ndarray]]:
        """Return loss, rows and the gradient of the sum."""
        error = self.outputs(batch.x) - np.asarray(batch.y, np.float64).reshape(-1)
        inputs = np.column_stack([batch.x, np.ones(batch.rows)])
        return float(error @ error), batch.rows, {"weight": 2.0 * inputs.T @ error}

    def apply(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Take a step."""
        self.velocity = self.momentum * self.velocity + gradients["weight"]
        self.weight = self.weight - self.rate * self.velocity


@dataclass(frozen=True)
class Alone:
    """The only peer, for a world of one rank in this process."""

    rank: int = 0
    size: int = 1
    host: str = "127.0.0.1"
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    grant: Grant = NO_LIMIT

    def all_gather(self, text: str) -> list[str]:
        """Return the only text."""
        return [text]


def shards_of(train: Sequence[tuple[Any, Any]], valid: Sequence[tuple[Any, Any]] | None = None) -> Shards:
    """Return shards with exactly these rows: one (x, y) a rank, an empty one for a rank without rows."""
    parts = {"train": train} if valid is None else {"train": train, "valid": valid}
    pieces = [Block(part, x, y) for part, shards in parts.items() for x, y in shards]
    return Shards(partial(spool_parts, parts=tuple(parts)), lambda: list(pieces))
