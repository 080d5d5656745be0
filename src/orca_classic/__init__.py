"""Orca Classic: what programs for Analytics Zoo, BigDL, TensorFlow 1 and MXNet need, on top of `orca`.

An `import mxnet` that comes after the import of this package finds the numpy that MXNet was made for.
"""

from __future__ import annotations

import importlib
from typing import Any

from orca.monitor.tracebacks import add_home
from orca.registry import FrameworkPlugin, register
from orca_classic import horovod
from orca_classic.mxnet import numpy_names

numpy_names.install()
add_home(__path__[0])
register(
    sources={
        "mxnet": "orca_classic.mxnet.data:MxnetSource",
        "orca_classic.data.tf": "orca_classic.data.tf.data:DatasetSource",
        "orca_classic.mxnet": "orca_classic.mxnet.data:MxnetSource",
        "orca_classic.tf1": "orca_classic.tf1.packed_rows:TfRowsSource",
    },
    backends={"horovod": horovod.backend},
    frameworks=[
        FrameworkPlugin("mxnet", ("orca.job", "orca_classic.mxnet.learner", "orca_classic.mxnet.data")),
        FrameworkPlugin("tensorflow", ("orca_classic.tf1.graph.learner",)),
    ],
)

__all__ = ["Estimator"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.estimator").Estimator


def __dir__() -> list[str]:
    return __all__
