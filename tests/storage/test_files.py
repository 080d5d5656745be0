from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from orca.errors import ArgumentError
from orca.storage import files
from raised import raises

FOLDER = {"state.json": b"{}", "weights": b"12", "deep/er": b"3"}
KNOWN = {"state.json", "weights", "deep"}


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.fixture(params=["local", "store", "renaming", pytest.param("hdfs", marks=pytest.mark.yarn)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Yield a folder on this machine, on an object store, on a remote file system that renames, and on HDFS."""
    if request.param == "hdfs":
        assert os.environ["HADOOP_CONF_DIR"]
        monkeypatch.setenv("HADOOP_USER_NAME", "ann")
        folder = f"hdfs:///user/ann/{uuid.uuid4().hex[:8]}"
        yield folder
        fs, root = files.filesystem(folder)
        if fs.exists(root):
            fs.rm(root, recursive=True)
        return
    if request.param == "renaming":
        monkeypatch.setattr(files, "_RENAMING", {"memory"})
    yield str(tmp_path / "at") if request.param == "local" else "memory://at"


def content(path: str) -> dict[str, bytes]:
    fs, root = files.filesystem(path)
    return {name.removeprefix(root).lstrip("/"): fs.cat_file(name) for name in fs.find(root)}


def test_every_path_has_its_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    for path in (here, f"file://{here}", f"file:{here}", tmp_path, "."):
        fs, place = files.filesystem(path)
        assert (files.is_local(fs), place.rstrip("/.")) == (True, here)
    assert files.filesystem("a:b")[1] == f"{here}/a:b"  # a name, not a scheme
    for path in ("memory://a/b", "memory:/a/b"):
        assert files.filesystem(path)[1] == "/a/b"
    pytest.importorskip("requests")
    fs, place = files.filesystem("hdfs://node:8020/a b/c#d?e")  # nobody is asked yet
    assert (fs.unstrip_protocol(place), place) == ("hdfs://node:8020/a b/c#d?e", "/a b/c#d?e")
    assert [files.renames(fs), files.replaces(fs), files.is_local(fs)] == [True, True, False]


def test_a_file_and_a_folder_replace_what_was_there(place: str) -> None:
    for path in (f"{place}/one", f"{place}/other/"):
        files.write(path, FOLDER, KNOWN)
        files.write(path, {"state.json": b"new", "weights": b"45"}, KNOWN)
        assert content(path.rstrip("/")) == {"state.json": b"new", "weights": b"45"}  # nothing of the older one
        files.write(path, {"": b"a file"}, KNOWN)
        assert content(path.rstrip("/")) == {"": b"a file"}
        files.write(path, {"": b"another"}, KNOWN)
        files.write(path, FOLDER, KNOWN)
        assert content(path.rstrip("/")) == FOLDER
    assert set(content(place)) == {f"{name}/{file}" for name in ("one", "other") for file in FOLDER}  # no drafts


def test_a_file_and_a_folder_of_this_machine_are_put_there(place: str, tmp_path: Path) -> None:
    (tmp_path / "made" / "deep").mkdir(parents=True)
    for name, data in FOLDER.items():
        (tmp_path / "made" / name).write_bytes(data)
    for _ in range(2):
        files.put(str(tmp_path / "made"), f"{place}/folder", KNOWN)
        files.put(str(tmp_path / "made" / "weights"), f"{place}/file", None)
    assert content(f"{place}/folder") == FOLDER
    assert content(f"{place}/file") == {"": b"12"}


def test_files_may_be_written_by_functions_and_read_from_this_machine(place: str) -> None:
    def make(path: str) -> None:
        Path(path).write_bytes(b"made")

    def fail(path: str) -> None:
        Path(path).write_bytes(b"half")
        raise RuntimeError("no more")

    files.write(f"{place}/folder", {"weights": make, "state.json": b"{}"}, KNOWN)
    with pytest.raises(RuntimeError, match="no more"):
        files.write(f"{place}/failed", {"weights": fail, "state.json": b"{}"}, KNOWN)
    assert content(place) == {"folder/weights": b"made", "folder/state.json": b"{}"}
    fs, spot = files.filesystem(f"{place}/folder/weights")
    with files.here(fs, spot) as path:
        assert Path(path).read_bytes() == b"made"
        assert (path == spot) == files.is_local(fs)
    assert Path(path).exists() == files.is_local(fs)


def test_a_folder_with_other_things_is_not_replaced(place: str) -> None:
    files.write(f"{place}/mine", {"thesis.tex": b"years of work", "state.json": b""}, KNOWN)
    for known, named in ((KNOWN, "thesis.tex"), (None, "state.json")):
        with pytest.raises(ArgumentError, match=f"mine holds other things than a saved model, '{named}' for example.*"):
            files.write(f"{place}/mine", {"": b""}, known)
    with raises("foreign-files-in-folder"):
        files.refuse_foreign(f"{place}/mine", KNOWN, "words", "a shelf")
    assert content(f"{place}/mine")["thesis.tex"] == b"years of work"


@pytest.mark.parametrize("before", [True, False])
def test_a_write_that_fails_leaves_nothing_half_written(
    place: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, _ = files.filesystem(place)
    if before:
        files.write(f"{place}/one", FOLDER, KNOWN)
    write, written = type(fs).pipe_file, []

    def full(fs: Any, spot: str, data: bytes, **more: Any) -> None:
        if len(written) == 2:
            raise OSError("No space left on device")
        written.append(os.path.basename(spot))
        write(fs, spot, data, **more)

    with monkeypatch.context() as patch:
        patch.setattr(type(fs), "pipe_file", full)
        with pytest.raises(OSError, match="No space left"):
            files.write(f"{place}/one", {"state.json": b"new", "a": b"1", "b": b"2"}, KNOWN)
    assert written == ["a", "b"]  # the marker is the last
    renames = files.renames(fs)
    assert content(place) == ({f"one/{name}": data for name, data in FOLDER.items()} if before and renames else {})


def test_a_store_shows_no_marker_while_an_older_folder_is_replaced(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write("memory://at/one", FOLDER, KNOWN)
    seen, write, drop = [], type(memory).pipe_file, type(memory).rm

    def watched_write(fs: Any, spot: str, data: bytes, **more: Any) -> None:
        seen.append(fs.exists("/at/one/state.json"))
        write(fs, spot, data, **more)

    def watched_removal(fs: Any, spot: str, **more: Any) -> None:
        seen.append(fs.exists("/at/one/state.json"))
        drop(fs, spot, **more)

    monkeypatch.setattr(type(memory), "pipe_file", watched_write)
    monkeypatch.setattr(type(memory), "rm", watched_removal)
    files.write("memory://at/one", FOLDER, KNOWN)
    files.remove("memory://at/one")
    assert seen == [False] * 5  # the removal of the old, three files, the removal of the new
    assert not memory.exists("/at/one")


def test_what_is_written_reaches_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")).split(".draft-")[0])
        sync(handle)

    def replaced(source: str, target: str) -> None:
        done.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    files.write(str(tmp_path / "one"), FOLDER, KNOWN)
    assert done[-2:] == ["replace", tmp_path.name]
    assert sorted(done[:-2]) == sorted(["state.json", "weights", "er", "deep", "one"])


def test_folders_that_cannot_be_opened_are_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refused(place: Any, *more: Any, **options: Any) -> int:
        if os.path.isdir(place):
            raise PermissionError("a folder that may be written to, and not listed")
        return opened(place, *more, **options)

    monkeypatch.setattr(os, "open", refused)
    files.write(f"{tmp_path}/model.pt", {"": b"one"}, None)
    assert (tmp_path / "model.pt").read_bytes() == b"one"


def test_removing_leaves_nothing(place: str) -> None:
    files.write(f"{place}/folder", FOLDER, KNOWN)
    files.write(f"{place}/file", {"": b"1"}, KNOWN)
    for name in ("folder", "file"):
        files.remove(f"{place}/{name}")
    assert content(place) == {}


def test_leftovers_of_killed_writes_are_cleared(place: str) -> None:
    fs, root = files.filesystem(place)
    for name in (
        "one.draft-01234567/weights", "one/state.json", "one.old-01234567/state.json", "two.old-01234567/state.json",
        "theirs.draft-01234567", "one.draft-of-a-letter", "one.draft-0123456789",
    ):  # fmt: skip
        fs.makedirs(os.path.dirname(f"{root}/{name}"), exist_ok=True)
        fs.pipe_file(f"{root}/{name}", name.encode())
    files.clear_leftovers(place, lambda name: name != "theirs")
    assert content(place) == {
        "one/state.json": b"one/state.json",
        "two/state.json": b"two.old-01234567/state.json",  # killed between moving it aside and putting the new one
        "theirs.draft-01234567": b"theirs.draft-01234567",
        "one.draft-of-a-letter": b"one.draft-of-a-letter",
        "one.draft-0123456789": b"one.draft-0123456789",
    }
    assert [files.is_leftover(n) for n in ("a.draft-01234567", "a.b.old-89abcdef", "a.draft-x", "draft")] == [
        True, True, False, False,
    ]  # fmt: skip
    files.clear_leftovers(f"{place}/nowhere", lambda name: True)
