"""Schema: the fields of an image dataset. Owns their names in `_orca_metadata` and their bytes in Parquet."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from orca.errors import DataError
from orca.storage.files import filesystem
from orca_classic.data.image.decoding import decode_image

if TYPE_CHECKING:
    pass

__all__ = [
    "DType", "FeatureType", "SchemaField", "chunks", "decode_image", "decode_ndarray", "decode_schema", "encode_schema",
    "ndarray_dtype_to_dtype",
]  # fmt: skip


class DType(Enum):
    """The type of a value, or of the numbers of an array."""

    STRING = "string"
    BYTES = "binary"
    BOOL = "bool"
    UINT8 = "uint8"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class FeatureType(Enum):
    """The form of a field: an image file's bytes, an array, or one value."""

    IMAGE = "image"
    NDARRAY = "ndarray"
    SCALAR = "scalar"


class SchemaField(NamedTuple):
    """A field of a dataset.

    Args:
        feature_type: How it is stored.
        dtype: Of the value, or of the array's numbers; images are BYTES.
        shape: Of an array; -1 for a size that differs from row to row. () for images and values.

    Example:
        >>> SchemaField(FeatureType.NDARRAY, DType.UINT8, (28, 28)).to_dict()
        {'feature_type': 'NDARRAY', 'dtype': 'UINT8', 'shape': [28, 28]}
    """

    feature_type: FeatureType
    dtype: DType
    shape: tuple[int, ...] = ()

    @property
    def fixed(self) -> bool:
        """Say whether it is an array whose shape is known: such are stored as their bytes alone."""
        return self.feature_type is FeatureType.NDARRAY and all(length >= 0 for length in self.shape)

    def to_dict(self) -> dict[str, Any]:
        """Return the field as JSON has it."""
        return {"feature_type": self.feature_type.name, "dtype": self.dtype.name, "shape": list(self.shape or ())}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> SchemaField:
        """Return the field that JSON has."""
        shape, dtype = tuple(d["shape"]), DType[d["dtype"]]
        known = [length for length in shape if length != -1]
        if not all(type(length) is int and length >= 0 for length in known) or prod(known) > _MOST_NUMBERS:
            raise ValueError(f"{shape!r:.80} is no shape of an array")
        return cls(FeatureType[d["feature_type"]], dtype, shape)


Schema = Mapping[str, SchemaField]
_MOST_NUMBERS = 1 << 33  # of an array in one row
_FLOATS = (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)


def ndarray_dtype_to_dtype(dtype: Any) -> DType:
    """Return the DType of numpy's type.

    Raises:
        DataError: There is none.

    Example:
        >>> ndarray_dtype_to_dtype(np.dtype("float32"))
        <DType.FLOAT32: 'float32'>
    """
    name = np.dtype(dtype).name
    try:
        return DType("string" if np.dtype(dtype).kind == "U" else name)
    except ValueError:
        raise DataError(f"arrays of {name} cannot be stored; use one of {[kind.value for kind in DType]}.") from None


def encode_schema(schema: Schema) -> str:
    """Return a schema as the text of `_orca_metadata`."""
    return json.dumps({name: field.to_dict() for name, field in schema.items()}, indent=1)


def decode_schema(j_str: str) -> dict[str, SchemaField]:
    """Return the schema in the text of `_orca_metadata`.

    Raises:
        DataError: It is none.
    """
    try:
        return {name: SchemaField.from_dict(field) for name, field in json.loads(j_str).items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        words = f"{type(error).__name__}: {str(error)[:200]}"
        raise DataError(f"{j_str[:100]!r} is no schema of a dataset: {words}. Write the dataset again.") from None


def chunks(iterable: Iterable[Any], size: int = 10) -> Iterator[Iterator[Any]]:
    """Yield an iterable in pieces of some elements; use up a piece before the next.

    Example:
        >>> [list(piece) for piece in chunks("abcde", 2)]
        [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(iterable)
    for first in iterator:
        yield itertools.chain([first], itertools.islice(iterator, size - 1))


# Rows to Parquet


def to_table(rows: list[Mapping[str, Any]], schema: Schema) -> pa.Table:
    """Return rows as a table for Parquet.

    Raises:
        DataError: A row lacks a field, or a value does not fit its field.
    """
    for row in rows:
        missing = [name for name in schema if name not in row]
        if missing:
            raise DataError(f"a row has no {missing[0]!r}, which the schema has; it has {list(row)}.")
    return pa.table({name: _column([row[name] for row in rows], name, field) for name, field in schema.items()})


def _column(values: list[Any], name: str, field: SchemaField) -> pa.Array:
    try:
        if field.feature_type is FeatureType.IMAGE:
            return pa.array([_image_bytes(value) for value in values], pa.binary())
        if field.feature_type is FeatureType.SCALAR:
            return pa.array(_scalars(values, field), _arrow_type(field))
        arrays = [_fitting(np.asarray(value), field) for value in values]
        if field.fixed:
            return pa.array([array.tobytes() for array in arrays], _arrow_type(field))
        return pa.array(map(_saved, arrays), pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError) as error:
        kind = f"{field.feature_type.name} of {field.dtype.name}"
        raise DataError(f"the field {name!r} is {kind} in the schema, and a row has another thing: {error}.") from error


def _arrow_type(field: SchemaField) -> pa.DataType:
    if field.fixed:
        return pa.binary(max(prod(field.shape) * np.dtype(field.dtype.value).itemsize, 1))
    return {DType.STRING: pa.string(), DType.BYTES: pa.binary(), DType.BOOL: pa.bool_()}.get(
        field.dtype
    ) or pa.from_numpy_dtype(np.dtype(field.dtype.value))


def _image_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str | os.PathLike):
        fs, place = filesystem(value)
        return fs.cat_file(place)
    raise TypeError(f"an image is a path or the bytes of a file, not {type(value).__name__}")


def _scalars(values: list[Any], field: SchemaField) -> Any:
    """Return the values of a field, numbers as an array; None is NaN where there is one."""
    if field.dtype in (DType.STRING, DType.BYTES):
        return values
    blank = np.nan if field.dtype in _FLOATS else None
    cells = [_fitting(np.asarray(blank if value is None else value), field) for value in values]
    return np.array(cells, field.dtype.value)


def _fitting(array: np.ndarray, field: SchemaField) -> np.ndarray:
    """Return an array in the type of a field.

    Raises:
        ValueError: It has another shape, holds other things than numbers, or numbers that the type does not hold.
    """
    fits = len(field.shape) == array.ndim and all(
        length in (-1, have) for length, have in zip(field.shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"shape {array.shape} where the schema has {tuple(field.shape)}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{array.dtype} where numbers belong")
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(field.dtype.value, copy=False)
    holds = np.array_equal(cast, array) if cast.dtype.kind in "biu" else np.array_equal(np.isinf(cast), np.isinf(array))
    if not holds:
        what = f"{array.item()!r}" if not array.ndim else f"numbers of {array.dtype}"
        raise ValueError(f"{what} that {cast.dtype} does not hold")
    return cast


def _saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


# Parquet to arrays


def to_columns(table: pa.Table | pa.RecordBatch, schema: Schema) -> dict[str, Any]:
    """Return a table as arrays by field; images, texts and arrays of different shapes as arrays of objects.

    Raises:
        DataError: The table does not hold the fields of the schema.
    """
    columns = {}
    for name, field in schema.items():
        try:
            columns[name] = _values(table.column(name), field)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"the rows do not hold the field {name!r} of their schema: {error}.") from error
    return columns


def _values(column: Any, field: SchemaField) -> np.ndarray:
    chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if field.fixed:
        kind = np.dtype(field.dtype.value)
        width = chunk.type.byte_width
        raw = np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * width : (chunk.offset + len(chunk)) * width]
        content = raw.reshape(len(chunk), width)[:, : prod(field.shape) * kind.itemsize]
        return np.ascontiguousarray(content).view(kind).reshape(len(chunk), *field.shape).copy()
    if field.feature_type is FeatureType.SCALAR and field.dtype not in (DType.STRING, DType.BYTES):
        return chunk.to_numpy(zero_copy_only=False)
    cells = chunk.to_pylist()
    values = map(decode_ndarray, cells) if field.feature_type is FeatureType.NDARRAY else cells
    return np.fromiter(values, object, len(cells))


def decode_ndarray(bs: bytes) -> np.ndarray:
    """Return the array in the bytes of an .npy file.

    Raises:
        DataError: They are none.
    """
    try:
        stream, npy = io.BytesIO(bs), np.lib.format
        header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(stream)
        if prod(shape) * dtype.itemsize > len(bs):  # before memory is taken for it
            raise ValueError(f"they are too few for the shape {shape}")
        array: np.ndarray = npy.read_array(io.BytesIO(bs), allow_pickle=False)
        return array
    except (ValueError, TypeError, OverflowError, SyntaxError, EOFError, OSError) as error:
        raise DataError(f"{len(bs)} bytes are no array: {error}. Write the dataset again.") from None
