"""Source: the user's data as shards for ranks. Owns the protocols between data kinds and engines, and the Batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

DEFAULT_BATCH = 32


@dataclass
class Batch:
    """One rank's part of one step.

    `rows` is how many true rows it has. A rank that has none to give in a step gets a template row with `rows == 0`:
    it takes part in the step with weight zero. `leader` is the first rank that has rows in this step. `weights` are
    the rows' weights (n,), where the data brings some; a template row's is zero. `shares` are the rows of each rank:
    the feed knows them without asking. `masses` are the rows' weights in the mean of a loss that does not count
    rows (n,); None where each counts as one. `quiet` says that reading it ran no code of the user's: then another
    thread may read the next ones.
    """

    x: Any
    y: Any
    rows: int
    step_rows: int
    leader: int = 0
    weights: Any = None
    shares: tuple[int, ...] = ()
    masses: Any = None
    quiet: bool = False


@dataclass(frozen=True)
class Columns:
    """The columns of tabular data: the model's inputs, the labels, the outputs and the weights.

    `weight` is the column that says how much each row counts in the loss.
    """

    features: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    weight: str | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the columns that travel beside the features: the labels, and the weight as the last."""
        return self.labels if self.weight is None else (*self.labels, self.weight)


@dataclass(frozen=True)
class DataSpec:
    """The user's wishes about reading their data.

    Attributes:
        columns: The columns of tabular data.
        labelled: Whether labels are needed (fit, evaluate) or not (predict).
        batch_size: Rows of a step over all ranks; None where the user gave none.
        config: The argument of data creators.
        lock: The name of a temporary file by which creators on one node run one after the other (they may download to
            the same place); "" lets them run together.
        whole: Whether creators make whole steps (of batch_size rows) that are cut for the ranks, not a rank's share.
        seed: Seed of the creators' draws, so that all ranks draw alike.
        weighted: Whether rows come with weights; always where a column of them is named.
        numbers: Whether the model takes numbers alone, no texts and no dates.
        steps: How many batches of data that comes in batches predict answers; None for all.
        vectors: Whether Spark gets 1-D predictions as ML vectors, several of them as an array, and dicts of them as
            structs: else arrays, a column each.
        unit_columns: Whether a column of numbers in a Ray Dataset is a feature of the shape (rows, 1), not (rows,).
        readers: For columns of a Spark DataFrame, functions `(arrow column, name)` that return the arrays of its rows,
            where they are not just its numbers.
    """

    columns: Columns = Columns()
    labelled: bool = True
    batch_size: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    lock: str = ""
    whole: bool = False
    seed: int = 0
    weighted: bool = False
    numbers: bool = False
    steps: int | None = None
    vectors: bool = False
    unit_columns: bool = False
    readers: Mapping[str, Callable[[Any, str], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weighted", self.weighted or self.columns.weight is not None)


class Rows(Protocol):
    """One rank's rows, readable by index, once per epoch in a new order.

    `shared` rows can all be read by every rank (a map-style dataset): each step is cut among the ranks.
    Other rows are this rank's own: each rank gives to a step in proportion to its rows.
    `quiet` rows are read without code of the user's.
    The y of rows with weights is the result of `orca.core.feed.weigh` for labels and weights.
    """

    count: int
    shared: bool
    quiet: bool
    batch_size: int | None
    drop_last: bool

    def order(self, generator: np.random.Generator, shuffle: bool) -> np.ndarray:
        """Return the indices of one epoch, in their order."""

    def read(self, indices: Iterable[np.ndarray]) -> Iterator[tuple[Any, Any]]:
        """Yield (x, y) for each array of indices."""

    def close(self) -> None:
        """Free files and memory maps."""


class Stream(Protocol):
    """Data that only flows: whole steps, in the same order on every rank, each of which takes its part of them.

    `steps` is how many steps one pass has, None where nobody knows before its end. A stream whose `own` is true gives
    batches of this rank alone: those that the ranks give at a time make a step.
    """

    steps: int | None

    def batches(self, rank: int, ranks: int) -> Iterator[Batch]:
        """Yield this rank's part of every step of one more pass over the data."""

    def skip(self, passes: int) -> None:
        """Leave out so many passes, which an interrupted run has read."""

    def close(self) -> None:
        """Free all resources."""


class Draws(Protocol):
    """Data that draws its own steps, of any size, and reads no more than those: a batch sampler's batches.

    `steps` is how many steps an epoch has.
    """

    steps: int

    def draw(self, generator: np.random.Generator, rank: int, ranks: int, first_step: int) -> Iterator[Batch]:
        """Yield this rank's part of every step from first_step on, drawn from a generator that all ranks have alike."""

    def close(self) -> None:
        """Free all resources."""


Items = Iterator[Any]
Open = Callable[[Items, Path], Mapping[str, Rows | Stream | Draws]]


@dataclass(frozen=True)
class Shards:
    """Data cut for ranks: natively for the engine that already holds the bytes, portably for any other.

    Attributes:
        open: Runs on a rank: turns its items into rows by part ("train", "valid"); spools into the folder it is given.
        portable: Returns picklable pieces, each a callable that gives items; any engine deals them out over its ranks.
        home: The engine that takes `native` as it is ("spark", "ray"), or None.
        native: The data in the home engine's own form; for Spark a DataFrame of rows, or a list of pieces that its
            tasks can read.
        release: Called after the run: removes the files that `portable` left behind.
    """

    open: Open
    portable: Callable[[], list[Callable[[], Items]]]
    home: str | None = None
    native: Any = None
    release: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True)
class Extent:
    """The size of data as far as it is known without reading it; None where it would take a job to find out."""

    rows: int | None = None
    bytes: int | None = None


class Source(Protocol):
    """One kind of data, recognised at the door and never asked for its type again.

    `batch_size` counts the rows of a step over all ranks; None where every rank's data brings its own.
    """

    batch_size: int | None

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Say whether this kind recognises the data; looks in sys.modules, imports nothing."""

    def extent(self) -> Extent:
        """Return the rows of an epoch and the bytes they take, as far as they are known; starts no job."""

    def shards(self, ranks: int, valid: Any = None) -> Shards:
        """Cut the data (and validation data of the same kind) for this many ranks."""

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Apply a prediction task to every row and answer in the kind the data came in."""
