from dataclasses import dataclass

import numpy as np

from orca.sources.arrays import ArraySource


@dataclass(frozen=True)
class Trials:
    """Observations and whether each was a success: a kind of data that Orca does not know."""

    observations: np.ndarray
    successes: np.ndarray


class TrialsSource(ArraySource):
    """Trials as rows: observations are the features, successes the labels."""

    def __init__(self, data, spec):
        super().__init__((data.observations, data.successes) if spec.labelled else data.observations, spec)

    @classmethod
    def wraps(cls, data):
        return isinstance(data, Trials)
