"""TensorFlow graphs: programs of TensorFlow 1, with placeholders, sessions and optimizers that apply gradients."""
