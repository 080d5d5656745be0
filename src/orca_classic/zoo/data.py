"""Data: shared values and pandas readers as older programs know them. Owns the differences from ours."""

from __future__ import annotations

from functools import wraps
from numbers import Integral
from typing import Any

from orca.cluster.context import OrcaContext
from orca.data import pandas as ours
from orca.data.verbs import SharedValue as OurSharedValue

__all__ = ["SharedValue", "read_csv"]


class SharedValue(OurSharedValue):
    """A value of the driver that every executor gets once: functions of transform_shard get this object.

    Example::

        taxes = SharedValue({"Ulm": 1.2, "Kiel": 1.1})
        shards.transform_shard(lambda frame, taxes: frame.replace(taxes.value), taxes)
    """


@wraps(ours.read_csv)
def read_csv(file_path: Any, **kwargs: Any) -> Any:
    """Read CSV files as orca.data.pandas.read_csv does; without a header, columns are named "0", "1", ...

    If OrcaContext.pandas_read_backend is "pandas", they are numbers, as in pandas.
    """
    is_unnamed = kwargs.get("header", "infer") is None and kwargs.get("names") is None
    shards = ours.read_csv(file_path, **kwargs)
    if not is_unnamed or OrcaContext.pandas_read_backend == "pandas":
        return shards
    return shards.transform_shard(_with_texts)


def _with_texts(frame: Any) -> Any:
    """Return a frame, or a Series, with the numbers that name columns as texts."""
    index = frame.index.set_names([_text(name) for name in frame.index.names])
    if frame.ndim == 1:
        return frame.set_axis(index).rename(_text(frame.name))
    return frame.set_axis(index).set_axis([_text(name) for name in frame.columns], axis=1)


def _text(name: Any) -> Any:
    return str(name) if isinstance(name, Integral) else name
