"""Spark estimators: the classes that BigDL's Estimators on Spark had, for programs that name them."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

from orca.estimators.keras import KerasEstimator
from orca.estimators.torch import TorchEstimator
from orca_classic.zoo.bigdl import Estimator

__all__ = ["PyTorchPySparkEstimator", "SparkTFEstimator"]


class PyTorchPySparkEstimator(metaclass=ABCMeta):  # noqa: B024 (its instances are those of a registered class)
    """An Estimator of a PyTorch model on Spark: `Estimator.from_torch` under its older arguments.

    Args:
        model_creator: As `model` of from_torch.
        optimizer_creator: As `optimizer` of from_torch.
        loss_creator: As `loss` of from_torch.
        **options: Other arguments of from_torch.
    """

    def __new__(
        cls, *, model_creator: Any = None, optimizer_creator: Any = None, loss_creator: Any = None, **options: Any
    ) -> Any:
        """Return the Estimator."""
        return Estimator.from_torch(
            model=model_creator, optimizer=optimizer_creator, loss=loss_creator, backend="spark", **options
        )


class SparkTFEstimator(metaclass=ABCMeta):  # noqa: B024 (its instances are those of a registered class)
    """An Estimator of a Keras model on Spark.

    Args:
        model_creator: As of `Estimator.from_keras`.
        **options: Other arguments of from_keras.
    """

    def __new__(cls, model_creator: Any = None, **options: Any) -> Any:
        """Return the Estimator."""
        return Estimator.from_keras(model_creator=model_creator, backend="spark", **options)


PyTorchPySparkEstimator.register(TorchEstimator)  # for isinstance
SparkTFEstimator.register(KerasEstimator)
