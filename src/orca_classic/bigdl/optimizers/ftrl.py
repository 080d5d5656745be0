"""Ftrl: the FTRL-proximal rule, which torch lacks. Owns nothing else.

64 lines are less than a dependency on a library of optimizers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class FtrlOptimizer(torch.optim.Optimizer):
    """The optimizer that follows the regularized leader.

    n' = n + g * g; z = z + g + 2 * shrinkage * x - (n' ** -power - n ** -power) / rate * x;
    x = (sign(z) * l1 - z) / (n' ** -power / rate + 2 * l2) where |z| > l1, else 0.

    Args:
        params: The parameters, or groups of them.
        lr: The rate.
        power: The power of the sum of squared gradients by which the rate falls; at most 0.
        initial: The first value of that sum.
        l1: The strength of the L1 regularization.
        l2: The strength of the L2 regularization.
        shrinkage: The strength of an L2 regularization that is added to gradients alone.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        power: float = -0.5,
        initial: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        shrinkage: float = 0.0,
    ) -> None:
        super().__init__(params, dict(lr=lr, power=power, initial=initial, l1=l1, l2=l2, shrinkage=shrinkage))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all weights that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, group)
        return loss

    def _update(self, param: torch.Tensor, group: dict[str, Any]) -> None:
        state, grad, rate, power = self.state[param], param.grad, group["lr"], -group["power"]
        assert grad is not None
        if not state:
            state["squares"] = torch.full_like(param, group["initial"])
            state["linear"] = torch.zeros_like(param)
        squares, linear = state["squares"], state["linear"]
        before = squares**power
        squares.addcmul_(grad, grad)
        after = squares**power
        linear.add_(grad + 2 * group["shrinkage"] * param - (after - before) / rate * param)
        new = (linear.sign() * group["l1"] - linear) / (after / rate + 2 * group["l2"])
        param.copy_(torch.where(linear.abs() > group["l1"], new, torch.zeros_like(new)))
