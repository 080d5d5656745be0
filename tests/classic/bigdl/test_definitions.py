"""Every layer of BigDL against its definition in a few words of torch: outputs, and gradients of inputs and weights."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from orca.errors import ArgumentError, DataError

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from orca_classic.bigdl import files  # noqa: E402
from orca_classic.bigdl import recurrent as R  # noqa: E402
from orca_classic.bigdl.layer import LAYERS, Model, shown, weights_of  # noqa: E402
from orca_classic.bigdl.layers import Input  # noqa: E402

DRAW = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return DRAW.normal(size=shape).astype(np.float32)


# What definitions are made of.


def pieces(x: Any, kernel: Any, stride: Any, pads: Any = None, value: float = 0.0, dilation: Any = None) -> Any:
    """Return (rows, channels, places ..., numbers of a window), the window's dimensions laid into one."""
    sides = [side for pair in reversed(pads or [(0, 0)] * len(kernel)) for side in pair]
    x = F.pad(x, sides, value=value)
    for at, (k, s, d) in enumerate(zip(kernel, stride, dilation or [1] * len(kernel), strict=True)):
        x = x.unfold(2 + at, (k - 1) * d + 1, s)[..., ::d]
    return x.flatten(2 + len(kernel))


def convolve(x: Any, w: Any, b: Any, stride: Any, pads: Any = None, dilation: Any = None) -> Any:
    """Convolve with a weight (groups, outputs, inputs, window ...)."""
    parts = pieces(x, w.shape[3:], stride, pads, 0.0, dilation).chunk(len(w), 1)
    y = torch.cat([torch.einsum("nc...k,ock->no...", p, g.flatten(2)) for p, g in zip(parts, w, strict=True)], 1)
    return y if b is None else y + b.reshape(-1, *[1] * (x.dim() - 2))


def hwio(w: Any) -> Any:
    """Return a weight (groups, window ..., inputs, outputs) as (groups, outputs, inputs, window ...)."""
    return w.movedim((-1, -2), (1, 2))


def deepen(x: Any, d: Any, w: Any, b: Any, *how: Any) -> Any:
    """Convolve each channel with weights (depth, inputs, window ...), then all with (outputs, inputs, 1, 1)."""
    return convolve(convolve(x, d.transpose(0, 1).unsqueeze(2), None, *how), w[None], b, (1, 1))


def spread(x: Any, w: Any, b: Any, stride: Any, pad: Any, adj: Any) -> Any:
    """Lay each number of x out as a window: the transpose of a convolution, weight (groups, inputs, outputs, ...)."""
    sizes = [(n - 1) * s + k + a for n, s, k, a in zip(x.shape[2:], stride, w.shape[3:], adj, strict=True)]
    whole = []
    for part, weight in zip(x.chunk(len(w), 1), w, strict=True):
        y = x.new_zeros(len(x), weight.shape[1], *sizes)
        for at in itertools.product(*(range(k) for k in w.shape[3:])):
            places = tuple(slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(at, x.shape[2:], stride, strict=True))
            y[(slice(None), slice(None), *places)] += torch.einsum("nc...,co->no...", part, weight[(..., *at)])
        whole.append(y)
    y = torch.cat(whole, 1) + b.reshape(-1, *[1] * (x.dim() - 2))
    return y[(slice(None), slice(None), *(slice(p, n - p) for p, n in zip(pad, sizes, strict=True)))]


def last(f: Any) -> Any:
    """Return a function of images with channels first, for such with channels last."""
    return lambda x, *w: f(x.movedim(-1, 1), *w).movedim(1, -1)


def steps(cell: Any, x: Any, *state: Any) -> Any:
    """Return the outputs of a cell's steps; a cell returns the next state."""
    outputs = []
    for at in range(x.shape[1]):
        state = cell(x[:, at], *state)
        outputs.append(state[0])
    return torch.stack(outputs, 1)


def lstm(
    x: Any, w: Any, b: Any, u: Any, peep: Any = (0, 0, 0), gate: Any = torch.sigmoid, act: Any = torch.tanh
) -> Any:
    def cell(x: Any, h: Any, c: Any) -> Any:
        i, g, f, o = (x @ w.T + b + h @ u.T).chunk(4, 1)
        c_new = gate(i + peep[0] * c) * act(g) + gate(f + peep[1] * c) * c
        return gate(o + peep[2] * c_new) * act(c_new), c_new

    return steps(cell, x, *[x.new_zeros(len(x), u.shape[1])] * 2)


def gru(x: Any, w: Any, b: Any, u: Any, v: Any) -> Any:
    n = len(v)

    def cell(x: Any, h: Any) -> Any:
        given = x @ w.T + b
        r, z = torch.sigmoid(given[:, : 2 * n] + h @ u.T).chunk(2, 1)
        return ((1 - z) * torch.tanh(given[:, 2 * n :] + (r * h) @ v.T) + z * h,)

    return steps(cell, x, x.new_zeros(len(x), n))


def rnn(x: Any, w: Any, b: Any, u: Any, v: Any) -> Any:
    return steps(lambda x, h: (torch.tanh(x @ w.T + b + h @ u.T + v),), x, x.new_zeros(len(x), len(u)))


def image_lstm(x: Any, w: Any, b: Any, u: Any, peep: Any = (0, 0, 0)) -> Any:
    dims, n = x.dim() - 3, u.shape[2]

    def cell(x: Any, h: Any, c: Any) -> Any:
        pads = [(1, 1)] * dims
        z = convolve(x, w, b, [1] * dims, pads) + convolve(h, u, None, [1] * dims, pads)
        i, g, f, o = z.chunk(4, 1)
        c_new = torch.sigmoid(i + peep[0] * c) * torch.tanh(g) + torch.sigmoid(f + peep[1] * c) * c
        return torch.sigmoid(o + peep[2] * c_new) * torch.tanh(c_new), c_new

    return steps(cell, x, *[x.new_zeros(len(x), n, *x.shape[3:])] * 2)


def decode(x: Any, w: Any, b: Any, u: Any) -> Any:
    h, c, outputs = torch.zeros_like(x), torch.zeros_like(x), []
    for _ in range(3):
        i, g, f, o = (x @ w.T + b + h @ u.T).chunk(4, 1)
        c = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * c
        x = h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(x)
    return torch.stack(outputs, 1)


def attention(x: Any, y: Any, mask: Any, *w: Any) -> Any:
    q, k, v = (each @ m.T for each, m in ((x, w[0]), (y, w[1]), (y, w[2])))
    heads = []
    for at in range(2):  # of 2 numbers each
        mine = slice(2 * at, 2 * at + 2)
        scores = q[..., mine] @ k[..., mine].mT / math.sqrt(2) + mask[:, 0]
        heads.append(torch.softmax(scores, -1) @ v[..., mine])
    return torch.cat(heads, -1) @ w[3].T


def across(x: Any, size: int, alpha: float, beta: float, k: float) -> Any:
    """Divide by what channels around have at the same place."""
    squares = F.pad(x.square(), [0, 0, 0, 0, size // 2, size // 2])
    near = sum(squares[:, at : at + x.shape[1]] for at in range(size))
    return x / (k + alpha / size * near) ** beta


def around(x: Any, size: int) -> Any:
    """Return sums over a window of ones and all channels, divided by how many numbers a whole window has."""
    pads = [(size // 2, size // 2)] * 2
    return (pieces(x, (size, size), (1, 1), pads).sum(-1).sum(1, keepdim=True)) / (size * size * x.shape[1])


def subtract(x: Any, size: int) -> Any:
    return x - around(x, size) / around(torch.ones_like(x), size)


def divide(x: Any, size: int) -> Any:
    deviation = around(x.square(), size).sqrt() / around(torch.ones_like(x), size)
    return x / torch.where(deviation > 1e-4, deviation, 1e-4)


def bilinear(x: Any, high: int, wide: int, corners: bool) -> Any:
    for at, size in ((2, high), (3, wide)):
        old = x.shape[at]
        scale = (old - 1) / (size - 1) if corners else old / size
        rows = []
        for place in range(size):
            low = math.floor(place * scale)
            share, up = place * scale - low, min(low + 1, old - 1)
            rows.append((1 - share) * x.select(at, low) + share * x.select(at, up))
        x = torch.stack(rows, at)
    return x


def local2(x: Any, w: Any, b: Any, stride: Any = (1, 1), pads: Any = None, k: Any = (2, 2)) -> Any:
    """Convolve with a weight of its own at each place, (places, outputs, inputs x window)."""
    p = pieces(x, k, stride, pads)
    places = p.shape[2:4]
    p = p.flatten(2, 3).movedim(1, 2).flatten(2)  # (rows, places, channels x window)
    y = torch.einsum("npf,pof->npo", p, w) + b
    return y.movedim(1, 2).unflatten(-1, places)


def local1(x: Any, w: Any, b: Any) -> Any:
    return torch.stack([x[:, 2 * at : 2 * at + 3].flatten(1) @ w[at].T + b[at] for at in range(len(w))], 1)


def temporal(x: Any, w: Any, b: Any) -> Any:
    return torch.stack([x[:, 2 * at : 2 * at + 3].flatten(1) @ w.T + b for at in range((x.shape[1] - 1) // 2)], 1)


def combine(ids: Any, shares: Any, w: Any, mass: Any) -> Any:
    """Add up rows of a table, each times its share, divided by a mass of the shares."""
    shares = shares * (ids > 0)
    rows = torch.cat([torch.zeros(1, w.shape[1]), w])[ids.long()] + 0 * ids[..., None]
    total, some = (rows * shares[..., None]).sum(1), (ids > 0).any(1)
    return torch.where(some[:, None], total / mass(torch.where(some[:, None], shares, 1.0))[:, None], total)


def normal(x: Any, w: Any, b: Any, dims: Any) -> Any:
    mean, var = x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)
    shape = [-1 if at not in dims else 1 for at in range(x.dim())]
    return (x - mean) / (var + 1e-5).sqrt() * w.reshape(shape) + b.reshape(shape)


def srelu(x: Any, left: Any, slope: Any, right: Any, rise: Any) -> Any:
    high = left + right.abs()
    return torch.where(x >= high, high + rise * (x - high), torch.where(x <= left, left + slope * (x - left), x))


def times(x: Any, size: Any) -> Any:
    """Repeat along the last dimensions."""
    for at, count in enumerate(size):
        x = torch.stack([x] * count, x.dim() - len(size) + at + 1).flatten(
            x.dim() - len(size) + at, x.dim() - len(size) + at + 1
        )
    return x


def unit(x: Any, dim: int = -1) -> Any:
    return x / x.square().sum(dim, keepdim=True).sqrt()


def net(name: str, *parts: Any, args: Any = ()) -> Any:
    made = LAYERS[name](*args)
    for part in parts:
        made.add(part)
    return made


def layer(name: str, *args: Any, **kwargs: Any) -> Any:
    return LAYERS[name](*args, **kwargs)


def graph() -> Any:
    a, b = Input(), Input()
    hidden = layer("Linear", 4, 3)(a)
    return Model([a, b], [layer("CAddTable")([hidden, b]), layer("Tanh")(hidden)])


# The rows: a layer's name, its arguments, its definition `by` inputs and weights; `alone`: takes one row of a batch.

ROWS: list[dict[str, Any]] = []
A, B, C = numbers(3, 4), numbers(3, 4), numbers(3, 4)
T3, IMAGES, VOLUMES = numbers(2, 5, 4), numbers(2, 3, 5, 6), numbers(2, 2, 4, 5, 6)
LAST, LAST3 = np.moveaxis(IMAGES, 1, -1).copy(), np.moveaxis(VOLUMES, 1, -1).copy()


def row(
    name: str, *args: Any, by: Callable[..., Any], x: Any = A, alone: bool = True, made: Any = None, **kwargs: Any
) -> None:
    made = made or (lambda: LAYERS[name](*args, **kwargs))
    ROWS.append({"name": name, "made": made, "x": x, "by": by, "alone": alone})


def rows(table: dict[str, Any], **more: Any) -> None:
    for name, by in table.items():
        row(name, by=by, **more)


# fmt: off
rows({"ReLU": lambda x: x * (x > 0), "ReLU6": lambda x: x * ((x > 0) & (x < 6)) + 6 * (x >= 6), "Identity": lambda x: x,
    "Tanh": lambda x: 1 - 2 / (1 + (2 * x).exp()), "Sigmoid": lambda x: 1 / (1 + (-x).exp()), "Echo": lambda x: x,
    "HardSigmoid": lambda x: torch.minimum(torch.maximum(0.2 * x + 0.5, x * 0), x * 0 + 1), "Contiguous": lambda x: x,
    "SoftPlus": lambda x: (1 + x.exp()).log(), "SoftSign": lambda x: x / (1 + x.abs()), "Square": lambda x: x * x,
    "SoftMax": lambda x: x.exp() / x.exp().sum(1, keepdim=True), "SoftMin": lambda x: (-x).exp() / (-x).exp().sum(1,
    keepdim=True), "LogSoftMax": lambda x: x - x.exp().sum(1, keepdim=True).log(),
    "TanhShrink": lambda x: x - x.sinh() / x.cosh(),
    "SoftShrink": lambda x: (x - 0.5) * (x > 0.5) + (x + 0.5) * (x < -0.5), "HardShrink": lambda x: x * (x.abs() > 0.5),
    "HardTanh": lambda x: x * (x.abs() <= 1) + (x > 1) * 1.0 - (x < -1) * 1.0, "Threshold": lambda x: x * (x > 1e-06),
    "BinaryThreshold": lambda x: (x > 1e-06) * 1.0, "ELU": lambda x: torch.where(x > 0, x, x.exp() - 1),
    "LeakyReLU": lambda x: torch.where(x > 0, x, 0.01 * x), "LogSigmoid": lambda x: -(1 + (-x).exp()).log(),
    "Abs": lambda x: x * x.sign(), "Exp": lambda x: math.e ** x, "Negative": lambda x: 0 - x})
rows({"Log": lambda x: x.log2() / math.log2(math.e), "Sqrt": lambda x: x ** 0.5}, x=abs(A) + 0.1)
row("SoftPlus", 2.0, by=lambda x: (1 + (2 * x).exp()).log() / 2)
row("SoftMax", x=IMAGES, by=lambda x: x.exp() / x.exp().sum(1, keepdim=True))
row("HardTanh", -0.5, 0.2, by=lambda x: torch.where(x < -0.5, -0.5, torch.where(x > 0.2, 0.2, x)))
row("Clamp", -0.5, 0.2, by=lambda x: torch.where(x < -0.5, -0.5, torch.where(x > 0.2, 0.2, x)))
row("Threshold", 0.3, 7.0, by=lambda x: torch.where(x > 0.3, x, 7.0))
row("ELU", 0.5, by=lambda x: torch.where(x > 0, x, 0.5 * (x.exp() - 1)))
row("Power", 2.0, 3.0, 1.0, by=lambda x: (1 + 3 * x) * (1 + 3 * x))
row("AddConstant", 2.5, by=lambda x: 2.5 + x)
row("MulConstant", 2.5, by=lambda x: x / 0.4)
row("GradientReversal", 2.0, by=lambda x: 3 * x.detach() - 2 * x)
# Shapes.
row("Select", 2, 3, x=T3, alone=False, by=lambda x: x[:, 2])
row("Select", -1, -2, x=T3, alone=False, by=lambda x: x[:, :, -2])
row("Narrow", 2, 2, 2, x=T3, alone=False, by=lambda x: x[:, 1:3])
row("Narrow", 2, 2, -2, x=T3, alone=False, by=lambda x: x[:, 1:-1])
row("View", [10, 2], x=T3, by=lambda x: x.reshape(2, 10, 2))
row("View", [10, 2], x=T3[:1], alone=False, by=lambda x: x.reshape(1, 10, 2))
row("View", [-1, 2], 2, x=T3, by=lambda x: x.reshape(2, 10, 2))
row("Reshape", [10, 2], x=T3, by=lambda x: x.reshape(2, 10, 2))
row("Reshape", [4, 10], False, x=T3, alone=False, by=lambda x: x.reshape(4, 10))
row("Reshape", [20], True, x=T3[:1], alone=False, by=lambda x: x.reshape(1, 20))
row("InferReshape", [-1, 0, 2], x=T3, alone=False, by=lambda x: x.reshape(4, 5, 2))
row("InferReshape", [-1, 0], True, x=T3, alone=False, by=lambda x: x.reshape(2, 5, 4))
row("Squeeze", 2, x=numbers(2, 1, 4, 1), alone=False, by=lambda x: x[:, 0])
row("Squeeze", 1, 3, x=numbers(2, 1, 4, 1), by=lambda x: x[:, 0])
row("Squeeze", x=numbers(2, 1, 4, 1), alone=False, by=lambda x: x.reshape(2, 4))
row("Unsqueeze", 2, x=T3, alone=False, by=lambda x: x[:, None])
row("Unsqueeze", 2, 2, x=T3, by=lambda x: x[:, :, None])
row("Transpose", [(1, 2), (2, 3)], x=T3, alone=False, by=lambda x: x.permute(1, 2, 0))
row("Replicate", 3, x=A, alone=False, by=lambda x: torch.stack([x] * 3))
row("Replicate", 3, 2, 1, x=A, by=lambda x: torch.stack([x] * 3, 2))
row("Tile", 2, 3, x=T3, alone=False, by=lambda x: torch.cat([x, x, x], 1))
row("ExpandSize", [-1, 5, 4], x=numbers(2, 1, 4), alone=False, by=lambda x: torch.cat([x] * 5, 1))
row("Reverse", 2, x=T3, alone=False, by=lambda x: torch.stack([x[:, at] for at in (4, 3, 2, 1, 0)], 1))
row("Padding", 1, 2, 1, 7.0, x=A, by=lambda x: torch.cat([x, torch.full((3, 2), 7.0)], 1))
row("Padding", 1, -2, 1, 7.0, 3, x=A, by=lambda x: torch.cat([x[:, :2], torch.full((3, 2), 7.0), x[:, 2:]], 1))
row("Padding", 1, 1, 1, 7.0, 2, x=A, by=lambda x: torch.cat([x[:, :3], torch.full((3, 1), 7.0), x[:, 3:]], 1))
row("SpatialZeroPadding", 1, 2, -1, 3, x=IMAGES, by=lambda x: torch.cat([torch.zeros(2, 3, 7, 1), torch.cat([x[:, :,
    1:], torch.zeros(2, 3, 3, 6)], 2), torch.zeros(2, 3, 7, 2)], 3))
row("Cropping2D", [1, 2], [2, 1], x=IMAGES, by=lambda x: x[:, :, 1:3, 2:5])
row("Cropping2D", [1, 2], [2, 1], "NHWC", x=LAST, by=lambda x: x[:, 1:3, 2:5])
row("Cropping3D", [1, 2], [2, 1], [0, 3], x=VOLUMES, by=lambda x: x[:, :, 1:2, 2:4, :3])
row("Cropping3D", [1, 2], [2, 1], [0, 3], "channel_last", x=LAST3, by=lambda x: x[:, 1:2, 2:4, :3])
for name, word in (("Max", "max"), ("Min", "min")):
    row(name, 2, x=T3, alone=False, by=lambda x, word=word: getattr(x, word)(1).values)
    row(name, 1, 2, x=T3, by=lambda x, word=word: getattr(x, word)(1).values)
row("Max", 2, x=np.ones((2, 3)), alone=False, by=lambda x: x[:, 0])  # of equal ones the first has the gradient
row("Mean", 2, x=T3, alone=False, by=lambda x: x.sum(1) / 5)
row("Mean", 1, 2, False, x=T3, by=lambda x: x.sum(1, keepdim=True) / 5)
row("Sum", 2, x=T3, alone=False, by=lambda x: sum(x[:, at] for at in range(5)))
row("Sum", 1, 2, True, False, x=T3, by=lambda x: x.mean(1, keepdim=True))
MASKED = T3.copy()
MASKED[0, 1] = MASKED[1, 2:] = MASKED[0, 2, 1] = -1
row("Masking", -1.0, x=MASKED, by=lambda x: x * torch.tensor([[1, 0, 1, 1, 1], [1, 1, 0, 0, 0]])[..., None])
# Tables.
rows({"CAddTable": lambda a, b, c: a + b + c, "CMulTable": lambda a, b, c: a * b * c, "CAveTable": lambda a, b,
    c: (a + b + c) / 3, "CMaxTable": lambda *t: torch.stack(t).max(0).values,
    "CMinTable": lambda *t: torch.stack(t).min(0).values}, x=[A, B, C])
rows({"CSubTable": lambda a, b: a - b, "CDivTable": lambda a, b: a / b, "DotProduct": lambda a,
    b: torch.einsum("nf,nf->n", a, b), "CosineDistance": lambda a, b: (unit(a) * unit(b)).sum(-1),
    "PairwiseDistance": lambda a, b: (a - b).square().sum(-1).sqrt()}, x=[A, B])
row("CMaxTable", x=[A, A.copy()], by=lambda a, b: a + 0 * b)  # the first of equal ones
row("PairwiseDistance", 1, x=[A, B], by=lambda a, b: (a - b).abs().sum(-1))
row("CrossProduct", x=[A, B, C], by=lambda a, b, c: torch.stack([(a * b).sum(1), (a * c).sum(1), (b * c).sum(1)], 1))
row("JoinTable", 2, 2, x=[A, B], alone=False, by=lambda a, b: torch.cat([a, b], 1))
row("JoinTable", 1, 1, x=[A, B], by=lambda a, b: torch.cat([a, b], 1))
row("Pack", 2, x=[A, B], alone=False, by=lambda a, b: torch.stack([a, b], 1))
row("SelectTable", 2, x=[A, B], by=lambda a, b: b)
row("SelectTable", -2, x=[A, B], by=lambda a, b: a)
row("NarrowTable", 2, -1, x=[A, B, C], by=lambda a, b, c: [b, c])
row("FlattenTable", x=[A, [B, [C]]], alone=False, by=lambda a, b, c: [a, b, c])
row("SplitTable", 2, x=A, alone=False, by=lambda x: [x[:, at] for at in range(4)])
row("SplitTable", 1, 2, x=T3, by=lambda x: [x[:, at] for at in range(5)])
row("BifurcateSplitTable", 2, x=T3, alone=False, by=lambda x: [x[:, :2], x[:, 2:]])
row("MM", x=[numbers(2, 3, 4), numbers(2, 4, 5)], by=lambda a, b: torch.einsum("nij,njk->nik", a, b))
row("MM", True, True, x=[numbers(2, 3, 4), numbers(2, 5, 3)], by=lambda a, b: torch.einsum("nji,nkj->nik", a, b))
row("MV", x=[T3, numbers(2, 4)], by=lambda a, b: torch.einsum("nij,nj->ni", a, b))
row("MV", True, x=[T3, numbers(2, 5)], by=lambda a, b: torch.einsum("nji,nj->ni", a, b))
row("Gemm", 2.0, 3.0, False, True, x=[A, numbers(5, 4), numbers(3, 5)], alone=False, by=lambda a, b,
    c: 2 * torch.einsum("ij,kj->ik", a, b) + 3 * c)
row("MixtureTable", x=[numbers(2, 3), [numbers(2, 4), numbers(2, 4), numbers(2, 4)]], by=lambda g, a, b, c: g[:,
    :1] * a + g[:, 1:2] * b + g[:, 2:] * c)
row("MixtureTable", x=[numbers(2, 5), T3], by=lambda g, e: torch.einsum("ne,nef->nf", g, e))
row("MixtureTable", 3, x=[numbers(2, 4), T3], alone=False, by=lambda g, e: torch.einsum("ne,nfe->nf", g, e))
row("Index", 2, x=[A, np.array([2.0, 4, 4])], alone=False, by=lambda a, b: a[:, [1, 3, 3]] + 0 * b)
row("MaskedSelect", x=[A, (B > 0) * 1.0], alone=False, by=lambda a, b: a[torch.tensor(B > 0)])
row("TableOperation", made=lambda: layer("TableOperation", layer("CMulTable")), x=[T3, numbers(2, 1, 4)], by=lambda a,
    b: a * b)
# Weights.
rows({"Linear": lambda x, w, b: torch.einsum("ni,oi->no", x, w) + b}, made=lambda: layer("Linear", 4, 3))
row("Linear", 4, 3, False, by=lambda x, w: torch.einsum("ni,oi->no", x, w))
row("Add", 4, by=lambda x, b: x + b)
row("CAdd", [4], by=lambda x, b: x + b)
row("CAdd", [1, 3, 1, 1], x=IMAGES, by=lambda x, b: x + b)
row("CMul", [4], by=lambda x, w: x * w)
row("CMul", [3, 1, 1], x=IMAGES, by=lambda x, w: x * w)
row("Mul", by=lambda x, w: x * w)
row("Scale", [1, 3, 1, 1], x=IMAGES, by=lambda x, w, b: x * w + b)
row("Bilinear", 4, 4, 2, x=[A, B], by=lambda a, b, w, c: torch.einsum("ni,oij,nj->no", a, w, b) + c)
row("Cosine", 4, 2, by=lambda x, w: unit(x) @ unit(w).T)
row("Euclidean", 4, 2, by=lambda x, w: (x[:, :, None] - w).square().sum(1).sqrt())
row("PReLU", by=lambda x, w: torch.where(x > 0, x, w * x))
row("PReLU", 3, x=IMAGES, by=lambda x, w: torch.where(x > 0, x, w[:, None, None] * x))
row("PReLU", 4, by=lambda x, w: torch.where(x > 0, x, w * x))
row("SReLU", [4], by=srelu)
row("SReLU", [5, 4], [1], x=T3, by=srelu)
row("Maxout", 4, 2, 3, by=lambda x, w,
    b: torch.stack([x @ w[2 * k:2 * k + 2].T + b[2 * k:2 * k + 2] for k in range(3)]).max(0).values)
row("Highway", 4, made=lambda: layer("Highway", 4, activation=layer("Tanh")), by=lambda x, g, c, w,
    b: torch.sigmoid(x @ g.T + c) * torch.tanh(x @ w.T + b) + (1 - torch.sigmoid(x @ g.T + c)) * x)
row("LookupTable", 5, 3, x=np.array([[1.0, 5, 2], [3, 3, 4]]), by=lambda x, w: w[x.long() - 1] + 0 * x[..., None])
row("Normalize", 2.0, by=unit)
row("Normalize", 1.0, by=lambda x: x / x.abs().sum(1, keepdim=True))
row("Normalize", math.inf, by=lambda x: x / x.abs().amax(1, keepdim=True))
row("Normalize", 2.0, x=IMAGES, by=lambda x: unit(x, 1))
row("NormalizeScale", 2.0, 20.0, [1, 3, 1, 1], x=IMAGES, by=lambda x, w: unit(x, 1) * w)
row("LayerNormalization", 4, by=lambda x, w, b: (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0,
    keepdim=True) + 1e-06).sqrt() * w + b)
row("BatchNormalization", 4, alone=False, by=lambda x, w, b: normal(x, w, b, (0,)))
row("SpatialBatchNormalization", 3, x=IMAGES, alone=False, by=lambda x, w, b: normal(x, w, b, (0, 2, 3)))
row("SpatialBatchNormalization", 3, data_format="NHWC", x=LAST, alone=False, by=lambda x, w, b: normal(x, w, b, (0, 1,
    2)))
row("Attention", 4, 2, 0.0, x=[T3, numbers(2, 3, 4), numbers(2, 1, 1, 3)], alone=False, by=attention)
row("FeedForwardNetwork", 4, 6, 0.0, x=T3, by=lambda x, w, b, v, c: (x @ w.T + b).clamp(min=0) @ v.T + c)
# Sequences and images.
row("TemporalConvolution", 4, 2, 3, 2, x=T3, by=temporal)
row("TemporalMaxPooling", 2, x=T3, by=lambda x: torch.stack([x[:, :2].amax(1), x[:, 2:4].amax(1)], 1))
row("TemporalMaxPooling", 3, 1, x=T3, by=lambda x: torch.stack([x[:, at:at + 3].amax(1) for at in range(3)], 1))
row("TemporalMaxPooling", -1, x=T3, by=lambda x: x.amax(1, keepdim=True))
row("SpatialConvolution", 3, 4, 3, 2, 2, 1, 1, 0, x=IMAGES, by=lambda x, w, b: convolve(x, w, b, (1, 2), [(0, 0), (1,
    1)]))
row("SpatialConvolution", 3, 4, 3, 3, 2, 2, -1, -1, x=IMAGES, by=lambda x, w, b: convolve(x, w, b, (2, 2), [(1, 1), (0,
    1)]))
row("SpatialConvolution", 3, 6, 2, 2, n_group=3, with_bias=False, x=IMAGES, by=lambda x, w: convolve(x, w, None, (1,
    1)))
row("SpatialConvolution", 3, 4, 3, 2, data_format="NHWC", x=LAST, by=last(lambda x, w, b: convolve(x, hwio(w), b, (1,
    1))))
row("SpatialConvolution", 4, 6, 3, 2, 2, 1, -1, -1, 2, data_format="NHWC", x=numbers(2, 5, 6, 4),
    by=last(lambda x, w, b: convolve(x, hwio(w), b, (1, 2), [(0, 1), (0, 1)])))
row("SpatialConvolution", 3, 4, 2, 2, propagate_back=False, x=IMAGES, by=lambda x, w, b: convolve(x.detach(), w, b, (1,
    1)))
row("SpatialShareConvolution", 3, 4, 3, 2, 2, 1, 1, 0, x=IMAGES, by=lambda x, w, b: convolve(x, w, b, (1, 2), [(0, 0),
    (1, 1)]))
row("SpatialDilatedConvolution", 3, 4, 2, 3, 1, 2, 1, 2, 3, 2, x=IMAGES, by=lambda x, w, b: convolve(x, w[None], b, (2,
    1), [(2, 2), (1, 1)], (2, 3)))
row("SpatialFullConvolution", 3, 4, 3, 2, 2, 3, 1, 0, 1, 2, x=IMAGES, by=lambda x, w, b: spread(x, w, b, (3, 2), (0, 1),
    (2, 1)))
row("SpatialFullConvolution", 4, 6, 2, 2, 2, 2, n_group=2, x=numbers(2, 4, 3, 3), by=lambda x, w, b: spread(x, w, b, (2,
    2), (0, 0), (0, 0)))
row("SpatialSeparableConvolution", 3, 4, 2, 3, 2, 2, 1, 1, 0, x=IMAGES, by=lambda x, d, w, b: deepen(x, d, w, b, (1, 2),
    [(0, 0), (1, 1)]))
row("SpatialSeparableConvolution", 3, 4, 2, 2, 2, data_format="NHWC", x=LAST, by=last(lambda x, d, w,
    b: deepen(x, d.permute(3, 2, 0, 1), w.permute(3, 2, 0, 1), b, (1, 1))))
row("VolumetricConvolution", 2, 3, 2, 3, 1, 1, 2, 3, 1, 0, 2, x=VOLUMES, by=lambda x, w, b: convolve(x, w[None], b,
    (1, 3, 2), [(1, 1), (2, 2), (0, 0)]))
row("VolumetricConvolution", 2, 3, 2, 3, 3, 1, 1, 1, -1, -1, -1, False, x=VOLUMES, by=lambda x, w: convolve(x, w[None],
    None, (1, 1, 1), [(0, 1), (1, 1), (1, 1)]))
row("VolumetricConvolution", 2, 3, 2, 3, 3, 2, 2, 2, -1, -1, -1, x=VOLUMES, by=lambda x, w, b: convolve(x, w[None], b,
    (2, 2, 2), [(0, 0), (1, 1), (0, 1)]))
row("VolumetricFullConvolution", 2, 4, 2, 3, 1, 1, 2, 3, 0, 1, 0, 0, 1, 2, 2, x=VOLUMES, by=lambda x, w, b: spread(x, w,
    b, (1, 3, 2), (0, 0, 1), (0, 2, 1)))
row("LocallyConnected1D", 5, 4, 2, 3, 2, x=T3, by=local1)
row("LocallyConnected2D", 3, 6, 5, 2, 2, 2, 2, 1, 1, 0, x=IMAGES, by=lambda x, w, b: local2(x, w, b, (1, 2), [(0, 0),
    (1, 1)]))
row("LocallyConnected2D", 3, 6, 5, 2, 2, 2, data_format="NHWC", x=LAST, by=last(lambda x, w, b: local2(x,
    w.unflatten(-1, (2, 2, 3)).movedim(-1, 2).flatten(2), b)))
LOW = -math.inf
row("SpatialMaxPooling", 2, 3, 2, 1, x=IMAGES, by=lambda x: pieces(x, (3, 2), (1, 2)).amax(-1))
row("SpatialMaxPooling", 3, 3, 2, 2, 1, 1, True, x=IMAGES, by=lambda x: pieces(x, (3, 3), (2, 2), [(1, 1), (1, 2)],
    LOW).amax(-1))
row("SpatialMaxPooling", 3, 2, 2, 2, -1, -1, x=IMAGES, by=lambda x: pieces(x, (2, 3), (2, 2), [(0, 1), (0, 1)],
    LOW).amax(-1))
row("SpatialMaxPooling", 2, 3, 2, 1, format="NHWC", x=LAST, by=last(lambda x: pieces(x, (3, 2), (1, 2)).amax(-1)))
row("SpatialAveragePooling", 2, 3, 2, 1, 1, 1, x=IMAGES, by=lambda x: pieces(x, (3, 2), (1, 2), [(1, 1), (1,
    1)]).mean(-1))
row("SpatialAveragePooling", 2, 3, 2, 1, 1, 1, count_include_pad=False, x=IMAGES, by=lambda x: pieces(x, (3, 2), (1, 2),
    [(1, 1), (1, 1)], math.nan).nanmean(-1))
row("SpatialAveragePooling", 2, 2, 2, 2, ceil_mode=True, x=IMAGES, by=lambda x: pieces(x, (2, 2), (2, 2), [(0, 1), (0,
    0)], math.nan).nanmean(-1))
row("SpatialAveragePooling", 2, 3, 2, 1, divide=False, x=IMAGES, by=lambda x: pieces(x, (3, 2), (1, 2)).sum(-1))
row("SpatialAveragePooling", 3, 2, 2, 2, -1, -1, x=IMAGES, by=lambda x: pieces(x, (2, 3), (2, 2), [(0, 1), (0, 1)],
    math.nan).nanmean(-1))
row("SpatialAveragePooling", 1, 1, global_pooling=True, x=IMAGES, by=lambda x: x.mean((2, 3), keepdim=True))
row("SpatialAveragePooling", 2, 3, 2, 1, format="NHWC", x=LAST, by=last(lambda x: pieces(x, (3, 2), (1, 2)).mean(-1)))
row("VolumetricMaxPooling", 2, 3, 1, 1, 2, 2, 1, 1, 0, x=VOLUMES, by=lambda x: pieces(x, (2, 1, 3), (1, 2, 2), [(1, 1),
    (0, 0), (1, 1)], LOW).amax(-1))
row("VolumetricAveragePooling", 2, 3, 1, 1, 2, 2, 1, 1, 0, x=VOLUMES, by=lambda x: pieces(x, (2, 1, 3), (1, 2, 2), [(1,
    1), (0, 0), (1, 1)]).mean(-1))
row("VolumetricAveragePooling", 2, 2, 2, 2, 2, 2, count_include_pad=False, ceil_mode=True, x=VOLUMES,
    by=lambda x: pieces(x, (2, 2, 2), (2, 2, 2), [(0, 0), (0, 1), (0, 0)], math.nan).nanmean(-1))
row("SpatialCrossMapLRN", 3, 0.5, 0.75, 2.0, x=IMAGES, by=lambda x: across(x, 3, 0.5, 0.75, 2.0))
row("SpatialCrossMapLRN", 3, 0.5, 0.75, 2.0, "NHWC", x=LAST, by=last(lambda x: across(x, 3, 0.5, 0.75, 2.0)))
row("SpatialWithinChannelLRN", 3, 0.5, 0.75, x=IMAGES, by=lambda x: x / (1 + 0.5 * pieces(x.square(), (3, 3), (1, 1),
    [(1, 1), (1, 1)]).mean(-1)) ** 0.75)
row("SpatialSubtractiveNormalization", 3, np.ones((3, 3)), x=IMAGES, by=lambda x: subtract(x, 3))
row("SpatialSubtractiveNormalization", 3, np.ones(3), x=IMAGES, by=lambda x: subtract(x, 3))
row("SpatialDivisiveNormalization", 3, np.ones((3, 3)), x=IMAGES, by=lambda x: divide(x, 3))
row("SpatialContrastiveNormalization", 3, np.ones(3), x=IMAGES, by=lambda x: divide(subtract(x, 3), 3))
row("UpSampling1D", 3, x=T3, by=lambda x: torch.stack([x] * 3, 2).flatten(1, 2))
row("UpSampling2D", [2, 3], x=IMAGES, by=lambda x: times(x, [2, 3]))
row("UpSampling2D", [2, 3], "nhwc", x=LAST, by=last(lambda x: times(x, [2, 3])))
row("UpSampling3D", [2, 1, 3], x=VOLUMES, by=lambda x: times(x, [2, 1, 3]))
row("ResizeBilinear", 8, 4, x=IMAGES, by=lambda x: bilinear(x, 8, 4, False))
row("ResizeBilinear", 8, 4, True, "NHWC", x=LAST, by=last(lambda x: bilinear(x, 8, 4, True)))
# Those of sparse tensors, connections and regions.
row("SparseLinear", 4, 3, by=lambda x, w, b: torch.einsum("ni,oi->no", x, w) + b)
row("DenseToSparse", by=lambda x: x)
row("SparseJoinTable", 2, x=[A, B], alone=False, by=lambda a, b: torch.cat([a, b], 1))
IDS = np.array([[1.0, 5, 0], [3, 3, 4], [0, 0, 0]])
HEAVY = abs(numbers(3, 3)) + 0.1
for combiner, mass in {"sum": lambda s: torch.ones_like(s.sum(1)), "mean": lambda s: s.sum(1),
                       "sqrtn": lambda s: s.square().sum(1).sqrt()}.items():
    row("LookupTableSparse", 5, 2, combiner, x=IDS, by=lambda x, w, mass=mass: combine(x, torch.ones_like(x), w, mass))
    row("LookupTableSparse", 5, 2, combiner, x=[IDS, HEAVY], by=lambda x, s, w, mass=mass: combine(x, s, w, mass))
row("LookupTableSparse", 5, 2, "sum", 0.5, x=IDS, by=lambda x, w: combine(x, torch.ones_like(x), w * (
    0.5 / w.norm(dim=1, keepdim=True)).clamp(max=1), lambda s: torch.ones_like(s.sum(1))))
PLANES = [[1, 1], [2, 1], [3, 2], [1, 2], [3, 2]]
row("SpatialConvolutionMap", PLANES, 3, 2, 2, 1, 1, 0, x=IMAGES, by=lambda x, w, b: torch.stack([b[o] + sum(
    convolve(x[:, [i - 1]], w[None, None, [k]], None, (1, 2), [(0, 0), (1, 1)])[:, 0]
    for k, (i, end) in enumerate(PLANES) if end == o + 1) for o in range(2)], 1))
REGIONS = np.array([[0.0, 1, 0, 4, 3], [1, 0, 2, 5, 4], [1, 2, 2, 2, 2]])
row("RoiPooling", 2, 3, 1.0, x=[IMAGES, REGIONS], alone=False, by=lambda x, r: torch.stack([torch.stack([torch.stack([
    x[int(n), :, int(t) + math.floor(i * (b - t + 1) / 3):int(t) + math.ceil((i + 1) * (b - t + 1) / 3),
    int(s) + math.floor(j * (e - s + 1) / 2):int(s) + math.ceil((j + 1) * (e - s + 1) / 2)].amax((1, 2))
    for j in range(2)], 1) for i in range(3)], 1) for n, s, t, e, b in REGIONS]) + 0 * r.sum())
# Containers.
row("Sequential", made=lambda: net("Sequential", layer("Linear", 4, 3), layer("Tanh")), by=lambda x, w,
    b: torch.tanh(x @ w.T + b))
row("Concat", made=lambda: net("Concat", layer("Linear", 4, 2), layer("Linear", 4, 3), args=[2]), alone=False,
    by=lambda x, w, b, v, c: torch.cat([x @ w.T + b, x @ v.T + c], 1))
row("ConcatTable", made=lambda: net("ConcatTable", layer("Linear", 4, 2), layer("Tanh")), by=lambda x, w,
    b: [x @ w.T + b, torch.tanh(x)])
row("ParallelTable", x=[A, B], made=lambda: net("ParallelTable", layer("Linear", 4, 2), layer("Tanh")), by=lambda a, b,
    w, c: [a @ w.T + c, torch.tanh(b)])
row("MapTable", x=[A, B], made=lambda: layer("MapTable", layer("Linear", 4, 2)), by=lambda a, b, w, c: [a @ w.T + c,
    b @ w.T + c])
row("MapTable", x=[A, B], made=lambda: net("MapTable", layer("Linear", 4, 2)), by=lambda a, b, w, c: [a @ w.T + c,
    b @ w.T + c])
for x in (T3, A):
    row("Bottle", x=x, made=lambda: layer("Bottle", layer("Linear", 4, 2)), by=lambda x, w, b: x @ w.T + b)
row("TimeDistributed", x=T3, made=lambda: layer("TimeDistributed", layer("Linear", 4, 2)), alone=False, by=lambda x, w,
    b: x @ w.T + b)
row("TimeDistributed", x=T3, made=lambda: layer("TimeDistributed", net("ConcatTable", layer("Linear", 4, 2),
    layer("Tanh"))), alone=False, by=lambda x, w, b: [x @ w.T + b, torch.tanh(x)])
row("Model", made=graph, x=[A, numbers(3, 3)], by=lambda a, b, w, c: [a @ w.T + c + b, torch.tanh(a @ w.T + c)])
# Time.
CELLS: list[tuple[str, Any, Any, Any]] = [
    ("LSTM", lambda: layer("LSTM", 4, 3), T3, lstm),
    ("LSTM", lambda: layer("LSTM", 4, 3, 0.0, layer("Sigmoid"), layer("HardSigmoid")), T3,
     lambda x, w, b, u: lstm(x, w, b, u, (0, 0, 0), lambda z: (0.2 * z + 0.5).clamp(0, 1), torch.sigmoid)),
    ("LSTMPeephole", lambda: layer("LSTMPeephole", 4, 3), T3, lstm),
    ("GRU", lambda: layer("GRU", 4, 3), T3, gru),
    ("RnnCell", lambda: layer("RnnCell", 4, 3, layer("Tanh")), T3, rnn),
    ("RnnCell", lambda: layer("RnnCell", 4, 3, layer("Tanh"), False, False), T3, lambda x, w, u: rnn(x, w, 0, u, 0)),
    ("ConvLSTMPeephole", lambda: layer("ConvLSTMPeephole", 2, 3, 3, 3), numbers(2, 3, 2, 4, 5), image_lstm),
    ("ConvLSTMPeephole", lambda: layer("ConvLSTMPeephole", 2, 3, 3, 3, with_peephole=False), numbers(2, 3, 2, 4, 5),
     image_lstm),
    ("ConvLSTMPeephole3D", lambda: layer("ConvLSTMPeephole3D", 2, 3, 3, 3), numbers(2, 2, 2, 3, 4, 4), image_lstm),
    ("MultiRNNCell", lambda: layer("MultiRNNCell", [layer("LSTM", 4, 3), layer("GRU", 3, 2)]), T3,
     lambda x, w, b, u, *more: gru(lstm(x, w, b, u), *more)),
]
for name, cell, x, by in CELLS:
    row(name, made=lambda cell=cell: net("Recurrent", cell()), x=x, alone=False, by=by)
row("Recurrent", made=lambda: net("Recurrent", layer("GRU", 4, 3)), x=T3, alone=False, by=gru)
row("RecurrentDecoder", made=lambda: net("RecurrentDecoder", layer("LSTM", 4, 4), args=[3]), alone=False, by=decode)
row("BiRecurrent", made=lambda: net("BiRecurrent", layer("GRU", 4, 3)), x=T3, alone=False, by=lambda x, *w: gru(x,
    *w[:4]) + gru(x.flip(1), *w[4:]).flip(1))
row("BiRecurrent", made=lambda: net("BiRecurrent", layer("GRU", 4, 3), args=[layer("JoinTable", 3, 3)]), x=T3,
    alone=False, by=lambda x, *w: torch.cat([gru(x, *w[:4]), gru(x.flip(1), *w[4:]).flip(1)], 2))

# fmt: on
NOISY = [
    "Dropout",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "GaussianDropout",
    "GaussianNoise",
    "GaussianSampler",
    "RReLU",
]  # fmt: skip


def test_every_layer_has_a_definition_here() -> None:
    assert set(LAYERS) == {each["name"] for each in ROWS} | set(NOISY)


def leaves(tree: Any) -> list[Any]:
    return [leaf for part in tree for leaf in leaves(part)] if isinstance(tree, list | tuple) else [tree]


def first(tree: Any) -> Any:
    return [first(part) for part in tree] if isinstance(tree, list) else tree[0]


def alike(mine: Any, truth: Any, words: str) -> None:
    for got, wanted in zip(leaves(mine), leaves(truth), strict=True):
        got, wanted = (each.detach().numpy() if isinstance(each, torch.Tensor) else each for each in (got, wanted))
        assert got.shape == wanted.shape, words
        assert np.isfinite(got).all(), words
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5, err_msg=words)


def rebuilt_from_words(layer: Any) -> Any:
    """Return the layer of what a file would hold of it."""
    made = files.rebuilt(json.loads(json.dumps(files.described(layer))))
    made.module.load_state_dict(layer.module.state_dict())
    return made


@pytest.mark.parametrize("each", ROWS, ids=[f"{each['name']}-{at}" for at, each in enumerate(ROWS)])
def test_layer_is_its_definition(each: dict[str, Any]) -> None:
    layer, x = each["made"](), each["x"]
    inputs = [torch.tensor(leaf, dtype=torch.float32, requires_grad=True) for leaf in leaves(x)]
    layer.set_weights([numbers(*array.shape) for array in layer.get_weights()])
    weights = [torch.tensor(array, requires_grad=True) for array in layer.get_weights()]
    truth = leaves(each["by"](*inputs, *weights))
    output = layer.forward(x)
    alike(output, truth, "output")
    gradients = [numbers(*leaf.shape) for leaf in truth]
    pairs = [(leaf, torch.tensor(g)) for leaf, g in zip(truth, gradients, strict=True) if leaf.requires_grad]
    torch.autograd.backward([leaf for leaf, _ in pairs], [g for _, g in pairs])
    back = layer.backward(x, gradients if isinstance(output, list) else gradients[0])
    alike(back, [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in inputs], "gradient of inputs")
    alike(
        [shown(*each[:2], each[2].grad) for each in weights_of(layer.module)], [w.grad for w in weights], "of weights"
    )
    for again in (pickle.loads(pickle.dumps(layer)), rebuilt_from_words(layer)):
        assert type(again) is type(layer) and again.name() == layer.name()
        alike(again.forward(x), truth, "output after loading")
    if each["alone"]:
        one = first(gradients)
        alike(layer.forward(first(x)), first(truth), "output of one row")
        alike(
            layer.backward(first(x), one if isinstance(output, list) else one[0]),
            first(leaves(back)),
            "gradient of one row",
        )


@pytest.mark.parametrize(("name", "args", "shape"), [
    ("Linear", (4, 3), (2, 5)), ("SpatialConvolution", (3, 4, 2, 2), (2, 4, 5, 5)),
    ("SpatialMaxPooling", (9, 9), (2, 3, 5, 5)),
    ("TemporalConvolution", (4, 2, 3), (2, 5, 3)), ("VolumetricConvolution", (2, 3, 2, 2, 2), (2, 3, 4, 4, 4)),
    ("SpatialFullConvolution", (3, 4, 2, 2), (2, 4, 5, 5)), ("LookupTable", (5, 3), None), ("Reshape", ([7],), (2, 5)),
    ("View", ([7],), (2, 5)), ("Select", (2, 9), (2, 5)), ("Select", (4, 1), (2, 5)),
    ("Transpose", ([(1, 4)],), (2, 5)),
    ("SpatialBatchNormalization", (3,), (2, 4, 5, 5)), ("PReLU", (3,), (2, 4, 5, 5)), ("Cosine", (4, 2), (2, 5)),
    ("LocallyConnected1D", (5, 4, 2, 3), (2, 5, 3)), ("LocallyConnected2D", (3, 6, 5, 2, 2, 2), (2, 3, 6, 6)),
    ("LayerNormalization", (4,), (2, 5)), ("CMul", ([3, 1, 1],), (2, 4, 5, 5)), ("Maxout", (4, 2, 3), (2, 5)),
    ("Padding", (1, 1, 1, 7.0, 9), (2, 5)), ("InferReshape", ([-1, 7],), (2, 5)), ("Highway", (4,), (2, 5)),
    ("SpatialCrossMapLRN", (4,), (2, 3, 5, 5)), ("SpatialSubtractiveNormalization", (4,), (2, 3, 5, 5)),
])  # fmt: skip
def test_wrong_shape_names_the_layer(name: str, args: Any, shape: Any) -> None:
    x = np.full((2, 3), 9.0) if shape is None else np.ones(shape)
    with pytest.raises((DataError, ArgumentError), match=rf"{name}|{name[-12:]}"):
        layer(name, *args).set_name(name).forward(x)


def test_gradients_of_a_lookup_table_follow_frequency_padding_and_norm() -> None:
    x = np.array([[2.0, 2, 3]])
    for more, counts in (
        ({}, [0, 2, 1]),
        ({"should_scale_grad_by_freq": True}, [0, 1, 1]),
        ({"padding_value": 3.0}, [0, 2, 0]),
    ):
        table = layer("LookupTable", 3, 2, **more)
        table.backward(x, np.ones((1, 3, 2)))
        np.testing.assert_array_equal(table.module.weight.grad[:, 0], counts)
    small = layer("LookupTable", 3, 2, max_norm=0.5)
    assert np.linalg.norm(small.forward(x), axis=-1).max() <= 0.5 + 1e-6


@pytest.mark.parametrize(("name", "args", "shape", "shared"), [
    ("Dropout", (0.3,), (4000,), ()), ("SpatialDropout1D", (0.3,), (2000, 3, 2), (1,)),
    ("SpatialDropout2D", (0.3,), (500, 4, 3, 2), (2, 3)), ("SpatialDropout2D", (0.3, "NHWC"), (500, 3, 2, 4), (1, 2)),
    ("SpatialDropout3D", (0.3,), (500, 4, 3, 2, 2), (2, 3, 4)),
    ("SpatialDropout3D", (0.3, "NHWC"), (500, 3, 2, 2, 4), (1, 2, 3)),
])  # fmt: skip
def test_dropout_drops_whole_channels_and_scales_the_rest(name: str, args: Any, shape: Any, shared: Any) -> None:
    x, made = abs(numbers(*shape)) + 1, layer(name, *args)
    mask = made.forward(x) / x
    np.testing.assert_allclose(np.unique(mask.round(4)), [0, 1 / 0.7], rtol=1e-3)
    assert abs((mask == 0).mean() - 0.3) < 0.05 and np.all(mask.std(shared) < 1e-5 if shared else True)
    np.testing.assert_allclose(made.backward(x, x), mask * x, rtol=1e-5)
    np.testing.assert_array_equal(made.evaluate().forward(x), x)


def test_noise_has_its_mean_and_deviation() -> None:
    x = numbers(3, 1000)
    for name, args, by in (
        ("GaussianNoise", (0.5,), lambda x, e: x + 0.5 * e),
        ("GaussianDropout", (0.2,), lambda x, e: x * (1 + 0.5 * e)),
    ):  # fmt: skip
        made = layer(name, *args)
        torch.manual_seed(3)
        output, grad = made.forward(x), made.backward(x, x)
        torch.manual_seed(3)
        given = torch.tensor(x, requires_grad=True)
        truth = by(given, torch.randn(3, 1000))
        truth.backward(torch.tensor(x))
        alike([output, grad], [truth, given.grad], name)
        np.testing.assert_array_equal(made.evaluate().forward(x), x)
    torch.manual_seed(3)
    output = layer("GaussianSampler").forward([x, 0 * x + 2 * math.log(3)])
    torch.manual_seed(3)
    np.testing.assert_allclose(output, x + 3 * torch.randn(3, 1000).numpy(), rtol=1e-4, atol=1e-4)


def test_rrelu_draws_slopes_in_training_and_takes_the_middle_else() -> None:
    x, made = -np.ones((10, 100)), layer("RReLU")
    slopes = -made.forward(x)
    assert 0.125 <= slopes.min() < 0.15 and 0.3 < slopes.max() <= 1 / 3
    np.testing.assert_allclose(made.backward(x, x), -slopes, rtol=1e-5)
    np.testing.assert_allclose(made.evaluate().forward(x), x * (0.125 + 1 / 3) / 2, rtol=1e-5)
    np.testing.assert_array_equal(made.training().forward(-x), -x)


def test_batch_normalization_answers_with_what_it_saw() -> None:
    made, x = layer("BatchNormalization", 4, momentum=0.25), numbers(6, 4)
    made.forward(x)
    mean, var = 0.25 * x.mean(0), 0.75 + 0.25 * x.var(0, ddof=1)
    weight, bias = made.evaluate().get_weights()
    truth = (x - mean) / np.sqrt(var + 1e-5) * weight + bias
    np.testing.assert_allclose(made.forward(x), truth, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made.forward(x[0]), truth[0], rtol=1e-4, atol=1e-5)
    assert len(layer("BatchNormalization", 4, affine=False).get_weights()) == 0


def test_states_are_those_behind_the_last_step() -> None:
    for made, x in (
        (net("Recurrent", layer("GRU", 4, 3)), T3),
        (net("RecurrentDecoder", layer("GRU", 3, 3), args=[2]), A[:, :3]),
    ):
        np.testing.assert_array_equal(made.forward(x)[:, -1], made.get_hidden_state())
    with pytest.raises(ArgumentError, match="padding"):
        R.ConvLSTMPeephole(2, 3, 3, 3, padding=1)
