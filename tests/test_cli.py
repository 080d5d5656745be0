from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

import orca
from orca.cli import main


def run_orca(*arguments: str, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    """Run `python -m orca` and show what it said."""
    command = [sys.executable, "-m", "orca", *arguments]
    said = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    print(f"--- stdout\n{said.stdout}\n--- stderr\n{said.stderr}\n--- status {said.returncode}")
    return said


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"orca {orca.__version__} (Python 3.")
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: command"),
        (["docter"], "invalid choice: 'docter'"),
        (["doctor", "--cluster_mode", "lokal"], "invalid choice: 'lokal'"),
        (["doctor", "--backend", "sparc"], "invalid choice: 'sparc'"),
        (["doctor", "--cores", "0"], "must be 1, 2, 3, ... or '*'; got '0'"),
        (["doctor", "--num_nodes", "two"], "must be 1, 2, 3, ...; got 'two'"),
        (["doctor", "--memory", "2"], "must be a number with a unit k, m, g or t, as 2g; got '2'"),
        (["doctor", "--limit", "soon"], "must be a number of seconds, as 60; got 'soon'"),
        (["doctor", "--conf", "hunter2"], "--conf takes NAME=VALUE"),
        (["submit", "--conf", "hunter2", "program.py"], "--conf takes NAME=VALUE"),
        (["submit", "--cores", "0", "program.py"], "must be 1, 2, 3, ...; got '0'"),
    ],
)
def test_wrong_arguments_end_with_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    results = capsys.readouterr().err
    assert end.value.code == 2 and words in results and "hunter2" not in results


def test_packed_environments_are_listed_and_purged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    folder = tmp_path / "orca" / "environments"
    folder.mkdir(parents=True)
    old, young, foreign = folder / f"{'a' * 32}.tar.gz", folder / f"modules-{'b' * 16}.zip", folder / "thesis.zip"
    for file in (old, young, foreign):
        file.write_bytes(bytes(2000))
    mark = folder / f"{old.name}.sha256"
    mark.touch()
    os.utime(old, (0, 0))
    assert main(["environment", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == [str(old), str(young)] and "2 kB" in lines[0]
    assert main(["environment", "purge", "--older_than", "30"]) == 0
    assert f"{old} removed" in capsys.readouterr().out and set(folder.iterdir()) == {young, foreign}
    assert main(["environment", "purge"]) == 0
    assert set(folder.iterdir()) == {foreign}


def test_submit_gets_its_arguments_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--cluster_mode", "local", "no-such-program.py"]) == 2
    assert "there is no program no-such-program.py" in capsys.readouterr().err


def test_yarn_without_a_hadoop_configuration_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    said = run_orca("doctor", "--cluster_mode", "yarn-cluster")
    assert said.returncode == 1
    assert "or set HADOOP_CONF_DIR to it." in said.stdout and "looked at as yarn-client" in said.stdout
    assert said.stdout.endswith("training would not start: 1 error\n")


def test_doctor_of_local_processes_ends_with_status_0_and_speaks_json(tmp_path: Path) -> None:
    said = run_orca("doctor", "--backend", "local", "--model_dir", str(tmp_path / "model"), "--json")
    report = json.loads(said.stdout)
    assert said.returncode == 0 and report["ok"] is True
    assert {"driver", "engine", "slots", "ranks", "network", "storage"} <= {one["topic"] for one in report["findings"]}
    assert not (tmp_path / "model").exists()


@pytest.mark.full
def test_doctor_of_a_spark_with_bad_settings_names_each_with_its_fix() -> None:
    said = run_orca(
        *("doctor", "--cluster_mode", "local", "--cores", "2", "--workers_per_node", "2"),
        *(
            "--conf",
            "spark.task.cpus=2",
            "--conf",
            "spark.python.worker.reuse=false",
            "--conf",
            "my.secret=hunter2hunter2",
        ),
    )
    assert said.returncode == 1
    assert "2 workers must run at the same time, and Spark runs 1 task(s) at once" in said.stdout
    assert 'set: init_orca_context(..., conf={"spark.task.cpus": "1"})' in said.stdout
    assert 'set: init_orca_context(..., conf={"spark.python.worker.reuse": "true"})' in said.stdout
    assert "1 rank(s) started and joined" in said.stdout
    assert "\x1b" not in said.stdout and "hunter2" not in said.stdout + said.stderr


@pytest.mark.full
def test_dynamic_allocation_is_an_error_with_the_one_setting() -> None:
    conf = ["spark.dynamicAllocation.enabled=true", "spark.dynamicAllocation.shuffleTracking.enabled=true"]
    said = run_orca(
        *("doctor", "--cluster_mode", "standalone", "--master", "local-cluster[1,1,1024]", "--cores", "1"),
        *("--memory", "1g", *(word for setting in conf for word in ("--conf", setting))),
    )
    assert said.returncode == 1
    assert 'set: init_orca_context(..., conf={"spark.dynamicAllocation.enabled": "false"})' in said.stdout
    assert "training would not start: 1 error" in said.stdout


@pytest.mark.yarn
@pytest.mark.timeout(300)
def test_doctor_of_yarn_joins_two_executors_and_writes_to_hdfs() -> None:
    said = run_orca(
        *("doctor", "--cluster_mode", "yarn-client", "--no_ship_environment", "--cores", "1", "--num_nodes", "2"),
        *("--memory", "512m", "--model_dir", f"hdfs:///tmp/doctor-{uuid.uuid4().hex}", "--limit", "90", "--json"),
        timeout=280,
    )
    report = json.loads(said.stdout)
    assert said.returncode == 0 and report["ok"] is True
    what = [finding["what"] for finding in report["findings"]]
    assert "2 rank(s) started and joined" in what and "driver and ranks share model_dir" in what


def test_a_cluster_that_is_not_there_is_told() -> None:
    said = run_orca("doctor", "--cluster_mode", "standalone", "--master", "spark://127.0.0.1:1", "--cores", "1")
    assert said.returncode == 1
    assert (
        "the cluster did not start" in said.stdout and "no Spark master answers at spark://127.0.0.1:1" in said.stdout
    )


def test_the_module_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    said: Any = run_orca("version")
    assert said.returncode == 0 and said.stdout.startswith("orca ")
