"""Callbacks of PyTorch models, as bigdl.orca.learn.pytorch.callbacks names them."""

# ruff: noqa: F405
from orca.callbacks import *

__all__ = [
    "Callback", "EarlyStopping", "LearningRateMonitor", "MLflowLogger", "MainCallback", "MaxstepsCallback",
    "ModelCheckpoint", "TensorBoardCallback", "TqdmCallback", "WandbLoggerCallback",
]  # fmt: skip
