"""State: the position of a fit, and its losses so far. Owns Position and Losses; State itself lies in `storage`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from orca.core.items import travels
from orca.storage.state import OutputSpec, State

__all__ = ["COMPLETE", "STOPPED", "STOPPING", "Losses", "OutputSpec", "Position", "State"]

travels(OutputSpec)


@travels
@dataclass
class Losses:
    """The losses that one rank saw in an epoch: sums, so that ranks can be added up exactly.

    The mean loss is `loss_sum / mass`: the mass is the rows, or the weights of the targets for a loss with weights.
    `logs` are the values of the framework's own metrics, over all ranks already; `own`, those of this rank,
    where that is known. `trace` has the loss sum and the mass of every step, `rates` the learning rate: filled where
    the loop is ours. `conducted` says that the user's own code evaluated, and may not have fed the metrics.
    """

    loss_sum: float = 0.0
    mass: float = 0.0
    rows: int = 0
    last_loss_sum: float = 0.0
    last_mass: float = 0.0
    steps: int = 0
    logs: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    trace: list[tuple[float, float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    conducted: bool = False

    def add(self, total: float, mass: float, rows: int) -> None:
        """Count a step: the sum of its losses, the divisor for their mean, and its rows."""
        self.loss_sum += total
        self.mass += mass
        self.rows += rows
        self.steps += 1
        self.last_loss_sum, self.last_mass = total, mass
        self.trace.append((total, mass))

    def then(self, later: Losses) -> Losses:
        """Return the sums of this part of an epoch and the one after it."""
        last = later if later.steps else self
        return Losses(
            loss_sum=self.loss_sum + later.loss_sum,
            mass=self.mass + later.mass,
            rows=self.rows + later.rows,
            last_loss_sum=last.last_loss_sum,
            last_mass=last.last_mass,
            steps=self.steps + later.steps,
            logs=self.logs | later.logs,
            own=self.own | later.own,
            trace=self.trace + later.trace,
            rates=self.rates + later.rates,
        )

    def alone(self) -> Losses:
        """Return this rank's losses without the others: the last loss is that of its last step with rows."""
        last = (self.last_loss_sum, self.last_mass)
        total, mass = next((step for step in reversed(self.trace) if step[1]), last)
        return replace(self, logs=self.logs | self.own, last_loss_sum=total, last_mass=mass)


@dataclass(frozen=True)
class Position:
    """The place in a fit where a checkpoint was taken: all that is needed to resume with the next unseen batch.

    Attributes:
        first_epoch: Epochs trained before the fit began.
        first_steps: Steps trained before the fit began.
        step: Steps done of the epoch that was going on.
        seed: The seed that decides on the order of the rows.
        layout: The other numbers that decide on the order: rows of each rank, and rows of a step.
        losses: Those of that epoch so far, over all ranks.
        lines: The history of the epochs before it.
        validations: Those of that epoch so far: statistics over all ranks, and the step of each.
        ended: COMPLETE where the fit was over, STOPPED where a callback stopped it, STOPPING before the callbacks' last
            hooks were called, and "" while it was going on.
    """

    first_epoch: int
    first_steps: int
    step: int
    seed: int
    layout: tuple[int, ...] = ()
    losses: Losses = field(default_factory=Losses)
    lines: tuple[dict[str, Any], ...] = ()
    ended: str = ""
    validations: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as numbers, texts, lists and dicts; other values are left out of the history."""
        sums = {name: getattr(self.losses, name) for name in _SUMS}
        lines, validations = (
            [{key: _plain(value) for key, value in line.items() if _is_plain(value)} for line in group]
            for group in (self.lines, self.validations)
        )
        plain = {name: getattr(self, name) for name in ("first_epoch", "first_steps", "step", "seed", "ended")}
        return plain | {"layout": list(self.layout), "losses": sums, "lines": lines, "validations": validations}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Position:
        """Return the position that as_json wrote down."""
        rows = {name: tuple(record.get(name, ())) for name in ("layout", "lines", "validations")}
        losses = Losses(**record["losses"])
        counts = [record[name] for name in ("first_epoch", "first_steps", "step", "seed")]
        numbers = [getattr(losses, name) for name in _SUMS]
        lines = [*rows["lines"], *rows["validations"]]
        if not all(type(count) is int and count >= 0 for count in [*counts, *rows["layout"]]):
            raise ValueError(f"the position of a fit has counts that are none: {record!r:.200}")
        if not all(type(number) in (int, float) for number in numbers) or not all(type(line) is dict for line in lines):
            raise ValueError(f"the position of a fit has losses or lines that are none: {record!r:.200}")
        return cls(**{**record, **rows, "losses": losses})


COMPLETE, STOPPED, STOPPING = "complete", "stopped", "stopping"  # how a fit ended

_SUMS = ("loss_sum", "mass", "rows", "last_loss_sum", "last_mass", "steps")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    return isinstance(value, bool | int | float | str | np.bool_ | np.integer | np.floating) or value is None


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value.item() if isinstance(value, np.generic) else value
