"""The names that numpy has dropped since MXNet 1.9.1, its last release: they are put back before MXNet is imported."""

from __future__ import annotations

from typing import Any

from orca.core.imports import ImportHook


def install() -> None:
    """Put the names back as soon as this process imports MXNet."""
    if _listen not in ImportHook.listeners:
        ImportHook.listeners.append(_listen)


def _listen(library: str) -> None:
    if library == "mxnet":
        put_back()


def put_back() -> None:
    """Give numpy the names that it lacks."""
    import numpy as np

    trapezoid = vars(np).get("trapezoid")  # numpy 2
    names: dict[str, Any] = {"PINF": np.inf, "NINF": -np.inf, "Inf": np.inf, "NaN": np.nan, "NAN": np.nan}
    names |= {"PZERO": 0.0, "NZERO": -0.0}
    names |= {"product": np.prod, "alltrue": np.all, "sometrue": np.any, "in1d": np.isin, "round_": np.round}
    names |= {"trapz": trapezoid, "msort": lambda a: np.sort(a, axis=0), "int": int, "bool": np.bool_}
    names |= dict.fromkeys("mirr npv pmt ppmt pv rate".split())  # of finance: gone since numpy 1.20
    for name, value in names.items():
        if name not in vars(np):
            setattr(np, name, value)
