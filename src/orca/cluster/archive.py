"""Archive: many files as one .tar.gz, written with all cores. Owns the format that travels and how programs in it are
made to work at any path: shebangs and the interpreter's way to its shared library.

The standard library's tarfile compresses on one core, and no packer makes an interpreter relocatable.
"""

from __future__ import annotations

import collections
import io
import os
import re
import stat
import struct
import sys
import tarfile
import zlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any, cast

from orca.errors import OrcaError

LEVEL = 1  # docs/environment.md has the measurements
BLOCK = 1 << 20
SUFFIX = ".tar.gz"
# The two forms that installers write; the second is for long paths.
_SHEBANG = re.compile(
    rb"#! *(?P<direct>/\S*/python[\d.]*t?)[^\n]*\n"
    rb"|#!/bin/sh\n'''exec' [\"']?(?P<shell>/[^\n\"']*/python[^\n\"']*)[^\n]*\n' '''\n"
)
_ELF = b"\x7fELF\x02\x01"  # 64 bits, little-endian: x86_64 and aarch64
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _RPATH, _RUNPATH = 1, 5, 15, 29


@dataclass(frozen=True)
class Entry:
    """A file of an archive.

    Args:
        target: Its path in the archive.
        source: The file whose bytes it gets; "" where `data` or `link` has them.
        size: Bytes.
        mtime: Nanoseconds; a .pyc holds only with the time of its source.
        mode: Permissions.
        data: The bytes themselves, where they are not those of a file.
        link: The target of a symbolic link, relative to the folder of `target`.
        origin: The name of this file for another packer.
    """

    target: str
    source: str = ""
    size: int = 0
    mtime: int = 0
    mode: int = 0o644
    data: bytes | None = None
    link: str | None = None
    origin: Any = None


def write(file: IO[bytes], entries: Iterable[Entry], level: int = LEVEL, threads: int | None = None) -> None:
    """Write entries as a .tar.gz; show bytes on a terminal.

    Args:
        file: The file to write; only written, never sought.
        entries: The files of the archive.
        level: How hard zlib tries, 1 to 9; 0 stores.
        threads: How many compress; None takes all cores.
    """
    entries = list(entries)
    with (
        _bar(sum(entry.size for entry in entries)) as bar,
        _Gzip(file, level, threads or os.cpu_count() or 1) as out,
        tarfile.open(fileobj=cast(IO[bytes], out), mode="w|", format=tarfile.GNU_FORMAT, bufsize=BLOCK) as tar,
    ):
        for entry in entries:
            _add(tar, entry)
            bar.update(entry.size)


def script(data: bytes, prefix: str) -> bytes:
    """Return a script of an environment that finds its interpreter beside itself, wherever that is; others as is."""
    shebang = _SHEBANG.match(data)
    if shebang is None or not (shebang["direct"] or shebang["shell"]).startswith(prefix.encode() + b"/"):
        return data
    # A shell sees the second line as a command and never the third; Python sees both as a string.
    head = b'#!/bin/sh\n\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"\n\' \'\'\'\n'
    return head + data[shebang.end() :]


def relocated(data: bytes, prefix: str, name: str) -> bytes:
    """Return an interpreter, in bin/ of a prefix, that finds libpython in lib/ beside it, wherever the prefix lies.

    Args:
        data: The bytes of the program.
        prefix: Its present folder.
        name: Its path, for the message.
    """
    libraries, at, path = _dynamic(data)
    if not any(library.startswith(b"libpython") for library in libraries) or b"$ORIGIN" in path:
        return data
    relative = b"$ORIGIN/../lib"
    if at == 0 or len(relative) > len(path):
        search = f"looks for it in {path.decode()}" if at else "leaves it to the system to find it"
        raise OrcaError(
            f"{name} needs its shared library of {prefix}/lib and {search}, so a copy of it would not start on a node "
            f"without {prefix}. Make the environment with a relocatable Python (uv python install; uv venv "
            "--managed-python), or install it on the nodes and pass ship_environment=False.",
            code="python-not-relocatable",
        )
    return data[:at] + relative.ljust(len(path), b"\0") + data[at + len(path) :]


def _dynamic(data: bytes) -> tuple[list[bytes], int, bytes]:
    """Return the libraries that an ELF program needs, and offset and text of where it looks for them (0: nowhere)."""
    if not data.startswith(_ELF):
        return [], 0, b""
    (headers,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    loads, tags = [], []
    for number in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, headers + number * size)
        if kind == _LOAD:
            loads.append((address, offset, length))
        elif kind == _DYNAMIC:
            tags = list(struct.iter_unpack("<QQ", data[offset : offset + length // 16 * 16]))
    table = next((value for tag, value in tags if tag == _STRINGS), None)
    start = next(
        (offset + table - at for at, offset, size in loads if table is not None and at <= table < at + size), 0
    )
    if not start:
        return [], 0, b""

    def text(value: int) -> bytes:
        return data[start + value : data.index(b"\0", start + value)]

    libraries = [text(value) for tag, value in tags if tag == _NEEDED]
    path = next((value for tag, value in tags if tag in (_RPATH, _RUNPATH)), None)
    return (libraries, 0, b"") if path is None else (libraries, start + path, text(path))


def _add(tar: tarfile.TarFile, entry: Entry) -> None:
    """Write one entry, without owner and group, readable for all."""
    info = tarfile.TarInfo(entry.target)
    info.mtime = entry.mtime // 1_000_000_000
    info.mode = stat.S_IMODE(entry.mode) & 0o755 | 0o444
    if entry.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
        tar.addfile(info)
    elif entry.data is not None:
        info.size = len(entry.data)
        tar.addfile(info, io.BytesIO(entry.data))
    else:
        with open(entry.source, "rb") as source:
            info.size = os.fstat(source.fileno()).st_size
            tar.addfile(info, source)


def _bar(total: int) -> Any:
    """Return a bar of bytes that is silent without a terminal."""
    from tqdm.auto import tqdm

    quiet = None if "ipykernel" not in sys.modules else False
    return tqdm(total=total, desc="packing the environment", unit="B", unit_scale=True, disable=quiet, leave=False)


class _Gzip:
    """One gzip stream whose blocks are compressed by several threads: zlib works without Python's lock."""

    def __init__(self, file: IO[bytes], level: int, threads: int) -> None:
        self.file, self.level, self.ahead = file, level, 4 * threads
        self.pool = ThreadPoolExecutor(threads, "orca-pack")
        self.blocks: collections.deque[Future[bytes]] = collections.deque()
        self.crc = self.length = 0

    def __enter__(self) -> _Gzip:
        self.file.write(b"\x1f\x8b\x08\0\0\0\0\0\0\xff")
        return self

    def write(self, data: bytes) -> int:
        """Take a block; it reaches the file when those before it have."""
        self.crc = zlib.crc32(data, self.crc)
        self.length += len(data)
        self.blocks.append(self.pool.submit(_deflated, bytes(data), self.level, zlib.Z_SYNC_FLUSH))
        self._pass_on(self.ahead)
        return len(data)

    def _pass_on(self, ahead: int) -> None:
        while len(self.blocks) > ahead:
            self.file.write(self.blocks.popleft().result())

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._pass_on(0)
                end = struct.pack("<II", self.crc, self.length & 0xFFFFFFFF)
                self.file.write(_deflated(b"", self.level, zlib.Z_FINISH) + end)
        finally:
            self.pool.shutdown(cancel_futures=True)


def _deflated(data: bytes, level: int, flush: int) -> bytes:
    deflate = zlib.compressobj(level, wbits=-15)
    return deflate.compress(data) + deflate.flush(flush)
