"""Registry: the one table of names. Owns which words select an engine, a sync, a source; imports on demand."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

from orca.core.source import DataSpec, Source
from orca.errors import ArgumentError, MissingDependency


@dataclass(frozen=True)
class Backend:
    """The engine that runs the ranks (another one where no Ray is up), and how replicas agree."""

    engine: str
    sync: str
    otherwise: str = ""

    def present_engine(self) -> str:
        """Return the engine that would run the ranks now."""
        ray = sys.modules.get("ray")
        return self.engine if not self.otherwise or (ray and ray.is_initialized()) else self.otherwise


BACKENDS = {
    "bigdl": Backend("spark", "sharded"),
    "spark": Backend("spark", "replicated"),
    "ray": Backend("ray", "replicated"),
    "torch_distributed": Backend("ray", "replicated"),
    "tf2": Backend("ray", "replicated"),
    "horovod": Backend("ray", "horovod", otherwise="spark"),
    "local": Backend("local", "replicated"),
}

ENGINES = {
    "local": ("orca.engines.local", "LocalEngine"),
    "spark": ("orca.engines.spark", "SparkEngine"),
    "ray": ("orca.engines.ray", "RayEngine"),
}

ESTIMATORS = {
    "torch": ("orca.estimators.torch", "TorchEstimator"),
    "keras": ("orca.estimators.keras", "KerasEstimator"),
    "tfgraph": ("orca_classic.tf1.estimators.graph", "GraphEstimator"),
    "openvino": ("orca.estimators.openvino", "OpenvinoEstimator"),
    "mxnet": ("orca_classic.mxnet.estimator", "MxnetEstimator"),
    "bigdl": ("orca_classic.bigdl.estimator", "BigdlEstimator"),
}

# Asked in this order; each looks at sys.modules before it imports anything.
SOURCES = (
    ("orca.sources.frame", "FrameSource", "pyspark"),
    ("orca.sources.shards", "ShardsSource", "pyspark"),
    ("orca.sources.shards", "RayShardsSource", "ray"),
    ("orca.sources.ray", "RayDatasetSource", "ray"),
    ("orca.sources.torchdata", "LoaderSource", "torch"),
    ("orca.sources.tfdata", "TfDatasetSource", "tensorflow"),
    ("orca_classic.mxnet.data", "MxnetSource", "mxnet"),
    ("orca_classic.tf1.packed_rows", "TfRowsSource", "tensorflow"),
    ("orca.sources.arrays", "PandasSource", ""),
    ("orca.sources.arrays", "ArraySource", ""),
    ("orca.sources.creator", "CreatorSource", ""),
)

EXTRAS = {
    "pyspark": "spark",
    "py4j": "spark",
    "ray": "ray",
    "torch": "torch",
    "safetensors": "torch",
    "tensorflow": "keras",
    "keras": "keras",
    "h5py": "keras",
    "tf_keras": "tf1",
    "tf_slim": "tf1",
    "openvino": "openvino",
}


def backend_of(word: str) -> Backend:
    """Return the engine and the sync that a backend word selects."""
    if word not in BACKENDS:
        raise ArgumentError(f"backend must be one of {', '.join(sorted(BACKENDS))}; got backend: {word!r}.")
    return BACKENDS[word]


def engine_class(name: str) -> Any:
    """Import an engine's class."""
    return _load(*ENGINES[name], need=f"the {name} engine")


def estimator_class(framework: str) -> Any:
    """Import a framework's Estimator."""
    return _load(*ESTIMATORS[framework], need=f"a {framework} model")


def openvino_converter() -> Any:
    """Import the function that writes a torch or Keras model as an OpenVINO model."""
    return _load("orca.frameworks.openvino", "convert", need="an openvino model")


def bigdl_loader() -> Any:
    """Import the function that reads a model of BigDL."""
    return _load("orca_classic.bigdl.files", "load_layer", need="a bigdl model")


def bigdl_entry() -> Any:
    """Import the function that returns the torch module of a model of BigDL."""
    return _load("orca_classic.bigdl.training", "entry_of", need="a bigdl model")


def bigdl_data() -> Any:
    """Import the function that brings the data of BigDL's programs into a form that sources know."""
    return _load("orca_classic.bigdl.training", "rows_for", need="a bigdl model")


def source_of(data: Any, spec: DataSpec) -> Source:
    """Wrap data in the source that recognises it: the only place that asks for the kind of data."""
    for module, name, library in SOURCES:
        if library and library not in sys.modules:
            continue
        kind = _load(module, name, need=f"data of type {type(data).__name__}")
        if kind.wraps(data):
            source: Source = kind(data, spec)
            return source
    raise ArgumentError(
        f"data of type {type(data).__module__}.{type(data).__name__} is not supported. Pass numpy arrays, pandas, a "
        "torch Dataset or DataLoader, a creator function (config, batch_size), a Spark DataFrame, XShards or a Ray "
        "Dataset."
    )


def _load(module: str, name: str, need: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package == "mxnet":  # it has no extra: its metadata asks for numpy < 2
            raise MissingDependency(
                f"{need} needs the package 'mxnet', which is not installed. Run: pip install 'orca-dl[torch]' requests "
                "setuptools; pip install --no-deps mxnet==1.9.1 graphviz==0.8.4"
            ) from error
        if package in EXTRAS:
            raise MissingDependency.of(package, EXTRAS[package], need) from error
        raise
