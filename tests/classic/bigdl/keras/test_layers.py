"""Layers of the Keras-style API against Keras's own layers with the same weights, or their definition in torch."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

import tensorflow as tf
import tf_keras
import torch

from orca.errors import DataError
from orca_classic.bigdl import files
from orca_classic.bigdl.keras import layers as rows_of
from orca_classic.bigdl.keras.engine import KERAS, KERAS2, Input, KerasLayerWrapper, Model, Sequential
from orca_classic.bigdl.layer import LAYERS, shown, weights_of

K = tf_keras.layers
DRAW = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return DRAW.normal(size=shape).astype(np.float32)


# How weights of ours lie in Keras: (outputs, inputs) is (inputs, outputs) there, and so on. Gradients go the same way.


def dense(w: Any, *b: Any) -> list[Any]:
    return [w.T, *b]


def kernel(w: Any, *b: Any) -> list[Any]:
    """([groups,] outputs, inputs, window ...) as (window ..., inputs, outputs)."""
    return [np.moveaxis(w[0] if w.shape[0] == 1 else w, (0, 1), (-1, -2)), *b]


def kernel_last(w: Any, *b: Any) -> list[Any]:
    """(groups, window ..., inputs, outputs): channels come last in both."""
    return [w[0], *b]


def kernel1(w: Any, *b: Any) -> list[Any]:
    return [w[0, :, 0], *b]


def separable(deep: Any, point: Any, *b: Any) -> list[Any]:
    return [deep.transpose(2, 3, 1, 0), point.transpose(2, 3, 1, 0), *b]


def local1(w: Any, *b: Any) -> list[Any]:
    return [w.transpose(0, 2, 1), *b]


def local2(w: Any, b: Any) -> list[Any]:
    places, outputs, _ = w.shape  # (inputs, rows, columns) of a window as (rows, columns, inputs)
    flat = w.reshape(places, outputs, 3, 2, 2).transpose(0, 3, 4, 2, 1).reshape(places, -1, outputs)
    return [flat, b.reshape(*PLACES, outputs)]


def local2_last(w: Any, b: Any) -> list[Any]:
    return [w.transpose(0, 2, 1), b.reshape(*PLACES, w.shape[1])]


def gates(order: list[int], count: int) -> Any:
    """Put gates in Keras's order: (weight, bias, hidden)."""

    def turned(*weights: Any) -> list[Any]:
        parts = [np.split(weight, count) for weight in weights]
        w, b, *u = [np.concatenate([part[at] for at in order]) if len(part) == count else part for part in parts]
        return [w.T, u[0].T, b]

    return turned


lstm = gates([0, 2, 1, 3], 4)


def gru(w: Any, b: Any, u: Any, v: Any) -> list[Any]:
    return gates([1, 0, 2], 3)(w, b, np.concatenate([u, v]))


def image_lstm(w: Any, b: Any, u: Any) -> list[Any]:
    def turned(weight: Any) -> Any:
        i, g, f, o = np.split(weight[0], 4)
        return np.moveaxis(np.concatenate([i, f, g, o]), (0, 1), (-1, -2))

    return [turned(w), turned(u), np.concatenate([np.split(b, 4)[at] for at in (0, 2, 1, 3)])]


def both(way: Any) -> Any:
    return lambda *w: way(*w[: len(w) // 2]) + way(*w[len(w) // 2 :])


# The rows. `to` is Keras's layer, `weights` how ours lie there; `by` is a definition; `th`: channels come first.

ROWS: list[dict[str, Any]] = []
A, B, T3, IMAGES, VOLUMES = numbers(3, 4), numbers(3, 4), numbers(2, 5, 4), numbers(2, 3, 5, 6), numbers(2, 2, 4, 5, 6)
LAST, LAST3, PLACES = np.moveaxis(IMAGES, 1, -1).copy(), np.moveaxis(VOLUMES, 1, -1).copy(), (4, 5)
FILM, FILM3 = numbers(2, 3, 2, 4, 5), numbers(2, 2, 2, 3, 4, 4)


def row(name: str, *args: Any, x: Any = A, to: Any = None, by: Any = None, weights: Any = dense, th: bool = False,
        table: Any = KERAS, made: Any = None, evaluates: bool = False, **kwargs: Any) -> None:  # fmt: skip
    made = made or (lambda: table[name](*args, **kwargs))
    ROWS.append({"name": (name, 1 if table is KERAS else 2), "made": made, "x": x, "to": to, "by": by, "th": th,
                 "weights": weights, "evaluates": evaluates})  # fmt: skip


def images(name: str, *args: Any, to: Any, volumes: bool = False, weights: Any = dense, last: Any = None,
           **kwargs: Any) -> None:  # fmt: skip
    """Add the row of both orders of dimensions; `last`: how weights lie where channels come last."""
    row(name, *args, x=VOLUMES if volumes else IMAGES, to=to, th=True, weights=weights, **kwargs)
    row(name, *args, x=LAST3 if volumes else LAST, to=to, dim_ordering="tf", weights=last or weights, **kwargs)


# fmt: off
row("Dense", 3, activation="tanh", to=lambda: K.Dense(3, "tanh"))
row("Dense", 3, bias=False, x=T3, to=lambda: K.Dense(3, use_bias=False))
row("SparseDense", 3, activation="relu", to=lambda: K.Dense(3, "relu"))
for name in ("relu", "tanh", "sigmoid", "softplus", "softsign", "elu", "hard_sigmoid", "softmax", "linear", "gelu"):
    row("Activation", name, x=T3, to=lambda name=name: K.Activation(name))
for name, by in {"log_softmax": lambda x: x - x.exp().sum(-1, keepdim=True).log(), "relu6": lambda x: x.clamp(0, 6),
                 "softmin": lambda x: (-x).exp() / (-x).exp().sum(-1, keepdim=True),
                 "tanh_shrink": lambda x: x - x.tanh(), "log_sigmoid": lambda x: -(1 + (-x).exp()).log()}.items():
    row("Activation", name, by=by)
row("Flatten", x=IMAGES, to=K.Flatten)
row("Reshape", (10, -1), x=T3, to=lambda: K.Reshape((10, -1)))
row("Reshape", (2, 2), to=lambda: K.Reshape((2, 2)))
row("Permute", (3, 1, 2), x=IMAGES, to=lambda: K.Permute((3, 1, 2)))
row("RepeatVector", 3, to=lambda: K.RepeatVector(3))
MASKED = T3.copy()
MASKED[0, 1] = MASKED[1, 2:] = MASKED[0, 2, 1] = -1
row("Masking", -1.0, x=MASKED, to=lambda: K.Masking(-1.0))
row("MaxoutDense", 2, 3, by=lambda x, w, b: (x @ w.T + b).unflatten(1, (3, 2)).max(1).values)
row("Highway", "tanh", by=lambda x, g, c, w, b: torch.sigmoid(x @ g.T + c) * (torch.tanh(x @ w.T + b) - x) + x)
INDICES = np.array([[1.0, 4, 2], [3, 3, 0]])
row("Embedding", 5, 2, x=INDICES, to=lambda: K.Embedding(5, 2), weights=lambda w: [w])
row("Embedding", 5, 2, zero_based_id=False, x=INDICES + 1, to=lambda: tf_keras.Sequential([K.Lambda(lambda x: x - 1),
    K.Embedding(5, 2)]), weights=lambda w: [w])
for combiner, share in (("sum", 1), ("mean", 2), ("sqrtn", math.sqrt(2))):
    row("SparseEmbedding", 5, 2, combiner, x=np.array([[1.0, 5, 0], [3, 3, 0]]),
        by=lambda x, w, share=share: torch.stack([w[0] + w[4], 2 * w[2]]) / share + 0 * x[:, :1])
row("BatchNormalization", to=lambda: K.BatchNormalization(), weights=lambda w, b: [w, b, 0 * w, 0 * b + 1])
images("BatchNormalization", to=lambda: K.BatchNormalization(), weights=lambda w, b: [w, b, 0 * w, 0 * b + 1])
row("BatchNormalization", evaluates=True, epsilon=0.1, to=lambda: K.BatchNormalization(epsilon=0.1), weights=lambda w,
    b: [w, b, 0 * w, 0 * b + 1])
row("ELU", 0.5, to=lambda: K.ELU(0.5))
row("LeakyReLU", 0.2, to=lambda: K.LeakyReLU(0.2))
row("ThresholdedReLU", 0.5, to=lambda: K.ThresholdedReLU(0.5))
row("PReLU", by=lambda x, w: torch.where(x > 0, x, w * x))
row("PReLU", 3, x=IMAGES, to=lambda: K.PReLU(shared_axes=[1, 2]), th=True, weights=lambda w: [w[None, None]])
row("RReLU", evaluates=True, by=lambda x: torch.where(x > 0, x, x * (1 / 8 + 1 / 3) / 2))
row("SReLU", by=lambda x, a, b, c, d: torch.where(x >= a + c.abs(), a + c.abs() + d * (x - a - c.abs()),
    torch.where(x <= a, a + b * (x - a), x)))
row("SReLU", shared_axes=[1, 2], x=LAST, by=lambda x, a, b, c, d: torch.where(x >= a + c.abs(),
    a + c.abs() + d * (x - a - c.abs()), torch.where(x <= a, a + b * (x - a), x)))
for name, args, by in (
    ("HardShrink", (0.3,), lambda x: x * (x.abs() > 0.3)), ("HardTanh", (-0.5, 0.2), lambda x: x.clamp(-0.5, 0.2)),
    ("SoftShrink", (0.3,), lambda x: (x - 0.3) * (x > 0.3) + (x + 0.3) * (x < -0.3)), ("Exp", (), lambda x: math.e**x),
    ("Threshold", (0.3, 7.0), lambda x: torch.where(x > 0.3, x, 7.0)), ("Square", (), lambda x: x * x),
    ("BinaryThreshold", (0.3,), lambda x: (x > 0.3) * 1.0), ("Negative", (), lambda x: 0 - x),
    ("Identity", (), lambda x: x),
    ("Power", (2.0, 3.0, 1.0), lambda x: (1 + 3 * x) * (1 + 3 * x)), ("AddConstant", (2.5,), lambda x: 2.5 + x),
    ("MulConstant", (2.5,), lambda x: x / 0.4), ("Mul", (), lambda x, w: x * w), ("CAdd", ([4],), lambda x, b: x + b),
    ("CMul", ([4],), lambda x, w: x * w), ("Scale", ([4],), lambda x, w, b: x * w + b), ("InputLayer", (), lambda x: x),
    ("GaussianDropout", (0.2,), lambda x: x), ("GaussianNoise", (0.2,), lambda x: x), ("Dropout", (0.2,), lambda x: x),
):
    row(name, *args, evaluates=True, by=by)
row("Log", x=abs(A) + 0.1, by=lambda x: x.log2() / math.log2(math.e))
row("Sqrt", x=abs(A) + 0.1, by=lambda x: x ** 0.5)
for name, x in (("SpatialDropout1D", T3), ("SpatialDropout2D", IMAGES), ("SpatialDropout3D", VOLUMES)):
    row(name, 0.5, x=x, evaluates=True, by=lambda x: x)
row("GaussianSampler", x=[A, B], by=lambda a, b: a + (b / 2).exp() * torch.randn(3, 4))
images("LRN2D", 0.5, 2.0, 0.75, 3, to=lambda: lambda x: tf.nn.local_response_normalization(x, 1, 2.0, 0.5 / 3, 0.75))
row("WithinChannelLRN2D", 3, 0.5, 0.75, x=IMAGES, th=True,
    to=lambda: lambda x: x / (1 + 0.5 / 9 * tf.nn.depthwise_conv2d(x * x, tf.ones((3, 3, 3, 1)), [1] * 4,
    "SAME")) ** 0.75)
images("ResizeBilinear", 8, 4, to=lambda: lambda x: tf.compat.v1.image.resize_bilinear(x, (8, 4)))
images("ResizeBilinear", 8, 4, True, to=lambda: lambda x: tf.compat.v1.image.resize_bilinear(x, (8, 4),
    align_corners=True))
row("Select", 1, 2, x=T3, by=lambda x: x[:, 2])
row("Select", -1, -1, x=T3, by=lambda x: x[..., -1])
row("Narrow", 1, 1, 2, x=T3, by=lambda x: x[:, 1:3])
row("Narrow", 1, 1, -2, x=T3, by=lambda x: x[:, 1:-1])
row("Squeeze", 1, x=T3[:, :1], by=lambda x: x[:, 0])
row("Squeeze", x=T3[:, :1], by=lambda x: x[:, 0])
row("ExpandDim", 1, x=T3, by=lambda x: x[:, None])
row("Max", 1, x=T3, by=lambda x: x.max(1, keepdim=True).values)
row("Max", 1, return_value=False, x=T3, by=lambda x: x.max(1, keepdim=True).indices.float())
row("SelectTable", 1, x=[A, B], by=lambda a, b: b)
row("GetShape", x=T3, by=lambda x: torch.tensor([[2.0, 5, 4]] * 2))
# Images.
row("Convolution1D", 3, 2, activation="relu", x=T3, to=lambda: K.Conv1D(3, 2, activation="relu"), weights=kernel1)
row("Convolution1D", 3, 2, border_mode="same", subsample_length=2, bias=False, x=T3, to=lambda: K.Conv1D(3, 2, 2,
    "same", use_bias=False), weights=kernel1)
row("AtrousConvolution1D", 3, 2, atrous_rate=2, x=T3, to=lambda: K.Conv1D(3, 2, dilation_rate=2), weights=kernel)
row("AtrousConvolution1D", 3, 3, border_mode="same", atrous_rate=2, x=T3, to=lambda: K.Conv1D(3, 3, 1, "same",
    dilation_rate=2), weights=kernel)
images("Convolution2D", 4, 2, 3, activation="relu", subsample=(2, 1), to=lambda: K.Conv2D(4, (2, 3), (2, 1),
    activation="relu"), weights=kernel, last=kernel_last)
images("Convolution2D", 4, 2, 3, activation="softmax", border_mode="same", subsample=(2, 3), bias=False,
    to=lambda: K.Conv2D(4, (2, 3), (2, 3), "same", activation="softmax", use_bias=False), weights=kernel,
    last=kernel_last)
images("ShareConvolution2D", 4, 2, 3, subsample=(1, 2), pad_h=1, pad_w=2, activation="relu",
    to=lambda: tf_keras.Sequential([K.ZeroPadding2D((1, 2)), K.Conv2D(4, (2, 3), (1, 2), activation="relu")]),
    weights=kernel, last=kernel_last)
images("AtrousConvolution2D", 4, 2, 3, border_mode="same", atrous_rate=(2, 1), to=lambda: K.Conv2D(4, (2, 3), 1, "same",
    dilation_rate=(2, 1)), weights=kernel)
images("Deconvolution2D", 4, 2, 3, subsample=(2, 3), activation="relu", to=lambda: K.Conv2DTranspose(4, (2, 3), (2, 3),
    activation="relu"), weights=lambda w, b: [w[0].transpose(2, 3, 1, 0), b])
images("SeparableConvolution2D", 4, 2, 3, depth_multiplier=2, activation="relu", border_mode="same", subsample=(2, 2),
    to=lambda: K.SeparableConv2D(4, (2, 3), (2, 2), "same", depth_multiplier=2, activation="relu"), weights=separable,
    last=lambda *w: list(w))
images("Convolution3D", 3, 2, 3, 1, subsample=(1, 2, 2), activation="relu", volumes=True, to=lambda: K.Conv3D(3, (2, 3,
    1), (1, 2, 2), activation="relu"), weights=kernel)
images("Convolution3D", 3, 2, 3, 3, border_mode="same", subsample=(2, 2, 2), volumes=True, to=lambda: K.Conv3D(3, (2, 3,
    3), (2, 2, 2), "same"), weights=kernel)
row("LocallyConnected1D", 3, 2, subsample_length=2, activation="tanh", x=T3, to=lambda: K.LocallyConnected1D(3, 2, 2,
    activation="tanh"), weights=local1)
images("LocallyConnected2D", 2, 2, 2, activation="tanh", to=lambda: K.LocallyConnected2D(2, 2, activation="tanh"),
    weights=local2, last=local2_last)
for kind in ("Max", "Average"):
    for size, step in ((2, 1), (3, None)):
        for border in ("valid", "same"):
            row(f"{kind}Pooling1D", size, step, border, x=T3,
                to=lambda k=kind, s=size, t=step, b=border: getattr(K, k + "Pooling1D")(s, t, b))
    for border in ("valid", "same"):
        images(f"{kind}Pooling2D", (2, 3), (1, 2), border,
               to=lambda k=kind, b=border: getattr(K, k + "Pooling2D")((2, 3), (1, 2), b))
        images(f"{kind}Pooling3D", (2, 3, 2), None, border, volumes=True,
               to=lambda k=kind, b=border: getattr(K, k + "Pooling3D")((2, 3, 2), None, b))
    row(f"Global{kind}Pooling1D", x=T3, to=getattr(K, f"Global{kind}Pooling1D"))
    for n in (2, 3):
        images(f"Global{kind}Pooling{n}D", volumes=n == 3, to=getattr(K, f"Global{kind}Pooling{n}D"))
row("ZeroPadding1D", 2, x=T3, to=lambda: K.ZeroPadding1D(2))
row("ZeroPadding1D", (1, 2), x=T3, to=lambda: K.ZeroPadding1D((1, 2)))
images("ZeroPadding2D", (1, 2), to=lambda: K.ZeroPadding2D((1, 2)))
images("ZeroPadding2D", (1, 2, 3, 0), to=lambda: K.ZeroPadding2D(((1, 2), (3, 0))))
images("ZeroPadding3D", (1, 2, 3), volumes=True, to=lambda: K.ZeroPadding3D((1, 2, 3)))
row("Cropping1D", (1, 2), x=T3, to=lambda: K.Cropping1D((1, 2)))
images("Cropping2D", ((1, 2), (3, 0)), to=lambda: K.Cropping2D(((1, 2), (3, 0))))
images("Cropping3D", ((1, 2), (3, 0), (0, 1)), volumes=True, to=lambda: K.Cropping3D(((1, 2), (3, 0), (0, 1))))
row("UpSampling1D", 3, x=T3, to=lambda: K.UpSampling1D(3))
images("UpSampling2D", (2, 3), to=lambda: K.UpSampling2D((2, 3)))
images("UpSampling3D", (2, 1, 3), volumes=True, to=lambda: K.UpSampling3D((2, 1, 3)))
# Time.
for more in ({}, {"return_sequences": True}, {"go_backwards": True}, {"go_backwards": True, "return_sequences": True}):
    row("SimpleRNN", 3, x=T3, to=lambda m=more: K.SimpleRNN(3, **m), weights=gates([0], 1), **more)
    row("LSTM", 3, x=T3, to=lambda m=more: K.LSTM(3, recurrent_activation="hard_sigmoid", **m), weights=lstm, **more)
    row("GRU", 3, x=T3, to=lambda m=more: K.GRU(3, recurrent_activation="hard_sigmoid", reset_after=False, **m),
        weights=gru, **more)
    row("ConvLSTM2D", 3, 3, x=FILM, th=True, weights=image_lstm,
        to=lambda m=more: K.ConvLSTM2D(3, 3, padding="same", recurrent_activation="hard_sigmoid", **m), **more)
    row("ConvLSTM3D", 2, 3, x=FILM3, th=True, weights=image_lstm,
        to=lambda m=more: K.ConvLSTM3D(2, 3, padding="same", recurrent_activation="sigmoid", **m), **more)
row("LSTM", 3, activation="relu", inner_activation="sigmoid", x=T3, to=lambda: K.LSTM(3, activation="relu"),
    weights=lstm)
row("GRU", 3, activation="softsign", inner_activation="sigmoid", x=T3, to=lambda: K.GRU(3, activation="softsign",
    reset_after=False), weights=gru)
row("SimpleRNN", 3, activation="relu", x=T3, to=lambda: K.SimpleRNN(3, activation="relu"), weights=gates([0], 1))
row("TimeDistributed", made=lambda: KERAS["TimeDistributed"](KERAS["Dense"](3)), x=T3,
    to=lambda: K.TimeDistributed(K.Dense(3)))
for mode in ("concat", "sum", "mul", "ave"):
    for sequences in (True, False):
        more = {"return_sequences": sequences}
        row("Bidirectional", made=lambda m=mode, o=more: KERAS["Bidirectional"](KERAS["LSTM"](3, **o), m), x=T3,
            to=lambda m=mode, o=more: K.Bidirectional(K.LSTM(3, recurrent_activation="hard_sigmoid", **o), m),
            weights=both(lstm))
row("Bidirectional", made=lambda: KERAS["Bidirectional"](KERAS["GRU"](3, go_backwards=True)), x=T3, weights=both(gru),
    to=lambda: K.Bidirectional(K.GRU(3, recurrent_activation="hard_sigmoid", reset_after=False, go_backwards=True)))
# Several inputs.
for mode, kind in {"sum": K.Add, "mul": K.Multiply, "max": K.Maximum, "min": K.Minimum, "ave": K.Average,
                   "sub": K.Subtract, "concat": K.Concatenate, "dot": lambda: K.Dot(-1),
                   "cos": lambda: lambda x: K.Dot(-1, normalize=True)(x)[:, None]}.items():
    row("Merge", mode=mode, x=[A, B], to=kind)
row("Merge", mode="div", x=[A, B], by=lambda a, b: a / b)
row("Merge", mode="concat", concat_axis=1, x=[T3, numbers(2, 2, 4)], to=lambda: K.Concatenate(1))
row("Merge", made=lambda: KERAS["Merge"]([KERAS["Dense"](2, input_shape=(4,)), KERAS["Dense"](2, input_shape=(4,))],
    "sum"), x=[A, B], by=lambda a, b, w, c, v, d: a @ w.T + c + b @ v.T + d)
row("KerasLayerWrapper", made=lambda: KerasLayerWrapper(LAYERS["Linear"](4, 3)), to=lambda: K.Dense(3))
# Keras 2.
row("Dense", 3, activation="tanh", table=KERAS2, to=lambda: K.Dense(3, "tanh"))
row("Conv1D", 3, 2, 2, "same", "relu", table=KERAS2, x=T3, to=lambda: K.Conv1D(3, 2, 2, "same", activation="relu"),
    weights=kernel1)
row("Conv2D", 4, (2, 3), (2, 1), activation="relu", table=KERAS2, x=IMAGES, th=True, to=lambda: K.Conv2D(4, (2, 3), (2,
    1), activation="relu"), weights=kernel)
row("Conv2D", 4, 3, 2, "same", "channels_last", table=KERAS2, x=LAST, to=lambda: K.Conv2D(4, 3, 2, "same"),
    weights=kernel_last)
for kind in ("Max", "Average"):
    row(f"{kind}Pooling1D", 3, 2, "same", table=KERAS2, x=T3,
        to=lambda k=kind: getattr(K, k + "Pooling1D")(3, 2, "same"))
    row(f"Global{kind}Pooling1D", table=KERAS2, x=T3, to=getattr(K, f"Global{kind}Pooling1D"))
    row(f"Global{kind}Pooling2D", table=KERAS2, x=IMAGES, th=True, to=getattr(K, f"Global{kind}Pooling2D"))
row("GlobalAveragePooling3D", table=KERAS2, x=VOLUMES, th=True, to=K.GlobalAveragePooling3D)
row("Dropout", 0.5, table=KERAS2, evaluates=True, by=lambda x: x)
row("Activation", "softmax", table=KERAS2, to=lambda: K.Softmax())
row("Flatten", x=IMAGES, table=KERAS2, to=K.Flatten)
row("Softmax", 1, table=KERAS2, x=T3, to=lambda: K.Softmax(1))
row("Cropping1D", (1, 2), table=KERAS2, x=T3, to=lambda: K.Cropping1D((1, 2)))
row("LocallyConnected1D", 3, 2, 2, activation="tanh", table=KERAS2, x=T3, to=lambda: K.LocallyConnected1D(3, 2, 2,
    activation="tanh"), weights=local1)
row("Maximum", table=KERAS2, x=[A, B], to=K.Maximum)
row("Minimum", table=KERAS2, x=[A, B], to=K.Minimum)
row("Average", table=KERAS2, x=[A, B], to=K.Average)
# fmt: on


def test_every_layer_has_a_truth_here() -> None:
    assert {name for name, which in (each["name"] for each in ROWS) if which == 1} | {"WordEmbedding"} == set(KERAS)
    assert {name for name, which in (each["name"] for each in ROWS) if which == 2} == set(KERAS2)


def listed(tree: Any) -> list[Any]:
    return list(tree) if isinstance(tree, list | tuple) else [tree]


def by_definition(each: Any, inputs: Any, weights: Any, gradient: Any) -> Any:
    tensors = [torch.tensor(array, dtype=torch.float32, requires_grad=True) for array in (*inputs, *weights)]
    torch.manual_seed(0)
    output = each["by"](*tensors)
    if output.requires_grad:
        output.backward(torch.tensor(gradient(output.shape)))
    grads = [np.zeros(t.shape) if t.grad is None else t.grad.numpy() for t in tensors]
    return output.detach().numpy(), grads[: len(inputs)], grads[len(inputs) :]


def by_keras(each: Any, inputs: Any, weights: Any, gradient: Any) -> Any:
    made, frames = each["to"](), (inputs[0].ndim == 5 and "LSTM" in each["name"][0]) or inputs[0].ndim == 6
    place = 2 if frames else 1

    def call(x: Any, **more: Any) -> Any:
        turned = (
            [tf.transpose(t, [at for at in range(len(t.shape)) if at != place] + [place]) for t in x]
            if each["th"]
            else x
        )
        y = made(turned[0] if len(turned) == 1 else turned, **more)
        spatial = each["th"] and len(y.shape) > 2
        where = place if len(y.shape) == inputs[0].ndim else 1
        order = list(range(len(y.shape) - 1))
        order.insert(where, len(y.shape) - 1)
        return tf.transpose(y, order) if spatial else y

    tensors = [tf.constant(array, tf.float32) for array in inputs]
    more = {"training": not each["evaluates"]} if isinstance(made, K.BatchNormalization) else {}
    call(tensors)
    if weights:
        made.set_weights(each["weights"](*weights))
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        output = call(tensors, **more)
    known = list(getattr(made, "trainable_weights", []))
    seed = tf.constant(gradient(output.shape))
    grads = tape.gradient(output, [*tensors, *known], seed, unconnected_gradients="zero")
    grads = [tf.convert_to_tensor(g).numpy() for g in grads]
    return output.numpy(), grads[: len(inputs)], grads[len(inputs) :]


@pytest.mark.parametrize("each", ROWS, ids=[f"{each['name'][0]}-{at}" for at, each in enumerate(ROWS)])
def test_layer_is_kerass_or_its_definition(each: dict[str, Any]) -> None:
    layer, inputs = each["made"](), listed(each["x"])
    shapes = [array.shape[1:] for array in inputs]
    layer.build(shapes if len(shapes) > 1 else shapes[0])
    layer.set_weights([numbers(*array.shape) for array in layer.get_weights()])
    weights, draws = layer.get_weights(), {}

    def gradient(shape: Any) -> Any:
        return draws.setdefault("it", numbers(*shape))

    truth = by_definition if each["by"] else by_keras
    wanted, grads, weight_grads = truth(each, inputs, weights, gradient)
    layer.training(not each["evaluates"])
    torch.manual_seed(0)
    given = inputs if len(inputs) > 1 else inputs[0]
    output = layer.forward(given)
    assert (None, *output.shape[1:]) == tuple(layer.get_output_shape()) and output.shape == wanted.shape
    np.testing.assert_allclose(output, wanted, rtol=1e-3, atol=1e-4)
    words = json.dumps(files.described(layer))
    for again in (pickle.loads(pickle.dumps(layer)), files.rebuilt(json.loads(words))):
        again.module.load_state_dict(layer.module.state_dict())
        torch.manual_seed(0)
        assert type(again) is type(layer)
        np.testing.assert_allclose(again.training(not each["evaluates"]).forward(given), wanted, rtol=1e-3, atol=1e-4)
    for mine, other in zip(listed(layer.backward(given, gradient(wanted.shape))), grads, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)
    own = [shown(module, name, p.grad).numpy() for module, name, p in weights_of(layer.module)]
    mapped = own if each["by"] or not own else each["weights"](*own)[: len(weight_grads)]
    for mine, other in zip(mapped, weight_grads, strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-3, atol=2e-4)


DIMS = {"SimpleRNN": 2, "LSTM": 2, "GRU": 2, "ResizeBilinear": 3, "RepeatVector": 1, "Reshape": 9, "Dense": 9}


@pytest.mark.parametrize("each", {each["name"]: each for each in ROWS}.values(), ids=lambda each: each["name"][0])
def test_wrong_shape_names_the_layer(each: dict[str, Any]) -> None:
    name = each["name"][0]
    if name not in DIMS and name[-2:] not in ("1D", "2D", "3D"):
        return  # any number of dimensions will do
    dims = DIMS.get(name) or int(name[-2]) + 1 + name.startswith("ConvLSTM")
    for count in {1, 2, 3, 4, 5} - {dims}:
        if dims < 9:
            with pytest.raises(DataError, match=f"{name} takes rows of {dims} dimensions; got"):
                each["made"]().build((7,) * count)
    layer = each["made"]().build(each["x"].shape[1:])
    wrong = np.zeros((2, *(size + 5 for size in each["x"].shape[1:])))
    if layer.get_weights() or name == "Reshape":
        with pytest.raises(DataError, match=rf"{name} \[.* cannot take an input of shape"):
            layer.forward(wrong)


def test_batch_normalization_forgets_at_kerass_pace() -> None:
    mine, other, x = (
        KERAS["BatchNormalization"](momentum=0.9).build((4,)),
        K.BatchNormalization(momentum=0.9),
        numbers(50, 4),
    )
    for _ in range(3):
        mine.forward(x)
        other(x, training=True)
    np.testing.assert_allclose(mine.module.running_mean, other.moving_mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mine.module.running_var, other.moving_variance, rtol=2e-2)  # unbiased here


def test_word_vectors_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("dog 1 2\ncat 3 4\nowl 5 6\n")
    layer = KERAS["WordEmbedding"](str(tmp_path / "glove.txt"), {"cat": 2, "owl": 1}).build((3,))
    np.testing.assert_array_equal(layer.forward(np.array([[0, 1, 2]])), [[[0, 0], [5, 6], [3, 4]]])
    assert not any(p.requires_grad for p in layer.module.parameters())


@pytest.mark.parametrize(("init", "low", "high", "deviation"), [
    ("glorot_uniform", -math.sqrt(6 / 500), math.sqrt(6 / 500), math.sqrt(2 / 500)),
    ("uniform", -0.05, 0.05, 0.1 / math.sqrt(12)),
    ("normal", -1, 1, 0.05), ("he_normal", -1, 1, math.sqrt(2 / 400)), ("one", 1, 1, 0), ("zero", 0, 0, 0),
])  # fmt: skip
def test_weights_begin_as_their_init_says(init: str, low: float, high: float, deviation: float) -> None:
    weight, bias = KERAS["Dense"](100, init=init).build((400,)).get_weights()
    assert low <= weight.min() <= weight.max() <= high and not bias.any()
    assert weight.std() == pytest.approx(deviation, rel=0.05)


def test_functions_of_variables_merge_like_layers() -> None:
    a, b = Input((4,)), Input((4,))
    for function, truth in ((rows_of.maximum, np.maximum), (rows_of.minimum, np.minimum)):
        np.testing.assert_array_equal(Model([a, b], function([a, b])).forward([A, B]), truth(A, B))
    np.testing.assert_allclose(Model([a, b], rows_of.average([a, b])).forward([A, B]), (A + B) / 2, rtol=1e-6)
    np.testing.assert_allclose(Model([a, b], rows_of.merge([a, b], "sum")).forward([A, B]), A + B, rtol=1e-6)


def test_layers_within_wrappers_are_frozen_by_name(tmp_path: Path) -> None:
    inner = LAYERS["TimeDistributed"](LAYERS["Linear"](3, 2).set_name("wrapped"))
    steps = KERAS["TimeDistributed"](KERAS["Dense"](3, activation="relu", name="steps"), input_shape=(5, 4))
    model = Sequential().add(steps).add(inner)
    assert list(model.parameters()) == ["steps", "wrapped"]
    model.freeze("steps")
    model.saveModel(str(tmp_path / "model"))
    for each in (model, files.load_model(str(tmp_path / "model"))):
        assert [weight.requires_grad for weight in each.module.parameters()] == [False, False, True, True]
        each.unfreeze("steps")
        each.freeze("wrapped")
        assert [weight.requires_grad for weight in each.module.parameters()] == [True, True, False, False]


def test_one_variable_is_a_table_of_one() -> None:
    start = Input((4,))
    for made in (*(rows_of.merge([start], mode) for mode in ("sum", "concat", "ave", "max")), rows_of.average([start]),
                 KERAS["SelectTable"](0)(start), KERAS["Merge"]([KERAS["Identity"]()])(start)):  # fmt: skip
        assert made.shape == (None, 4)
        np.testing.assert_array_equal(Model(start, made).forward(A), A)
    model = Sequential().add(KERAS["Merge"]([KERAS["Identity"](input_shape=(4,))]))
    np.testing.assert_array_equal(model.predict(A, distributed=False), A)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: KERAS["Dense"](3, input_dim=4), (None, 3)),
        (lambda: KERAS2["Dense"](3, input_dim=4), (None, 3)),
        (lambda: KERAS["Highway"](input_dim=4), (None, 4)),
        (lambda: KERAS["Convolution1D"](3, 2, input_dim=4, input_length=6), (None, 5, 3)),
        (lambda: KERAS["Embedding"](9, 3, input_length=6), (None, 6, 3)),
    ],
)
def test_input_dim_and_input_length_say_the_shape_of_a_row(layer: Any, shape: Any) -> None:
    assert Sequential().add(layer()).get_output_shape() == shape


def test_tables_that_count_from_one_have_shapes_but_no_row_for_zeros() -> None:
    own = KERAS["Embedding"](5, 2, zero_based_id=False, input_length=3)
    for table in (own, KerasLayerWrapper(LAYERS["LookupTable"](5, 2), input_shape=(3,))):
        model = Sequential().add(table)
        assert model.get_output_shape() == (None, 3, 2)
        with pytest.raises(DataError, match="counts from 1 to 5; got 0 to 0"):
            model.forward(np.zeros((4, 3)))


@pytest.mark.parametrize("mode", ["dot", "cos"])
def test_products_of_rows_take_two_vectors(mode: str) -> None:
    with pytest.raises(DataError, match=f"mode='{mode}' takes two inputs with rows of one dimension"):
        KERAS["Merge"](mode=mode).build([(5, 4), (5, 4)])
    with pytest.raises(DataError, match=f"mode='{mode}' takes two inputs"):
        KERAS["Merge"](mode=mode).build([(4,), (4,), (4,)])


def test_saved_word_embedding_needs_no_file_of_vectors(tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("a 1 2\nb 3 4\n")
    model = Sequential().add(KERAS["WordEmbedding"](str(vectors), {"a": 1, "b": 2}, input_length=3))
    model.saveModel(str(tmp_path / "model"))
    vectors.unlink()
    loaded = files.load_layer(str(tmp_path / "model"))
    assert loaded.forward(np.array([[2, 0, 1]])).tolist() == [[[3, 4], [0, 0], [1, 2]]]
    assert not any(weight.requires_grad for weight in loaded.module.parameters())
