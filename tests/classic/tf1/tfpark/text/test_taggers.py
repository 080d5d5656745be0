"""Taggers of made-up texts, in the Keras of today: they learn on any number of workers as Keras does, and are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras

from orca.errors import ArgumentError
from orca_classic.tf1.tfpark.text.taggers import NER, IntentEntity, SequenceTagger
from programs import run_program

LOCAL = {"backend": "local", "workers_per_node": 2}
ROWS, WORDS, VOCABULARY = 41, 4, 9
DRAW = np.random.default_rng(0)
TEXTS = DRAW.integers(0, VOCABULARY, (ROWS, WORDS))
TAGS = (TEXTS % 3).astype("int32")
LETTERS = np.stack([TEXTS % 6, TEXTS // 3], 2)  # two of each word


@pytest.mark.full
@pytest.mark.timeout(900)  # a minute of tracing by Keras, on a quiet machine
def test_chunks_found_by_a_crf_are_learned_by_several_workers_as_by_keras(tmp_path: Path) -> None:
    def make() -> SequenceTagger:
        keras.utils.set_random_seed(3)
        descent = keras.optimizers.SGD(0.5)
        return SequenceTagger(
            3, 3, VOCABULARY, feature_size=6, dropout=0.0, classifier="crf", optimizer=descent, **LOCAL
        )

    plain, ours = make(), make()
    plain.fit(TEXTS, [TAGS, TAGS], batch_size=ROWS, epochs=10, verbose=0)
    ours.fit(TEXTS, [TAGS, TAGS], batch_size=ROWS, epochs=10, distributed=True)
    for one, other in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    before, after = (ours.estimator.history.epochs[at]["train_loss"] for at in (0, -1))
    assert after < 0.9 * before
    scores = ours.evaluate(TEXTS, [TAGS, TAGS], distributed=True)
    assert scores["loss"] == pytest.approx(ours.evaluate(TEXTS, [TAGS, TAGS])["loss"], rel=1e-4)
    chances, chunks = ours.predict(TEXTS, distributed=True)
    np.testing.assert_allclose(chances.sum(2), 1.0, atol=1e-5)
    assert set(np.unique(chunks)) == {0.0, 1.0}
    np.testing.assert_array_equal(chunks.sum(2), np.ones((ROWS, WORDS)))
    ours.save_model(str(tmp_path / "tagger.keras"))
    again = SequenceTagger.load_model(str(tmp_path / "tagger.keras"))
    assert isinstance(again, SequenceTagger)
    for one, other in zip(again.predict(TEXTS), (chances, chunks), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def ner(mode: str) -> tuple[NER, list[np.ndarray], np.ndarray]:
    """Return a tagger of entities, its inputs and the tags."""
    lengths = [DRAW.integers(1, WORDS + 1, (ROWS, 1))] if mode == "pad" else []
    made = NER(
        3, VOCABULARY, 6, 2, word_emb_dim=6, char_emb_dim=4, tagger_lstm_dim=6, dropout=0.0, crf_mode=mode,
        optimizer=keras.optimizers.Adam(0.05), **LOCAL,
    )  # fmt: skip
    return made, [TEXTS, LETTERS, *lengths], TAGS


def intents(_: str) -> tuple[IntentEntity, list[np.ndarray], list[np.ndarray]]:
    """Return a model of intents and entities, its inputs and labels."""
    made = IntentEntity(
        2, 3, VOCABULARY, 6, 2, word_emb_dim=6, char_emb_dim=4, char_lstm_dim=4, tagger_lstm_dim=6, dropout=0.0,
        optimizer=keras.optimizers.Adam(0.05), **LOCAL,
    )  # fmt: skip
    return made, [TEXTS, LETTERS], [(TEXTS[:, 0] > 4).astype("int32"), TAGS]


@pytest.mark.full
@pytest.mark.timeout(900)  # a minute of tracing by Keras, on a quiet machine
@pytest.mark.parametrize("make, mode", [(ner, "reg"), (ner, "pad"), (intents, "")])
def test_entities_and_intents_are_learned_by_several_workers(make: Any, mode: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(3)
    model, x, y = make(mode)
    start = model.get_weights()
    model.fit(x, y, batch_size=ROWS, epochs=2, distributed=True)
    together = model.get_weights()
    model = make(mode)[0]
    model.set_weights(start)
    model.fit(x, y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
    for one, other in zip(model.get_weights(), together, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)  # Adam makes much of the last digits
    model.fit(x, y, batch_size=14, epochs=20, verbose=0)
    answers = model.predict(x, distributed=True)
    tags = answers[1] if make is intents else answers
    real = np.arange(WORDS) < (x[2] if mode == "pad" else WORDS)
    assert (tags.argmax(2) == TAGS)[real & np.ones_like(TAGS, bool)].mean() > 0.9
    np.testing.assert_array_equal(tags.sum(2), real & np.ones_like(TAGS, bool))  # one tag a word, none after the last
    if make is intents:
        assert (answers[0].argmax(1) == y[0]).mean() > 0.9
    model.save_model(str(tmp_path / "tagger.keras"))
    again = type(model).load_model(str(tmp_path / "tagger.keras")).predict(x)
    np.testing.assert_array_equal(again[1] if make is intents else again, tags)


@pytest.mark.full
@pytest.mark.timeout(900)  # a minute of tracing by Keras, on a quiet machine
def test_in_a_graph_taggers_learn_too(tmp_path: Path) -> None:
    """A cold program, as tf1 turns graph mode on for all of it."""
    program = Path(__file__).with_name("taggers_in_a_graph.py").read_text()
    lines = run_program(program, timeout=380, args=[str(tmp_path)]).stdout.splitlines()
    assert lines == ["learns True", "as in one session True", "predicts True True", "kept True True"]


def test_wrong_words_are_refused() -> None:
    with pytest.raises(ArgumentError, match="crf_mode must be 'reg' or 'pad'; got 'soft'"):
        NER(3, 9, 9, crf_mode="soft")
    with pytest.raises(ArgumentError, match="classifier must be 'softmax' or 'crf'; got 'svm'"):
        SequenceTagger(3, 3, 9, classifier="svm")
