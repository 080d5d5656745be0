from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    # A group that is done before its process dies in the next one, and is not run again.
    "test_a.py": """
        def test_before(): pass

        def test_before_too(): pass
    """,
    "test_b.py": """
        def test_first(): pass

        def test_that_kills_its_process(): os.kill(os.getpid(), signal.SIGKILL)

        def test_after(): pass
    """,
    "test_c.py": """
        @pytest.mark.parametrize("number", range(5))
        def test_beside(number): time.sleep(0.1)
    """,
    # Groups of one test: a process runs a test only when it knows of a second one.
    "test_d.py": "def test_alone(): pass",
    "test_e.py": "def test_that_kills_its_process_too(): os._exit(1)",
    "test_f.py": "def test_last(): pass",
}


def test_a_test_that_kills_its_process_fails_once_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\nfrom groups import pytest_xdist_make_scheduler\n\n"
        "def pytest_itemcollected(item): item.add_marker(pytest.mark.xdist_group(item.location[0]))\n"
    )
    for name, code in TESTS.items():
        lines = "import os, signal, time\nimport pytest\n" + code.replace("\n        ", "\n")
        (tmp_path / name).write_text(lines)
    arguments = re.search(r"^PARALLEL := -n \$\(JOBS\) (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert arguments is not None
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", tmp_path, "-p", "no:cacheprovider"]
        + ["-n", "2", *arguments[1].split(), "--junitxml", tmp_path / "report.xml", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    print(run.stdout, run.stderr)
    outcomes = Counter(
        (case.attrib["name"].partition("@")[0], not len(case))
        for case in ET.parse(tmp_path / "report.xml").iter("testcase")
    )
    passed = ["before", "before_too", "first", "after", "alone", "last", *(f"beside[{n}]" for n in range(5))]
    failed = ["that_kills_its_process", "that_kills_its_process_too"]
    expected = {(f"test_{name}", name in passed): 1 for name in [*passed, *failed]}
    assert outcomes == expected
    assert run.returncode == 1
    assert len(re.findall("^FAILED .*test_that_kills_its_process@", run.stdout, re.MULTILINE)) == 1
