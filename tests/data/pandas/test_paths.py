from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orca.data.pandas.paths import DataFile, files_at, path_list
from orca.errors import ArgumentError, DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.csv", "a.csv", "c[1].csv", "_hidden", ".crc", "sub/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("n\n1\n")
    (tmp_path / "empty.csv").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("{0}", ["a.csv", "b.csv", "c[1].csv"]),
        ("{0}/b.csv,  {0}/a.csv", ["b.csv", "a.csv"]),
        (["{0}/b.csv", "{0}/a.csv"], ["b.csv", "a.csv"]),
        ("{0}/?.csv", ["a.csv", "b.csv"]),
        ("{0}/{{b,a}}.csv", ["b.csv", "a.csv"]),
        ("file://{0}/[ab].csv", ["a.csv", "b.csv"]),
        ("{0}/c[1].csv", ["c[1].csv"]),
        ("{0}/s*", ["d.csv"]),
        ("{0}/empty.csv", ["empty.csv"]),
        (("{0}/*/*.csv", "{0}/empty.csv"), ["d.csv"]),
    ],
)
def test_every_form_of_path_names_its_files(folder: Path, form: Any, names: list[str]) -> None:
    paths = [part.format(folder) for part in form] if not isinstance(form, str) else form.format(folder)
    assert [Path(file.path).name for file in files_at(path_list(paths))] == names
    assert path_list(folder / "a.csv") == [str(folder / "a.csv")]


def test_files_of_other_file_systems_keep_their_scheme() -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/shelf/a.csv", b"n\n")
    assert [file.path for file in files_at(["memory://shelf"])] == ["memory:///shelf/a.csv"]
    assert files_at(["memory:///shelf/*.csv"]) == [DataFile("memory:///shelf/a.csv", 2)]


def test_nothing_at_a_path_is_an_error(folder: Path) -> None:
    for path in ("nothing.csv", "*.json", "nothing/*"):
        with pytest.raises(DataError, match=f"No such file or directory: '{folder}/.*workers must reach it too"):
            files_at([str(folder / path)])
    (folder / "bare").mkdir()
    with pytest.raises(DataError, match="the folder holds no file: .*bare"):
        files_at([str(folder / "bare")])


@pytest.mark.parametrize("path", [3, [], "", None, ["a", 7], "a,,b"])
def test_a_path_must_be_one(path: Any) -> None:
    with pytest.raises(ArgumentError, match="file_path must be a path or a list of paths; got"):
        path_list(path)


def test_folders_of_partitions_are_opened_and_others_are_not(tmp_path: Path) -> None:
    for name in ("day=1/hour=a%2Fb/x.csv", "day=2/hour=c/x.csv", "day=2/_SUCCESS", "plain/x.csv", "_day=3/x.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("n\n1\n")
    (tmp_path / "day=3").mkdir()
    files = files_at([str(tmp_path)])
    assert [file.partition for file in files] == [(("day", "1"), ("hour", "a%2Fb")), (("day", "2"), ("hour", "c"))]
    assert [file.partition for file in files_at([f"{tmp_path}/day=2"])] == [(("hour", "c"),)]
