"""orca submit, and how an application on YARN is told about."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from orca.cli import main as command
from orca.cluster.hadoop import Application
from orca.cluster.submit import _contents, main, status_of
from orca.errors import ArgumentError


@pytest.mark.full
def test_a_program_runs_under_sparks_launcher_with_its_own_arguments(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys
            from orca import OrcaContext, init_orca_context, stop_orca_context
            context = init_orca_context()
            print(context.master, context.getConf().get("spark.some.word"), sys.argv[1:], sys.executable)
            stop_orca_context()
            sys.exit(4)
            """
        )
    )
    command = [sys.executable, "-m", "orca", "submit", "--cores", "3", "--conf", "spark.some.word=two words"]
    said = subprocess.run(
        [*command, str(program), "--cores", "7"], capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL
    )
    print(said.stdout, said.stderr)
    assert said.stdout.splitlines()[-1] == f"local[3] two words ['--cores', '7'] {sys.executable}"
    assert said.returncode == 4


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="orca submit needs a program"):
        main([])
    with pytest.raises(ArgumentError, match="there is no program .*none.py"):
        main([str(tmp_path / "none.py")])


def test_errors_are_messages_with_a_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.py").touch()
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))  # taken, and nobody listens
        address = f"127.0.0.1:{door.getsockname()[1]}"
        (tmp_path / "yarn-site.xml").write_text(
            "<configuration><property><name>yarn.resourcemanager.address</name>"
            f"<value>{address}</value></property></configuration>"
        )
        where = ["--cluster_mode", "yarn-cluster", "--hadoop_conf", str(tmp_path)]
        assert command(["submit", *where, str(tmp_path / "program.py")]) == 1
    assert capsys.readouterr().err.startswith(f"orca submit: no ResourceManager of YARN answers at {address}")
    wrong = ["submit", "--cluster_mode", "standalone", "--master", "spark://127.0.0.1:9", str(tmp_path / "program.py")]
    assert command(wrong) == 2
    assert capsys.readouterr().err.startswith("orca submit: no Spark master answers")


@pytest.mark.parametrize(
    ("final", "diagnostics", "status"),
    [
        ("SUCCEEDED", "", 0),
        ("FAILED", "User application exited with status 3", 3),
        ("FAILED", "Application failed 1 times due to AM Container exited with exitCode: 13", 13),
        ("KILLED", "Application was killed by user root", 1),
    ],
)
def test_status_is_the_programs(final: str, diagnostics: str, status: int) -> None:
    assert status_of(Application("application_1_1", "FINISHED", final, diagnostics, "")) == status


def test_a_log_is_taken_out_of_its_page() -> None:
    page = b"Container: c on h\nLogType:stdout\nLogLength:11\nLogContents:\nLogLength:9End of LogType:stdout.\n***\n"
    assert _contents(page, 100) == b"LogLength:9"
    assert _contents(page, 3) == b"Log"
    with pytest.raises(ValueError, match="no page of a log"):
        _contents(b"<html>", 10)
