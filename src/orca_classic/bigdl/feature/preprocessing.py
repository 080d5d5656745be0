"""Preprocessing: from the cells of a column to the model's tensors. Owns chains, and tensors made of numbers.

A preprocessing works on many rows at a time: an array (rows, ...), a tuple of arrays if the model has several
inputs, or a list of ImageFeatures. `read` takes a column of a Spark DataFrame, on the workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from orca.errors import ArgumentError, DataError, KnownArguments
from orca.rows.arrow import to_arrays

__all__ = [
    "ArrayToTensor", "BigDLAdapter", "ChainedPreprocessing", "FeatureLabelPreprocessing", "FeatureToTupleAdapter",
    "MLlibVectorToTensor", "Preprocessing", "SampleToMiniBatch", "ScalarToTensor", "SeqToMultipleTensors",
    "SeqToTensor", "TensorToSample", "ToTuple",
]  # fmt: skip


@dataclass(frozen=True)
class Preprocessing(KnownArguments):
    """A step on the way from data to tensors; this one changes nothing. Calling it applies it to data.

    Attributes:
        grows: Whether its results take much more memory than its rows, so that few rows should be read at a time.
        draws: Whether it draws random numbers: then each pass over the data may see other rows.
    """

    grows: ClassVar[bool] = False
    draws: ClassVar[bool] = False

    def apply(self, rows: Any) -> Any:
        """Return the rows after this step."""
        return rows

    def read(self, column: Any, name: str) -> Any:
        """Return the tensors of a column's rows."""
        return self.apply(to_arrays(column, name))

    def __call__(self, data: Any) -> Any:
        """Apply it to data with a `transform` of its own (an ImageSet, a TextSet), or to rows."""
        return data.transform(self) if hasattr(data, "transform") else self.apply(data)

    def seeded(self, seed: int) -> Preprocessing:
        """Return it with other random numbers."""
        return self


@dataclass(frozen=True)
class ChainedPreprocessing(Preprocessing):
    """Several steps, one after the other.

    Example:
        >>> ChainedPreprocessing([SeqToTensor([2, 2]), ToTuple()]).apply(np.arange(8.0).reshape(2, 4)).shape
        (2, 2, 2)
    """

    transformers: Sequence[Preprocessing]

    def __post_init__(self) -> None:
        wrong = [step for step in self.transformers if not isinstance(step, Preprocessing)]
        if wrong or not self.transformers:
            raise ArgumentError(
                "ChainedPreprocessing takes a list of preprocessing steps; got "
                f"{type(wrong[0]).__name__ if wrong else 'none'}. Pass [first, second, ...]."
            )

    @property
    def grows(self) -> bool:  # type: ignore[override]
        """Say whether one of the steps grows."""
        return any(step.grows for step in self.transformers)

    @property
    def draws(self) -> bool:  # type: ignore[override]
        """Say whether one of the steps draws random numbers."""
        return any(step.draws for step in self.transformers)

    def apply(self, rows: Any) -> Any:
        """Return the rows after all steps."""
        return reduce(lambda rows, step: step.apply(rows), self.transformers, rows)

    def read(self, column: Any, name: str) -> Any:
        """Return the tensors of a column's rows."""
        first, *others = self.transformers
        return reduce(lambda rows, step: step.apply(rows), others, first.read(column, name))

    def seeded(self, seed: int) -> ChainedPreprocessing:
        """Return it with other random numbers, different ones for each step."""
        return replace(self, transformers=[step.seeded(seed + at) for at, step in enumerate(self.transformers)])


@dataclass(frozen=True)
class SeqToTensor(Preprocessing):
    """Numbers, arrays or ML vectors as tensors of a size; unless given, their own size, or 1 for a number.

    Args:
        size: The size of the tensor of a row.
    """

    size: Sequence[int] = ()

    def apply(self, rows: Any) -> Any:
        """Return float tensors (rows, *size)."""
        if not isinstance(rows, np.ndarray):
            raise DataError(f"{type(self).__name__} makes tensors of numbers; got {_words(rows)}.")
        if rows.dtype.kind not in "biuf":
            example = f" such as {rows.flat[0]!r}" if rows.size else ""
            raise DataError(
                f"{type(self).__name__} makes tensors of numbers; got values{example} ({rows.dtype}). "
                "Turn them into numbers first, for instance with StringIndexer or a cast."
            )
        numbers = rows.astype(np.float32, copy=False)
        size = tuple(self.size) or numbers.shape[1:] or (1,)
        each = math.prod(numbers.shape[1:])
        if len(rows) and math.prod(size) != each:
            raise DataError(
                f"{type(self).__name__}({list(self.size)}) makes tensors of {math.prod(size)} numbers; got rows of "
                f"{each}. Give it the size that the rows have."
            )
        return numbers.reshape(len(rows), *size)


@dataclass(frozen=True)
class ArrayToTensor(SeqToTensor):
    """Arrays as tensors of a size."""


@dataclass(frozen=True)
class MLlibVectorToTensor(SeqToTensor):
    """ML vectors as tensors of a size."""


@dataclass(frozen=True)
class ScalarToTensor(Preprocessing):
    """Numbers as tensors of one number."""

    def apply(self, rows: Any) -> Any:
        """Return float tensors (rows, 1)."""
        return SeqToTensor((1,)).apply(rows)


@dataclass(frozen=True)
class SeqToMultipleTensors(Preprocessing):
    """The numbers of a row as several tensors, for a model with several inputs.

    Args:
        size: The size of each tensor.

    Example:
        >>> [part.shape for part in SeqToMultipleTensors([[2], [3]]).apply(np.zeros((4, 5)))]
        [(4, 2), (4, 3)]
    """

    size: Sequence[Sequence[int]] = ()

    def apply(self, rows: Any) -> Any:
        """Return a tuple of float tensors."""
        sizes = [math.prod(size) for size in self.size]
        flat = SeqToTensor((sum(sizes),)).apply(rows)
        parts = np.split(flat, np.cumsum(sizes)[:-1], axis=1)
        return tuple(part.reshape(len(flat), *size) for part, size in zip(parts, self.size, strict=True))


@dataclass(frozen=True)
class FeatureLabelPreprocessing(Preprocessing):
    """A preprocessing of features and one of labels, for `setSamplePreprocessing`."""

    feature_transformer: Preprocessing
    label_transformer: Preprocessing

    def apply(self, rows: Any) -> Any:
        """Apply the preprocessing of features, as there are no labels here."""
        return self.feature_transformer.apply(rows)

    def read(self, column: Any, name: str) -> Any:
        """Return the tensors of a column's rows."""
        return self.feature_transformer.read(column, name)


@dataclass(frozen=True)
class TensorToSample(Preprocessing):
    """Tensors as samples: models take tensors here, so nothing changes."""


@dataclass(frozen=True)
class ToTuple(Preprocessing):
    """Features as pairs of features and labels: labels have a column of their own here, so nothing changes."""


@dataclass(frozen=True)
class SampleToMiniBatch(Preprocessing):
    """Samples as batches: the feed of each worker makes batches, so nothing changes."""

    batch_size: int = 1


@dataclass(frozen=True)
class FeatureToTupleAdapter(Preprocessing):
    """A preprocessing of features among those of pairs."""

    sample_transformer: Preprocessing = field(default_factory=Preprocessing)

    def apply(self, rows: Any) -> Any:
        """Apply the preprocessing."""
        return self.sample_transformer.apply(rows)


@dataclass(frozen=True)
class BigDLAdapter(Preprocessing):
    """A transform of `bigdl.transform.vision.image` among preprocessing steps."""

    bigdl_transformer: Any = field(default_factory=Preprocessing)

    def apply(self, rows: Any) -> Any:
        """Apply the transform."""
        transform = self.bigdl_transformer
        return transform.apply(rows) if hasattr(transform, "apply") else [transform.transform(row) for row in rows]


def preprocessing_of(value: Any, what: str) -> Preprocessing | None:
    """Return a user's value as a preprocessing: one of ours, a size such as [2], or several sizes such as [[2], [3]].

    Raises:
        ArgumentError: It is none of them.
    """
    if value is None or isinstance(value, Preprocessing):
        return value
    sizes = value if isinstance(value, list | tuple) else [value]
    if sizes and all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        return SeqToTensor(tuple(sizes))
    if sizes and all(isinstance(size, list | tuple) for size in sizes):
        return SeqToMultipleTensors(tuple(tuple(size) for size in sizes))
    raise ArgumentError(
        f"{what} must be a Preprocessing, a size as [2], or a list of sizes as [[2], [3]]; got {value!r}."
    )


def _words(rows: Any) -> str:
    if isinstance(rows, tuple):
        return f"{len(rows)} tensors a row"
    return "images" if isinstance(rows, list) else type(rows).__name__
