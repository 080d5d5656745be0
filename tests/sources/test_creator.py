from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca.core.engine import Settings
from orca.core.feed import feed_of
from orca.core.source import DataSpec, Extent
from orca.engines.local import LocalEngine
from orca.errors import DataError, OrcaError, WorkerFailed
from orca.registry import source_of
from orca.sources.creator import ArrayRows, Creation, CreatorSource, one_at_a_time

pytest.importorskip("torch")
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from raised import raises

N = 10
ROWS = np.arange(N, dtype=np.float32)
X = ROWS[:, None] + np.array([0.0, 0.5], np.float32)
DATA = TensorDataset(torch.from_numpy(X), torch.from_numpy(ROWS))
STEPS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@dataclass(frozen=True)
class ReadAll:
    """Return a rank's labels, and the rows of the whole step, step by step of two epochs, of each part."""

    batch_size: int | None
    shuffle: bool = False

    def __call__(self, world: Any, rows: dict[str, Any], heartbeat: Any) -> dict[str, list[Any]]:
        feeds = {
            name: feed_of(part, world, self.batch_size, shuffle=self.shuffle, seed=3) for name, part in rows.items()
        }
        return {
            name: [[_told(batch) for batch in feed.epoch(epoch)] for epoch in (1, 2)] for name, feed in feeds.items()
        }


def _told(batch: Any) -> tuple[list[float], int]:
    x, y = np.asarray(batch.x)[: batch.rows], np.asarray(batch.y)[: batch.rows]
    np.testing.assert_array_equal(x[:, 1], y + 0.5)  # a row's features came with its label
    return y.tolist(), batch.step_rows


def steps_of(source: Any, ranks: int, shuffle: bool = False, part: str = "train", valid: Any = None) -> list[Any]:
    """Return the labels of every step over all ranks, epoch by epoch; each must have the rows it says."""
    job = ReadAll(source.batch_size, shuffle)
    results = LocalEngine(ranks).run(job, source.shards(ranks, valid), Settings(20))
    return [
        [_joined(step) for step in zip(*epoch, strict=True)]
        for epoch in zip(*(rank[part] for rank in results), strict=True)
    ]


def _joined(step: Any) -> list[float]:
    labels = [label for rank, _ in step for label in rank]
    assert {rows for _, rows in step} == {len(labels)}
    return labels


def spec(size: int | None = None, whole: bool = False, **config: Any) -> DataSpec:
    return DataSpec(batch_size=size, whole=whole, config=config)


def loader_of(batch_size: int, shuffle: bool = False) -> Any:
    return DataLoader(DATA, batch_size=batch_size, shuffle=shuffle)


class Flow(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(DATA)


def of_tf(config: dict[str, Any], batch_size: int) -> Any:
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((X, ROWS)).batch(batch_size)


KINDS: dict[str, Callable[..., Any]] = {
    "loader": lambda config, batch_size: loader_of(batch_size),
    "iterable": lambda config, batch_size: DataLoader(Flow(), batch_size=batch_size),
    "tf.data": of_tf,
    "arrays": lambda config, batch_size: (X, ROWS),
    "dict": lambda config: {"x": X, "y": ROWS},
}


# How it is called.


def test_creators_read_the_config_and_do_not_change_it() -> None:
    def creator(config: dict[str, Any]) -> Any:
        config["touched"] = True
        return loader_of(config["batch_size"] * config["factor"])

    given = {"factor": 2}
    source = source_of(creator, DataSpec(batch_size=4, config=given))
    assert [len(step) for step in steps_of(source, 2)[0]] == [8, 2]
    assert given == {"factor": 2}


def test_a_creator_for_whole_steps_gets_the_whole_batch_size() -> None:
    source = source_of(lambda config, batch_size: loader_of(batch_size), spec(4, whole=True))
    assert source.batch_size == 4
    assert source_of(KINDS["loader"], spec(whole=True)).batch_size == 32
    made = [Creation(KINDS["loader"], spec(4, whole), 0, 3).make().batch_size for whole in (False, True)]
    assert made == [2, 4]


def test_every_rank_has_a_share_even_of_a_small_batch() -> None:
    for epoch in steps_of(source_of(KINDS["loader"], spec(1)), 3):
        assert [len(step) for step in epoch] == [3, 3, 3, 1]


def test_creators_of_one_node_may_run_one_after_the_other() -> None:
    folder = Path(tempfile.mkdtemp())

    def creator(config: dict[str, Any], batch_size: int) -> Any:
        import time

        (folder / "busy").mkdir()  # fails where another creator is at work
        time.sleep(0.05)
        (folder / "busy").rmdir()
        return loader_of(batch_size)

    source = source_of(creator, DataSpec(batch_size=4, lock="orca-test.lock"))
    assert len(steps_of(source, 3)[0]) == 3
    assert not list(folder.iterdir())


def test_the_lock_of_creators_is_private_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with one_at_a_time("orca-x.lock"):
        [lock] = tmp_path.iterdir()
        assert lock.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.iterdir())
    kept = tmp_path / "kept"
    kept.write_text("content")
    (tmp_path / "orca-y.lock").symlink_to(kept)  # planted by someone who has foreseen the name
    with pytest.raises(OSError, match="symbolic links"), one_at_a_time("orca-y.lock"):
        raise AssertionError("it follows the link")
    assert kept.read_text() == "content"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to act as another user")
def test_a_lock_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "orca-x.lock").touch()
    os.chown(tmp_path / "orca-x.lock", 12345, 12345)
    with pytest.raises(OrcaError, match=r"orca-x\.lock belongs to another user"), one_at_a_time("orca-x.lock"):
        raise AssertionError("it trusts the file")


def test_creators_of_whole_steps_draw_alike_on_all_ranks() -> None:
    def creator(config: dict[str, Any], batch_size: int) -> Any:
        order = np.random.permutation(N)
        random.shuffle(held := list(order))
        held = np.array(held)[torch.randperm(N).numpy()]
        return X[held], ROWS[held]

    def drawn(seed: int, rank: int) -> list[float]:
        random.seed(rank)
        np.random.seed(rank)
        torch.manual_seed(rank)
        return Creation(creator, DataSpec(batch_size=4, whole=True, seed=seed), rank, 2).make().y.tolist()

    assert drawn(1, 0) == drawn(1, 1) != drawn(2, 0)
    assert sorted(drawn(1, 0)) == ROWS.tolist()


# What it may return.


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["loader", "tf.data", "arrays", "dict"])
def test_every_row_is_seen_once_in_steps_of_the_whole_batch_size(kind: str, whole: bool, ranks: int) -> None:
    source = source_of(KINDS[kind], spec(4, whole))
    assert isinstance(source, CreatorSource)
    assert steps_of(source, ranks) == [STEPS, STEPS]


@pytest.mark.parametrize("whole", [False, True])
def test_every_row_of_an_iterable_is_seen_once(whole: bool) -> None:
    for epoch in steps_of(source_of(KINDS["iterable"], spec(4, whole)), 2):
        assert [len(step) for step in epoch] == [4, 4, 2]
        assert sorted(chain(*epoch)) == ROWS.tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("whole", [True, False])
def test_a_batch_sampler_makes_steps_of_the_whole_batch_size(whole: bool, ranks: int) -> None:
    def creator(config: dict[str, Any], batch_size: int) -> Any:
        return DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), batch_size, False))

    assert steps_of(source_of(creator, spec(4, whole)), ranks) == [STEPS, STEPS]
    np.testing.assert_array_equal(source_of(creator, spec(4)).answer(Single(lambda x: x), LocalEngine(ranks)), X)


@dataclass(frozen=True)
class ReadWeights:
    """Return the (label, weight) of the rows that a rank sees."""

    def __call__(self, world: Any, rows: dict[str, Any], heartbeat: Any) -> list[Any]:
        feed = feed_of(rows["train"], world, 4, shuffle=True, seed=0, weighted=True)
        results = [(np.asarray(b.y).tolist(), np.asarray(b.weights).tolist()) for b in feed.epoch(1) if b.rows]
        return [pair for ys, weights in results for pair in zip(ys, weights, strict=True)]


def tf_weights(config: dict[str, Any], batch_size: int) -> Any:
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((X, ROWS, ROWS / 4)).batch(batch_size)


@pytest.mark.parametrize(
    "creator",
    [
        lambda config: (X, ROWS, ROWS / 4),
        lambda config: {"x": X, "y": ROWS, "weights": ROWS / 4},
        lambda config, batch_size: DataLoader(TensorDataset(*DATA.tensors, DATA.tensors[1] / 4), batch_size),
        tf_weights,
    ],
)
def test_what_a_creator_makes_may_have_weights(creator: Any) -> None:
    source = source_of(creator, DataSpec(batch_size=4, weighted=True))
    results = LocalEngine(2).run(ReadWeights(), source.shards(2), Settings(20))
    assert sorted(pair for rank in results for pair in rank) == [(y, y / 4) for y in ROWS.tolist()]
    answers = source_of(creator, DataSpec(batch_size=4, labelled=False, weighted=True)).answer(
        Single(doubled), LocalEngine(2)
    )
    np.testing.assert_array_equal(answers, X * 2)


def test_arrays_with_weights_are_answered_without_a_word_of_them() -> None:
    source = source_of(lambda config: (X, ROWS, ROWS / 4), DataSpec(batch_size=4, labelled=False))
    np.testing.assert_array_equal(source.answer(Single(doubled), LocalEngine(2)), X * 2)


def doubled(x: Any) -> Any:
    return x * 2


def test_arrays_are_shuffled_anew_every_epoch() -> None:
    first, second = steps_of(source_of(KINDS["arrays"], spec(4, whole=True)), 2, shuffle=True)
    assert sorted(chain(*first)) == sorted(chain(*second)) == ROWS.tolist()
    assert first != second and first != STEPS


def test_arrays_without_labels_are_features() -> None:
    made = Creation(lambda: X, spec(4), 0, 1).make()
    assert isinstance(made, ArrayRows) and made.y is None and made.count == N
    ((x, y),) = made.read([np.array([3, 1])])
    assert x[:, 0].tolist() == [3, 1] and y is None


def test_a_creator_may_return_a_dataset() -> None:
    made = Creation(lambda config, batch_size: DATA, spec(3), 0, 1).make()
    assert made.batch_size == 3
    assert isinstance(made.sampler, RandomSampler)
    streamed = Creation(lambda config, batch_size: Flow(), spec(3), 0, 1).make()
    assert [len(y) for _, y in streamed] == [3, 3, 3, 1]


@pytest.mark.parametrize("train", KINDS)
def test_validation_data_may_be_of_another_kind(train: str) -> None:
    valid = source_of(KINDS["arrays"], spec(4))
    assert steps_of(source_of(KINDS[train], spec(4)), 2, part="valid", valid=valid) == [STEPS, STEPS]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("made", "word"), [(None, "NoneType"), (torch.tensor(3), "Tensor"), ([object()], "list")])
def test_a_creator_that_returns_something_else_is_named(made: Any, word: str, whole: bool) -> None:
    def train_loader_creator(config: dict[str, Any], batch_size: int) -> Any:
        return made

    message = (
        r"the data creator 'train_loader_creator' must return a torch DataLoader \(or Dataset\), a batched "
        rf"tf.data.Dataset, or numpy arrays: \(x, y\) or .*; got {word}"
    )
    with pytest.raises(DataError, match=message):
        Creation(train_loader_creator, spec(4, whole), 0, 1).make()
    with pytest.raises(WorkerFailed, match=message):
        steps_of(source_of(train_loader_creator, spec(4, whole)), 2)


@pytest.mark.parametrize("kind", ["loader", "tf.data"])
def test_all_ranks_must_see_the_same_dataset(kind: str, tmp_path: Path) -> None:
    def creator(config: dict[str, Any], batch_size: int) -> Any:
        with suppress(FileExistsError):
            os.symlink(str(os.getpid()), tmp_path / "first")
        rows = 4 if os.readlink(tmp_path / "first") == str(os.getpid()) else 8  # another dataset on each rank
        if kind == "loader":
            return DataLoader(TensorDataset(torch.ones(rows), torch.ones(rows)), batch_size=2)
        return of_tf(config, batch_size).take(rows // 4)

    with raises("dataset-differs-by-worker"):
        steps_of(source_of(creator, spec(4)), 2)


def test_a_creator_without_torch_or_tensorflow_loads_neither(run_program: Callable[..., Any]) -> None:
    said = run_program(
        """
        import sys
        import numpy as np
        from orca.core.source import DataSpec
        from orca.registry import source_of
        from orca.engines.local import LocalEngine

        source = source_of(lambda config: np.arange(5.0), DataSpec(labelled=False))
        print(source.answer(lambda x: x + 1, LocalEngine(2)).tolist(), {"torch", "tensorflow"} & set(sys.modules))
        """
    )
    assert said.stdout.strip() == "[1.0, 2.0, 3.0, 4.0, 5.0] set()"


# Answers.


class Pretending(LocalEngine):
    """Count the pieces of a map."""

    pieces = 0

    def map(self, task: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        self.pieces = len(pieces)
        return super().map(task, pieces)


@dataclass(frozen=True)
class Single:
    """A task whose model takes one input."""

    function: Callable[[Any], Any]

    def __call__(self, x: Any) -> Any:
        return self.function(x)

    def takes(self, x: Any) -> bool:
        return not isinstance(x, tuple | list)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_in_the_order_of_the_data_and_made_on_the_workers(kind: str, ranks: int) -> None:
    engine = Pretending(ranks)
    before = random.getstate(), np.random.get_state()[1].tolist()
    answer = source_of(KINDS[kind], DataSpec(labelled=False, batch_size=4)).answer(Single(lambda x: x * 2), engine)
    np.testing.assert_array_equal(answer, X * 2)
    assert engine.pieces == ranks
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_a_shuffled_loader_answers_in_the_order_of_its_dataset() -> None:
    for creator in (lambda config, batch_size: loader_of(batch_size, shuffle=True), lambda config: DATA):
        answer = source_of(creator, DataSpec(labelled=False, batch_size=4)).answer(
            Single(lambda x: x * 2), LocalEngine(2)
        )
        np.testing.assert_array_equal(answer, X * 2)


def test_fewer_rows_than_workers_are_answered() -> None:
    source = source_of(lambda: (X[:2], ROWS[:2]), DataSpec(labelled=False))
    np.testing.assert_array_equal(source.answer(Single(lambda x: x * 2), LocalEngine(5)), X[:2] * 2)


@pytest.mark.parametrize("kind", ["arrays", "tf.data"])
def test_nothing_to_predict_is_said(kind: str) -> None:
    def nothing(config: dict[str, Any], batch_size: int) -> Any:
        return (X[:0], ROWS[:0]) if kind == "arrays" else of_tf(config, batch_size).take(0)

    with raises("no-rows", match="'nothing'"):
        source_of(nothing, DataSpec(labelled=False)).answer(Single(lambda x: x), LocalEngine(2))


def test_the_extent_of_a_creator_is_unknown_and_does_not_call_it() -> None:
    assert source_of(lambda config: 1 // 0, DataSpec()).extent() == Extent()
