"""Torchmetric: metrics of torchmetrics, exact over ranks. Owns how their states travel and become one.

A metric of torchmetrics keeps states, each with a rule by which those of several processes become one. Every rank
counts with a copy of its own; the states are gathered once and put together by these rules, so that the metric needs no
process group, and must not look for one.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Sequence
from typing import Any

from orca.core.metrics import Counts, Metric, Tree, _beside, _copy, _one_number, _rows_in


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
        metric: The metric; a copy of it counts.
    """

    def __init__(self, metric: Any) -> None:
        self.metric, self.name = metric, type(metric).__name__
        self.reset()

    def __call__(self, output: Tree, target: Tree) -> Any:
        """Count a batch; return the value over this batch alone."""
        return self._feed("forward", output, target)

    def update(self, output: Tree, target: Tree) -> None:
        """Count a batch."""
        self._feed("update", output, target)

    def reset(self) -> None:
        """Forget all that was counted."""
        super().reset()
        self.metric, self._rows = _copied(self.metric), 0

    def _feed(self, verb: str, output: Tree, target: Tree) -> Any:
        output, target = self._read(output, target)
        rows = _rows_in(self.name, output, target)
        target = _beside(output, target)
        if target.is_floating_point() and type(self.metric).__module__.startswith("torchmetrics.classification"):
            target = target.long()  # these take whole numbers alone, and labels may come as others
        self._rows += rows
        if self.metric.device != output.device:  # else it would take the rows that it keeps along each time
            self.metric.to(output.device)
            _keep_rows_here(self.metric)
        return getattr(self.metric, verb)(output, target) if rows else math.nan

    def _total(self) -> Counts:
        states = tuple(
            {name: _copied_state(getattr(part, name)) for name in part._reductions} for part in _metrics_in(self.metric)
        )
        parts = [part for part in (*self._parts, Counts(self._rows, states)) if part.rows]
        return self._join(parts) if parts else Counts(0, ())

    def _join(self, parts: Sequence[Counts]) -> Counts:
        values = tuple(
            {
                name: _together(rule, [part.values[place][name] for part in parts])
                for name, rule in metric._reductions.items()
            }
            for place, metric in enumerate(_metrics_in(self.metric))
        )
        return Counts(sum(part.rows for part in parts), values)

    def _value(self, counts: Counts) -> float:
        if not counts.rows:
            return math.nan
        whole = _copied(self.metric).cpu()
        for metric, states in zip(_metrics_in(whole), counts.values, strict=True):
            metric._update_count = 1  # else it says that it has seen nothing
            for name, state in states.items():
                setattr(metric, name, state)
        return _one_number(
            whole.compute(),
            f"The metric {self.name!r} must give one number",
            "Let it average, for example with average='macro'.",
        )


def _copied(metric: Any) -> Any:
    """Return a copy that has seen nothing, and looks for no process group."""
    own = copy.deepcopy(metric)
    own.reset()
    for part in _metrics_in(own):
        part.distributed_available_fn = _alone
    _keep_rows_here(own)
    return own


def _keep_rows_here(metric: Any) -> None:
    """Keep rows in this machine's memory, not on a GPU. On a CPU the option would only cost time."""
    for part in _metrics_in(metric):
        part.compute_on_cpu = metric.device.type != "cpu"


def _alone() -> bool:
    """Say that there are no other processes: we gather their states ourselves."""
    return False


def _metrics_in(metric: Any) -> list[Any]:
    """Return a metric and those that it is made of."""
    return [part for part in metric.modules() if isinstance(part, sys.modules["torchmetrics"].Metric)]


def _copied_state(state: Any) -> Any:
    return [_copy(item) for item in state] if isinstance(state, list) else _copy(state)


def _together(rule: Any, states: list[Any]) -> Any:
    import torch

    if isinstance(states[0], list):
        return [item for items in states for item in items]
    if len(states) == 1:
        return states[0]
    stacked = torch.stack(states)
    return stacked if rule is None else rule(stacked)
