"""The proof that executors run what the driver runs: what differs, what of it matters, and real workers that differ."""

from __future__ import annotations

import pickle
import platform
import re
import site
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

from orca.cluster.proof import _failure, describe, differences, pins, prove, remarks

SOURCES = Path(__file__).resolve().parents[2] / "src"
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def test_describes_this_python() -> None:
    here = describe()
    assert here.python == platform.python_version() and here.machine == platform.machine()
    assert here.packages["numpy"] == numpy.__version__ and "orca-dl" in here.packages
    assert {"numpy", "pytest"} <= here.loaded
    assert pickle.loads(pickle.dumps(here)) == here and len(pickle.dumps(here)) < 100_000
    assert differences(here, here) == [] and remarks(here, here) == []


def test_knows_packages_whose_modules_have_other_names(tmp_path: Path, run_program: Callable[..., Any]) -> None:
    said = run_program(
        f"""
        import os, sys

        site = os.path.join({str(tmp_path)!r}, "site-packages")
        os.makedirs(os.path.join(site, "Strange_Name-2.0.dist-info"))
        open(os.path.join(site, "Strange_Name-2.0.dist-info", "RECORD"), "w").write("odd.py,sha256=x,0\\n")
        open(os.path.join(site, "odd.py"), "w").close()
        sys.path.append(site)
        from orca.cluster.proof import describe

        print("strange-name" in describe().loaded, describe().packages["strange-name"])
        import odd

        print("strange-name" in describe().loaded)
        """
    )
    assert said.stdout.split() == ["False", "2.0", "True"]


@pytest.mark.parametrize("package", ["setuptools", "ray"])
def test_what_a_package_brings_for_itself_is_not_installed(package: str, run_program: Callable[..., Any]) -> None:
    pytest.importorskip(package)
    said = run_program(
        f"""
        from orca.cluster.proof import describe
        before = describe()
        import {package}
        print(describe().packages == before.packages)
        """
    )
    assert said.stdout.split() == ["True"]


def test_only_what_matters_is_wrong() -> None:
    packages = {"numpy": "2.0", "torch": "2.9.0+cu124", "yaml": "6.0", "black": "1.0", "ray": "2.5"}
    driver = replace(describe(), python="3.11.7", packages=packages, loaded=frozenset({"yaml"}))

    def there(**changed: str | None) -> Any:
        merged = {**packages, **changed}
        return replace(driver, packages={name: version for name, version in merged.items() if version is not None})

    assert differences(driver, there(numpy="1.26")) == ["numpy 1.26 there, 2.0 in the driver"]
    assert pins(driver, there(numpy="1.26", yaml=None, black="2.0")) == ["numpy==2.0", "yaml==6.0"]
    assert differences(driver, there(yaml=None)) == ["yaml is not installed there, 6.0 in the driver"]
    assert differences(driver, there(torch="2.8.0")) == ["torch 2.8.0 there, 2.9.0+cu124 in the driver"]
    # Another build of the same version, a framework nobody loaded and a package nobody uses are worth a remark.
    harmless = there(torch="2.9.0+cpu", ray=None, black="2.0")
    assert differences(driver, harmless) == []
    assert remarks(driver, harmless) == [
        "black 2.0 there, 1.0 in the driver",
        "ray is not installed there, 2.5 in the driver",
        "torch 2.9.0+cpu there, 2.9.0+cu124 in the driver",
    ]
    assert remarks(driver, there(numpy="1.26")) == []
    other = replace(driver, python="3.10.2", machine="aarch64", orca="f" * 64)
    assert differences(driver, other) == [
        "CPython 3.10.2 there, CPython 3.11.7 in the driver",
        f"a aarch64 processor there, {driver.machine} in the driver",
        f"another code of Orca there (ffffffff) than in the driver ({driver.orca[:8]})",
    ]
    patched = replace(driver, python="3.11.9")
    assert differences(driver, patched) == []
    assert remarks(driver, patched) == ["Python 3.11.9 there, 3.11.7 in the driver"]


@pytest.mark.full
def test_a_session_that_was_proven_proves_itself_again(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    prove(spark)
    caplog.clear()
    with caplog.at_level("INFO", "orca.cluster.proof"):
        prove(spark)
    assert re.search(r"3 tasks on 1 hosts run the driver's environment", caplog.text)


def environment(folder: Path, path: list[str], **versions: str) -> Path:
    """Make a venv that sees other folders of packages, some said to be of other versions; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = folder / "lib" / VERSION / "site-packages"
    (packages / "others.pth").write_text("\n".join(path))
    for name, version in versions.items():
        (packages / f"{name}-{version}.dist-info").mkdir()
    return folder / "bin" / "python"


PROVE = """
    import sys

    sys.path.insert(0, {sources!r})
    from orca.cluster.context import OrcaContext, init_orca_context, stop_orca_context
    from orca.cluster.proof import prove
    from orca.errors import OrcaError

    for python in {pythons!r}:
        init_orca_context(cluster_mode={mode!r}, cores=1, num_nodes={nodes}, memory="512m", python_location=python)
        try:
            prove(OrcaContext.get_spark_session())
            print("PROVED")
        except OrcaError as error:
            print("REFUSED", error)
        stop_orca_context()
    """


@pytest.mark.full
@pytest.mark.slow
def test_names_what_workers_lack(tmp_path: Path, run_program: Callable[..., Any]) -> None:
    without = environment(tmp_path / "without", site.getsitepackages())
    pythons = ["/nowhere/bin/python", str(without)]
    code = PROVE.format(pythons=pythons, mode="local", nodes=1, sources=str(SOURCES))
    nowhere, lacking = run_program(code, env={"PYTHONPATH": None}).stdout.split("REFUSED ")[1:]
    assert nowhere.startswith("on 127.0.0.1 there is no Python at '/nowhere/bin/python'. Give the path")
    where = rf"on {re.escape(platform.node())} \({without}\)"
    assert re.search(rf"No module named 'orca' there, which the driver can import: {where}", lacking)


def test_says_in_words_what_spark_says_of_a_python_that_is_another() -> None:
    results = _failure(
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, PySpark "
        "cannot run with different minor versions.",
        ["node1", "node2"],
    )
    assert "Python 3.12 on one of node1, node2, 3.11 in the driver." in str(results)
    assert "no module 'pyarrow' on an executor" in str(_failure("ModuleNotFoundError: No module named 'pyarrow'", []))
    assert _failure("something else", []) is None


@pytest.mark.full
def test_finds_the_one_executor_that_differs(tmp_path: Path, run_program: Callable[..., Any]) -> None:
    path = [*site.getsitepackages(), str(SOURCES)]
    same, other = environment(tmp_path / "same", path), environment(tmp_path / "other", path, cloudpickle="0.1")
    # The first executor that starts a Python gets the one, the second the other.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nmkdir "{tmp_path}/taken" && exec "{same}" "$@"\nexec "{other}" "$@"\n')
    python.chmod(0o755)
    code = PROVE.format(pythons=[str(python)], mode="standalone", nodes=2, sources=str(SOURCES))
    said = run_program(code, env={"PYTHONPATH": None}).stdout
    ours, host = describe().packages["cloudpickle"], re.escape(platform.node())
    assert re.search(rf"cloudpickle 0\.1 there, {ours} in the driver: on {host} \(\S+/other/bin/python\)\n", said)
    assert f"pip install cloudpickle=={ours}" in said and "ship_environment=True" in said
    assert "/same/" not in said
