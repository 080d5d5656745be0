"""Install: a virtual environment with this project in it, through uv. Owns where uv and the interpreter come from.

A torch that is already in the environment is kept as it is (a CPU build stays a CPU build).
Needs nothing but the standard library: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"
PRIVATE_UV = ROOT / ".uv"
# MXNet with what it imports. Its own metadata would hold numpy below 2, so it comes without its dependencies.
MXNET = ["mxnet==1.9.1", "graphviz==0.8.4"]
INSTALLED = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
VERSION_OF_TORCH = "import importlib.metadata as m; print(m.version('torch'))"


def main() -> None:
    """Make the environment if it is missing and install this project with its extras into it."""
    options = arguments()
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is also started by interpreters that are too old
        sys.exit(f"Orca needs Python 3.11 or newer; this is {sys.version.split()[0]}. Choose: make PYTHON=python3.12")
    uv = find_uv()
    venv = ROOT / options.venv
    python = venv / "bin" / "python"
    if not works([str(python), "-c", ""]):
        run([*uv, "venv", "--quiet", "--clear", "--python", interpreter(options.python), str(venv)])
    install = [*uv, "pip", "install", "--python", str(python)]
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):  # otherwise every process would compile torch's sources anew
        install.append("--compile-bytecode")
    if options.torch or options.torch_index:
        index = ["--index-url", options.torch_index] if options.torch_index else []
        run([*install, *index, *(options.torch or "torch").split(), "torchvision"])
    kept = [] if options.lowest else keep_torch(python, venv)
    lowest = ["--resolution", "lowest-direct", "--upgrade"] if options.lowest else []
    extras = "all,kerberos" if options.lowest and shutil.which("krb5-config") else "all"  # a library that is compiled
    groups = ["dev", "bench"] if options.lowest else ["dev"]
    grouped = [word for group in groups for word in ("--group", f"{PROJECT}:{group}")]
    run([*install, *lowest, *kept, "--editable", f"{ROOT}[{extras}]", *grouped])
    if options.lowest:
        refuse_other_versions(python)
    if options.mxnet and not works([*install, "--no-deps", "--only-binary", "mxnet", *MXNET]):
        sys.exit("MXNet cannot be installed here: it has wheels for Linux, and for macOS on Intel.")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", default=".venv", help="folder of the environment, relative to the project")
    parser.add_argument("--python", default="", help="version such as 3.13; without it, the interpreter that runs this")
    parser.add_argument("--lowest", action="store_true", help="install the lowest versions that pyproject.toml allows")
    parser.add_argument("--mxnet", action="store_true", help="install MXNet too")
    parser.add_argument("--torch", default="", help="requirement(s) of torch to install first, such as torch==2.9.1")
    parser.add_argument("--torch-index", default="", help="package index to take torch from, such as one of CPU builds")
    return parser.parse_args()


def find_uv() -> list[str]:
    """Return the command that runs uv: from PATH, as a module, or freshly installed by pip."""
    module = [sys.executable, "-m", "uv"]
    private = [str(PRIVATE_UV / "bin" / "uv")]
    for command in (["uv"], module, private):
        if works([*command, "--version"]):
            return command
    print("uv is missing: installing it with pip", flush=True)
    in_venv = sys.prefix != sys.base_prefix  # pip refuses --user there
    if not in_venv and works([sys.executable, "-m", "pip", "install", "--quiet", "--user", "uv"]):
        if works([*module, "--version"]):
            return module
    # PEP 668 (an externally managed Python) or no user site: a small environment for uv alone.
    made = works([sys.executable, "-m", "venv", "--clear", str(PRIVATE_UV)])
    if made and works([str(PRIVATE_UV / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"]):
        return private
    sys.exit(
        "uv is missing and could not be installed: this Python has neither a usable pip nor venv. "
        "Install uv (or your system's python3-venv package) and run make again."
    )


def interpreter(wanted: str) -> str:
    """Return what `uv venv --python` should take: a path where we find one, else the version, for uv to fetch."""
    if not wanted:
        return sys.executable
    on_path = shutil.which(f"python{wanted}")
    if on_path and works([on_path, "-c", ""]):  # a pyenv shim of an inactive version is on PATH but does not run
        return on_path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for found in sorted(pyenv.glob(f"versions/{wanted}.*/bin/python"), reverse=True):
        if works([str(found), "-c", ""]):
            return str(found)
    return wanted


def keep_torch(python: Path, venv: Path) -> list[str]:
    """Return the option that pins the torch which is already installed, if one is."""
    asked = subprocess.run([str(python), "-c", VERSION_OF_TORCH], capture_output=True, text=True)
    if asked.returncode:
        return []
    constraint = venv / "torch.txt"
    constraint.write_text(f"torch=={asked.stdout.strip()}\n")
    return ["--constraint", str(constraint)]


def refuse_other_versions(python: Path) -> None:
    """Exit with an error if a package is installed in another version than its lower bound in pyproject.toml."""
    import tomllib  # not at the top: an interpreter that is too old reads this file as far as its message

    project = tomllib.loads(PROJECT.read_text())
    extras = project["project"]["optional-dependencies"]
    lists = [project["project"]["dependencies"], *extras.values(), *project["dependency-groups"].values()]
    text = subprocess.run([str(python), "-c", INSTALLED], capture_output=True, check=True, text=True).stdout
    versions = {plain_name(name): version for name, version in json.loads(text).items()}
    wrong = []
    for requirement in {requirement for requirements in lists for requirement in requirements}:
        bound = re.match(r"([\w.-]+)(?:\[.*?\])?>=([\d.]+)", requirement)
        if bound is None:  # an extra of our own
            continue
        version = versions.get(plain_name(bound[1]))
        if version is None:
            print(f"Not installed, so its lower bound is not tested here: {requirement}", flush=True)
        elif numbers(version) != numbers(bound[2]):
            wrong.append(f"{requirement}: {version}")
    if wrong:
        sys.exit("These lower bounds cannot be installed together; raise them:\n  " + "\n  ".join(sorted(wrong)))


def plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def numbers(version: str) -> list[int]:
    """Return the numbers of a version without zeros at its end: 2.10 is 2.10.0."""
    parts = [int(number) for number in re.findall(r"\d+", version.split("+")[0])]
    while parts and not parts[-1]:
        parts.pop()
    return parts


def works(command: list[str]) -> bool:
    """Say whether a command runs and succeeds."""
    try:
        return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def run(command: list[str]) -> None:
    """Run a command and leave with its status if it fails."""
    status = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
    if status:
        sys.exit(status)


if __name__ == "__main__":
    main()
