"""nncontext: the older names of init_orca_context, and what its star import brings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from orca.errors import ArgumentError, NotSupported
from orca_classic.zoo import nncontext


def test_star_import_brings_what_programs_rely_on() -> None:
    scope: dict[str, Any] = {}
    exec("from zoo.common.nncontext import *", scope)
    wanted = """
        np os sys six re tempfile threading glob SparkContext SparkConf SparkFiles RDD DataFrame SQLContext JTensor
        Sample EvaluatedResult JavaValue callBigDlFunc get_spark_context get_spark_sql_context create_tmp_path to_list
        get_node_and_core_number init_engine create_spark_conf RNG get_dtype is_distributed get_local_file
        text_from_path init_nncontext init_spark_on_local init_spark_on_yarn init_spark_standalone init_spark_on_k8s
        ZooContext
    """
    assert set(wanted.split()) <= set(scope)


def test_arguments_reach_init_orca_context_under_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(nncontext, "init_orca_context", lambda mode, **given: calls.append((mode, given)))
    nncontext.init_spark_on_yarn("/etc/hadoop", "env", 3, 2, "4g", 1)
    mode, given = calls.pop()
    assert (mode, given["num_nodes"], given["cores"], given["memory"]) == ("yarn-client", 3, 2, "4g")
    assert given["hadoop_conf"] == "/etc/hadoop" and given["driver_cores"] == 1
    nncontext.init_spark_standalone(2, 4, master="spark://host:7077", enable_numa_binding=True)
    assert calls.pop()[1]["master"] == "spark://host:7077"
    nncontext.init_spark_on_local(cores="*", conf={"a": "b"})
    assert calls.pop()[1]["cores"] == "*"
    assert list(inspect.signature(nncontext.init_spark_on_yarn).parameters)[:3] == [
        "hadoop_conf", "conda_name", "num_executors",
    ]  # fmt: skip
    monkeypatch.setattr(nncontext._spark, "active_session", lambda: None)
    nncontext.init_nncontext("my app", cluster_mode="local", cores=3)
    mode, given = calls.pop()
    assert (mode, given["cores"]) == ("local", 3)
    assert (given["conf"]["spark.app.name"], given["conf"]["spark.shuffle.reduceLocality.enabled"]) == (
        "my app", "false",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (lambda: nncontext.init_spark_on_yarn("conf"), ArgumentError, "missing a required argument: 'conda_name'"),
        (
            lambda: nncontext.init_spark_standalone(1, 1, color="red"),
            ArgumentError,
            "unexpected keyword argument 'color'",
        ),
        (lambda: nncontext.callBigDlFunc("float", "createSGD"), NotSupported, "there is no JVM of BigDL"),
        (lambda: nncontext.JavaValue(None), NotSupported, "nothing lives in a JVM here"),
        (lambda: nncontext.set_optimizer_version("v3"), ArgumentError, "optimizerV1, optimizerV2; got 'v3'"),
        (lambda: nncontext.load_conf("spark.a 1\nspark.b"), ArgumentError, "got 'spark.b' alone"),
    ],
)
def test_wrong_calls_are_refused_in_words(act: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        act()


def test_small_functions(tmp_path: Path) -> None:
    assert nncontext.load_conf("# settings\nspark.a  1\n\nspark.b two words") == {
        "spark.a": "1",
        "spark.b": "two words",
    }
    assert nncontext.init_spark_conf({"spark.x": "y"}).get("spark.x") == "y"
    assert nncontext.to_list(3) == [3] and nncontext.to_list([3]) == [3]
    (tmp_path / "text").write_text("hello")
    assert nncontext.text_from_path(str(tmp_path / "text")) == "hello"
    assert nncontext.is_distributed("hdfs://a/b") and not nncontext.is_distributed("/a/b")
    assert not Path(nncontext.create_tmp_path()).exists()
    nncontext.set_optimizer_version("optimizerV2")
    assert nncontext.get_optimizer_version() == "optimizerV2"
    nncontext.set_optimizer_version("optimizerV1")


def test_context_that_is_up_is_the_one_that_is_returned(spark: Any) -> None:
    assert nncontext.init_nncontext("another") is spark.sparkContext
    assert nncontext.getOrCreateSparkContext() is spark.sparkContext
    nodes, cores = nncontext.get_node_and_core_number()
    assert (nodes, cores) == (1, 3)
    assert nncontext.ZooContext.barrier_mode is True


def test_spark_conf_has_the_settings_of_the_original() -> None:
    from zoo.common.nncontext import create_spark_conf, get_analytics_zoo_conf, init_spark_conf

    settings = {
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.speculation": "false",
        "spark.serializer": "org.apache.spark.serializer.JavaSerializer",
    }
    for conf in (init_spark_conf({"spark.app.name": "mine"}), create_spark_conf()):
        assert {key: conf.get(key) for key in settings} == settings
    assert settings.items() <= get_analytics_zoo_conf().items()
    assert init_spark_conf({"spark.speculation": "true"}).get("spark.speculation") == "true"
