"""The distribution: its version, the bounds it declares, what its wheel holds."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import orca
from orca.registry import Backend, load

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"torch", "tensorflow", "openvino", "spark", "connect", "ray", "plot", "tensorboard", "mlflow", "wandb"}
EXTRAS |= {"hdfs", "yarn", "kerberos", "s3", "image", "mxnet", "all", "bench", "dev"}
# kerberos needs a library of the system, mxnet an older numpy.
APART = {"all", "bench", "dev", "kerberos", "mxnet"}


def test_version_is_the_one_of_the_installed_distribution() -> None:
    assert orca.__version__ == metadata.version("orca-dl")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", orca.__version__)


def test_every_dependency_has_a_lower_bound() -> None:
    requirements = metadata.requires("orca-dl") or []
    assert requirements
    unbounded = [text for text in requirements if not text.startswith("orca-dl[") and ">=" not in text.split(";")[0]]
    assert unbounded == []


def test_extras_exist() -> None:
    assert set(metadata.metadata("orca-dl").get_all("Provides-Extra") or []) == EXTRAS


def test_all_brings_every_extra_that_a_user_needs() -> None:
    assert packages_of("all") == set().union(*(packages_of(extra) for extra in EXTRAS - APART))
    assert packages_of("kerberos") == packages_of("hdfs") | {"requests-kerberos"}
    assert packages_of("mxnet") == packages_of("torch") | {"mxnet", "setuptools"}


def test_base_install_needs_no_framework_and_no_engine() -> None:
    assert not {"torch", "pyspark", "ray", "pandas", "tensorflow"} & packages_of(None)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_wheel_holds_the_package_and_its_shims(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, check=True, cwd=ROOT)
    (wheel,) = tmp_path.glob("orca_dl-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert tops == {"orca", "orca_classic", "zoo", "bigdl"}
    assert all(f"{package}/__init__.py" in names for package in tops)


def packages_of(extra: str | None) -> set[str]:
    """Return the names of the packages that an extra (None: the base install) asks for."""
    names = set()
    for text in metadata.requires("orca-dl") or []:
        named = re.search(r"extra == ['\"](.*?)['\"]", text)
        if (named and named[1]) == extra:
            names.add(re.split(r"[\[<>=;~! ]", text)[0])
    return names


def test_entry_points_lead_to_what_their_group_takes() -> None:
    """Those of pyproject.toml: the installed ones may be of an older tree."""
    text = (ROOT / "pyproject.toml").read_text()
    sections = re.findall(r'^\[project\.entry-points\."(orca\.\w+)"\]\n((?:\S.*\n)+)', text, re.MULTILINE)
    targets = [(group, *line.split(" = ")) for group, lines in sections for line in lines.splitlines()]
    assert ("orca.sources", "mxnet", '"orca_classic.mxnet.data:MxnetSource"') in targets
    for group, library, target in targets:
        if group == "orca.sources":
            pytest.importorskip(library)
        value = load(target.strip('"'), need=library)
        assert hasattr(value, "wraps") if group == "orca.sources" else isinstance(value, Backend)
