"""Arrow: every kind of column comes out as the right array, by stride, or says what is wrong with it."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from orca.errors import DataError
from orca.rows.arrow import stretches, to_arrays, to_arrow, to_numpy, widened
from raised import raises

NUMBERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_are_a_view_of_the_column(dtype: str) -> None:
    column = to_arrow(np.arange(5).astype(dtype))
    array = to_numpy(column, "x")
    assert array.dtype == dtype
    assert array.tolist() == [0, 1, 2, 3, 4]
    assert address(array) == column.buffers()[1].address


def test_booleans() -> None:
    array = to_numpy(pa.array([True, False, True])[1:], "x")
    assert array.dtype == bool
    assert array.tolist() == [False, True]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2)])
def test_lists_are_a_view_of_the_values_also_in_a_slice(kind: pa.DataType) -> None:
    column = pa.array([[0, 1], [2, 3], [4, 5], [6, 7]], kind)
    array = to_numpy(column, "x")
    assert array.dtype == np.float32
    assert array.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert address(array) == column.flatten().buffers()[1].address
    part = to_numpy(column[1:3], "x")
    assert part.tolist() == [[2, 3], [4, 5]]
    assert np.shares_memory(part, array)


@pytest.mark.parametrize("inner", [pa.list_(pa.int16()), pa.large_list(pa.int16()), pa.list_(pa.int16(), 3)])
@pytest.mark.parametrize("outer", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])
def test_nested_lists_in_slices(inner: pa.DataType, outer) -> None:
    expected = np.arange(4 * 2 * 3).reshape(4, 2, 3)
    column = pa.array(expected.tolist(), outer(inner))
    assert np.array_equal(to_numpy(column, "x"), expected)
    assert np.array_equal(to_numpy(column[1:3], "x"), expected[1:3])


def test_lists_of_booleans_decimals_dates_and_bytes() -> None:
    assert to_numpy(pa.array([[True, False], [False, False]]), "x").tolist() == [[True, False], [False, False]]
    assert to_numpy(pa.array([[Decimal("1.5")], [Decimal("2.5")]]), "x").tolist() == [[1.5], [2.5]]
    assert to_numpy(pa.array([[date(2020, 1, 1)]]), "x").dtype.kind == "M"
    assert to_numpy(pa.array([[b"ab", b"cd"]]), "x").tolist() == [[[97, 98], [99, 100]]]


def test_a_ragged_row_outside_the_slice_does_not_matter() -> None:
    assert to_numpy(pa.array([[9], [1, 2], [3, 4], []])[1:3], "x").tolist() == [[1, 2], [3, 4]]


def test_lists_of_no_values() -> None:
    assert to_numpy(pa.array([[], []], pa.list_(pa.float32())), "x").shape == (2, 0)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2)])
def test_bytes_become_uint8_by_stride(kind: pa.DataType) -> None:
    column = pa.array([b"ab", b"cd", b"ef"], kind)
    array = to_numpy(column, "x")
    assert array.dtype == np.uint8
    assert array.tolist() == [[97, 98], [99, 100], [101, 102]]
    assert address(array) == column.buffers()[-1].address
    assert to_numpy(column[1:], "x").tolist() == [[99, 100], [101, 102]]


def test_empty_bytes() -> None:
    assert to_numpy(pa.array([b"", b""]), "x").shape == (2, 0)


@pytest.mark.parametrize("kind", [pa.decimal128(5, 2), pa.decimal256(5, 2)])
def test_decimals_become_float64(kind: pa.DataType) -> None:
    array = to_numpy(pa.array([Decimal("1.25"), Decimal("-3.50")], kind), "x")
    assert array.dtype == np.float64
    assert array.tolist() == [1.25, -3.5]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ns", tz="UTC"), pa.date32(), pa.date64()])
def test_timestamps_and_dates_become_datetime64(kind: pa.DataType) -> None:
    array = to_numpy(pa.array([datetime(2021, 2, 3)]).cast(kind), "x")
    assert array.dtype.kind == "M"
    assert array[0] == np.datetime64("2021-02-03")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_strings_become_objects(kind: pa.DataType) -> None:
    array = to_numpy(pa.array(["a", "bc", "ä"], kind)[1:], "x")
    assert array.dtype == object
    assert array.tolist() == ["bc", "ä"]


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string(), 2)])
def test_lists_of_strings_become_objects(kind: pa.DataType) -> None:
    column = pa.array([["x", "x"], ["a", "bc"], ["ä", ""]], kind)
    array = to_numpy(column[1:], "x")
    assert array.dtype == object
    assert array.tolist() == [["a", "bc"], ["ä", ""]]
    assert to_numpy(pa.chunked_array([column[:1], column[1:]]), "x").shape == (3, 2)
    if not pa.types.is_fixed_size_list(kind):
        with raises("ragged-rows", match="'tags'"):
            to_numpy(pa.array([["a", "b"], ["c"]], kind), "tags")


def test_tensors_keep_their_shape() -> None:
    storage = pa.array(np.arange(12, dtype=np.float32).reshape(2, 6).tolist(), pa.list_(pa.float32(), 6))
    column = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2, 3]), storage)
    array = to_numpy(column, "x")
    assert np.array_equal(array, np.arange(12).reshape(2, 2, 3))
    assert np.shares_memory(array, to_numpy(storage, "x"))
    assert np.array_equal(to_numpy(column[1:], "x"), np.arange(6, 12).reshape(1, 2, 3))
    assert to_numpy(column[:0], "x").shape == (0, 2, 3)
    turned = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0]), storage)
    assert np.array_equal(to_numpy(turned, "x"), np.arange(12).reshape(2, 2, 3).transpose(0, 2, 1))


def test_chunks_are_joined_and_empty_chunks_left_out() -> None:
    column = pa.chunked_array([pa.array([[1.0, 2.0]]), pa.array([], pa.list_(pa.float64())), pa.array([[3.0, 4.0]])])
    assert to_numpy(column, "x").tolist() == [[1, 2], [3, 4]]
    single = pa.chunked_array([pa.array([1, 2])])
    assert address(to_numpy(single, "x")) == single.chunk(0).buffers()[1].address


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (pa.int32(), (0,)),
        (pa.string(), (0,)),
        (pa.list_(pa.float32()), (0, 0)),
        (pa.list_(pa.large_list(pa.bool_())), (0, 0, 0)),
        (pa.list_(pa.float32(), 3), (0, 3)),
        (pa.binary(), (0, 0)),
        (pa.binary(4), (0, 4)),
    ],
)
def test_no_rows(kind: pa.DataType, shape: tuple[int, ...]) -> None:
    assert to_numpy(pa.array([], kind), "x").shape == shape
    assert to_numpy(pa.chunked_array([], kind), "x").shape == shape


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, None]),
        pa.array([[1.0, None], [None, 2.0]]),
        pa.array([[[1], [None]], [[2], None]]),
        pa.array([[1, 2], None, None], pa.list_(pa.int64(), 2)),
        pa.array([b"a", None, None]),
        pa.array([None, None]),
        pa.chunked_array([pa.array([1, None]), pa.array([None, 2])]),
    ],
)
def test_nulls_at_any_level_are_counted(column: pa.Array) -> None:
    with raises("null-values", match="'age'"):
        to_numpy(column, "age")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], [1, 2], [1, 2, 3]]),
        pa.array([[[1, 2]], [[1, 2, 3]]]),
        pa.array([b"ab", b"abc"]),
        pa.chunked_array([pa.array([[1, 2]]), pa.array([[1, 2, 3]])]),
    ],
)
def test_ragged_rows_are_refused_with_two_lengths(column: pa.Array) -> None:
    with raises("ragged-rows", match="'tags'"):
        to_numpy(column, "tags")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"a": 1}]),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([1], pa.duration("s")),
        pa.array([[{"a": 1}]]),
        pa.array(["a"]).dictionary_encode(),
    ],
)
def test_other_types_are_refused(column: pa.Array) -> None:
    with raises("bad-column-type", match="'x'"):
        to_numpy(column, "x")


def lists_of(kind: pa.DataType, ndim: int) -> pa.DataType:
    for _ in range(ndim - 1):
        kind = pa.list_(kind)
    return kind


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2), (4, 0), (0,), (0, 3), (4, 1, 2, 2)])
@pytest.mark.parametrize("dtype", [*NUMBERS, "bool", "datetime64[us]", "datetime64[D]", ">f4"])
def test_round_trip(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtype)
    column = to_arrow(array)
    column.validate(full=True)
    assert len(column) == len(array)
    assert column.type == lists_of(pa.from_numpy_dtype(array.dtype.newbyteorder("=")), array.ndim)
    back = to_numpy(column, "x")
    assert back.dtype == array.dtype.newbyteorder("=")
    assert np.array_equal(back, array if len(array) else array.reshape(back.shape))


@pytest.mark.parametrize("dtype", ["object", "U3"])
def test_round_trip_of_strings(dtype: str) -> None:
    for array in (np.array(["a", "bc"], dtype), np.array([["a", "bc"], ["d", "e"]], dtype), np.array([], dtype)):
        column = to_arrow(array)
        assert column.type == lists_of(pa.string(), array.ndim)
        assert to_numpy(column, "x").tolist() == array.tolist()


def test_arrays_that_are_not_contiguous() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert to_arrow(array[::2, ::3]).to_pylist() == [[0, 3], [12, 15]]
    assert to_arrow(array[:, 1]).to_pylist() == [1, 7, 13, 19]
    assert to_arrow(array.T).to_pylist() == array.T.tolist()


def test_what_is_no_column_is_refused() -> None:
    with pytest.raises(DataError, match="no dimensions"):
        to_arrow(np.array(1.0))
    with raises("column-without-arrow-type"):
        to_arrow(np.zeros(2, np.complex64))
    with raises("mixed-objects"):
        to_arrow(np.array([1, 2], object))
    with raises("mixed-objects"):
        to_arrow(np.array([b"a"], object))
    with raises("mixed-objects"):
        to_arrow(np.array(["a", 1], object))
    with raises("array-too-large"):
        to_arrow(np.broadcast_to(np.float32(0), (1 << 16, 1 << 16)))


@pytest.mark.parametrize("sizes", [[10], [3, 3, 3], [1] * 9, [0, 5, 0, 4], [2, 20, 1], [4, 4], []], ids=str)
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_stretches_hold_whole_multiples_of_rows_in_their_order(sizes: list[int], rows: int) -> None:
    ends = np.cumsum(sizes).tolist()
    batches = [
        pa.RecordBatch.from_pydict({"a": np.arange(end - size, end)}) for size, end in zip(sizes, ends, strict=True)
    ]
    made = [[to_numpy(part.column(0), "a") for part in stretch] for stretch in stretches(batches, rows)]
    counts = [sum(map(len, stretch)) for stretch in made]
    assert all(count % rows == 0 for count in counts[:-1]) and all(counts)
    assert np.array_equal(np.concatenate([*(part for stretch in made for part in stretch), []]), np.arange(sum(sizes)))
    # Only around the border of two batches, and for no more than `rows` rows, are there several parts.
    assert all(len(stretch) == 1 or count <= rows for stretch, count in zip(made, counts, strict=True))


def test_stretches_take_no_more_batches_than_they_need() -> None:
    taken = []

    def noted():
        for number in range(9):
            taken.append(number)
            yield pa.RecordBatch.from_pydict({"a": np.arange(3)})

    next(stretches(noted(), 7))
    assert taken == [0, 1, 2]


def test_half_precision_and_small_integers_are_widened() -> None:
    import ml_dtypes

    values = np.array([1.5, -2.0])
    for kind in (np.float16, ml_dtypes.bfloat16):
        assert widened(values.astype(kind)).dtype == np.float32
        assert widened(values.astype(kind), "float64").tolist() == [1.5, -2.0]
    assert widened(values).dtype == np.float64 and widened(values) is values
    assert [widened(np.ones(2, kind)).dtype.name for kind in ("int8", "uint8", "uint16", "uint32", "bool")] == [
        *("int16", "int16", "int32", "int64", "bool")
    ]


VECTOR = {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}


def vectors(rows: list[tuple[Any, ...] | None]) -> pa.Array:
    cells = [None if row is None else dict(zip(VECTOR, row, strict=True)) for row in rows]
    return pa.array(cells, pa.struct(list(VECTOR.items())))


def test_vectors_dense_and_sparse_are_rows() -> None:
    dense, sparse = (1, None, None, [1.0, 2.0, 3.0]), (0, 3, [0, 2], [4.0, 5.0])
    empty = (0, 3, [], [])
    assert to_numpy(vectors([dense, dense]), "v").tolist() == [[1, 2, 3]] * 2
    mixed = vectors([empty, dense, sparse, dense, sparse, empty])
    wanted = [[0, 0, 0], [1, 2, 3], [4, 0, 5], [1, 2, 3], [4, 0, 5], [0, 0, 0]]
    assert to_numpy(mixed, "v").tolist() == wanted
    assert to_numpy(mixed.slice(2, 3), "v").tolist() == wanted[2:5]
    assert to_numpy(pa.chunked_array([mixed, vectors([sparse])]), "v").tolist() == [*wanted, [4, 0, 5]]
    assert to_numpy(vectors([sparse, empty]), "v").tolist() == [[4, 0, 5], [0, 0, 0]]


def test_vectors_that_make_no_batch_are_named() -> None:
    with raises("ragged-rows", match="'v'"):
        to_numpy(vectors([(0, 3, [0], [1.0]), (0, 4, [0], [1.0])]), "v")
    with raises("ragged-rows", match="'v'"):
        to_numpy(vectors([(0, 3, [0], [1.0]), (1, None, None, [1.0, 2.0])]), "v")
    with raises("null-values", match="'v'"):
        to_numpy(vectors([(0, 3, [0], [1.0]), None]), "v")


# Dicts

MAPS = pa.map_(pa.string(), pa.list_(pa.float32()))


def test_map_becomes_a_dict_whatever_the_order_of_its_keys() -> None:
    maps = pa.array([[("b", [9.0])], [("a", [1.0]), ("b", [2.0])], [("b", [3.0]), ("a", [4.0])]], MAPS).slice(1)
    for column, times in ((maps, 1), (pa.chunked_array([maps, maps]), 2)):
        arrays = to_arrays(column, "m")
        assert list(arrays) == ["a", "b"]
        assert arrays["a"].tolist() == [[1.0], [4.0]] * times and arrays["b"].tolist() == [[2.0], [3.0]] * times


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [[("a", [1.0])], [("c", [1.0])]],
            r"row 0 of a block has \['a'\], row 1 has \['c'\]. Every row",
        ),
        ([[("a", [1.0]), ("b", [1.0])], [("a", [1.0])]], r"row 0 of a block has \['a', 'b'\], row 1 has \['a'\]"),
        ([[("a", [1.0]), ("a", [1.0])], [("a", [1.0]), ("b", [1.0])]], r"row 0 of a block has \['a', 'a'\]"),
        ([[], []], "column 'm' is a map without a key in any row. Give every row the same keys"),
        ([[("a", [1.0])], None], r"column 'm' holds 1 null\(s\)"),
        ([[("a", [1.0])], [("a", None)]], r"column 'm.a' holds 1 null\(s\)"),
        ([[("a", [1.0])], [("a", [1.0, 2.0])]], "column 'm.a' holds rows of different lengths: 1 and 2"),
    ],
)
def test_maps_that_make_no_dict_are_named(rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        to_arrays(pa.array(rows, MAPS), "m")


def test_keys_that_are_no_strings_are_refused() -> None:
    with raises("map-keys", match="'m'"):
        to_arrays(pa.array([[(1, 2)]], pa.map_(pa.int32(), pa.int32())), "m")


def test_null_struct_is_named_by_its_fields() -> None:
    with raises("null-values"):
        to_arrays(pa.array([{"a": 1}, None]), "s")
