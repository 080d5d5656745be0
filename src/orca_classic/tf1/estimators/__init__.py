"""The Estimators of TensorFlow 1 programs: of a graph, and of a Keras model."""
