"""Archives: what every tar and gzip reads, written by several threads; programs that find their parts beside them."""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest

from orca.cluster import archive
from orca.cluster.archive import Entry
from orca.errors import OrcaError


@pytest.mark.parametrize("threads", [1, 3])
def test_is_one_gzip_stream_of_a_tar(tmp_path: Path, threads: int) -> None:
    data = random.Random(0).randbytes(3 * archive.BLOCK + 17)
    (tmp_path / "source").write_bytes(data)
    stat = (tmp_path / "source").stat()
    entries = [
        Entry("lib/large", str(tmp_path / "source"), stat.st_size, stat.st_mtime_ns, 0o600),
        Entry("bin/" + "long" * 60, data=b"#!/bin/sh\n", size=10, mode=0o755),
        Entry("bin/link", link="../lib/large"),
    ]
    path = tmp_path / "packed.tar.gz"
    with path.open("wb") as file:
        archive.write(file, entries, threads=threads)
    raw = path.read_bytes()
    assert raw.count(b"\x1f\x8b\x08\0\0\0\0\0\0\xff") == 1  # one member: some readers stop after the first
    assert struct.unpack("<I", raw[-4:])[0] == len(gzip.decompress(raw))
    subprocess.run(["gzip", "-t", str(path)], check=True)
    with tarfile.open(path) as tar:
        large, script, link = tar.getmembers()
        read = tar.extractfile(large)
        assert read is not None and read.read() == data
    assert (large.mode, large.mtime, large.uid) == (0o644, int(stat.st_mtime), 0)
    assert (script.mode, script.name, link.linkname) == (0o755, "bin/" + "long" * 60, "../lib/large")


def test_a_file_that_goes_away_is_an_error_and_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        archive.write(io.BytesIO(), [Entry("x", str(tmp_path / "gone"), 1)])
    import threading

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("orca-pack")]


@pytest.mark.parametrize(
    "head", ["#!/env/bin/python3\n", "#!/bin/sh\n'''exec' '/env/bin/python3' \"$0\" \"$@\"\n' '''\n"]
)
def test_scripts_of_an_environment_run_with_the_interpreter_beside_them(tmp_path: Path, head: str) -> None:
    changed = archive.script((head + "import sys\nprint(sys.argv[1])\n").encode(), "/env")
    folder = tmp_path / "a place"
    folder.mkdir()
    (folder / "tell").write_bytes(changed)
    (folder / "python").write_text('#!/bin/sh\necho "$0"; exec cat "$1"\n')
    for name in ("tell", "python"):
        os.chmod(folder / name, 0o755)
    said = subprocess.run([str(folder / "tell"), "x"], check=True, capture_output=True, text=True).stdout
    assert said.startswith(str(folder / "python")) and "/env" not in said
    compile(changed, "tell", "exec")


def test_other_scripts_stay_as_they_are() -> None:
    for data in (b"#!/bin/sh\necho\n", b"#!/usr/bin/python3\n", b"\x7fELF", b""):
        assert archive.script(data, "/env") == data


def program(path: bytes | None) -> bytes:
    """Return the least that is an ELF program which needs libpython and looks for it in a path."""
    strings = b"\0libpython3.11.so.1.0\0" + (path or b"") + b"\0"
    start = 64 + 2 * 56
    tags = [(5, start), (1, 1), *([(29, 22)] if path is not None else []), (0, 0)]
    table = start + len(strings)
    header = b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<Q", 64) + b"\0" * 14 + struct.pack("<HH", 56, 2)
    loads = struct.pack("<IIQQQQQQ", 1, 0, 0, 0, 0, table, table, 0)
    dynamic = struct.pack("<IIQQQQQQ", 2, 0, table, table, 0, 16 * len(tags), 16 * len(tags), 0)
    return header.ljust(64, b"\0") + loads + dynamic + strings + b"".join(struct.pack("<QQ", *tag) for tag in tags)


def test_an_interpreter_looks_for_its_library_beside_it() -> None:
    changed = archive.relocated(program(b"/opt/pythons/3.11/lib"), "/opt/pythons/3.11", "python")
    assert changed == program(b"$ORIGIN/../lib\0\0\0\0\0\0\0")
    ready = program(b"$ORIGIN/../lib")
    assert archive.relocated(ready, "/opt", "python") == ready
    assert archive.relocated(b"#!/bin/sh", "/opt", "python") == b"#!/bin/sh"


@pytest.mark.parametrize(
    ("path", "words"), [(b"/py/lib", "looks for it in /py/lib"), (None, "leaves it to the system to find it")]
)
def test_an_interpreter_that_cannot_is_refused(path: bytes | None, words: str) -> None:
    with pytest.raises(OrcaError, match=words) as failure:
        archive.relocated(program(path), "/py", "/py/bin/python3.11")
    assert "uv python install" in str(failure.value) and "ship_environment=False" in str(failure.value)
