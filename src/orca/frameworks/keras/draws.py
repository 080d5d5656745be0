"""StepDraws: the random numbers of a step. Owns what layers that draw (dropout, noise) draw in each step of each rank.

A step draws from (seed, epoch, rank, step) and not from a generator that runs on, so that an epoch can be resumed at
any step. Layers keep their own seeds apart from each other, and two layers with the same seed draw the same.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import tensorflow as tf

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
        if self.eager:  # what the user's own code draws; a graph has its numbers from when it was traced
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
