"""Build Horovod for the torch of an environment and install it there. Owns what its source needs.

The newest release of Horovod is older than the newest torch, cmake and setuptools; its source builds with
all of them after a few changes. The build uses Gloo between CPUs and needs a C++ compiler and make. The wheel is kept
in a cache, by the versions it was built for, and nothing else in the environment changes.
Needs nothing but the standard library, and uv.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from install import ROOT, find_uv, run

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
RECIPE = 2  # part of the cache's key: another number where the changes below give another wheel

# setuptools 81 has no pkg_resources, cmake 4 refuses the third-party projects; the rest would be fetched by setup.py.
BUILD_TOOLS = ("setuptools<81", "cmake>=3.13,<4", "wheel", "pip", "packaging", "cloudpickle", "psutil", "pyyaml")
NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging")

ASK = """
import importlib.metadata as metadata, json, sys
torch = None
try:
    metadata.version("torch")
    import torch.version
    torch = torch.version.__version__  # tells a CPU build from others, which the package's version may not
except metadata.PackageNotFoundError:
    pass
print(json.dumps({
    "python": f"{sys.implementation.cache_tag}",
    "torch": torch,
}))
"""
WORKS = "import horovod.torch"


def main() -> None:
    """Install the wheel for this environment's versions, from the cache or freshly built."""
    options = arguments()
    python = ROOT / options.venv / "bin" / "python"  # an absolute --venv stays as it is
    if not python.exists():
        sys.exit(f"there is no environment at {options.venv}: run make install first.")
    versions = versions_of(python)
    if versions["torch"] is None:
        sys.exit(f"torch is not installed in {options.venv}, and Horovod is built for one torch. Run make install.")
    place = cache() / key(versions)
    wheel = next(iter(place.glob("*.whl")), None)
    missing = [name for name, found in (("C++ compiler", compiler()), ("make", shutil.which("make"))) if not found]
    lacking = " and no ".join(missing)
    if options.check:
        if wheel is None and missing:
            sys.exit(f"no wheel of Horovod is cached at {place}, and there is no {lacking} to build it")
        print(f"cached: {wheel}" if wheel else f"to be built for {key(versions)}")
        return
    if wheel is None and missing:
        sys.exit(
            f"Horovod must be built, and there is no {lacking}. Install the build tools of your system (Debian and "
            "Ubuntu: apt-get install g++ make) and run make horovod again. Without Horovod, "
            "backend='horovod' trains as backend='ray' does."
        )
    uv = find_uv()
    if wheel is None:
        print(f"building Horovod {VERSION} for {key(versions)}: some minutes", flush=True)
        wheel = build(uv, python, versions, place, options.jobs)
    install(uv, python, wheel)
    check_import(python)
    print(f"Horovod {VERSION} is installed in {options.venv}; its wheel is {wheel}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", default=".venv", help="folder of the environment, relative to the project")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time, 1 GB of memory each"
    )
    parser.add_argument("--check", action="store_true", help="only say whether it is cached or can be built; else fail")
    return parser.parse_args()


def versions_of(python: Path) -> dict[str, str | None]:
    asked = subprocess.run([str(python), "-c", ASK], capture_output=True, text=True)
    if asked.returncode:
        sys.exit(f"{python} does not work:\n{asked.stderr}")
    versions: dict[str, str | None] = json.loads(asked.stdout.splitlines()[-1])
    return versions


def cache() -> Path:
    """Return the folder that keeps wheels: ORCA_HOROVOD_CACHE, or one in the user's cache."""
    given = os.environ.get("ORCA_HOROVOD_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orca" / "horovod"


def key(versions: dict[str, str | None]) -> str:
    parts = [f"{name}{version}" for name, version in versions.items() if name != "python" and version]
    return "-".join([f"horovod{VERSION}", f"recipe{RECIPE}", f"{versions['python']}", *parts, platform.machine()])


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "").split(" ")[0] or "c++") or shutil.which("g++")


def build(uv: list[str], python: Path, versions: dict[str, str | None], place: Path, jobs: int) -> Path:
    """Build a wheel beside the environment, which stays as it is, and put it into the cache."""
    with tempfile.TemporaryDirectory(prefix="orca-horovod-") as folder:
        work = Path(folder)
        tools = work / "tools"
        run([*uv, "pip", "install", "--quiet", "--python", str(python), "--target", str(tools), *BUILD_TOOLS])
        flags = {
            "HOROVOD_WITH_PYTORCH": "1",
            "HOROVOD_WITHOUT_TENSORFLOW": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITHOUT_MPI": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_CPU_OPERATIONS": "GLOO",
            "MAKEFLAGS": f"-j{max(1, jobs)}",
            "PYTHONPATH": str(tools),  # before the environment's own setuptools
            "PATH": f"{tools / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }
        source = change(download(python, work, flags), python)
        made = work / "made"
        log = place.with_name(f"{place.name}.log")
        logged([str(python), "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(made)], source, flags, log)
        wheel = next(made.glob("*.whl"))
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=place.parent))
        shutil.copy(wheel, fresh)
        shutil.rmtree(place, ignore_errors=True)
        fresh.chmod(0o755)
        fresh.rename(place)  # a wheel is there as a whole, or not at all
    return place / wheel.name


def download(python: Path, work: Path, flags: dict[str, str]) -> Path:
    """Fetch and unpack the source that PyPI has, known by its hash."""
    wanted = work / "wanted.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    command = "-m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation"
    fetch = [str(python), *command.split(), "--dest", str(work), "--requirement", str(wanted)]
    if subprocess.run(fetch, env={**os.environ, **flags}, stdin=subprocess.DEVNULL).returncode:
        sys.exit(f"the source of Horovod {VERSION} could not be downloaded from the package index.")
    with tarfile.open(work / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(work, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return work / f"horovod-{VERSION}"


def change(source: Path, python: Path) -> Path:
    """Make the source build with what is installed; return it."""
    standard = "set(CMAKE_CXX_STANDARD 14)"
    replace(source / "CMakeLists.txt", standard, "set(CMAKE_CXX_STANDARD 17)")
    replace(source / "horovod/torch/CMakeLists.txt", standard, f"set(CMAKE_CXX_STANDARD {torch_standard(python)})")
    # Python 3.12 has no distutils.
    include = "from distutils.sysconfig import get_python_inc; print(get_python_inc())"
    found = "import sysconfig; print(sysconfig.get_paths()['include'])"
    replace(source / "horovod/torch/CMakeLists.txt", include, found)
    finder = "from distutils.spawn import find_executable"
    replace(source / "horovod/runner/js_run.py", finder, "from shutil import which as find_executable")
    # Gloo works between CPUs: a CUDA toolkit on this machine must not make another wheel of it.
    replace(source / "cmake/Modules/FindPytorch.cmake", "(CUDA_HOME is not None)", "False")
    replace(source / "setup.py", "require_list.append('cffi>=1.4.0')", "pass")  # nothing imports it
    return source


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if old not in text:
        sys.exit(f"{path.name} of Horovod {VERSION} is not as expected: it has no {old!r}.")
    path.write_text(text.replace(old, new))


def torch_standard(python: Path) -> int:
    """Return the C++ standard that this torch's headers ask for: what it compiles extensions with itself."""
    ask = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    torch = Path(subprocess.check_output([str(python), "-c", ask], text=True).strip())
    found = re.findall(r"-std=c\+\+(\d\d)", (torch / "utils" / "cpp_extension.py").read_text())
    return max((int(each) for each in found), default=17)


def logged(command: list[str], source: Path, flags: dict[str, str], log: Path) -> None:
    """Run a long command; keep what it says in a file and tell its end only if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as told:
        build = subprocess.run(
            command,
            cwd=source,
            env={**os.environ, **flags},
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
        )
    if build.returncode:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "error" in line.lower()][:5]
        sys.exit("\n".join([*lines[-20:], "", *errors, "", f"Horovod could not be built; all of it is in {log}."]))


def install(uv: list[str], python: Path, wheel: Path) -> None:
    """Install the wheel and what it imports, where that is missing; change nothing else."""
    into = [*uv, "pip", "install", "--quiet", "--python", str(python)]
    run([*into, "--no-deps", "--reinstall-package", "horovod", str(wheel)])
    run([*into, *NEEDS])


def check_import(python: Path) -> None:
    tried = subprocess.run([str(python), "-c", WORKS], capture_output=True, text=True)
    if tried.returncode:
        sys.exit(f"{tried.stderr}\nHorovod was installed, but `{WORKS}` fails.")


if __name__ == "__main__":
    main()
