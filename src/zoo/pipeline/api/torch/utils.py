"""Small things of the torch wrappers, as zoo.pipeline.api.torch.utils names them."""

from orca_classic.nnframes.parts import DistributedSequentialSampler, trainable_param

__all__ = ["DistributedSequentialSampler", "trainable_param"]
