"""Numbers for TensorBoard, as bigdl.orca.learn.pytorch.callbacks.tensorboard names them."""

from orca.frameworks.torch.callbacks import TensorBoardCallback

__all__ = ["TensorBoardCallback"]
