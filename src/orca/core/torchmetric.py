"""Torchmetric: metrics of torchmetrics, exact over ranks. Owns how their states travel and become one.

A metric of torchmetrics keeps states, each with a rule by which those of several processes become one. Every rank
counts with a copy of its own; the states are gathered once and put together by these rules, so that the metric needs no
process group, and must not look for one.

Metrics of classification take probabilities or logits, and tell them apart by each batch that they are fed: values
outside of 0 and 1 are logits. How rows are cut into batches, which ranks do, would decide on the result: logits of a
few rows may all lie between 0 and 1. So such a metric counts both ways until some rank has seen a logit, unless the
loss says that all of them are.

torchmetrics' own `merge_state` raises for metrics with `full_state_update` or `dist_sync_on_step`, so the states are
merged here.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from orca.core.metrics import Counts, Metric, Tree, _beside, _copy, _one_number, _rows_in

_CLASSIFICATION = "torchmetrics.classification"
_SCALED = ("MulticlassPrecisionRecallCurve", "MulticlassCalibrationError", "MulticlassHingeLoss")


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
        """Count a batch; return the value over this batch."""
        return self._feed("forward", output, target)

    def update(self, output: Tree, target: Tree) -> None:
        """Count a batch."""
        self._feed("update", output, target)

    def reset(self) -> None:
        """Forget all that was counted."""
        super().reset()
        self.metric, self._rows = _copied(self.metric), 0
        self._scale = _scale_of(self.metric)
        self._logit_metric = None if self._scale is None else _copied(self.metric)  # counts as if all were logits
        self._logits = False  # whether some of this rank's were

    def _feed(self, verb: str, output: Tree, target: Tree) -> Any:
        output, target = self._read(output, target)
        rows = _rows_in(self.name, output, target)
        target = _beside(output, target)
        if target.is_floating_point() and type(self.metric).__module__.startswith(_CLASSIFICATION):
            target = target.long()  # these take whole numbers alone, and labels may come as others
        self._rows += rows
        for metric in filter(None, (self.metric, self._logit_metric)):
            if metric.device != output.device:  # else it would take the rows that it keeps along each time
                metric.to(output.device)
                _keep_rows_here(metric)
        if not rows:
            return math.nan
        if self._logit_metric is not None and self._scale is not None and output.is_floating_point():
            self._logit_metric.update(self._scale(output), target)
            self._logits = self._logits or self._takes_logits or bool(((output < 0) | (output > 1)).any())
        if self._logits and verb == "update":
            self.metric.reset()  # which is not asked any more
            return None
        return getattr(self.metric, verb)(output, target)

    @property
    def _takes_logits(self) -> bool:
        """Whether the loss says that outputs are logits."""
        return self._scale is not None and self._scale is _SCALES.get(self.link)

    def _total(self) -> Counts:
        states = [() if self._logits else _states_of(self.metric)]
        if self._logit_metric is not None:
            states.append(_states_of(self._logit_metric))
        parts = [part for part in (*self._parts, Counts(self._rows, tuple(states))) if part.rows]
        return self._join(parts) if parts else Counts(0, ())

    def _join(self, parts: Sequence[Counts]) -> Counts:
        ways = zip(*(part.values for part in parts), strict=True)
        # Where one rank saw logits, nothing but the sums of logits of all ranks counts.
        values = tuple(self._joined(way) if all(way) else () for way in ways)
        return Counts(sum(part.rows for part in parts), values)

    def _joined(self, states: Sequence[Any]) -> tuple[dict[str, Any], ...]:
        return tuple(
            {name: _together(rule, [own[place][name] for own in states]) for name, rule in metric._reductions.items()}
            for place, metric in enumerate(_metrics_in(self.metric))
        )

    def _value(self, counts: Counts) -> float:
        if not counts.rows:
            return math.nan
        whole = _copied(self.metric).cpu()
        for metric, states in zip(_metrics_in(whole), next(filter(None, counts.values)), strict=True):
            metric._update_count = 1  # else it says that it has seen nothing
            for name, state in states.items():
                setattr(metric, name, state)
        return _one_number(
            whole.compute(),
            f"The metric {self.name!r} must give one number",
            "Let it average, for example with average='macro'.",
        )


def _scale_of(metric: Any) -> Callable[[Any], Any] | None:
    """Return how a metric makes probabilities of logits, None where it never does."""
    scales: set[Any] = set()
    for part in _metrics_in(metric):
        names = [kind.__name__ for kind in type(part).__mro__ if kind.__module__.startswith(_CLASSIFICATION)]
        if any(name.startswith(("Binary", "Multilabel")) for name in names):
            scales.add(_sigmoid)
        elif any(name in _SCALED for name in names):  # other metrics of classes look for the largest alone
            scales.add(_softmax)
    return scales.pop() if len(scales) == 1 else None


def _sigmoid(logits: Any) -> Any:
    return logits.sigmoid()


def _softmax(logits: Any) -> Any:
    return logits.softmax(1)


_SCALES: dict[str, Callable[[Any], Any]] = {"sigmoid": _sigmoid, "softmax": _softmax}


def _states_of(metric: Any) -> tuple[dict[str, Any], ...]:
    """Return copies of the states of a metric and of those that it is made of."""
    return tuple(
        {name: _copied_state(getattr(part, name)) for name in part._reductions} for part in _metrics_in(metric)
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
    stack = torch.stack(states)
    return stack if rule is None else rule(stack)
