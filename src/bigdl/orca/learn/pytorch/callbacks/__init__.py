"""Callbacks of PyTorch models, as bigdl.orca.learn.pytorch.callbacks names them."""

from orca.callbacks import *

__all__ = [
    "Callback", "EarlyStopping", "LearningRateMonitor", "MLflowLogger", "MainCallback", "MaxstepsCallback",
    "ModelCheckpoint", "TensorBoardCallback", "TqdmCallback", "WandbLoggerCallback",
]  # fmt: skip
