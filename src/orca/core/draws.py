"""Draws: the random numbers of this process. Owns that ranks draw alike, and putting the generators back.

Lightning's `seed_everything` and `isolate_rng` import a framework; these generators are put back without one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def alike(seed: int) -> Iterator[None]:
    """Draw from this seed, which all ranks have, and give the random numbers back as they were."""
    with kept_draws():
        seed_plain(seed)
        if "torch" in sys.modules:
            sys.modules["torch"].default_generator.manual_seed(seed)  # not torch.manual_seed: GPUs are left alone
        if "mxnet" in sys.modules:
            sys.modules["mxnet"].random.seed(seed % 2**31)  # it cannot be given back
        yield


def seed_draws(seed: int) -> list[str]:
    """Seed all that a creator may draw from; return the libraries that were there to be seeded."""
    seed %= 2**32
    seed_plain(seed)
    libraries = loaded()
    if "torch" in libraries:
        sys.modules["torch"].manual_seed(seed)
    if "tensorflow" in libraries:
        sys.modules["tensorflow"].random.set_seed(seed)
    if "mxnet" in libraries:
        sys.modules["mxnet"].random.seed(seed % 2**31)
    return libraries


def seed_plain(seed: int) -> None:
    """Seed the generators of Python and numpy."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def loaded() -> list[str]:
    """Return the libraries with random numbers of their own that are loaded."""
    return [name for name in ("torch", "tensorflow", "mxnet") if name in sys.modules]


@contextmanager
def kept_draws() -> Iterator[None]:
    """Give the random numbers of Python, numpy and torch back as they were: this process may be the user's program."""
    plain, numpy, torch = random.getstate(), np.random.get_state(), sys.modules.get("torch")
    if torch is not None:
        state = torch.get_rng_state()
        gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)
        if torch is not None:
            torch.set_rng_state(state)
            if gpus:
                torch.cuda.set_rng_state_all(gpus)
