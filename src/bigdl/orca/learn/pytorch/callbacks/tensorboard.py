"""Numbers for TensorBoard, as bigdl.orca.learn.pytorch.callbacks.tensorboard names them."""

from orca.callbacks import TensorBoardCallback

__all__ = ["TensorBoardCallback"]
