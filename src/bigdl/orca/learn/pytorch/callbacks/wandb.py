"""Runs of Weights & Biases, as bigdl.orca.learn.pytorch.callbacks.wandb names them."""

from orca.callbacks import WandbLoggerCallback

__all__ = ["WandbLoggerCallback"]
