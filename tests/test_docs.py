"""Docs: the programs of README and of every page run as they stand, each page's blocks as one program.

A block that needs a cluster which is not here says so in its first line, by one of the comments in CLUSTERS.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from programs import blocks_of, run_program

TESTS = Path(__file__).resolve().parent
README, DOCS = TESTS.parent / "README.md", TESTS.parent / "docs"
CLUSTERS = {
    "# Needs a YARN cluster.": "yarn",
    "# Needs a standalone cluster.": "spark://",
    "# Needs spark-submit.": "spark-submit",
    "# Needs HDFS.": "hdfs",
}
NEEDS = {
    "data": ["pyspark", "PIL", "tensorflow"],
    "inference": ["pyspark"],
    "keras": ["keras", "tf_keras", "pyspark"],
    "classic/mxnet": ["mxnet"],
    "classic/nnframes": ["pyspark", "PIL"],
    "classic/tf1": ["tf_slim"],
    "ray": ["ray", "pyspark"],
    "standalone": ["pyspark"],
    "xshards": ["pyspark"],
}
FAST = {"files"}  # the pages of `make test`, besides README and Quickstart
ELSEWHERE = {  # pages that tests of their subject run, and look at the output of
    "history": "report/test_history.py",
    "classic/horovod": "classic/horovod/test_sync.py",
    "openvino": "estimators/test_openvino.py",
    "new-framework": "contract/test_new_framework.py",
    "quickstart": "test_docs.py",
}


def local_blocks(page: Path) -> list[str]:
    """Return the blocks of a page that run on one machine."""
    return [block for block in blocks_of(page) if block.splitlines()[0] not in CLUSTERS]


NAMES = {str(page.relative_to(DOCS).with_suffix("")): page for page in sorted(DOCS.rglob("*.md"))}
PAGES = [name for name, page in NAMES.items() if name not in ELSEWHERE and local_blocks(page)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [pytest.param(page, marks=() if page in FAST else pytest.mark.full) for page in PAGES])
def test_programs_of_a_page_run(page: str) -> None:
    for library in ["torch", *NEEDS.get(page, [])]:
        pytest.importorskip(library)
    run_program("".join(local_blocks(DOCS / f"{page}.md")), timeout=270)


def test_pages_that_are_run_elsewhere_are_run_there() -> None:
    for page, test in ELSEWHERE.items():
        assert f'"{NAMES[page].name}"' in (TESTS / test).read_text()


def test_a_block_that_needs_a_cluster_says_which() -> None:
    for page in [README, *NAMES.values()]:
        for block in blocks_of(page):
            compile(block, page.name, "exec")
            line = block.splitlines()[0]
            if line.startswith("# Needs "):
                assert CLUSTERS[line] in block.removeprefix(line), f"{page.name} does not use what it says: {line}"


def test_readme_has_a_whole_program_whose_output_is_below_it() -> None:
    pytest.importorskip("torch")
    (program,) = blocks_of(README)
    assert len(program.splitlines()) <= 30
    assert same_but_for_numbers(run_program(program).stdout, blocks_of(README, "text"))


def test_readme_runs_on_spark_with_one_word_changed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = blocks_of(README)
    assert program.count('backend="local"') == 1
    run_here(program.replace('backend="local"', 'backend="spark"'), tmp_path, monkeypatch)
    assert same_but_for_numbers(capsys.readouterr().out, blocks_of(README, "text"))


def test_quickstart_prints_what_it_says(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import orca

    page = DOCS / "quickstart.md"
    for name in ("init_orca_context", "stop_orca_context"):  # the session of the tests is there, and stays
        monkeypatch.setattr(orca, name, lambda **_: None)
    run_here("".join(blocks_of(page)), tmp_path, monkeypatch)
    assert same_but_for_numbers(capsys.readouterr().out, blocks_of(page, "text"))


@pytest.mark.full
def test_quickstart_runs_as_a_program_of_its_own() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pyspark")
    page = DOCS / "quickstart.md"
    assert same_but_for_numbers(run_program("".join(blocks_of(page))).stdout, blocks_of(page, "text"))


def run_here(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a program in this process, in a folder and with names of its own."""
    monkeypatch.chdir(folder)
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})


def same_but_for_numbers(output: str, shown: list[str]) -> bool:
    """Return whether a program wrote the blocks that a page shows; numbers depend on the processor."""
    ours, theirs = (re.sub(r"\d+(\.\d+)?", "#", text).split() for text in (output, "".join(shown)))
    return ours == theirs


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_tutorial_learns_what_people_like() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pyspark")
    program = (DOCS.parent / "examples" / "ncf.py").read_text()
    output = run_program(program, timeout=270).stdout
    (area,) = re.findall(r"AUC (0\.\d+)$", output, flags=re.MULTILINE)
    assert float(area) > 0.75  # chance gives 0.5
    assert "prediction" in output


@pytest.mark.full
@pytest.mark.timeout(300)
def test_features_of_old_drawings_tell_new_ones_apart() -> None:
    for library in ("torch", "pyspark", "PIL"):
        pytest.importorskip(library)
    program = (DOCS.parent / "examples" / "transfer_learning.py").read_text()
    output = run_program(program, timeout=270).stdout
    (accuracy,) = re.findall(r"accuracy on new kinds of drawings (\d\.\d+)$", output, flags=re.MULTILINE)
    assert float(accuracy) > 0.75  # chance gives 0.5
