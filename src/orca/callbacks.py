"""Callbacks: the public names. `from orca.callbacks import EarlyStopping`."""

from orca.core.callbacks.callback import Callback
from orca.core.callbacks.checkpoint import ModelCheckpoint
from orca.core.callbacks.maxsteps import MaxstepsCallback
from orca.core.callbacks.rates import LearningRateMonitor
from orca.core.callbacks.stopping import EarlyStopping
from orca.frameworks.torch.hooks import MainCallback
from orca.report.callbacks.mlflow import MLflowLogger
from orca.report.callbacks.tensorboard import TensorBoardCallback
from orca.report.callbacks.tqdm import TqdmCallback
from orca.report.callbacks.wandb import WandbLoggerCallback

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
