"""A progress bar, as bigdl.orca.learn.pytorch.callbacks.tqdm names it."""

from orca.callbacks import TqdmCallback
from orca_classic.zoo.callbacks import is_tqdm_exists

__all__ = ["TqdmCallback", "is_tqdm_exists"]
