"""PyTorch: the learner, how replicas agree, how targets meet outputs, how weights are kept."""
