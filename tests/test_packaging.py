"""The distribution: its version, the bounds it declares, what its wheel holds."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from types import FunctionType

import pytest

import orca
from orca import registry
from orca.registry import Backend, load

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
OWN = {path.name for path in SOURCES.iterdir()}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {"torch", "keras", "tf1", "openvino", "spark", "connect", "ray", "plot", "tensorboard", "mlflow", "wandb"}
EXTRAS |= {"hdfs", "yarn", "kerberos", "s3", "tls", "image", "all"}
APART = {"all", "kerberos"}  # kerberos needs a library of the system

# Modules whose package has another name, and modules that come with a package.
PACKAGES = {"PIL": "pillow", "mlflow": "mlflow-skinny", "py4j": "pyspark"}
UNDECLARED = {
    "mxnet": "its metadata asks for numpy < 2: `make mxnet`",
    "horovod": "it has no wheels: `make horovod`",
    "six": "a name for older programs, None if it is missing",
    "torchvision": "one layer of BigDL, which says how to install it",
}
# The extras that a folder's modules may need when they are imported; all others import what they need in functions.
NEEDS = {
    "frameworks/torch": {"torch"},
    "frameworks/keras": {"keras"},
    "tf1": {"tf1"},
    "frameworks/openvino.py": {"openvino"},
    "horovod/sync.py": {"torch"},
    "mxnet": {"torch"},
    "bigdl": {"torch", "spark"},
    "nnframes": {"torch", "spark"},
    "engines/spark.py": {"spark"},
    "engines/ray.py": {"ray"},
    "data": {"spark", "ray"},  # pandas, which either brings
    "data/image/torch_rows.py": {"torch"},
    "report/plot.py": {"plot"},
    "sources": {"torch", "keras", "spark", "ray"},  # one for each kind of data, imported if its library is
    "storage/states.py": {"torch"},
    "storage/webhdfs.py": {"hdfs"},
}


def test_version_is_the_one_of_the_installed_distribution() -> None:
    assert orca.__version__ == metadata.version("orca-dl")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", orca.__version__)


def test_every_dependency_has_a_lower_bound() -> None:
    groups = PROJECT["dependency-groups"].values()
    requirements = [
        *PROJECT["project"]["dependencies"],
        *(text for group in (*extras().values(), *groups) for text in group),
    ]
    unbounded = [text for text in requirements if not text.startswith("orca-dl[") and ">=" not in text.split(";")[0]]
    assert unbounded == []


def test_extras_exist() -> None:
    assert set(extras()) == EXTRAS


def test_all_brings_every_extra_that_a_user_needs() -> None:
    assert packages_of("all") == set().union(*(packages_of(extra) for extra in EXTRAS - APART))
    assert packages_of("kerberos") == packages_of("hdfs") | {"requests-kerberos"}
    assert packages_of("tf1") == packages_of("keras") | {"tf-keras", "tf-slim"}


def test_base_install_needs_no_framework_and_no_engine() -> None:
    assert not {"torch", "pyspark", "ray", "pandas", "tensorflow"} & packages_of()


def test_every_import_is_declared() -> None:
    declared = packages_of(*EXTRAS)
    missing = {(package, file) for file, package, _ in imports() if package not in declared | set(UNDECLARED)}
    assert missing == set()


def test_a_module_imports_what_the_base_install_and_its_own_extras_bring() -> None:
    missing = set()
    for file, package, eager in imports():
        folders = [folder for folder in NEEDS if f"{file}/".split("/", 1)[1].startswith(f"{folder}/")]
        if eager and package not in packages_of(*(extra for folder in folders for extra in NEEDS[folder])):
            missing.add((package, file))
    assert {entry for entry in missing if entry[0] not in UNDECLARED} == set()


def test_the_error_for_a_missing_package_names_an_extra_that_brings_it() -> None:
    pairs = list(registry.EXTRAS.items())
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "MissingDependency.of":
                pairs.append(tuple(arg.value if isinstance(arg, ast.Constant) else "" for arg in node.args[:2]))
    assert len(pairs) > 15
    wrong = [
        (package, extra) for package, extra in pairs if package and extra and plain(package) not in packages_of(extra)
    ]
    assert wrong == []


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


def extras() -> dict[str, list[str]]:
    listed: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    return listed


@functools.cache
def packages_of(*names: str) -> set[str]:
    """Return the packages that an install with these extras asks for, those of extras that extras name included."""
    texts = list(PROJECT["project"]["dependencies"])
    for name in names:
        texts += extras()[name]
    own = [re.match(r"orca-dl\[(.*)\]", text) for text in texts]
    inner = {extra for match in own if match for extra in match[1].split(",")}
    return {re.split(r"[\[<>=;~! ]", text)[0] for text in texts if not text.startswith("orca-dl[")} | (
        packages_of(*sorted(inner)) if inner else set()
    )


@functools.cache
def imports() -> list[tuple[str, str, bool]]:
    """Return the package of each import of other projects in src, its file, and whether it is there at load time."""
    found = []
    for path in SOURCES.rglob("*.py"):
        tree = ast.parse(path.read_text())
        guarded = {id(inner) for node in ast.walk(tree) if lazy(node) for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            for top in {module.split(".")[0] for module in modules}:
                if top and top not in {*sys.stdlib_module_names, *OWN}:
                    found.append((str(path.relative_to(SOURCES)), plain(top), id(node) not in guarded))
    return found


def lazy(node: ast.AST) -> bool:
    """Return whether what is in a node does not run when its module is loaded."""
    return isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")


def plain(module: str) -> str:
    return PACKAGES.get(module, module.replace("_", "-"))


def test_entry_points_lead_to_what_their_group_takes() -> None:
    """Those of pyproject.toml: the installed ones may be of an older tree."""
    groups = PROJECT["project"]["entry-points"]
    targets = [(group, name, target) for group, names in groups.items() for name, target in names.items()]
    assert ("orca.sources", "mxnet", "orca_classic.mxnet.data:MxnetSource") in targets
    for group, library, target in targets:
        if group == "orca.sources":
            pytest.importorskip(library)
        value = load(target, need=library)
        assert hasattr(value, "wraps") if group == "orca.sources" else isinstance(value, Backend | FunctionType)
