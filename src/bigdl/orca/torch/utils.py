"""Small things of the torch wrappers, as bigdl.orca.torch.utils names them."""

from orca_classic.nnframes.parts import DistributedSequentialSampler, trainable_param

__all__ = ["DistributedSequentialSampler", "trainable_param"]
