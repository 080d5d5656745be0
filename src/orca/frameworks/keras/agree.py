"""Agree: how replicas of a Keras model become one. Owns the way of gradients over the ranks, exact for any split.

Each rank's gradient belongs to the mean loss of its own rows. It is weighed by what that mean is over (rows, or what a
mask leaves of them: the mass), added up over the ranks and divided by the sum of masses: the gradient of the step.
That happens before the optimizer sees it, so clipping, loss scaling, accumulation and weight decay work as in one
process. Batch normalization takes its statistics over all ranks' rows, in the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from orca.core.tree import flatten
from orca.core.world import World
from orca.errors import ArgumentError

_EXTRAS = 3  # what travels with the gradients: mass, loss, whether this rank asks to stop


class Agreement:
    """Let a model on this rank step together with all others.

    Attributes:
        loss: The mean loss of the last step over all ranks; None where the model does not compute one.
        stop: Whether a rank asked to stop, as heard in the last step.
        wants_stop: Whether this rank asks to stop.
    """

    def __init__(self, model: Any, world: World, sync_batch_norm: bool) -> None:
        self.model, self.world = model, world
        self.adds = _adds(model, world)
        self.loss: float | None = None
        self.stop = self.wants_stop = False
        self.error: BaseException | None = None
        self._rows: Any = 0.0
        self._leads: Any = 0.0
        self._seen: Any = None
        self._mass: Any = 0.0
        self.local_norms = [] if world.size == 1 else _hook_norms(model, self, sync_batch_norm)
        self.shared_norms = [layer for layer in norms_of(model) if layer not in self.local_norms]
        _hook_loss(model, self)

    def hook_optimizer(self) -> None:
        """Let the optimizer see the gradients of all ranks in place of this rank's own."""
        optimizer = self.model.optimizer
        if hasattr(optimizer, "apply"):
            apply = optimizer.apply
            optimizer.apply = lambda grads, trainable_variables=None: apply(self.agreed(grads), trainable_variables)
            return
        apply_gradients = optimizer.apply_gradients

        def agreed(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            grads, variables = zip(*grads_and_vars, strict=True)
            return apply_gradients(zip(self.agreed(grads), variables, strict=True), *args, **kwargs)

        optimizer.apply_gradients = agreed

    def enter(self, rows: Any, leads: Any) -> None:
        """Begin a step with this many rows on this rank; `leads` is 1 on the step's first rank with rows, else 0."""
        self._rows, self._leads = rows, leads
        self._mass, self._seen = rows, None

    def measured(self) -> tuple[Any, Any]:
        """Return (loss of this rank's rows, its mass) of the step, as tensors."""
        loss = np.nan if self._seen is None else self._seen
        return tf.cast(loss, tf.float64), tf.cast(self._mass, tf.float64)

    def weigh(self, loss: Any, output: Any, weights: Any) -> Any:
        """Take note of a step's loss and of what it is a mean over; return the loss to differentiate."""
        if self.adds and self.world.size > 1:  # what is added to a sum of rows counts once, not once a rank
            follows = 1 - tf.cast(self._leads, loss.dtype)
            loss -= sum((tf.cast(added, loss.dtype) for added in self.model.losses), tf.zeros((), loss.dtype)) * follows
        self._seen = loss
        self._mass = self._rows * self._counted(output, weights)
        return loss

    def agreed(self, grads: Sequence[Any]) -> list[Any]:
        """Return the gradients of the whole step; None stays None, and what is sparse stays sparse."""
        sparse = [grad for grad in grads if isinstance(grad, tf.IndexedSlices)]
        dense = [grad for grad in grads if grad is not None and not isinstance(grad, tf.IndexedSlices)]
        kind = tf.float64 if any(grad.dtype == tf.float64 for grad in dense) else tf.float32
        flat = tf.concat([tf.zeros(0, kind), *(tf.reshape(tf.cast(grad, kind), [-1]) for grad in dense)], axis=0)
        pieces = [piece for grad in sparse for piece in (grad.indices, grad.values)]
        kinds = [kind, tf.float64, *(piece.dtype for piece in pieces)]  # one alone would come back without its list
        total, _, *added = tf.numpy_function(self._add_gradients, [flat, *self.measured(), *pieces], kinds)
        total.set_shape(flat.shape)
        for piece, old in zip(added, pieces, strict=True):
            piece.set_shape([None, *old.shape[1:]])
        parts, slices = iter(tf.split(total, [tf.size(grad) for grad in dense], num=len(dense))), iter(added)

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
                # Every rank's gradient is weighed by its mass later: those of the others must not get mine.
                mass = tf.cast(self._mass, upstream.dtype)
                return tf.math.divide_no_nan(self._sum(tf.math.multiply_no_nan(upstream, mass)), mass)

            return self._sum(mine), back

        return summed(vector)

    def active(self, kind: Any) -> Any:
        """Return 1 where this rank has rows in the step, else 0."""
        return tf.cast(tf.cast(self._rows, tf.float32) > 0, kind)

    def _counted(self, output: Any, weights: Any) -> Any:
        """Return what the loss of this rank is a mean over, as a factor of its rows."""
        outputs = flatten(output)[0]
        masks = [getattr(each, "_keras_mask", None) for each in outputs]
        rows = tf.maximum(tf.cast(self._rows, tf.float32), 1.0)
        if self.adds or (weights is None and not any(mask is not None for mask in masks)):
            return 1.0
        if any(mask is not None for mask in masks):
            if self.world.size > 1 and any(mask is not masks[0] for mask in masks):
                raise ArgumentError(
                    "the model's outputs have different masks, so the mean of its loss has no single number of "
                    "elements and cannot be taken over several workers. Train with one worker, or give all outputs "
                    "the same mask."
                )
            return tf.reduce_sum(tf.cast(masks[0], tf.float32)) / rows
        if _divides_by_weights(self.model):
            return tf.reduce_sum(tf.cast(flatten(weights)[0][0], tf.float32)) / rows
        return 1.0

    def _sum(self, vector: Any) -> Any:
        total = tf.numpy_function(self._add, [vector], vector.dtype)
        total.set_shape(vector.shape)
        return total

    def _add(self, vector: np.ndarray) -> np.ndarray:
        try:
            return self.world.all_reduce([vector], "sum")[0]
        except BaseException as error:
            self.error = error  # TensorFlow would tell only its text
            raise

    def _add_gradients(self, flat: np.ndarray, loss: np.ndarray, mass: np.ndarray, *sparse: np.ndarray) -> list[Any]:
        """Add gradients up, weighed by the mass; on the way, agree on the step's loss and on stopping.

        Of a sparse gradient (indices, values) all ranks' entries are kept, as one process would have had them.
        """
        factor = float(mass > 0) if self.adds else float(mass)
        box = np.zeros(len(flat) + _EXTRAS, flat.dtype)
        if factor:
            np.multiply(flat, factor, out=box[:-_EXTRAS])
            box[-_EXTRAS] = factor
            box[-_EXTRAS + 1] = loss * factor
        box[-1] = self.wants_stop
        total = self._add(box)
        divisor = float(1.0 if self.adds else total[-_EXTRAS]) or 1.0
        self.loss = float(total[-_EXTRAS + 1] / divisor) if total[-_EXTRAS] else float("nan")
        self.stop = bool(total[-1] > 0)
        gradients = np.divide(total[:-_EXTRAS], divisor, out=total[:-_EXTRAS])
        return [gradients, np.float64(self.loss), *self._entries(sparse, factor, divisor)]

    def _entries(self, sparse: Sequence[np.ndarray], factor: float, divisor: float) -> list[np.ndarray]:
        if not sparse:
            return []
        indices, values = sparse[::2], sparse[1::2]
        kept = slice(None) if factor else slice(0)
        mine = [(i[kept], (v[kept] * (factor / divisor)).astype(v.dtype)) for i, v in zip(indices, values, strict=True)]
        told = self.world.all_gather(mine)
        return [np.concatenate([rank[i][k] for rank in told]) for i in range(len(mine)) for k in (0, 1)]


def _hook_loss(model: Any, agreement: Agreement) -> None:
    original = model.compute_loss
    signature = inspect.signature(original)

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        loss = original(*args, **kwargs)
        return loss if loss is None else agreement.weigh(loss, given.get("y_pred"), given.get("sample_weight"))

    model.compute_loss = compute_loss


def _adds(model: Any, world: World) -> bool:
    """Say whether the model's loss is a sum over rows instead of a mean.

    Raises:
        ArgumentError: Some of its losses are sums and some are means, and there are several ranks.
    """
    losses = flatten(getattr(model, "loss", None))[0]
    reductions = {str(getattr(loss, "reduction", "auto") or "auto").lower() for loss in losses}
    if "sum" in reductions and len(reductions) > 1 and world.size > 1:
        raise ArgumentError(
            f"the model's losses are reduced in different ways ({', '.join(sorted(reductions))}), which cannot be "
            "made exact over several workers. Give all of them reduction='sum', or none."
        )
    return "sum" in reductions


def _divides_by_weights(model: Any) -> bool:
    losses = flatten(getattr(model, "loss", None))[0]
    return any(getattr(loss, "reduction", "") == "mean_with_sample_weight" for loss in losses)


def norms_of(model: Any) -> list[Any]:
    """Return the batch normalization layers of a model, nested ones included."""
    return [layer for layer in model._flatten_layers() if _is_norm(layer)]


def _is_norm(layer: Any) -> bool:
    return any(kind.__name__.startswith("BatchNormalization") for kind in type(layer).__mro__)


def _hook_norms(model: Any, agreement: Agreement, synchronized: bool) -> list[Any]:
    """Let batch normalization see the rows of all ranks; return the layers that go on seeing their rank's alone."""
    local = []
    for layer in norms_of(model):
        odd = getattr(layer, "renorm", False) or getattr(layer, "virtual_batch_size", None) is not None
        if odd or not (synchronized or layer.synchronized):
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
        mean, variance, _ = _over_ranks(inputs, axes, tf.reshape(centre, shape), mask, agreement)
        return mean + centre, variance

    return moments


def _hook_legacy_norm(layer: Any, agreement: Agreement) -> None:
    """Do the same for tf_keras, whose fused kernel cannot wait for others and corrects the variance it remembers."""
    fused, counted = bool(layer.fused), [tf.constant(0.0)]
    layer.fused = False
    remember = layer._assign_moving_average

    def moments(inputs: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None) -> tuple[Any, Any]:
        mean, variance, counted[0] = _over_ranks(inputs, reduction_axes, tf.zeros((), inputs.dtype), mask, agreement)
        if keep_dims:
            shape = [1 if axis in reduction_axes else -1 for axis in range(len(inputs.shape))]
            mean, variance = tf.reshape(mean, shape), tf.reshape(variance, shape)
        return mean, variance

    def remember_corrected(variable: Any, value: Any, momentum: Any, inputs_size: Any) -> Any:
        if variable is layer.moving_variance:
            value *= tf.cast(counted[0] / (counted[0] - 1), value.dtype)
        return remember(variable, value, momentum, inputs_size)

    layer._calculate_mean_and_var = moments
    if fused:
        layer._assign_moving_average = remember_corrected


def _over_ranks(inputs: Any, axes: Any, centre: Any, mask: Any, agreement: Agreement) -> tuple[Any, Any, Any]:
    """Return the mean distance from the centre and the variance of each channel over all ranks, and what it counted.

    Around the layer's running mean, as a sum of squares around zero loses digits where the mean is large.
    """
    away = inputs - centre
    if mask is None:
        count = tf.cast(tf.size(inputs), inputs.dtype)
    else:
        kept = tf.cast(tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs)), inputs.dtype)
        away *= kept
        count = tf.reduce_sum(kept)
    sums, squares = tf.reduce_sum(away, axes), tf.reduce_sum(tf.square(away), axes)
    channels = tf.size(sums)
    mine = tf.concat([sums, squares, [count / tf.cast(channels, inputs.dtype)]], axis=0)
    total = agreement.add_up(mine * agreement.active(inputs.dtype))
    mean, square = total[:channels] / total[-1], total[channels:-1] / total[-1]
    mean.set_shape(sums.shape)
    square.set_shape(sums.shape)
    return mean, square - tf.square(mean), total[-1]
