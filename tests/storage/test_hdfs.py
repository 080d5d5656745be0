from __future__ import annotations

import base64
import dataclasses
import getpass
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca.core.engine import Settings
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError, MissingDependency
from orca.storage import hdfs
from orca.testing import shards_of
from raised import raises

HA = {
    "fs.defaultFS": "hdfs://prod",
    "dfs.nameservices": "prod, archive",
    "dfs.ha.namenodes.prod": "nn1,nn2",
    "dfs.namenode.rpc-address.prod.nn1": "one:8020",
    "dfs.namenode.rpc-address.prod.nn2": "two:8020",
    "dfs.namenode.http-address.prod.nn1": "one:9870",
    "dfs.namenode.http-address.prod.nn2": "two:9999",
    "dfs.namenode.https-address.prod.nn1": "one:9871",
    "dfs.namenode.rpc-address.archive": "old:8020",
    "dfs.namenode.http-address.archive": "0.0.0.0:50070",
}


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "HADOOP_USER_NAME", hdfs.VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what writes Hadoop's settings: those named fs.* and hadoop.* to core-site.xml, others to hdfs-site.xml."""

    def write(settings: dict[str, str]) -> Path:
        folder = tmp_path / "conf"
        folder.mkdir(exist_ok=True)
        for file, core in (("core-site.xml", True), ("hdfs-site.xml", False)):
            mine = {key: value for key, value in settings.items() if key.startswith(("fs.", "hadoop.")) is core}
            entries = (f"<property><name>{key}</name><value>{value}</value></property>" for key, value in mine.items())
            (folder / file).write_text(f"<configuration>{''.join(entries)}</configuration>")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))
        return folder

    return write


def addresses(path: str) -> tuple[str, ...]:
    return hdfs.locate(path)[0].addresses


def test_a_nameservice_has_the_addresses_of_all_its_namenodes(configure: Any) -> None:
    configure(HA)
    both = ("http://one:9870", "http://two:9999")
    assert addresses("hdfs://prod/a/b") == both
    assert addresses("hdfs:///a/b") == addresses("hdfs:/a/b") == both  # fs.defaultFS
    assert addresses("hdfs://archive/x") == ("http://old:50070",)  # it listens everywhere: its host is told elsewhere
    assert hdfs.locate("hdfs:///a b/%c/")[1] == "/a b/%c"
    assert hdfs.locate("hdfs://prod")[1] == "/"


def test_a_namenode_named_by_host_and_port_has_its_own_address(configure: Any) -> None:
    configure(HA)
    assert addresses("hdfs://two:8020/a") == addresses("hdfs://TWO/a") == ("http://two:9999",)
    configure({"fs.defaultFS": "hdfs://127.0.0.1:31227", "dfs.namenode.http-address": "127.0.0.1:26368"})
    assert addresses("hdfs://127.0.0.1:31227/a") == addresses("hdfs:///a") == ("http://127.0.0.1:26368",)
    configure({"fs.defaultFS": "hdfs://node:9000"})
    assert addresses("hdfs:///a") == ("http://node:9870", "http://node:50070")  # where Hadoop's versions listen


def test_tls_is_used_where_the_policy_says_so(configure: Any) -> None:
    configure({**HA, "dfs.http.policy": "HTTPS_ONLY"})
    assert addresses("hdfs://prod/a") == ("https://one:9871", "https://two:9871")
    configure({**HA, "dfs.http.policy": "HTTP_AND_HTTPS"})
    assert addresses("hdfs://prod/a")[0] == "http://one:9870"


def test_variables_in_settings_are_filled_in(configure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER", "head")
    host = {"fs.host": "${hadoop.name}.lan", "hadoop.name": "${env.MASTER}"}
    configure({**host, "fs.defaultFS": "hdfs://${fs.host}:8020", "dfs.namenode.http-address": "${fs.host}:1234"})
    assert addresses("hdfs:///a") == ("http://head.lan:1234",)


def test_web_addresses_are_taken_as_they_are() -> None:
    assert addresses("webhdfs://gateway:14000/a") == ("http://gateway:14000",)
    assert addresses("swebhdfs://gateway/a") == ("https://gateway:9871",)
    cluster, place = hdfs.locate("webhdfs://ann@gateway/a")
    assert (cluster.root, cluster.addresses, place) == ("webhdfs://gateway", ("http://gateway:9870",), "/a")


@pytest.mark.parametrize(
    ("settings", "path", "message"),
    [
        (None, "hdfs:///a", "names no NameNode, and no fs.defaultFS is known here .HADOOP_CONF_DIR is None."),
        ({"fs.defaultFS": "s3a://b"}, "hdfs:///a", "fs.defaultFS is 's3a://b'.*hdfs://namenode:8020/"),
        ({"dfs.nameservices": "prod"}, "hdfs://prod/a", "no dfs.namenode.http-address for the nameservice 'prod'"),
        (None, "webhdfs:///a", "names no host. Write it like webhdfs://namenode:9870/"),
    ],
)
def test_what_no_settings_tell_is_said(configure: Any, settings: Any, path: str, message: str) -> None:
    if settings is not None:
        configure(settings)
    with pytest.raises(ArgumentError, match=message):
        hdfs.locate(path)


def test_broken_settings_are_named_and_end_no_run_that_needs_none(
    configure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    file = configure(HA) / "hdfs-site.xml"
    file.write_text("<configuration><property>")
    with raises("bad-hadoop-configuration"):
        hdfs.locate("hdfs:///a")
    assert hdfs.environment() == {}
    assert "hdfs-site.xml cannot be read" in caplog.text


def test_the_user_is_the_one_hadoop_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hdfs.locate("hdfs://node/a")[0].user == getpass.getuser()
    monkeypatch.setenv(hdfs.VARIABLE, base64.urlsafe_b64encode(b'{"user": "driver"}').decode())
    assert hdfs.user_name() == "driver"
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    assert hdfs.user_name() == "ann"


def test_kerberos_names_no_user_and_the_package_it_needs(configure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    configure({**HA, "hadoop.security.authentication": "kerberos"})
    cluster = hdfs.locate("hdfs:///a")[0]
    assert cluster.kerberos and cluster.user is None
    pytest.importorskip("requests")
    monkeypatch.setitem(sys.modules, "requests_kerberos", None)
    with pytest.raises(ImportError, match=r"kerberos.*'requests-kerberos'.*pip install 'orca-dl\[kerberos\]'"):
        hdfs.filesystem("hdfs:///a")


def test_the_package_that_http_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "orca.storage.webhdfs", raising=False)
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(MissingDependency, match=r"hdfs://node/a needs .*'requests'.*pip install 'orca-dl\[hdfs\]'"):
        hdfs.filesystem("hdfs://node/a")


def test_addresses_travel_and_nothing_else_does(configure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"fs.s3a.secret.key": "hush", "dfs.namenode.kerberos.principal": "hush", "hadoop.password": "hush"}
    configure({**HA, **secrets})
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    here, sent = hdfs.locate("hdfs:///a"), hdfs.environment()
    assert list(sent) == ["ORCA_HDFS"]
    results = base64.urlsafe_b64decode(sent["ORCA_HDFS"])
    assert b"one:9870" in results and b"hush" not in results
    assert re.fullmatch(r"[\w=-]+", sent["ORCA_HDFS"])  # shells hand it on as it is
    monkeypatch.delenv("HADOOP_CONF_DIR")
    monkeypatch.delenv("HADOOP_USER_NAME")
    assert hdfs.environment() == {}
    monkeypatch.setenv("ORCA_HDFS", sent["ORCA_HDFS"])
    assert hdfs.locate("hdfs:///a") == here
    assert hdfs.environment() == sent  # a worker may be the driver of others
    configure({"fs.defaultFS": "hdfs://prod", "dfs.namenode.http-address.prod.nn1": "mine:1"})
    assert addresses("hdfs://prod/a") == ("http://mine:1", "http://two:9999")  # a worker's own settings come first


def test_a_variable_that_orca_did_not_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_HDFS", "namenode:8020")
    with raises("bad-hadoop-settings"):
        hdfs.locate("hdfs:///a")


def test_ranks_without_settings_reach_what_the_driver_reaches(configure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    configure(HA)
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    shards = shards_of([(np.zeros((1, 1)), np.zeros(1))] * 2)

    def forget() -> list[Any]:  # called after the envelope is sealed, before the ranks start
        for name in ("HADOOP_CONF_DIR", "HADOOP_USER_NAME"):
            monkeypatch.delenv(name)
        return shards.portable()

    def look(world: Any, rows: Any, heartbeat: Any) -> Any:
        return os.environ.get("HADOOP_CONF_DIR"), hdfs.locate("hdfs:///a")

    items = LocalEngine(2).run(look, dataclasses.replace(shards, portable=forget), Settings(progress=False))
    cluster = hdfs.HdfsCluster("hdfs://prod", ("http://one:9870", "http://two:9999"), "ann", False, hdfs._FROM_SETTINGS)
    assert items == [(None, (cluster, "/a"))] * 2
    assert "ORCA_HDFS" not in os.environ  # nothing stays on the driver
