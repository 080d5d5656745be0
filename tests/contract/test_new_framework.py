"""The package of docs/new-framework.md: installed, found by its entry points, trained; the page shows its files."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from programs import blocks_of, run_program

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "new-framework.md"
PACKAGE = ROOT / "examples" / "new_framework"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package into a folder of its own, with nothing from a package index: the environment has no pip."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, check=True, cwd=PACKAGE, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(target)  # all that the installation of a wheel without scripts does
    return target


def test_the_page_shows_the_files_of_the_package() -> None:
    learner, data, package, _ = blocks_of(PAGE)
    assert learner == (PACKAGE / "orca_logistic" / "learner.py").read_text()
    assert data == (PACKAGE / "orca_logistic" / "data.py").read_text()
    assert package == (PACKAGE / "orca_logistic" / "__init__.py").read_text()
    assert blocks_of(PAGE, "toml") == [(PACKAGE / "pyproject.toml").read_text()]


@pytest.mark.slow
def test_the_installed_package_trains_on_its_own_kind_of_data(installed: Path) -> None:
    program = blocks_of(PAGE)[-1]
    loss, accuracy, shape = run_program(program, env={"PYTHONPATH": str(installed)}).stdout.split("\n")[:3]
    assert float(loss) < 0.3 and float(accuracy) > 0.9 and shape == "(500,)"


@pytest.mark.slow
def test_workers_are_forked_with_the_installed_package_loaded(installed: Path) -> None:
    program = """
        from orca_logistic import PLUGIN
        from orca import registry
        from orca.core import loading

        registry.preload_plugins()
        print(loading.slow_modules())
    """
    assert "'orca_logistic.learner'" in run_program(program, env={"PYTHONPATH": str(installed)}).stdout
