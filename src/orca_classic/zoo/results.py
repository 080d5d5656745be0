"""Results: the numbers of fits and evaluations as older programs read them. Owns floats with the methods of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np


class Result(float):
    """A number of a fit or an evaluation: a float that can also be read as a tensor without dimensions.

    Example:
        >>> accuracy = Result(0.75)
        >>> accuracy.data.item(), round(accuracy, 1), accuracy > 0.7
        (0.75, 0.8, True)
    """

    @property
    def data(self) -> Result:
        """The number itself."""
        return self

    def item(self) -> float:
        """Return it as a plain float."""
        return float(self)

    def detach(self) -> Result:
        """Return it unchanged."""
        return self

    cpu = detach

    def numpy(self) -> np.ndarray:
        """Return it as an array without dimensions, in single precision as tensors have it."""
        return np.array(self, np.float32)


def as_results(statistics: Any) -> Any:
    """Return statistics, dicts in lists, with each float in them as a Result."""
    if isinstance(statistics, list):
        return [as_results(each) for each in statistics]
    if isinstance(statistics, dict):
        return {key: as_results(value) for key, value in statistics.items()}
    return Result(statistics) if type(statistics) is float else statistics
