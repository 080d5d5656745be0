"""Torch wrappers, as zoo.pipeline.api.torch names them."""

from orca_classic.nnframes.wrappers import TorchLoss, TorchModel, TorchOptim

__all__ = ["TorchLoss", "TorchModel", "TorchOptim"]
