"""read_csv of the older systems, with their names of columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd


def test_columns_without_a_header_are_named_by_text(spark: Any, tmp_path: Path) -> None:
    from bigdl.orca.data.pandas import read_csv
    from zoo.orca.data import pandas as older

    (tmp_path / "a.csv").write_text("1,x\n2,y\n")
    frame = pd.DataFrame({"0": [1, 2], "1": ["x", "y"]})
    for read in (read_csv, older.read_csv):
        (shard,) = read(str(tmp_path / "a.csv"), header=None).collect()
        pd.testing.assert_frame_equal(shard, frame)
    (series,) = read_csv(str(tmp_path / "a.csv"), header=None, usecols=[1], squeeze=True).collect()
    assert series.name == "1" and series.tolist() == ["x", "y"]
    (named,) = read_csv(str(tmp_path / "a.csv"), header=None, names=["n", "s"]).collect()
    assert list(named.columns) == ["n", "s"]
    (headed,) = read_csv(str(tmp_path / "a.csv")).collect()
    assert list(headed.columns) == ["1", "x"]
