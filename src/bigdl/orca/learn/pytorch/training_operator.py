"""Training in the user's own words, as bigdl.orca.learn.pytorch.training_operator names it."""

from orca.operator import __getattr__  # TrainingOperator, on first use

__all__ = ["TrainingOperator"]  # noqa: F822
