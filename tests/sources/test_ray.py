"""RayDatasetSource on a real Ray: every row once for any blocks, columns of all kinds, predict as a lazy column."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from orca import Estimator
from orca.core.feed import unweigh
from orca.core.source import Columns, DataSpec, Extent
from orca.errors import DataError
from orca.registry import source_of
from orca.rows.arrow import to_arrow
from raised import raises

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("ray_context")

WEIGHTS = np.array([1.0, -2.0, 0.5], np.float32)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail a test that leaves an exported dataset behind."""
    yield
    assert list(Path(tempfile.gettempdir()).glob("orca-dataset-*")) == []


def test_a_dataset_is_recognised() -> None:
    source = source_of(_dataset(4), DataSpec())
    assert type(source).__name__ == "RayDatasetSource"
    assert source.batch_size == 32


def test_the_extent_of_a_dataset_is_known_once_it_is_computed() -> None:
    data = _dataset(4)
    assert source_of(data.map_batches(lambda batch: batch), DataSpec()).extent() == Extent()
    extent = source_of(data, DataSpec()).extent()
    assert extent.rows == 4 and extent.bytes is not None and extent.bytes > 0


@pytest.mark.parametrize("rows", [[7, 1, 12], [2], [30]])
@pytest.mark.parametrize("way", ["native", "portable"])
def test_ranks_get_every_row_once_in_even_parts(rows: list[int], way: str, tmp_path: Path) -> None:
    data, x, y = _uneven(rows), *_arrays(sum(rows))
    results = _read(source_of(data, DataSpec()).shards(3), way, tmp_path)
    np.testing.assert_array_equal(np.concatenate([part[0] for part in results]), x)
    np.testing.assert_array_equal(np.concatenate([part[1] for part in results]), y)
    sizes = [len(part[0]) for part in results]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("way", ["native", "portable"])
def test_columns_of_all_kinds_become_arrays(way: str, tmp_path: Path) -> None:
    tensors = np.arange(40, dtype=np.float32).reshape(5, 4, 2)
    lists = [[i, i + 1, i + 2] for i in range(5)]
    frame = pd.DataFrame({"t": list(tensors), "l": lists, "s": np.arange(5) / 2, "b": [True, False] * 2 + [True]})
    columns = Columns(("t", "l"), ("s", "b"))
    for data in (ray.data.from_pandas(frame), ray.data.from_items(frame.to_dict("records"))):
        [(x, y)] = _read(source_of(data, DataSpec(columns)).shards(1), way, tmp_path)
        for got, wanted in zip((*x, *y), (tensors, lists, frame["s"], frame["b"]), strict=True):
            np.testing.assert_array_equal(got, np.asarray(wanted))
            assert got.dtype == np.asarray(wanted).dtype


def test_validation_data_is_a_part_of_its_own(tmp_path: Path) -> None:
    train, valid = (source_of(_dataset(rows), DataSpec()) for rows in (5, 3))
    shards = train.shards(2, valid)
    pieces = shards.native()
    counts = []
    for rank in range(2):
        rows = shards.open(chain.from_iterable(piece() for piece in pieces[rank::2]), tmp_path)
        counts.append({part: r.count for part, r in rows.items()})
        for r in rows.values():
            r.close()
    assert [sum(count[part] for count in counts) for part in ("train", "valid")] == [5, 3]


@pytest.mark.parametrize("way", ["native", "portable"])
@pytest.mark.parametrize("named", [True, False])
def test_a_column_of_weights_travels_beside_the_labels(way: str, named: bool, tmp_path: Path) -> None:
    data = ray.data.from_items([{"x": [i, 1.0], "y": i, "weights": i / 4, "bad": i - 1.0} for i in range(6)])
    columns = Columns(("x",), ("y",), weight="weights") if named else Columns()
    source = source_of(data, DataSpec(columns, weighted=True))
    results = [unweigh(y) for _, y in _read(source.shards(2), way, tmp_path)]
    assert [(y.tolist(), w.tolist()) for y, w in results] == [([0, 1, 2], [0, 0.25, 0.5]), ([3, 4, 5], [0.75, 1, 1.25])]
    with raises("bad-sample-weights"):
        _read(source_of(data, DataSpec(Columns(("x",), ("y",), weight="bad"))).shards(1), way, tmp_path)
    with pytest.raises(DataError, match="there is no column 'w'"):
        source_of(data, DataSpec(Columns(("x",), ("y",), weight="w")))
    with raises("missing-sample-weights"):
        source_of(data, DataSpec(Columns(("x",), ("y",)), weighted=True))


@pytest.mark.full
def test_outputs_of_half_precision_arrive_in_single() -> None:
    task = Task(None, lambda x: (x.astype(np.float16), x[:, 0].astype(np.float16)))
    answer = source_of(_dataset(3), DataSpec(labelled=False)).answer(task, engine=None)
    (batch,) = answer.iter_batches(batch_size=None, batch_format="numpy")
    assert batch["prediction_0"].dtype == batch["prediction_1"].dtype == np.float32
    np.testing.assert_array_equal(batch["prediction_0"], _arrays(3)[0].astype(np.float16))


def test_wrong_columns_are_named() -> None:
    data = _dataset(4)
    with pytest.raises(DataError, match=r"no column 'xs'; the data has \['x', 'y'\]. Did you mean 'x'\?"):
        source_of(data, DataSpec(Columns(("xs",), ("y",))))
    with raises("missing-label-cols", match="'x'"):
        source_of(data, DataSpec(Columns(("x",))))
    with raises("missing-feature-cols", match="'id'"):
        source_of(ray.data.range(3), DataSpec())


def test_python_objects_and_ragged_rows_are_named(tmp_path: Path) -> None:
    objects = ray.data.from_items([{"x": object(), "y": 1.0}])
    with pytest.raises(DataError, match="column 'x' holds Python objects"):
        _read(source_of(objects, DataSpec()).shards(1), "native", tmp_path)
    lists = ray.data.from_items([{"x": [1.0] * n, "y": 1.0} for n in (1, 2)], override_num_blocks=1)
    with raises("ragged-rows", match="'x'"):
        _read(source_of(lists, DataSpec()).shards(1), "native", tmp_path)
    tensors = ray.data.from_items([{"x": np.ones(n), "y": 1.0} for n in (1, 2)], override_num_blocks=1)
    with pytest.raises(DataError, match="column 'x' holds tensors of different shapes"):
        _read(source_of(tensors, DataSpec()).shards(1), "native", tmp_path)


def test_fit_evaluate_and_predict_equal_one_process_for_uneven_blocks() -> None:
    x, y = _arrays(20)
    torch.manual_seed(5)
    plain = torch.nn.Linear(3, 1)
    est = _estimator("ray", workers=2)
    stats = est.fit(_uneven([7, 1, 12]), epochs=2, batch_size=20, validation_data=_uneven([2]))
    assert [line["num_samples"] for line in stats] == [20, 20]
    assert [line["val_num_samples"] for line in stats] == [2, 2]
    _train(plain, x, y, epochs=2)
    for name, weight in est.get_model().state_dict().items():
        np.testing.assert_allclose(weight, plain.state_dict()[name], atol=1e-5)
    with torch.no_grad():
        answers = plain(torch.from_numpy(x))[:, 0].numpy()
    evaluated = est.evaluate(_uneven([2, 18]), batch_size=8)
    assert evaluated["num_samples"] == 20
    assert evaluated["val_loss"] == pytest.approx(np.mean((answers - y[:, 0]) ** 2), rel=1e-4)
    rows = est.predict(_uneven([7, 1, 12])).take_all()
    assert list(rows[0]) == ["x", "y", "prediction"]
    np.testing.assert_allclose([row["prediction"] for row in rows], answers, atol=1e-4)


@pytest.mark.full
def test_fewer_rows_than_ranks_train() -> None:
    x, y = _arrays(2)
    torch.manual_seed(5)
    plain = torch.nn.Linear(3, 1)
    est = _estimator("ray", workers=3)
    assert est.fit(_uneven([2]), epochs=1, batch_size=2)[0]["num_samples"] == 2
    _train(plain, x, y, epochs=1)
    np.testing.assert_allclose(est.get_model().weight.detach(), plain.weight.detach(), atol=1e-5)


def test_a_dataset_feeds_the_local_engine_too() -> None:
    x, y = _arrays(20)
    torch.manual_seed(5)
    plain = torch.nn.Linear(3, 1)
    est = _estimator("local", workers=2)
    assert est.fit(_uneven([7, 1, 12]), epochs=1, batch_size=20)[0]["num_samples"] == 20
    _train(plain, x, y, epochs=1)
    np.testing.assert_allclose(est.get_model().weight.detach(), plain.weight.detach(), atol=1e-5)


def test_predict_is_lazy_and_keeps_the_order_of_rows(tmp_path: Path) -> None:
    def slow_at_first(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        (tmp_path / f"{batch['id'][0]}").touch()
        time.sleep(1.0 if batch["id"][0] == 0 else 0.0)
        return {"number": batch["id"], "x": np.stack([batch["id"]] * 3, axis=1).astype(np.float32)}

    data = ray.data.range(30, override_num_blocks=6).map_batches(slow_at_first, batch_size=None)
    source = source_of(data, DataSpec(labelled=False))
    before = set(tmp_path.iterdir())
    result = source.answer(Task(None, lambda x: x @ WEIGHTS[:, None]), engine=None)
    assert set(tmp_path.iterdir()) == before
    rows = result.take_all()
    assert [row["number"] for row in rows] == list(range(30))
    np.testing.assert_allclose([row["prediction"] for row in rows], np.arange(30) * WEIGHTS.sum())


def test_several_outputs_become_several_columns_and_tensors_stay_tensors() -> None:
    def task(x: np.ndarray) -> Any:
        return {"a": x[:, :1], "b": np.stack([x, x], axis=2)}

    x, _ = _arrays(6)
    data = ray.data.from_items([{"f": row, "name": str(i)} for i, row in enumerate(x)])
    spec = DataSpec(Columns(("f",), outputs=("one", "two")), labelled=False)
    batch = source_of(data, spec).answer(Task(None, task), engine=None).take_batch(6)
    assert list(batch) == ["f", "name", "one", "two"]
    np.testing.assert_array_equal(batch["one"], x[:, 0])
    np.testing.assert_array_equal(batch["two"], np.stack([x, x], axis=2))
    spec = DataSpec(Columns(("f",)), labelled=False)
    assert source_of(data, spec).answer(Task(None, task), engine=None).columns() == [
        "f",
        "name",
        "prediction_0",
        "prediction_1",
    ]


def test_a_taken_output_column_is_named() -> None:
    class Output:
        heads = (("float32", (1,)),)

    spec = DataSpec(Columns(("x",), outputs=("y",)), labelled=False)
    with raises("output-column-taken", match="'y'"):
        source_of(_dataset(3), spec).answer(Task(Output(), lambda x: x), engine=None)


class Task:
    """A prediction task without a model."""

    def __init__(self, output: Any, function: Any) -> None:
        self.output, self.function = output, function

    def __call__(self, x: Any) -> Any:
        return self.function(x)


def _arrays(rows: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(rows, 3)).astype(np.float32)
    return x, (x @ WEIGHTS)[:, None]


def _dataset(rows: int) -> Any:
    return _uneven([rows])


def _uneven(blocks: list[int]) -> Any:
    """Return a dataset with this many rows in each block, and a last block without any."""
    x, y = (to_arrow(array) for array in _arrays(sum(blocks)))
    ends = np.cumsum([*blocks, 0]).tolist()
    cuts = [(end - rows, rows) for rows, end in zip([*blocks, 0], ends, strict=True)]
    return ray.data.from_arrow([pa.table({"x": x.slice(*cut), "y": y.slice(*cut)}) for cut in cuts])


def _read(shards: Any, way: str, folder: Path) -> list[tuple[Any, Any]]:
    """Return (x, y) of each rank, read as a rank reads."""
    pieces = getattr(shards, way)()
    ranks = len(pieces)
    notes = []
    try:
        for rank in range(ranks):
            rows = shards.open(chain.from_iterable(piece() for piece in pieces[rank::ranks]), folder)["train"]
            if rows.count:
                notes.append(next(iter(rows.read([np.arange(rows.count)]))))
            else:
                notes.append((np.zeros((0, 3), np.float32), np.zeros((0, 1), np.float32)))
            rows.close()
    finally:
        shards.release()
    return notes


def _estimator(backend: str, workers: int) -> Estimator:
    return Estimator.from_torch(
        model=lambda config: torch.nn.Linear(3, 1),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.05),
        loss=torch.nn.MSELoss(),
        backend=backend,
        workers_per_node=workers,
        seed=5,
    )


def _train(model: torch.nn.Module, x: np.ndarray, y: np.ndarray, epochs: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()


def test_text_is_refused_at_the_door_of_a_model_of_numbers() -> None:
    data = ray.data.from_items([{"name": str(i), "y": float(i)} for i in range(3)])
    spec = DataSpec(Columns(("name",), ("y",)), numbers=True)
    with raises("not-numbers", match="'name'"):
        source_of(data, spec)
    source_of(data, DataSpec(Columns(("name",), ("y",))))


@pytest.mark.parametrize("way", ["native", "portable"])
def test_column_of_numbers_may_be_a_feature_of_one_column(way: str, tmp_path: Path) -> None:
    data = ray.data.from_items([{"x": float(i), "y": float(i)} for i in range(3)])
    source = source_of(data, DataSpec(unit_columns=True))
    [(x, y)] = _read(source.shards(1), way, tmp_path)
    assert x.shape == (3, 1) and y.shape == (3,)
    answer = source_of(data, DataSpec(labelled=False, unit_columns=True)).answer(
        Task(None, lambda x: x * 2), engine=None
    )
    assert [row["prediction"] for row in answer.take_all()] == [0, 2, 4]
