"""Keras: the Learner of Keras models, those of Keras 3 on TensorFlow and those of tf_keras."""
