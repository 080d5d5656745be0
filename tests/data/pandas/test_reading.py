from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca import OrcaContext
from orca.data.pandas import read_csv, read_json, read_parquet
from orca.data.shard import spark_df_to_pd_sparkxshards
from orca.errors import ArgumentError, DataError

pd = pytest.importorskip("pandas")

SALES = 'id,name,price\n1,bolt,0.5\n2,nut,\n3,"a ""big"" nut, steel",1.5\n'
MORE = "id,name,price\n4,,2.5\n"


@pytest.fixture(params=["spark", "pandas"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    OrcaContext.pandas_read_backend = request.param
    yield request.param
    OrcaContext.pandas_read_backend = "spark"


@pytest.fixture
def small_tasks(spark: Any) -> Iterator[None]:
    """Let tasks read 64 bytes."""
    names = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
    for name in names:
        spark.conf.set(name, "64b")
    yield
    for name in names:
        spark.conf.unset(name)


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


def test_files_of_another_file_system_are_read_on_the_workers(spark: Any, tmp_path: Path) -> None:
    written(tmp_path, a_csv=SALES)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(MORE.encode()))
    link = f"simplecache::file://{tmp_path}"
    assert len(whole(read_csv([f"{link}/a.csv", f"{link}/b.csv.gz"]))) == 4


def test_nothing_at_a_path_is_an_error_of_the_call(spark: Any, tmp_path: Path) -> None:
    for read in (read_csv, read_json):
        with pytest.raises(DataError, match="No such file or directory"):
            read(str(tmp_path / "nothing.txt"))


def test_files_without_content_are_passed_over(spark: Any, tmp_path: Path) -> None:
    written(tmp_path, a_csv="", b_csv=MORE, c_csv="")
    assert whole(read_csv(str(tmp_path))).id.tolist() == [4]
    with pytest.raises(DataError, match="No columns to parse from file"):
        read_csv(str(tmp_path / "a.csv"))


def test_a_file_of_a_header_alone_gives_its_columns(spark: Any, tmp_path: Path) -> None:
    written(tmp_path, a_csv="id,name\n")
    frame = whole(read_csv(str(tmp_path)))
    assert list(frame.columns) == ["id", "name"] and len(frame) == 0


# Tasks and shards


@pytest.mark.slow
def test_a_thousand_small_files_are_read_in_few_tasks(spark: Any, tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number:03}.csv").write_text(f"n\n{number}\n")
    shards = read_csv(str(tmp_path))
    assert shards.num_partitions() <= 40
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


def test_shards_have_the_requested_number_of_rows(spark: Any, shard_size: int, tmp_path: Path) -> None:
    written(tmp_path, a_csv="n\n" + "\n".join(map(str, range(10))))
    parts = read_csv(str(tmp_path)).collect()
    assert [len(part) for part in parts] == [4, 4, 2]
    assert [part.n.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all(part.index[0] == 0 for part in parts)


def test_shards_go_over_the_borders_of_small_files(spark: Any, shard_size: int, tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.csv").write_text(f"n\n{2 * number:02}\n{2 * number + 1:02}\n")
    shards = read_csv(str(tmp_path))
    lengths = [len(part) for part in shards.collect()]
    assert shards.num_partitions() <= 3 and lengths.count(4) >= 12 and len(lengths) <= 18
    assert whole(shards).n.tolist() == list(range(60))


def test_a_shard_may_be_written_to(spark: Any, tmp_path: Path) -> None:
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
    text = "n,x,flag,when,id,large\n1,inf,true,2020-01-02,10d,9223372036854775808\n2,NA,false,2020-01-03,20f,1\n"
    path = str(written(tmp_path, a_csv=text) / "a.csv")
    for options in ({}, {"parse_dates": ["when"]}):
        pd.testing.assert_frame_equal(whole(read_csv(path, **options)), pd.read_csv(path, **options))
    headers = str(written(tmp_path, b_csv="a,a,a.1\n1,2,3\n") / "b.csv")
    pd.testing.assert_frame_equal(whole(read_csv(headers)), pd.read_csv(headers))


def test_a_column_has_the_type_of_all_its_rows_in_every_shard(spark: Any, backend: str, tmp_path: Path) -> None:
    written(tmp_path, a_csv="i,t,b,n\n1,1,true,\n", b_csv="i,t,b,n\n2.5,x,,1\n")
    parts = read_csv(str(tmp_path)).collect()
    expected = pd.read_csv(written(tmp_path, c_txt="i,t,b,n\n1,1,true,\n2.5,x,,1\n") / "c.txt")
    assert all(part.dtypes.equals(expected.dtypes) for part in parts)
    pd.testing.assert_frame_equal(whole(read_csv(f"{tmp_path}/*.csv")), expected)


def test_a_large_file_is_read_in_ranges_as_pandas_reads_all_of_it(
    spark: Any, small_tasks: None, tmp_path: Path
) -> None:
    rows = pd.DataFrame({"n": range(200), "late": [1] * 199 + [2.5], "word": [7] * 120 + ["x, y"] * 80})
    rows.to_csv(tmp_path / "a.csv", index=False)
    shards = read_csv(str(tmp_path))
    assert shards.num_partitions() > 5
    pd.testing.assert_frame_equal(whole(shards), pd.read_csv(tmp_path / "a.csv", low_memory=False))
    rows.loc[150, "word"] = 'a "line"\n' * 40
    rows.to_csv(tmp_path / "a.csv", index=False)
    shards = read_csv(str(tmp_path))
    assert shards.num_partitions() == 1
    pd.testing.assert_frame_equal(whole(shards), pd.read_csv(tmp_path / "a.csv", low_memory=False))


def test_lazy_shards_have_the_same_rows_and_types(spark: Any, small_tasks: None, tmp_path: Path) -> None:
    pd.DataFrame({"n": [1] * 100 + [0.5]}).to_csv(tmp_path / "a.csv", index=False)
    OrcaContext._eager_mode = False
    try:
        shards = read_csv(str(tmp_path))
        assert not shards.is_cached()
        pd.testing.assert_frame_equal(whole(shards), pd.read_csv(tmp_path / "a.csv"))
        (tmp_path / "a.csv").write_text("n\n1\n")
        with pytest.raises(Exception, match=r"a\.csv has changed while it was read"):
            shards.collect()
    finally:
        OrcaContext._eager_mode = True


def test_fields_without_a_header_become_the_index_as_in_pandas(spark: Any, small_tasks: None, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "".join(f"key{row},{row},x\n" for row in range(60)))
    frame = pd.concat(read_csv(str(tmp_path)).collect())
    pd.testing.assert_frame_equal(frame, pd.read_csv(tmp_path / "a.csv"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1", "utf-8-sig", "gb18030"])
def test_text_of_every_encoding_is_read(spark: Any, small_tasks: None, tmp_path: Path, encoding: str) -> None:
    text = "name,n\n" + "".join(f"Zo\xeb,{row}\n" for row in range(60))
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    pd.testing.assert_frame_equal(
        whole(read_csv(str(tmp_path), encoding=encoding)), pd.read_csv(tmp_path / "a.csv", encoding=encoding)
    )
    if encoding == "utf-16":
        with pytest.raises(DataError, match="a.csv cannot be read.*the mark of utf-16: pass encoding='utf-16'"):
            read_csv(str(tmp_path))


def test_categories_are_those_of_all_files(spark: Any, tmp_path: Path) -> None:
    written(tmp_path, a_csv="c\nred\nblue\n", b_csv="c\ngreen\nred\n")
    parts = read_csv(str(tmp_path), dtype="category").collect()
    assert all(part.c.cat.categories.tolist() == ["blue", "green", "red"] for part in parts)
    assert whole(read_csv(str(tmp_path), dtype="category")).c.tolist() == ["red", "blue", "green", "red"]


def test_dates_that_are_none_in_one_file_stay_text_in_all(spark: Any, tmp_path: Path) -> None:
    written(tmp_path, a_csv="d\n2020-01-02\n", b_csv="d\nnever\n")
    assert whole(read_csv(str(tmp_path), parse_dates=["d"])).d.tolist() == ["2020-01-02", "never"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index_col": "type"}, "a.csv cannot be read by pandas.read_csv: .*type"),
        ({"usecols": ["id", "type"]}, r"columns expected but not found: \['type'\]"),
        ({"usecols": []}, "usecols chooses none of the columns"),
        ({"names": ["a", "a", "b"]}, "Duplicate names are not allowed"),
        ({"dtype": {"name": int}}, r"a.csv cannot be read by pandas.read_csv: .*\(column 'name'\)"),
        ({"dtype": {"id": int, "price": "int64"}}, r"\(column 'price'\)"),
        ({"encoding": "morse"}, "unknown encoding: morse"),
        ({"seperator": ";"}, r"read_csv\(\) got an unexpected keyword argument 'seperator'"),
        ({"chunksize": 3}, "read_csv returns whole shards and cannot take chunksize"),
    ],
)
def test_columns_that_do_not_fit_are_refused(spark: Any, tmp_path: Path, options: Any, message: str) -> None:
    path = str(written(tmp_path, a_csv=SALES))
    with pytest.raises(ArgumentError, match=message):
        read_csv(path, **options)


def test_columns_go_by_their_names_over_files(spark: Any, tmp_path: Path) -> None:
    written(tmp_path, a_csv="a,b\n1,2\n", b_csv="b,c\n3,x\n")
    frame = whole(read_csv(str(tmp_path)))
    expected = pd.concat([pd.read_csv(tmp_path / name) for name in ("a.csv", "b.csv")], ignore_index=True)
    pd.testing.assert_frame_equal(frame, expected)
    assert whole(read_csv(str(tmp_path), names=["x", "y"], header=0, dtype=str)).x.tolist() == ["1", "3"]


@pytest.mark.parametrize("read", [read_csv, read_json, read_parquet])
def test_partition_columns_of_spark_come_last(spark: Any, tmp_path: Path, read: Any) -> None:
    rows = spark.createDataFrame(
        [(1, "red", 7, "p"), (2, "dark blue/a", 8, "q"), (3, None, 7, "r")], "n int, c string, k int, w string"
    )
    kind = read.__name__.removeprefix("read_")
    rows.select("n", "w", "c", "k").write.partitionBy("c", "k").format(kind).options(header=True).save(
        str(tmp_path / "t")
    )
    frame = whole(read(str(tmp_path / "t"))).sort_values("n", ignore_index=True)
    assert list(frame.columns) == ["n", "w", "c", "k"] and frame.w.tolist() == ["p", "q", "r"]
    assert frame.c.tolist()[:2] == ["red", "dark blue/a"] and pd.isna(frame.c[2])
    assert frame.k.tolist() == [7, 8, 7] and frame.k.dtype == np.int32
    if read is read_csv:
        assert list(whole(read(str(tmp_path / "t"), usecols=["n", "k"])).columns) == ["n", "k"]


# Rows


def test_rows_with_too_many_fields_are_refused(spark: Any, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_csv='a,b\n1,2\n3,"4,4"\n5,6,7\n8\n'))
    with pytest.raises(DataError, match="Error tokenizing data.*in line 4, saw 3.*on_bad_lines='skip'"):
        read_csv(path)
    frame = whole(read_csv(path, on_bad_lines="skip"))
    assert frame.a.tolist() == [1, 3, 8] and frame.b.tolist()[1] == "4,4" and pd.isna(frame.b[2])


def test_text_in_another_encoding_is_never_garbled(spark: Any, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_csv="name\nZoë\n", b_csv="name\nRenée\n".encode("latin-1")))
    with pytest.raises(DataError, match="b.csv cannot be read.*codec can't decode.*encoding='latin-1'"):
        read_csv(path)
    assert whole(read_csv(f"{path}/b.csv", encoding="latin-1")).name.tolist() == ["Renée"]
    marked = whole(read_csv(path, encoding_errors="replace")).name
    assert sorted(marked) == ["Ren\ufffde", "Zoë"]


def test_comments_quotes_and_missing_values(spark: Any, tmp_path: Path) -> None:
    text = "# made by hand\nid,name\n1,'a,b'\n2,none\n3,'c|'d'\n"
    path = str(written(tmp_path, a_csv=text) / "a.csv")
    frame = whole(read_csv(path, comment="#", quotechar="'", escapechar="|", na_values="none"))
    spaced = str(written(tmp_path, b_txt="a, b\n1, 2\n") / "b.txt")
    assert whole(read_csv(spaced, skipinitialspace=True)).to_dict("list") == {"a": [1], "b": [2]}
    assert frame.name.isna().tolist() == [False, True, False]
    assert frame.name.tolist()[::2] == ["a,b", "c'd"]


def test_every_keyword_of_pandas_is_taken(spark: Any, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_csv="skip me\na b\n1 1,000\nend\n", b_csv="skip me\na b\n2 2,000\nend\n"))
    options = {"skiprows": 1, "sep": r"\s+", "thousands": ",", "skipfooter": 1, "engine": "python"}
    shards = read_csv(path, converters={"a": lambda text: int(text) * 10}, **options)
    assert whole(shards).to_dict("list") == {"a": [10, 20], "b": [1000, 2000]}
    assert whole(read_csv(path, nrows=1, skiprows=1, sep=" ")).a.tolist() == [1, 2]


# JSON and Parquet


def test_json_objects_become_rows(spark: Any, backend: str, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_json='{"id": 1, "name": "x"}\n{"id": 2}\n'))
    frame = whole(read_json(path, lines=True))
    assert frame.id.tolist() == [1, 2] and frame.name[0] == "x" and pd.isna(frame.name[1])
    array = str(written(tmp_path, b_json='[{"id": 1, "n": [1, 2]},\n {"id": 2, "n": [3]}]') / "b.json")
    frame = whole(read_json(array, lines=False))
    assert frame.id.tolist() == [1, 2] and list(frame.n[0]) == [1, 2]
    pd.testing.assert_frame_equal(whole(read_json(array)), frame)
    line = str(written(tmp_path, c_json='[{"id": 1}, {"id": 2}]\n') / "c.json")
    assert whole(read_json(line)).to_dict("list") == {"id": [1, 2]}


def test_json_lines_in_ranges_are_those_of_pandas(spark: Any, small_tasks: None, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "s": "7", "w": "x", "date": "2020-01-02", "f": 1.0} for _ in range(30)]
    rows += [{"a": 2.5, "s": "y", "extra": [1], "w": 3, "date": "2021-01-02", "f": 2.0, "flag": True}]
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shards = read_json(str(tmp_path))
    assert shards.num_partitions() > 5
    expected = pd.read_json(tmp_path / "a.json", lines=True)
    pd.testing.assert_frame_equal(whole(shards), expected)


def test_json_has_the_options_of_csv(spark: Any, tmp_path: Path) -> None:
    path = str(written(tmp_path, a_json='{"a": 1, "b": "x", "c": 2.5}\n'))
    (frame,) = read_json(path, usecols=["a", "c"], dtype={"a": str}, index_col="c").collect()
    assert frame.a.tolist() == ["1"] and frame.index.tolist() == [2.5]
    (series,) = read_json(path, usecols=["b"], squeeze=True).collect()
    assert series.tolist() == ["x"]
    assert list(whole(read_json(path, names=["x", "y", "z"], usecols=[0, 2])).columns) == ["x", "z"]
    with pytest.raises(DataError, match=r"usecols names \['z'\], which are not among the columns \['a', 'b', 'c'\]"):
        read_json(path, usecols=["z"])
    with pytest.raises(DataError, match="names has 1 column"):
        read_json(path, names=["x"])


def test_rows_that_are_no_json_are_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a.json cannot be read by pandas.read_json.*pass lines=False"):
        read_json(str(written(tmp_path, a_json='{"a": 1}\n{"a": ,}\n')))
    with pytest.raises(DataError, match="a.json cannot be read.*lines=False"):
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


def test_parquet_files_of_several_schemas_are_read_as_one(spark: Any, tmp_path: Path) -> None:
    pd.DataFrame({"n": np.array([1, 2], "int32"), "x": [1, 2], "a": ["p", "q"]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"n": np.array([1 << 40]), "x": [0.5], "b": [True]}).to_parquet(tmp_path / "b.parquet")
    frame = whole(read_parquet(str(tmp_path))).sort_values("n", ignore_index=True)
    assert frame.n.tolist() == [1, 2, 1 << 40] and frame.n.dtype == np.int64
    assert frame.x.tolist() == [1.0, 2.0, 0.5] and list(frame.columns) == ["n", "x", "a", "b"]
    assert frame.a.isna().tolist() == [False, False, True] and frame.b.isna().tolist() == [True, True, False]
    pd.DataFrame({"n": ["text"]}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(DataError, match="no type fits a column in all files: .*n.*c.parquet differs from .*a.parquet"):
        read_parquet(str(tmp_path))


def test_parquet_folders_of_several_schemas_below_a_glob_keep_their_partitions(spark: Any, tmp_path: Path) -> None:
    for folder, values in (("p1/k=x", [1]), ("p2/k=y", [2.5]), ("p2/k=x", [3])):
        (tmp_path / folder).mkdir(parents=True)
        pd.DataFrame({"n": values}).to_parquet(tmp_path / folder / "a.parquet")
    frame = whole(read_parquet(str(tmp_path / "p*"))).sort_values("n", ignore_index=True)
    assert frame.to_dict("list") == {"n": [1.0, 2.5, 3.0], "k": ["x", "y", "x"]}


def test_categories_of_parquet_files_are_texts_beside_those_of_others(spark: Any, tmp_path: Path) -> None:
    pd.DataFrame({"a": ["x"]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"a": pd.Categorical(["y"])}).to_parquet(tmp_path / "b.parquet")
    assert sorted(whole(read_parquet(str(tmp_path))).a) == ["x", "y"]


def test_a_frame_of_no_partition_is_one_shard_without_rows(spark: Any) -> None:
    shards = spark_df_to_pd_sparkxshards(spark.range(5).limit(0))
    assert [list(part.columns) for part in shards.collect()] == [["id"]] and len(shards) == 0


def test_vectors_become_arrays(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(Vectors.dense([1.0, 2.0]),), (Vectors.sparse(2, {1: 3.0}),)]
    spark.createDataFrame(rows, ["v"]).coalesce(1).write.parquet(str(tmp_path / "v"))
    assert np.stack(whole(read_parquet(str(tmp_path / "v"))).v).tolist() == [[1.0, 2.0], [0.0, 3.0]]
