"""The environment that travels: real ones, packed, unpacked elsewhere and run where the original cannot be seen."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orca.cluster.environment import cache_folder
from orca.errors import OrcaError

SOURCES = Path(__file__).resolve().parents[2] / "src"
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
INSTALLED = ("cloudpickle", "numpy", "tqdm")
PACK = """
    import json, logging, sys
    from pathlib import Path

    logging.basicConfig(level=logging.INFO)
    from orca.cluster.environment import pack

    path = pack(Path(sys.argv[1]))
    print(json.dumps([str(path), path.name.removesuffix(".tar.gz")]))
    """
LOOK = """
    import importlib.metadata, importlib.resources, json, multiprocessing, sys

    def product(number):
        import numpy

        return int((numpy.ones(3) * number).sum())

    if __name__ == "__main__":
        import ctypes, cloudpickle, flat, hatched, hatched.deep.leaf, orca.errors, ssl

        with multiprocessing.get_context("spawn").Pool(1) as pool:
            told = pool.map(product, [1, 2])
        print(json.dumps({
            "prefix": sys.prefix, "products": told, "answers": [hatched.ANSWER, flat.ANSWER, hatched.deep.leaf.ANSWER],
            "versions": [importlib.metadata.version(name) for name in ("hatched", "flat")],
            "outside": [path for path in sys.path[1:] if not path.startswith(sys.prefix)],
            "data": (importlib.resources.files("hatched") / "words.txt").read_text(),
        }))
    """


@dataclass(frozen=True)
class Made:
    """Hold an environment made for these tests, and the projects installed editable in it."""

    home: Path
    base: str

    @property
    def python(self) -> Path:
        return self.home / "env" / "bin" / "python"

    @property
    def packages(self) -> Path:
        return self.home / "env" / "lib" / VERSION / "site-packages"

    def run(self, code: str, *args: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the environment."""
        return run([str(self.python)], code, self.home, *args, check=check, **env)

    def pack(self, cache: Path) -> tuple[Path, str]:
        """Pack it; return the archive and what its content is called."""
        path, digest = json.loads(self.run(PACK, str(cache)).stdout)
        return Path(path), digest


def run(
    command: list[str], code: str, folder: Path, *args: str, check: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a program with nothing of this process's Python in its environment."""
    file = folder / "program" / "main.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(textwrap.dedent(code))
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR", "ORCA_TEST_RUN") if name in os.environ}
    said = subprocess.run(
        [*command, str(file), *args], capture_output=True, text=True, timeout=100, cwd=folder,
        env={"PATH": "/usr/bin:/bin", **kept, **env},
    )  # fmt: skip
    print(said.stdout, said.stderr)
    if check:
        assert said.returncode == 0, said.stderr
    return said


def make(home: Path, interpreter: str = sys.executable) -> Made:
    """Make a venv with some packages of this one and three editable installs: hatchling's, setuptools', Orca's own."""
    env = home / "env"
    subprocess.run([interpreter, "-m", "venv", "--without-pip", str(env)], check=True)
    base = subprocess.run(
        [str(env / "bin" / "python"), "-c", "import sys; print(sys.base_prefix)"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    made = Made(home, base)
    for name in INSTALLED:
        copy_installed(name, made.packages)
    hatched = project(home / "hatched-project", "hatched", "hatchling.build", "src")
    (hatched / "src" / "hatched" / "deep").mkdir()
    (hatched / "src" / "hatched" / "deep" / "leaf.py").write_text("ANSWER = 7\n")
    (hatched / "src" / "hatched" / "words.txt").write_text("some data")
    install_editable(hatched, made.packages)
    install_editable(project(home / "flat-project", "flat", "setuptools.build_meta", "."), made.packages)
    (made.packages / "_orca.pth").write_text(f"{SOURCES}\n")
    script = env / "bin" / "tell"
    script.write_text(f"#!{made.python}\nimport sys\nprint(sys.prefix, sys.argv[1:])\n")
    script.chmod(0o755)
    return made


def copy_installed(name: str, packages: Path) -> list[Path]:
    """Install a package of this environment in another, and return its folders there."""
    files = [file for file in importlib.metadata.files(name) or [] if ".." not in file.parts]
    for file in files:
        (packages / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file.locate(), packages / file)
    return [packages / top for top in sorted({file.parts[0] for file in files})]


def project(folder: Path, name: str, backend: str, place: str) -> Path:
    """Write a small project, with things around it that are no part of it."""
    package = folder / place / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("ANSWER = 42\n")
    (folder / "pyproject.toml").write_text(
        f'[build-system]\nrequires = []\nbuild-backend = "{backend}"\n[project]\nname = "{name}"\nversion = "1.5"\n'
        + (f'[tool.setuptools]\npackages = ["{name}"]\n' if "setuptools" in backend else "")
        + (f'[tool.hatch.build]\ndev-mode-dirs = ["{place}"]\n' if "hatch" in backend else "")
    )
    return folder


def install_editable(folder: Path, packages: Path) -> None:
    """Install a project as `pip install -e` does: the wheel is its build tool's, the note about its origin ours."""
    backend = "hatchling.build" if "hatch" in (folder / "pyproject.toml").read_text() else "setuptools.build_meta"
    pytest.importorskip(backend)
    wheels = folder / "wheels"
    wheels.mkdir()
    build = f"import {backend} as backend; backend.build_editable({str(wheels)!r})"
    subprocess.run([sys.executable, "-c", build], check=True, cwd=folder, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(packages)
        (info,) = {name.split("/")[0] for name in file.namelist() if ".dist-info/" in name}
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    (packages / info / "direct_url.json").write_text(json.dumps(origin))
    shutil.rmtree(wheels)


def unpack(path: Path, folder: Path) -> Path:
    folder.mkdir()
    subprocess.run(["tar", "-xzf", str(path), "-C", str(folder)], check=True)
    return folder


def hiding(*folders: str) -> list[str]:
    """Return the command that runs another where these folders are empty."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("folders can be hidden only where unshare -m is allowed (as root)")
    mounts = " && ".join(f'mount -t tmpfs none "{folder}"' for folder in folders)
    return ["unshare", "-m", "sh", "-c", f'mount --make-rprivate / && {mounts} && exec "$@"', "sh"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def unpacked(made: Made, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(made.pack(cache)[0], tmp_path_factory.mktemp("elsewhere") / "a place")


@pytest.mark.full
def test_works_elsewhere_with_the_original_and_its_base_hidden(made: Made, unpacked: Path, tmp_path: Path) -> None:
    if made.base == "/usr":
        pytest.skip("this Python is the system's, which every node has")
    hidden = [made.base, str(made.home), str(SOURCES)]
    said = run([*hiding(*hidden), str(unpacked / "bin" / "python")], LOOK, tmp_path)
    assert json.loads(said.stdout) == {
        "prefix": str(unpacked),
        "products": [3, 6],
        "answers": [42, 42, 7],
        "versions": ["1.5", "1.5"],
        "outside": [],
        "data": "some data",
    }


@pytest.mark.full
def test_a_venv_of_the_systems_python_needs_that_python_and_nothing_else(tmp_path: Path) -> None:
    system = f"/usr/bin/{VERSION}"
    if not os.path.exists(system) or subprocess.run([system, "-c", "import venv"], capture_output=True).returncode:
        pytest.skip(f"there is no {system} with venv here")
    (tmp_path / "made").mkdir()
    made = make(tmp_path / "made", system)
    folder = unpack(made.pack(tmp_path / "cache")[0], tmp_path / "environment")
    assert not list((folder / "lib" / VERSION).glob("os.py"))
    (tmp_path / "elsewhere").mkdir()
    said = run([*hiding(str(made.home), str(SOURCES)), str(folder / "bin" / "python")], LOOK, tmp_path / "elsewhere")
    report = json.loads(said.stdout)
    assert (report["prefix"], report["products"], report["answers"]) == (str(folder), [3, 6], [42, 42, 7])


def test_no_path_of_this_machine_is_left_where_python_looks(made: Made, unpacked: Path) -> None:
    packages = unpacked / "lib" / VERSION / "site-packages"
    assert not [path for path in packages.glob("*.pth") if str(made.home) in path.read_text()]
    assert not list(packages.glob("__editable__*"))
    assert not [path for path in packages.rglob("direct_url.json") if str(made.home) in path.read_text()]
    assert not (packages / "pyproject.toml").exists()
    links = [path for path in unpacked.rglob("*") if path.is_symlink()]
    assert links and not [path for path in links if os.path.isabs(os.readlink(path)) or not path.exists()]


def test_scripts_find_the_interpreter_beside_them(unpacked: Path) -> None:
    ranks = subprocess.run([str(unpacked / "bin" / "tell"), "x y"], check=True, capture_output=True, text=True)
    assert ranks.stdout.strip() == f"{unpacked} ['x y']"


@pytest.mark.full
def test_is_packed_once_for_a_content(made: Made, cache: Path) -> None:
    path, digest = made.pack(cache)
    inode = path.stat().st_ino
    assert path == cache / f"{digest}.tar.gz"
    assert made.pack(cache) == (path, digest) and path.stat().st_ino == inode
    # Compiled files come and go: the same content.
    compiled = made.packages / "tqdm" / "__pycache__" / f"_x.{sys.implementation.cache_tag}.pyc"
    compiled.parent.mkdir(exist_ok=True)
    compiled.write_bytes(b"")
    assert digest_of(made) == digest
    compiled.unlink()
    # A time means nothing for what is edited, and its bytes do; a time is all that is looked at in what is installed.
    source = made.home / "hatched-project" / "src" / "hatched" / "__init__.py"
    os.utime(source, (1, 1))
    assert digest_of(made) == digest
    source.write_text("ANSWER = 43\n")
    assert digest_of(made) != digest
    source.write_text("ANSWER = 42\n")
    installed = made.packages / "cloudpickle" / "cloudpickle.py"
    before = installed.stat()
    os.utime(installed, (1, 1))
    assert digest_of(made) != digest
    os.utime(installed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_of(made) == digest


@pytest.mark.slow
@pytest.mark.full
def test_is_the_users_own_and_what_was_written(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o777)
    (made.home / "env" / "pip.conf").write_text("[global]\nindex-url = https://me:hunter2@host/simple\n")
    (made.packages / "tqdm" / ".netrc").write_text("machine host password hunter2\n")
    said = made.run(PACK, str(folder))
    path = Path(json.loads(said.stdout)[0])
    assert folder.stat().st_mode & 0o777 == 0o700 and path.stat().st_mode & 0o777 == 0o600
    assert re.search(r"\[orca\] packing the environment \S+, \d+ MB", said.stderr)  # no terminal: in lines
    with tarfile.open(path) as tar:
        names = tar.getnames()
    assert not [name for name in names if name.endswith(("pip.conf", ".netrc", "direct_url.json"))]
    with path.open("r+b") as file:  # another content of the same size
        file.seek(path.stat().st_size // 2)
        file.write(b"other")
    again = made.run(PACK, str(folder))
    assert json.loads(again.stdout)[:2] == json.loads(said.stdout)[:2]
    assert "is not what was written there: it is made anew" in again.stderr
    with tarfile.open(path) as tar:
        assert {name for name in tar.getnames() if not name.endswith(".pyc")} <= set(names)
    (made.home / "env" / "pip.conf").unlink()
    (made.packages / "tqdm" / ".netrc").unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_cache_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(OrcaError, match="belongs to user 12345 and not to this one .*XDG_CACHE_HOME"):
        cache_folder(tmp_path)


def digest_of(made: Made) -> str:
    code = "from orca.cluster import environment as e; print(e._digest(e._entries()))"
    return made.run(code).stdout.strip()


@pytest.mark.full
def test_two_programs_at_once_pack_it_once(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    for number in range(4):
        (folder / f"old{number}.tar.gz").write_bytes(b"")
        os.utime(folder / f"old{number}.tar.gz", (number, number))
    (folder / "dead.tar.gz.draft-01234567").write_bytes(b"of a program that was killed")
    os.utime(folder / "dead.tar.gz.draft-01234567", (1, 1))
    file = tmp_path / "main.py"
    file.write_text(textwrap.dedent(PACK))
    both = [
        subprocess.Popen(
            [str(made.python), str(file), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=100) for process in both]
    assert said[0][0] == said[1][0] and said[0][0], said
    errors = "".join(error for _, error in said)
    assert errors.count("is packed already") == 1 and errors.count(": packed ") + errors.count(":packed ") == 1
    names = sorted(path.name for path in folder.iterdir())
    packed = Path(json.loads(said[0][0])[0]).name
    # The newest few stay, drafts of the dead do not.
    assert names == sorted([".lock", packed, f"{packed}.sha256", "old2.tar.gz", "old3.tar.gz"])


def test_the_cache_is_where_xdg_says(made: Made, tmp_path: Path) -> None:
    said = made.run(
        "from orca.cluster.environment import cache_folder; print(cache_folder())", XDG_CACHE_HOME=str(tmp_path)
    )
    assert said.stdout.strip() == str(tmp_path / "orca" / "environments")


def test_refuses_the_systems_python(tmp_path: Path) -> None:
    system = "/usr/bin/python3"
    if (
        not os.path.exists(system)
        or subprocess.run(
            [system, "-c", "import sys; sys.exit(sys.version_info < (3, 11) or sys.prefix != '/usr')"]
        ).returncode
    ):
        pytest.skip("there is no system Python of 3.11 or newer here")
    said = run([system], PACK, tmp_path, str(tmp_path / "cache"), check=False, PYTHONPATH=str(SOURCES))
    assert said.returncode == 1
    assert "is the system's Python and not in an environment" in said.stderr
    assert "python -m venv" in said.stderr and "ship_environment=False" in said.stderr


def test_refuses_an_editable_install_it_cannot_follow(made: Made, tmp_path: Path) -> None:
    info = made.packages / "strange-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
    (info / "direct_url.json").write_text(json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}}))
    try:
        said = made.run(PACK, str(tmp_path / "cache"), check=False)
    finally:
        shutil.rmtree(info)
    assert f"strange is installed editable from {tmp_path}" in said.stderr
    assert f"pip install {tmp_path}" in said.stderr


def test_says_where_there_is_no_room(made: Made, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    small = hiding(str(full))
    small[4] = small[4].replace("-t tmpfs none", "-t tmpfs -o size=1m none")
    said = run([*small, str(made.python)], PACK, tmp_path, str(full), check=False)
    assert "could not be packed: [Errno 28]" in said.stderr and "set XDG_CACHE_HOME" in said.stderr


# Conda, whose environments list their files. There is none on a test machine: an unpacked one is given such a list.


@pytest.fixture(scope="module")
def conda(unpacked: Path, tmp_path_factory: pytest.TempPathFactory, made: Made) -> Path:
    if made.base == "/usr":
        pytest.skip("needs an environment with an interpreter in it")
    prefix = tmp_path_factory.mktemp("conda") / "envs" / "one"
    shutil.copytree(unpacked, prefix, symlinks=True)
    (prefix / "pyvenv.cfg").unlink()
    packages = prefix / "lib" / VERSION / "site-packages"
    shutil.rmtree(packages / "orca")
    shutil.rmtree(packages / "hatched")
    (packages / "own.pth").write_text(f"{SOURCES}\n{made.home / 'hatched-project' / 'src'}\n")
    (prefix / "conda-meta").mkdir()
    library = [str(path.relative_to(prefix)) for path in prefix.rglob("lib*.so*")]
    listed = {
        "name": "python", "version": "3", "url": "", "link": {"source": ""}, "files": [f"bin/{VERSION}", *library]
    }  # fmt: skip
    (prefix / "conda-meta" / "python-3.json").write_text(json.dumps(listed))
    (prefix / "conda-meta" / "history").write_text("")
    return prefix


def test_says_that_conda_environments_need_conda_pack(conda: Path, tmp_path: Path) -> None:
    said = run([str(conda / "bin" / "python")], PACK, tmp_path, str(tmp_path / "cache"), check=False)
    assert f"sending the conda environment {conda} needs the package 'conda-pack'" in said.stderr
    assert "pip install 'orca-dl[yarn]'" in said.stderr


@pytest.mark.full
def test_a_conda_environment_works_elsewhere(conda: Path, made: Made, tmp_path: Path) -> None:
    pytest.importorskip("conda_pack")
    copied = copy_installed("conda-pack", conda / "lib" / VERSION / "site-packages")
    try:
        said = run([str(conda / "bin" / "python")], PACK, tmp_path, str(tmp_path / "cache"))
    finally:
        for folder in copied:
            shutil.rmtree(folder)
    path = Path(json.loads(said.stdout)[0])
    folder = unpack(path, tmp_path / "environment")
    hidden = hiding(str(conda), str(made.home), made.base, str(SOURCES))
    report = json.loads(run([*hidden, str(folder / "bin" / "python")], LOOK, tmp_path).stdout)
    assert (report["prefix"], report["products"], report["answers"]) == (str(folder), [3, 6], [42, 42, 7])
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [".lock", path.name, f"{path.name}.sha256"]


# The program's own modules


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    files = {
        "beside.py": "NAME = 'beside'",
        "package/__init__.py": "",
        "package/words.json": '["data of a package"]',
        "package/inner/leaf.py": "NAME = 'leaf'",
        "plain/module.py": "NAME = 'plain'",
        "plain/numbers.csv": "1,2",
        "data/train.csv": "1,2",
        "notes.txt": "",
        ".git/hooks/hook.py": "",
        "venv/pyvenv.cfg": "",
        "venv/lib/thing.py": "",
        "package/__pycache__/leaf.pyc": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


OWN = """
    import json, sys
    from pathlib import Path
    from orca.cluster.environment import own_modules

    sys.path.insert(0, sys.argv[2])
    print(json.dumps([str(path) for path in own_modules(Path(sys.argv[1]))]))
    """


def own(made: Made, program: Path, cache: Path, check: bool = True, **env: str) -> Any:
    return made.run(OWN, str(cache), str(program), check=check, **env)


def test_modules_of_the_program_travel_without_its_data(made: Made, program: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "elsewhere.py").write_text("NAME = 'elsewhere'")
    egg = tmp_path / "ready.zip"
    with zipfile.ZipFile(egg, "w") as file:
        file.writestr("zipped.py", "")
    report = json.loads(own(made, program, tmp_path / "cache", PYTHONPATH=f"{other}:{egg}:{SOURCES}").stdout)
    # The folder of the script comes too; what is installed editable does not, though PYTHONPATH names it.
    first, script, second, third = report
    assert third == str(egg)
    assert [name for name in zipfile.ZipFile(first).namelist() if not name.endswith("/")] == [
        "beside.py", "package/__init__.py", "package/inner/leaf.py", "package/words.json", "plain/module.py",
    ]  # fmt: skip
    assert zipfile.ZipFile(script).namelist() == ["main.py"]
    assert zipfile.ZipFile(second).namelist() == ["elsewhere.py"]
    code = f"import sys; sys.path[:0] = {report}; import beside, package.inner.leaf, plain.module, elsewhere, zipped"
    made.run(code)
    assert json.loads(own(made, program, tmp_path / "cache").stdout)[0] == first


def test_too_much_beside_the_program_is_refused(made: Made, program: Path, tmp_path: Path) -> None:
    with (program / "package" / "weights.bin").open("wb") as file:
        file.truncate(65 << 20)
    said = own(made, program, tmp_path / "cache", check=False)
    assert f"the modules of the program in {program} are 68 MB, more than the 67 MB" in said.stderr
    assert "weights.bin (68 MB)" in said.stderr


def test_a_compiled_module_beside_the_program_is_told(made: Made, program: Path, tmp_path: Path) -> None:
    (program / "fast.so").write_bytes(b"")
    said = own(made, program, tmp_path / "cache")
    assert "fast.so" in said.stderr and "Install it as a package" in said.stderr
    assert "fast.so" not in zipfile.ZipFile(json.loads(said.stdout)[0]).namelist()


@pytest.mark.full
def test_hadoop_unpacks_the_archive(made: Made, cache: Path, spark: Any, tmp_path: Path) -> None:
    """What a NodeManager calls, in the JVM of Spark."""
    path = made.pack(cache)[0]
    java = spark.sparkContext._jvm
    java.org.apache.hadoop.fs.FileUtil.unTar(java.java.io.File(str(path)), java.java.io.File(str(tmp_path / "out")))
    with tarfile.open(path) as tar:
        members = tar.getmembers()
    assert all((tmp_path / "out" / member.name).exists() for member in members) and len(members) > 1000
    assert os.access(tmp_path / "out" / "bin" / "python", os.X_OK)
    # A compiled file holds with the time of its source.
    source = next(member for member in members if member.name.endswith("/numpy/__init__.py"))
    assert int((tmp_path / "out" / source.name).stat().st_mtime) == source.mtime
