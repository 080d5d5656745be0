"""Settings of Hadoop as its files have them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orca.cluster.hadoop import Hadoop, name_nodes, resource_managers, settings_of
from orca.errors import ArgumentError, OrcaError


def write(folder: Path, name: str, **settings: str) -> None:
    lines = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
    (folder / name).write_text(f"<configuration>{lines}</configuration>")


def test_settings_refer_to_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "far")
    write(tmp_path, "core-site.xml", **{"a": "x-${b}", "b": "${env.WHERE}", "me": "/user/${user.name}"})
    assert settings_of(tmp_path) == {"a": "x-far", "b": "far", "me": "/user/${user.name}"}


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    with pytest.raises(ArgumentError, match=r"Hadoop's settings .*yarn-site.xml cannot be read: no element found"):
        settings_of(tmp_path)


def test_services_are_found_alone_and_in_groups() -> None:
    assert resource_managers({}) == []
    assert resource_managers({"yarn.resourcemanager.hostname": "rm"}) == ["rm:8032"]
    ha = {"yarn.resourcemanager.ha.rm-ids": "a, b", "yarn.resourcemanager.address.a": "one:1"}
    assert resource_managers({**ha, "yarn.resourcemanager.hostname.b": "two"}) == ["one:1", "two:8032"]
    assert name_nodes({"fs.defaultFS": "file:///"}) == []
    assert name_nodes({"fs.defaultFS": "hdfs://nn"}) == ["nn:8020"]
    assert name_nodes({"fs.defaultFS": "hdfs://nn:9000/home"}) == ["nn:9000"]
    service = {"fs.defaultFS": "hdfs://ns", "dfs.ha.namenodes.ns": "x,y", "dfs.namenode.rpc-address.ns.x": "nx:1"}
    assert name_nodes({**service, "dfs.namenode.rpc-address.ns.y": "ny:1"}) == ["nx:1", "ny:1"]


def test_a_file_is_shared_once_in_a_folder_of_the_user(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hadoop = Hadoop(spark.sparkContext._gateway)
    (tmp_path / "file").write_text("content")
    place = hadoop.share(tmp_path / "file", "file-1", f"file://{tmp_path}")
    shared = Path(place.removeprefix("file:"))
    assert shared.read_text() == "content" and shared.parent.name == f".orca-{shared.owner()}"
    assert (shared.stat().st_mode & 0o777, shared.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert "[orca] uploading file-1, 7 B, to file:" in capsys.readouterr().err
    assert hadoop.share(tmp_path / "file", "file-1", f"file://{tmp_path}") == place
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_what_lies_in_the_folder_of_another_user_is_not_run(spark: Any, tmp_path: Path) -> None:
    hadoop = Hadoop(spark.sparkContext._gateway)
    (tmp_path / "file").write_text("content")
    shared = Path(hadoop.share(tmp_path / "file", "file-1", f"file://{tmp_path}").removeprefix("file:"))
    os.chown(shared.parent, 12345, -1)
    with pytest.raises(OrcaError, match="belongs to .* and not to .*: what lies there would run in this user's name"):
        hadoop.share(tmp_path / "file", "file-1", f"file://{tmp_path}")
