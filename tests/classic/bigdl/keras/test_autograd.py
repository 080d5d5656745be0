"""Arithmetic of variables against numpy and Keras's own functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tf_keras")

import tensorflow
import tf_keras

from orca.errors import ArgumentError
from orca_classic.bigdl.keras import autograd as G
from orca_classic.bigdl.keras.engine import Input, Model

K = tf_keras.backend
DRAW = np.random.default_rng(0)
A, B = (DRAW.normal(size=(3, 4)).astype(np.float32) for _ in range(2))
T, U, V = (DRAW.normal(size=shape).astype(np.float32) for shape in ((3, 5, 4), (3, 4, 2), (3, 5)))


def unit(x: Any, axis: int) -> Any:
    return x / np.sqrt(np.square(x).sum(axis, keepdims=True))


# what variables are asked for, its inputs, its truth
# fmt: off
ROWS: list[tuple[Any, Any, Any]] = [
    (lambda x, y: x + y * 2 - 1, [A, B], lambda x, y: x + y * 2 - 1),
    (lambda x, y: 1 - x / (y - 3.0), [A, B], lambda x, y: 1 - x / (y - 3)),
    (lambda x: 2 / (x ** 2 + 1), [A], lambda x: 2 / (x * x + 1)),
    (lambda x: -x[:, 1:3], [A], lambda x: -x[:, 1:3]),
    (lambda x: x + B[0], [A], lambda x: x + B[0]),
    (lambda x: G.mean(x, axis=1), [T], lambda x: x.mean(1)),
    (lambda x: G.mean(x, 1, True), [T], lambda x: x.mean(1, keepdims=True)),
    (lambda x: G.sum(x, axis=2, keepDims=True), [T], lambda x: x.sum(2, keepdims=True)),
    (lambda x: G.abs(x), [A], np.abs), (lambda x: G.square(x), [A], np.square), (lambda x: G.exp(x), [A], np.exp),
    (lambda x: G.sqrt(G.abs(x)), [A], lambda x: np.sqrt(abs(x))),
    (lambda x: G.log(G.abs(x)), [A], lambda x: np.log(abs(x))),
    (lambda x: G.neg(x), [A], np.negative), (lambda x: G.pow(x, 3.0), [A], lambda x: x**3),
    (lambda x: G.contiguous(x), [A], lambda x: x),
    (lambda x: G.softsign(x), [A], K.softsign), (lambda x: G.softplus(x), [A], K.softplus),
    (lambda x: G.erf(x), [A], tensorflow.math.erf),
    (lambda x: G.clip(x, -0.5, 0.2), [A], lambda x: np.clip(x, -0.5, 0.2)),
    (lambda x: G.clip(x, min=-0.5, max=0.2), [A], lambda x: np.clip(x, -0.5, 0.2)),
    (lambda x, y: G.maximum(x, y), [A, B], np.maximum),
    (lambda x: G.maximum(x, 0.1), [A], lambda x: np.maximum(x, 0.1)),
    (lambda x, y: G.minimum(x, y), [A, B], np.minimum), (lambda x, y: G.add(x, y), [A, B], np.add),
    (lambda x, y: G.sub(x, y), [A, B], np.subtract), (lambda x, y: G.mul(x, y), [A, B], np.multiply),
    (lambda x, y: G.div(x, y), [A, B], np.divide),
    (lambda x, y: G.batch_dot(x, y, 1), [A, B], lambda x, y: K.batch_dot(x, y, 1)),
    (lambda x, y: G.batch_dot(x, y, [2, 1]), [T, U], lambda x, y: K.batch_dot(x, y, [2, 1])),
    (lambda x, y: G.batch_dot(x, y, [2, 1]), [T, A], lambda x, y: K.batch_dot(x, y, [2, 1])),
    (lambda x, y: G.batch_dot(x, y, [1, 2]), [A, T], lambda x, y: K.batch_dot(x, y, [1, 2])),
    (lambda x, y: G.batch_dot(x, y, [1, 1]), [T, V], lambda x, y: K.batch_dot(x, y, [1, 1])),
    (lambda x, y: G.batch_dot(x, y, [2, 1], True), [T, U], lambda x, y: K.batch_dot(unit(x, 2), unit(y, 1), [2, 1])),
    (lambda x, y: G.batch_dot(x, y, 1, True), [A, B], lambda x, y: (unit(x, 1) * unit(y, 1)).sum(1, keepdims=True)),
    (lambda x, y: G.mm(x, y), [T, U], lambda x, y: x @ y),
    (lambda x, y: G.mm(x, y, [2, 2]), [T, T[:, :2].copy()], lambda x, y: x @ y.transpose(0, 2, 1)),
    (lambda x, y: G.dot(x, y), [A, B], lambda x, y: (x * y).sum(1, keepdims=True)),
    (lambda x, y: G.dot(x, y, normalize=True), [A, B], lambda x, y: (unit(x, 1) * unit(y, 1)).sum(1, keepdims=True)),
    (lambda x: G.l2_normalize(x, 1), [T], lambda x: K.l2_normalize(x, 1)),
    (lambda x: G.expand_dims(x, 1), [A], lambda x: x[:, None]),
    (lambda x: G.squeeze(x, 1), [T[:, :1].copy()], lambda x: x[:, 0]),
    (lambda x, y: G.stack([x, y]), [A, B], lambda x, y: np.stack([x, y], 1)),
    (lambda x, y: G.stack([x, y], 2), [A, B], lambda x, y: np.stack([x, y], 2)),
    (lambda x: x.slice(1, 1, 2), [T], lambda x: x[:, 1:3]), (lambda x: x.slice(1, 1, -1), [T], lambda x: x[:, 1:]),
    (lambda x: x.index_select(1, 2), [T], lambda x: x[:, 2]),
    (lambda x: x.squeeze(1), [T[:, :1].copy()], lambda x: x[:, 0]),
    (lambda x: x.replicate(1, 3), [T], lambda x: np.repeat(x, 3, 1)),
    (lambda x: x.expand_dims(2), [A], lambda x: x[:, :, None]),
]
# fmt: on


@pytest.mark.parametrize(("asked", "arrays", "truth"), ROWS, ids=range(len(ROWS)))
def test_operation_is_its_definition(asked: Any, arrays: Any, truth: Any) -> None:
    inputs = [Input(array.shape[1:]) for array in arrays]
    model = Model(inputs, asked(*inputs))
    output, wanted = model.forward(arrays if len(arrays) > 1 else arrays[0]), np.asarray(truth(*arrays))
    assert output.shape == wanted.shape and model.get_output_shape() == (None, *wanted.shape[1:])
    np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)


def test_operations_need_a_variable_and_parameters_are_learned() -> None:
    with pytest.raises(ArgumentError, match="exp needs a variable"):
        G.exp(3.0)
    x, weight = Input((4,)), G.Parameter((4, 2), init_weight=np.ones((4, 2)))
    model = Model(x, G.mm(x, weight) + G.Constant(np.array([1.0, 2.0])))
    np.testing.assert_allclose(model.forward(A), A @ np.ones((4, 2)) + [1, 2], rtol=1e-5)
    model.backward(A, np.ones((3, 2)))
    np.testing.assert_allclose(weight.layer.module.weight.grad, A.T @ np.ones((3, 2)), rtol=1e-4)
    np.testing.assert_allclose(model.reset().forward(A), A @ np.ones((4, 2)) + [1, 2], rtol=1e-5)  # nobody draws them
    assert G.epsilon() == K.epsilon()


def test_loss_of_a_function_takes_labels_first() -> None:
    loss = G.CustomLoss(lambda y_true, y_pred: G.mean(G.square(y_true - y_pred) * y_true, axis=1), (4,))
    assert loss.forward(A, B) == pytest.approx((np.square(A - B) * A).mean(), rel=1e-5)
    np.testing.assert_allclose(loss.backward(A, B), 2 * (B - A) * A / 12, rtol=1e-4, atol=1e-6)


def test_numbers_come_first_and_variables_by_name() -> None:
    x = Input((4,))
    assert x.get_input_shape() == (None, 4)
    model = Model(x, [G.maximum(0.0, x), G.minimum(1, x), G.sum(x=x, axis=1), G.stack(inputs=[x, x], axis=1)])
    largest, smallest, total, both = model.forward(A)
    np.testing.assert_array_equal(largest, np.maximum(A, 0))
    np.testing.assert_array_equal(smallest, np.minimum(A, 1))
    np.testing.assert_allclose(total, A.sum(1), rtol=1e-5)
    np.testing.assert_array_equal(both, np.stack([A, A], 1))
