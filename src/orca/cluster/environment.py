"""Environment: the Python of this program as one archive that works on nodes without it. Owns the content of archives,
its digest, and their cache.

A venv becomes a prefix of its own: the interpreter and the standard library of its base, with the site-packages of the
venv. Where the base is the system's Python, which every node brings along, a venv stays a venv. Editable
installs go in as ordinary packages. A conda environment is packed by conda-pack.

No tool packs a venv with its interpreter and its editable packages: uv and pex cannot, and venv-pack is no longer
maintained.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import site
import stat
import sys
import sysconfig
import tempfile
import time
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from orca.cluster import archive
from orca.cluster.archive import Entry
from orca.cluster.news import human, telling
from orca.errors import ArgumentError, MissingDependency, OrcaError

log = logging.getLogger(__name__)

PYTHON = "bin/python"  # in every archive
LAYOUT = 1  # a part of the digest: raise it when the same environment is to give another archive
KEPT = 3  # archives that stay in the cache
ABANDONED = 3600.0  # seconds after which nobody writes a draft any more: each is written without a pause
MODULES_LIMIT = 64 << 20  # bytes of modules beside the program
SOURCES_LIMIT = 1 << 30  # bytes of one editable install
DEPTH = 4  # how far down a folder without __init__.py is searched for modules

_BIGGEST_SCRIPT = 1 << 20
_CODE = (".py", ".pyi", ".so")
# Folders that a program never imports from.
_FOREIGN = {"__pycache__", "node_modules", "site-packages", "dist-packages", "build", "dist"}
# Of the standard library: its own tests, and parts that only building and editing Python needs.
_IDLE = ("test", "idlelib", "turtledemo", "lib2to3/tests", "site-packages", "dist-packages")
# Files of a venv as such: the archive's own layout takes their place.
_OF_VENV = re.compile(
    r"pyvenv\.cfg|CACHEDIR\.TAG|lib64|\.[^/]*"
    r"|bin/(activate(\..+|_this\.py)?|deactivate(\..+)?|pydoc\.bat|python[\d.]*t?|pypy[^/]*)"
)
# Configuration of installers, logins, and where packages came from, which may name a login too. conda-meta is that of
# conda: its addresses hold tokens of channels.
_PRIVATE = re.compile(
    r"(^|/)(pip\.(conf|ini)|uv\.toml|\.?condarc|\.pypirc|[._]netrc|\.npmrc|\.env|\.git-credentials|direct_url\.json)$"
    r"|(^|/)\.(aws|azure|config|docker|git|gnupg|kube|ssh)/"
    r"|^conda-meta/"
)
_PACKED = re.compile(r"((environment|spark|modules)-)?[0-9a-f]{16,64}\.(tar\.gz|zip)")
_HIDDEN = re.compile(r"(^|/)(\..*|__pycache__|node_modules)(/|$)")
_FINDER = re.compile(r"\s*import\s+(__editable___\w+)")


def pack(cache: Path | None = None) -> Path:
    """Pack the environment this program runs in, or find the archive of one with the same content.

    Args:
        cache: The folder of the archives; None is orca/environments in XDG_CACHE_HOME or ~/.cache.

    Returns:
        The archive, a .tar.gz named by its content, with the interpreter at PYTHON.
    """
    _refuse_system()
    write: Callable[[IO[bytes], list[Entry]], None] = _write_conda if _is_conda() else archive.write
    entries = _conda_entries() if _is_conda() else _entries()
    size = human(sum(entry.size for entry in entries))
    folder, start = cache_folder(cache), time.monotonic()
    path = folder / f"{_digest(entries)}{archive.SUFFIX}"

    def written(file: IO[bytes]) -> None:
        with _shown(f"packing the environment {sys.prefix}, {size}", file.name):
            write(file, entries)

    with _alone(folder):
        try:
            fresh = keep(path, written)
        except OSError as error:
            raise OrcaError(
                f"the environment {sys.prefix} could not be packed: {error}. It needs up to {size} in {folder}; set "
                "XDG_CACHE_HOME to put it elsewhere.",
                code="environment-not-packed",
            ) from error
        _forget(folder, f"*{archive.SUFFIX}", KEPT)
    if fresh:
        seconds = time.monotonic() - start
        log.info("packed %s: %s, %s of %s, in %.0f s", sys.prefix, path, human(path.stat().st_size), size, seconds)
    else:
        log.info("the environment %s is packed already: %s", sys.prefix, path)
    return path


def own_modules(cache: Path | None = None) -> list[Path]:
    """Return the modules that the program imports from outside its environment, for addPyFile.

    These are the modules beside the script and in the folders of PYTHONPATH, each folder as one zip; not modules that
    are installed, editable or not, which `pack` takes. Data is left out, but for that inside of packages.

    Args:
        cache: The folder of the zips; None is that of the archives.

    Returns:
        Zips, in the order of sys.path; and zips and eggs that are on it themselves.

    Raises:
        ArgumentError: A folder holds more than a program should send along.
    """
    editable = {os.path.realpath(root) for root in _editables(_site_folders())[0]}
    paths = []
    for path in _foreign_path():
        if os.path.isfile(path):
            paths.append(Path(path))
        elif os.path.realpath(path) not in editable and (entries := _module_entries(path)):
            paths.append(_zipped(entries, cache_folder(cache)))
    return paths


def cache_folder(cache: Path | None = None) -> Path:
    """Return the folder of the archives, and make it: they run on every node, so no other user may write there."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(cache if cache is not None else os.path.join(home, "orca", "environments")).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        owner = folder.stat().st_uid
        if owner == os.geteuid():
            folder.chmod(0o700)
    except OSError as error:
        raise OrcaError(
            f"no folder for packed environments: {error}. Set XDG_CACHE_HOME to one you may write.",
            code="no-cache-folder",
        ) from None
    if owner != os.geteuid():
        raise OrcaError(
            f"{folder}, the folder for packed environments, belongs to user {owner} and not to this one "
            f"({os.geteuid()}), who could put other programs there. Set XDG_CACHE_HOME to a folder of your own.",
            code="foreign-cache-folder",
        )
    return folder


@dataclass(frozen=True)
class Packed:
    """A file that was packed for a cluster: an environment, modules, or the jars of Spark.

    Attributes:
        path: Its path.
        size: Bytes.
        age: Seconds since it was written or used.
    """

    path: str
    size: int
    age: float

    def remove(self) -> None:
        """Remove it."""
        from orca.storage.files import filesystem  # fsspec, which an environment that is packed need not have

        fs, place = filesystem(self.path)
        fs.rm_file(place)
        if fs.exists(mark := f"{place}.sha256"):
            fs.rm_file(mark)


def packed(cluster: str | None = None) -> list[Packed]:
    """Return all packed files of this user in the cache here, or in a folder of the cluster; the oldest first.

    Args:
        cluster: The folder on the cluster's file system; None is the cache.
    """
    folder = cluster or str(cache_folder())
    from orca.storage.files import filesystem, name_of

    fs, place = filesystem(folder)
    files = []
    for entry in fs.ls(place, detail=True) if fs.isdir(place) else ():
        name = name_of(entry["name"])
        if _PACKED.fullmatch(name):
            files.append(Packed(f"{folder.rstrip('/')}/{name}", int(entry["size"]), time.time() - entry["mtime"]))
    return sorted(files, key=lambda file: -file.age)


# Files of the cache: each has its digest beside it


def keep(path: Path, write: Callable[[IO[bytes]], None]) -> bool:
    """See that a file of the cache is there and intact; write it, whole or not at all, where it is not.

    Returns:
        Whether it was written now.
    """
    if _is_intact(path):
        os.utime(path)  # the last used are kept
        return False
    for leftover in path.parent.glob("*.draft-*"):
        if _age(leftover) > ABANDONED:  # of a program that was killed
            leftover.unlink(missing_ok=True)
    draft = path.with_name(f"{path.name}.draft-{uuid.uuid4().hex[:8]}")
    try:
        with draft.open("wb") as file:
            write(file)
        draft.chmod(0o600)
        content = digest_of(draft)
        _mark(path).unlink(missing_ok=True)  # an older file's would not hold
        os.replace(draft, path)
        _mark(path).write_text(content)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _is_intact(path: Path) -> bool:
    """Say whether a file is there, this user's own, and still unchanged."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return False
        whole = _mark(path).read_text() == digest_of(path)
    except OSError:
        return False
    if not whole:
        log.warning("%s is not what was written there: it is made anew", path)
    return whole


def _forget(folder: Path, pattern: str, most: int) -> None:
    """Remove all files of a kind but those used last."""
    for old in sorted(folder.glob(pattern), key=_age)[most:]:
        for file in (old, _mark(old)):
            file.unlink(missing_ok=True)


def digest_of(path: Path) -> str:
    """Return the digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


def _mark(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


# This Python


def _refuse_system() -> None:
    """Raise where there is no environment that could travel."""
    instead = "or install what the program needs on all nodes and pass ship_environment=False"
    if sys.platform != "linux":
        raise ArgumentError(
            f"the environment of a {platform.system()} machine does not run on the nodes of a cluster. Start the "
            f"program on Linux, {instead}.",
            code="environment-of-other-system",
        )
    if not _is_conda() and sys.prefix == sys.base_prefix and _is_system(sys.prefix):
        raise ArgumentError(
            f"{sys.executable} is the system's Python and not in an environment, so there is nothing to send to the "
            f"nodes. Make one (python -m venv .venv, or uv venv) and run the program with it, {instead}.",
            code="system-python",
        )


def _is_conda() -> bool:
    return os.path.isdir(os.path.join(sys.prefix, "conda-meta"))


def _is_system(prefix: str) -> bool:
    """Say whether a prefix belongs to the operating system, which brings it to every node."""
    return os.path.realpath(prefix) in ("/usr", "/")


def _site_folders() -> list[str]:
    paths = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    return list(dict.fromkeys(os.path.realpath(path) for path in paths if os.path.isdir(path)))


def _foreign_path() -> list[str]:
    """Return the entries of sys.path that belong to no installation: the program's folder, PYTHONPATH."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages(), *_site_folders(), os.environ.get("SPARK_HOME", "")]
    prefixes = tuple(os.path.realpath(path) + os.sep for path in paths if path)
    prefixes += tuple(f"/usr/{lib}/python" for lib in ("lib", "lib64", "local/lib"))
    others = filter(os.path.exists, dict.fromkeys(os.path.realpath(path or ".") for path in sys.path))
    # Files of addPyFile are there already.
    return [path for path in others if not (path + os.sep).startswith(prefixes) and "/userFiles-" not in path]


# Content


def _entries() -> list[Entry]:
    """Return the files of the archive of a venv, or of a standalone interpreter."""
    base, stays = os.path.realpath(sys.base_prefix), _is_system(sys.base_prefix)
    entries = [*_interpreter(base, stays), *([] if stays else _standard_library(base))]
    packages = os.path.relpath(sysconfig.get_path("purelib"), sys.prefix)
    if sys.prefix != sys.base_prefix:
        entries += [_with_script(entry) for entry in _walk(sys.prefix, "") if not _OF_VENV.fullmatch(entry.target)]
    else:
        for folder in _site_folders():
            entries += _walk(folder, os.path.relpath(folder, base))
    for number, folder in enumerate(_other_site_folders(stays)):
        # Behind the environment's own, as they are on sys.path.
        name = f"other-packages-{number}"
        entries += _walk(folder, f"{os.path.dirname(packages)}/{name}")
        entries.append(_made(f"{packages}/zz-{name}.pth", f"../{name}\n".encode()))
    return _completed(entries)


def _completed(candidates: Iterable[Entry]) -> list[Entry]:
    """Return the entries, a later one instead of an earlier of its name, with editable installs and nothing private."""
    entries = {entry.target: entry for entry in candidates}
    _put_editables(entries)
    return [entry for target, entry in entries.items() if not _PRIVATE.search(target)]


def _interpreter(base: str, stays: bool) -> list[Entry]:
    """Return the interpreter and its other names, and pyvenv.cfg, which names its base where it stays with that."""
    program = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    data, version = Path(program).read_bytes(), f"python{sys.version_info[0]}.{sys.version_info[1]}"
    real = _made(f"bin/{version}", data if stays else archive.relocated(data, base, program), 0o755)
    names = [Entry(f"bin/{name}", link=version, mode=0o777) for name in ("python", "python3")]
    # Without `home` the interpreter is its own base; it still leaves the user's ~/.local out of sys.path.
    text = f"include-system-site-packages = {str(stays and _sees_base()).lower()}\n"
    text += f"home = {os.path.dirname(program)}\nversion = {platform.python_version()}\n" if stays else ""
    return [real, *names, _made("pyvenv.cfg", text.encode())]


def _standard_library(base: str) -> Iterator[Entry]:
    """Yield the files of a base that its interpreter needs: standard library, shared libraries, headers."""
    library = os.path.realpath(sysconfig.get_path("stdlib", vars={"installed_base": base, "base": base}))
    where = os.path.relpath(library, base)
    idle = tuple(f"{where}/{name}/" for name in _IDLE) + (f"{where}/config-",)
    yield from (entry for entry in _walk(library, where) if not entry.target.startswith(idle))
    # In /usr/local everything may lie; a prefix of Python's own holds the libraries of its modules.
    names = "libpython*.so*" if base == "/usr/local" else "*.so*"
    for file in sorted(Path(base, "lib").glob(names)):
        if file.is_file():
            yield from _file(str(file), f"lib/{file.name}", base)
    headers = os.path.realpath(sysconfig.get_path("include", vars={"installed_base": base, "base": base}))
    if headers.startswith(base + os.sep):
        yield from _walk(headers, os.path.relpath(headers, base))


def _sees_base() -> bool:
    """Say whether this venv also imports the packages of its base."""
    with contextlib.suppress(OSError):
        text = Path(sys.prefix, "pyvenv.cfg").read_text()
        return re.search(r"(?im)^\s*include-system-site-packages\s*=\s*true\s*$", text) is not None
    return False


def _other_site_folders(stays: bool) -> list[str]:
    """Return folders of packages on sys.path besides the environment's own: the base's, the user's."""
    own = set(_site_folders())
    candidates = [*site.getsitepackages(), sysconfig.get_path("purelib", vars={"base": sys.base_prefix})]
    candidates += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    on_path = {os.path.realpath(path) for path in sys.path}
    folders = dict.fromkeys(os.path.realpath(path) for path in candidates if os.path.isdir(path))
    return [path for path in folders if path in on_path - own and not (stays and path.startswith("/usr/"))]


def _with_script(entry: Entry) -> Entry:
    """Return an entry whose shebang, if it has one, does not name this machine's path."""
    if not entry.target.startswith("bin/") or entry.link is not None or entry.size > _BIGGEST_SCRIPT:
        return entry
    data = Path(entry.source).read_bytes()
    script = archive.script(data, sys.prefix)
    return entry if script == data else replace(entry, data=script, size=len(script))


def _items(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as items:
        return sorted(items, key=lambda item: item.name)


def _walk(folder: str, target: str, root: str = "", links: frozenset[str] = frozenset()) -> Iterator[Entry]:
    """Yield the files of a folder, compiled ones of other Pythons left out. Links that leave its root are followed."""
    root = root or os.path.realpath(folder)
    for item in _items(folder):
        where = f"{target}/{item.name}".lstrip("/")
        if item.is_dir(follow_symlinks=False):
            yield from _walk(item.path, where, root, links)
        elif os.path.basename(folder) != "__pycache__" or f".{sys.implementation.cache_tag}." in item.name:
            yield from _file(item.path, where, root, links)


def _file(path: str, target: str, root: str, links: frozenset[str] = frozenset()) -> Iterator[Entry]:
    """Yield a file, or a link: as a link where it stays inside, else as the file or folder that it points to."""
    real = path
    if os.path.islink(path):
        real, link = os.path.realpath(path), os.readlink(path)
        if not os.path.isabs(link) and real.startswith(root + os.sep) and os.path.exists(real):
            yield Entry(target, path, link=link, mode=0o777)
            return
    if os.path.isdir(real):
        if real not in links and not root.startswith(real):
            yield from _walk(real, target, real, links | {real})
    elif os.path.isfile(real):
        status = os.stat(real)
        yield Entry(target, real, status.st_size, status.st_mtime_ns, status.st_mode)


def _made(target: str, data: bytes, mode: int = 0o644) -> Entry:
    return Entry(target, size=len(data), mode=mode, data=data)


# Conda


def _conda_entries() -> list[Entry]:
    """Return the files of a conda environment, as conda-pack tells them, and its editable installs."""
    conda = _conda_pack()
    try:
        environment = conda.CondaEnv.from_prefix(
            sys.prefix, on_missing_cache="ignore", ignore_editable_packages=True, ignore_missing_files=True
        )
    except conda.CondaPackException as error:
        raise OrcaError(f"conda-pack cannot pack {sys.prefix}: {error}", code="environment-not-packed") from error
    entries = []
    for file in environment.files:
        status = os.lstat(file.source)
        size, time, mode = status.st_size, status.st_mtime_ns, status.st_mode
        entries.append(Entry(file.target, file.source, size, time, mode, origin=file))
    return _completed(entries)


def _write_conda(file: IO[bytes], entries: list[Entry]) -> None:
    """Let conda-pack write a conda environment: it knows where conda put the path of the environment into files."""
    conda = _conda_pack()
    with tempfile.TemporaryDirectory(prefix="orca-pack-") as folder:
        files = []
        for number, entry in enumerate(entries):
            source = entry.source
            if entry.data is not None:
                source = os.path.join(folder, str(number))
                Path(source).write_bytes(entry.data)
            files.append(entry.origin or conda.File(source, entry.target, is_conda=False))
        whole = conda.CondaEnv(sys.prefix, files)
        try:
            whole.pack(
                output=file.name, format="tar.gz", force=True, compress_level=archive.LEVEL, n_threads=-1,
                verbose=sys.stderr.isatty(),
            )  # fmt: skip
        except conda.CondaPackException as error:
            raise OrcaError(f"conda-pack cannot pack {sys.prefix}: {error}", code="environment-not-packed") from error


def _conda_pack() -> Any:
    try:
        import conda_pack
    except ImportError as error:
        raise MissingDependency.of("conda-pack", "yarn", f"sending the conda environment {sys.prefix}") from error
    return conda_pack


# Editable installs


def _put_editables(entries: dict[str, Entry]) -> None:
    """Add editable installs to the entries as ordinary packages, and remove the files that led to them."""
    folders = _site_folders()
    roots, modules, leaders = _editables(folders)
    _refuse_lost([*roots, *modules.values()], folders)
    packages = os.path.relpath(folders[0], os.path.realpath(sys.prefix)) if folders else ""
    for target in entries.keys() & leaders.keys():
        text = leaders[target]
        if text is None:
            del entries[target]
        else:
            entries[target] = _made(target, text.encode())
    for root in roots:
        targets = (target.removeprefix(f"{packages}/") for target in entries if target.startswith(f"{packages}/"))
        names = {target.split("/", 1)[0] for target in targets}
        new = [entry for entry in _module_files(root) if entry.target.split("/", 1)[0] not in names]
        _put_sources(entries, packages, new, root)
    for name, path in modules.items():
        place = name.replace(".", "/")
        new = list(_walk(path, place)) if os.path.isdir(path) else list(_file(path, f"{place}.py", path))
        _put_sources(entries, packages, new, path)


def _put_sources(entries: dict[str, Entry], packages: str, new: list[Entry], origin: str) -> None:
    """Put sources into site-packages with their bytes, of which the digest is made."""
    size = sum(entry.size for entry in new)
    if size > SOURCES_LIMIT:
        raise OrcaError(
            f"the editable install from {origin} would bring {human(size)} along: {_largest(new)}. Move data out of "
            "the folder of the package, or install it without -e.",
            code="editable-install-too-large",
        )
    for entry in new:
        if "/__pycache__/" not in f"/{entry.target}":
            data = None if entry.link is not None else Path(entry.source).read_bytes()
            target = f"{packages}/{entry.target}"
            entries.setdefault(target, replace(entry, target=target, data=data))


def _editables(folders: list[str]) -> tuple[list[str], dict[str, str], dict[str, str | None]]:
    """Read the .pth files of folders of packages.

    Returns:
        Folders outside that are put on sys.path; modules that finders map to a path outside; and, by target, the
        rest of each .pth file or finder that led there (None: nothing).
    """
    roots: dict[str, None] = {}
    modules: dict[str, str] = {}
    leaders: dict[str, str | None] = {}
    prefix = os.path.realpath(sys.prefix)
    for folder in folders:
        for file in sorted(Path(folder).glob("*.pth")):
            rest = []
            for line in file.read_text(errors="replace").splitlines():
                finder = _FINDER.match(line)
                path = os.path.realpath(os.path.join(folder, line.strip()))
                if finder:
                    source = Path(folder, f"{finder.group(1)}.py")
                    modules.update(_mapping(source))
                    leaders[os.path.relpath(source, prefix)] = None
                elif not line.strip() or line.startswith(("#", "import ", "import\t")):
                    rest.append(line)
                elif (path + os.sep).startswith(prefix + os.sep):
                    rest.append(os.path.relpath(path, folder))
                elif os.path.isdir(path):
                    roots[path] = None
            text = "\n".join(rest)
            if text != file.read_text(errors="replace").rstrip("\n"):
                leaders[os.path.relpath(file, prefix)] = text + "\n" if text.strip() else None
    return list(roots), modules, leaders


def _mapping(finder: Path) -> dict[str, str]:
    """Return the modules and paths in a finder that setuptools wrote."""
    match = re.search(r"(?m)^MAPPING\b.*?=\s*(\{.*\})\s*$", finder.read_text() if finder.is_file() else "")
    return {name: str(path) for name, path in ast.literal_eval(match[1]).items()} if match else {}


def _refuse_lost(sources: list[str], folders: list[str]) -> None:
    """Raise for an editable install that leads to its sources in a way of its own: they are not among those known."""
    for note in (note for folder in folders for note in sorted(Path(folder).glob("*.dist-info/direct_url.json"))):
        origin = json.loads(note.read_text())
        home = os.path.realpath(unquote(urlsplit(origin["url"]).path))
        if origin.get("dir_info", {}).get("editable") and not any(
            (os.path.realpath(path) + os.sep).startswith(home + os.sep) for path in sources
        ):
            raise OrcaError(
                f"{note.parent.name.partition('-')[0]} is installed editable from {home}, in a way that only its "
                f"build tool knows, so it cannot go along. Install it without -e: pip install {home}",
                code="editable-install-unknown",
            )


# Modules


def _module_entries(folder: str) -> list[Entry]:
    """Return the modules of a folder of the program, or raise where they are more than a program."""
    entries = [entry for entry in _module_files(folder) if "__pycache__/" not in entry.target and entry.link is None]
    size = sum(entry.size for entry in entries)
    if size > MODULES_LIMIT:
        raise ArgumentError(
            f"the modules of the program in {folder} are {human(size)}, more than the {human(MODULES_LIMIT)} that go "
            f"to every worker: {_largest(entries)}. Move data out of the folders of packages, or install them.",
            code="modules-too-large",
        )
    libraries = [entry.target for entry in entries if entry.target.endswith(".so")]
    if libraries:
        warnings.warn(
            f"{libraries[0]} in {folder} is compiled and cannot be imported from the zip that goes to the workers. "
            "Install it as a package.",
            stacklevel=3,
        )
    return [entry for entry in entries if not entry.target.endswith(".so")]


def _module_files(folder: str, target: str = "", depth: int = DEPTH + 1) -> Iterator[Entry]:
    """Yield the files that can be imported from a folder: modules, packages, and code in plain folders below it."""
    top = not target
    if not top and os.path.exists(os.path.join(folder, "pyvenv.cfg")):
        return
    home = os.path.realpath(folder) in (os.path.realpath(os.path.expanduser("~")), "/", "/tmp")
    for item in _items(folder):
        where = f"{target}/{item.name}".lstrip("/")
        if item.is_file():
            if item.name.endswith(_CODE):
                yield from _file(item.path, where, folder)
        elif item.is_dir(follow_symlinks=top):
            package = item.name.isidentifier() and os.path.isfile(os.path.join(item.path, "__init__.py"))
            if package or (top and item.name.endswith((".egg-info", ".dist-info"))):
                yield from (entry for entry in _walk(item.path, where) if not _HIDDEN.search(entry.target))
            elif item.name.isidentifier() and item.name not in _FOREIGN and depth > 1 and not (top and home):
                yield from _module_files(item.path, where, depth - 1)


def _zipped(entries: list[Entry], folder: Path) -> Path:
    contents = {entry.target: Path(entry.source).read_bytes() for entry in entries}
    digest = hashlib.sha256()
    for target, data in contents.items():
        digest.update(f"{target}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    path = folder / f"modules-{digest.hexdigest()[:16]}.zip"

    def written(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as modules:
            # A folder without __init__.py is imported from a zip only where it has an entry of its own.
            for parent in sorted({f"{parent}/" for target in contents for parent in PurePosixPath(target).parents}):
                if parent != "./":
                    modules.writestr(zipfile.ZipInfo(parent), b"")
            for target, data in contents.items():
                modules.writestr(zipfile.ZipInfo(target), data, zipfile.ZIP_DEFLATED)

    keep(path, written)
    _forget(folder, "modules-*.zip", 16 * KEPT)
    return path


# The cache


def _digest(entries: list[Entry]) -> str:
    """Return the digest of this content: by bytes for files that were made or are edited, else by sizes and times."""
    digest = hashlib.sha256(f"{LAYOUT} {sys.version} {platform.machine()}\n".encode())
    for entry in sorted(entries, key=lambda entry: entry.target):
        if entry.target.endswith(".pyc"):
            continue  # they come and go with imports
        if entry.data is not None:
            content = hashlib.sha256(entry.data).hexdigest()
        else:
            content = entry.link if entry.link is not None else f"{entry.size} {entry.mtime}"
        digest.update(f"{entry.target}\0{content}\0{bool(entry.mode & stat.S_IXUSR)}\n".encode())
    return digest.hexdigest()[:32]


def _shown(what: str, draft: str) -> contextlib.AbstractContextManager[None]:
    """Write lines about the progress, where there is no terminal or notebook for a bar."""
    if sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules):
        return contextlib.nullcontext()

    def more() -> str:
        with contextlib.suppress(OSError):
            return f"{human(os.path.getsize(draft))} written"
        return ""

    return telling(what, more)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the cache: a second program waits for the archive instead of packing it as well."""
    with open(folder / ".lock", "a") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: both pack, and either's archive is good
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _age(path: Path) -> float:
    """Return the seconds since a file of the cache was used; one that is just gone is the oldest."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _largest(entries: list[Entry]) -> str:
    largest = sorted(entries, key=lambda entry: entry.size, reverse=True)[:3]
    return ", ".join(f"{entry.source or entry.target} ({human(entry.size)})" for entry in largest)
