"""TensorFlow 1: graphs of tf.compat.v1, their Estimators, and TFPark."""
