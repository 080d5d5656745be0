"""Words: a layer's output for each word of a text. Owns how words become rows, for the Keras of this process."""

from __future__ import annotations

from typing import Any

from orca_classic.data.tf.loading import tensorflow

tf = tensorflow()
keras: Any = tf.keras


@keras.utils.register_keras_serializable("orca")
class EachWord(keras.layers.TimeDistributed):  # type: ignore[misc]
    """A layer that another one is called in, with all words of all rows (rows, words, ...) as its rows.

    The layer of Keras vectorizes the other one where the number of words is unknown, which takes long for LSTMs.
    """

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Return the layer's outputs (rows, words, ...)."""
        words = tf.reshape(inputs, [-1, *inputs.shape[2:]])
        outputs = self.layer(words, training=training)
        return tf.reshape(outputs, tf.concat([tf.shape(inputs)[:2], tf.shape(outputs)[1:]], 0))
