"""Folders of pickles; without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orca.data import pickles
from orca.errors import ArgumentError


class OnePartition:
    """A partition in this process, with the methods of an RDD that are asked for."""

    def __init__(self, shards: list[Any]) -> None:
        self.shards = shards

    def mapPartitionsWithIndex(self, function: Any) -> OnePartition:
        return OnePartition(list(function(0, iter(self.shards))))

    def collect(self) -> list[Any]:
        return self.shards


def test_a_folder_that_was_not_written_to_its_end_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    pickles.save(OnePartition([1, "two"]), path)
    (file,) = pickles.files_at(path)
    assert pickles.loading()(file) == [1, "two"]
    with pytest.raises(ArgumentError, match="save_pickle: there is something at .*saved already"):
        pickles.save(OnePartition([3]), path)
    (tmp_path / "saved" / "_SUCCESS").unlink()
    with pytest.raises(ArgumentError, match="saving did not end; it has .*pickle.*Save them anew"):
        pickles.files_at(path)
    assert pickles.files_at(str(tmp_path / "none")) == []
