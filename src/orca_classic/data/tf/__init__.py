"""XShards as a dataset of TensorFlow."""
