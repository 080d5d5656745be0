"""BigDL's initialisation methods and regularizers against their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orca_classic.bigdl import initial as I  # noqa: E402
from orca_classic.bigdl.recurrent import LAYERS  # noqa: E402


@pytest.mark.parametrize(("method", "low", "high", "mean", "deviation"), [
    (I.Zeros(), 0, 0, 0, 0), (I.Ones(), 1, 1, 1, 0), (I.ConstInitMethod(0.3), 0.3, 0.3, 0.3, 0),
    (I.RandomUniform(), -0.05, 0.05, 0, 0.05 / math.sqrt(3)), (I.RandomUniform(1.0, 3.0), 1, 3, 2, 1 / math.sqrt(3)),
    (I.RandomNormal(2.0, 0.1), 1, 3, 2, 0.1), (I.Xavier(), -0.1, 0.1, 0, 0.1 / math.sqrt(3)),
    (I.MsraFiller(), -1, 1, 0, math.sqrt(2 / 300)), (I.MsraFiller(False), -1, 1, 0, math.sqrt(2 / 200)),
], ids=lambda value: type(value).__name__ if hasattr(value, "fill") else "")  # fmt: skip
def test_method_draws_as_it_says(method: Any, low: float, high: float, mean: float, deviation: float) -> None:
    layer = LAYERS["Linear"](400, 200).set_init_method(method, I.Zeros())  # 400 numbers enter a unit, 200 units leave
    weight, bias = layer.get_weights()
    assert low - 1e-6 <= weight.min() <= weight.max() <= high + 1e-6 and not bias.any()
    assert weight.mean() == pytest.approx(mean, abs=0.01) and weight.std() == pytest.approx(
        deviation, rel=0.02, abs=1e-6
    )


def test_fans_of_a_convolution_are_those_of_a_group() -> None:
    layer = LAYERS["SpatialConvolution"](60, 120, 5, 5, n_group=2).set_init_method(I.Xavier())
    assert np.abs(layer.get_weights()[0]).max() == pytest.approx(math.sqrt(6 / (30 * 25 + 60 * 25)), rel=0.01)


def test_bilinear_filler_makes_images_larger_between_their_pixels() -> None:
    layer = LAYERS["SpatialFullConvolution"](1, 1, 4, 4, 2, 2, 1, 1).set_init_method(I.BilinearFiller(), I.Zeros())
    ramp = np.arange(6, dtype=np.float32)[None, None].repeat(6, 1)[None]
    inner = layer.forward(ramp.reshape(1, 1, 6, 6))[0, 0, 3:-3, 3:-3]
    np.testing.assert_allclose(np.diff(inner, axis=1), 0.5, atol=1e-6)
    np.testing.assert_allclose(np.diff(inner, axis=0), 0, atol=1e-6)


@pytest.mark.parametrize(("penalty", "l1", "l2"), [
    (I.L1Regularizer(0.3), 0.3, 0), (I.L2Regularizer(0.3), 0, 0.3), (I.L1L2Regularizer(0.3, 0.2), 0.3, 0.2),
])  # fmt: skip
def test_penalty_adds_its_gradient(penalty: Any, l1: float, l2: float) -> None:
    layer = LAYERS["Linear"](3, 2, wRegularizer=penalty)
    layer.backward(np.zeros((1, 3)), np.zeros((1, 2)))
    (values,) = layer.parameters().values()
    weight = values["weight"]
    np.testing.assert_allclose(values["gradWeight"], l1 * np.sign(weight) + l2 * weight, rtol=1e-5)
    assert not values["gradBias"].any()
