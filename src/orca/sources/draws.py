"""Draws: the random numbers of this process. Owns that ranks draw alike, and that nobody notices afterwards."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

drawing = threading.RLock()  # ranks that are threads of one process share its random numbers


@contextmanager
def alike(seed: int) -> Iterator[None]:
    """Draw from this seed, which all ranks have, and give the random numbers back as they were."""
    with drawing, kept_draws():
        random.seed(seed)
        np.random.seed(seed % 2**32)
        if "torch" in sys.modules:
            sys.modules["torch"].default_generator.manual_seed(seed)  # not torch.manual_seed: GPUs are left alone
        if "mxnet" in sys.modules:
            sys.modules["mxnet"].random.seed(seed % 2**31)  # it cannot be given back
        yield


def seed_draws(seed: int) -> list[str]:
    """Seed all that a creator may draw from; return the libraries that were there to be seeded."""
    seed %= 2**32
    random.seed(seed)
    np.random.seed(seed)
    libraries = loaded()
    if "torch" in libraries:
        sys.modules["torch"].manual_seed(seed)
    if "tensorflow" in libraries:
        sys.modules["tensorflow"].random.set_seed(seed)
    if "mxnet" in libraries:
        sys.modules["mxnet"].random.seed(seed % 2**31)
    return libraries


def loaded() -> list[str]:
    """Return the libraries with random numbers of their own that are loaded."""
    return [name for name in ("torch", "tensorflow", "mxnet") if name in sys.modules]


@contextmanager
def kept_draws() -> Iterator[None]:
    """Give the random numbers of this process back as they were: it may be the user's program."""
    plain, numpy = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    drawn = None if torch is None else torch.random.get_rng_state()
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)
        if torch is not None:
            torch.random.set_rng_state(drawn)
