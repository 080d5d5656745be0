"""Loading: libraries that take long or do not get along. Owns loading before a fork, their order, their warnings, and
the names of numpy that MXNet needs.
"""

from __future__ import annotations

import gc
import importlib
import sys
import warnings
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

# Modules that a rank loads with a library; torch's first optimizer loads its compiler.
_WITH = {
    "torch": ("orca.job", "orca.frameworks.torch.learner", "torch._dynamo", "torch.utils.serialization", "numpy.ma"),
    "tensorflow": ("orca.job", "orca.frameworks.keras.learner", "orca.frameworks.tfgraph.learner"),
    "mxnet": ("orca.job", "orca.frameworks.mxnet.learner", "orca.sources.mxdata"),
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


def triton_first() -> None:
    """Load triton, where there is one, before TensorFlow is loaded.

    Both bring an LLVM with them. Where triton's comes second the process aborts, and torch loads it with the first
    optimizer: a program that uses both frameworks would die there.
    """
    if "tensorflow" not in sys.modules:
        with suppress(ImportError):
            importlib.import_module("triton")


def hush_pyspark() -> None:
    """Keep pyspark from warning about pandas 3 whenever Arrow is used: nothing here goes through pandas.

    A filter for good, for that one text: filters that are put back afterwards are not safe with threads.
    """
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)


class MxnetHerald:
    """A finder of modules that finds none: it hears that MXNet is about to be imported, and makes numpy ready for it.

    MXNet 1.9.1 is the last release. It asks for names that numpy has dropped since, most of them while it is imported.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Put the names back; leave finding to others."""
        if name == "mxnet":
            _put_back_names()

    @classmethod
    def listen(cls) -> None:
        """Listen from now on."""
        if cls not in sys.meta_path:
            sys.meta_path.insert(0, cls)  # type: ignore[arg-type]


def _put_back_names() -> None:
    import numpy as np

    trapezoid = getattr(np, "trapezoid", None)  # numpy 2
    names: dict[str, Any] = {"PINF": np.inf, "NINF": -np.inf, "Inf": np.inf, "NaN": np.nan, "NAN": np.nan}
    names |= {"PZERO": 0.0, "NZERO": -0.0}
    names |= {"product": np.prod, "alltrue": np.all, "sometrue": np.any, "in1d": np.isin, "round_": np.round}
    names |= {"trapz": trapezoid, "msort": lambda a: np.sort(a, axis=0), "int": int, "bool": np.bool_}
    names |= dict.fromkeys("mirr npv pmt ppmt pv rate".split())  # of finance: gone since numpy 1.20
    for name, value in names.items():
        if name not in vars(np):
            setattr(np, name, value)
