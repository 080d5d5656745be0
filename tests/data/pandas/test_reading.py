from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca import OrcaContext
from orca.data.pandas import read_csv, read_json, read_parquet
from orca.errors import ArgumentError, DataError

pd = pytest.importorskip("pandas")

SALES = 'id,name,price\n1,bolt,0.5\n2,nut,\n3,"a ""big"" nut, steel",1.5\n'
MORE = "id,name,price\n4,,2.5\n"


@pytest.fixture
def by_pandas() -> Iterator[None]:
    OrcaContext.pandas_read_backend = "pandas"
    yield
    OrcaContext.pandas_read_backend = "spark"


@pytest.fixture(params=["spark", "pandas"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    OrcaContext.pandas_read_backend = request.param
    yield request.param
    OrcaContext.pandas_read_backend = "spark"


@pytest.fixture
def shard_size() -> Iterator[int]:
    OrcaContext._shard_size = 4
    yield 4
    OrcaContext._shard_size = None


def written(folder: Path, **texts: str | bytes) -> Path:
    """Write files named after their keys, `a_csv` as a.csv."""
    for name, text in texts.items():
        place = folder / name.replace("_", ".", 1)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def whole(shards: Any) -> Any:
    return pd.concat(shards.collect(), ignore_index=True)


def same(shards: Any, expected: Any) -> None:
    frame = whole(shards).sort_values(expected.columns[0], ignore_index=True)
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False)


# Paths


@pytest.mark.parametrize("form", ["folder", "list", "url"])
def test_all_files_of_every_form_of_path_are_read(spark: Any, backend: str, tmp_path: Path, form: str) -> None:
    written(tmp_path, a_csv=SALES, b_csv=MORE, _hidden="nothing")
    paths = {
        "folder": str(tmp_path),
        "list": [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")],
        "url": f"file://{tmp_path}/*.csv",
    }
    expected = pd.DataFrame(
        {"id": [1, 2, 3, 4], "name": ["bolt", "nut", 'a "big" nut, steel', None], "price": [0.5, None, 1.5, 2.5]}
    )
    same(read_csv(paths[form]), expected)


def test_files_of_another_file_system_are_read_on_the_workers(by_pandas: None, spark: Any, tmp_path: Path) -> None:
    written(tmp_path, a_csv=SALES)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(MORE.encode()))
    link = f"simplecache::file://{tmp_path}"
    assert len(whole(read_csv([f"{link}/a.csv", f"{link}/b.csv.gz"]))) == 4


def test_what_is_not_there_is_said_at_once(spark: Any, backend: str, tmp_path: Path) -> None:
    words = {"spark": "Path does not exist", "pandas": "No such file or directory"}
    for read in (read_csv, read_json):
        with pytest.raises(DataError, match=words[backend]):
            read(str(tmp_path / "nothing.txt"))


def test_a_file_system_that_spark_does_not_have_is_named(spark: Any) -> None:
    with pytest.raises(DataError, match="Spark cannot open memory://box/a.csv: .*No FileSystem.*pandas_read"):
        read_csv("memory://box/a.csv")


def test_files_without_content_are_passed_over(spark: Any, backend: str, tmp_path: Path) -> None:
    written(tmp_path, a_csv="", b_csv=MORE, c_csv="")
    assert whole(read_csv(str(tmp_path))).id.tolist() == [4]
    with pytest.raises(DataError, match="No columns to parse from file"):
        read_csv(str(tmp_path / "a.csv"))


def test_a_file_of_a_header_alone_gives_its_columns(spark: Any, backend: str, tmp_path: Path) -> None:
    written(tmp_path, a_csv="id,name\n")
    frame = whole(read_csv(str(tmp_path)))
    assert list(frame.columns) == ["id", "name"] and len(frame) == 0


# Tasks and shards


@pytest.mark.slow
def test_a_thousand_small_files_are_read_in_few_tasks(spark: Any, backend: str, tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number:03}.csv").write_text(f"n\n{number}\n")
    shards = read_csv(str(tmp_path))
    assert shards.num_partitions() <= (3 if backend == "pandas" else 40)
    assert sorted(whole(shards).n) == list(range(1000))


@pytest.mark.slow
def test_a_large_file_is_split(spark: Any, tmp_path: Path) -> None:
    rows = 900_000
    path = tmp_path / "large.csv"
    pd.DataFrame({"n": np.arange(rows), "text": "twelve chars"}).to_csv(path, index=False)
    shards = read_csv(str(path))
    parts = shards.collect()
    assert len(parts) == shards.num_partitions() >= 3 and max(map(len, parts)) < rows / 2
    assert np.array_equal(np.sort(np.concatenate([part.n for part in parts])), np.arange(rows))


def test_shards_have_the_rows_that_are_asked_for(spark: Any, backend: str, shard_size: int, tmp_path: Path) -> None:
    written(tmp_path, a_csv="n\n" + "\n".join(map(str, range(10))))
    parts = read_csv(str(tmp_path)).collect()
    assert [len(part) for part in parts] == [4, 4, 2]
    assert [part.n.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all(part.index[0] == 0 for part in parts)


def test_shards_go_over_the_borders_of_small_files(
    by_pandas: None, spark: Any, shard_size: int, tmp_path: Path
) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.csv").write_text(f"n\n{2 * number:02}\n{2 * number + 1:02}\n")
    shards = read_csv(str(tmp_path))
    assert shards.num_partitions() == 3 and {len(part) for part in shards.collect()} == {4}
    assert whole(shards).n.tolist() == list(range(60))


def test_a_shard_may_be_written_to(spark: Any, backend: str, tmp_path: Path) -> None:
    OrcaContext._eager_mode = False
    try:
        shards = read_csv(str(written(tmp_path, a_csv="n\n1\n2\n")))

        def negate(frame: Any) -> Any:
            frame.loc[0, "n"] = -1
            frame["n"].to_numpy(copy=True)[1] = 0
            return frame

        assert shards.transform_shard(negate).collect()[0].n.tolist() == [-1, 2]
    finally:
        OrcaContext._eager_mode = True


# Columns


def test_columns_are_named_chosen_and_typed(spark: Any, backend: str, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_csv="007;x;1.5\n008;y;2.5\n"))
    frame = whole(
        read_csv(path, header=None, sep=";", names=["code", "kind", "n"], dtype={"code": str, "n": "float32"})
    )
    assert frame.code.tolist() == ["007", "008"] and frame.n.dtype == np.float32
    assert whole(read_csv(path, header=None, delimiter=";")).columns.tolist() == [0, 1, 2]
    assert whole(read_csv(path, header=None, sep=";", usecols=[2, 0])).columns.tolist() == [0, 2]
    named = whole(read_csv(path, header=None, sep=";", names=["code", "n"], usecols=[0, 2]))
    assert named.code.tolist() == [7, 8] and named.n.tolist() == [1.5, 2.5]
    chosen = whole(read_csv(path, names=list("abc"), sep=";", usecols=lambda name: name != "b", dtype=str))
    assert chosen.to_dict("list") == {"a": ["007", "008"], "c": ["1.5", "2.5"]}


def test_an_index_and_a_series_are_made(spark: Any, backend: str, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_csv=SALES))
    (frame,) = read_csv(path, index_col="id").collect()
    assert frame.index.tolist() == [1, 2, 3] and list(frame.columns) == ["name", "price"]
    (series,) = read_csv(path, usecols=["price"], squeeze=True).collect()
    assert isinstance(series, pd.Series) and series.name == "price"
    (one,) = read_csv(path, index_col=0, usecols=["id", "name"], squeeze=True).collect()
    assert one.loc[2] == "nut"


def test_types_are_those_of_pandas(spark: Any, tmp_path: Path) -> None:
    text = "n,x,flag,when\n1,0.5,true,2020-01-02 03:04:05\n2,,false,2020-01-03\n"
    (frame,) = read_csv(str(written(tmp_path, a_csv=text))).collect()
    assert [frame[name].dtype.kind for name in frame] == ["i", "f", "b", "M"]
    assert frame.n.dtype == np.int64 and frame.when[0] == pd.Timestamp("2020-01-02 03:04:05")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index_col": "type"}, "column index to be set type is not in current dataframe, whose columns are"),
        ({"index_col": 7}, "column index to be set 7 is not in current dataframe"),
        ({"usecols": ["id", "type"]}, r"Passed names did not match usecols: \['type'\] not among the columns"),
        ({"usecols": [0, 9]}, r"Passed names did not match usecols: \[9\]"),
        ({"usecols": []}, r"usecols chooses none of the columns \['id', 'name', 'price'\]"),
        ({"usecols": lambda name: name == "ID"}, "usecols chooses none of the columns"),
        ({"names": ["a", "b"], "usecols": [0, 1, 2]}, "Passed names did not match usecols"),
        ({"names": ["a", "b"]}, r"names has 2 column\(s\), the files have 3. Name every column"),
        ({"names": ["a", "a", "b"]}, "names must differ from each other"),
        ({"dtype": {"type": int}}, r"dtype names columns \['type'\], which are not among the columns"),
        ({"dtype": {"name": int}}, "column 'name' is not all of its dtype: Failed to parse string"),
        ({"dtype": {"id": int, "price": "int64"}}, "column 'price' is not all of its dtype"),
        ({"usecols": ["price"], "header": 2}, "header must be 'infer', 0 or None where Spark reads the files; got 2"),
        ({"skiprows": 1}, "read_csv by Spark does not take skiprows; it takes header, names.*pandas_read_backend"),
        ({"on_bad_lines": "warn"}, "on_bad_lines must be 'error' or 'skip' where Spark reads the files; got 'warn'"),
        ({"encoding": "cp1252"}, "Spark reads files in utf-8.*got encoding='cp1252'. pandas reads more"),
        ({"na_values": ["-", "none"]}, r"na_values must be one text where Spark reads the files; got \['-', 'none'\]"),
        ({"encoding": "morse"}, "encoding must be one that Python knows; got 'morse'"),
    ],
)
def test_columns_that_do_not_fit_are_refused(spark: Any, tmp_path: Path, options: Any, message: str) -> None:
    path = str(written(tmp_path, a_csv=SALES))
    with pytest.raises(ArgumentError, match=message):
        read_csv(path, **options)


def test_missing_values_are_no_integers(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'b' is not all of dtype int64: Cannot convert non-finite"):
        read_csv(str(written(tmp_path, a_csv="a,b\n1,2\n3,\n")), dtype="int64")


def test_files_must_agree_on_their_columns(spark: Any, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_csv="a,b\n1,2\n", b_csv="b,a\n3,4\n"))
    with pytest.raises(DataError, match="the files have different headers: .* has b, a, which.*header=0 where they go"):
        read_csv(path)
    assert sorted(whole(read_csv(path, names=["x", "y"], header=0, dtype=int)).x) == [1, 3]


# Rows


def test_files_of_one_header_with_equal_names_are_read_together(spark: Any, tmp_path: Path) -> None:
    for number, first in enumerate(["a,a,", "a,a,", "A,a,"]):
        (tmp_path / f"{number}.csv").write_text(f"{first}\n{number},#2,x\n")
    one = {"comment": "~"}  # which Spark reads
    assert whole(read_csv(str(tmp_path), **one)).columns.tolist() == ["a", "a.1", "Unnamed: 2"]
    assert len(read_csv(str(tmp_path), **one)) == 3
    (tmp_path / "3.csv").write_text("a,b,\n1,2,x\n")
    with pytest.raises(DataError, match="the files have different headers: .*3.csv has a, b, , which is not that of"):
        read_csv(str(tmp_path), **one)
    (tmp_path / "3.csv").unlink()
    (tmp_path / "4.csv").write_text("q,r,s,t\n1,2,3,4\n")
    with pytest.raises(DataError, match="the files have different headers: .*.csv has "):
        read_csv(str(tmp_path), **one)


def test_a_file_with_more_columns_is_refused(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("a,b\n1,2\n")
    (tmp_path / "1.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(
        DataError, match="the files have different headers: .*.csv has [23] columns, which is not that of"
    ):
        read_csv(str(tmp_path))


def test_rows_with_too_many_fields_are_refused(spark: Any, backend: str, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_csv='a,b\n1,2\n3,"4,4"\n5,6,7\n8\n'))
    with pytest.raises(DataError, match="Error tokenizing data.*saw 3"):
        read_csv(path)
    frame = whole(read_csv(path, on_bad_lines="skip"))
    assert frame.a.tolist() == [1, 3, 8] and frame.b.tolist()[1] == "4,4" and pd.isna(frame.b[2])
    if backend == "spark":  # pandas does not look at what it does not use
        with pytest.raises(DataError, match="Error tokenizing data"):
            read_csv(path, usecols=["a"])


def test_a_separator_of_several_characters_is_plain_text(spark: Any, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_csv="1::x\n2::y::z\n"))
    assert whole(read_csv(path, sep="::", header=None, on_bad_lines="skip")).values.tolist() == [[1, "x"]]
    with pytest.raises(DataError, match="expected 2 fields, saw 3"):
        read_csv(path, sep="::", header=None)
    with pytest.raises(ArgumentError, match="sep is plain text where Spark reads the files; got '.;:.'.*'pandas'"):
        read_csv(path, sep="[;:]")


def test_a_field_of_several_lines_is_never_cut_in_two(spark: Any, backend: str, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_csv='a,b\n1,"two\nlines"\n'))
    if backend == "pandas":
        assert whole(read_csv(path)).b.tolist() == ["two\nlines"]
        return
    with pytest.raises(DataError, match="a quote is not closed in the line.*pandas_read_backend = 'pandas'"):
        read_csv(path)


def test_text_in_another_encoding_is_never_garbled(spark: Any, backend: str, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_csv="name\nZoë\n", b_csv="name\nRenée\n".encode("latin-1")))
    with pytest.raises(DataError, match="not UTF-8. Pass encoding=|codec can't decode"):
        read_csv(path)
    assert whole(read_csv(f"{path}/b.csv", encoding="latin-1")).name.tolist() == ["Renée"]
    marked = whole(read_csv(path, encoding_errors="replace")).name
    assert sorted(marked) == ["Ren\ufffde", "Zoë"]


def test_comments_quotes_and_missing_values(spark: Any, backend: str, tmp_path: Path) -> None:
    text = "# made by hand\nid,name\n1,'a,b'\n2,none\n3,'c|'d'\n"
    path = str(written(tmp_path, a_csv=text) / "a.csv")
    frame = whole(read_csv(path, comment="#", quotechar="'", escapechar="|", na_values="none"))
    spaced = str(written(tmp_path, b_txt="a, b\n1, 2\n") / "b.txt")
    assert whole(read_csv(spaced, skipinitialspace=True)).to_dict("list") == {"a": [1], "b": [2]}
    assert frame.name.isna().tolist() == [False, True, False]
    assert frame.name.tolist()[::2] == ["a,b", "c'd"]


def test_a_task_of_pandas_takes_every_keyword(by_pandas: None, spark: Any, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_csv="skip me\na b\n1 1,000\n", b_csv="skip me\na b\n2 2,000\n"))
    shards = read_csv(path, skiprows=1, sep=r"\s+", thousands=",", converters={"a": lambda text: int(text) * 10})
    assert shards.num_partitions() == 2
    assert whole(shards).to_dict("list") == {"a": [10, 20], "b": [1000, 2000]}
    with pytest.raises(ArgumentError, match="read_csv returns whole shards and cannot take chunksize"):
        read_csv(path, chunksize=3)


# JSON and Parquet


def test_json_objects_become_rows(spark: Any, backend: str, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_json='{"id": 1, "name": "x"}\n{"id": 2}\n'))
    frame = whole(read_json(path, lines=True))
    assert frame.id.tolist() == [1, 2] and frame.name[0] == "x" and pd.isna(frame.name[1])
    array = str(written(tmp_path, b_json='[{"id": 1, "n": [1, 2]},\n {"id": 2, "n": [3]}]') / "b.json")
    frame = whole(read_json(array, lines=False))
    assert frame.id.tolist() == [1, 2] and list(frame.n[0]) == [1, 2]


def test_json_has_the_options_of_csv(spark: Any, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_json='{"a": 1, "b": "x", "c": 2.5}\n'))
    (frame,) = read_json(path, usecols=["a", "c"], dtype={"a": str}, index_col="c").collect()
    assert frame.a.tolist() == ["1"] and frame.index.tolist() == [2.5]
    (series,) = read_json(path, usecols=["b"], squeeze=True).collect()
    assert series.tolist() == ["x"]
    with pytest.raises(DataError, match="Passed names did not match usecols"):
        read_json(path, usecols=["z"])


def test_rows_that_are_no_json_are_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no JSON object: '{\"a\": ,}'. Each line must be one; pass lines=False"):
        read_json(str(written(tmp_path, a_json='{"a": 1}\n{"a": ,}\n')))
    with pytest.raises(DataError, match="there is no JSON object in .*lines=False"):
        read_json(str(written(tmp_path, a_json="[\n1,\n2\n]\n")))


def test_parquet_columns_of_every_type_arrive(spark: Any, shard_size: int, tmp_path: Path) -> None:
    frame = pd.DataFrame({
        "id": range(10), "x": np.linspace(0, 1, 10), "name": list("abcdefghij"),
        "list": [[i, i + 1] for i in range(10)],
        "when": pd.date_range("2020-01-01", periods=10),
    })  # fmt: skip
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    shards = read_parquet(str(tmp_path), columns=["x", "when", "list", "name"])
    assert [len(part) for part in shards.collect()] == [4, 4, 2]
    read = whole(shards)
    pd.testing.assert_frame_equal(read[["x", "name"]], frame[["x", "name"]])
    assert (read.when == frame.when).all() and read["list"].map(list).tolist() == frame["list"].tolist()
    typed = read_parquet(str(tmp_path), schema="id bigint, nothing string")
    assert whole(typed).nothing.isna().all()
    with pytest.raises(DataError, match=r"there are no columns \['y'\]; the files have \['id', 'x'"):
        read_parquet(str(tmp_path), columns=["x", "y"])
    with pytest.raises(DataError, match="Path does not exist"):
        read_parquet(str(tmp_path / "nothing"))


def test_vectors_become_arrays(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(Vectors.dense([1.0, 2.0]),), (Vectors.sparse(2, {1: 3.0}),)]
    spark.createDataFrame(rows, ["v"]).coalesce(1).write.parquet(str(tmp_path / "v"))
    assert np.stack(whole(read_parquet(str(tmp_path / "v"))).v).tolist() == [[1.0, 2.0], [0.0, 3.0]]
