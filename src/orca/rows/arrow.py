"""Arrow: columns to numpy arrays, or dicts of them, and back, by stride. Owns which column types can feed a model.

No row is touched by Python and pandas is not involved: lists are flattened and reshaped, bytes are viewed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from orca.errors import DataError

_WIDENED = {"int8": np.int16, "uint8": np.int16, "uint16": np.int32, "uint32": np.int64}
_MAX_LIST_VALUES = np.iinfo(np.int32).max  # the offsets of an Arrow list are int32


def to_arrays(column: pa.Array | pa.ChunkedArray, name: str) -> Any:
    """Return a column as `to_numpy` does, or as a dict of such arrays: a struct by its fields, a map by its keys.

    The keys of a map are sorted: rows may have them in any order.

    Raises:
        DataError: As `to_numpy`; or the rows of a map have different keys, or none, or keys that are no strings.

    Example:
        >>> to_arrays(pa.array([{"a": 1, "b": [1.0, 2.0]}, {"a": 2, "b": [3.0, 4.0]}]), "label")
        {'a': array([1, 2]), 'b': array([[1., 2.],
               [3., 4.]])}
    """
    if kinds.is_map(column.type):
        return {key: to_arrays(values, f"{name}.{key}") for key, values in _entries(column, name).items()}
    if kinds.is_struct(column.type) and not _is_vector(column.type):
        fields = [field.name for field in column.type]
        return {key: to_arrays(pc.struct_field(column, [i]), f"{name}.{key}") for i, key in enumerate(fields)}
    return to_numpy(column, name)


def to_numpy(column: pa.Array | pa.ChunkedArray, name: str) -> np.ndarray:
    """Return a column as one array of its rows: (n,) for scalars, (n, k, ...) for lists, tensors and bytes.

    Args:
        column: Numbers, booleans, decimals, dates, timestamps, strings, bytes, tensors, or lists of these to any depth.
        name: The column's name in an error.

    Returns:
        A view of the column's memory where that is possible (one chunk of numbers or lists of numbers; not writable),
        otherwise a copy. Without rows, the lengths of lists are unknown and therefore 0.

    Example:
        >>> to_numpy(pa.array([[1.0, 2.0], [3.0, 4.0]]), "features")
        array([[1., 2.],
               [3., 4.]])
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    nulls = sum(map(_count_nulls, chunks))
    if nulls:
        raise missing(name, nulls)
    parts = [_dense(chunk, name) for chunk in chunks if len(chunk)]
    if not parts:
        return _dense(pa.array([], column.type) if not chunks else chunks[0], name)
    for part in parts[1:]:
        if part.shape[1:] != parts[0].shape[1:]:
            sizes = zip(parts[0].shape[1:], part.shape[1:], strict=True)
            raise _ragged(name, *next((one, other) for one, other in sizes if one != other))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def to_arrow(array: np.ndarray) -> pa.Array:
    """Return an array of n rows as an Arrow column of n rows; every further dimension becomes a list.

    Args:
        array: Numbers, booleans, dates or strings, of one or more dimensions. An object array holds str only.

    Returns:
        A column of the array's own number type, in lists for further dimensions. NaT becomes null.

    Example:
        >>> to_arrow(np.zeros((2, 3), np.float32)).type
        ListType(list<item: float>)
    """
    if array.ndim == 0:
        raise DataError(
            "an Arrow column needs rows; got an array of no dimensions. Pass array.reshape(1).",
            code="array-without-rows",
        )
    if array.ndim > 1 and array.size > _MAX_LIST_VALUES:
        raise DataError(
            f"an Arrow list column holds at most {_MAX_LIST_VALUES} values; got shape {array.shape}. Pass fewer rows.",
            code="array-too-large",
        )
    column = _flat_to_arrow(array.reshape(-1))
    for axis in range(array.ndim - 1, 0, -1):
        lists, length = prod(array.shape[:axis]), array.shape[axis]
        offsets = _from_memory(np.arange(lists + 1, dtype=np.int32) * np.int32(length), pa.int32())
        column = pa.ListArray.from_arrays(offsets, column)
    return column


def missing(name: str, nulls: int) -> DataError:
    """Return the error about nulls in a column."""
    return DataError(
        f"column {name!r} holds {nulls} null(s) in the rows that were read first; a model needs a value in every row. "
        "Fill them (fillna) or drop their rows (dropna); within arrays, use transform with coalesce.",
        code="null-values",
    )


def stretches(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Yield the rows of record batches, in their order, as lists of slices that hold whole multiples of `rows`.

    Only the last list may hold a part of a multiple. The rows of one record batch stay one slice, so that just
    the rows around the border of two batches are ever put together.

    Example:
        >>> batch = pa.RecordBatch.from_pydict({"a": [1, 2, 3, 4, 5]})
        >>> [[len(part) for part in stretch] for stretch in stretches([batch, batch], 2)]
        [[4], [1, 1], [4]]
    """
    rest: list[pa.RecordBatch] = []
    have = 0
    for batch in batches:
        start = 0
        if rest:
            start = min(rows - have, batch.num_rows)
            rest, have = [*rest, batch.slice(0, start)], have + start
            if have < rows:
                continue
            yield rest
        whole = (batch.num_rows - start) // rows * rows
        if whole:
            yield [batch.slice(start, whole)]
        have = batch.num_rows - start - whole
        rest = [batch.slice(start + whole)] if have else []
    if rest:
        yield rest


def cut_batches(batches: Iterable[pa.RecordBatch], start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows from start to stop; batches behind them are not read."""
    at = 0
    for batch in batches:
        first, last = max(start - at, 0), min(stop - at, batch.num_rows)
        if first < last:
            yield batch.slice(first, last - first)
        at += batch.num_rows
        if at >= stop:
            return


def widened(array: np.ndarray, floating: str = "float32") -> np.ndarray:
    """Return an array in a number type that every table has: half precision as `floating`, small integers larger."""
    if array.dtype.name in ("float16", "bfloat16"):
        return array.astype(floating)
    return array.astype(_WIDENED.get(array.dtype.name, array.dtype), copy=False)


def _entries(column: pa.Array | pa.ChunkedArray, name: str) -> dict[str, pa.Array]:
    """Return the values of a map column by their keys, which are the same in all rows."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if whole.null_count:
        raise missing(name, whole.null_count)
    if not (kinds.is_string(whole.type.key_type) or kinds.is_large_string(whole.type.key_type)):
        raise DataError(
            f"column {name!r} is a map with keys of type {whole.type.key_type}. Cast its keys to strings.",
            code="map-keys",
        )
    edges = _offsets(whole)
    codes = whole.keys.slice(int(edges[0]), int(edges[-1] - edges[0])).dictionary_encode()
    words = codes.dictionary.to_pylist()
    numbers = np.argsort(np.argsort(words))[codes.indices.to_numpy()]  # of each key among the sorted ones
    if len(whole) and not words:
        raise DataError(
            f"column {name!r} is a map without a key in any row. Give every row the same keys.", code="map-keys"
        )
    table = numbers.reshape(len(whole), len(words)) if (np.diff(edges) == len(words)).all() else numbers[:0, None]
    order = np.argsort(table, axis=1)
    if len(table) < len(whole) or (np.take_along_axis(table, order, 1) != np.arange(len(words))).any():
        raise _differing_keys(name, whole)
    places = edges[:-1, None] + order
    return {key: whole.items.take(_from_memory(places[:, i], pa.int64())) for i, key in enumerate(sorted(words))}


def _differing_keys(name: str, maps: pa.MapArray) -> DataError:
    rows = (sorted(key for key, _ in row) for row in maps.to_pylist())
    first = next(rows)
    number, keys = next(((number, keys) for number, keys in enumerate(rows, 1) if keys != first), (0, first))
    return DataError(
        f"column {name!r} is a map whose rows have different keys: row 0 of a block has {first}, row {number} has "
        f"{keys}. Every row needs the same ones: add those that are missing, or select some with getItem.",
        code="map-keys",
    )


def _count_nulls(array: pa.Array) -> int:
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    inner = _count_nulls(array.flatten()) if _is_list(array.type) else 0
    return int(array.null_count) + inner


def _dense(array: pa.Array, name: str) -> np.ndarray:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _shaped(_dense(array.storage, name), kind)
    if _is_list(kind):
        values: np.ndarray = _dense(array.flatten(), name)
        return values.reshape(len(array), _list_length(array, name), *values.shape[1:])
    if _is_vector(kind):
        return _vectors(array, name)
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        return _bytes(array, name)
    if kinds.is_decimal(kind):
        array = array.cast(pa.float64())
    if _is_plain(array.type):
        values = array.to_numpy(zero_copy_only=False)
        return values
    raise DataError(
        f"column {name!r} is of type {kind}, which no model can be fed with. "
        "Select its fields as columns of their own, or turn it into numbers or arrays of numbers.",
        code="bad-column-type",
    )


def _is_vector(kind: pa.DataType) -> bool:
    """Say whether this is the struct of Spark's ML vectors, dense and sparse."""
    return kinds.is_struct(kind) and [field.name for field in kind] == ["type", "size", "indices", "values"]


def _vectors(array: pa.StructArray, name: str) -> np.ndarray:
    """Return vectors as rows; values that a sparse one does not name are zero."""
    sparse = np.flatnonzero(array.field("type").to_numpy(zero_copy_only=False) == 0)
    if not len(sparse):
        return _dense(array.field("values"), name)
    dense = np.setdiff1d(np.arange(len(array)), sparse)
    thin, full = (array.take(_from_memory(places, pa.int64())) for places in (sparse, dense))
    whole = _dense(full.field("values"), name)
    sizes = thin.field("size").to_numpy(zero_copy_only=False)
    widths = [*sizes.tolist(), *([whole.shape[1]] if len(dense) else [])]
    for width in widths:
        if width != widths[0]:
            raise _ragged(name, widths[0], width)
    rows = np.zeros((len(array), widths[0]))
    rows[dense] = whole if len(dense) else 0
    counts = np.diff(_offsets(thin.field("indices")))
    rows[np.repeat(sparse, counts), thin.field("indices").flatten()] = thin.field("values").flatten()
    return rows


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _is_plain(kind: pa.DataType) -> bool:
    numeric = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)
    is_date = kinds.is_timestamp(kind) or kinds.is_date(kind)
    return bool(numeric or is_date or kinds.is_string(kind) or kinds.is_large_string(kind))


def _shaped(rows: np.ndarray, kind: pa.BaseExtensionType) -> np.ndarray:
    # Arrow's fixed_shape_tensor and the tensors of Ray both carry the shape of a row in their type.
    shape = getattr(kind, "shape", None)
    if shape is None:
        return rows
    rows = rows.reshape(len(rows), *shape)
    permutation = getattr(kind, "permutation", None)
    return rows if permutation is None else rows.transpose(0, *(axis + 1 for axis in permutation))


def _list_length(array: pa.Array, name: str) -> int:
    if kinds.is_fixed_size_list(array.type):
        return int(array.type.list_size)
    return _equal_length(array, name) if len(array) else 0


def _equal_length(array: pa.Array, name: str) -> int:
    lengths = np.diff(_offsets(array))
    others = lengths[lengths != lengths[0]]
    if len(others):
        raise _ragged(name, int(lengths[0]), int(others[0]))
    return int(lengths[0])


def _offsets(array: pa.Array) -> np.ndarray:
    large = kinds.is_large_list(array.type) or kinds.is_large_binary(array.type)
    offsets = np.frombuffer(array.buffers()[1], np.int64 if large else np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def _bytes(array: pa.Array, name: str) -> np.ndarray:
    rows, buffers = len(array), array.buffers()
    if kinds.is_fixed_size_binary(array.type):
        width, start, data = array.type.byte_width, array.offset * array.type.byte_width, buffers[1]
    elif rows:
        width, start, data = _equal_length(array, name), int(_offsets(array)[0]), buffers[2]
    else:
        width, start, data = 0, 0, None
    if rows * width == 0:
        return np.empty((rows, width), np.uint8)
    return np.frombuffer(data, np.uint8, rows * width, start).reshape(rows, width)


def _ragged(name: str, one: int, other: int) -> DataError:
    return DataError(
        f"column {name!r} holds rows of different lengths: {one} and {other}; a batch needs one length. "
        "Pad or cut them to the same length first.",
        code="ragged-rows",
    )


def _flat_to_arrow(values: np.ndarray) -> pa.Array:
    kind = _value_type(values.dtype)
    if values.dtype.kind == "b":
        return _from_memory(np.packbits(values, bitorder="little"), kind, len(values))
    if values.dtype.kind in "iuf":
        return _from_memory(values.astype(values.dtype.newbyteorder("="), copy=False), kind)
    if values.dtype.kind != "O":
        return pa.array(values, kind)
    try:
        # Inferred, not forced to string: Arrow would take bytes for UTF-8.
        column = pa.array(values.tolist())
    except pa.ArrowException as error:
        raise DataError(
            f"an object array must hold str only; {error}. Convert it to numbers or strings.", code="mixed-objects"
        ) from error
    if len(column) and column.type != kind:
        raise DataError(
            f"an object array must hold str only; got {column.type}. Convert it to numbers or strings.",
            code="mixed-objects",
        )
    return column.cast(kind)


def _from_memory(values: np.ndarray, kind: pa.DataType, rows: int | None = None) -> pa.Array:
    # Not by pa.array: given an array, it imports pandas, which takes time and memory in every worker.
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values) if rows is None else rows, [None, buffer])


def _value_type(dtype: np.dtype) -> pa.DataType:
    if dtype.kind == "O":
        return pa.string()
    try:
        return pa.from_numpy_dtype(dtype.newbyteorder("="))
    except (pa.ArrowException, NotImplementedError) as error:
        raise DataError(
            f"Arrow has no type for arrays of {dtype}. Convert them, e.g. with astype('float32').",
            code="column-without-arrow-type",
        ) from error
