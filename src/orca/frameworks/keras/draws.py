"""Draws: the random numbers of Keras. Owns its seeds, and the draws of layers (dropout, noise) in each step.

A step draws from (seed, epoch, rank, step) and not from a generator that runs on, so that an epoch can be resumed at
any step. Layers keep their own seeds apart from each other, and two layers with the same seed draw the same.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from orca.core.draws import kept_draws, seed_plain
from orca.frameworks.keras.travel import family_of


class StepDraws:
    """The generators of a model, seeded anew in each step.

    Args:
        model: A built model; those of tf_keras get generators whose state can be set.
        seed: The seed of the fit.
        rank: The rank, as ranks have different rows.
    """

    def __init__(self, model: Any, seed: int, rank: int) -> None:
        self.seed, self.rank = seed, rank
        self.eager = bool(getattr(model, "run_eagerly", False))
        generators = _generators(model) if family_of(model) == "keras" else _legacy_generators(model)
        self.states = [state for _, state in generators]
        self.bases = [
            int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) if own is None else int(own)
            for number, (own, _) in enumerate(generators)
        ]
        # One variable for all of them: to set each before the step would cost more than the small steps do.
        self.words = tf.Variable(np.zeros(len(generators), np.int64), trainable=False)

    def set_step(self, epoch: int, step: int) -> None:
        """Say which step comes next."""
        draw = int(np.random.SeedSequence([self.seed, epoch, self.rank, step]).generate_state(1)[0])
        if self.eager:  # draws of the user's own code; a graph has its numbers from when it was traced
            tf.random.set_seed(draw)
        if self.states:
            self.words.assign([(base + draw) % 2**31 for base in self.bases])

    def enter(self) -> None:
        """Seed the generators for this step; part of the step's graph."""
        for number, state in enumerate(self.states):
            word = self.words[number]
            rest = [tf.zeros((), tf.int64)] * (int(state.shape[0]) - 1)
            # Keras 3 has (seed, count), Philox of TensorFlow (count, count, key).
            words = [word, *rest] if len(rest) == 1 else [*rest, word]
            state.assign(tf.cast(tf.stack(words), state.dtype))


def _generators(model: Any) -> list[tuple[int | None, Any]]:
    """Return (seed that the user gave, state) of each generator of a model of Keras 3, and of the global one."""
    generators = [one for layer in model._flatten_layers() for one in layer._seed_generators]
    module = importlib.import_module("keras.src.random.seed_generator")
    generators = [*dict.fromkeys(generators), module.global_seed_generator()]
    return [(one._initial_seed, one.state) for one in generators]


def _legacy_generators(model: Any) -> list[tuple[int | None, Any]]:
    """Do the same for tf_keras, whose layers draw from operations without a state unless they are told otherwise."""
    generators = []
    for layer in model._flatten_layers():
        generator: Any = getattr(layer, "_random_generator", None)
        if hasattr(generator, "_maybe_init"):
            seed = generator._seed
            generator._rng_type, generator._built = generator.RNG_STATEFUL, False
            generator._maybe_init()
            generators.append((seed, generator._generator.state))
    return generators


def set_seed(seed: int) -> None:
    """Seed all that a model creator may draw from, of either Keras."""
    seed_plain(seed)
    tf.random.set_seed(seed)
    for name in ("keras", "tf_keras"):
        if name in sys.modules:
            sys.modules[name].utils.set_random_seed(seed % 2**32)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from a seed, and leave the caller's random generators as they were."""
    places = _seed_places()
    before = [{name: vars(place)[name] for name in names if name in vars(place)} for place, names in places]
    try:
        with kept_draws():
            set_seed(seed)
            yield
    finally:
        for (place, names), values in zip(places, before, strict=True):
            for name in names:
                vars(place).pop(name, None)
            vars(place).update(values)


def _seed_places() -> list[tuple[Any, tuple[str, ...]]]:
    """Return the places of the seeds of TensorFlow and Keras, for which they have no functions."""
    places: list[tuple[Any, tuple[str, ...]]] = [(context.context(), ("_seed", "_rng"))]
    state = sys.modules.get("keras.src.backend.common.global_state")
    if state is not None:
        places.append((state.GLOBAL_STATE_TRACKER, ("global_random_seed", "global_seed_generator")))
    backend = sys.modules.get("tf_keras.src.backend")
    if backend is not None:
        places.append((backend._SEED_GENERATOR, ("generator",)))
    return places


def forget_names() -> None:
    """Let Keras number its layers and metrics from the beginning: a worker may have made models before."""
    for name in ("keras", "tf_keras"):
        if name in sys.modules:
            sys.modules[name].backend.clear_session()
