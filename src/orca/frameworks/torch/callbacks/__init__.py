"""Callbacks: what can hook into a run of torch."""

from orca.frameworks.torch.callbacks.callback import Callback, MainCallback
from orca.frameworks.torch.callbacks.checkpoint import ModelCheckpoint
from orca.frameworks.torch.callbacks.maxsteps import MaxstepsCallback
from orca.frameworks.torch.callbacks.mlflow import MLflowLogger
from orca.frameworks.torch.callbacks.rates import LearningRateMonitor
from orca.frameworks.torch.callbacks.stopping import EarlyStopping
from orca.frameworks.torch.callbacks.tensorboard import TensorBoardCallback
from orca.frameworks.torch.callbacks.tqdm import TqdmCallback
from orca.frameworks.torch.callbacks.wandb import WandbLoggerCallback

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
