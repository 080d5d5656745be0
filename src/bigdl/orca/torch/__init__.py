"""Torch wrappers, as bigdl.orca.torch names them."""

from orca_classic.nnframes.wrappers import TorchLoss, TorchModel, TorchOptim

__all__ = ["TorchLoss", "TorchModel", "TorchOptim"]
