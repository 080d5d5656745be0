"""CRF: tags of a text that depend on each other. Owns the layer, its loss, and how the best tags are found.

A linear chain: the score of a row of tags is the sum of each word's score for its tag and of the transitions between
neighbours. A loss of Keras gets outputs alone, so the layer puts all that it needs into them: the words' scores, then
the transitions, then the number of words, one below the other. `Tags` makes tags of them.

The classes belong to the Keras that `tensorflow.keras` is in this process.

TensorFlow Addons, which had this layer, has ended; torchcrf is for torch.
"""

from __future__ import annotations

from typing import Any

from orca_classic.data.tf.loading import tensorflow

tf = tensorflow()
keras: Any = tf.keras
_register = keras.utils.register_keras_serializable("orca")


@_register
class CRF(keras.layers.Layer):  # type: ignore[misc]
    """A layer that joins scores (rows, words, tags), or a pair of them and of lengths (rows, 1), with transitions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.supports_jit = False  # XLA takes half a minute for the loops of a model of texts

    def build(self, input_shape: Any) -> None:
        """Make the transitions: from the tag of a row to the tag of a column."""
        tags = self._scores_of(input_shape)[-1]
        self.transitions = self.add_weight(name="transitions", shape=(tags, tags), initializer="glorot_uniform")
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """Return scores, transitions and lengths in one tensor (rows, words + tags + 1, tags)."""
        scores, lengths = inputs if isinstance(inputs, list | tuple) else (inputs, None)
        nothing = tf.zeros_like(scores[:, :1, :])
        words = tf.fill([1, 1, 1], tf.shape(scores)[1]) if lengths is None else tf.reshape(lengths, [-1, 1, 1])
        return tf.concat([scores, nothing + self.transitions, nothing + tf.cast(words, scores.dtype)], 1)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the shape of the output."""
        rows, words, tags = self._scores_of(input_shape)
        return rows, None if words is None else words + tags + 1, tags

    @staticmethod
    def _scores_of(shapes: Any) -> list[Any]:
        return _sizes(shapes[0] if isinstance(shapes[0], list | tuple | tf.TensorShape) else shapes)


@_register
class Tags(keras.layers.Layer):  # type: ignore[misc]
    """The best tags of a CRF's output: 1 at each word's tag (rows, words, tags); nothing beyond the last word."""

    def call(self, inputs: Any) -> Any:
        """Return the tags."""
        scores, transitions, lengths = unpack(inputs)
        tags = tf.one_hot(best_tags(scores, transitions, lengths), _sizes(inputs.shape)[-1], dtype=inputs.dtype)
        return tags * _real(scores, lengths)[:, :, None]

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the shape of the output."""
        rows, height, tags = _sizes(input_shape)
        return rows, None if height is None else height - tags - 1, tags


@_register
def crf_loss(y_true: Any, y_pred: Any) -> Any:
    """Return for each row how unlikely its tags are: the negative logarithm of their probability, 0 without words."""
    scores, transitions, lengths = unpack(y_pred)
    tags = tf.one_hot(_indices(y_true, scores), _sizes(y_pred.shape)[-1], dtype=scores.dtype)
    tags *= _real(scores, lengths)[:, :, None]
    alone = tf.reduce_sum(tags * scores, [1, 2])
    pairs = tf.reduce_sum(tf.matmul(tags[:, :-1], transitions) * tags[:, 1:], [1, 2])
    unlikely = log_partition(scores, transitions, lengths) - alone - pairs
    return tf.where(lengths > 0, unlikely, tf.zeros_like(unlikely))


@_register
def crf_accuracy(y_true: Any, y_pred: Any) -> Any:
    """Return for each row the share of its words whose best tag is the right one; 0 without words."""
    scores, transitions, lengths = unpack(y_pred)
    real = _real(scores, lengths)
    right = tf.cast(tf.equal(best_tags(scores, transitions, lengths), _indices(y_true, scores)), scores.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(right * real, 1), tf.reduce_sum(real, 1))


def unpack(outputs: Any) -> tuple[Any, Any, Any]:
    """Return the parts of an output of the layer: scores, the transitions of each row, and the words of each row."""
    tags = _sizes(outputs.shape)[-1]
    lengths = tf.cast(tf.round(outputs[:, -1, 0]), tf.int32)
    return outputs[:, : -tags - 1], outputs[:, -tags - 1 : -1], lengths


def log_partition(scores: Any, transitions: Any, lengths: Any) -> Any:
    """Return for each row the logarithm of the sum over all tags of the exponential of their score."""

    def step(state: Any, place: Any) -> Any:
        after = tf.reduce_logsumexp(state[:, :, None] + transitions, 1) + tf.gather(scores, place, axis=1)
        return tf.where(_moves(place, lengths), after, state)

    return tf.reduce_logsumexp(tf.foldl(step, tf.range(tf.shape(scores)[1]), scores[:, 0]), 1)


def best_tags(scores: Any, transitions: Any, lengths: Any) -> Any:
    """Return for each row the tags (rows, words) with the highest score; beyond the last word its tag is repeated."""
    same = tf.zeros_like(scores[:, 0], tf.int32) + tf.range(_sizes(scores.shape)[-1])
    places = tf.range(tf.shape(scores)[1])

    def forward(state: Any, place: Any) -> Any:
        paths = state[0][:, :, None] + transitions
        after = tf.reduce_max(paths, 1) + tf.gather(scores, place, axis=1)
        moves = _moves(place, lengths)
        return tf.where(moves, after, state[0]), tf.where(moves, tf.argmax(paths, 1, tf.int32), same)

    def backward(tags: Any, origin: Any) -> Any:
        return tf.gather(origin, tags, batch_dims=1)

    best, origins = tf.scan(forward, places, (scores[:, 0], same))
    last = tf.argmax(best[-1], 1, tf.int32)
    earlier = tf.scan(backward, origins, last, reverse=True)  # the first one is of no word
    return tf.transpose(tf.concat([earlier[1:], tf.reshape(last, [1, -1])], 0))


def _sizes(shape: Any) -> list[Any]:
    """Return a shape as numbers: in graphs of TensorFlow 1, its items are Dimensions."""
    sizes: list[Any] = tf.TensorShape(shape).as_list()
    return sizes


def _moves(place: Any, lengths: Any) -> Any:
    """Say for each row whether there is a word at a place, and one before it."""
    return ((place > 0) & (place < lengths))[:, None]


def _real(scores: Any, lengths: Any) -> Any:
    """Return 1 for each word of a row, and 0 beyond its last one."""
    return tf.sequence_mask(lengths, tf.shape(scores)[1], scores.dtype)


def _indices(tags: Any, scores: Any) -> Any:
    """Return tags as whole numbers (rows, words); they may be (rows, words, 1), or one-hot (rows, words, tags)."""
    cells = tf.reshape(tags, tf.concat([tf.shape(scores)[:2], [-1]], 0))  # Keras in a graph knows no shape of them
    single = tf.equal(tf.shape(cells)[2], 1)
    return tf.where(single, tf.cast(cells[:, :, 0], tf.int32), tf.argmax(cells, 2, tf.int32))
