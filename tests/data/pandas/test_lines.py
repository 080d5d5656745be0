"""CSV read by Arrow, held against what Spark's parser makes of the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from orca.data.pandas import lines, read_csv, table
from orca.data.pandas.paths import DataFile
from orca.errors import DataError

pd = pytest.importorskip("pandas")

# What Arrow reads itself.
PLAIN = {
    "integers": "a,b\n1,-2\n007,\n9223372036854775807,-0\n",
    "numbers": "a,b\n1,1.5\n2.25,-3\n,1e-05\n.5,1.25e300\n3.0,1.0e10\n",
    "not numbers": "a,b\n1.5,x\nNaN,y\n",
    "times": "a,b\n2020-01-02,2020-01-02 03:04:05\n,2021-12-31T23:59:59.123456\n1999-12-31,2020-02-29 00:00:00.5\n",
    "truths": "a,b\ntrue,TRUE\nFalse,\nfalse,True\n",
    "words": 'a,b\nx,"y, ""z"""\n"",ü\n,"12"\nnan,T12:00\n1,2020-01-01\n',
    "nothing": "a,b\n,\n,\n",
    "windows": 'a,b\r\n1,"x"\r\n\r\n2,y\r\n',
    "no last line end": "a,b\n1,x\n2,y",
    "one column": 'a\nx\n\n""\ny\n',
    "byte order mark": "\ufeffa,b\n1,2\n",
    "quoted header": '"a b","c,d"\n1,2\n',
    "blanks around numbers": "a,b\n 1.5,x\n3, y\n",
    "numbers in quotes": 'a,b\n"1","2.5"\n"3",4\n',
}
# What it leaves to Spark.
RARE = {
    "truths and numbers": "a,b\ntrue,1\n3,true\n",
    "large integers": "a,b\n99999999999999999999,1\n5,2\n",
    "exponents": "a,b\n1e5,1\n1.5e10,2\n",
    "hexadecimal": "a,b\n0x1F,1\n2,3\n",
    "signs": "a,b\n+5,1\n6,2\n",
    "infinite": "a,b\n1.5,Inf\n2.5,-Inf\n",
    "nan in small letters": "a,b\n1.5,1\nnan,2\n",
    "dashes": "a,b\n12-34,1\n030-22,2\n",
    "wrong dates": "a,b\n2020-13-01,1\n2020-01-01,2\n",
    "times and numbers": "a,b\n2020-01-01,1\n2020,2\n",
    "quotes in words": 'a,b\n5" pipe,1\n"6"" pipe",2\n',
    "few fields": "a,b\n1\n2,3\n",
    "a line of blanks": "a,b\n1,2\n   \n3,4\n",
    "old times": "a,b\n1850-01-01,1\n",
    "truths in odd letters": "a,b\ntRue,1\n",
}


@pytest.fixture
def by_spark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a reader that lets Spark's parser read."""

    def refuse(*args: Any) -> Any:
        raise DataError("not by Arrow")

    def read(path: str, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(table, "read_form", refuse)
            return whole(read_csv(path, **options))

    return read


@pytest.fixture
def roads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that names each way in which files were tried, in turn."""
    taken: list[str] = []
    for name in ("guess", "study"):
        function = getattr(table, name)

        def told(*args: Any, name: str = name, function: Any = function) -> Any:
            taken.append(name)
            return function(*args)

        monkeypatch.setattr(table, name, told)
    frame_shards = table.frame_shards

    def spark(*args: Any) -> Any:
        taken.append("spark")
        return frame_shards(*args)

    monkeypatch.setattr(table, "frame_shards", spark)
    return taken


def whole(shards: Any) -> Any:
    return pd.concat(shards.collect(), ignore_index=True)


def same(one: Any, other: Any) -> None:
    pd.testing.assert_frame_equal(one, other)  # types included


@pytest.mark.parametrize("name", PLAIN)
def test_plain_files_are_read_by_arrow_as_spark_reads_them(
    spark: Any, tmp_path: Path, by_spark: Any, roads: list[str], name: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(PLAIN[name], newline="")
    frame = whole(read_csv(str(path)))
    assert roads in (["guess"], ["guess", "study"])
    same(frame, by_spark(str(path)))


@pytest.mark.parametrize("name", RARE)
def test_rare_cells_are_left_to_spark(spark: Any, tmp_path: Path, by_spark: Any, roads: list[str], name: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(RARE[name])
    frame = whole(read_csv(str(path)))
    assert roads[-1] == "spark"
    same(frame, by_spark(str(path)))


def test_integers_with_blanks_around_them_are_those_of_pandas(spark: Any, tmp_path: Path, roads: list[str]) -> None:
    (tmp_path / "a.csv").write_text("a,b\n 1,2 \n3,4\n")
    frame = whole(read_csv(str(tmp_path)))  # to Spark they are numbers of floating point
    assert frame.to_dict("list") == {"a": [1, 3], "b": [2, 4]} and frame.a.dtype.kind == "i" and roads == ["guess"]


def test_columns_of_equal_or_no_name_are_named_alike_by_both_parsers(spark: Any, tmp_path: Path, by_spark: Any) -> None:
    (tmp_path / "a.csv").write_text(",a,b,a\n0,1,2,3\n")
    frame = whole(read_csv(str(tmp_path / "a.csv")))
    assert list(frame.columns) == ["Unnamed: 0", "a", "b", "a.1"]
    same(frame, by_spark(str(tmp_path / "a.csv")))


def test_a_header_after_a_blank_line_is_no_row(spark: Any, tmp_path: Path, by_spark: Any) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("\na,b\n3,4\n")
    frame = whole(read_csv(str(tmp_path), names=["x", "y"], header=0))
    same(frame, by_spark(str(tmp_path), names=["x", "y"], header=0))
    assert frame.sort_values("x").to_dict("list") == {"x": [1, 3], "y": [2, 4]}


def test_files_that_change_before_shards_are_computed_anew_lose_no_rows_in_silence(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n3,4\n")
    shards = read_csv(str(path))
    shards.transform_shard(len)  # lets go of what was read
    path.write_text("a,b\n1,2\nx,4\n")
    with pytest.raises(Exception, match=r"a\.csv has changed while it was read"):
        shards.collect()


def test_a_byte_order_mark_is_taken_away_at_the_begin_of_a_file_only(tmp_path: Path) -> None:
    mark = "\ufeff"
    (tmp_path / "a.csv").write_text(f"{mark}a,b\nx,1\n{mark}y,2\n")
    form, files = lines.read_form([str(tmp_path / "a.csv")], ",", '"', None, True, True, None)
    assert form.header == ("a", "b")
    text = dict.fromkeys(range(2), pa.string())
    whole = [row for batch in form.rows(lines.LineRange(files[0].path, 0, files[0].size), text) for row in batch[0]]
    assert [cell.as_py() for cell in whole] == ["x", f"{mark}y"]
    with pytest.raises(DataError, match="a line begins with a byte order mark"):
        list(form.rows(lines.LineRange(files[0].path, 9, files[0].size), text))


def test_tasks_of_a_large_file_are_of_one_size_and_fill_all_cores() -> None:
    groups = lines.line_ranges([DataFile("a", 100)], tasks=2, largest=40, opening=0)
    assert [(span.start, span.stop) for (span,) in groups] == [(0, 25), (25, 50), (50, 75), (75, 100)]
