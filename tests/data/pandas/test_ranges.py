"""Ranges of a few bytes, held against pandas' reading of the whole file. No engine: every span is read here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orca.data.pandas import formats
from orca.data.pandas.formats import Format
from orca.data.pandas.inference import merged
from orca.data.pandas.partitions import partition_frame
from orca.data.pandas.paths import DataFile, files_at
from orca.data.pandas.spans import cut
from orca.data.pandas.tables import Finish, TableTask
from orca.errors import DataError

pd = pytest.importorskip("pandas")

SOME = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBERS = st.integers(-5, 5).map(str)
ODD = st.sampled_from(
    ["", "NA", "nan", "inf", "1.5", "1e5", "true", "False", "10d", "007", " 3", "x y", "é", "日本", '"a,b"', '"q""q"']
    + ['"two\nlines"', '"c\r\nd"', '5" pipe', str(2**63 - 1), "0x1F"]
)
KINDS = [
    NUMBERS, st.sampled_from(["1", "2", ""]), st.sampled_from(["1.5", "2", "NA"]), st.sampled_from(["true", "false"]),
    st.sampled_from(["True", "", "False"]), st.sampled_from(["a", "b", "", "ü"]), ODD,
]  # fmt: skip
OPTIONS = [
    {}, {"header": None}, {"on_bad_lines": "skip"}, {"dtype": str}, {"skip_blank_lines": False}, {"index_col": 0},
    {"dtype_backend": "numpy_nullable"}, {"keep_default_na": False}, {"skipinitialspace": True}, {"usecols": [0]},
]  # fmt: skip


def read(form: Format, files: list[DataFile], size: int) -> tuple[Any, int]:
    """Return the rows of files, read in ranges of some bytes, and the number of ranges."""
    reading = TableTask(form, Finish({}), None)
    uncut: set[str] = set()

    def is_cuttable(file: DataFile) -> bool:
        return file.path not in uncut and form.is_cuttable(file)

    while True:
        groups = cut(files, is_cuttable, 1, size, 0)
        results = [reading.read(span) for group in groups for span in group]
        findings = [finding for finding, _ in results]
        refused = {finding.span.file.path for finding in findings if finding.rows is None}
        schema = merged(findings, form) if not refused else None
        if schema and all(schema.fits(finding) for finding in findings):
            frames = [frame for _, frame in results if len(frame)] or [results[0][1]]
            return pd.concat(frames, ignore_index=form.has_fresh_index(frames)), len(results)
        assert refused - uncut or (schema and schema != reading.schema), "it would go on forever"
        uncut.update(refused)
        reading = replace(reading, schema=schema or reading.schema)


@st.composite
def tables(draw: st.DrawFn) -> str:
    width, length = draw(st.integers(1, 3)), draw(st.integers(0, 15))
    columns = [draw(st.lists(draw(st.sampled_from(KINDS)), min_size=length, max_size=length)) for _ in range(width)]
    if length and draw(st.booleans()):
        draw(st.sampled_from(columns))[draw(st.integers(0, length - 1))] = draw(ODD)
    rows = [",".join(cells) for cells in zip(*columns, strict=True)]
    if draw(st.integers(0, 9)) == 0:
        rows.insert(draw(st.integers(0, length)), "1," * width + "2")
    if draw(st.integers(0, 4)) == 0:
        rows.insert(draw(st.integers(0, length)), "")
    names = st.sampled_from(["a", "b", "c", "a.1", ""])
    header = ",".join(draw(st.lists(names, min_size=width, max_size=width)))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return end.join([header, *rows]) + (end if draw(st.booleans()) else "")


@SOME
@given(tables(), st.integers(20, 80), st.sampled_from(OPTIONS))
def test_csv_in_ranges_is_that_of_pandas(tmp_path: Path, text: str, size: int, options: dict[str, Any]) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    form = Format("read_csv", options)
    try:
        expected = pd.read_csv(path, low_memory=False, **options)
    except ValueError:
        with pytest.raises(DataError):
            read(form, files_at([str(path)]), size)
        return
    frame, _ = read(form, files_at([str(path)]), size)
    pd.testing.assert_frame_equal(frame, expected, check_index_type=False)
    assert frame.map(type).equals(expected.map(type))


VALUES = [
    st.integers(-5, 5), st.sampled_from([1.0, 2.0, 0.5]), st.booleans(), st.sampled_from(["1", "2"]),
    st.sampled_from(["x", "1", "ü"]), st.sampled_from([None, 1]), st.sampled_from([[1], {"b": 2}, None]),
]  # fmt: skip


@SOME
@given(st.data(), st.integers(20, 80))
def test_json_lines_in_ranges_are_those_of_pandas(tmp_path: Path, data: st.DataObject, size: int) -> None:
    length = data.draw(st.integers(1, 15))
    rows: list[dict[str, Any]] = [{} for _ in range(length)]
    for name in data.draw(st.lists(st.sampled_from(["a", "b", "c", "d_at"]), min_size=1, unique=True)):
        values = data.draw(st.sampled_from(VALUES))
        for row in rows[data.draw(st.integers(0, length - 1)) :] if data.draw(st.booleans()) else rows:
            row[name] = data.draw(values)
    path = tmp_path / "a.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = pd.read_json(path, lines=True)
    frame, _ = read(Format("read_json", {"lines": True}), files_at([str(path)]), size)
    # In a column of several kinds, a missing value may be None in one of them and NaN in the other.
    frame, expected = (
        one.where(one.notna(), None) if "object" in set(map(str, one.dtypes)) else one for one in (frame, expected)
    )
    pd.testing.assert_frame_equal(frame, expected, check_index_type=False, check_column_type=False)


@pytest.mark.parametrize(
    "cells",
    [
        [1, 2**63], [-1, 2**63], [2**63, -1], [2**63, 1.5], [1.5, 2**63], [2**70, 1], [2**70, 1.5], [1.5, 2**70],
        [-(2**70), 1], [2**63, "x"], ["true", ""], ["true", 1], ["", ""], [1, ""], [1.5, True],
    ],
)  # fmt: skip
def test_large_integers_and_truths_have_the_type_that_pandas_infers(tmp_path: Path, cells: list[Any]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "".join(f"{cell},0\n" for cell in cells))
    expected = pd.read_csv(path)
    frame, ranges = read(Format("read_csv", {}), files_at([str(path)]), 1)
    assert ranges > 2
    pd.testing.assert_frame_equal(frame, expected)


def test_types_of_files_are_those_of_their_rows_together(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,t,k\n1,1,1\n")
    (tmp_path / "b.csv").write_text("t,n\n007,0.5\nx,\n")
    frame, _ = read(Format("read_csv", {}), files_at([str(tmp_path)]), 100)
    assert frame.to_dict("list")["t"] == ["1", "007", "x"] and frame.n.tolist()[:2] == [1.0, 0.5]
    assert frame.k.dtype == float and list(frame.columns) == ["n", "t", "k"]


@pytest.mark.parametrize("options", [{}, {"dtype_backend": "pyarrow"}, {"dtype_backend": "numpy_nullable"}])
def test_columns_of_arrow_and_of_nullable_types_are_those_of_pandas(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("i,f,t,b\n" + "".join(f"{n},{n / 2},t{n},True\n" for n in range(40)) + ",,,\n")
    rows, ranges = read(Format("read_csv", options), files_at([str(path)]), 60)
    assert ranges > 4
    pd.testing.assert_frame_equal(rows, pd.read_csv(path, **options))


@pytest.mark.parametrize("text", ["n,t\r1,a\r2,b\r3,c\r", "n,t\n1,a\r2,b\n3,c\n", "n,t\n" + "\n" * 9 + "1,a\r2,b\r"])
def test_rows_that_end_with_carriage_returns_are_read_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    form, files = Format("read_csv", {}), files_at([str(path)])
    form.probe(files[0])
    pd.testing.assert_frame_equal(read(form, files, 4)[0], pd.read_csv(path))


def test_first_row_of_any_length_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_HEAD_BYTES", 16)
    path = tmp_path / "a.csv"
    path.write_text("n,t\n1,the first row\n2,b\n3,c\n")
    form, files = Format("read_csv", {}), files_at([str(path)])
    form.probe(files[0])
    pd.testing.assert_frame_equal(read(form, files, 8)[0], pd.read_csv(path))


@pytest.mark.parametrize(
    ("options", "is_cut"),
    [
        ({}, True), ({"sep": ";", "quotechar": "'"}, True), ({"encoding": "latin-1"}, True), ({"sep": "::"}, False),
        ({"encoding": "utf-16"}, False), ({"comment": "#"}, False), ({"nrows": 3}, False), ({"skipfooter": 1}, False),
        ({"compression": "gzip"}, False), ({"converters": {"a": int}}, False), ({"escapechar": "|"}, False),
    ],
)  # fmt: skip
def test_only_keywords_that_mean_the_same_in_every_range_let_a_file_be_cut(options: Any, is_cut: bool) -> None:
    assert Format("read_csv", options).is_cuttable(DataFile("a.csv", 100)) == is_cut
    assert not Format("read_csv", options).is_cuttable(DataFile("a.csv.gz", 100))


def test_tasks_of_a_large_file_are_of_one_size_and_fill_all_cores() -> None:
    groups = cut([DataFile("a", 100)], lambda file: True, tasks=2, most=40, opening=0)
    assert [(span.start, span.length) for (span,) in groups] == [(0, 25), (25, 25), (50, 25), (75, 25)]


@pytest.mark.parametrize(
    ("texts", "dtype", "values"),
    [
        (["1", "-2"], "int32", [1, -2]), (["1", "3000000000"], "int64", [1, 3000000000]),
        (["007", "8"], "int32", [7, 8]),
        (["1", "1.5"], "float64", [1.0, 1.5]), (["1", "__HIVE_DEFAULT_PARTITION__"], "float64", [1.0, None]),
        (["true", "a%2Fb"], "str", ["true", "a/b"]), (["2020-01-01", "x"], "str", ["2020-01-01", "x"]),
        (["10d", "20f"], "str", ["10d", "20f"]), (["2020-13-01", "2020-01-01"], "str", ["2020-13-01", "2020-01-01"]),
        (["2020-01-01 10%3A00%3A00", "2020-01-01"], "datetime64[us]", ["2020-01-01 10:00:00", "2020-01-01"]),
    ],
)  # fmt: skip
def test_values_of_partitions_have_the_types_of_spark(texts: list[str], dtype: str, values: list[Any]) -> None:
    files = [DataFile(text, 1, (("k", text),)) for text in texts]
    expected = pd.Series(values, dtype=dtype, name="k")
    pd.testing.assert_series_equal(partition_frame(files).k, expected)


def test_partition_columns_have_the_types_of_dtype() -> None:
    files = [DataFile(f"a/k={text}/f.csv", 1, (("k", text),)) for text in ("01", "2")]
    assert partition_frame(files, {"k": str}).k.tolist() == ["01", "2"]
    assert partition_frame(files, {"k": "float32", "other": "int8"}).k.dtype == "float32"
    with pytest.raises(DataError, match="the values of the partition column 'k' do not fit dtype 'datetime64"):
        partition_frame(files, {"k": "datetime64[ns]"})


def test_files_with_other_partition_columns_are_refused() -> None:
    files = [DataFile("k=1/a", 1, (("k", "1"),)), DataFile("a", 1)]
    with pytest.raises(DataError, match=r"k=1/a has the partition columns \['k'\], a has \[\]"):
        partition_frame(files)
