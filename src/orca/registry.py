"""Registry: which code serves a backend, an engine or a kind of data. Owns the tables of names, and who adds to them.

A package adds names by entry points (the groups orca.sources, orca.backends, orca.engines and orca.frameworks), which
are read once, for the first name that no table has; or by calling `register` when it is imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import FunctionType
from typing import TYPE_CHECKING, Any

from orca.core.loading import preload
from orca.errors import ArgumentError, MissingDependency

if TYPE_CHECKING:  # loads numpy, which an import of zoo or bigdl can do without
    from orca.core.source import DataSpec, Source


@dataclass(frozen=True)
class Backend:
    """The engine that runs the ranks (another one if no Ray is up), and how replicas agree.

    Attributes:
        engine: The name of an engine.
        sync: "replicated" or "sharded"; or a subclass of orca.frameworks.torch.sync.Sync, as "module:Class".
        otherwise: The engine that is used if no Ray is up.
    """

    engine: str
    sync: str
    otherwise: str = ""

    def present_engine(self) -> str:
        """Return the engine that would run the ranks now."""
        ray = sys.modules.get("ray")
        return self.engine if not self.otherwise or (ray and ray.is_initialized()) else self.otherwise


@dataclass(frozen=True)
class FrameworkPlugin:
    """A framework of another package: its library, and the modules that processes load before ranks are forked."""

    library: str
    preload: tuple[str, ...] = ()


# A function gets the name of an Estimator's framework: it can look at what is installed.
BACKENDS: dict[str, Backend | Callable[[str], Backend]] = {
    "bigdl": Backend("spark", "sharded"),
    "spark": Backend("spark", "replicated"),
    "ray": Backend("ray", "replicated"),
    "torch_distributed": Backend("ray", "replicated"),
    "tf2": Backend("ray", "replicated"),
    "local": Backend("local", "replicated"),
}

ENGINES = {
    "local": "orca.engines.local:LocalEngine",
    "spark": "orca.engines.spark:SparkEngine",
    "ray": "orca.engines.ray:RayEngine",
}

# Asked in this order, if their library is loaded.
SOURCES = (
    ("orca.sources.frame:FrameSource", "pyspark"),
    ("orca.sources.shards:ShardsSource", "pyspark"),
    ("orca.sources.shards:RayShardsSource", "ray"),
    ("orca.sources.ray:RayDatasetSource", "ray"),
    ("orca.sources.torchdata:LoaderSource", "torch"),
    ("orca.sources.tfdata:TfDatasetSource", "tensorflow"),
    ("orca.sources.arrays:PandasSource", ""),
    ("orca.sources.arrays:ArraySource", ""),
    ("orca.sources.creator:CreatorSource", ""),
)

# Asked before those: the package of the data's type, or of one of its bases -> the source.
PLUGIN_SOURCES: dict[str, str] = {}

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

# Data of types of these is served by the table above.
_PACKAGES = {"builtins", "numpy", "pandas", "pyspark", "ray", "torch", "tensorflow", "orca"}


def register(
    *,
    sources: Mapping[str, str] | None = None,
    backends: Mapping[str, Backend | Callable[[str], Backend]] | None = None,
    engines: Mapping[str, str] | None = None,
    frameworks: Iterable[FrameworkPlugin] = (),
) -> None:
    """Add names, from a package that is imported: entry points do the same for a package that is installed.

    Args:
        sources: The package of a type of data (or of one of its bases) -> the source, as "module:Class".
        backends: A value of `backend=` -> its engine and sync, or a function of the framework's name that returns them.
        engines: The name of an engine -> its class, as "module:Class".
        frameworks: The modules that processes load before ranks are forked, if the framework's library is loaded.

    Raises:
        ArgumentError: A name is taken by something else.

    Example:
        ::

            register(sources={"theirs": "orca_theirs.data:TheirSource"})
    """
    _add(PLUGIN_SOURCES, sources, "source")
    _add(BACKENDS, backends, "backend")
    _add(ENGINES, engines, "engine")
    for plugin in frameworks:
        preload(plugin.library, plugin.preload)


def _add(table: dict[str, Any], names: Mapping[str, Any] | None, kind: str) -> None:
    for name, value in (names or {}).items():
        if table.get(name, value) != value:
            raise ArgumentError(
                f"the {kind} {name!r} is taken by {table[name]}; got {value}. Choose another name.", code="name-taken"
            )
        table[name] = value


def backend_names() -> list[str]:
    """Return the values that `backend=` may have, in the order of the alphabet."""
    return sorted({*BACKENDS, *_plugins("orca.backends")})


def backend_of(name: str, framework: str = "torch") -> Backend:
    """Return the engine and the sync that a value of `backend=` selects for a framework."""
    if name not in BACKENDS and (entry := _plugins("orca.backends").get(name)) is not None:
        BACKENDS[name] = _loaded(entry, Backend, FunctionType)
    if name not in BACKENDS:
        raise ArgumentError(
            f"backend must be one of {', '.join(backend_names())}; got backend: {name!r}.", code="unknown-backend"
        )
    backend = BACKENDS[name]
    return backend if isinstance(backend, Backend) else backend(framework)


def engine_class(name: str) -> Any:
    """Import an engine's class."""
    if name not in ENGINES and (entry := _plugins("orca.engines").get(name)) is not None:
        ENGINES[name] = entry.value
    if name not in ENGINES:
        raise ArgumentError(
            f"there is no engine {name!r}; there are {', '.join(sorted(ENGINES))}.", code="unknown-engine"
        )
    return load(ENGINES[name], need=f"the {name} engine")


def preload_plugins() -> None:
    """Note which modules the frameworks of other packages want loaded before ranks are forked."""
    for library, entry in _plugins("orca.frameworks").items():
        if library in sys.modules:
            preload(library, _loaded(entry, FrameworkPlugin).preload)


def source_of(data: Any, spec: DataSpec) -> Source:
    """Wrap data in the source that recognises it: the only place that looks at the kind of data."""
    for target in _candidates(data):
        kind = load(target, need=f"data of type {type(data).__name__}")
        if kind.wraps(data):
            source: Source = kind(data, spec)
            return source
    raise ArgumentError(
        f"data of type {type(data).__module__}.{type(data).__name__} is not supported. Pass numpy arrays, pandas, a "
        "torch Dataset or DataLoader, a creator function (config, batch_size), a Spark DataFrame, XShards or a Ray "
        "Dataset.",
        code="unknown-data",
    )


def _candidates(data: Any) -> Iterator[str]:
    """Yield the sources that may serve data: those registered for its type, then the built-in ones."""
    modules = [kind.__module__ for kind in type(data).__mro__[:-1]]
    if not _PACKAGES & {module.partition(".")[0] for module in modules}:
        for name, entry in _plugins("orca.sources").items():
            PLUGIN_SOURCES.setdefault(name, entry.value)
    for name, target in PLUGIN_SOURCES.items():
        if any(f"{module}.".startswith(f"{name}.") for module in modules):
            yield target
    yield from (target for target, library in SOURCES if not library or library in sys.modules)


@cache
def _plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; to find them takes a tenth of a second."""
    return {entry.name: entry for entry in entry_points(group=group)}


def _loaded(entry: EntryPoint, *kinds: type[Any]) -> Any:
    value = entry.load()
    if not isinstance(value, kinds):
        raise ArgumentError(
            f"the entry point {entry.name!r} of {entry.group} must give a {kinds[0].__name__}; got "
            f"{type(value).__name__} from {entry.value}. Correct it in the package that has it.",
            code="bad-entry-point",
        )
    return value


def load(target: str, need: str) -> Any:
    """Import what is named as "module:name"; a missing package of an extra is named with the line that installs it."""
    module, _, name = target.partition(":")
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
