"""Files of tables as XShards, as zoo.orca.data.pandas.preprocessing names them."""

from orca.data.pandas import read_csv, read_json, read_parquet

__all__ = ["read_csv", "read_json", "read_parquet"]
