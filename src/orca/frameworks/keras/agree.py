"""Agree: how replicas of a Keras model become one. Owns the way of gradients and losses over the ranks, for any split.

There is one rule. A rank's loss counts by its share of the step's rows: the sum over the ranks of (share x loss) is the
loss of the step, and the sum of (share x gradient) its gradient. A mean over rows obeys it as it is, and so do
penalties on weights. The divisor of a loss is asked of the Loss object itself, with its mask, weights and reduction;
where that is not the rows (a sum, the rest after a mask or `ignore_class`, the sum of weights), this rank's loss is
scaled so that the rule holds. Gradients are added up before an optimizer sees them, so clipping, loss scaling,
accumulation and weight decay work as in one process. Batch normalization takes its statistics over all ranks' rows.

Keras is watched at its own classes (Loss, Optimizer, Mean, Layer.add_loss), so that a train_step of the user's obeys
the rule too, whichever losses and optimizers it uses. Outside of a fit these classes are as they were (`patches.py`).

Not `keras.distribution`, which is for JAX, or MultiWorkerMirroredStrategy, which can neither end on uneven rows nor
resume.
"""

from __future__ import annotations

import functools
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import tensorflow as tf

from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.keras.patches import at_work, current, renew_patches
from orca.rows.tree import flatten, map_tree

_EXTRAS = 4  # numbers that travel with the gradients: loss, values of a row's loss and their square, a wish to stop


class Agreement:
    """A model on this rank that steps together with all others.

    Attributes:
        loss: The loss of the last step over all ranks; None where the user's train_step computes its own.
        reduces: Whether that loss is one number; with reduction=None it has one for each row.
        stop: Whether a rank asked to stop, as heard in the last step.
        optimizers: The optimizers that steps have used.
        wants_stop: Whether this rank asks to stop.
    """

    def __init__(self, model: Any, world: World, sync_batch_norm: bool) -> None:
        self.model, self.world = model, world
        self.loss: float | None = None
        self.stop = self.wants_stop = False
        self.reduces = True
        self.error: BaseException | None = None
        self._rows: Any = 0.0
        self._share: Any = 0.0
        self._my_loss: Any = None
        self._elements: Any = 0.0
        self._calls = 0
        self._loss_counts: dict[int, int] = {}
        self._sums: set[tuple[int, int]] = set()
        self._variable_ids: set[int] = set()
        self.optimizers: list[Any] = []
        self._own_writes: list[Any] | None = None
        self.local_norms = [] if world.size == 1 else _hook_norms(model, self, sync_batch_norm)
        self.shared_norms = [layer for layer in norms_of(model) if layer not in self.local_norms]
        renew_patches()  # for optimizers whose class the model's creator has made
        _hook_loss(model)

    def begin_epoch(self) -> None:
        """Begin an epoch: no rank wants to stop yet."""
        self.stop = self.wants_stop = False

    def ask_to_stop(self, wants_stop: bool) -> None:
        """Ask all ranks to stop, or not: it travels with the gradients of the next step."""
        self.wants_stop = wants_stop

    def forget_loss(self) -> None:
        """Forget the loss of the last step."""
        self.loss = None

    @contextmanager
    def step(self, rows: Any, step_rows: Any) -> Iterator[None]:
        """Run a step in which this rank has `rows` of all ranks' `step_rows`; losses and optimizers see it as one."""
        self._rows, self._share = rows, rows / step_rows
        self._my_loss, self._elements, self._loss_counts = None, 0.0, {}
        with at_work(self):
            yield

    def my_loss(self) -> Any:
        """Return the loss of this rank in the step, as a tensor; nan where the model computes none that we see."""
        return tf.cast(np.nan if self._my_loss is None else self._my_loss, tf.float64)

    def note(self, loss: Any) -> Any:
        """Take note of the total loss of a step; return the loss to differentiate."""
        self.reduces = loss.shape.rank == 0
        if self.reduces:
            self._my_loss = loss
            return loss
        self._my_loss = tf.reduce_mean(loss)  # reduction=None: Keras shows the mean and differentiates the sum
        return self._whole(loss)

    def part_of(self, loss: Any, reduce: Callable[..., Any], y_true: Any, y_pred: Any, weights: Any) -> Any:
        """Return the loss of this rank's rows, scaled so that the ranks' shares add up to the loss of the step.

        Args:
            loss: The Loss.
            reduce: How its class makes one number of the values of its `call`.
            y_true: The labels.
            y_pred: The outputs.
            weights: The rows' weights, or None.
        """
        values: list[Any] = []
        pairs: list[Any] = []  # of labels and outputs, as the class hands them on

        def call(y_true: Any, y_pred: Any) -> Any:
            pairs.append((y_true, y_pred))
            values.append(loss.call(y_true, y_pred))
            return values[0]

        calls = self._calls
        mine = reduce(_twin(loss, call), y_true, y_pred, weights)
        self._calls += 1
        reduction = str(loss.reduction).lower()
        if self.world.size == 1 or reduction == "none" or not values:
            return mine
        if values[0].shape.rank == 0:  # a function of one number; where it calls other losses, those had their share
            return mine if self._calls > calls + 1 else self._asked_of_twice_the_rows(loss, mine, *pairs[0])
        if reduction == "sum":
            return self._whole(mine)
        is_weighted = reduction == "mean_with_sample_weight" and weights is not None
        if not is_weighted and all(_mask_of(each) is None for each in (y_pred, values[0])):
            self._elements += tf.size(values[0]) / tf.cast(tf.maximum(self._rows, 1.0), tf.int32)
            return mine
        divisor = self._divisor(loss, reduce, values[0], y_pred, weights if is_weighted else None)
        total = reduce(_twin(loss, _always(values[0]), "sum"), y_true, y_pred, weights)
        return self._whole(total) * tf.cast(tf.math.divide_no_nan(tf.ones((), tf.float64), divisor), total.dtype)

    def added(self, layer: Any, loss: Any) -> Any:
        """Return a layer's part of the loss: a sum over rows must not shrink to this rank's share."""
        number = self._loss_counts[id(layer)] = self._loss_counts.get(id(layer), 0) + 1
        return map_tree(self._whole, loss) if (id(layer), number) in self._sums else loss

    def ask_layers(self, batch: Any) -> None:
        """Find out which losses that layers add are sums over rows: twice the rows give twice the loss."""
        if self.world.size == 1 or not any(_may_add(layer) for layer in self.model._flatten_layers()):
            return
        once, again = _Note(), _Note()
        for note, rows in ((once, batch), (again, twice(batch))):
            with at_work(note), suppress(NotImplementedError):  # a model without a `call`
                self.model(rows)
        self._sums = {key for key, loss in once.losses.items() if _doubles(loss, again.losses[key])}

    @contextmanager
    def writing(self, rows: int, step_rows: int) -> Iterator[None]:
        """Average, by rows, the weights that a step writes beside all optimizers: statistics of a layer's own, say.

        The first step tells which these are. Batch normalization has its own way.
        """
        first = self._own_writes is None and self.world.size > 1
        before = self._digests() if first else {}
        yield
        if first:
            changes = [number for number, digest in self._digests().items() if before[number] != digest]
            numbers = sorted(set().union(*self.world.all_gather(changes)))
            weights = self.model.weights
            self._own_writes = [weights[number] for number in numbers if id(weights[number]) not in self._variable_ids]
        if self._own_writes:
            values = [variable.numpy() for variable in self._own_writes]
            parts = [value.astype(np.float64) * (rows / step_rows if rows else 0.0) for value in values]
            for variable, mean in zip(self._own_writes, self.world.all_reduce(parts, "sum"), strict=True):
                variable.assign(mean)

    def _digests(self) -> dict[int, int]:
        norms = {id(v) for layer in norms_of(self.model) for v in (layer.moving_mean, layer.moving_variance)}
        floats = [(n, v) for n, v in enumerate(self.model.weights) if "float" in str(v.dtype) and id(v) not in norms]
        return {number: zlib.crc32(variable.numpy().tobytes()) for number, variable in floats}

    def agreed(self, grads: Sequence[Any]) -> list[Any]:
        """Return the gradients of the whole step; None stays None, and sparse ones stay sparse."""
        sparse = [grad for grad in grads if isinstance(grad, tf.IndexedSlices)]
        dense = [grad for grad in grads if grad is not None and not isinstance(grad, tf.IndexedSlices)]
        kind = tf.float64 if any(grad.dtype == tf.float64 for grad in dense) else tf.float32
        flat = tf.concat([tf.zeros(0, kind), *(tf.reshape(tf.cast(grad, kind), [-1]) for grad in dense)], axis=0)
        pieces = [piece for grad in sparse for piece in (grad.indices, grad.values)]
        kinds = [kind, tf.float64, *(piece.dtype for piece in pieces)]  # one alone would come back without its list
        numbers = [tf.cast(each, tf.float64) for each in (self._rows, self._share, self.my_loss(), self._elements)]
        add = _unheld(self._add_gradients, self._my_loss is not None)
        total, _, *sums = tf.numpy_function(add, [flat, *numbers, *pieces], kinds)
        total.set_shape(flat.shape)
        for piece, old in zip(sums, pieces, strict=True):
            piece.set_shape([None, *old.shape[1:]])
        sizes = [tf.size(grad) for grad in dense]
        parts, slices = iter(tf.split(total, sizes, num=len(dense)) if dense else ()), iter(sums)

        def over_ranks(grad: Any) -> Any:
            if grad is None:
                return None
            if isinstance(grad, tf.IndexedSlices):
                indices, values = next(slices), next(slices)
                return tf.IndexedSlices(values, indices, grad.dense_shape)
            return tf.cast(tf.reshape(next(parts), tf.shape(grad)), grad.dtype)

        return [over_ranks(grad) for grad in grads]

    def add_up(self, vector: Any) -> Any:
        """Return a vector's sum over all ranks; gradients find their way back to every rank's part of it."""

        @tf.custom_gradient
        def summed(mine: Any) -> Any:
            def back(upstream: Any) -> Any:
                # Every rank's gradient is scaled by its share later: those of the others must not get mine.
                share = tf.cast(self._share, upstream.dtype)
                return tf.math.divide_no_nan(self._sum(tf.math.multiply_no_nan(upstream, share)), share)

            return self._sum(mine), back

        return summed(vector)

    def stepped(self, optimizer: Any, variables: Iterable[Any]) -> None:
        """Take note of an optimizer and of the weights that it steps."""
        self._variable_ids |= {id(variable) for variable in variables}
        if all(optimizer is not other for other in self.optimizers):
            self.optimizers.append(optimizer)

    def active(self, kind: Any) -> Any:
        """Return 1 where this rank has rows in the step, else 0."""
        return tf.cast(self._rows > 0, kind)

    def share(self, kind: Any) -> Any:
        """Return this rank's share of the step's rows."""
        return tf.cast(self._share, kind)

    def _whole(self, loss: Any) -> Any:
        """Return a loss that counts as a whole, not by this rank's share of the rows."""
        return tf.math.divide_no_nan(loss, self.share(loss.dtype))

    def _divisor(self, loss: Any, reduce: Callable[..., Any], values: Any, y_pred: Any, weights: Any) -> Any:
        """Return the divisor of a Loss over all ranks, found with ones in place of its values."""
        ones = tf.ones_like(values)
        if _mask_of(values) is not None:
            ones._keras_mask = _mask_of(values)
        total, mean = (
            tf.cast(reduce(_twin(loss, _always(ones), how), ones, y_pred, weights), tf.float64)
            for how in ("sum", loss.reduction)
        )
        mine = tf.where(total > 0, total / mean, tf.zeros_like(total))
        return self._sum(mine * self.active(mine.dtype))

    def _asked_of_twice_the_rows(self, loss: Any, once: Any, y_true: Any, y_pred: Any) -> Any:
        """Return a loss that is one number: one that doubles when its rows are doubled is a sum over them."""
        with at_work(None):
            again = loss.call(twice(y_true), twice(y_pred))
        return tf.where(tf.stop_gradient(_doubles(once, again)), self._whole(once), once)

    def _sum(self, vector: Any) -> Any:
        total = tf.numpy_function(_unheld(self._add), [vector], vector.dtype)
        total.set_shape(vector.shape)
        return total

    def _add(self, vector: np.ndarray) -> np.ndarray:
        try:
            return self.world.all_reduce([vector], "sum")[0]
        except BaseException as error:
            self.error = error  # TensorFlow would tell only its text
            raise

    def _add_gradients(
        self, sees_loss: bool, flat: np.ndarray, rows: float, share: float, loss: float, elements: float, *sparse: Any
    ) -> list[Any]:
        """Add gradients up, scaled by the ranks' shares; on the way, agree on the step's loss and on stopping.

        Of a sparse gradient (indices, values) all ranks' entries are kept, as one process would have had them.
        """
        box = np.zeros(len(flat) + _EXTRAS, flat.dtype)
        if rows:
            np.multiply(flat, share, out=box[:-_EXTRAS])
            box[-_EXTRAS:-1] = loss * share, elements * share, elements**2 * share
        box[-1] = self.wants_stop
        total = self._add(box)
        loss, mean, square, stop = map(float, total[-_EXTRAS:])
        self.stop = stop > 0
        if sees_loss:
            self.loss = loss
        if square - mean**2 > 1e-3 * square:
            self.error = ArgumentError(
                "the model's loss is a mean over values that are not the same number for every row, so workers cannot "
                "weigh it by their rows. Let the loss return a value (or values) for each row, with a mask, or give it "
                "reduction='sum'.",
                code="loss-not-a-mean",
            )
            raise self.error
        return [total[:-_EXTRAS], np.float64(loss), *self._entries(sparse, share if rows else 0.0)]

    def _entries(self, sparse: Sequence[np.ndarray], share: float) -> list[np.ndarray]:
        if not sparse:
            return []
        indices, values = sparse[::2], sparse[1::2]
        rows = slice(None) if share else slice(0)
        mine = [(i[rows], (v[rows] * share).astype(v.dtype)) for i, v in zip(indices, values, strict=True)]
        entries = self.world.all_gather(mine)
        return [np.concatenate([rank[i][k] for rank in entries]) for i in range(len(mine)) for k in (0, 1)]


def _unheld(method: Any, *first: Any) -> Callable[..., Any]:
    """Return a method, given its first arguments, that does not keep its object alive.

    TensorFlow keeps the functions in a graph as long as the thread's own graph: a model would outlive its fit.
    """
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        function: Any = reference()
        return function(*first, *arguments)

    return call


class _Note:
    """The losses that layers add in a forward pass, by layer and order; it changes nothing."""

    def __init__(self) -> None:
        self.losses: dict[tuple[int, int], float] = {}

    def added(self, layer: Any, loss: Any) -> Any:
        number = 1 + sum(of == id(layer) for of, _ in self.losses)
        self.losses[id(layer), number] = sum(float(tf.reduce_sum(each)) for each in flatten(loss)[0])
        return loss

    def part_of(self, loss: Any, reduce: Callable[..., Any], *args: Any) -> Any:
        return reduce(loss, *args)

    def share(self, kind: Any) -> Any:
        return tf.ones((), kind)


def _hook_loss(model: Any) -> None:
    """Let the agreement of a step know the model's total loss."""
    original = model.compute_loss

    @functools.wraps(original)
    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        loss = original(*args, **kwargs)
        agreement = current()
        return loss if loss is None or agreement is None else agreement.note(loss)

    model.compute_loss = compute_loss


def _twin(loss: Any, call: Callable[..., Any], reduction: Any = None) -> Any:
    """Return a copy of a Loss with another `call`, reduced in its own way or another."""
    twin = object.__new__(type(loss))  # copy.copy would save and load it
    twin.__dict__ = dict(loss.__dict__)
    twin.call = call
    twin.reduction = loss.reduction if reduction is None else reduction
    return twin


def _always(values: Any) -> Callable[..., Any]:
    def call(y_true: Any, y_pred: Any) -> Any:
        return values

    return call


def _doubles(once: Any, twice: Any) -> Any:
    """Say whether a loss of twice the rows is nearer to twice the loss than to the loss: a sum, and no mean."""
    return abs(twice - 2 * once) < abs(twice - once)


def _mask_of(tensor: Any) -> Any:
    return getattr(tensor, "_keras_mask", None)


def twice(tree: Any) -> Any:
    """Return a batch with each row twice."""

    def double(leaf: Any) -> Any:
        pair = [leaf, leaf]
        return tf.sparse.concat(0, pair) if isinstance(leaf, tf.SparseTensor) else tf.concat(pair, 0)

    return map_tree(double, tree)


def _may_add(layer: Any) -> bool:
    """Say whether a layer may add a term of the rows to the loss: by its regularizer, or the user's own code."""
    own = type(layer).__module__.split(".", 1)[0] not in ("keras", "tf_keras")
    return own or getattr(layer, "activity_regularizer", None) is not None


def norms_of(model: Any) -> list[Any]:
    """Return the batch normalization layers of a model, nested ones included."""
    return [layer for layer in model._flatten_layers() if _is_norm(layer)]


def _is_norm(layer: Any) -> bool:
    return any(kind.__name__.startswith("BatchNormalization") for kind in type(layer).__mro__)


def _hook_norms(model: Any, agreement: Agreement, everywhere: bool) -> list[Any]:
    """Let batch normalization see the rows of all ranks; return the layers that still see their rank's alone."""
    local = []
    for layer in norms_of(model):
        odd = getattr(layer, "renorm", False) or getattr(layer, "virtual_batch_size", None) is not None
        if odd or not (everywhere or layer.synchronized):
            local.append(layer)
        elif hasattr(layer, "_reduction_axes"):
            layer._moments = _moments_of(layer, agreement)
        else:
            _hook_legacy_norm(layer, agreement)
    return local


def _moments_of(layer: Any, agreement: Agreement) -> Callable[..., Any]:
    def moments(inputs: Any, mask: Any) -> tuple[Any, Any]:
        axes, channel = layer._reduction_axes, layer.axis
        shape = [1] * len(inputs.shape)
        shape[channel] = -1
        centre = tf.cast(tf.convert_to_tensor(layer.moving_mean), inputs.dtype)
        spare = 0.0 if mask is None else sys.modules["keras"].config.epsilon()  # as Keras divides the rest after a mask
        away, variance, _ = _over_ranks(inputs, axes, tf.reshape(centre, shape), mask, agreement, centre, spare)
        return away + centre, variance

    return moments


def _hook_legacy_norm(layer: Any, agreement: Agreement) -> None:
    """Do the same for tf_keras, whose fused kernel cannot wait for others and corrects the variance it remembers."""
    was_fused, count = bool(layer.fused), [tf.constant(0.0)]
    layer.fused = False
    remember = layer._assign_moving_average

    def moments(inputs: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None) -> tuple[Any, Any]:
        zero = tf.zeros((), inputs.dtype)
        mean, variance, count[0] = _over_ranks(inputs, reduction_axes, zero, mask, agreement, zero, 0.0)
        if keep_dims:
            shape = [1 if axis in reduction_axes else -1 for axis in range(len(inputs.shape))]
            mean, variance = tf.reshape(mean, shape), tf.reshape(variance, shape)
        return mean, variance

    def remember_corrected(variable: Any, value: Any, momentum: Any, inputs_size: Any) -> Any:
        if variable is layer.moving_variance:
            value *= tf.cast(count[0] / (count[0] - 1), value.dtype)
        return remember(variable, value, momentum, inputs_size)

    layer._calculate_mean_and_var = moments
    if was_fused:
        layer._assign_moving_average = remember_corrected


def _over_ranks(
    inputs: Any, axes: Any, around: Any, mask: Any, agreement: Agreement, centre: Any, spare: float
) -> tuple[Any, Any, Any]:
    """Return the mean distance from the centre and the variance of each channel over all ranks, and the count.

    Around the layer's running mean, as a sum of squares around zero loses digits where the mean is large: `centre`, or
    `around` in the shape of the inputs. `spare` is added to the count where sums are divided by it.
    """
    away = inputs - around
    if mask is None:
        count = tf.cast(tf.size(inputs), inputs.dtype)
    else:
        ones = tf.cast(tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs)), inputs.dtype)
        away *= ones
        count = tf.reduce_sum(ones)
    sums, squares = tf.reduce_sum(away, axes), tf.reduce_sum(tf.square(away), axes)
    channels = tf.size(sums)
    mine = tf.concat([sums, squares, [count / tf.cast(channels, inputs.dtype)]], axis=0)
    total = agreement.add_up(mine * agreement.active(inputs.dtype))
    sums, squares, count = tf.ensure_shape(total[:channels], sums.shape), total[channels:-1], total[-1]
    mean = (sums - spare * centre) / (count + spare)
    variance = (squares - 2 * mean * sums + count * tf.square(mean)) / (count + spare)
    return mean, tf.ensure_shape(variance, sums.shape), count
