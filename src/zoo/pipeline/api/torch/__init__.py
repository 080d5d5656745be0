"""Torch wrappers, as zoo.pipeline.api.torch names them."""

from orca.nnframes.wrappers import TorchLoss, TorchModel, TorchOptim

__all__ = ["TorchLoss", "TorchModel", "TorchOptim"]
