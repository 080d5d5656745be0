"""Small helpers for paths of older programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orca_classic.zoo.paths import convert_to_safe_path, is_local_path


def test_safe_path_is_absolute_and_without_detours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "true").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "true")
    monkeypatch.chdir(tmp_path)
    assert convert_to_safe_path("link/../link/a") == str(tmp_path / "true" / "a")
    assert convert_to_safe_path("b/../link/a", follow_symlinks=False) == str(tmp_path / "link" / "a")


@pytest.mark.parametrize(
    ("path", "local"), [("a/b", True), ("/a", True), ("file:///a", True), ("hdfs://n/a", False), ("s3://b/a", False)]
)
def test_path_of_this_machine_is_told_by_its_scheme(path: str, local: bool) -> None:
    assert is_local_path(path) is local
