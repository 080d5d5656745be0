from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

TOOL = Path(__file__).resolve().parents[2] / "tools" / "build_horovod.py"


def check(cache: Path, path: str) -> subprocess.CompletedProcess[str]:
    """Ask the tool about this environment, with another cache and other programs."""
    environment = {**os.environ, "ORCA_HOROVOD_CACHE": str(cache), "PATH": path, "CXX": ""}
    command = [sys.executable, str(TOOL), "--venv", sys.prefix, "--check"]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.full
def test_what_is_cached_is_found_and_what_is_missing_named(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    without = check(tmp_path, str(programs))
    assert without.returncode == 1
    assert without.stderr.count("\n") == 1 and "there is no C++ compiler and no make to build it" in without.stderr

    for name in ("c++", "make"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    able = check(tmp_path, str(programs))
    assert able.returncode == 0 and able.stdout.startswith("to be built for horovod0.28.1-")

    folder = tmp_path / able.stdout.split()[-1]
    folder.mkdir()
    (folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl").touch()
    for name in ("c++", "make"):
        (programs / name).unlink()
    kept = check(tmp_path, str(programs))
    assert kept.returncode == 0 and kept.stdout.startswith(f"cached: {folder}")
