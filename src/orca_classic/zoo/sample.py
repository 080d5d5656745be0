"""Sample: a row as BigDL programs hold it. Owns Sample, JTensor, EvaluatedResult and the random numbers of RNG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.errors import ArgumentError

__all__ = ["RNG", "EvaluatedResult", "JTensor", "Sample"]


class JTensor:
    """An array of float32 as flat storage and a shape; a sparse one holds the places of its values too.

    Args:
        storage: The values, in one dimension after the other.
        shape: The size of each dimension.
        indices: The places of a sparse tensor's values, counted from 0: an array for each dimension.
    """

    def __init__(self, storage: Any, shape: Any, bigdl_type: str = "float", indices: Any = None) -> None:
        self.storage = np.asarray(storage, dtype=np.float32).ravel()
        self.shape = np.asarray(shape, dtype=np.int32).ravel()
        self.indices = None if indices is None else np.atleast_2d(np.asarray(indices, dtype=np.int32))
        self.bigdl_type = bigdl_type
        places = (len(self.shape), len(self.storage))
        if self.indices is not None and self.indices.shape != places:
            raise ArgumentError(
                f"the indices of a sparse JTensor are one array a dimension, of as many places as there are values: "
                f"{places}; got {self.indices.shape}."
            )
        if self.indices is None and len(self.storage) != np.prod(self.shape, dtype=np.int64):
            raise ArgumentError(
                f"a JTensor of shape {tuple(self.shape.tolist())} holds {np.prod(self.shape, dtype=np.int64)} values; "
                f"got {len(self.storage)}. Pass storage and shape of the same array."
            )

    @classmethod
    def from_ndarray(cls, a_ndarray: Any, bigdl_type: str = "float") -> Any:
        """Return the JTensor of an array; None stays None.

        Example:
            >>> JTensor.from_ndarray(np.eye(2)).to_ndarray().tolist()
            [[1.0, 0.0], [0.0, 1.0]]
        """
        if a_ndarray is None:
            return None
        array = _numbers(a_ndarray, "JTensor.from_ndarray")
        return cls(array, array.shape, bigdl_type)

    @classmethod
    def sparse(cls, a_ndarray: Any, i_ndarray: Any, shape: Any, bigdl_type: str = "float") -> JTensor:
        """Return a sparse JTensor of values, their places (an array for each dimension) and the whole shape."""
        return cls(a_ndarray, shape, bigdl_type, i_ndarray)

    def to_ndarray(self) -> np.ndarray[Any, Any]:
        """Return the array; a sparse tensor's with zeros where it has no values."""
        shape = tuple(self.shape.tolist())
        if self.indices is None:
            return self.storage.reshape(shape)
        dense = np.zeros(shape, dtype=np.float32)
        np.add.at(dense, tuple(self.indices), self.storage)
        return dense

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JTensor):
            return NotImplemented
        return np.array_equal(self.shape, other.shape) and np.array_equal(self.to_ndarray(), other.to_ndarray())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"JTensor: storage: {self.storage}, shape: {self.shape}" + (
            "" if self.indices is None else f", indices: {self.indices}"
        )


class Sample:
    """A row of training data: one or more feature tensors, and one or more label tensors.

    Example:
        >>> sample = Sample.from_ndarray(np.zeros((2, 3)), 4)
        >>> sample.feature.to_ndarray().shape, sample.label.to_ndarray().tolist()
        ((2, 3), [4.0])
    """

    def __init__(self, features: Any, labels: Any, bigdl_type: str = "float") -> None:
        self.features: list[JTensor] = list(features) if isinstance(features, Sequence) else [features]
        self.labels: list[JTensor] = list(labels) if isinstance(labels, Sequence) else [labels]
        self.bigdl_type = bigdl_type
        others = {type(tensor).__name__ for tensor in self.features + self.labels if not isinstance(tensor, JTensor)}
        if others:
            raise ArgumentError(
                f"a Sample is made of JTensors; got {', '.join(sorted(others))}. Use Sample.from_ndarray for arrays."
            )

    @classmethod
    def from_ndarray(cls, features: Any, labels: Any, bigdl_type: str = "float") -> Sample:
        """Return the Sample of arrays and numbers, each a single one or a list of several.

        Args:
            features: An array, or a list of arrays for a model with several inputs.
            labels: An array or a number, or a list of them. A number is an array of one.
        """
        return cls(_tensors(features, "features"), _tensors(labels, "labels"), bigdl_type)

    @classmethod
    def from_jtensor(cls, features: Any, labels: Any, bigdl_type: str = "float") -> Sample:
        """Return the Sample of JTensors, each a single one or a list of several."""
        return cls(features, labels, bigdl_type)

    @property
    def feature(self) -> JTensor:
        """The first feature tensor."""
        return self.features[0]

    @property
    def label(self) -> JTensor:
        """The first label tensor."""
        return self.labels[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sample):
            return NotImplemented
        return self.features == other.features and self.labels == other.labels

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Sample: features: {self.features}, labels: {self.labels}"


class EvaluatedResult:
    """A validation method's answer: its value, the rows it is of, and the method's name.

    Example:
        >>> str(EvaluatedResult(0.5, 10, "Top1Accuracy"))
        'Evaluated result: 0.5, total_num: 10, method: Top1Accuracy'
    """

    def __init__(self, result: float, total_num: int, method: str) -> None:
        self.result = result
        self.total_num = total_num
        self.method = method

    def __str__(self) -> str:
        return f"Evaluated result: {self.result}, total_num: {self.total_num}, method: {self.method}"

    __repr__ = __str__


class RNG:
    """BigDL's random numbers: a Mersenne Twister, whose uniform numbers take 32 bits each."""

    def __init__(self, bigdl_type: str = "float") -> None:
        self._generator = np.random.RandomState()

    def set_seed(self, seed: int) -> None:
        """Begin the numbers of a seed."""
        self._generator = np.random.RandomState(seed)

    def uniform(self, a: float, b: float, size: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return an array of the given shape, of float32 numbers between a and b.

        Example:
            >>> rng = RNG()
            >>> rng.set_seed(100)
            >>> rng.uniform(0.1, 0.2, [2]).round(6).tolist() == np.float32([0.15434, 0.167116]).tolist()
            True
        """
        draws = self._generator.randint(0, 2**32, size=tuple(size), dtype=np.uint32)
        return np.asarray(draws * 2.0**-32 * (b - a) + a, dtype=np.float32)


def _tensors(values: Any, what: str) -> list[JTensor]:
    several = isinstance(values, Sequence) and not isinstance(values, str)
    arrays = [_numbers(value, f"the {what} of Sample.from_ndarray") for value in (values if several else [values])]
    return [JTensor.from_ndarray(np.atleast_1d(array)) for array in arrays]


def _numbers(value: Any, place: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{place} must be an array or a number; got {type(value).__name__} {value!r:.60}."
        ) from error
