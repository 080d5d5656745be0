"""Taggers: Keras models that tag the words of texts. Owns their layers, in the order of the older releases' arguments.

They are made by the Keras that `tensorflow.keras` is: of today, or tf_keras in a graph where tf1 was imported first.
"""

from __future__ import annotations

from typing import Any

from orca.data.tf.loading import tensorflow
from orca.errors import ArgumentError
from orca.tfpark.model import KerasModel


class TextKerasModel(KerasModel):
    """A compiled Keras model of texts."""

    @staticmethod
    def load_model(path: str) -> KerasModel:
        """Load a model that `save_model` wrote."""
        return KerasModel.load_model(path)


class NER(TextKerasModel):
    """A tagger of entities: words (rows, words) and characters (rows, words, word_length) give a chance of each entity.

    Each word's tag is a softmax over what two LSTMs in both directions say of it; there is no CRF.

    Args:
        num_entities: The number of entities.
        word_vocab_size: Words in the vocabulary.
        char_vocab_size: Characters in the vocabulary.
        word_length: Characters of each word.
        word_emb_dim: Size of the words' embeddings.
        char_emb_dim: Size of the characters' embeddings.
        tagger_lstm_dim: Size of the LSTMs.
        dropout: Share of what is dropped in training.
        crf_mode: Accepted: "reg" or "pad".
        optimizer: The optimizer; Adam unless given.
        options: More arguments of the Estimator: backend, workers_per_node, seed.
    """

    def __init__(
        self,
        num_entities: int,
        word_vocab_size: int,
        char_vocab_size: int,
        word_length: int = 12,
        word_emb_dim: int = 100,
        char_emb_dim: int = 30,
        tagger_lstm_dim: int = 100,
        dropout: float = 0.5,
        crf_mode: str = "reg",
        optimizer: Any = None,
        **options: Any,
    ) -> None:
        if crf_mode not in ("reg", "pad"):
            raise ArgumentError(f"crf_mode must be 'reg' or 'pad'; got {crf_mode!r}.")
        keras = tensorflow().keras
        words, chars, x = _embedded(
            keras, word_vocab_size, char_vocab_size, word_length, word_emb_dim, char_emb_dim, char_emb_dim, dropout
        )
        x = _both_ways(keras, x, tagger_lstm_dim, dropout)
        x = _both_ways(keras, x, tagger_lstm_dim, dropout)
        tags = keras.layers.Dense(num_entities, activation="softmax", name="entities")(x)
        super().__init__(_compiled(keras, [words, chars], tags, optimizer, ["accuracy"]), **options)


class IntentEntity(TextKerasModel):
    """A model of what a text wants, and of its entities: two outputs.

    Args:
        num_intents: The number of intents.
        num_entities: The number of entities.
        word_vocab_size: Words in the vocabulary.
        char_vocab_size: Characters in the vocabulary.
        word_length: Characters of each word.
        word_emb_dim: Size of the words' embeddings.
        char_emb_dim: Size of the characters' embeddings.
        char_lstm_dim: Size of the characters' LSTM.
        tagger_lstm_dim: Size of the words' LSTMs.
        dropout: Share of what is dropped in training.
        optimizer: The optimizer; Adam unless given.
        options: More arguments of the Estimator.
    """

    def __init__(
        self,
        num_intents: int,
        num_entities: int,
        word_vocab_size: int,
        char_vocab_size: int,
        word_length: int = 12,
        word_emb_dim: int = 100,
        char_emb_dim: int = 30,
        char_lstm_dim: int = 30,
        tagger_lstm_dim: int = 100,
        dropout: float = 0.2,
        optimizer: Any = None,
        **options: Any,
    ) -> None:
        keras = tensorflow().keras
        words, chars, x = _embedded(
            keras, word_vocab_size, char_vocab_size, word_length, word_emb_dim, char_emb_dim, char_lstm_dim, dropout
        )
        first = _both_ways(keras, x, tagger_lstm_dim, dropout)
        last = keras.layers.GlobalMaxPooling1D()(first)
        intent = keras.layers.Dense(num_intents, activation="softmax", name="intent")(last)
        second = _both_ways(keras, first, tagger_lstm_dim, dropout)
        tags = keras.layers.Dense(num_entities, activation="softmax", name="entities")(second)
        super().__init__(_compiled(keras, [words, chars], [intent, tags], optimizer, None), **options)


class SequenceTagger(TextKerasModel):
    """A tagger of parts of speech and of chunks: two outputs.

    Args:
        num_pos_labels: The number of parts of speech.
        num_chunk_labels: The number of chunk tags.
        word_vocab_size: Words in the vocabulary.
        char_vocab_size: Characters in the vocabulary; words alone are read unless given.
        word_length: Characters of each word.
        feature_size: Size of embeddings and LSTMs.
        dropout: Share of what is dropped in training.
        classifier: "softmax".
        optimizer: The optimizer; Adam unless given.
        options: More arguments of the Estimator.

    Raises:
        ArgumentError: The classifier is "crf", which is not built.
    """

    def __init__(
        self,
        num_pos_labels: int,
        num_chunk_labels: int,
        word_vocab_size: int,
        char_vocab_size: int | None = None,
        word_length: int = 12,
        feature_size: int = 100,
        dropout: float = 0.2,
        classifier: str = "softmax",
        optimizer: Any = None,
        **options: Any,
    ) -> None:
        if classifier != "softmax":
            raise ArgumentError(f"classifier must be 'softmax'; got {classifier!r}, which is not built.")
        keras = tensorflow().keras
        layers = keras.layers
        if char_vocab_size is None:
            words = layers.Input((None,), name="words")
            inputs, x = [words], layers.Dropout(dropout)(layers.Embedding(word_vocab_size, feature_size)(words))
        else:
            words, chars, x = _embedded(
                keras, word_vocab_size, char_vocab_size, word_length, feature_size, feature_size, feature_size, dropout
            )
            inputs = [words, chars]
        first = _both_ways(keras, x, feature_size, dropout)
        pos = layers.Dense(num_pos_labels, activation="softmax", name="pos")(first)
        second = _both_ways(keras, first, feature_size, dropout)
        chunk = layers.Dense(num_chunk_labels, activation="softmax", name="chunk")(second)
        super().__init__(_compiled(keras, inputs, [pos, chunk], optimizer, None), **options)


def _embedded(
    keras: Any, words: int, chars: int, length: int, word_size: int, char_size: int, lstm: int, dropout: float
) -> tuple[Any, Any, Any]:
    """Return the inputs, and for each word its embedding beside what an LSTM says of its characters."""
    layers = keras.layers
    given, spelled = layers.Input((None,), name="words"), layers.Input((None, length), name="chars")
    x = layers.Embedding(words, word_size)(given)
    y = layers.Embedding(chars, char_size)(spelled)
    y = layers.TimeDistributed(layers.Bidirectional(layers.LSTM(lstm)))(y)
    return given, spelled, layers.Dropout(dropout)(layers.Concatenate()([x, y]))


def _both_ways(keras: Any, x: Any, size: int, dropout: float) -> Any:
    layers = keras.layers
    return layers.Dropout(dropout)(layers.Bidirectional(layers.LSTM(size, return_sequences=True))(x))


def _compiled(keras: Any, inputs: Any, outputs: Any, optimizer: Any, metrics: Any) -> Any:
    model = keras.Model(inputs[0] if len(inputs) == 1 else inputs, outputs)
    model.compile(optimizer=optimizer or "adam", loss="sparse_categorical_crossentropy", metrics=metrics)
    return model
