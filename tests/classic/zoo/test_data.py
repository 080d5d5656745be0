"""Shared values and readers of pandas, as older programs know them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bigdl.orca.data import SharedValue
from bigdl.orca.data.pandas import read_csv
from orca import OrcaContext
from orca.data import pandas as ours


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "rows.csv").write_text("1,a,0.5\n2,b,1.5\n")
    return str(tmp_path / "rows.csv")


def test_columns_without_a_header_are_named_by_texts(spark: Any, file: str) -> None:
    assert read_csv(file, header=None).collect()[0].columns.tolist() == ["0", "1", "2"]
    assert read_csv(file, header=None, usecols=[0, 2], index_col=0).collect()[0].columns.tolist() == ["2"]
    assert read_csv(file, header=None, names=["x", "y", "z"]).collect()[0].columns.tolist() == ["x", "y", "z"]
    assert read_csv(file, header=None, usecols=[2], squeeze=True).collect()[0].name == "2"
    assert ours.read_csv(file, header=None).collect()[0].columns.tolist() == [0, 1, 2]
    OrcaContext.pandas_read_backend = "pandas"
    try:
        assert read_csv(file, header=None).collect()[0].columns.tolist() == [0, 1, 2]
    finally:
        OrcaContext.pandas_read_backend = "spark"


def test_function_sees_a_shared_value_by_its_value(spark: Any, file: str) -> None:
    by = SharedValue({"by": 3})
    shards = read_csv(file, header=None).transform_shard(lambda frame, by: frame["0"] * by.value["by"], by)
    assert shards.collect()[0].tolist() == [3, 6]
    by.unpersist()
