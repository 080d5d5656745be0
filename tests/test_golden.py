"""Programs as new users write them: each runs at once, or fails with one short message that names the remedy.

tests/golden has the programs, and beside each what it shows: at most 40 lines. Fractions, times, ranks, hosts and
folders may differ. To see what a program shows now: python tests/test_golden.py NAME.
"""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from programs import run_program

FOLDER = Path(__file__).resolve().parent / "golden"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py"))
LIMIT = 40  # lines of a screen
NEEDS = {"keras_two_inputs": "keras", "torchvision_loader": "torchvision"}
SPARK = {"table_with_nulls", "predict_to_parquet"}
FULL = {"keras_two_inputs", "resume", "torchvision_loader"}
NOISE = [
    # A program that imports Keras before Orca sees TensorFlow's greetings; the underlines of tracebacks are Python's.
    (r"^(WARNING: All log messages|[IWE]\d{4} |To enable the following).*\n|^ *[~^]+\n", ""),
    (r'File "(?:[^"\n]*[/\\])?([^"/\\\n]+)", line \d+', r'File "\1", line #'),
    (rf"\bon {re.escape(socket.gethostname())}\b|\bon HOST\b", "on HOST"),
    (r"\brank \d+", "rank #"),
    (r"\bholds \d+ null", "holds # null"),  # of the rows that this rank has read first
    (r"=[\d.]+(e-?\d+)?(?=, )", "=#"),  # of a line of an epoch
    (r"[\d.]+k? rows/s", "# rows/s"),
    (r"\d+\.\d+(e-?\d+)?|\d+e-\d+", "#"),
]


def screen_of(name: str) -> str:
    """Return what a program shows: its output, then what is on stderr."""
    result = run_program((FOLDER / f"{name}.py").read_text(), timeout=200, env={"ORCA_DEBUG": None})
    return result.stdout + result.stderr


def normalized(screen: str) -> list[str]:
    for pattern, text in NOISE:
        screen = re.sub(pattern, text, screen, flags=re.MULTILINE)
    return [line.rstrip() for line in screen.splitlines() if line.strip()]


def check(name: str, screen: str) -> None:
    shown, expected = normalized(screen), normalized((FOLDER / f"{name}.txt").read_text())
    assert shown == expected
    assert len(shown) <= LIMIT


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in FULL | SPARK else ()) for name in NAMES]
)
def test_a_program_shows_what_it_did(name: str) -> None:
    for library in ("torch", NEEDS.get(name, "torch"), "pyspark" if name in SPARK else "torch"):
        pytest.importorskip(library)
    check(name, screen_of(name))


def test_a_program_of_dataframes_prints_the_same_in_a_session_that_is_there(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import orca

    for verb in ("init_orca_context", "stop_orca_context"):
        monkeypatch.setattr(orca, verb, lambda **_: None)
    name = "table_with_nulls"  # Spark would write the files of the other into its own folder
    monkeypatch.chdir(tmp_path)
    exec(compile((FOLDER / f"{name}.py").read_text(), "program.py", "exec"), {"__name__": "__main__"})
    output = normalized(capfd.readouterr().out)
    assert output and output == normalized((FOLDER / f"{name}.txt").read_text())[: len(output)]


def test_every_program_has_a_screen_of_its_own() -> None:
    assert {file.stem for file in FOLDER.glob("*.txt")} == set(NAMES)
    assert len(NAMES) == 10


if __name__ == "__main__":
    print(screen_of(sys.argv[1]))
