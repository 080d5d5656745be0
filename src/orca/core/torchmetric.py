"""Torchmetric: metrics of torchmetrics, exact over ranks. Owns how their states travel and become one.

A metric of torchmetrics keeps states, each with a rule by which those of several processes become one. Every rank
counts with a copy of its own; the states are gathered once and put together by these rules, so that the metric needs no
process group, and must not look for one.
"""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from orca.core.metrics import Array, Metric, Tree, _beside, _numpy, _pair, _tensor
from orca.errors import ArgumentError


def torch_metrics(item: object) -> list[Metric] | None:
    """Return a metric of torchmetrics, or the members of a collection, as metrics of ours; None for anything else."""
    library = sys.modules.get("torchmetrics")
    if library is None or not isinstance(item, library.Metric | library.MetricCollection):
        return None
    if isinstance(item, library.Metric):
        return [TorchMetric(item)]
    return [TorchMetric(member).named(str(name)) for name, member in item.items()]


class TorchMetric(Metric):
    """A metric of torchmetrics. Of several outputs and targets it sees the first, the target in the output's shape.

    Args:
        metric: The metric; meters count with copies of it.
    """

    def __init__(self, metric: Any) -> None:
        self.metric, self.name = metric, type(metric).__name__

    def start(self) -> TorchMeter:
        """Return a meter of this metric that has seen no rows."""
        return TorchMeter(self.name, self.metric)


@dataclass(frozen=True)
class States:
    """The states of a metric, and of those within it, over some rows: arrays and lists of arrays by name."""

    rows: int
    values: tuple[dict[str, Any], ...]


class TorchMeter:
    """Count with a copy of a metric of torchmetrics.

    Args:
        name: The name of the metric.
        metric: The metric.
    """

    def __init__(self, name: str, metric: Any) -> None:
        self.name, self._metric, self._given = name, _copied(metric), metric
        self._rows, self._merged = 0, list[States]()

    def update(self, output: Tree, target: Tree, rows: int | None = None) -> None:
        """Count a batch; of a padded batch, only its first ``rows`` rows."""
        output, target = map(_as_tensor, _pair(self.name, output, target, rows))
        if not len(output):
            return
        target = _beside(output, target)
        if target.is_floating_point() and type(self._metric).__module__.startswith("torchmetrics.classification"):
            target = target.long()  # these take whole numbers alone, and labels may come as others
        self._metric.to(output.device).update(output, target)
        self._rows += len(output)

    def state(self) -> States:
        """Return what was counted, with what was merged."""
        parts = self._parts()
        if len(parts) < 2:
            return parts[0] if parts else States(0, ())
        return States(sum(part.rows for part in parts), _states_of(self._together(parts)))

    def merge(self, *states: States) -> None:
        """Add what other meters of the same metric counted."""
        self._merged += [state for state in states if state.rows]

    def result(self) -> float:
        """Return the metric over every row counted or merged; nan when there was none."""
        parts = self._parts()
        if not parts:
            return math.nan
        value = self._together(parts).compute()
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            shape = tuple(getattr(value, "shape", ()))
            raise ArgumentError(
                f"The metric {self.name!r} must give one number; got {type(value).__name__} of shape {shape}. Let it "
                "average, for example with average='macro'."
            ) from error

    def _parts(self) -> list[States]:
        mine = [States(self._rows, _states_of(self._metric))] if self._rows else []
        return self._merged + mine

    def _together(self, parts: list[States]) -> Any:
        """Return a metric on the CPU that has seen all parts."""
        import torch

        whole = _copied(self._given).cpu()
        for place, metric in enumerate(_metrics_in(whole)):
            metric._update_count = 1  # else it says that it has seen nothing
            for name, rule in metric._reductions.items():
                values = [part.values[place][name] for part in parts]
                if isinstance(values[0], list):
                    value: Any = [_tensor(array) for arrays in values for array in arrays]
                elif len(values) == 1:
                    value = _tensor(values[0])
                else:
                    stacked = torch.stack([_tensor(array) for array in values])
                    value = stacked if rule is None else rule(stacked)
                setattr(metric, name, value)
        return whole


def _copied(metric: Any) -> Any:
    """Return a copy that has seen nothing, looks for no process group, and keeps rows in this machine's memory."""
    own = copy.deepcopy(metric)
    own.reset()
    for part in _metrics_in(own):
        part.distributed_available_fn, part.compute_on_cpu = _alone, True
    return own


def _alone() -> bool:
    """Say that there are no other processes: their states come to us in our own way."""
    return False


def _metrics_in(metric: Any) -> list[Any]:
    """Return a metric and those that it is made of."""
    return [part for part in metric.modules() if isinstance(part, sys.modules["torchmetrics"].Metric)]


def _states_of(metric: Any) -> tuple[dict[str, Any], ...]:
    """Return the states of a metric and of those within it, as arrays."""
    return tuple({name: _plain(getattr(part, name)) for name in part._reductions} for part in _metrics_in(metric))


def _plain(state: Any) -> Any:
    return [np.array(_numpy(item)) for item in state] if isinstance(state, list) else np.array(_numpy(state))


def _as_tensor(array: Array) -> Any:
    return _tensor(array.copy()) if isinstance(array, np.ndarray) else array
