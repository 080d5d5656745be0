"""Imports: what is due when a program imports a framework. Owns ImportHook, the order of triton and TensorFlow, and
what TensorFlow says and writes in every process.
"""

from __future__ import annotations

import importlib
import linecache
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import count
from types import ModuleType
from typing import Any, ClassVar

_numbers = count()
FRAMEWORKS = ("torch", "tensorflow", "mxnet")
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# TensorFlow's lines about the processor and missing GPUs; most of them at any log level.
_GREETINGS = "|".join((
    "^WARNING: All log messages before absl::InitializeLog",
    r"^[A-Z][0-9]{4} .*\] (oneDNN custom operations are on|Could not find cuda drivers|failed call to cuInit"
    r"|This TensorFlow binary is optimized|computation placer already registered|Unable to register cu[A-Z]+ factory)",
    "^To enable the following instructions:",
))  # fmt: skip


class ImportHook:
    """A finder of modules that hears that a framework is about to be imported; it leaves finding to others.

    It loads triton before TensorFlow, and keeps TensorFlow's greetings off the screen and its generated files off the
    disk. And it calls those that want to know: before a framework is imported, and after TensorFlow was.
    """

    listeners: ClassVar[list[Callable[[str], None]]] = []
    after: ClassVar[list[Callable[[ModuleType], None]]] = []

    @classmethod
    def install(cls) -> None:
        """Listen from now on."""
        if cls not in sys.meta_path:
            sys.meta_path.insert(0, cls)  # type: ignore[arg-type]

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Do what is due before a framework is imported."""
        if name not in FRAMEWORKS:
            return None
        for listener in tuple(cls.listeners):
            listener(name)
        spec = PathFinder.find_spec(name, path, target) if name == "tensorflow" else None
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _TensorflowLoader(name, spec.loader.path)
            return spec
        return None


def is_imported(library: str, within: float = 1.0) -> bool:
    """Return whether an import that the hook has heard of is under way: others only ask where a module would be."""
    deadline = time.monotonic() + within
    while library not in sys.modules and time.monotonic() < deadline:
        time.sleep(0.01)
    return library in sys.modules


class _TensorflowLoader(SourceFileLoader):
    """Python's own loader of TensorFlow, with triton loaded before it, and without its greetings.

    triton and TensorFlow both bring an LLVM. If triton's comes second the process aborts, and torch loads it with the
    first optimizer: a program that uses both frameworks would die there.
    """

    def exec_module(self, module: Any) -> None:
        """Load it."""
        with suppress(ImportError):
            importlib.import_module("triton")
        os.environ.setdefault(_LOG_LEVEL, "2")
        with _without_greetings():
            super().exec_module(module)
        # It looks for GPUs later, when the first operation runs.
        context = getattr(sys.modules.get("tensorflow.python.eager.context"), "Context", None)
        if (look := getattr(context, "_initialize_physical_devices", None)) is not None:
            context._initialize_physical_devices = _without_greetings()(look)  # type: ignore[union-attr]
        if (loader := sys.modules.get("tensorflow.python.autograph.pyct.loader")) is not None:
            loader.load_source = _load_source  # type: ignore[attr-defined]
        for listener in tuple(ImportHook.after):
            listener(module)


@contextmanager
def _without_greetings() -> Iterator[None]:
    """Keep TensorFlow's greetings off the screen while a block runs, unless the user has set a log level of 0 or 1.

    C++ writes them, so a process reads standard error in between: a thread would need Python's lock, which an import
    holds. All other lines pass, also the last ones of a process that crashes.
    """
    try:
        if os.environ.get(_LOG_LEVEL) in ("0", "1"):
            raise OSError
        screen = os.dup(2)
        command = ["grep", "--line-buffered", "-avE", _GREETINGS]
        reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=screen)
    except OSError:  # no standard error, or no grep
        yield
        return
    assert reader.stdin is not None
    os.dup2(reader.stdin.fileno(), 2)
    reader.stdin.close()
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        with suppress(subprocess.TimeoutExpired):  # a process that was started meanwhile may write to it for long
            reader.wait(1.0)


def _load_source(source: str, delete_on_exit: bool) -> tuple[ModuleType, str]:
    """Load a source that TensorFlow's AutoGraph generated, as its own function does, but without a temporary file.

    TensorFlow removes such files when Python ends, which workers of Spark and Ray, and processes that are killed, never
    do. Tracebacks and debuggers find the lines in linecache.
    """
    name = f"__autograph_generated_file{next(_numbers)}"
    file = f"{name}.py"
    module = ModuleType(name)
    module.__file__ = file
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), vars(module))
    sys.modules[name] = module
    return module, file
