"""Nncontext: Spark as programs of Analytics Zoo and BigDL start it. Owns their names; init_orca_context does the work.

`from zoo.common.nncontext import *` also brought modules and classes that programs came to rely on: they are here too.
"""

# ruff: noqa: F401 (names of the star import)
from __future__ import annotations

import glob
import importlib
import importlib.util
import inspect
import multiprocessing
import os
import re
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.cluster import spark as _spark
from orca.cluster.context import OrcaContext, OrcaContextMeta, init_orca_context, stop_orca_context
from orca.cluster.kinds import launcher_kind
from orca.data.file import get_remote_file_to_local
from orca.errors import ArgumentError, MissingDependency, NotSupported
from orca_classic.zoo.sample import RNG, EvaluatedResult, JTensor, Sample

try:
    import six
except ImportError:  # pandas and TensorFlow bring it; the star import has its name in any case
    six = None

if TYPE_CHECKING:
    from pyspark import SparkConf

_LAZY = {
    **dict.fromkeys(("RDD", "SparkConf", "SparkContext", "SparkFiles"), "pyspark"),
    **dict.fromkeys(("DataFrame", "SQLContext"), "pyspark.sql"),
    "six": "six",
}  # names of the star import, loaded on first use; it leaves out those whose package is not installed
INTMIN, INTMAX, DOUBLEMAX = -(2**31), 2**31 - 1, sys.float_info.max
# What spark-bigdl.conf set. Spark has no "nio" any more, and ignores it.
_SPARK_SETTINGS = {
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.shuffle.blockTransferService": "nio",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "3600s",
    "spark.speculation": "false",
    "spark.serializer": "org.apache.spark.serializer.JavaSerializer",
}
# Those that sessions get which are started here; how long Spark waits for executors is left to Orca.
_SESSION_SETTINGS = {name: value for name, value in _SPARK_SETTINGS.items() if "scheduler" not in name}
OPTIMIZERS = ("optimizerV1", "optimizerV2")
_versions = {"optimizer": "optimizerV1"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(_LAZY[name])
        return home if name == _LAZY[name] else getattr(home, name)
    except ImportError as error:
        raise MissingDependency.of("pyspark", "spark", "nncontext") from error


# The arguments of all starts, in their order; those without a default must be given.
_MUST = inspect.Parameter.empty
_NODES = {"num_executors": _MUST, "executor_cores": _MUST, "executor_memory": "2g"}
_DRIVER = {"driver_cores": 4, "driver_memory": "2g"}
_YARN = {
    **dict.fromkeys(("hadoop_conf", "conda_name"), _MUST), **_NODES, **_DRIVER,
    **dict.fromkeys(("extra_executor_memory_for_ray", "extra_python_lib", "penv_archive", "additional_archive")),
    **dict.fromkeys(("hadoop_user_name", "spark_yarn_archive")), "spark_log_level": "WARN", "redirect_spark_log": True,
    **dict.fromkeys(("jars", "conf", "py_files")),
}  # fmt: skip
_STANDALONE = {
    **_NODES, **_DRIVER, **dict.fromkeys(("master", "extra_executor_memory_for_ray", "extra_python_lib")),
    "spark_log_level": "WARN", "redirect_spark_log": True, **dict.fromkeys(("conf", "jars", "python_location")),
    "enable_numa_binding": False,
}  # fmt: skip
_KUBERNETES = {
    **_NODES, "driver_memory": "2g", "driver_cores": 4,
    **dict.fromkeys(("extra_executor_memory_for_ray", "extra_python_lib", "penv_archive")), "spark_log_level": "WARN",
    "redirect_spark_log": True, **dict.fromkeys(("jars", "conf", "python_location")),
}  # fmt: skip
_NEW_NAMES = {"num_executors": "num_nodes", "executor_cores": "cores", "executor_memory": "memory"}


def _start(name: str, mode: str, arguments: dict[str, Any], words: str) -> Any:
    """Return a function that starts a kind of cluster with arguments under their older names."""
    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(key, place, default=value) for key, value in arguments.items()])

    def start(*args: Any, **kwargs: Any) -> Any:
        try:
            binding = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{name}: {error}. Its arguments are {', '.join(arguments)}.") from error
        binding.apply_defaults()
        options = {_NEW_NAMES.get(key, key): value for key, value in binding.arguments.items()}
        return init_orca_context(mode, **options | {"conf": _SESSION_SETTINGS | _settings(options.get("conf"))})

    start.__name__ = start.__qualname__ = name
    start.__doc__ = f"{words}; returns the SparkContext. For the arguments see init_orca_context."
    start.__signature__ = signature  # type: ignore[attr-defined]
    return start


init_spark_on_local = _start(
    "init_spark_on_local", "local",
    {"cores": 2, "conf": None, "python_location": None, "spark_log_level": "WARN", "redirect_spark_log": True},
    "Start Spark on this machine",
)  # fmt: skip
init_spark_on_yarn = _start("init_spark_on_yarn", "yarn-client", _YARN, "Start Spark on YARN with the driver here")
init_spark_on_yarn_cluster = _start(
    "init_spark_on_yarn_cluster", "yarn-cluster", _YARN, "Start Spark on YARN with the driver there"
)
init_spark_standalone = _start(
    "init_spark_standalone", "standalone", _STANDALONE,
    "Start Spark on a standalone cluster, that at `master` or one on this machine",
)  # fmt: skip
init_spark_on_k8s = _start(
    "init_spark_on_k8s", "k8s-client",
    {**dict.fromkeys(("master", "container_image", "conda_name"), _MUST), **_KUBERNETES},
    "Start Spark on Kubernetes with the driver here",
)  # fmt: skip
init_spark_on_k8s_cluster = _start(
    "init_spark_on_k8s_cluster", "k8s-cluster", {"master": _MUST, "container_image": _MUST, **_KUBERNETES},
    "Start Spark on Kubernetes with the driver there",
)  # fmt: skip


def stop_spark_standalone() -> None:
    """Stop the Spark that init_spark_standalone started, with its daemons."""
    stop_orca_context()


def init_nncontext(
    conf: Any = None,
    cluster_mode: str = "spark-submit",
    spark_log_level: str = "WARN",
    redirect_spark_log: bool = True,
    **kwargs: Any,
) -> Any:
    """Return the SparkContext: the active one, that of the launcher, or one that is started here.

    Args:
        conf: A SparkConf, a dict of settings, or the name of the application.
        cluster_mode: As in init_orca_context; "spark-submit" is the launcher's cluster, or a local one without any.
        spark_log_level: Spark's log level.
        redirect_spark_log: Accepted.
        **kwargs: Other arguments of init_orca_context: cores, memory, num_nodes, ...

    Raises:
        ArgumentError: An argument is wrong.
    """
    active = _spark.active_session()
    if active is not None:
        return active if _spark.is_connect(active) else active.sparkContext
    mode = cluster_mode if cluster_mode not in ("spark-submit", "bigdl-submit") else launcher_kind()
    for old, new in _NEW_NAMES.items():  # of the starts above
        if old in kwargs:
            kwargs[new] = kwargs.pop(old)
    return init_orca_context(
        mode,
        conf=_SESSION_SETTINGS | _settings(conf),
        spark_log_level=spark_log_level,
        redirect_spark_log=redirect_spark_log,
        **{name: value for name, value in kwargs.items() if value is not None},
    )


def init_internal_nncontext(conf: Any = None, spark_log_level: str = "WARN", redirect_spark_log: bool = True) -> Any:
    """Return the SparkContext, as init_nncontext does."""
    return init_nncontext(conf, spark_log_level=spark_log_level, redirect_spark_log=redirect_spark_log)


def getOrCreateSparkContext(conf: Any = None, appName: str | None = None) -> Any:
    """Return the active SparkContext, or start one with these settings."""
    settings = _settings(conf) | ({"spark.app.name": appName} if appName else {})
    return init_nncontext(settings)


def init_spark_conf(conf: Any = None) -> SparkConf:
    """Return a SparkConf with the settings of create_spark_conf, and those given in a dict."""
    spark_conf = create_spark_conf()
    for key, value in _settings(conf).items():
        spark_conf.set(key, value)
    return spark_conf


def create_spark_conf() -> SparkConf:
    """Return a SparkConf with the settings of BigDL, and those that Orca gives every session."""
    from pyspark import SparkConf

    spark_conf = SparkConf()
    for key, value in get_analytics_zoo_conf().items():
        spark_conf.setIfMissing(key, value)
    return spark_conf


def get_analytics_zoo_conf() -> dict[str, str]:
    """Return the settings of BigDL, and those that Orca gives every session."""
    return {**_SPARK_SETTINGS, **_spark.DEFAULTS}


def init_env(conf: Any) -> None:
    """Do nothing: workers get their environment from the session."""


def check_version() -> None:
    """Do nothing: pip installs versions that fit."""


def init_engine(bigdl_type: str = "float") -> None:
    """Do nothing: there is no engine to start before training."""


def load_conf(conf_str: str, split_char: str | None = None) -> dict[str, str]:
    """Return the settings of a text with one on each line: a name, white space (or split_char), and a value."""
    lines = [line.strip() for line in conf_str.splitlines()]
    pairs = [line.split(split_char, 1) for line in lines if line and not line.startswith("#")]
    wrong = [pair[0] for pair in pairs if len(pair) != 2]
    if wrong:
        raise ArgumentError(f"a setting is a name and a value on one line; got {wrong[0]!r} alone.")
    return {name.strip(): value.strip() for name, value in pairs}


def set_optimizer_version(optimizerVersion: str, bigdl_type: str = "float") -> None:
    """Remember "optimizerV1" or "optimizerV2"; both train alike here."""
    if optimizerVersion not in OPTIMIZERS:
        raise ArgumentError(f"the optimizer version must be one of {', '.join(OPTIMIZERS)}; got {optimizerVersion!r}.")
    _versions["optimizer"] = optimizerVersion


def get_optimizer_version(bigdl_type: str = "float") -> str:
    """Return the optimizer version that was set."""
    return _versions["optimizer"]


class ZooContextMeta(OrcaContextMeta):
    """The settings of ZooContext: those of OrcaContext."""


class ZooContext(OrcaContext, metaclass=ZooContextMeta):
    """The settings of OrcaContext under their older name: log_output, barrier_mode, ..."""


# Other names of the star import.


def get_spark_context(conf: Any = None) -> Any:
    """Return the active SparkContext, or start one."""
    return getOrCreateSparkContext(conf)


def get_spark_sql_context(sc: Any = None) -> Any:
    """Return the SQLContext of the active SparkContext."""
    return OrcaContext.get_sql_context()


def get_node_and_core_number(bigdl_type: str = "float") -> tuple[int, int]:
    """Return the nodes of the cluster and the cores of each.

    Raises:
        ArgumentError: No cluster is up.
    """
    cluster = OrcaContext.cluster()
    if cluster is None:
        raise ArgumentError("no cluster is up. Call init_nncontext() first.")
    return cluster.num_nodes, cluster.cores or 1


def create_tmp_path() -> str:
    """Return the path of a temporary file that does not exist yet."""
    with tempfile.NamedTemporaryFile() as file:
        return file.name


def to_list(a: Any) -> list[Any]:
    """Return a list unchanged, anything else as a list of one."""
    return a if isinstance(a, list) else [a]


def get_dtype(bigdl_type: str = "float") -> str:
    """Return the type of numbers that a word of BigDL's means."""
    return "float32" if bigdl_type == "float" else "float64"


def is_distributed(path: str) -> bool:
    """Say whether a path is one of a distributed filesystem."""
    return "://" in str(path) and not str(path).startswith("file://")


def get_local_file(a_path: str) -> str:
    """Return the path of a file on this machine: of a copy, if it is on another filesystem."""
    if not is_distributed(a_path):
        return a_path.removeprefix("file://")
    place = os.path.join(tempfile.mkdtemp(prefix="orca"), os.path.basename(a_path))
    get_remote_file_to_local(a_path, place)
    return place


def text_from_path(path: str) -> str:
    """Return the text of a file."""
    with open(get_local_file(path), encoding="utf-8") as file:
        return file.read()


class JavaValue:
    """A value that lived in the JVM of BigDL: refused, as there is no such JVM."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise NotSupported("JavaValue is not supported: nothing lives in a JVM here. Use the Python objects.")


def callBigDlFunc(bigdl_type: str, name: str, *args: Any) -> Any:
    """Refuse: there is no JVM of BigDL to call."""
    raise NotSupported(f"callBigDlFunc({name!r}) is not supported: there is no JVM of BigDL. Use the Python API.")


callZooFunc = callBigDlFunc


def _settings(conf: Any) -> dict[str, str]:
    """Return settings given as a SparkConf, a dict, pairs, or the name of the application."""
    if conf is None:
        return {}
    if isinstance(conf, str):
        return {"spark.app.name": conf}
    if hasattr(conf, "getAll"):
        return dict(conf.getAll())
    if isinstance(conf, dict | Iterable):
        return {str(key): str(value) for key, value in dict(conf).items()}
    raise ArgumentError(f"conf must be a SparkConf, a dict or the name of the application; got {type(conf).__name__}.")


_THERE = [name for name, home in _LAZY.items() if importlib.util.find_spec(home.split(".")[0])]
# What a star import of any module of BigDL's library brought.
COMMON = [
    *_THERE, "DOUBLEMAX", "INTMAX", "INTMIN", "RNG", "EvaluatedResult", "JTensor", "JavaValue", "Sample",
    "callBigDlFunc", "callZooFunc", "create_spark_conf", "create_tmp_path", "get_dtype", "get_local_file",
    "get_node_and_core_number", "get_optimizer_version", "get_spark_context", "get_spark_sql_context", "init_engine",
    "is_distributed", "np", "os", "set_optimizer_version", "sys", "tempfile", "text_from_path", "threading", "to_list",
    "traceback", "warnings",
]  # fmt: skip
__all__ = [
    *COMMON, "ZooContext", "ZooContextMeta", "check_version", "getOrCreateSparkContext", "get_analytics_zoo_conf",
    "glob", "init_env", "init_internal_nncontext", "init_nncontext", "init_spark_conf", "init_spark_on_k8s",
    "init_spark_on_k8s_cluster", "init_spark_on_local", "init_spark_on_yarn", "init_spark_on_yarn_cluster",
    "init_spark_standalone", "load_conf", "multiprocessing", "re", "stop_spark_standalone",
]  # fmt: skip
