"""Verbosity: the levels, the variable, and lines that appear without any configuration of logging."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

import orca
from orca.errors import ArgumentError
from orca.monitor import verbosity


@pytest.fixture(autouse=True)
def default_verbosity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbosity, "_requested", None)
    monkeypatch.delenv(verbosity.DEBUG_VARIABLE, raising=False)
    monkeypatch.setattr(logging.getLogger("orca"), "level", logging.NOTSET)


@pytest.mark.parametrize(
    ("value", "level"), [(None, "info"), ("", "info"), ("0", "info"), ("1", "debug"), ("true", "debug")]
)
def test_the_variable_asks_for_all_details(value: str | None, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv("ORCA_DEBUG", value)
    assert verbosity.verbosity() == level


def test_the_function_comes_before_the_variable_and_sets_the_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_DEBUG", "1")
    orca.set_verbosity("warning")
    assert verbosity.verbosity() == "warning" and logging.getLogger("orca").level == logging.WARNING
    with pytest.raises(ArgumentError, match=r"takes 'debug', 'info', .*; got 'warn'\. Did you mean 'warning'\?"):
        orca.set_verbosity("warn")


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("", "a line\n"),
        ("orca.set_verbosity('warning')", ""),
        (
            "logging.basicConfig(level=logging.INFO, format='%(levelname)s %(name)s %(message)s')",
            "INFO orca.x a line\n",
        ),
        ("logging.basicConfig()", ""),
    ],
)
def test_a_line_appears_unless_the_program_says_otherwise(setting: str, shown: str) -> None:
    program = f"""
import logging, orca
from orca.monitor.verbosity import announce
{setting}
announce(logging.getLogger("orca.x"), "a line")
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, env=env, check=True, text=True)
    assert (result.stdout, result.stderr) == ("", shown)
