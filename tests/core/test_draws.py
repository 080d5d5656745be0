from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from orca.core.draws import alike, kept_draws


def draw() -> Any:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_draws_of_one_seed_are_alike_and_the_process_goes_on_as_if_nothing_was() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with kept_draws():
        undisturbed = draw()
    with alike(5):
        first = draw()
    with alike(5):
        with alike(6):
            other = draw()
        again = draw()
    assert draw() == undisturbed
    assert first == again and all(one != two for one, two in zip(first, other, strict=True))


def test_random_numbers_are_given_back_after_a_failure_too() -> None:
    with kept_draws():
        undisturbed = draw()
    try:
        with alike(2**62):
            draw()
            raise ValueError
    except ValueError:
        pass
    assert draw() == undisturbed
