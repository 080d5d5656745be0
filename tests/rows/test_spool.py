"""Spool: rows come back as they went in, in any order; memory is bounded; nothing is left on disk."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import orca.rows.spool as spool_module
from orca.errors import ArgumentError, DataError, OrcaError
from orca.rows.spool import Spool, SpoolWriter, spool_folder
from raised import raises

KINDS = ["bool", "int8", "uint8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex128"]


def written(folder: Path, parts: list[list[np.ndarray]], chunk_bytes: int = 1 << 20) -> Spool:
    with SpoolWriter(folder, chunk_bytes) as writer:
        for part in parts:
            writer.append(part)
        return writer.finish()


def open_files() -> set[str]:
    here = Path("/proc/self/fd")  # where there is none, only the folder is looked at
    return {os.readlink(each) for each in here.iterdir() if each.is_symlink()} if here.is_dir() else set()


@pytest.mark.parametrize("dtype", [*KINDS, ">f4", "datetime64[D]", "datetime64[ns]", "timedelta64[s]"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
def test_every_dtype_and_shape_comes_back(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    rows = np.random.default_rng(0).integers(0, 2, (50, *shape)).astype(dtype)
    flags = np.arange(50) % 3 == 0  # a byte wide: what follows it lies unaligned
    with written(tmp_path, [[flags, rows]], chunk_bytes=300) as spool:
        index = np.array([49, 0, 7, 7])
        first, second = spool.take(index)
    assert spool.rows == 50
    assert second.dtype == dtype
    assert np.array_equal(first, flags[index])
    assert np.array_equal(second, rows[index])
    for array in (first, second):
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned


@pytest.mark.parametrize("mapped", [32 << 20, 200 << 10])
@pytest.mark.parametrize("chunk_bytes", [1, 1000, 20_000, 1 << 20])
def test_take_is_what_numpy_takes(tmp_path: Path, chunk_bytes: int, mapped: int, monkeypatch) -> None:
    monkeypatch.setattr(spool_module, "_MAPPED", mapped)  # the small one makes take go piece by piece
    monkeypatch.setattr(spool_module, "_held", lambda: 0)
    random = np.random.default_rng(chunk_bytes)
    x = random.normal(size=(2000, 5, 7)).astype(np.float32)
    y = random.integers(0, 9, 2000)
    name = np.array([f"row {each}" * (each % 4) for each in range(2000)], object)
    raw = np.array([bytes([each % 251]) for each in range(2000)], object)
    cuts = np.sort(random.integers(0, 2000, 20))
    parts = list(zip(*(np.split(column, cuts) for column in (x, name, y, raw)), strict=True))
    with written(tmp_path, [list(part) for part in parts], chunk_bytes) as spool:
        assert spool.rows == 2000
        indices = [random.integers(0, 2000, size) for size in (1, 2, 17, 256, 3000)]
        indices += [np.arange(2000), np.arange(500, 900), np.arange(2000)[::-3], np.zeros(3, np.uint8)]
        for index in indices:
            taken = spool.take(index)
            for got, column in zip(taken, (x, name, y, raw), strict=True):
                assert got.dtype == column.dtype
                assert np.array_equal(got, column[index])


@pytest.mark.parametrize("mapped", [32 << 20, 200 << 10])
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 3)])
def test_rows_of_several_texts_come_back(tmp_path: Path, shape: tuple[int, ...], mapped: int, monkeypatch) -> None:
    monkeypatch.setattr(spool_module, "_MAPPED", mapped)  # the small one makes take go piece by piece
    monkeypatch.setattr(spool_module, "_held", lambda: 0)
    random = np.random.default_rng(0)
    words = np.array([f"wörd {each}" * (each % 3) for each in range(500)], object)
    texts = words[random.integers(0, 500, (2000, *shape))]
    raw = np.array([word.encode() for word in texts.reshape(-1)], object).reshape(texts.shape)
    fixed, number = texts.astype(str), np.arange(2000)
    columns = (texts, number, raw, fixed)
    parts = zip(*(np.split(column, [7, 700, 1501]) for column in columns), strict=True)
    with written(tmp_path, [list(part) for part in parts], 5000) as spool:
        assert spool.rows == 2000
        for index in (random.integers(0, 2000, 300), np.arange(2000), np.array([1999]), np.array([], int)):
            for got, column in zip(spool.take(index), (texts, number, raw, texts), strict=True):
                assert got.shape == (len(index), *column.shape[1:])
                assert got.dtype == column.dtype
                assert np.array_equal(got, column[index])


@pytest.mark.parametrize("shape", [(3, 64, 64), (1031,), (2, 5000)])
@pytest.mark.parametrize("count", [1, 7, 128, 501])
def test_few_long_values_are_taken_as_many_short_ones_are(tmp_path: Path, shape: tuple[int, ...], count: int) -> None:
    draw = np.random.default_rng(0)
    values, numbers = draw.random((200, *shape), np.float32), np.arange(200)
    index = draw.integers(0, 200, count)
    with SpoolWriter(tmp_path, chunk_bytes=1 << 20) as writer:
        writer.append([numbers, values])
        with writer.finish() as spool:
            taken = spool.take(index)
    assert (taken[0] == index).all() and (taken[1] == values[index]).all()


def test_what_is_taken_is_fresh(tmp_path: Path) -> None:
    with written(tmp_path, [[np.zeros((4, 2))]]) as spool:
        (first,) = spool.take(np.array([1, 2]))
        first += 5
        assert spool.take(np.array([1, 2]))[0].sum() == 0
    assert first.sum() == 20  # outlives the spool


def test_arrays_that_are_not_contiguous_and_fixed_width_strings(tmp_path: Path) -> None:
    x = np.arange(60).reshape(10, 6)
    with written(tmp_path, [[x[:, ::2], x.T[:6].T[:, 0], np.array(list("abcdefghij"))]]) as spool:
        first, second, third = spool.take(np.array([9, 3]))
    assert first.tolist() == [[54, 56, 58], [18, 20, 22]]
    assert second.tolist() == [54, 18]
    assert third.tolist() == ["j", "d"]


def test_rows_are_written_a_chunk_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = spool_module._File.write
    monkeypatch.setattr(spool_module._File, "write", lambda file, data: (sizes.append(len(data)), write(file, data)))
    with written(tmp_path, [[np.zeros((1000, 25), np.float32)]], chunk_bytes=10_000) as spool:
        assert spool.rows == 1000
    assert sizes == [10_000] * 10
    monkeypatch.setattr(spool_module, "_AT_ONCE", 4)  # a row that says where its text is takes 16 bytes
    sizes.clear()
    with written(tmp_path, [[np.array(["y" * 5000] * 10, object)]], chunk_bytes=10_000) as spool:
        assert spool.take(np.array([9]))[0].tolist() == ["y" * 5000]
    assert sizes == [20_000, 64, 20_000, 64, 10_000, 32]


def test_no_rows(tmp_path: Path) -> None:
    with written(tmp_path, []) as spool:
        assert spool.rows == 0
        assert spool.take(np.array([], int)) == []
    with written(tmp_path, [[np.empty((0, 0), np.float32), np.empty(0, object)]]) as spool:
        assert spool.rows == 0
        first, second = spool.take(np.array([]))
        assert (first.shape, first.dtype, second.shape) == ((0, 0), np.float32, (0,))


def test_parts_without_rows_are_passed_over(tmp_path: Path) -> None:
    nothing, rows = np.empty((0, 0), np.float64), np.ones((3, 2), np.float32)
    with written(tmp_path, [[nothing], [rows], [nothing], [rows]]) as spool:
        assert spool.rows == 6
        assert spool.take(np.array([], int))[0].shape == (0, 2)
        assert spool.take(np.arange(6))[0].shape == (6, 2)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ([np.ones((2, 3))], "expected 2 columns as in the 4 rows before, got 1"),
        ([np.ones((2, 3)), np.ones(3)], "column 1 has 3 rows, expected 2 rows"),
        ([np.ones((2, 3)), np.array(1)], "column 1 has no rows dimension, expected 2 rows"),
        (
            [np.ones((2, 4)), np.ones(2)],
            r"column 0 changed after 4 rows: expected float64 of shape \(3,\).*got.*\(4,\)",
        ),
        ([np.ones((2, 3)), np.ones(2, "f4")], r"column 1 changed after 4 rows: expected float64.*got float32.*Cast"),
        ([np.ones((2, 3)), np.array(["a", "b"])], "column 1 changed after 4 rows: expected float64.*got text"),
        ([np.ones((2, 3)), np.zeros(2, "V3")], "column 1 is of dtype .*V3.*neither numbers"),
        ([np.ones((2, 3)), np.array([["a"], ["b"]], object)], r"column 1 changed.*got text of shape \(1,\)"),
        ([], "at least one column"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_left(tmp_path: Path, second, message: str) -> None:
    before = open_files()
    with pytest.raises(DataError, match=message), SpoolWriter(tmp_path, 10) as writer:
        writer.append([np.ones((4, 3)), np.ones(4)])
        writer.append(second)
    assert list(tmp_path.iterdir()) == []
    assert open_files() <= before


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ([b"a"], r"column 0 changed after 1 rows: expected text of shape \(\).*got bytes of shape \(\)"),
        ([None], r"column 0 holds 1 null\(s\).*fillna"),
        ([1], "column 0 must hold numbers, or str or bytes alone; got objects of int. Cast"),
        (["a", 1], "column 0 must hold numbers, or str or bytes alone; got objects of int, str. Cast"),
    ],
)
def test_objects_must_be_text_of_one_kind(tmp_path: Path, second: list, message: str) -> None:
    with pytest.raises(DataError, match=message), SpoolWriter(tmp_path) as writer:
        writer.append([np.array(["a"], object)])
        writer.append([np.array(second, object)])


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ([["a", "b", "c"]], r"column 0 changed after 1 rows: expected text of shape \(2,\).*got text of shape \(3,\)"),
        ([[b"a", b"b"]], r"column 0 changed after 1 rows: expected text of shape \(2,\).*got bytes of shape \(2,\)"),
        ([["a", None]], r"column 0 holds 1 null\(s\).*fillna"),
    ],
)
def test_rows_of_several_texts_must_be_alike(tmp_path: Path, second: list, message: str) -> None:
    with pytest.raises(DataError, match=message), SpoolWriter(tmp_path) as writer:
        writer.append([np.array([["a", "b"]], object)])
        writer.append([np.array(second, object)])


def test_rows_of_no_texts_are_refused(tmp_path: Path) -> None:
    with raises("empty-texts"):
        written(tmp_path, [[np.empty((3, 0), object)]])


def test_nothing_is_left_after_close(tmp_path: Path) -> None:
    before = open_files()
    spool = written(tmp_path, [[np.ones(1000), np.array(["a"] * 1000)]], 100)
    spool.take(np.arange(10))
    spool.close()
    spool.close()
    assert list(tmp_path.iterdir()) == []
    assert open_files() <= before
    with raises("spool-closed"):
        spool.take(np.arange(2))


def test_nothing_is_left_when_the_spool_is_not_finished(tmp_path: Path) -> None:
    before = open_files()
    with SpoolWriter(tmp_path, 10) as writer:
        writer.append([np.ones(100)])
    with raises("spool-closed"):
        writer.finish()
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert open_files() <= before


@pytest.mark.parametrize("index", [[0, 4], [-1], [2.0], [[0]], [True]])
def test_row_numbers_outside_are_refused(tmp_path: Path, index: list) -> None:
    with written(tmp_path, [[np.ones(4)]]) as spool, pytest.raises(ArgumentError, match="take needs"):
        spool.take(np.array(index))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with raises("no-room-for-rows"):
        written(folder, [[np.ones(3)]])


def test_rows_go_to_the_clusters_local_disk_with_the_most_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_LOCAL_DIRS", "LOCAL_DIRS"):
        monkeypatch.delenv(name, raising=False)
    assert spool_folder() == Path(tempfile.gettempdir())
    small, large, memory = tmp_path / "small", tmp_path / "large", Path("/dev/shm")
    small.mkdir()
    large.mkdir()
    free = {str(small): 1, str(large): 2}
    monkeypatch.setattr(shutil, "disk_usage", lambda name: SimpleNamespace(free=free[name]))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{small},{tmp_path / 'gone'}")
    assert spool_folder() == small
    monkeypatch.setenv("LOCAL_DIRS", f"{large},{memory}")  # of YARN; memory is no disk
    assert spool_folder() == large
    free[str(small)] = 3
    assert spool_folder([str(large)]) == small
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    monkeypatch.setenv("LOCAL_DIRS", str(memory))
    if memory.is_dir():
        assert spool_folder() == Path(tempfile.gettempdir())


def test_a_full_disk_is_told_with_the_bytes_written(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before, limits = open_files(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OrcaError, match=f"rows to {tmp_path} on .*too large, after 1048576 bytes.*Make room"):
            written(tmp_path, [[np.ones(10_000)]] * 40, 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert open_files() <= before


def test_pages_stay_mapped_while_they_are_few_beside_what_the_process_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[int] = []
    forget = Spool._forget_pages
    monkeypatch.setattr(Spool, "_forget_pages", lambda spool: (forgotten.append(1), forget(spool)))
    monkeypatch.setattr(spool_module, "_MAPPED", 1 << 20)
    rows = np.random.default_rng(0).permutation(1000)
    for held, times in ((0, 12), (1 << 30, 0)):  # 12 MB, 128 rows of it and their neighbours at a time
        monkeypatch.setattr(spool_module, "_held", lambda held=held: held)
        with written(tmp_path, [[np.ones((100, 3, 32, 32), np.float32)]] * 10, 1 << 20) as spool:
            forgotten.clear()
            for start in range(0, 1000, 128):
                assert spool.take(rows[start : start + 128])[0].all()
        assert len(forgotten) >= times if times else not forgotten


def test_long_texts_count_in_what_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "_MAPPED", 1 << 20)
    monkeypatch.setattr(spool_module, "_held", lambda: 0)
    with written(tmp_path, [[np.array([f"{row}" * 300_000 for row in range(8)], object)]], 1 << 20) as spool:
        sizes = []
        for row in (5, 0, 7, 2, 4):
            assert spool.take(np.array([row]))[0].tolist() == [f"{row}" * 300_000]
            sizes.append(spool._page_bytes)
    assert all(size >= 300_000 for size in sizes) and max(sizes) <= 1 << 20


PEAK = """
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from orca.rows.spool import SpoolWriter, spool_folder

rows = int(sys.argv[2])
with SpoolWriter(Path(sys.argv[1]), 4 << 20) as writer:
    for start in range(0, rows, 500):
        writer.append([np.full((500, 1024), start, np.float32), np.arange(start, start + 500)])
    spool = writer.finish()
with spool:
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(rows)
        for start in range(0, rows, 256):
            x, y = spool.take(order[start : start + 256])
            assert (y == order[start : start + 256]).all() and (x[:, 0] == y // 500 * 500).all()
    assert len(spool.take(order[:5000])[1]) == 5000
assert "pandas" not in sys.modules
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_peak_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    def peak_kb(rows: int) -> int:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", PEAK, str(tmp_path), str(rows)]
        return int(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)

    small, large = peak_kb(5_000), peak_kb(50_000)  # 20 MB and 200 MB
    assert large < 1.3 * small, f"{small} kB for 20 MB, {large} kB for 200 MB"
