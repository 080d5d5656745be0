"""Packing: what formats of a packed environment cost, in time and bytes: `python -m benchmarks.packing [FOLDER]`.

Packs the environment it runs in, unpacks it, and prints one line of a table for each format. FOLDER, a temporary one by
default, must have room for the environment twice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from orca.cluster import archive, environment


def main() -> None:
    began = time.perf_counter()
    entries = environment._entries()
    environment._digest(entries)
    told = f"{len(entries)} files, {sum(entry.size for entry in entries) / 1e9:.2f} GB"
    print(f"{told}, told apart in {time.perf_counter() - began:.1f} s\n", flush=True)
    print("| format | packing (CPU) | size | unpacking (CPU) |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as folder:
        for name, (level, threads) in FORMATS.items():
            row(name, Path(folder, "packed.tar"), lambda path, lv=level, n=threads: tar(path, entries, lv, n), untar)
        for name, how in ZIPS.items():
            row(name, Path(folder, "packed.zip"), lambda path, how=how: zipped(path, entries, *how), unzip)


FORMATS = {
    "tar.gz, stored": (0, 1),
    "tar.gz, level 1, one thread": (1, 1),
    "tar.gz, level 1, all cores": (1, None),
    "tar.gz, level 6, all cores": (6, None),
}
ZIPS = {"zip, stored": (zipfile.ZIP_STORED, None), "zip, level 1": (zipfile.ZIP_DEFLATED, 1)}


def row(name: str, path: Path, pack: Callable[[Path], None], unpack: Callable[[Path, Path], None]) -> None:
    packed = seconds(lambda: pack(path))
    target = path.with_name("unpacked")
    target.mkdir()
    unpacked = seconds(lambda: unpack(path, target))
    print(f"| {name} | {packed} | {path.stat().st_size / 1e9:.2f} GB | {unpacked} |", flush=True)
    shutil.rmtree(target)
    path.unlink()


def seconds(call: Callable[[], None]) -> str:
    """Return the time of a call by the clock, and of all cores together."""
    began, before = time.perf_counter(), sum(os.times()[:4])
    call()
    return f"{time.perf_counter() - began:.0f} s ({sum(os.times()[:4]) - before:.0f} s)"


def tar(path: Path, entries: list[archive.Entry], level: int, threads: int | None) -> None:
    with path.open("wb") as file:
        archive.write(file, entries, level, threads)


def untar(path: Path, target: Path) -> None:
    subprocess.run(["tar", "-xf", str(path), "-C", str(target)], check=True)


def zipped(path: Path, entries: list[archive.Entry], method: int, level: int | None) -> None:
    with zipfile.ZipFile(path, "w", method, compresslevel=level, strict_timestamps=False) as file:
        for entry in entries:
            if entry.data is not None:
                file.writestr(entry.target, entry.data)
            elif entry.link is None:
                file.write(entry.source, entry.target)


def unzip(path: Path, target: Path) -> None:
    with zipfile.ZipFile(path) as file:
        file.extractall(target)


if __name__ == "__main__":
    main()
