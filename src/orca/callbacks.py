"""Callbacks: the public names. `from orca.callbacks import EarlyStopping`."""

from orca.frameworks.torch.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    MainCallback,
    MaxstepsCallback,
    MLflowLogger,
    ModelCheckpoint,
    TensorBoardCallback,
    TqdmCallback,
    WandbLoggerCallback,
)

__all__ = [
    "Callback",
    "EarlyStopping",
    "LearningRateMonitor",
    "MLflowLogger",
    "MainCallback",
    "MaxstepsCallback",
    "ModelCheckpoint",
    "TensorBoardCallback",
    "TqdmCallback",
    "WandbLoggerCallback",
]
