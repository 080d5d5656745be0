"""Inference: the types that columns have in all spans together. Owns how the types of spans are merged.

pandas infers the type of a column from all its values. A few values stand for those of a span: from these of all spans,
in their order, pandas infers the type of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any

from orca.data.pandas.formats import Format
from orca.data.pandas.spans import FileRange

if TYPE_CHECKING:
    import pandas as pd

_LARGE = 1 << 63  # the least integer that is no int64


@dataclass(frozen=True)
class ColumnFinding:
    """What a span shows of the type of a column.

    Attributes:
        dtype: The type that it has in the span.
        samples: Values that stand for all of them; empty for types that are not inferred from values alone.
    """

    dtype: Any
    samples: tuple[Any, ...]


@dataclass(frozen=True)
class SpanFinding:
    """What pandas made of a span.

    Attributes:
        span: The span.
        rows: The number of rows; None if pandas refused the span.
        columns: The columns in their order.
    """

    span: FileRange
    rows: int | None = None
    columns: Mapping[Any, ColumnFinding] = field(default_factory=dict)


@dataclass(frozen=True)
class Schema:
    """The columns of all spans.

    Attributes:
        types: Types by column, in the order of the columns: dtypes of pandas, or str for texts as they are written.
    """

    types: Mapping[Any, Any]

    def empty(self) -> pd.DataFrame:
        """Return a frame with these columns and no row."""
        import pandas as pd

        return pd.DataFrame({label: pd.Series([], dtype=_dtype(kind)) for label, kind in self.types.items()})

    def applied(self, frame: Any) -> Any:
        """Return rows with the columns and types of the schema."""
        if not self.types:
            return frame
        if list(frame.columns) != list(self.types):
            frame = frame.reindex(columns=list(self.types))
        dtypes = {label: _dtype(kind) for label, kind in self.types.items()}
        casts = {label: dtype for label, dtype in dtypes.items() if frame[label].dtype != dtype}
        return frame.astype(casts) if casts else frame

    def fits(self, finding: SpanFinding) -> bool:
        """Return whether a span has these columns and types."""
        found = [(label, column.dtype) for label, column in finding.columns.items()]
        return found == [(label, _dtype(kind)) for label, kind in self.types.items()]


def _dtype(kind: Any) -> Any:
    import pandas as pd

    return pd.Series([], dtype=str).dtype if kind is str else kind


def find(span: FileRange, frame: Any, as_json: bool) -> SpanFinding:
    """Return what a span shows."""
    if not hasattr(frame, "columns"):
        return SpanFinding(span, len(frame))
    columns = {label: ColumnFinding(cells.dtype, _samples(cells, as_json)) for label, cells in frame.items()}
    return SpanFinding(span, len(frame), columns)


def _samples(cells: pd.Series[Any], as_json: bool) -> tuple[Any, ...]:
    """Return values from which pandas infers the same type as from all of a column."""
    import pandas as pd

    values = cells.dropna()
    null = () if len(values) == len(cells) else (None,)
    if not len(values):
        return (None,)
    kind = getattr(cells.dtype, "kind", "O")
    if kind == "b":
        return (True, *null)
    if kind in "iu":
        return (*_integers([int(values.min()), int(values.max())]), *null)
    if kind == "f":
        # Integers with missing values look like this. To pandas they differ from fractions beside integers of 2^63.
        numbers = values.to_numpy("float64")  # a column of Arrow has no modulo
        integers = bool(null) and bool((numbers.round() == numbers).all()) and bool((abs(numbers) < _LARGE).all())
        return (1, None) if integers else (0.5, *null)
    if isinstance(cells.dtype, pd.CategoricalDtype) or kind != "O":
        return ()
    kinds = list(dict.fromkeys(type(value) for value in values))
    if not set(kinds) <= {bool, int, float, str, list, dict}:
        return ()
    stand_ins: dict[type, Any] = {bool: True, float: 0.5, int: 1}
    if int in kinds:
        stand_ins[int] = max((value for value in values if type(value) is int), key=abs)
    if str in kinds:
        texts = values[[type(value) is str for value in values]]
        if kinds == [str] and not as_json:
            return _text_samples(texts)
        stand_ins[str] = "x" if pd.to_numeric(texts, errors="coerce").isna().any() else texts.iloc[0]
    return (*(stand_ins.get(kind, ("a list",)) for kind in kinds), *null)


def _text_samples(values: pd.Series[Any]) -> tuple[Any, ...]:
    """Return what stands for texts: they may be numbers, of which some are too large for pandas to have them in one."""
    import pandas as pd

    if pd.to_numeric(values.iloc[:100], errors="coerce").isna().any():
        return ("x",)
    if pd.to_numeric(values[values != ""], errors="coerce").isna().any():
        return ("x",)
    samples: dict[Any, None] = {}
    for text in values:
        is_integer = text.strip().lstrip("+-").isdigit()
        samples.update(dict.fromkeys(_integers([int(text)]) if is_integer else (0.5 if text.strip() else None,)))
    return tuple(samples)


def _integers(values: Iterable[int]) -> list[int]:
    """Return integers of the same ranges: pandas tells negative, int64, uint64 and larger ones apart.

    Among nullable types, 0 and 1 are also booleans.
    """
    edges = (-_LARGE, 0, 2, _LARGE, 2 * _LARGE)
    stand_ins = (-2 * _LARGE, -1, 1, 2, _LARGE, 2 * _LARGE)
    return [stand_ins[sum(value >= edge for edge in edges)] for value in values]


def merged(findings: Sequence[SpanFinding], form: Format) -> Schema:
    """Return the columns of all spans, in the order in which they come, and the types of their values in all spans."""
    full = [finding for finding in findings if finding.rows]
    if not full:
        return Schema({label: column.dtype for finding in findings for label, column in finding.columns.items()})
    labels = dict.fromkeys(label for finding in findings for label in finding.columns)
    return Schema({label: _merged_type(label, full, form) for label in labels})


def _merged_type(label: Any, findings: Sequence[SpanFinding], form: Format) -> Any:
    import pandas as pd

    absent = ColumnFinding(None, (None,))
    columns = [finding.columns.get(label, absent) for finding in findings]
    dtypes = list(dict.fromkeys(column.dtype for column in columns))
    samples = [column.samples for column in columns]
    is_inferred = form.infers(label) and all(samples)
    if len(dtypes) == 1 and dtypes[0] is not None and not (is_inferred and str(dtypes[0]) == "object"):
        return dtypes[0]
    if is_inferred:
        different = {(type(value), value): value for values in samples for value in values}  # True == 1
        return _inferred(list(different.values()), form)
    special = [column.dtype for column in columns if column.samples != (None,)]
    if all(isinstance(dtype, pd.CategoricalDtype) for dtype in special):
        categories = dict.fromkeys(value for dtype in special for value in dtype.categories)
        return pd.CategoricalDtype(sorted(categories))
    if form.is_date(label) and any(getattr(dtype, "kind", "O") != "M" for dtype in special):
        return str  # pandas converts all values of a column or none
    common = pd.concat([pd.Series([], dtype=dtype) for dtype in special])
    return common.reindex([0]).dtype if absent in columns else common.dtype


def _inferred(values: Sequence[Any], form: Format) -> Any:
    """Return the type that pandas infers from values."""
    if form.function == "read_json":
        text = "".join(json.dumps({"c": value}) + "\n" for value in values)
    else:
        text = "c,d\n" + "".join(f"{'' if value is None else value},0\n" for value in values)
    column = form.plain().parsed(BytesIO(text.encode()), {}).c
    is_text = all(isinstance(value, str) for value in column.dropna()) and not column.isna().all()
    return str if is_text and str(column.dtype) in ("object", "str") else column.dtype
