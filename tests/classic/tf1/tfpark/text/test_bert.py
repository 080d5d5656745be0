"""Estimators of BERT on made-up texts, with a BERT of two small layers: they learn, answer, and go on elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow.compat.v1 as tf

from orca.errors import ArgumentError
from orca_classic.tf1.tfpark import TFDataset
from orca_classic.tf1.tfpark.text.bert import BERTNER, BERTClassifier, BERTSQuAD, bert_input_fn

LOCAL = {"backend": "local", "workers_per_node": 2}
ROWS, TOKENS = 45, 6
DRAW = np.random.default_rng(0)
SIZES = {
    "vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 8, "type_vocab_size": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
IDS = DRAW.integers(3, 12, (ROWS, TOKENS)).astype("int32")
PLACES = np.stack([DRAW.permutation(TOKENS)[:2] for _ in range(ROWS)]).astype("int32")
IDS[np.arange(ROWS), PLACES[:, 0]], IDS[np.arange(ROWS), PLACES[:, 1]] = 1, 2
MASK = (np.arange(TOKENS) < DRAW.integers(3, TOKENS + 1, (ROWS, 1))).astype("int32")
FEATURES = {"input_ids": IDS, "input_mask": np.ones_like(IDS), "token_type_ids": (IDS % 2).astype("int32")}
CLASSES = (PLACES[:, 0] < PLACES[:, 1]).astype("int32")  # whether token 1 comes before token 2


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bert") / "bert_config.json"
    path.write_text(json.dumps(SIZES))
    return str(path)


def fed(features: Any, labels: Any, batch_size: int = 15) -> Callable[[str], TFDataset]:
    def input_fn(mode: str) -> TFDataset:
        if mode == "infer":
            return TFDataset.from_ndarrays(features, batch_per_thread=16)
        return TFDataset.from_ndarrays((features, labels), batch_size=batch_size)

    return input_fn


def adam() -> Any:
    return tf.train.AdamOptimizer(3e-3)


def as_arrays(answers: Any) -> Any:
    if not hasattr(answers, "collect"):
        return answers
    records = answers.collect()
    if isinstance(records[0], dict):
        return {key: np.array([record[key] for record in records]) for key in records[0]}
    return np.array(records)


@pytest.mark.full
def test_a_classifier_of_texts_learns_and_goes_on_from_its_checkpoint(config: str, tmp_path: Path) -> None:
    input_fn = fed(FEATURES, CLASSES)
    folder = str(tmp_path / "kept")
    made = BERTClassifier(2, config, optimizer=adam(), model_dir=folder, **LOCAL)
    made.train(input_fn, steps=90)
    scores = made.evaluate(input_fn, ["acc"])
    assert scores["loss"] < 0.1  # chance has 0.69
    chances = as_arrays(made.predict(input_fn))
    np.testing.assert_allclose(chances.sum(1), 1.0, atol=1e-5)
    assert scores["Top1Accuracy"] == pytest.approx((chances.argmax(1) == CLASSES).mean())
    assert scores["Top1Accuracy"] > 0.9  # chance has 0.5
    again = BERTClassifier(2, config, model_dir=folder, **LOCAL)
    np.testing.assert_allclose(as_arrays(again.predict(input_fn)), chances, atol=1e-6)
    started = BERTClassifier(2, config, init_checkpoint=f"{folder}/model-90", **LOCAL)
    np.testing.assert_allclose(as_arrays(started.predict(input_fn)), chances, atol=1e-6)


@pytest.mark.full
def test_any_number_of_workers_trains_a_tagger_of_tokens_alike(config: str, tmp_path: Path) -> None:
    features, tags = FEATURES | {"input_mask": MASK}, (IDS % 3).astype("int32")
    start, input_fn = str(tmp_path / "start"), fed(features, tags, batch_size=ROWS)
    BERTNER(3, config, optimizer=adam(), model_dir=start, backend="local").train(input_fn, steps=1)
    answers = []
    for workers in (1, 2):
        made = BERTNER(
            3, config, f"{start}/model-1", optimizer=adam(), backend="local", workers_per_node=workers
        )  # fmt: skip
        made.train(input_fn, steps=40)
        answers.append(as_arrays(made.predict(input_fn)))
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-3)
    real = MASK == 1
    assert (answers[1].argmax(2) == tags)[real].mean() > 0.9
    loss = -np.log(np.take_along_axis(answers[1], tags[..., None], 2)[..., 0])[real].mean()
    assert made.evaluate(input_fn)["loss"] == pytest.approx(loss, rel=1e-4)  # the mask's tokens alone


def test_places_of_answers_are_learned(config: str) -> None:
    features = FEATURES | {"unique_ids": np.arange(ROWS, dtype="int32")}
    made = BERTSQuAD(config, optimizer=adam(), **LOCAL)
    made.train(fed(features, PLACES), steps=60)
    answers = as_arrays(made.predict(fed(features, PLACES)))
    np.testing.assert_array_equal(answers["unique_ids"], np.arange(ROWS))
    for column, name in enumerate(("start_logits", "end_logits")):
        assert (answers[name].argmax(1) == PLACES[:, column]).mean() > 0.9


@pytest.mark.full
def test_an_rdd_of_inputs_is_read(spark: Any, config: str) -> None:
    def records(rows: range) -> list[Any]:
        return [({name: FEATURES[name][row] for name in reversed(FEATURES)}, int(CLASSES[row])) for row in rows]

    context = spark.sparkContext
    rdd = context.parallelize(records(range(30)), 1).union(context.parallelize(records(range(30, ROWS)), 2))
    input_fn = bert_input_fn(rdd, max_seq_length=TOKENS, batch_size=15)
    made = BERTClassifier(2, config, optimizer=adam(), backend="spark", workers_per_node=2)
    made.train(input_fn, steps=2)
    alone = bert_input_fn(rdd.map(lambda record: record[0]), max_seq_length=TOKENS, batch_size=15)
    answers = as_arrays(made.predict(alone))
    np.testing.assert_allclose(answers, as_arrays(made.predict(fed(FEATURES, CLASSES))), atol=1e-6)
    assert made.evaluate(input_fn)["loss"] > 0


def test_wrong_sizes_are_refused(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 3}))
    with pytest.raises(ArgumentError, match="has no hidden_size, num_hidden_layers"):
        BERTClassifier(2, str(tmp_path / "config.json"))
    with pytest.raises(ArgumentError, match="num_classes must be a positive whole number; got 0"):
        BERTClassifier(0, config)
    long = {"input_ids": np.zeros((4, 9), "int32")}
    with pytest.raises(ArgumentError, match="8 at most; got 9"):
        BERTClassifier(2, config, **LOCAL).train(fed(long, CLASSES[:4]))
    with pytest.raises(ArgumentError, match="there is no file"):
        BERTClassifier(2, str(tmp_path / "none.json"))
