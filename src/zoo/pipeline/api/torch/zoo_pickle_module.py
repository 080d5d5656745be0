"""A pickle module for torch.save and torch.load, as zoo.pipeline.api.torch.zoo_pickle_module names it."""

from orca_classic.nnframes.parts import Pickler, Unpickler, dump, dumps, load, loads

__all__ = ["Pickler", "Unpickler", "dump", "dumps", "load", "loads"]
