"""BERT: an encoder of texts, and estimators with heads on it. Owns its graph and the names of its variables.

The variables have the names of the checkpoints that BERT's authors published, so that such a checkpoint is a start.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from orca.core.units import positive
from orca.errors import ArgumentError
from orca.storage.files import filesystem
from orca_classic.data.tf.loading import tensorflow
from orca_classic.tf1.tfpark.dataset import TFDataset
from orca_classic.tf1.tfpark.estimator import PREDICT, TRAIN, TFEstimator, TFEstimatorSpec

_FEATURES = ("input_ids", "input_mask", "token_type_ids")
_CONFIG = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip


def bert_input_fn(
    rdd: Any,
    max_seq_length: int,
    batch_size: int,
    features: Iterable[str] = _FEATURES,
    extra_features: Mapping[str, Any] | None = None,
    labels: Any = None,
    label_size: int | None = None,
) -> Callable[[str], TFDataset]:
    """Return an input function of an RDD of BERT's inputs.

    Args:
        rdd: Records of a dict of features, or of a pair of such a dict and a label.
        max_seq_length: Tokens of each text.
        batch_size: Rows of one step in training; rows that are evaluated or predicted at a time.
        features: Names of the features, among input_ids, input_mask and token_type_ids.
        extra_features: More features by name: (type, shape).
        labels: (type, shape) of the labels, where they are not one whole number.
        label_size: The numbers that a label has, where it is more than one.
    """
    tf = tensorflow()
    specs = {name: (tf.int32, [max_seq_length]) for name in _FEATURES if name in set(features)}
    specs |= dict(extra_features or {})
    label = labels if labels is not None else (tf.int32, [] if label_size is None else [label_size])

    def input_fn(mode: str) -> TFDataset:
        size, at_a_time = (batch_size, None) if mode == TRAIN else (None, batch_size)
        label_spec = None if mode == PREDICT else label
        return TFDataset.from_rdd(rdd, batch_size=size, batch_per_thread=at_a_time, features=specs, labels=label_spec)

    return input_fn


class BERTBaseEstimator(TFEstimator):
    """An estimator of a model function whose features go through BERT.

    Args:
        model_fn: A function (features, labels, mode, params); `bert_outputs` gives it the encoder's outputs.
        bert_config_file: The JSON file with BERT's sizes.
        init_checkpoint: A checkpoint of BERT to start from.
        use_one_hot_embeddings: Accepted.
        model_dir: The folder that checkpoints are written to and read from.
        kwargs: More for `params`; optimizer, backend, workers_per_node and seed are the estimator's.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        bert_config_file: str,
        init_checkpoint: str | None = None,
        use_one_hot_embeddings: bool = False,
        model_dir: str | None = None,
        **kwargs: Any,
    ) -> None:
        options = {name: kwargs.pop(name) for name in ("backend", "workers_per_node", "seed") if name in kwargs}
        optimizer = kwargs.pop("optimizer", None) or _default_optimizer
        super().__init__(
            model_fn,
            optimizer,
            model_dir,
            params={"bert": _config(bert_config_file), **kwargs},
            warm_start_from=init_checkpoint,
            **options,
        )

    def train(self, input_fn: Callable[..., Any], steps: int | None = None, session_config: Any = None) -> TFEstimator:
        """Train on the data of an input function; see TFEstimator.train."""
        if self.optimizer is _default_optimizer:
            self.optimizer = _default_optimizer()
        return super().train(input_fn, steps, session_config)


class HeadedBERT(BERTBaseEstimator):
    """BERT with an output of its own; a subclass says which.

    Args:
        bert_config_file: The JSON file with BERT's sizes.
        init_checkpoint: A checkpoint of BERT to start from.
        use_one_hot_embeddings: Accepted.
        optimizer: The optimizer; Adam with the rate 5e-5 unless given.
        model_dir: The folder that checkpoints are written to and read from.
        options: backend, workers_per_node and seed.
    """

    head: ClassVar[Callable[..., TFEstimatorSpec]]

    def __init__(
        self,
        bert_config_file: str,
        init_checkpoint: str | None = None,
        use_one_hot_embeddings: bool = False,
        optimizer: Any = None,
        model_dir: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            type(self).head, bert_config_file, init_checkpoint, use_one_hot_embeddings, model_dir,
            optimizer=optimizer, **options,
        )  # fmt: skip


class BERTClassifier(HeadedBERT):
    """BERT with a class for each text: predictions are the classes' probabilities. See HeadedBERT for the others.

    Args:
        num_classes: The number of classes.
    """

    def __init__(self, num_classes: int, bert_config_file: str, *more: Any, **options: Any) -> None:
        super().__init__(bert_config_file, *more, outputs=positive("num_classes", num_classes), **options)

    @staticmethod
    def head(features: Any, labels: Any, mode: str, params: Mapping[str, Any]) -> TFEstimatorSpec:
        """Return the spec of a mode."""
        _, texts = bert_outputs(features, mode, params["bert"])
        return _classified(texts, labels, mode, params)


class BERTNER(HeadedBERT):
    """BERT with an entity for each token: predictions are the entities' probabilities. See HeadedBERT for the others.

    Args:
        num_entities: The number of entities.
    """

    def __init__(self, num_entities: int, bert_config_file: str, *more: Any, **options: Any) -> None:
        super().__init__(bert_config_file, *more, outputs=positive("num_entities", num_entities), **options)

    @staticmethod
    def head(features: Any, labels: Any, mode: str, params: Mapping[str, Any]) -> TFEstimatorSpec:
        """Return the spec of a mode: the loss counts the tokens that input_mask has a 1 for."""
        tokens, _ = bert_outputs(features, mode, params["bert"])
        return _classified(tokens, labels, mode, params, features.get("input_mask"))


class BERTSQuAD(HeadedBERT):
    """BERT with the place of an answer in a text: predictions are start_logits and end_logits of each token.

    Labels are pairs of the places where answers start and end; a feature `unique_ids` comes back with predictions.
    """

    @staticmethod
    def head(features: Any, labels: Any, mode: str, params: Mapping[str, Any]) -> TFEstimatorSpec:
        """Return the spec of a mode."""
        tf = tensorflow().compat.v1
        tokens, _ = bert_outputs(features, mode, params["bert"])
        start, end = tf.unstack(_logits(tf, tokens, 2), axis=2)
        predictions = {"start_logits": start, "end_logits": end}
        if "unique_ids" in features:
            predictions["unique_ids"] = features["unique_ids"]
        if labels is None:
            return TFEstimatorSpec(mode, predictions)
        losses = [
            tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels[:, at]))
            for at, logits in enumerate((start, end))
        ]
        return TFEstimatorSpec(mode, predictions, (losses[0] + losses[1]) / 2.0)


def bert_outputs(features: Mapping[str, Any], mode: str, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the encoder's output for each token, and the one for each text.

    Args:
        features: input_ids, and input_mask and token_type_ids where texts need them: whole numbers (rows, tokens).
        mode: tf.estimator.ModeKeys.TRAIN draws dropout.
        config: BERT's sizes.
    """
    tf = tensorflow().compat.v1
    training = mode == TRAIN
    drop = partial(_dropped, tf, rate=config.get("hidden_dropout_prob", 0.1) if training else 0.0)
    width, init = config["hidden_size"], tf.truncated_normal_initializer(stddev=config.get("initializer_range", 0.02))
    ids = features["input_ids"]
    length = ids.shape.as_list()[1]
    if length is None or length > config["max_position_embeddings"]:
        raise ArgumentError(
            f"input_ids must have a known number of tokens, {config['max_position_embeddings']} at most; got {length}."
        )
    mask = features.get("input_mask", tf.ones_like(ids))
    types = features.get("token_type_ids", tf.zeros_like(ids))
    with tf.variable_scope("bert"):
        with tf.variable_scope("embeddings"):
            words = tf.get_variable("word_embeddings", [config["vocab_size"], width], initializer=init)
            kinds = tf.get_variable("token_type_embeddings", [config["type_vocab_size"], width], initializer=init)
            places = tf.get_variable(
                "position_embeddings", [config["max_position_embeddings"], width], initializer=init
            )
            x = tf.gather(words, ids) + tf.gather(kinds, types) + places[:length][None]
            x = drop(_normalized(tf, x))
        mask_bias = (1.0 - tf.cast(mask, tf.float32))[:, None, None, :] * -10000.0
        with tf.variable_scope("encoder"):
            for number in range(config["num_hidden_layers"]):
                with tf.variable_scope(f"layer_{number}"):
                    x = _layer(tf, x, mask_bias, config, init, drop, training)
        with tf.variable_scope("pooler"):
            texts = tf.tanh(_dense(tf, x[:, 0], width, "dense", init))
    return x, texts


def _layer(tf: Any, x: Any, mask_bias: Any, config: Mapping[str, Any], init: Any, drop: Any, training: bool) -> Any:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    length, size = x.shape.as_list()[1], width // heads
    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            query, key, value = (
                tf.transpose(tf.reshape(_dense(tf, x, width, name, init), [-1, length, heads, size]), [0, 2, 1, 3])
                for name in ("query", "key", "value")
            )
            scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(size) + mask_bias
            rate = config.get("attention_probs_dropout_prob", 0.1) if training else 0.0
            chances = _dropped(tf, tf.nn.softmax(scores), rate)
            context = tf.reshape(tf.transpose(tf.matmul(chances, value), [0, 2, 1, 3]), [-1, length, width])
        with tf.variable_scope("output"):
            x = _normalized(tf, x + drop(_dense(tf, context, width, "dense", init)))
    with tf.variable_scope("intermediate"):
        inner = _gelu(tf, _dense(tf, x, config["intermediate_size"], "dense", init))
    with tf.variable_scope("output"):
        return _normalized(tf, x + drop(_dense(tf, inner, width, "dense", init)))


def _classified(x: Any, labels: Any, mode: str, params: Mapping[str, Any], mask: Any = None) -> TFEstimatorSpec:
    """Return the spec of a class for each text or token, of which a mask may leave out some."""
    tf = tensorflow().compat.v1
    rate = params["bert"].get("hidden_dropout_prob", 0.1) if mode == TRAIN else 0.0
    logits = _logits(tf, _dropped(tf, x, rate), params["outputs"])
    predictions = tf.nn.softmax(logits)
    if labels is None:
        return TFEstimatorSpec(mode, predictions)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels)
    if mask is None:
        return TFEstimatorSpec(mode, predictions, tf.reduce_mean(each))
    weights = tf.cast(mask, tf.float32)
    return TFEstimatorSpec(mode, predictions, tf.reduce_sum(each * weights) / tf.reduce_sum(weights))


def _logits(tf: Any, x: Any, size: int) -> Any:
    with tf.variable_scope("head"):
        return _dense(tf, x, size, "dense", tf.truncated_normal_initializer(stddev=0.02))


def _dense(tf: Any, x: Any, size: int, name: str, init: Any) -> Any:
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [x.shape.as_list()[-1], size], initializer=init)
        bias = tf.get_variable("bias", [size], initializer=tf.zeros_initializer())
    return tf.tensordot(x, kernel, 1) + bias


def _normalized(tf: Any, x: Any) -> Any:
    """Return each token's numbers with mean 0 and variance 1, scaled and shifted as learned."""
    width = x.shape.as_list()[-1]
    with tf.variable_scope("LayerNorm"):
        beta = tf.get_variable("beta", [width], initializer=tf.zeros_initializer())
        gamma = tf.get_variable("gamma", [width], initializer=tf.ones_initializer())
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
    return (x - mean) * tf.rsqrt(variance + 1e-12) * gamma + beta


def _gelu(tf: Any, x: Any) -> Any:
    return 0.5 * x * (1.0 + tf.erf(x / math.sqrt(2.0)))


def _dropped(tf: Any, x: Any, rate: float) -> Any:
    return tf.nn.dropout(x, rate=rate) if rate else x


def _default_optimizer() -> Any:
    return tensorflow().compat.v1.train.AdamOptimizer(5e-5)


def _config(file: str) -> dict[str, Any]:
    fs, place = filesystem(file)
    if not fs.isfile(place):
        raise ArgumentError(f"there is no file {file}. Pass the bert_config.json of a BERT.")
    config: dict[str, Any] = json.loads(fs.cat_file(place))
    if missing := [name for name in _CONFIG if name not in config]:
        raise ArgumentError(f"{file} has no {', '.join(missing)}. Pass the bert_config.json of a BERT.")
    return config
