"""Shard frames: DataFrames as shards of arrays, and predictions as columns: `bigdl.orca.learn.utils`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.data.shard import SparkXShards, spark_df_to_pd_sparkxshards
from orca.errors import ArgumentError, DataError
from orca.rows.tree import flatten, rows_of, unflatten

if TYPE_CHECKING:
    import pandas as pd
    from pyspark import RDD
    from pyspark.sql import DataFrame

__all__ = [
    "add_predict_to_pd_xshards", "convert_predict_rdd_to_dataframe", "convert_predict_rdd_to_xshard",
    "convert_predict_xshards_to_dataframe", "dataframe_to_xshards", "maybe_dataframe_to_xshards",
    "update_predict_xshards",
]  # fmt: skip
MODES = ("fit", "evaluate", "predict")


def dataframe_to_xshards(
    data: DataFrame,
    validation_data: DataFrame | None,
    feature_cols: Sequence[str],
    label_cols: Sequence[str] | None,
    mode: str = "fit",
    num_workers: int | None = None,
    accept_str_col: bool = False,
    shard_size: int | None = None,
) -> tuple[SparkXShards, SparkXShards | None]:
    """Return DataFrames as shards `{"x": arrays, "y": arrays}`: one array for one column, a tuple for several.

    Args:
        data: The rows.
        validation_data: More rows, in as many partitions; or None.
        feature_cols: The columns of x.
        label_cols: The columns of y; not used with mode="predict".
        mode: "fit", "evaluate" or "predict".
        num_workers: The fewest partitions that the shards have, unless mode is "predict".
        accept_str_col: Whether columns may hold texts.
        shard_size: The most rows of a shard; a partition is a shard unless given.

    Raises:
        ArgumentError: A mode that does not exist, missing columns, or texts in a column that may not hold them.
    """
    if mode not in MODES:
        raise ArgumentError(f"mode must be one of {', '.join(MODES)}; got {mode!r}.")
    if not feature_cols or not (label_cols or mode == "predict"):
        raise ArgumentError("a DataFrame needs feature_cols=, and label_cols= unless mode is 'predict'.")
    labels = () if mode == "predict" else tuple(label_cols or ())
    if mode != "predict":
        if num_workers and data.rdd.getNumPartitions() < num_workers:
            data = data.repartition(num_workers)
        if validation_data is not None:
            validation_data = validation_data.repartition(data.rdd.getNumPartitions())
    frames = [frame for frame in (data, validation_data) if frame is not None]
    for frame in frames:
        _check_columns(frame, [*feature_cols, *labels], accept_str_col)
    to_arrays = partial(_arrays, features=tuple(feature_cols), labels=labels, shard_size=shard_size)
    # All columns: without some of them, Spark may deal rows to partitions in another way, and predictions of the shards
    # would meet other rows in convert_predict_rdd_to_dataframe.
    shards = [SparkXShards(spark_df_to_pd_sparkxshards(frame).rdd.flatMap(to_arrays)) for frame in frames]
    return shards[0], shards[1] if len(shards) > 1 else None


def maybe_dataframe_to_xshards(data: Any, validation_data: Any, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Return dataframe_to_xshards of a DataFrame, anything else unchanged."""
    from pyspark.sql import DataFrame

    if isinstance(data, DataFrame):
        return dataframe_to_xshards(data, validation_data, *arguments, **options)
    return data, validation_data


def convert_predict_rdd_to_dataframe(
    df: DataFrame, prediction_rdd: RDD[Any], output_cols: Sequence[str] | None = None
) -> DataFrame:
    """Return a DataFrame with the predictions of its rows: ML vectors for 1-D arrays, lists for more.

    Args:
        df: The rows.
        prediction_rdd: One prediction for each row, in the same partitions.
        output_cols: Names of the columns, if each prediction is a list of one value for each; otherwise all is in
            `prediction`.

    Raises:
        DataError: There are no predictions.
    """
    from pyspark.sql.types import StructType

    names = list(output_cols) if output_cols else ["prediction"]
    cells = prediction_rdd.map(partial(_cells, several=bool(output_cols)))
    first = cells.take(1)
    if not first:
        raise DataError("convert_predict_rdd_to_dataframe needs a prediction for each row; got none.")
    added = df.sparkSession.createDataFrame(first, names).schema  # the type of the first is that of all
    rows = df.rdd.zip(cells).map(_joined)
    return df.sparkSession.createDataFrame(rows, StructType([*df.schema.fields, *added.fields]))


def convert_predict_xshards_to_dataframe(
    df: DataFrame, pred_shards: SparkXShards, output_cols: Sequence[str] | None = None
) -> DataFrame:
    """Return a DataFrame with the predictions of shards, dicts of one array for each of the output columns."""
    return convert_predict_rdd_to_dataframe(df, pred_shards.rdd.flatMap(_rows), output_cols)


def convert_predict_rdd_to_xshard(data: SparkXShards, prediction_rdd: RDD[Any]) -> SparkXShards:
    """Return shards `{"x": ...}` with the predictions of their rows under "prediction"."""
    counts = data.rdd.mapPartitions(_row_counts)
    return SparkXShards(data.rdd.zip(counts.zip(prediction_rdd).mapPartitions(_grouped)).map(_merged))


def update_predict_xshards(xshards: SparkXShards, pred_xshards: SparkXShards) -> SparkXShards:
    """Return shards, dicts, with the entries of other shards added."""
    return SparkXShards(xshards.rdd.zip(pred_xshards.rdd).map(_merged))


def add_predict_to_pd_xshards(xshards: SparkXShards, pred_xshards: SparkXShards) -> SparkXShards:
    """Return shards, pandas frames, with a column "prediction" of shards `{"prediction": array}`."""
    return SparkXShards(xshards.rdd.zip(pred_xshards.rdd).map(_with_column))


def _check_columns(frame: DataFrame, columns: Sequence[str], texts: bool) -> None:
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise ArgumentError(f"the DataFrame has no columns {', '.join(missing)}; it has {', '.join(frame.columns)}.")
    types = dict(frame.dtypes)
    wrong = [name for name in columns if "string" in types[name]]
    if wrong and not texts:
        raise ArgumentError(f"the columns {', '.join(wrong)} hold texts. Index them, or pass accept_str_col=True.")


def _arrays(
    frame: pd.DataFrame, features: tuple[str, ...], labels: tuple[str, ...], shard_size: int | None
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(frame), shard_size or max(len(frame), 1)):
        rows = frame.iloc[start : start + shard_size] if shard_size else frame
        shard = {"x": _columns(rows, features)}
        yield shard | {"y": _columns(rows, labels)} if labels else shard


def _columns(frame: pd.DataFrame, names: tuple[str, ...]) -> Any:
    columns = tuple(_column(frame, name) for name in names)
    return columns[0] if len(columns) == 1 else columns


def _column(frame: pd.DataFrame, name: str) -> np.ndarray[Any, Any]:
    cells = frame[name].to_numpy()
    if cells.dtype != object or isinstance(cells[0], str):
        return cells
    try:
        return np.stack([np.asarray(cell) for cell in cells])
    except ValueError as error:
        raise DataError(f"the rows of the column {name} have different shapes: {error}. Pad or drop them.") from error


def _cells(prediction: Any, several: bool) -> tuple[Any, ...]:
    """Return what a prediction puts into its columns."""
    if several and isinstance(prediction, list | tuple):
        return tuple(_cell(value) for value in prediction)
    return (_cell(prediction),)


def _cell(value: Any) -> Any:
    from pyspark.ml.linalg import Vectors

    if isinstance(value, dict):
        return {key: _cell(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [Vectors.dense(item) for item in value]
    array = np.asarray(value)
    if array.ndim == 0:
        return float(array)
    return Vectors.dense(array) if array.ndim == 1 else array.tolist()


def _joined(pair: tuple[Any, tuple[Any, ...]]) -> tuple[Any, ...]:
    row, cells = pair
    return (*row, *cells)


def predicted_rows(shard: dict[str, Any]) -> Iterator[Any]:
    """Yield the prediction of each row of a shard, in the form of the model's output."""
    return _rows({"prediction": shard["prediction"]})


def _rows(shard: dict[str, Any]) -> Iterator[Any]:
    predictions = list(shard.values())
    arrays, structure = flatten(predictions[0] if len(predictions) == 1 else predictions)
    for row in zip(*arrays, strict=True):
        yield unflatten(structure, list(row))


def _row_counts(shards: Iterator[dict[str, Any]]) -> Iterator[int]:
    """Yield the rows of a row's shard, for each row."""
    for shard in shards:
        rows = rows_of(shard["x"])
        yield from [rows] * rows


def _grouped(pairs: Iterator[tuple[int, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the predictions of each shard."""
    for rows, first in pairs:
        predictions = [first, *(prediction for _, prediction in islice(pairs, rows - 1))]
        several = isinstance(first, list | tuple)
        stacked = [np.array(output) for output in zip(*predictions, strict=True)] if several else np.array(predictions)
        yield {"prediction": stacked}


def _merged(pair: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    return pair[0] | pair[1]


def _with_column(pair: tuple[pd.DataFrame, dict[str, Any]]) -> pd.DataFrame:
    frame, predictions = pair
    cells = np.asarray(predictions["prediction"])
    return frame.assign(prediction=cells if cells.ndim == 1 else list(cells.tolist()))
