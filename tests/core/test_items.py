"""Items: what ranks tell each other comes back as it was, and nothing else is made of bytes."""

from __future__ import annotations

import json
import math
import pickle
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from orca.core import items
from orca.core.items import Unsendable, decode, encode, travels
from orca.core.state import Losses
from orca.monitor.protocol import Malformed

KINDS = ["?", "i1", "u1", "u8", "i8", "f4", "f8", "c8", "c16", "M8[ns]", "m8[s]", "S3", "U5", "f2", ">i4", ">f8"]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**9000), 2**9000),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.binary(),
    arrays.arrays(st.sampled_from(KINDS), arrays.array_shapes(min_dims=0, min_side=0)),
)
KEYS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.tuples(st.integers(), st.text()))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.frozensets(KEYS, max_size=3),
        st.sets(KEYS, max_size=3),
    ),
    max_leaves=12,
)


def identical(one: Any, other: Any) -> bool:
    """Return whether two values are of the same types and values; nan is nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, dict):
        return identical(list(one.items()), list(other.items()))
    return bool(one == other or repr(one) == repr(other))


@given(TREES)
@settings(deadline=None)
def test_values_come_back_as_they_were(item: Any) -> None:
    assert identical(decode(encode(item)), item)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_item_or_malformed(data: bytes) -> None:
    with suppress(Malformed):
        decode(data)


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
        st.sampled_from([*items._READERS, *items._SEQUENCES, "<f8", "float64", "float8_x", "load", "Losses", "|O"]),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=10,
)  # fmt: skip


@given(JSON, st.binary(max_size=40))
@settings(deadline=None)
def test_any_json_is_an_item_or_malformed(plain: Any, rest: bytes) -> None:
    text = json.dumps(plain).encode()
    with suppress(Malformed):
        decode(struct.pack("<Q", len(text)) + text + rest)


def crafted(plain: Any, rest: bytes = b"") -> bytes:
    text = json.dumps(plain).encode()
    return struct.pack("<Q", len(text)) + text + rest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<Q", 1 << 60) + b"[]",
        crafted(["array", "<f8", [1 << 40]]),
        crafted(["array", "<f8", [1 << 40, 1 << 40, 0]]),
        crafted(["array", "<f8", [-1]], bytes(8)),
        crafted(["array", "<f8", [1]], bytes(9)),
        crafted(["array", "|O", [1]], bytes(8)),
        crafted(["array", "<U1000000000", [1000]]),
        crafted(["array", "<U0", [1 << 40]]),
        crafted(["array", "|S0", [2]]),
        crafted(["array", "|V8", [1]], bytes(8)),
        crafted(["array", "float8_nothing", [1]], bytes(8)),
        crafted(["array", "float4_e2m1fn.__class__", [1]], bytes(8)),
        crafted(["bytes", 1 << 40]),
        crafted(["bytes", -1]),
        crafted(["objects", [1 << 40]]),
        crafted(["tensor", "float32", [1 << 40]]),
        crafted(["tensor", "load", [1]], bytes(8)),
        crafted(["data", "Popen", ["dict", ["args", "true"]]]),
        crafted(["data", "Losses", ["dict", ["__class__", 1]]]),
        crafted(["data", "Losses", ["list", 1]]),
        crafted(["dict", [["list"], 1]]),
        crafted(["int", "1_0 + 1"]),
        crafted(["take", 1], b"x"),
        crafted({"a": 1}),
        crafted([]),
        b"[" * 100,
        struct.pack("<Q", 200_000) + b"[" * 100_000 + b"]" * 100_000,
        crafted("x", b"rest"),
        pickle.dumps({"a": 1}),
    ],
)
def test_crafted_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed, match="an item is malformed"):
        decode(data)


class Pair(NamedTuple):
    one: int
    other: str


def test_subclasses_come_back_as_the_plain_kind() -> None:
    class Text(str):
        pass

    class Entries(dict[str, int]):
        pass

    back = decode(encode([Text("a"), Entries(a=1), Pair(1, "b"), True, np.float64(2.5), np.float32(1), np.bool_(True)]))
    assert back == ["a", {"a": 1}, (1, "b"), True, 2.5, 1.0, True]
    assert [type(value) for value in back[:4]] == [str, dict, tuple, bool]
    assert [type(value) for value in back[4:]] == [np.float64, np.float32, np.bool_]


def test_arrays_come_back_writable_whatever_their_order_and_kind() -> None:
    array = np.arange(12.0).reshape(3, 4)[:, ::-2].T
    back = decode(encode(array))
    np.testing.assert_array_equal(back, array)
    back += 1
    half = np.arange(5, dtype=ml_dtypes.bfloat16)
    assert decode(encode(half)).dtype == ml_dtypes.bfloat16 and (decode(encode(half)) == half).all()
    scalar = decode(encode(half[1]))
    assert scalar == 1 and scalar.dtype == ml_dtypes.bfloat16
    assert [decode(encode(text)) for text in (np.str_(""), np.bytes_(b""))] == ["", b""]
    cells = np.array(["a", None, b"c", 4, np.arange(2)], dtype=object)
    back = decode(encode(cells))
    assert back.dtype == object and list(back[:4]) == ["a", None, b"c", 4] and back[4].tolist() == [0, 1]


def test_tensors_come_back_on_the_processor() -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8):
        for tensor in (torch.ones(2, 3).to(kind), torch.tensor(1).to(kind), torch.ones(0, 4).to(kind)):
            back = decode(encode(tensor))
            assert back.dtype == kind and back.shape == tensor.shape and torch.equal(back, tensor)
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
    back = decode(encode({"weight": weight}))["weight"]
    assert torch.equal(back, weight.detach()) and not back.requires_grad
    with pytest.raises(Unsendable, match="not dense"):
        encode(torch.eye(3).to_sparse())


def test_state_of_an_optimizer_comes_back_and_loads() -> None:
    torch = pytest.importorskip("torch")
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    one, other = (torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1), amsgrad=True) for model in models)
    models[0](torch.ones(1, 3)).sum().backward()
    one.step()
    other.load_state_dict(decode(encode(one.state_dict())))
    assert repr(other.state_dict()) == repr(one.state_dict())


def test_dataclasses_of_ours_travel_field_by_field() -> None:
    losses = Losses(loss_sum=math.inf, rows=3, logs={"a": [1.0]}, trace=[(1.0, 2.0)])
    assert decode(encode([losses])) == [losses]


@travels
@dataclass(frozen=True)
class Travelling:
    value: Any


@dataclass(frozen=True)
class Staying:
    value: Any


def test_other_objects_are_refused_by_their_type() -> None:
    assert decode(encode(Travelling((1, 2)))) == Travelling((1, 2))
    for thing, words in [
        (Staying(1), "Staying"),
        (lambda: 1, "function"),
        (range(3), "range"),
        (np.ma.masked_array([1, 2], [True, False]), "masked"),
        (np.zeros(2, [("a", "f4")]), "an array of type"),
        (object(), "builtins.object"),
    ]:
        with pytest.raises(Unsendable, match=words):
            encode({"part": [thing]})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Unsendable, match="holds itself"):
        encode(endless)


def test_ragged_and_sparse_tensors_of_tensorflow_travel() -> None:
    tf = pytest.importorskip("tensorflow")
    import orca.sources.tfdata  # noqa: F401  # they travel where there is a tf.data

    ragged = tf.ragged.constant([[[1, 2], []], [[3]]])
    back = decode(encode({"x": ragged[:1]}))["x"]
    assert back.to_list() == [[[1, 2], []]] and back.shape[1:] == ragged.shape[1:]
    sparse = tf.sparse.from_dense([[0.0, 2.0], [3.0, 0.0]])
    np.testing.assert_array_equal(tf.sparse.to_dense(decode(encode(sparse))), tf.sparse.to_dense(sparse))
    plain = decode(encode(tf.constant(["a", "bc"])))
    assert plain.dtype == object and plain.tolist() == [b"a", b"bc"]
