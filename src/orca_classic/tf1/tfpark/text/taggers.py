"""Taggers: Keras models that tag the words of texts. Owns their layers, in the order of the older releases' arguments.

They are made by the Keras that `tensorflow.keras` is: of today, or tf_keras in a graph where tf1 was imported first.
"""

from __future__ import annotations

from typing import Any

from orca.errors import ArgumentError
from orca_classic.data.tf.loading import tensorflow
from orca_classic.tf1.tfpark.dataset import only
from orca_classic.tf1.tfpark.model import KerasModel


class TextKerasModel(KerasModel):
    """A compiled Keras model of texts: labels are whole numbers, or rows of 0 and 1.

    Where tags are found by a CRF, `predict` answers with the best tags, 1 at each word's; the Keras model itself, in
    `model`, gives the inputs of the loss.

    Args:
        model: The model.
        options: More arguments of KerasModel: model_dir, backend, workers_per_node, seed.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self._answering: KerasModel | None = None

    @classmethod
    def load_model(cls, path: str, **options: Any) -> TextKerasModel:  # type: ignore[override]
        """Load a model that `save_model` wrote; the options are those of `KerasModel.load_model`."""
        from orca.frameworks.keras.files import load_model
        from orca_classic.tf1.tfpark.text import crf, words  # noqa: F401  # Keras knows their layers then

        model = cls.__new__(cls)
        TextKerasModel.__init__(model, load_model(path, **options))
        return model

    def predict(self, x: Any, batch_per_thread: int | None = None, distributed: bool = False) -> Any:
        """Predict as `KerasModel.predict` does: probabilities, or 1 at the best tag where a CRF finds it."""
        if self._answering is None:
            self._answering = KerasModel(_with_tags(self.model), **self.options)
        return self._answering.predict(x, batch_per_thread, distributed)

    def predict_on_batch(self, x: Any) -> Any:
        """Predict one batch here."""
        return self.predict(x)


class NER(TextKerasModel):
    """A tagger of entities: words (rows, words) and characters (rows, words, word_length) give each word's entity.

    A CRF finds the entities in the output of two LSTMs in both directions over the words.

    Args:
        num_entities: The number of entities.
        word_vocab_size: Words in the vocabulary.
        char_vocab_size: Characters in the vocabulary.
        word_length: Characters of each word.
        word_emb_dim: Size of the words' embeddings.
        char_emb_dim: Size of the characters' embeddings.
        tagger_lstm_dim: Size of the LSTMs.
        dropout: The share of activations that is dropped in training.
        crf_mode: "reg": every text has as many words as the array; "pad": a third input (rows, 1) has their number.
        optimizer: The optimizer; Adam unless given.
        options: More arguments of the Estimator: backend, workers_per_node, seed.

    Raises:
        ArgumentError: There is no such mode.
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
        texts = _Texts(dropout)
        x = texts.words_and_chars(
            word_vocab_size, word_emb_dim, char_vocab_size, char_emb_dim, char_emb_dim, word_length
        )
        x = texts.both_ways(texts.both_ways(x, tagger_lstm_dim), tagger_lstm_dim)
        lengths = texts.add_input("lengths", 1) if crf_mode == "pad" else None
        texts.tag(x, num_entities, "entities", lengths)
        super().__init__(texts.compiled(optimizer), **options)


class IntentEntity(TextKerasModel):
    """A model of a text's intent, and of its entities, which a CRF finds: two outputs.

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
        dropout: The share of activations that is dropped in training.
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
        texts = _Texts(dropout)
        x = texts.words_and_chars(
            word_vocab_size, word_emb_dim, char_vocab_size, char_emb_dim, char_lstm_dim, word_length
        )
        x = texts.both_ways(x, tagger_lstm_dim)
        texts.classify(texts.layers.GlobalMaxPooling1D()(x), num_intents, "intent")
        texts.tag(texts.both_ways(x, tagger_lstm_dim), num_entities, "entities")
        super().__init__(texts.compiled(optimizer), **options)


class SequenceTagger(TextKerasModel):
    """A tagger of parts of speech and of chunks: two outputs.

    Args:
        num_pos_labels: The number of parts of speech.
        num_chunk_labels: The number of chunk tags.
        word_vocab_size: Words in the vocabulary.
        char_vocab_size: Characters in the vocabulary; words alone are read unless given.
        word_length: Characters of each word.
        feature_size: Size of embeddings and LSTMs.
        dropout: The share of activations that is dropped in training.
        classifier: How chunks are found: "softmax", or "crf".
        optimizer: The optimizer; Adam unless given.
        options: More arguments of the Estimator.

    Raises:
        ArgumentError: There is no such classifier.
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
        if classifier not in ("softmax", "crf"):
            raise ArgumentError(f"classifier must be 'softmax' or 'crf'; got {classifier!r}.")
        texts = _Texts(dropout)
        if char_vocab_size is None:
            x = texts.words(word_vocab_size, feature_size)
        else:
            x = texts.words_and_chars(
                word_vocab_size, feature_size, char_vocab_size, feature_size, feature_size, word_length
            )
        x = texts.both_ways(x, feature_size)
        texts.classify(x, num_pos_labels, "pos")
        x = texts.both_ways(x, feature_size)
        (texts.tag if classifier == "crf" else texts.classify)(x, num_chunk_labels, "chunk")
        super().__init__(texts.compiled(optimizer), **options)


class _Texts:
    """The inputs and outputs of a model of texts, as its layers are made."""

    def __init__(self, dropout: float) -> None:
        self.keras = tensorflow().keras
        self.layers = self.keras.layers
        self.dropout = dropout
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.losses: list[Any] = []

    def add_input(self, name: str, *shape: int | None) -> Any:
        self.inputs.append(self.layers.Input(shape, name=name))
        return self.inputs[-1]

    def words(self, vocabulary: int, size: int) -> Any:
        return self.layers.Dropout(self.dropout)(self.layers.Embedding(vocabulary, size)(self.add_input("words", None)))

    def words_and_chars(
        self, vocabulary: int, size: int, letters: int, letter_size: int, lstm: int, length: int
    ) -> Any:
        """Return for each word its embedding beside the output of LSTMs in both directions over its characters."""
        from orca_classic.tf1.tfpark.text.words import EachWord

        layers = self.layers
        words = layers.Embedding(vocabulary, size)(self.add_input("words", None))
        chars = layers.Embedding(letters, letter_size)(self.add_input("chars", None, length))
        chars = EachWord(layers.Bidirectional(layers.LSTM(lstm)))(chars)
        return layers.Dropout(self.dropout)(layers.Concatenate()([words, chars]))

    def both_ways(self, x: Any, size: int) -> Any:
        """Return the output of LSTMs in both directions for each word."""
        x = self.layers.Bidirectional(self.layers.LSTM(size, return_sequences=True))(x)
        return self.layers.Dropout(self.dropout)(x)

    def classify(self, x: Any, classes: int, name: str) -> None:
        """Add an output: the probability of each class."""
        self.outputs.append(self.layers.Dense(classes, activation="softmax", name=name)(x))
        self.losses.append("sparse_categorical_crossentropy")

    def tag(self, x: Any, tags: int, name: str, lengths: Any = None) -> None:
        """Add an output: tags that a CRF finds."""
        from orca_classic.tf1.tfpark.text.crf import CRF, crf_loss

        scores = self.layers.Dense(tags, name=f"{name}_scores")(x)
        self.outputs.append(CRF(name=name)(scores if lengths is None else [scores, lengths]))
        self.losses.append(crf_loss)

    def compiled(self, optimizer: Any) -> Any:
        """Return the model; one with a single output has its accuracy as a metric."""
        from orca_classic.tf1.tfpark.text.crf import crf_accuracy

        model = self.keras.Model(only(self.inputs), only(self.outputs))
        metrics = [crf_accuracy] if len(self.outputs) == 1 else None
        model.compile(optimizer=optimizer or "adam", loss=only(self.losses), metrics=metrics)
        return model


def _with_tags(model: Any) -> Any:
    """Return a model of the same layers whose CRFs answer with the best tags."""
    from orca_classic.tf1.tfpark.text.crf import CRF, Tags

    chains = {id(layer.output) for layer in model.layers if isinstance(layer, CRF)}
    outputs = [Tags()(output) if id(output) in chains else output for output in model.outputs]
    return tensorflow().keras.Model(model.inputs, only(outputs))
