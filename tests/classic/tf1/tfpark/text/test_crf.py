"""The CRF against all rows of tags there are: texts of up to four words, one of them shorter than the others."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from orca_classic.tf1.tfpark.text.crf import CRF, Tags, crf_accuracy, crf_loss

TAGS, DRAW = 3, np.random.default_rng(1)


def chains(scores: np.ndarray, transitions: np.ndarray) -> dict[tuple[int, ...], float]:
    """Return the score of every row of tags of a text."""
    rows = itertools.product(range(TAGS), repeat=len(scores))
    return {
        row: sum(scores[place, tag] for place, tag in enumerate(row))
        + sum(transitions[pair] for pair in itertools.pairwise(row))
        for row in rows
    }  # fmt: skip


@pytest.mark.parametrize("words", [1, 2, 4])
def test_the_loss_and_the_best_tags_are_those_of_all_chains(words: int) -> None:
    lengths = np.array([words, max(1, words - 1), 1])
    scores = DRAW.normal(size=(3, words, TAGS)).astype("float32")
    labels = DRAW.integers(0, TAGS, (3, words))
    layer = CRF()
    layer([scores, lengths[:, None]])
    transitions = DRAW.normal(size=(TAGS, TAGS)).astype("float32")
    layer.set_weights([transitions])
    outputs = layer([scores, lengths[:, None]])
    assert tuple(outputs.shape) == layer.compute_output_shape([scores.shape, (3, 1)])
    tags = Tags()(outputs).numpy()
    for given in (labels, labels[..., None], np.eye(TAGS)[labels]):  # whole numbers, or rows of 0 and 1
        losses, right = (function(tf.constant(given), outputs).numpy() for function in (crf_loss, crf_accuracy))
        for row, length in enumerate(lengths):
            values = chains(scores[row, :length], transitions)
            own = tuple(labels[row, :length].tolist())
            total = np.log(np.sum(np.exp(list(values.values()))))
            assert losses[row] == pytest.approx(total - values[own], abs=1e-5)
            best = max(values, key=values.__getitem__)
            assert tuple(tags[row, :length].argmax(1).tolist()) == best
            assert right[row] == pytest.approx(np.mean(np.equal(best, own)))
    np.testing.assert_array_equal(tags.sum(2), np.arange(words) < lengths[:, None])  # nothing beyond the last word


def test_a_text_without_words_has_no_loss() -> None:
    scores, labels = DRAW.normal(size=(2, 3, TAGS)).astype("float32"), np.zeros((2, 3), "int32")
    outputs = CRF()([scores, np.array([[0], [2]])])
    assert crf_loss(labels, outputs).numpy()[0] == 0.0 < crf_loss(labels, outputs).numpy()[1]
    assert crf_accuracy(labels, outputs).numpy()[0] == 0.0


def test_without_lengths_every_word_counts() -> None:
    scores = DRAW.normal(size=(2, 3, TAGS)).astype("float32")
    layer = CRF()
    alone = layer(scores)
    np.testing.assert_array_equal(alone, layer([scores, np.full((2, 1), 3)]))


def test_the_gradient_of_the_transitions_is_that_of_the_loss() -> None:
    scores, labels = DRAW.normal(size=(2, 3, TAGS)).astype("float32"), DRAW.integers(0, TAGS, (2, 3))
    layer = CRF()

    def loss() -> Any:
        return tf.reduce_mean(crf_loss(tf.constant(labels), layer(scores)))

    loss()
    with tf.GradientTape() as tape:
        value = loss()
    gradient = tape.gradient(value, layer.trainable_variables[0]).numpy()
    (start,) = layer.get_weights()
    for place in np.ndindex(TAGS, TAGS):
        values = []
        for change in (1e-2, -1e-2):
            moved = start.copy()
            moved[place] += change
            layer.set_weights([moved])
            values.append(float(loss()))
        assert gradient[place] == pytest.approx((values[0] - values[1]) / 2e-2, abs=1e-3)
