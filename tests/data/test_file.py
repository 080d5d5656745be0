from __future__ import annotations

import io
import os
import stat
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile

from orca.data import file
from orca.errors import ArgumentError, MissingDependency
from orca.storage import files
from orca.storage.files import filesystem
from programs import program_of, run_program
from raised import raises

TREE = {"a": b"1", "deep/b": b"2", "deep/er/c d%": b"3"}


@pytest.fixture(params=["path", "file", "memory", "renaming", pytest.param("hdfs", marks=pytest.mark.yarn)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a new folder's path: of this machine, on a store, on a file system that renames, and on HDFS."""
    if request.param in ("path", "file"):
        (tmp_path / "at").mkdir()
        yield f"{'file://' * (request.param == 'file')}{tmp_path}/at"
        return
    if request.param == "hdfs":
        assert os.environ["HADOOP_CONF_DIR"]
        monkeypatch.setenv("HADOOP_USER_NAME", "ann")
        path = f"hdfs:///user/ann/{uuid.uuid4().hex[:8]}"
    else:
        path = "memory://at"
        if request.param == "renaming":
            monkeypatch.setattr(files, "_RENAMING", {"memory"})
    file.makedirs(path)
    yield path
    fs, root = filesystem(path)
    fs.rm(root, recursive=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, data in TREE.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(data)
    (tmp_path / "tree" / "empty").mkdir()
    return tmp_path / "tree"


def content(path: Any) -> dict[str, bytes]:
    fs, root = filesystem(str(path))
    return {name.removeprefix(root).lstrip("/"): fs.cat_file(name) for name in fs.find(root)}


def test_texts_arrays_and_images_are_read(place: str) -> None:
    assert file.write_text(f"{place}/new/text", " grün \n\nline\t\n") == 14
    assert file.open_text(f"{place}/new/text") == ["grün", "", "line"]
    assert file.write_text(f"{place}/new/text", "other") == 5
    assert file.open_text(f"{place}/new/text") == ["other"]
    fs, root = filesystem(place)
    sink = io.BytesIO()
    np.save(sink, np.arange(6).reshape(2, 3))
    fs.pipe_file(f"{root}/array.npy", sink.getvalue())
    np.testing.assert_array_equal(file.load_numpy(f"{place}/array.npy"), [[0, 1, 2], [3, 4, 5]])
    images = pytest.importorskip("PIL.Image")
    sink = io.BytesIO()
    images.new("RGB", (4, 2), (255, 0, 0)).save(sink, "PNG")
    fs.pipe_file(f"{root}/red.png", sink.getvalue())
    image = file.open_image(f"{place}/red.png")
    assert (image.size, image.getpixel((3, 1))) == ((4, 2), (255, 0, 0))
    assert file.listdir(place) == ["array.npy", "new", "red.png"]


def test_what_is_there_is_told(place: str) -> None:
    file.makedirs(f"{place}/folder/deep")
    file.makedirs(f"{place}/folder/deep")
    file.write_text(f"{place}/folder/file", "1")
    assert [file.exists(f"{place}/{name}") for name in ("folder", "folder/file", "nothing")] == [True, True, False]
    assert [file.is_file(f"{place}/{name}") for name in ("folder", "folder/file", "nothing")] == [False, True, False]
    with pytest.raises(ArgumentError, match="nothing is to be a file, but there is nothing. Check the path."):
        file.open_text(f"{place}/nothing")
    with raises("wrong-kind-of-path"):
        file.load_numpy(f"{place}/folder")
    with raises("path-is-folder"):
        file.write_text(f"{place}/folder", "")
    with pytest.raises(ArgumentError, match="file is to be a folder, but there is a file of 1 bytes"):
        file.listdir(f"{place}/folder/file")
    with pytest.raises(ArgumentError, match="file is to be a folder, but there is a file of 1 bytes"):
        file.makedirs(f"{place}/folder/file")
    with pytest.raises(ArgumentError, match="nothing is to be a folder, but there is nothing"):
        file.rmdir(f"{place}/nothing")
    file.rmdir(f"{place}/folder")
    assert file.listdir(place) == []


def test_a_file_goes_there_and_back(place: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"12")
    file.put_local_file_to_remote(str(tmp_path / "one"), f"{place}/deep/two")
    with pytest.raises(ArgumentError, match=r"deep/two there is a file of 2 bytes.* already. Pass over_write=True"):
        file.put_local_file_to_remote(str(tmp_path / "one"), f"{place}/deep/two")
    (tmp_path / "one").write_bytes(b"345")
    file.put_local_file_to_remote(f"file://{tmp_path}/one", f"{place}/deep/two", over_write=True)
    file.put_local_file_to_remote(tmp_path / "one", f"{place}/deep")  # into the folder, under its name
    assert content(place) == {"deep/two": b"345", "deep/one": b"345"}

    file.get_remote_file_to_local(f"{place}/deep/two", str(tmp_path / "new" / "back"))
    assert (tmp_path / "new" / "back").read_bytes() == b"345"
    with pytest.raises(ArgumentError, match=r"back there is a file of 3 bytes, written 20.* already"):
        file.get_remote_file_to_local(f"{place}/deep/two", str(tmp_path / "new" / "back"))
    (tmp_path / "new" / "back").write_bytes(b"")
    file.get_remote_file_to_local(f"{place}/deep/two", str(tmp_path / "new" / "back"), over_write=True)
    file.get_remote_file_to_local(f"{place}/deep/two", tmp_path / "new")
    assert content(tmp_path / "new") == {"back": b"345", "two": b"345"}
    with raises("wrong-kind-of-path"):
        file.get_remote_file_to_local(f"{place}/deep", str(tmp_path / "x"))
    with raises("missing-local-file"):
        file.put_local_file_to_remote(str(tmp_path / "nothing"), f"{place}/x")


def test_the_mode_of_a_file_is_set(place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "one").write_bytes(b"1")
    for mode, name in ((0o600, "a"), ("640", "b")):
        file.put_local_file_to_remote(tmp_path / "one", f"{place}/{name}", filemode=mode)
        fs, root = filesystem(f"{place}/{name}")
        if files.is_local(fs):
            assert stat.S_IMODE(os.stat(root).st_mode) == (mode if isinstance(mode, int) else 0o640)
        elif place.startswith("hdfs"):
            assert fs.info(root)["permission"] == (f"{mode:o}" if isinstance(mode, int) else mode)
        else:
            assert "whose files have no mode" in caplog.text
    with raises("bad-file-mode", match="'644'"):
        file.put_local_file_to_remote(tmp_path / "one", f"{place}/c", filemode="rwx")


def test_a_folder_goes_there_and_back(place: str, tree: Path, tmp_path: Path) -> None:
    file.put_local_dir_tree_to_remote(str(tree), f"{place}/new/tree")
    assert content(f"{place}/new/tree") == TREE
    assert file.listdir(f"{place}/new") == ["tree"]  # no draft
    if not place.startswith("memory"):
        assert file.listdir(f"{place}/new/tree/empty") == []
    for number, get in enumerate((file.get_remote_dir_to_local, file.get_remote_dir_tree_to_local)):
        get(f"{place}/new/tree", str(tmp_path / f"back{number}" / "again"))
        assert content(tmp_path / f"back{number}" / "again") == TREE
        assert (tmp_path / f"back{number}" / "again" / "empty").is_dir()
    with pytest.raises(ArgumentError, match="nothing is to be a folder, but there is nothing"):
        file.get_remote_dir_to_local(f"{place}/nothing", str(tmp_path / "x"))
    with raises("missing-local-file"):
        file.put_local_dir_to_remote(str(tmp_path / "nothing"), f"{place}/x")


def test_files_behind_links_are_copied(place: str, tree: Path) -> None:
    (tree.parent / "linked").mkdir()
    (tree.parent / "linked" / "folder").symlink_to(tree / "deep")
    (tree.parent / "linked" / "file").symlink_to(tree / "a")
    file.put_local_dir_tree_to_remote(tree.parent / "linked", f"{place}/new")
    assert content(f"{place}/new") == {"file": b"1", "folder/b": b"2", "folder/er/c d%": b"3"}


def test_folders_are_merged_and_files_replaced_only_when_asked(place: str, tree: Path, tmp_path: Path) -> None:
    file.write_text(f"{place}/to/other", "stays")
    file.write_text(f"{place}/to/deep/b", "old")
    with pytest.raises(ArgumentError, match=r"1 of the files are in .*to already, 'deep/b' for example: a file of 3"):
        file.put_local_dir_tree_to_remote(tree, f"{place}/to")
    assert content(f"{place}/to") == {"other": b"stays", "deep/b": b"old"}  # nothing was copied
    file.put_local_dir_tree_to_remote(tree, f"{place}/to", over_write=True)
    assert content(f"{place}/to") == {**TREE, "other": b"stays"}
    (tree / "a").write_bytes(b"newer")
    file.put_local_dir_to_remote(tree, f"{place}/to")  # has always replaced
    assert content(f"{place}/to") == {**TREE, "other": b"stays", "a": b"newer"}

    (tmp_path / "here").mkdir()
    file.get_remote_dir_to_local(f"{place}/to", tmp_path / "here")  # an empty folder is as good as none
    (tmp_path / "here" / "mine").write_bytes(b"mine")
    with raises("file-exists", match="'a'"):
        file.get_remote_dir_to_local(f"{place}/to", tmp_path / "here")
    file.get_remote_dir_to_local(f"{place}/to", tmp_path / "here", over_write=True)
    assert content(tmp_path / "here") == {**TREE, "other": b"stays", "a": b"newer", "mine": b"mine"}

    file.makedirs(f"{place}/clash/a")
    file.write_text(f"{place}/clash/a/inside", "")
    with raises("path-is-folder"):
        file.put_local_dir_tree_to_remote(tree, f"{place}/clash", over_write=True)
    with pytest.raises(ArgumentError, match="other is to be a folder, but there is a file of 5 bytes"):
        file.put_local_dir_tree_to_remote(tree, f"{place}/to/other", over_write=True)


def test_files_of_a_prefix_go_there_and_back(place: str, tmp_path: Path) -> None:
    for name in ("ckpt-1.index", "ckpt-1.data", "ckpt-2.index", "other"):
        (tmp_path / name).write_text(name)
    (tmp_path / "ckpt-1.folder").mkdir()
    file.put_local_files_with_prefix_to_remote(str(tmp_path / "ckpt-1"), f"{place}/kept")
    assert file.listdir(f"{place}/kept") == ["ckpt-1.data", "ckpt-1.index"]
    with raises("file-exists"):
        file.put_local_files_with_prefix_to_remote(str(tmp_path / "ckpt-"), f"{place}/kept")
    file.put_local_files_with_prefix_to_remote(str(tmp_path / "ckpt-"), f"{place}/kept", over_write=True)
    assert len(file.listdir(f"{place}/kept")) == 3
    beginning = file.get_remote_files_with_prefix_to_local(f"{place}/kept/ckpt-1", str(tmp_path / "got"))
    assert beginning == str(tmp_path / "got" / "ckpt-1")
    assert content(tmp_path / "got") == {"ckpt-1.data": b"ckpt-1.data", "ckpt-1.index": b"ckpt-1.index"}
    with pytest.raises(ArgumentError, match="no file begins with .*nothing"):
        file.get_remote_files_with_prefix_to_local(f"{place}/nothing", str(tmp_path / "got"))
    with raises("missing-local-file"):
        file.put_local_files_with_prefix_to_remote(str(tmp_path / "nothing"), place)


def test_a_copy_that_fails_leaves_nothing(
    place: str, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, _ = filesystem(place)
    file.put_local_dir_tree_to_remote(tree, f"{place}/whole")
    put, get, lock, done = type(fs).put_file, type(fs).get_file, threading.Lock(), []

    def failing(real: Any) -> Any:
        def full(self: Any, source: str, target: Any, **more: Any) -> None:
            with lock:
                done.append(source)
                if len(done) % 3 == 0:
                    raise OSError("No space left on device")
            real(self, source, target, **more)

        return full

    monkeypatch.setattr(type(fs), "put_file", failing(put))
    monkeypatch.setattr(type(fs), "get_file", failing(get))
    with pytest.raises(OSError, match="No space left"):
        file.put_local_dir_tree_to_remote(tree, f"{place}/half")
    if files.renames(fs):
        assert file.listdir(place) == ["whole"]
    with pytest.raises(OSError, match="No space left"):
        file.get_remote_dir_to_local(f"{place}/whole", tmp_path / "half")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("half")]
    with pytest.raises(OSError, match="No space left"):
        file.put_local_dir_tree_to_remote(tree, f"{place}/whole", over_write=True)
    assert content(f"{place}/whole") == TREE


def test_small_files_are_copied_side_by_side(place: str, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs, _ = filesystem(place)
    meeting, put = threading.Barrier(len(TREE), timeout=20), type(fs).put_file

    def together(self: Any, source: str, target: str, **more: Any) -> None:
        meeting.wait()
        put(self, source, target, **more)

    monkeypatch.setattr(type(fs), "put_file", together)
    file.put_local_dir_tree_to_remote(tree, f"{place}/new")
    assert content(f"{place}/new") == TREE


class Model:
    """A model that knows this machine's files alone."""

    def __init__(self, value: str = "", kind: str = "file") -> None:
        self.value, self.kind = value, kind

    @file.enable_multi_fs_save
    def save(self, path: str, overwrite: bool = True, fail: bool = False) -> str:
        assert os.path.isdir(os.path.dirname(path)), "this machine has no such folder"
        if fail:
            raise KeyError(path)
        if self.kind == "folder":
            os.makedirs(path, exist_ok=True)
        names = {"file": [path], "folder": [f"{path}/a", f"{path}/b"], "family": [f"{path}.a", f"{path}.b"], "": []}
        for name in names[self.kind]:
            Path(name).write_text(self.value)
        return "saved"

    @file.enable_multi_fs_load
    def load(self, path: str) -> None:
        self.value = self.read(path)

    @staticmethod
    @file.enable_multi_fs_load_static
    def read(path: str, times: int = 1) -> str:
        found = next(name for name in (path, f"{path}/b", f"{path}.b") if os.path.isfile(name))
        return Path(found).read_text() * times


@pytest.mark.parametrize("kind", ["file", "folder", "family"])
def test_functions_of_this_machines_files_reach_any_path(place: str, kind: str) -> None:
    path = f"{place}/models/one"
    if place.startswith(("/", "file:")):
        file.makedirs(f"{place}/models")
    assert Model("first", kind).save(path) == "saved"
    assert Model("second", kind).save(path=path) == "saved"
    assert Model.read(path, times=2) == "secondsecond"
    other = Model()
    other.load(path=path)
    assert other.value == "second"
    assert file.listdir(f"{place}/models") == (["one.a", "one.b"] if kind == "family" else ["one"])


def test_functions_of_this_machines_files_are_copied_whole_or_not_at_all(place: str) -> None:
    if place.startswith(("/", "file:")):
        pytest.skip("such a path is the function's own")
    model = Model("1")
    model.save(f"{place}/one")
    with raises("file-exists", match="'one'"):
        model.save(f"{place}/one", overwrite=False)
    with pytest.raises(KeyError):
        Model("2").save(f"{place}/one", fail=True)
    with raises("nothing-written"):
        Model("2", "").save(f"{place}/two")
    with pytest.raises(ArgumentError, match="no file begins with .*nothing"):
        model.load(f"{place}/nothing")
    assert content(place) == {"one": b"1"}


@pytest.mark.yarn
def test_programs_of_the_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    assert os.environ["HADOOP_CONF_DIR"]
    monkeypatch.setenv("HADOOP_USER_NAME", "me")
    page = Path(__file__).resolve().parents[2] / "docs" / "files.md"
    run_program(program_of(page), timeout=100)


def test_both_sides_may_not_be_remote(tmp_path: Path) -> None:
    with raises("path-not-local"):
        file.put_local_dir_to_remote("memory://a", "memory://b")


def test_names_that_would_leave_the_folder_are_refused(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.store["/evil/../../out"] = MemoryFile(fs, "/evil/../../out", b"1")
    fs.pseudo_dirs.append("/evil")
    try:
        with raises("path-leaves-folder"):
            file.get_remote_dir_to_local("memory://evil", tmp_path / "in")
    finally:
        fs.store.clear()
        fs.pseudo_dirs[:] = [""]


def test_paths_that_nothing_here_opens_are_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with raises("unknown-file-system", match="'nosuch'"):
        file.exists("nosuch://host/a")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for scheme in ("s3", "s3a"):
        with pytest.raises(MissingDependency, match="s3://bucket/a needs the package 's3fs'.*pip install s3fs"):
            file.exists(f"{scheme}://bucket/a")
    for name in ("DATABRICKS_HOST", "DATABRICKS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(files, "_MOUNT", str(tmp_path / "none"))
    with raises("databricks-not-reachable"):
        file.exists("dbfs:/a")
    monkeypatch.setattr(files, "_MOUNT", str(tmp_path))
    file.write_text("dbfs:/folder/text", "1")
    assert (tmp_path / "folder" / "text").read_text() == "1"
