"""Loading: libraries that take long. Owns loading them before a fork, and a warning of pyspark's."""

from __future__ import annotations

import gc
import importlib
import sys
import warnings
import weakref
from collections.abc import Iterable
from contextlib import suppress

# Modules that a rank loads with a library; torch's first optimizer loads its compiler.
_WITH = {
    "torch": ("orca.job", "orca.frameworks.torch.learner", "torch._dynamo", "torch.utils.serialization", "numpy.ma"),
    "tensorflow": ("orca.job", "orca.frameworks.keras.learner", "orca_classic.tf1.graph.learner"),
    "mxnet": ("orca.job", "orca_classic.mxnet.learner", "orca_classic.mxnet.data"),
}
NEEDED = ("torch.distributed", "orca.core.engine")  # by every rank
MODULES = "ORCA_MODULES"  # the variable that names them to Spark's processes


def slow_modules() -> list[str]:
    """Return the modules that load slowly, for the frameworks that this program has loaded."""
    return [module for library, modules in _WITH.items() if library in sys.modules for module in modules]


def load(modules: Iterable[str]) -> None:
    """Load modules into a process that ranks are forked from; it must not start threads of its own."""
    gc.disable()  # a sixth of the time: modules are no garbage
    for name in modules:
        if name not in sys.modules:
            with suppress(Exception):  # the rank reports it, where it imports the same
                importlib.import_module(name)
    gc.freeze()  # a rank's collector need not look at them, nor copy their pages
    gc.enable()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # nor need a rank take them apart when it ends
    warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)  # threads of libraries: they wait for work


def draw_anew() -> None:
    """Give a forked process random numbers of its own, as a new one has; Python's generator does so by itself."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def hush_pyspark() -> None:
    """Keep pyspark from warning about pandas 3 whenever Arrow is used: nothing here goes through pandas.

    A filter for good, for that one text: filters that are put back afterwards are not safe with threads.
    """
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
