"""Nojava: run a command as on a machine without Java. PATH holds every program but Java's, JAVA_HOME is unset.

`python tools/nojava.py make test`. ORCA_JAVA=pip also keeps Orca from looking in the usual folders of the system.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """Run the command of the command line without Java and return its status."""
    with tempfile.TemporaryDirectory(prefix="nojava-") as folder:
        link_programs(Path(folder))
        env = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "JDK_HOME", "JRE_HOME")}
        env.update(PATH=folder, ORCA_JAVA="pip")
        return subprocess.run(sys.argv[1:], env=env).returncode


def link_programs(folder: Path) -> None:
    """Link every program of PATH into the folder, the first of a name winning, Java's own left out."""
    for place in os.environ["PATH"].split(os.pathsep):
        if not os.path.isdir(place):
            continue
        for program in os.scandir(place):
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink() and os.access(program.path, os.X_OK):
                link.symlink_to(os.path.abspath(program.path))


if __name__ == "__main__":
    sys.exit(main())
