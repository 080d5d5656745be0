"""Files of tables as XShards of pandas DataFrames: the public names."""

from orca.data.pandas.reading import read_csv, read_json, read_parquet

__all__ = ["read_csv", "read_json", "read_parquet"]
