"""BatchLoss: the loss of a batch as one number, and the mass of its mean. Owns how ranks' losses become one.

A loss of torch itself says its kind: a mean over rows, over its targets (class weights, ignored labels), or a sum. A
loss that somebody else wrote is asked: the loss of some rows must follow from the losses of their two halves. Looks are
taken in the first steps, then ever more seldom, and in every step with labels that torch would ignore.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from orca.core.columns import single
from orca.core.source import Batch
from orca.errors import ArgumentError, DataError
from orca.frameworks.torch.targets import (
    IGNORED,
    Classes,
    align_all,
    align_trees,
    by_key,
    check_shapes,
    classes_of,
    has_dict,
    name_by_number,
    no_class,
    settings_of,
    takes,
    takes_classes,
)
from orca.frameworks.torch.tensors import at_home, full
from orca.rows.tree import Structure, cut_rows, flatten, listed, map_tree, unflatten

TARGETS, ROWS, SUM = "targets", "rows", "sum"  # the kinds of losses: a mean over one of two, or a sum
_ALL = (TARGETS, ROWS, SUM)
_LOOKS = 8  # steps at the beginning in each of which a loss is asked
_SLACK = {torch.float64: 1e-7, torch.float32: 1e-4}  # the error of rounding, relative to the loss


class BatchLoss:
    """A loss, with its rows weighed where they bring weights.

    Args:
        loss: A loss module or function; None where there is none: then it is a mean over rows.
        reduction: Its kind, as the user says: "mean" (over rows), "sum", or a function of the targets that returns
            the weight of each row in the mean; None to find out.
        apart: Whether steps are computed in parts: a loss that does not follow from those of its parts is refused.
    """

    def __init__(self, loss: Any, reduction: Any = None, apart: bool = False) -> None:
        self.loss, self.apart = loss, apart
        self.classes = takes_classes(loss)
        self.steps = 0
        self.on_the_way: tuple[Any, Any] | None = None  # the masses of a step, on their way to all ranks
        self.last: tuple[np.ndarray, float] | None = None  # masses, and their sum
        self.counts_rows = callable(reduction)
        self.forms: tuple[Structure, Structure] | None = None  # of the last outputs and targets, with dicts in them
        self.form: Structure = None  # of the arguments of a loss that takes dicts
        self.places: list[int] = []  # of the last targets among those of the batch, where they stand by key
        self.label_shapes: list[Any] | None = None  # how a custom loss gets each target: a row's shape, None as paired
        which, settings, own = settings_of(loss)
        self.own, self.by_number = own, "" if own else name_by_number(which)
        self.count: Callable[..., Any] | None = reduction if callable(reduction) else classes_of(which, settings)
        is_sum = (reduction or settings.get("reduction")) == "sum"
        self.asks = own and reduction is None
        if self.asks:
            self.count = self.count or Classes()
            self.readings = [SUM, TARGETS, ROWS] if is_sum else [*_ALL]
        elif isinstance(reduction, str):
            self.count, self.readings = None, [SUM if is_sum else ROWS]
        else:
            self.readings = [SUM if is_sum else TARGETS if self.count else ROWS]

    def __bool__(self) -> bool:
        return self.loss is not None

    def pair(self, output: Any, target: Any) -> tuple[list[Any], list[Any]]:
        """Return outputs and targets side by side, each target in the form that the loss compares the output with."""
        if target is None and self.loss is not None:
            raise DataError(
                "there are no labels to compare the outputs with. Pass label_cols, or data with labels.",
                code="missing-labels",
            )
        if target is None:
            self.leaves(output, ())
            return flatten(output)[0], []
        pair = self._pair(output, target)
        if self.own and self.label_shapes is None:
            self.label_shapes = self._choose_label_shapes(*pair, flatten(target)[0])
        return pair

    def _pair(self, output: Any, target: Any) -> tuple[list[Any], list[Any]]:
        if self.own and has_dict((output, target)) and takes(self.loss, len(listed(output)) + len(listed(target))):
            self.places = flatten(align_trees(output, _numbered(target)))[0]
            output, target = map_tree(full, output), align_trees(output, target)
            pair = self.leaves(output, target)
            self.form = flatten([*listed(output), *listed(target)])[1]
            return pair
        pair = align_all(output, target, self.classes)
        if self.by_number:
            check_shapes(self.by_number, *pair)
        if isinstance(output, torch.Tensor) and isinstance(target, torch.Tensor):  # as most are, and steps may be short
            self.forms, self.form, self.places = None, None, [0]
            return pair
        self.leaves(output, by_key(output, target))
        self.places = flatten(by_key(output, _numbered(target)))[0]
        return pair

    def leaves(self, output: Any, target: Any) -> tuple[list[Any], list[Any]]:
        """Return the tensors of outputs and targets, and remember the dicts they come from."""
        (outputs, *form), (targets, *other) = flatten(output), flatten(target)
        self.forms, self.form = (*form, *other) if has_dict((output, target)) else None, None
        return outputs, targets

    def trees(self, outputs: list[Any], targets: list[Any]) -> tuple[Any, Any]:
        """Return outputs and targets as a metric or a callback sees them: one tensor, a tuple of several, or dicts."""
        if self.forms is None:
            return single(tuple(outputs)), single(tuple(targets))
        return unflatten(self.forms[0], outputs), unflatten(self.forms[1], targets)

    def __call__(self, outputs: list[Any], targets: list[Any], batch: Batch | None = None) -> torch.Tensor:
        """Return the loss as one number: the mean, or the sum where that is the loss."""
        try:
            if batch is None or batch.weights is None:
                return scalar(self.loss(*self._arguments([*outputs, *targets])))
            each = self._each(outputs, targets)
        except IndexError as error:
            raise no_class(self.loss, outputs, targets) or error from error
        weight = torch.as_tensor(np.asarray(batch.weights), device=each.device).to(each.dtype).reshape(-1)
        total = (each * weight).sum()
        return total if self.reading == SUM else total / self.mass(batch, targets)

    @property
    def reading(self) -> str:
        """Return the most likely reading of the loss."""
        return self.readings[0]

    # The mass of a mean.

    def counted(self, batch: Batch) -> Batch:
        """Return a batch with the mass of each row, where rows may differ; its labels are not on a GPU yet."""
        if self.counts_rows and batch.weights is not None:
            raise ArgumentError(
                "sample weights and a loss_reduction function do not go together: it says what a row counts, but not "
                "what the loss of a row is. Pass loss_reduction='mean' or 'sum', or weigh the rows in the loss.",
                code="weights-with-loss-reduction",
            )
        if self.count is None:  # perhaps since a look at the loss, after rows that stay on the device were counted
            return batch if batch.masses is None else replace(batch, masses=None)
        if batch.y is None or batch.masses is not None:
            return batch
        labels = [leaf if isinstance(leaf, torch.Tensor) else np.asarray(leaf) for leaf in flatten(batch.y)[0]]
        place = _class_place(labels) if self.asks else 0
        if place is None:
            return batch
        leaves = [np.asarray(full(at_home(leaf))) for leaf in labels]
        if not batch.rows:
            return replace(batch, masses=np.zeros(1))
        if isinstance(self.count, Classes):
            return replace(batch, masses=self.count(leaves[place]))
        tensors = list(map(_indices, leaves))
        if has_dict(batch.y) and takes(self.count, len(listed(batch.y))):
            tensors = listed(unflatten(flatten(batch.y)[1], tensors))
        masses = np.asarray(self.count(*tensors), np.float64)
        if masses.shape[:1] != (batch.rows,):
            raise ArgumentError(
                f"loss_reduction must return what each row counts, {batch.rows} numbers for as many targets; got shape "
                f"{masses.shape}. Return for example (target != -100).sum(1).",
                code="bad-loss-reduction",
            )
        return replace(batch, masses=masses.reshape(batch.rows, -1).sum(1))

    def mass(self, batch: Batch, targets: list[Any], reading: str | None = None) -> float:
        """Return the mass that the loss of a batch is a mean over, in this reading or the likely one."""
        return self._mass(batch, self._counts_classes(targets), reading or self.reading)

    def _mass(self, batch: Batch, are_classes: bool, reading: str) -> float:
        plain = isinstance(self.count, Classes) and not self.asks and not are_classes  # probabilities: a mean over rows
        masses = batch.masses if reading == TARGETS and not plain else None
        if batch.weights is None:
            return batch.rows if masses is None else self._summed(masses)
        weights = np.asarray(batch.weights, np.float64).reshape(-1)
        return float((weights * masses).sum() if are_classes and masses is not None else weights.sum())

    def _summed(self, masses: np.ndarray) -> float:
        """Return the sum of masses; it is asked for several times in a step."""
        if self.last is None or self.last[0] is not masses:
            self.last = masses, float(masses.sum())
        return self.last[1]

    def times(self, batch: Batch, targets: list[Any], reading: str | None = None) -> tuple[float, float]:
        """Return (the factor that makes the loss of this rank's rows a sum, the mass of that sum)."""
        if (reading or self.reading) == SUM:
            return 1.0, batch.rows
        mass = self.mass(batch, targets, reading)
        return mass, mass

    def send(self, batch: Batch) -> None:
        """Begin to add up the mass of a step's loss, where that follows from its targets alone.

        All ranks call it together, before the forward pass, beside which the numbers travel. Whether targets are class
        numbers or probabilities is known after that pass: so the masses of both go.
        """
        has_weights, has_masses = batch.weights is not None, batch.masses is not None and not self.asks
        if self.reading != SUM and (has_weights or has_masses):
            masses = [self._mass(batch, are_classes, TARGETS) if batch.rows else 0.0 for are_classes in (False, True)]
            if len(batch.shares) == 1:
                self.on_the_way = None, masses
                return
            sums = torch.tensor(masses, dtype=torch.float64)
            self.on_the_way = dist.all_reduce(sums, async_op=True), sums

    def whole(self, batch: Batch, piece: Batch, pair: tuple[list[Any], list[Any]] = ([], [])) -> float:
        """Return the factor that makes the loss of the whole step a sum; all ranks call it together, once a step.

        Args:
            batch: This rank's part of the step, which may have been sent.
            piece: The piece of it that is computed first, which may have no rows.
            pair: The outputs and targets of that piece.

        Raises:
            ArgumentError: The loss does not follow from those of its parts.
        """
        self.steps += 1
        if self.on_the_way is None:
            self.send(batch)
        if self.on_the_way is not None:
            (work, sums), self.on_the_way = self.on_the_way, None
            if work is not None:
                work.wait()
            return float(sums[int(bool(piece.rows) and self._counts_classes(pair[1]))]) or 1.0
        due = self._looks(self.steps)
        if self.asks and batch.weights is None and (due or batch.masses is not None):
            wrong = self.refuted(piece, *pair, due, batch) if piece.rows else set()
            mass = self.mass(batch, pair[1], TARGETS) if piece.rows else 0.0
            sums = torch.tensor([mass, *(float(reading in wrong) for reading in _ALL)], dtype=torch.float64)
            dist.all_reduce(sums)
            mass, *flags = sums.tolist()
            self._rule_out({reading for reading, flag in zip(_ALL, flags, strict=True) if flag})
            if self.reading == TARGETS and batch.masses is not None:
                return mass or 1.0
        return 1.0 if self.reading == SUM else batch.step_rows

    # A loss that the user's own code computes.

    def is_even(self, batch: Batch) -> bool:
        """Say whether each row of a batch counts the same in a mean."""
        if self.reading == SUM or batch.masses is None:
            return self.reading != SUM
        labels = flatten(batch.y)[0][0]
        return self._are_probabilities(labels) or bool((batch.masses == math.prod(labels.shape[1:])).all())

    def _are_probabilities(self, labels: Any) -> bool:
        """Say whether labels are probabilities of the classes that have weights: then each row counts the same."""
        weight = self.count.weight if isinstance(self.count, Classes) else None
        if weight is None or labels.shape[1:2] != weight.shape:
            return False
        chances = torch.as_tensor(labels)
        sums = chances.double().sum(1)
        return (
            chances.is_floating_point()
            and bool((chances >= 0).all())
            and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)
        )

    def check_own(self, batch: Batch, outputs: list[Any], targets: list[Any], loss: torch.Tensor, step: int) -> None:
        """Check that the loss which the user's code computed is this one, where rows do not count the same.

        Every step is checked at first, then ever fewer of them.
        """
        counts_nothing = not self.times(batch, targets)[1]  # then it is 0 / 0
        if counts_nothing or not self._looks(step) or self.is_even(batch):
            return
        try:
            (value,) = self._values([*outputs, *targets], batch.rows, (slice(None),))
            same = _follows(loss.detach(), [scalar(value)], [1.0], is_sum=True)
        except Exception:  # the user left other things there
            same = False
        if not same:
            raise ArgumentError(
                f"your own forward pass computes another loss than {self.loss}, whose rows do not count the "
                "same: nobody knows how to add it up over workers. Pass loss_reduction to from_torch: 'mean' or 'sum' "
                "over rows, or a function (target) that returns what each row counts in the mean.",
                code="loss-not-summable",
            )

    @staticmethod
    def _looks(step: int) -> bool:
        return step <= _LOOKS or not step & (step - 1)

    # Asking.

    def settle(self, wrong: set[str]) -> None:
        """Agree with all ranks on the kinds that the loss is not."""
        if self.asks:
            flags = torch.tensor([int(reading in wrong) for reading in _ALL])
            dist.all_reduce(flags)
            self._rule_out({reading for reading, flag in zip(_ALL, flags.tolist(), strict=True) if flag})

    def refuted(
        self, batch: Batch, outputs: list[Any], targets: list[Any], due: bool, step: Batch | None = None
    ) -> set[str]:
        """Return the readings that the losses of two halves contradict. One row is taken twice.

        Args:
            batch: Rows.
            outputs: Their outputs.
            targets: Their targets.
            due: Whether to look, also where no label is one that torch would ignore.
            step: This rank's part of the step, where the rows are a piece of it.
        """
        if not self.asks or batch.weights is not None:
            return set()
        in_doubt = {TARGETS, ROWS} <= {*self.readings} and _ignores(step or batch)
        if not due and not in_doubt:
            return set()
        masses = np.ones(batch.rows) if batch.masses is None else batch.masses
        leaves = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in (*outputs, *targets)]
        if batch.rows == 1:
            masses = np.repeat(masses, 2)
            leaves = [torch.cat([leaf, leaf]) if _has_rows(leaf, 1) else leaf for leaf in leaves]
        wrong = self._look(leaves, masses) if due else set()
        if in_doubt and not {TARGETS, ROWS} & wrong:
            place = self.places.index(_class_place(flatten(batch.y)[0]) or 0)
            wrong |= self._probe(leaves, len(outputs) + place, masses)
        return wrong

    def _look(self, leaves: list[Any], masses: np.ndarray) -> set[str]:
        """Return the readings that two halves of these rows contradict."""
        rows = len(masses)
        halves = slice(0, rows // 2), slice(rows // 2, rows)
        try:
            total, *parts = self._values(leaves, rows, (slice(0, rows), *halves))
        except Exception:  # a loss that takes no half of a batch; one that takes no single row may take others
            return {*_ALL} if rows > 3 else set()
        return _refuted(total, parts, [masses[half].sum() for half in halves], [rows // 2, rows - rows // 2])

    def _probe(self, leaves: list[Any], place: int, masses: np.ndarray) -> set[str]:
        """Return the readings that labels which torch would ignore contradict: half of the rows get such labels.

        Such labels may be in other pieces of the step than the first, or in equal numbers in both halves of it.
        """
        rows, order = len(masses), np.argsort(-masses, kind="stable")
        half = rows // 2
        leaves = [leaf[order.tolist()] if _has_rows(leaf, rows) else leaf for leaf in leaves]  # which are copies
        try:
            leaves[place][half:] = self.count.ignored_class if isinstance(self.count, Classes) else IGNORED
            total, *parts = self._values(leaves, rows, (slice(0, rows), slice(0, half), slice(half, rows)))
        except Exception:  # it takes no rows that are ignored as a whole: then nothing is known
            return set()
        return _refuted(total, parts, [masses[order[:half]].sum(), 0.0], [half, rows - half]) & {TARGETS, ROWS}

    def _rule_out(self, wrong: set[str]) -> None:
        if not wrong or not self.asks:
            return
        self.readings = [reading for reading in self.readings if reading not in wrong]
        if self.readings:
            return
        if self.apart:
            raise ArgumentError(
                "the loss is neither a mean nor a sum over rows: that of a step does not follow from those of its "
                "parts, which workers and accumulate compute apart. Use a loss of torch such as "
                "nn.CrossEntropyLoss(weight=...), return the loss of each row, or pass loss_reduction: a function "
                "(target) that returns what each row counts in the mean, or 'mean' to average the parts by their rows.",
                code="loss-not-summable",
            )
        self.readings, self.count, self.asks = [ROWS], None, False

    def _values(self, leaves: list[Any], rows: int, cuts: tuple[slice, ...]) -> list[torch.Tensor]:
        """Return the losses of some rows, and leave no trace: neither random numbers nor buffers of the loss."""
        own = isinstance(self.loss, nn.Module) and any(True for _ in self.loss.buffers())
        loss = copy.deepcopy(self.loss) if own else self.loss
        devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_cuda}
        with torch.no_grad(), torch.random.fork_rng(devices=list(devices)):
            parts = [[cut_rows(leaf, cut) if _has_rows(leaf, rows) else leaf for leaf in leaves] for cut in cuts]
            return [loss(*self._arguments(part)) for part in parts]

    def _arguments(self, leaves: list[Any]) -> list[Any]:
        """Return the arguments of the loss: dicts where it takes them, else all tensors."""
        if self.label_shapes:
            count = len(leaves) - len(self.label_shapes)
            labels = zip(leaves[count:], self.label_shapes, strict=True)
            leaves = [*leaves[:count], *(t if s is None else t.reshape(len(t), *s) for t, s in labels)]
        arguments: list[Any] = leaves if self.form is None else unflatten(self.form, leaves)
        return arguments

    def _choose_label_shapes(self, outputs: list[Any], targets: list[Any], given: list[Any]) -> list[Any]:
        """Return the shapes in which a custom loss gets its targets: those of the data if it then broadcasts less.

        Labels (n,) are paired with outputs (n, 1) as (n, 1), which suits `((output - target) ** 2).mean()`. A loss that
        squeezes the outputs itself, as many do, compares them with the (n,) of the data.
        """
        given = [given[place] for place in self.places]
        shapes = [
            None if not isinstance(t, torch.Tensor) or g.shape == t.shape else tuple(g.shape[1:])
            for t, g in zip(targets, given, strict=True)
        ]
        leaves = [*outputs, *targets]
        if not any(shape is not None for shape in shapes) or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return []
        sizes = {size for leaf in leaves for size in leaf.shape[1:]}
        rows = next(number for number in (7, 11, 13, 17, 19, 23, 29, 31) if number not in sizes)
        sample = [leaf.detach()[torch.arange(rows, device=leaf.device) % len(leaf)] for leaf in leaves]
        as_given, as_paired = self._outer_broadcasts(sample, rows, shapes), self._outer_broadcasts(sample, rows, [])
        return shapes if as_given < as_paired else []

    def _outer_broadcasts(self, leaves: list[Any], rows: int, label_shapes: list[Any]) -> float:
        """Return how often the loss compares each row with every other by accident, with targets of these shapes."""
        self.label_shapes = label_shapes
        try:
            with warnings.catch_warnings(), OuterBroadcasts(rows) as broadcasts:
                warnings.simplefilter("ignore")  # torch warns of the shapes that are tried
                self._values(leaves, rows, (slice(None),))
        except Exception:  # it does not take such targets
            return math.inf
        return broadcasts.count

    def _each(self, outputs: list[Any], targets: list[Any]) -> torch.Tensor:
        """Return the loss of each row, so that the weighed sum is divided by the weighed masses of the rows."""
        reduction = getattr(self.loss, "reduction", None)
        reducible = isinstance(reduction, str) and isinstance(self.loss, nn.Module)
        if reducible:
            setattr(self.loss, "reduction", "none")  # noqa: B010  a module's attributes are tensors for the type checker
        try:
            each = self.loss(*self._arguments([*outputs, *targets]))
        finally:
            if reducible:
                setattr(self.loss, "reduction", reduction)  # noqa: B010
        rows = len(outputs[0])
        if not each.dim() or len(each) != rows:
            raise ArgumentError(
                f"sample weights need the loss of each row, but the loss gave a tensor of shape {tuple(each.shape)} "
                f"for {rows} rows. Use a torch loss, or a function that returns one number for each row.",
                code="loss-not-per-row",
            )
        each = each.reshape(rows, -1)
        is_sum = self._counts_classes(targets) or self.reading == SUM or reduction == "batchmean"
        return each.sum(1) if is_sum else each.mean(1)

    def _counts_classes(self, targets: list[Any]) -> bool:
        """Say whether this is torch's own mean over class numbers; over probabilities it is one over rows."""
        by_class = isinstance(self.count, Classes) and not self.asks and isinstance(targets[0], torch.Tensor)
        return by_class and not targets[0].is_floating_point()


class OuterBroadcasts(TorchDispatchMode):
    """Counts the operations that compare each row with every other because one side has a dimension less.

    Args:
        rows: How many rows there are; no other dimension may have this size.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.count = rows, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        elementwise = torch.Tag.pointwise in function.tags or function is torch.ops.aten.expand.default
        if elementwise and isinstance(result, torch.Tensor):
            inputs = [leaf for leaf in flatten(list(args))[0] if isinstance(leaf, torch.Tensor)]
            compares_all = list(result.shape).count(self.rows) > 1
            lacks_dimension = any(self.rows in leaf.shape and leaf.dim() < result.dim() for leaf in inputs)
            self.count += compares_all and lacks_dimension
        return result


class Tally:
    """The losses of an evaluation, added up under each reading of the loss until all ranks agree on one."""

    def __init__(self, measure: BatchLoss) -> None:
        self.measure, self.steps, self.ruled_out = measure, 0, set[str]()
        self.sums: dict[str, Any] = dict.fromkeys([*measure.readings, ROWS], 0.0)
        self.masses: dict[str, float] = dict.fromkeys(self.sums, 0.0)

    def add(self, batch: Batch, outputs: list[Any], targets: list[Any], loss: torch.Tensor) -> None:
        """Add the loss of a batch."""
        self.ruled_out |= self.measure.refuted(batch, outputs, targets, self.steps < _LOOKS)
        self.steps += 1
        for reading in self.sums:
            times, mass = self.measure.times(batch, targets, reading)
            self.sums[reading] = self.sums[reading] + (loss.double() * times if mass else 0.0)
            self.masses[reading] += mass

    def close(self) -> tuple[float, float]:
        """Return (the sum of losses, its mass); all ranks call it together."""
        self.measure.settle(self.ruled_out)
        return float(self.sums[self.measure.reading]), self.masses[self.measure.reading]


def scalar(loss: torch.Tensor) -> torch.Tensor:
    """Return a loss as one number: the mean of several."""
    return loss.mean() if loss.dim() else loss


def _refuted(total: torch.Tensor, parts: list[torch.Tensor], masses: list[float], rows: list[int]) -> set[str]:
    """Return the readings that the losses of two parts contradict, given their masses and rows."""
    if total.dim():
        return {TARGETS, SUM}  # the loss of each row, of which we take the mean
    counts: dict[str, list[float]] = {TARGETS: [float(mass) for mass in masses], ROWS: [*rows], SUM: [1.0, 1.0]}
    finite = torch.isfinite(total)
    return {reading for reading in _ALL if finite and not _follows(total, parts, counts[reading], reading == SUM)}


def _ignores(batch: Batch) -> bool:
    """Say whether labels of a batch count less than others: torch would ignore them, or their class weighs less."""
    if batch.masses is None:
        return False
    leaves = flatten(batch.y)[0]
    return bool(batch.masses.sum() < math.prod(leaves[_class_place(leaves) or 0].shape))


def _class_place(leaves: list[Any]) -> int | None:
    """Return which labels of several may be class numbers: the first that are whole numbers, if any."""
    kinds = [str(leaf.dtype).removeprefix("torch.") for leaf in leaves]
    return next((place for place, kind in enumerate(kinds) if kind.startswith("int")), None)


def _numbered(tree: Any) -> Any:
    """Return a tree with the number of each leaf in its place."""
    leaves, structure = flatten(tree)
    return unflatten(structure, list(range(len(leaves))))


def _follows(total: torch.Tensor, parts: list[torch.Tensor], counts: list[float], is_sum: bool) -> bool:
    """Say whether a loss is the sum of its parts, each by its count, or that sum divided by all counts."""
    if not any(counts):
        return not float(total)  # a mean over nothing, with a value: something was counted
    shares = [float(part) * count for part, count in zip(parts, counts, strict=True) if count]
    mine = float(total) * (1.0 if is_sum else sum(counts))
    return abs(mine - sum(shares)) <= _SLACK.get(total.dtype, 2e-2) * (sum(map(abs, shares)) + abs(mine))


def _has_rows(leaf: Any, rows: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and len(leaf) == rows


def _indices(leaf: np.ndarray) -> torch.Tensor:
    """Return labels as a tensor, whole numbers as those that torch takes for an index."""
    tensor = torch.as_tensor(leaf)
    return tensor if tensor.is_floating_point() or tensor.dtype == torch.bool else tensor.long()
