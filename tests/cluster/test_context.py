from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from orca.cluster import spark as spark_module
from orca.cluster.context import OrcaContext, OrcaContextMeta, init_orca_context
from orca.errors import ArgumentError, NotYet
from programs import run_program


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"runtime": "dask"}, r"runtime can only be spark or ray; got 'dask'"),
        ({"runtime": "sparks"}, r"got 'sparks'\. Did you mean 'spark'\?"),
        (
            {"cluster_mode": "yarn-clinet"},
            r"cluster_mode can only be local, standalone, .*; got 'yarn-clinet'\. Did you",
        ),
        ({"cluster_mode": "mesos"}, r"cluster_mode can only be .*k8s-cluster; got 'mesos'\.$"),
        ({"cores": 0}, r"cores must be a positive whole number or '\*'; got 0"),
        ({"cores": -2}, r"cores must be a positive whole number or '\*'; got -2"),
        ({"cores": "four"}, r"cores must be a positive whole number or '\*'; got 'four'"),
        ({"cores": True}, r"cores must be a positive whole number or '\*'; got True"),
        ({"cluster_mode": "standalone", "cores": "*"}, r"cores must be a positive whole number; got '\*'"),
        ({"memory": "two gigs"}, r"memory must be a number with a unit k, m, g or t, .*; got 'two gigs'"),
        ({"memory": "2"}, r"memory must be .*; got '2'"),
        ({"memory": 2}, r"memory must be .*; got 2"),
        ({"memory": "0g"}, r"memory must be .*; got '0g'"),
        ({"num_nodes": 0}, r"num_nodes must be a positive whole number; got 0"),
        ({"num_nodes": 1.5}, r"num_nodes must be a positive whole number; got 1\.5"),
        ({"extra_python_libs": "a.py"}, r"has no argument 'extra_python_libs'\. Did you mean 'extra_python_lib'\?"),
        ({"colour": 1}, r"init_orca_context\(\) has no argument 'colour'; it has cluster_mode, runtime, cores,"),
        ({"core": 2}, r"has no argument 'core'\. Did you mean 'cores'\?"),
        ({"use_gpu": True}, r"has no argument 'use_gpu': GPUs need no argument: .* CUDA_VISIBLE_DEVICES"),
        ({"conf": "spark.a=b"}, r"conf must be a dict of Spark settings; got str"),
        ({"spark_log_level": "LOUD"}, r"spark_log_level can only be one of ALL, TRACE, .*; got 'LOUD'"),
        ({"enable_numa_binding": True}, r"enable_numa_binding=True is not supported: .*numactl"),
        ({"cluster_mode": "standalone", "container_image": "i"}, r"container_image= is for Kubernetes.* 'standalone'"),
        ({"runtime": "ray", "cluster_mode": "local"}, r"cluster_mode is not supported for runtime='ray'; got 'local'"),
        ({"runtime": "ray", "cores": 0}, r"cores must be a positive whole number or '\*'; got 0"),
    ],
)
def test_a_wrong_argument_is_named_with_the_legal_ones(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        init_orca_context(**arguments)


@pytest.mark.parametrize("mode", ["k8s", "k8s-client", "k8s-cluster"])
def test_kinds_of_later_say_so(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_module, "active_session", lambda: None)
    with pytest.raises(NotYet, match=rf"cluster_mode='{mode}' is not built yet. .*'spark-submit'"):
        init_orca_context(mode, cores=1, conda_name="env", penv_archive="a.tar.gz", container_image="image")


def test_a_master_that_is_none_or_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_module, "active_session", lambda: None)
    with pytest.raises(ArgumentError, match=r"master must look like 'spark://host:7077'; got 'yarn'"):
        init_orca_context("standalone", cores=1, master="yarn")
    with pytest.raises(ArgumentError, match=r"no Spark master answers at spark://127.0.0.1:9"):
        init_orca_context("standalone", cores=1, master="spark://127.0.0.1:9")


def test_stop_without_a_context_is_fine() -> None:
    run_program("from orca.cluster.context import stop_orca_context as s; s(); s()")


def test_without_a_context_the_getters_say_what_to_call() -> None:
    code = """
        from orca.cluster.context import OrcaContext
        for name in ("spark_context", "spark_session", "sql_context", "ray_context"):
            try:
                getattr(OrcaContext, "get_" + name)()
            except ValueError as error:
                print(error)
        print(OrcaContext.cluster())
    """
    said = run_program(code).stdout.splitlines()
    assert said[:3] == ["No active SparkContext. Call init_orca_context() first."] * 3
    assert said[3:] == ["No active RayContext. Call init_orca_context() first.", "None"]


def test_importing_the_context_imports_neither_spark_nor_ray() -> None:
    code = """
        import sys
        import orca.cluster.context, orca.cluster.spark, orca.cluster.ray, orca.cluster.java
        print([name for name in ("pyspark", "ray", "pandas", "numpy", "torch") if name in sys.modules])
    """
    assert run_program(code).stdout.strip() == "[]"


@pytest.fixture
def settings() -> Iterator[None]:
    names = [name for name, value in vars(OrcaContextMeta).items() if hasattr(value, "legal")]
    before = {name: getattr(OrcaContext, name) for name in names}
    yield
    for name, value in before.items():
        setattr(OrcaContext, name, value)


def test_settings_have_the_documented_defaults() -> None:
    assert OrcaContext.log_output is False
    assert OrcaContext.pandas_read_backend == "spark"
    assert OrcaContext._eager_mode is True
    assert OrcaContext.serialize_data_creator is False
    assert OrcaContext.train_data_store == "DRAM"
    assert OrcaContext._shard_size is None
    assert OrcaContext.barrier_mode is True


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    "name, value, held",
    [
        ("log_output", True, True),
        ("pandas_read_backend", "PANDAS", "pandas"),
        ("_eager_mode", False, False),
        ("serialize_data_creator", True, True),
        ("train_data_store", "disk_4", "DISK_4"),
        ("train_data_store", "PMEM", "PMEM"),
        ("_shard_size", 100, 100),
        ("_shard_size", None, None),
        ("barrier_mode", False, False),
    ],
)
def test_settings_hold_legal_values(name: str, value: Any, held: Any) -> None:
    setattr(OrcaContext, name, value)
    assert getattr(OrcaContext, name) == held


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    "name, value, message",
    [
        ("log_output", 1, r"OrcaContext.log_output must be True or False; got 1\."),
        ("pandas_read_backend", "polars", r"pandas_read_backend must be 'spark' or 'pandas'; got 'polars'\."),
        ("pandas_read_backend", None, r"pandas_read_backend must be 'spark' or 'pandas'; got None\."),
        ("_eager_mode", "yes", r"_eager_mode must be True or False; got 'yes'\."),
        ("serialize_data_creator", 0, r"serialize_data_creator must be True or False; got 0\."),
        ("train_data_store", "DISK_x", r"train_data_store must be 'DRAM', 'PMEM' or 'DISK_n' .*; got 'DISK_x'\."),
        ("_shard_size", 0, r"_shard_size must be None or a positive whole number; got 0\."),
        ("_shard_size", 2.5, r"_shard_size must be None or a positive whole number; got 2\.5\."),
        ("barrier_mode", None, r"barrier_mode must be True or False; got None\."),
    ],
)
def test_settings_refuse_other_values_and_keep_theirs(name: str, value: Any, message: str) -> None:
    before = getattr(OrcaContext, name)
    with pytest.raises(ArgumentError, match=message):
        setattr(OrcaContext, name, value)
    assert getattr(OrcaContext, name) == before


@pytest.mark.usefixtures("settings")
def test_the_older_name_of_serialize_data_creator_works() -> None:
    OrcaContext.serialize_data_creation = True
    assert OrcaContext.serialize_data_creator is True
