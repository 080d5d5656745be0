"""A progress bar, as bigdl.orca.learn.pytorch.callbacks.tqdm names it."""

from orca.frameworks.torch.callbacks import TqdmCallback
from orca.frameworks.torch.callbacks.older import is_tqdm_exists

__all__ = ["TqdmCallback", "is_tqdm_exists"]
