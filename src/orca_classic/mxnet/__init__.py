"""MXNet: the config of `Estimator.from_mxnet`. Owns its keys and their defaults."""

from __future__ import annotations

from typing import Any

__all__ = ["create_config"]


def create_config(
    optimizer: Any = "sgd",
    optimizer_params: dict[str, Any] | None = None,
    log_interval: int = 10,
    seed: int | None = None,
    extra_config: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the config that `Estimator.from_mxnet` takes and that all creators get.

    Args:
        optimizer: The name of an optimizer of MXNet; for a Gluon model also an `mx.optimizer.Optimizer`.
        optimizer_params: Its arguments; a learning rate of 0.01 unless given.
        log_interval: After how many steps to log the loss; 0 for never.
        seed: Seed of initial weights, order and dropout.
        extra_config: More entries, for your creators. `init` is the initializer of weights that the model's own creator
            leaves open.

    Returns:
        A dict of them all.

    Example:
        >>> create_config("adam", {"learning_rate": 0.02}, extra_config={"classes": 10})["classes"]
        10
    """
    if optimizer_params is None:
        optimizer_params = {"learning_rate": 0.01} if isinstance(optimizer, str) else {}
    options = {"optimizer": optimizer, "optimizer_params": optimizer_params, "log_interval": log_interval, "seed": seed}
    return options | (extra_config or {})


def __dir__() -> list[str]:
    return __all__
